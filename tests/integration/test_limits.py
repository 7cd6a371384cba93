"""Limits: whoever comes beyond one is refused with an error; those who are served go on."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import TlsWire, UnixWire, Wire

REFUSALS = {
    "memcache": b"SERVER_ERROR too many connections (max_connections is 3)\r\n",
    "text": b"-too many connections (max_connections is 3)\n",
    "thrift": b"",
    "admin": b"HTTP/1.1 503 Service Unavailable\r\n",
}


@contextlib.contextmanager
def connected(server: ServerProcess, count: int) -> Iterator[list[Wire]]:
    """Have clients that are served."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server)) for _ in range(count)]
        for wire in wires:
            wire.ask(b"get work\r\n", b"END\r\n")
        yield wires


def refused(server: ServerProcess) -> int:
    """Return how many clients were refused, this one excepted, once there is room for it."""
    url = f"http://127.0.0.1:{server.ports['admin']}/metrics"
    own = 0
    lines: list[str] = []
    while not lines:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
                lines = reply.read().decode().splitlines()
        except urllib.error.HTTPError as error:
            with error:
                own += 1
    name = "kestrelmq_refused_connections_total "
    found = next(int(float(line.removeprefix(name))) for line in lines if line.startswith(name))
    return found - own


@pytest.mark.parametrize("listener", REFUSALS)
def test_connections(tmp_path: Path, listener: str) -> None:
    """The limit is one for all listeners; a client that leaves makes room."""
    with running_server(tmp_path, config="max_connections = 3\n") as server:
        with connected(server, 3) as wires:
            for _ in range(5):
                with Wire(server, listener) as late:
                    late.expect(REFUSALS[listener])
                    if listener == "admin":
                        late.until(b'too many connections (max_connections is 3); try again"}}')
                    late.expect_close()
            for wire in wires:
                wire.ask(b"get work\r\n", b"END\r\n")
        assert refused(server) == 5
        assert server.logged("refused: too many connections (max_connections is 3)")
        until(lambda: is_served(server))


def is_served(server: ServerProcess) -> bool:
    """Whether a new client is served."""
    with Wire(server) as wire, contextlib.suppress(ConnectionError):
        wire.send(b"get work\r\n")
        return wire.until(b"\n") == b"END\r\n"
    return False


def test_connections_of_an_address(tmp_path: Path) -> None:
    """Those of another address, and on Unix sockets, do not count."""
    path = tmp_path / "s"
    config = "max_connections_per_address = 2\n"
    with (
        running_server(tmp_path, "--memcache-path", str(path), config=config) as server,
        connected(server, 2) as wires,
    ):
        with Wire(server) as late:
            late.expect_close(
                b"SERVER_ERROR too many connections from there"
                b" (max_connections_per_address is 2)\r\n"
            )
        with UnixWire(path) as one, UnixWire(path) as two, UnixWire(path) as three:
            for local in (one, two, three):
                local.ask(b"get work\r\n", b"END\r\n")
        wires[0].ask(b"get work\r\n", b"END\r\n")
        wires[0].close()
        until(lambda: is_served(server))


def test_http_connections_count(tmp_path: Path) -> None:
    """Beside those of the queues; an idle one makes room for a new one, one at work does not."""
    ask = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ping = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running_server(tmp_path, config="max_connections = 3\n") as server:
        with connected(server, 1), Wire(server, "admin") as watcher, Wire(server, "admin") as idle:
            watcher.ask(ask, b"HTTP/1.1 200 OK\r\n")
            idle.ask(ping, b"HTTP/1.1 200 OK\r\n")
            assert refused_at_once(server)
            with Wire(server, "admin") as new:
                new.ask(ping, b"HTTP/1.1 200 OK\r\n")
                while idle.socket.recv(4096):
                    pass
                assert refused_at_once(server)
        until(lambda: not refused_at_once(server))
    config = "max_connections_per_address = 2\n"
    with running_server(tmp_path, config=config) as server, connected(server, 1) as wires:
        with Wire(server, "admin") as idle:
            idle.ask(ping, b"HTTP/1.1 200 OK\r\n")
            with Wire(server, "admin") as late:
                late.expect(REFUSALS["admin"])
                late.until(b"too many connections from there")
            idle.until(b"pong")
            idle.ask_until(ping, b"HTTP/1.1 200 OK\r\n")
        wires[0].ask(b"get work\r\n", b"END\r\n")


def test_an_address_with_too_many_clients_takes_no_place_of_others(tmp_path: Path) -> None:
    """Its new one would be refused all the same."""
    ping = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    path = tmp_path / "admin"
    config = "max_connections = 3\nmax_connections_per_address = 2\n"
    with (
        running_server(tmp_path, "--admin-path", str(path), config=config) as server,
        UnixWire(path) as idle,
        connected(server, 2),
    ):
        idle.ask(ping, b"HTTP/1.1 200 OK\r\n")
        with Wire(server, "admin") as late:
            late.expect(REFUSALS["admin"])
        idle.until(b"pong")
        idle.ask_until(ping, b"HTTP/1.1 200 OK\r\n")


def test_handshakes_count(tmp_path: Path) -> None:
    """A client that has not finished its handshake takes the place of a connection until then."""
    (tmp_path / "certificates").mkdir()
    authority = Authority(tmp_path / "certificates")
    shown = authority.server()
    files = f'[tls]\ncertificate = "{shown.certificate}"\nkey = "{shown.key}"\n'
    config = f'max_connections = 2\n{files}listeners = ["memcache"]\n'
    context = authority.client_context()
    with running_server(tmp_path, config=config) as server:
        with TlsWire(server, context) as wire, Wire(server) as half:
            half.send(b"\x16\x03\x01")
            until(lambda: refused_at_once(server))
            wire.ask(b"get work\r\n", b"END\r\n")
        until(lambda: not refused_at_once(server))
        with TlsWire(server, context) as wire:
            wire.ask(b"get work\r\n", b"END\r\n")


def refused_at_once(server: ServerProcess) -> bool:
    """Whether a further client of the text listener is refused."""
    with Wire(server, "text") as wire, contextlib.suppress(ConnectionError):
        wire.send(b"get work\n")
        return wire.until(b"\n") != b"*\n"
    return True


def test_queues(tmp_path: Path) -> None:
    """Nothing creates one more; a queue that is deleted makes room, also after a restart."""
    with running_server(tmp_path, config="max_queues = 2\n") as server:
        refusal = b"SERVER_ERROR queue three cannot be created: max_queues is 2\r\n"
        with Wire(server) as wire:
            wire.ask(b"set one 0 0 1\r\nx\r\nset two 0 0 1\r\nx\r\n", b"STORED\r\n" * 2)
            wire.ask(b"set three 0 0 1\r\nx\r\n", refusal)
            wire.ask(b"set one 0 0 1\r\nx\r\n", b"STORED\r\n")
        server.restart()
        with Wire(server) as wire, Wire(server, "text") as text:
            wire.ask(b"set three 0 0 1\r\nx\r\n", refusal)
            text.ask(b"put three:\nx\n\n", b"-queue three cannot be created: max_queues is 2\n")
            wire.ask(b"delete two\r\n", b"DELETED\r\n")
            wire.ask(b"set three 0 0 1\r\nx\r\n", b"STORED\r\n")
