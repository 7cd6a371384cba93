"""TLS on every port: who gets in, and what a reload changes."""

import contextlib
import http.client
import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final
from xml.etree import ElementTree as ET

import emcache
import pytest
from pymemcache.client.base import Client as Pymemcache

from tests.support.certificates import Authority, Certificate
from tests.support.patience import PATIENCE, connections_end, until
from tests.support.server import LISTENERS, ServerProcess, running_server
from tests.support.users import PASSWORD, users_config
from tests.support.wire import TlsWire, UnixWire, Wire

FRAMED_VERSION: Final = (
    b"\x00\x00\x00\x18\x80\x01\x00\x01\x00\x00\x00\x0bget_version\x00\x00\x00\x00\x00"
)


class Site:
    """A server that speaks TLS, with its authority and configuration file."""

    def __init__(self, directory: Path) -> None:
        (directory / "certificates").mkdir()
        self._directory = directory
        self.authority = Authority(directory / "certificates")
        self.shown = self.authority.server()
        self.context = self.authority.client_context()

    def config(self, *lines: str) -> str:
        """Return a configuration with TLS, and `lines` in its table."""
        files = [f'certificate = "{self.shown.certificate}"', f'key = "{self.shown.key}"']
        return "\n".join(["[tls]", *files, *lines, ""])

    def show(self, other: Certificate) -> None:
        """Put another certificate in the place of the server's."""
        self.shown.certificate.write_bytes(other.certificate.read_bytes())
        self.shown.key.write_bytes(other.key.read_bytes())

    def configure(self, text: str) -> None:
        """Write the server's configuration file, which `running_server` has made."""
        (self._directory / "kestrelmq.toml").write_text(text)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """What a server with TLS needs."""
    return Site(tmp_path)


