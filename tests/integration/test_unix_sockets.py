"""Unix sockets: every protocol and client over them, who may connect, and whose name it is."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.client.address import open_socket, parse_address
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import ServerUnavailable
from kestrelmq.loadtests.common import connector
from kestrelmq.loadtests.connections import WireProtocol
from tests.integration.test_processes import answers, running
from tests.support.commands import run_command
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import UnixWire, Wire

pytestmark = pytest.mark.compiled_only

PATIENT = ClientOptions(connect_timeout=PATIENCE, operation_timeout=PATIENCE)
LISTENERS = ("memcache", "text", "thrift", "admin")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short path: the path of a Unix socket has few bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def server(tmp_path: Path, sockets: Path) -> Iterator[ServerProcess]:
    """A server with a Unix socket for each listener, and ports, too."""
    with running_server(tmp_path, *flags(sockets)) as started:
        yield started


def flags(sockets: Path) -> list[str]:
    """Return the flags that ask for all sockets, each under the name of its listener."""
    return [word for name in LISTENERS for word in (f"--{name}-path", str(sockets / name))]


def ask(path: Path, method: str, target: str, host: str = "localhost") -> tuple[int, bytes]:
    """Send an HTTP request over a Unix socket; return the status and the body of the reply."""
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.sock = open_socket(parse_address(f"unix:{path}"), PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, target)
        reply = connection.getresponse()
        return reply.status, reply.read()


def test_every_protocol(server: ServerProcess, sockets: Path) -> None:
    """The listeners serve the same queues over their sockets as over their ports."""
    with UnixWire(sockets / "memcache") as memcache, UnixWire(sockets / "text") as text:
        memcache.ask(b"set work 0 0 5\r\nfirst\r\n", b"STORED\r\n")
        text.ask(b"put work:\nsecond\n\n", b"+1\n")
        text.ask(b"get work\n", b":first\n")  # given back when the connection ends
    thrift = connector(WireProtocol.THRIFT, parse_address(f"unix:{sockets}/thrift"))()
    with contextlib.closing(thrift):
        assert thrift.take("work", 2, PATIENCE) == [b"first", b"second"]
        thrift.put("work", [b"third"])
    status, body = ask(sockets / "admin", "GET", "/api/v1/queues/work")
    assert (status, json.loads(body)["stats"]["items"]) == (200, 1)
    with Wire(server) as tcp:
        tcp.ask(b"get work\r\n", b"VALUE work 0 5\r\nthird\r\nEND\r\n")


def test_large_items(server: ServerProcess, sockets: Path) -> None:
    """An item larger than every buffer on the way arrives whole, both ways."""
    item = os.urandom(5 << 20)
    with Client(f"unix:{sockets}/memcache") as client:
        client.put("work", item)
        assert client.get("work") == item


async def test_clients(server: ServerProcess, sockets: Path) -> None:
    """Both clients take the address of a socket, beside others; the server shows their process."""
    address = f"unix:{sockets}/memcache"
    async with AsyncClient(address) as client:
        await client.put("work", b"an item")
        assert await client.get("work") == b"an item"
        shown = [(found.server, found.address) for found in await client.clients()]
    assert shown == [(address, f"unix:{os.getpid()}")]
    with Client([address, server.address]) as both:
        both.put_many("work", [b"1", b"2"])
        assert {both.get("work"), both.get("work")} == {b"1", b"2"}


def test_command_line(server: ServerProcess, sockets: Path) -> None:
    """`--servers unix:PATH` and `bench --server unix:PATH`."""
    address = f"unix:{sockets}/memcache"
    put = run_command("put", "work", "an item", "--servers", address)
    assert put.returncode == 0
    found = run_command("get", "work", "--servers", address)
    assert found.returncode == 0
    assert found.stdout.rstrip(b"\n") == b"an item"
    load = run_command("bench", "flood", "--items", "100", "--server", address)
    assert load.returncode == 0


def test_everyone_on_this_machine_may_administer(tmp_path: Path, sockets: Path) -> None:
    """Off loopback and without a token, changes are refused on the port and made on the socket."""
    config = 'listen_address = "0.0.0.0"\nallow_unauthenticated = true\n'
    with running_server(tmp_path, *flags(sockets), config=config) as server:
        port = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE)
        port.request("POST", "/api/v1/queues/jobs/flush")
        assert port.getresponse().status == 403
        port.close()
        with Client(server.address) as client:
            client.put("jobs", b"an item")
        admin = sockets / "admin"
        assert ask(admin, "POST", "/api/v1/queues/jobs/flush", host="any.name")[0] == 200
        assert json.loads(ask(admin, "GET", "/api/v1/queues/jobs")[1])["stats"]["items"] == 0
        with UnixWire(sockets / "memcache") as wire:
            wire.ask(b"status readonly\r\n", b"END\r\n")
            wire.send(b"shutdown\r\n")
        assert server.process.wait(PATIENCE) == 0
        assert server.logged(f"asked for by unix:{os.getpid()}")


def test_mode_and_owner(tmp_path: Path, sockets: Path) -> None:
    """They are as configured from the first moment, and by default only the server's user may."""
    with running_server(tmp_path / "default", *flags(sockets)):
        assert stat.S_IMODE((sockets / "text").stat().st_mode) == 0o600
    config = f'listen_path_mode = "0660"\nlisten_path_owner = "{os.getuid()}:{os.getgid()}"\n'
    with running_server(tmp_path / "own", *flags(sockets), config=config):
        found = (sockets / "admin").stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


