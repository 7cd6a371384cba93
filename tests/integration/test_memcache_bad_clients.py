"""Clients that are slow, greedy, silent or many: bounded memory, and nobody else suffers."""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled_only

QUIET = ("--text-port", "none", "--thrift-port", "none", "--admin-port", "none")


def resident(server: ServerProcess) -> int:
    """Return the memory a server has in use, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux_only
def test_slow_reader_is_bounded(tmp_path: Path) -> None:
    """A client that asks for much and reads nothing costs little, and stops nobody."""
    size = 1 << 20
    with running_server(tmp_path, *QUIET) as server, Wire(server) as slow, Wire(server) as wire:
        item = bytes(size)
        for _ in range(64):
            wire.ask(b"set work 0 0 %d\r\n%b\r\n" % (size, item), b"STORED\r\n")
        before = resident(server)
        slow.send(b"get work/peek\r\n" * 2000)
        for _ in range(50):
            wire.expect_silence()
        assert resident(server) - before < 16 << 20
        reply = b"VALUE work 0 %d\r\n%b\r\nEND\r\n" % (size, item)
        for _ in range(20):
            slow.expect(reply)


@linux_only
def test_get_of_many_keys_is_bounded(tmp_path: Path) -> None:
    """A short request for many large items does not gather all of them in memory."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as slow, Wire(server) as wire:
        size = 1 << 20
        wire.ask(b"set work 0 0 %d\r\n%b\r\n" % (size, bytes(size)), b"STORED\r\n")
        before = resident(server)
        slow.send(b"get " + b"work/peek " * 100 + b"\r\n")
        wire.expect_silence()
        assert resident(server) - before < 32 << 20


@linux_only
def test_pipelining_behind_a_waiting_read_is_bounded(tmp_path: Path) -> None:
    """What comes behind a read that waits is not gathered without end."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire, Wire(server) as other:
        wire.send(b"get work/t=60000\r\n")
        wait_for(other, "work", "waiters", 1)
        before = resident(server)
        wire.socket.settimeout(0.5)
        requests = b"set junk 0 0 4\r\nxxxx\r\n" * 5_000_000
        with pytest.raises(TimeoutError):
            wire.send(requests)
        assert resident(server) - before < 16 << 20
        other.expect_silence()


def test_huge_pipeline_is_served(tmp_path: Path) -> None:
    """A client that sends much before it reads anything gets every reply, in order."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        requests = b"".join(b"set work 0 0 5\r\n%05d\r\n" % index for index in range(20_000))
        wire.send(requests)
        wire.expect(b"STORED\r\n" * 20_000)
        wire.send(b"get work\r\n" * 20_000)
        for index in range(20_000):
            wire.expect(b"VALUE work 0 5\r\n%05d\r\nEND\r\n" % index)


@linux_only
def test_item_that_never_comes_is_bounded(tmp_path: Path) -> None:
    """A length is not memory: nothing is allocated for what a client only announces."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as other:
        before = resident(server)
        wires = [Wire(server) for _ in range(20)]
        for wire in wires:
            wire.send(b"set work 0 0 2000000000\r\nabc")
        other.expect_silence()
        assert resident(server) - before < 16 << 20
        for wire in wires:
            wire.close()
        other.expect_silence()
        assert stats(other).get("queue_work_items", "0") == "0"


def test_half_closed_client_gets_its_replies(tmp_path: Path) -> None:
    """`printf ... | nc` sends everything and closes its side; the replies come all the same."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        wire.send(b"set work 0 0 5\r\nhello\r\nget work\r\n")
        wire.socket.shutdown(1)
        wire.expect_close(b"STORED\r\nVALUE work 0 5\r\nhello\r\nEND\r\n")


def test_silent_clients_are_closed(tmp_path: Path) -> None:
    """With `client_timeout` a connection that says nothing ends; one that waits does not."""
    with (
        running_server(tmp_path, *QUIET, config='idle_timeout = "50ms"') as server,
        Wire(server) as silent,
        Wire(server) as waiting,
    ):
        waiting.send(b"get work/t=400\r\n")
        silent.expect_close()
        waiting.expect(b"END\r\n")


@linux_only
@pytest.mark.parametrize("listener", ["memcache", "text", "thrift"])
def test_the_system_looks_for_clients_that_are_gone(tmp_path: Path, listener: str) -> None:
    """A machine that loses its power or its network says no more, and ends no connection."""
    with running_server(tmp_path) as server, Wire(server, listener) as wire:
        ports = server.ports[listener], wire.socket.getsockname()[1]
        server_side = [f"0100007F:{port:04X}" for port in ports]

        def is_kept_alive() -> bool:
            rows = map(str.split, Path("/proc/net/tcp").read_text().splitlines())
            timers = [row[5][:2] for row in rows if row[1:3] == server_side]
            return timers == ["02"]

        until(is_kept_alive)


def test_connection_limits(tmp_path: Path) -> None:
    """Beyond the limits adds, and then reads, are refused; what is open may be finished."""
    config = "connection_limit_refuse_writes = 1\nconnection_limit_refuse_reads = 2\n"
    with running_server(tmp_path, *QUIET, config=config) as server, Wire(server) as first:
        put(first, "work", "a", "b")
        first.ask(b"get work/open\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n")
        with Wire(server) as second:
            second.ask(b"get work/peek\r\n", b"VALUE work 0 1\r\nb\r\nEND\r\n")
            second.send(b"set work 0 0 1\r\nc\r\n")
            assert second.until(b"\r\n").startswith(b"SERVER_ERROR too many connections")
        second, third = Wire(server), Wire(server)
        second.ask(b"version\r\n", b"VERSION ")
        third.send(b"get work\r\n")
        assert third.until(b"\r\n").startswith(b"SERVER_ERROR too many connections")
        first.ask(b"get work/close\r\n", b"END\r\n")
        second.close()
        third.close()


def test_a_server_stops_while_clients_flood_it(tmp_path: Path) -> None:
    """A signal is answered however much is waiting to be served."""
    requests = {
        "memcache": b"set work 0 0 4\r\nxxxx\r\nget work\r\n" * 5000,
        "text": b"put work:\nx\n\nget work\n" * 5000,
    }
    stopped = Event()

    def flood(server: ServerProcess, listener: str) -> None:
        with Wire(server, listener) as wire, contextlib.suppress(OSError):
            while not stopped.is_set():
                wire.send(requests[listener])
                wire.socket.recv(1 << 20)

    with running_server(tmp_path) as server, ThreadPoolExecutor(4) as threads:
        for listener in (*requests, *requests):
            threads.submit(flood, server, listener)
        with Wire(server) as wire:
            wire.ask(b"version\r\n", b"VERSION ")
        try:
            assert server.stop() == 0
        finally:
            stopped.set()