@pytest.fixture
def server(site: Site, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that speaks TLS on all its ports."""
    with running_server(tmp_path, config=site.config()) as started:
        yield started


def get(server: ServerProcess, context: ssl.SSLContext, path: str) -> bytes:
    """Return the body of an HTTPS reply."""
    url = f"https://localhost:{server.ports['admin']}{path}"
    with urllib.request.urlopen(url, context=context, timeout=PATIENCE) as reply:
        body: bytes = reply.read()
        return body


def number_shown(server: ServerProcess, context: ssl.SSLContext, listener: str) -> str:
    """Return the serial number of the certificate that a listener shows to a new client."""
    with TlsWire(server, context, listener) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        shown = wire.socket.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def reload(server: ServerProcess, wire: Wire) -> bytes:
    """Reload with the memcache command; return the reply."""
    return wire.ask_until(b"reload\r\n", b"\r\n")


def test_every_port(server: ServerProcess, site: Site) -> None:
    """All four serve the same queues; HTTPS, too."""
    with TlsWire(server, site.context) as memcache, TlsWire(server, site.context, "text") as text:
        memcache.ask(b"set work 0 0 5\r\nfirst\r\n", b"STORED\r\n")
        text.ask(b"get work\n", b":first\n")
    with TlsWire(server, site.context, "thrift") as thrift:
        thrift.send(FRAMED_VERSION)
        assert b"get_version" in thrift.until(b"1.0.0")
    until(lambda: json.loads(get(server, site.context, "/api/v1/queues/work"))["stats"]["items"])


def test_a_large_item_both_ways(server: ServerProcess, site: Site) -> None:
    """In requests and replies that are many records each."""
    item = bytes(range(256)) * 20_000
    with TlsWire(server, site.context) as wire:
        wire.ask(b"set work 0 0 %d\r\n%s\r\n" % (len(item), item), b"STORED\r\n")
        wire.ask(b"get work\r\n", b"VALUE work 0 %d\r\n%s\r\nEND\r\n" % (len(item), item))
    body = get(server, site.context, "/metrics")
    assert b"kestrelmq_failed_handshakes_total 0" in body


def test_a_client_library(server: ServerProcess, site: Site) -> None:
    """pymemcache, with its own TLS."""
    address = ("localhost", server.ports["memcache"])
    client = Pymemcache(address, tls_context=site.context, timeout=PATIENCE, default_noreply=False)
    with contextlib.closing(client):
        for size in (1, 1024, 16_384, 100_000):
            client.set("work", b"x" * size)
            assert client.get("work") == b"x" * size


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS is deprecated")
async def test_an_asyncio_library(server: ServerProcess, site: Site) -> None:
    """emcache, with its own TLS."""
    client = await emcache.create_client(
        [emcache.MemcachedHostAddress("localhost", server.ports["memcache"])],
        max_connections=1,  # it leaves a second one open that it still makes at the end
        ssl=True,
        ssl_extra_ca=str(site.authority.certificate),
        timeout=PATIENCE,
    )
    try:
        await client.set(b"work", b"x" * 1000)
        found = await client.get(b"work")
        assert found is not None
        assert found.value == b"x" * 1000
    finally:
        await client.close()
        await connections_end()


def s_client(server: ServerProcess, *flags: str, given: bytes = b"") -> tuple[int, bytes]:
    """Run `openssl s_client`; return its exit status and what it printed."""
    command = ["openssl", "s_client", "-connect", server.address, *flags]
    done = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_an_older_version(server: ServerProcess, version: str) -> None:
    """It is refused, although this client would speak it."""
    status, printed = s_client(server, version, "-cipher", "ALL:@SECLEVEL=0")
    assert status == 1
    assert b"Cipher is (NONE)" in printed


@pytest.mark.parametrize("listener", LISTENERS)
def test_what_a_scanner_finds(server: ServerProcess, listener: str) -> None:
    """TLS 1.2 and 1.3 on every port: no older version, and no weak cipher."""
    place = f"127.0.0.1:{server.ports[listener]}"
    command = ["sslscan", "--xml=-", "--no-groups", "--no-check-certificate", place]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    found = ET.fromstring(done.stdout)  # noqa: S314 # of a program that we run
    enabled = {
        f"{one.get('type')} {one.get('version')}"
        for one in found.iter("protocol")
        if one.get("enabled") == "1"
    }
    assert enabled == {"tls 1.2", "tls 1.3"}
    ciphers = list(found.iter("cipher"))
    assert {one.get("sslversion") for one in ciphers} == {"TLSv1.2", "TLSv1.3"}
    assert min(int(one.get("bits", "0")) for one in ciphers) >= 128
    assert {one.get("supported") for one in found.iter("renegotiation")} == {"0"}
    assert {one.get("vulnerable") for one in found.iter("heartbleed")} == {"0"}


@contextlib.contextmanager
def talking(server: ServerProcess, version: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Run `openssl s_client`, and let the test write what it is to send, and its commands."""
    command = ["openssl", "s_client", "-connect", server.address, version]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, bufsize=0
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            yield client.stdin, client.stdout
        finally:
            client.kill()


def test_new_keys(server: ServerProcess) -> None:
    """A client of TLS 1.3 that asks for new keys between its requests gets replies with them."""
    with talking(server, "-tls1_3") as (given, printed):
        for _ in range(3):
            given.write(b"version\r\n")
            while b"VERSION" not in (line := printed.readline()):
                assert line
            given.write(b"K\n")
            while b"KEYUPDATE" not in (line := printed.readline()):
                assert line


def test_no_renegotiation(server: ServerProcess) -> None:
    """A client of TLS 1.2 may not begin another handshake: it costs the server much."""
    with talking(server, "-tls1_2") as (given, printed):
        given.write(b"R\n")
        while b"no renegotiation" not in (line := printed.readline()):
            assert line


def test_a_client_that_speaks_none(server: ServerProcess, site: Site) -> None:
    """It is refused, and the log says why; others are served."""
    with Wire(server) as plain, TlsWire(server, site.context) as wire:
        plain.send(b"get work\r\n")
        with contextlib.suppress(ConnectionError):
            while plain.socket.recv(4096):
                pass
        assert server.logged("memcache: no TLS with 127.0.0.1:")
        wire.ask(b"get work\r\n", b"END\r\n")


def test_many_hellos_at_once(server: ServerProcess, site: Site) -> None:
    """With half-open ones among them; all are served, and nobody else is kept waiting for them."""
    with contextlib.ExitStack() as stack:
        working = stack.enter_context(TlsWire(server, site.context))
        for _ in range(25):
            stack.enter_context(Wire(server))
            stack.enter_context(Wire(server)).send(b"\x16\x03\x01")
        hellos = []
        for _ in range(200):
            client = stack.enter_context(Wire(server)).socket
            client.setblocking(False)
            one = site.context.wrap_socket(
                client, server_hostname="localhost", do_handshake_on_connect=False
            )
            hellos.append(stack.enter_context(one))
            with contextlib.suppress(ssl.SSLWantReadError):
                one.do_handshake()
        working.ask(b"get work\r\n", b"END\r\n")
        for one in hellos:
            one.settimeout(PATIENCE)
            one.do_handshake()
            one.sendall(b"get work\r\n")
        for one in hellos:
            assert one.recv(5) == b"END\r\n"


def test_many_hellos_at_once_over_http(server: ServerProcess, site: Site) -> None:
    """With half-open ones among them, some of which go: all others are served."""
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(Wire(server, "admin")).send(b"\x16\x03\x01")
        clients = [stack.enter_context(Wire(server, "admin")).socket for _ in range(60)]
        hellos = []
        for number, client in enumerate(clients):
            client.setblocking(False)
            one = site.context.wrap_socket(
                client, server_hostname="localhost", do_handshake_on_connect=False
            )
            hellos.append(stack.enter_context(one))
            with contextlib.suppress(ssl.SSLWantReadError):
                one.do_handshake()
            if number % 3 == 0:
                one.close()
        for one in hellos:
            if one.fileno() >= 0:
                one.settimeout(PATIENCE)
                one.do_handshake()
                one.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert one.recv(15) == b"HTTP/1.1 200 OK"
    assert "Traceback" not in server.output


def test_only_some_listeners(site: Site, tmp_path: Path) -> None:
    """The others, and all Unix sockets, speak no TLS."""
    config = site.config('listeners = ["admin"]')
    with running_server(tmp_path, "--text-path", str(tmp_path / "s"), config=config) as server:
        with Wire(server) as plain, UnixWire(tmp_path / "s") as text:
            plain.ask(b"get work\r\n", b"END\r\n")
            text.ask(b"get work\n", b"*\n")
        assert b"healthy" in get(server, site.context, "/health")


def test_another_certificate(server: ServerProcess, site: Site) -> None:
    """A reload shows it to new clients of every listener; who is connected goes on."""
    listeners = ("memcache", "text", "thrift", "admin")
    before = {number_shown(server, site.context, one) for one in listeners}
    with TlsWire(server, site.context) as wire:
        site.show(site.authority.server())
        assert {number_shown(server, site.context, one) for one in listeners} == before
        server.process.send_signal(signal.SIGHUP)
        assert server.logged("configuration reloaded")
        after = {number_shown(server, site.context, one) for one in listeners}
        assert (len(before), len(after), before & after) == (1, 1, set())
        wire.ask(b"get work\r\n", b"END\r\n")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "not a certificate and its key"), (b"-----BEGIN", "not a certificate and its key")],
)
def test_a_bad_certificate(server: ServerProcess, site: Site, content: bytes, problem: str) -> None:
    """The reply to the reload says so, and the old one stays."""
    before = number_shown(server, site.context, "memcache")
    with TlsWire(server, site.context) as wire:
        site.shown.certificate.write_bytes(content)
        reply = reload(server, wire)
        assert problem in reply.decode()
        site.shown.certificate.unlink()
        assert b"No such file" in reload(server, wire)
        assert number_shown(server, site.context, "memcache") == before