def test_an_unknown_owner(tmp_path: Path, sockets: Path) -> None:
    """The error says which, and nothing is left in the directory."""
    config = 'listen_path_owner = "nobody-has-this-name"\n'
    with (
        pytest.raises(RuntimeError, match=r"listen_path_owner: .*nobody-has-this-name"),
        running_server(tmp_path, *flags(sockets), config=config),
    ):
        pass
    assert list(sockets.iterdir()) == []


def test_killed_and_started_again(server: ServerProcess, sockets: Path) -> None:
    """The sockets of a killed server are replaced; a clean stop removes them."""
    with Client(f"unix:{sockets}/memcache") as client:
        client.put("work", b"an item")
    server.kill9()
    assert {path.name for path in sockets.iterdir()} == set(LISTENERS)
    with pytest.raises(ServerUnavailable, match=f"unix:{sockets}/memcache: connection refused"):
        _get(f"unix:{sockets}/memcache")
    server.restart()
    assert _get(f"unix:{sockets}/memcache") == b"an item"
    assert server.stop() == 0
    assert list(sockets.iterdir()) == []


def _get(address: str) -> bytes | None:
    with Client(address, options=ClientOptions(restart_patience=0)) as client:
        return client.get("work")


@pytest.mark.parametrize("what", ["a server", "a busy server", "a file", "a directory"])
def test_a_file_or_socket_in_use_is_not_replaced(
    server: ServerProcess, sockets: Path, tmp_path: Path, what: str
) -> None:
    """A second server does not start where another listens, or where no socket is."""
    path = sockets / "memcache"
    held = []
    if what == "a busy server":
        server.stop()
        held += [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        held[0].bind(str(path))
        held[0].listen(0)
        held[1].connect(str(path))
    elif what != "a server":
        path = sockets / "other"
        path.mkdir() if what == "a directory" else path.write_text("mine")
    before = path.lstat()
    reason = "a server listens on it" if "server" in what else "a file that is not a socket"
    with (
        pytest.raises(RuntimeError, match=f"memcache cannot listen on unix:{path}: .*{reason}"),
        running_server(tmp_path / "second", "--memcache-path", str(path)),
    ):
        pass
    assert path.lstat().st_ino == before.st_ino
    if what == "a server":
        assert answers(f"unix:{path}")
    for one in held:
        one.close()


def test_another_ones_socket_is_left(server: ServerProcess, sockets: Path) -> None:
    """A server that stops leaves a socket that took the place of its own."""
    path = sockets / "memcache"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(str(path))
        assert server.stop() == 0
        assert path.is_socket()


def test_several_processes(tmp_path: Path, sockets: Path) -> None:
    """The first has the socket that was asked for, the next `.1` behind it; so after a crash."""
    path = sockets / "memcache"
    with running(tmp_path, "--memcache-path", str(path)) as processes:
        own = [f"unix:{path}", f"unix:{path}.1"]
        assert [line.split()[-1] for line in processes.output if "unix:" in line] == own
        killed = processes.pid(1)
        os.kill(killed, signal.SIGKILL)
        until(lambda: processes.pid(1) != killed and answers(own[1]))
        assert answers(own[0])


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_full_backlog_is_waited_for(tmp_path: Path, sockets: Path, kind: str) -> None:
    """While the server does not get to accepting, a client waits, as it does over TCP."""
    path = sockets / "memcache"
    config = "connection_backlog = 1\n"
    with running_server(tmp_path, "--memcache-path", str(path), config=config) as server:
        server.process.send_signal(signal.SIGSTOP)
        waiting = []
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(path))

        async def put_asynchronously() -> None:
            async with AsyncClient(f"unix:{path}", options=PATIENT) as client:
                await client.put("work", b"an item")

        def put() -> None:
            if kind == "asyncio":
                asyncio.run(put_asynchronously())
            else:
                with Client(f"unix:{path}", options=PATIENT) as client:
                    client.put("work", b"an item")

        thread = Thread(target=put)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        for one in waiting:
            one.close()
        server.process.send_signal(signal.SIGCONT)
        thread.join(PATIENCE)
        assert _get(server.address) == b"an item"


def test_nobody_gets_a_place_in_time(sockets: Path) -> None:
    """A client gives up after its timeout."""
    path = sockets / "full"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(str(path))
        listening.listen(0)
        first.connect(str(path))
        with (
            pytest.raises(ServerUnavailable, match="timed out"),
            Client(
                f"unix:{path}", options=ClientOptions(connect_timeout=0.05, restart_patience=0)
            ) as client,
        ):
            client.get("work")


def test_nothing_is_announced_before_every_listener_is_bound(tmp_path: Path) -> None:
    """A server that cannot have its last listener says which, and printed no other."""
    path = tmp_path / "taken"
    path.write_text("mine")
    with (
        pytest.raises(RuntimeError, match=f"admin cannot listen on unix:{path}: ") as failure,
        running_server(tmp_path / "queues", "--admin-path", str(path)),
    ):
        pass
    assert "listening on" not in str(failure.value)
