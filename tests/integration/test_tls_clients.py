"""The clients, the command line and the load tests over TLS."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client, ClientOptions
from kestrelmq.client.address import parse_address
from kestrelmq.errors import ClientError, InvalidRequest, ServerUnavailable
from tests.integration.test_tls import Site
from tests.support.certificates import Authority
from tests.support.commands import run_command
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

ITEM = bytes(range(256)) * 8000
PATIENT = ClientOptions(connect_timeout=PATIENCE, operation_timeout=PATIENCE, restart_patience=0)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """What the server needs."""
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def server(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that speaks TLS, and takes certificates."""
    config = site.config(f'client_ca = "{site.authority.certificate}"')
    with running_server(tmp_path_factory.mktemp("server"), config=config) as started:
        yield started


@pytest.fixture(autouse=True)
def _empty(server: ServerProcess, site: Site) -> None:
    with Client(server.address, tls=site.context, options=PATIENT) as client:
        client.flush_all()


def url(server: ServerProcess, site: Site) -> str:
    """Return the address of the server that says all."""
    return f"kestrel://{server.address}?tls=1&ca={site.authority.certificate}"


def test_the_blocking_client(server: ServerProcess, site: Site) -> None:
    """Small and large items, open reads, and connections that are used again."""
    with Client(server.address, tls=site.context, options=PATIENT) as client:
        for item in (b"x", ITEM):
            for _ in range(3):
                client.put("work", item)
                assert client.get("work") == item
        assert len(client.clients()) == 1  # one connection served it all
    with Client(url(server, site), options=PATIENT) as client:
        client.put("work", b"x")
        with client.reserve("work") as held:
            assert held == b"x"
        assert client.get("work") is None


async def test_the_asyncio_client(server: ServerProcess, site: Site) -> None:
    """The same, and many at once."""
    async with AsyncClient(server.address, tls=site.context, options=PATIENT) as client:
        for item in (b"x", ITEM):
            for _ in range(3):
                await client.put("work", item)
                assert await client.get("work") == item
        assert len(await client.clients()) == 1
        await asyncio.gather(*(client.put("work", b"%d" % number) for number in range(50)))
        found = await asyncio.gather(*(client.get("work") for _ in range(50)))
        assert {*found} == {b"%d" % number for number in range(50)}
    async with AsyncClient(url(server, site), options=PATIENT) as client:
        assert await client.get("work") is None


async def test_a_server_that_is_not_trusted(server: ServerProcess, tmp_path: Path) -> None:
    """Neither client uses it: its authority is none of the system's, or another one."""
    untrusted = Authority(tmp_path).client_context()
    for tls in (True, untrusted):
        with Client(server.address, tls=tls, options=PATIENT) as client, refused():
            client.get("work")
        async with AsyncClient(server.address, tls=tls, options=PATIENT) as other:
            with refused():
                await other.get("work")


def refused() -> contextlib.AbstractContextManager[object]:
    """Expect the error of a server whose certificate is not what the client wants."""
    return pytest.raises(ServerUnavailable, match=r"certificate.verify.failed")


def test_a_server_of_another_name(tmp_path: Path) -> None:
    """The certificate must name the host that the client was told."""
    site = Site(tmp_path)
    site.show(site.authority.issue("another", names=("another.example",)))
    with (
        running_server(tmp_path, config=site.config()) as other,
        Client(other.address, tls=site.context, options=PATIENT) as client,
        refused(),
    ):
        client.get("work")


async def test_only_one_side_speaks_tls(server: ServerProcess, site: Site, tmp_path: Path) -> None:
    """The error says what is wrong, or that the server has ended the connection."""
    with (
        Client(server.address, options=PATIENT) as client,
        pytest.raises(ClientError, match=r"TLS is spoken there|closed"),
    ):
        client.get("work")
    with running_server(tmp_path) as plain:
        with (
            Client(plain.address, tls=site.context, options=PATIENT) as client,
            pytest.raises(ServerUnavailable),
        ):
            client.get("work")
        async with AsyncClient(plain.address, tls=site.context, options=PATIENT) as other:
            with pytest.raises(ServerUnavailable):
                await other.get("work")


def test_a_connection_that_the_server_has_ended(server: ServerProcess, site: Site) -> None:
    """It is found closed before it is used again: the close_notify is no reply."""
    with Client(server.address, tls=site.context, options=PATIENT) as client:
        client.put("work", b"x")
        (shown,) = client.clients()
        with Client(server.address, tls=site.context, options=PATIENT) as other:
            other.kill_client(shown.id, shown.server)
        assert client.get("work") == b"x"


def test_command_line(server: ServerProcess, site: Site) -> None:
    """By flags and by a URL; `bench`, too, over every protocol."""
    flags = ("--tls-ca", str(site.authority.certificate))
    assert run_command("put", "work", "one", "--servers", server.address, *flags).returncode == 0
    found = run_command("get", "work", "--servers", url(server, site))
    assert found.stdout == b"one"
    for protocol in ("memcache", "text", "thrift"):
        address = f"127.0.0.1:{server.ports[protocol]}"
        options = ("--items", "50", "--protocol", protocol, "--server", address)
        done = run_command("bench", "flood", *options, *flags)
        assert done.returncode == 0, done.stderr
    wrong = run_command("get", "work", "--servers", server.address, "--tls-ca", "/nowhere")
    assert wrong.returncode == 2
    assert b"/nowhere" in wrong.stderr


def test_a_certificate_to_show(site: Site, tmp_path: Path) -> None:
    """Where the server wants one."""
    lines = (f'client_ca = "{site.authority.certificate}"', "require_client_certificate = true")
    shown = site.authority.issue("worker")
    with running_server(tmp_path, config=site.config(*lines)) as strict:
        files = f"certificate={shown.certificate}&key={shown.key}"
        with Client(f"{url(strict, site)}&{files}", options=PATIENT) as client:
            client.put("work", b"x")
        flags = ("--tls-ca", str(site.authority.certificate), "--servers", strict.address)
        mine = ("--tls-certificate", str(shown.certificate), "--tls-key", str(shown.key))
        assert run_command("get", "work", *flags, *mine).stdout == b"x"
        assert run_command("get", "work", *flags).returncode == 1


@pytest.mark.parametrize(
    "query",
    ["tls", "tls=0", "ca=/x", "tls=1&ca=", "tls=1&password=x", "tls=1&key=/x", "tls=1&ca=/x"],
)
def test_a_url_that_asks_for_something_else(query: str) -> None:
    """It is refused when the client is made."""
    with pytest.raises(InvalidRequest):
        Client(f"kestrel://host:1?{query}")


def test_urls() -> None:
    """The address is the one between the user and the question mark."""
    assert parse_address("kestrel://me@host:1?tls=1") == parse_address("host:1")
    with pytest.raises(InvalidRequest, match="one kind of TLS"):
        Client("kestrel://a?tls=1,kestrel://b?tls=1&ca=/x")
    with pytest.raises(InvalidRequest, match="a bool or an SSLContext"):
        ClientOptions(tls="yes")  # type: ignore[arg-type]


def test_unix_sockets_speak_none(site: Site, tmp_path: Path) -> None:
    """A client with TLS uses them beside ports."""
    with (
        running_server(tmp_path, "--memcache-path", str(tmp_path / "s"), config=site.config()),
        contextlib.closing(
            Client(f"unix:{tmp_path}/s", tls=ssl.create_default_context(), options=PATIENT)
        ) as client,
    ):
        client.put("work", b"x")
        assert client.get("work") == b"x"