def test_a_bad_certificate_at_the_start(site: Site, tmp_path: Path) -> None:
    """The server does not start, and says why, also for another certificate's key."""
    site.shown.key.write_bytes(site.authority.server().key.read_bytes())
    with (
        pytest.raises(RuntimeError, match="KEY_VALUES_MISMATCH"),
        running_server(tmp_path, config=site.config()),
    ):
        pass


def test_tls_turned_off_and_on(server: ServerProcess, site: Site) -> None:
    """By a reload, for new clients."""
    with TlsWire(server, site.context) as wire:
        site.configure("")
        reload(server, wire)
        with Wire(server) as plain:
            plain.ask(b"get work\r\n", b"END\r\n")
            site.configure(site.config())
            reload(server, plain)
        wire.ask(b"get work\r\n", b"END\r\n")
    assert b"healthy" in get(server, site.context, "/health")


@pytest.mark.parametrize("required", [False, True])
def test_client_certificates(site: Site, tmp_path: Path, *, required: bool) -> None:
    """Those of the authority are taken, others never; none is taken unless one is required."""
    ca = f'client_ca = "{site.authority.certificate}"'
    lines = [ca, f"require_client_certificate = {str(required).lower()}"]
    good = site.authority.client_context(site.authority.issue("worker"))
    foreign = site.authority.client_context(Authority(tmp_path, "another").issue("worker"))
    late = site.authority.client_context(site.authority.issue("worker", days=-1))
    with running_server(tmp_path, config=site.config(*lines)) as server:
        assert served(server, good)
        assert served(server, site.context) is not required
        assert not served(server, foreign)
        assert not served(server, late)
        assert b"healthy" in get(server, good, "/health")


def served(server: ServerProcess, context: ssl.SSLContext) -> bool:
    """Whether the server serves a client."""
    try:
        with TlsWire(server, context) as wire:
            wire.ask(b"get work\r\n", b"END\r\n")
    except (ssl.SSLError, ConnectionError):
        return False
    return True


USERS = """
[users.billing]
certificate_name = "billing"
read = ["orders"]

[users.spiffe]
certificate_name = "spiffe://example/ops"
admin = true
"""


def cookie(server: ServerProcess, context: ssl.SSLContext) -> str:
    """Sign in as the console does; return the cookie."""
    port = server.ports["admin"]
    connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE, context=context)
    with contextlib.closing(connection):
        body = json.dumps({"user": "alice", "password": PASSWORD})
        connection.request("POST", "/api/v1/session", body, {"Content-Type": "application/json"})
        return str(connection.getresponse().headers["Set-Cookie"])


def test_the_name_in_a_certificate_is_a_user(site: Site, tmp_path: Path) -> None:
    """Of every protocol; others, and clients without a certificate, must sign in."""
    authority = site.authority
    config = site.config(f'client_ca = "{authority.certificate}"') + USERS
    config += users_config(alice="")
    billing = authority.client_context(authority.issue("billing", names=("spiffe://example/ops",)))
    ops = authority.client_context(authority.issue("", names=("spiffe://example/ops",)))
    nobody = authority.client_context(authority.issue("nobody"))
    with running_server(tmp_path, config=config) as server:
        with TlsWire(server, ops) as wire:
            wire.ask(b"set orders 0 0 1\r\nx\r\n", b"STORED\r\n")
            shown = wire.ask_until(b"clients\r\n", b"END\r\n")
            assert b"user=spiffe" in shown
        with TlsWire(server, billing) as wire, TlsWire(server, billing, "text") as text:
            wire.ask(b"get orders\r\n", b"VALUE orders 0 1\r\nx\r\nEND\r\n")
            assert wire.ask_until(b"get other\r\n", b"\r\n").startswith(b"CLIENT_ERROR")
            text.ask(b"get orders\n", b"*\n")
            assert text.ask_until(b"get other\n", b"\n").startswith(b"-")
        for context in (nobody, site.context):
            with TlsWire(server, context) as wire:
                assert wire.ask_until(b"get orders\r\n", b"\r\n").startswith(b"CLIENT_ERROR")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(server, context, "/api/v1/queues/orders")
        assert b"orders" in get(server, billing, "/api/v1/queues/orders")
        assert "; Secure" in cookie(server, site.context)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(server, billing, "/api/v1/queues/other")
