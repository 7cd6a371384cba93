"""Reserved reads over the text protocol, on a real server that is killed and started again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.test_memcache_reserve import reserve as reserve_by_memcache
from tests.support.limits import largest_file
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled

CONFIG = """
[queues.failing]
max_deliveries = 9
dead_letter_queue = "dead"
retry_delay = "1 hour"
"""
LEASE = "lease=600000"


@dataclass(frozen=True)
class Item:
    """An item of a reply to `reserve`."""

    queue: str
    read: str
    deliveries: int
    data: str


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A connection of the text protocol."""
    with Wire(server, "text") as connected:
        yield connected


def items(wire: Wire) -> list[Item]:
    """Return the items of a reply that comes."""
    found = []
    while (line := wire.until(b"\n")) != b"*\n":
        assert line.startswith(b":"), line
        queue, read, deliveries, added, _, data = line[1:-1].decode().split(" ", 5)
        assert int(added) > 0
        found.append(Item(queue, read, int(deliveries), data))
    return found


def reserve(wire: Wire, arguments: str) -> list[Item]:
    """Reserve items; return them."""
    wire.send(f"reserve {arguments}\n".encode())
    return items(wire)


def ask(wire: Wire, command: str) -> str:
    """Send a command, and return the line that answers it."""
    return wire.ask_until(command.encode() + b"\n", b"\n").decode().strip()


def test_a_read_outlives_its_connection_and_a_kill(server: ServerProcess, wire: Wire) -> None:
    """Any connection may end it, over any protocol."""
    wire.ask(b"put jobs:\na\nb\nc\nd\n\n", b"+4\n")
    first, second, third = reserve(wire, f"jobs 3 {LEASE}")
    assert (first.queue, first.data, first.deliveries) == ("jobs", "a", 1)
    assert ask(wire, f"finish jobs {first.read} {first.read} 5-{'0' * 16}") == "+1"
    server.kill9()
    server.start()
    with Wire(server, "text") as later, Wire(server) as memcache:
        assert ask(later, f"finish jobs {first.read}") == "+0"
        assert ask(later, f"release jobs {second.read}") == "+1"
        assert ask(later, f"extend jobs 600000 {third.read}") == "+1"
        memcache.ask(f"finish jobs {third.read}\r\n".encode(), b"FINISHED 1\r\n")
        (again,) = reserve(later, f"jobs 1 {LEASE}")
        assert (again.data, again.deliveries) == ("b", 2)
        assert ask(later, f"release jobs {again.read} uncounted") == "+1"
        assert [one.deliveries for one in reserve_by_memcache(memcache, f"jobs 1 {LEASE}")] == [2]


def test_any_item_can_be_reserved(server: ServerProcess, wire: Wire) -> None:
    """What would end its line is percent-encoded."""
    with Wire(server) as memcache:
        put(memcache, "lines", "a\r\nb 100%", "")
    assert [one.data for one in reserve(wire, f"lines 9 {LEASE}")] == ["a%0D%0Ab 100%25", ""]


def test_a_tag_makes_the_step_repeatable(server: ServerProcess, wire: Wire) -> None:
    """The same items until they are finished, which can be repeated, too."""
    wire.ask(b"put jobs:\na\nb\nc\n\n", b"+3\n")
    tagged = reserve(wire, f"jobs 2 {LEASE} tag=sink:7:0")
    server.kill9()
    server.start()
    with Wire(server, "text") as later:
        assert reserve(later, f"jobs 2 {LEASE} tag=sink:7:0") == tagged
        assert [ask(later, "finish jobs tag=sink:7:0") for _ in range(2)] == ["+2", "+2"]
        assert ask(later, f"reserve jobs 2 {LEASE} tag=sink:7:0") == "+0"
        assert ask(later, "retire jobs sink 7") == "+1"
        assert ask(later, f"reserve jobs 2 {LEASE} tag=sink:7:1").startswith("-")
        assert [one.data for one in reserve(later, f"jobs 9 {LEASE}")] == ["c"]


def test_several_queues_in_one_wait(server: ServerProcess, wire: Wire) -> None:
    """The next command ends it."""
    with Wire(server) as memcache:
        wire.send(b"reserve first,second 9 lease=600000 t=600000\n")
        wait_for(memcache, "second", "waiters", 1)
        put(memcache, "second", "x")
        assert [(one.queue, one.data) for one in items(wire)] == [("second", "x")]
        wire.send(b"reserve first,second 9 lease=600000 t=600000\n")
        wait_for(memcache, "first", "waiters", 1)
        wire.ask(b"put other:\ny\n\n", b"*\n+1\n")
        wait_for(memcache, "first", "waiters", 0)
    assert reserve(wire, "first,second 9 lease=600000 t=20") == []


def test_the_end_of_a_lease_and_of_an_owner(server: ServerProcess, wire: Wire) -> None:
    """Their items come back; a client's list of reads has those of its owners."""
    with Wire(server) as memcache:
        put(memcache, "short", "a")
        put(memcache, "owned", "b")
        put(memcache, "kept", "c")
        assert len(reserve(wire, "short 1 lease=50")) == 1
        wait_for(memcache, "short", "items", 1)
        with Wire(server, "text") as worker:
            assert len(reserve(worker, f"owned 1 {LEASE} owner=quick grace=1")) == 1
            assert len(reserve(worker, f"kept 1 {LEASE} owner=slow")) == 1
            assert ask(worker, "extend owner=slow 600000") == "+1"
            assert b"open=owned/1 open=kept/1" in memcache.ask_until(b"clients\r\n", b"END\r\n")
        wait_for(memcache, "owned", "items", 1)
        assert ask(wire, "extend owner=slow 600000") == "+1"
        assert ask(wire, "release kept owner=slow") == "+1"
        assert stats(memcache, "kept")["items"] == "1"


def test_delays_and_dead_letters(server: ServerProcess, wire: Wire) -> None:
    """A release may have its own delay, and may be the last."""
    wire.ask(b"put failing:\na\nb\n\n", b"+2\n")
    first, second = reserve(wire, f"failing 2 {LEASE}")
    assert ask(wire, f"release failing {first.read} dead") == "+1"
    assert ask(wire, f"release failing {second.read} delay=1") == "+1"
    wire.ask(b"get dead\n", b":a\n")
    wire.ask(b"get failing %d\n" % (PATIENCE * 1000), b":b\n")


def test_what_is_refused_is_told(server: ServerProcess, wire: Wire) -> None:
    """The connection stays, unless its client speaks HTTP."""
    for line, reason in (
        ("reserve jobs", "reserve takes queues, a count and a lease"),
        ("reserve jobs 1", "reserve takes a lease="),
        ("reserve jobs 0 lease=5", "a count of 1 to 1000"),
        ("reserve jobs 1001 lease=5", "a count of 1 to 1000"),
        ("reserve jobs 1 lease=0", "a lease is at least 1 ms"),
        ("reserve jobs 1 lease=5 tag=a", "a tag is NAME:EPOCH:PART"),
        ("reserve a/b 1 lease=5", "must not contain '/'"),
        ("finish jobs", "finish takes reads, or says whose"),
        ("finish jobs 7", "7 is no read"),
        (f"extend jobs x 7-{'a' * 16}", "extend takes milliseconds"),
        ("retire jobs a x", "an epoch is a whole number"),
    ):
        reply = ask(wire, line)
        assert reply.startswith("-"), line
        assert reason in reply, (line, reply)
    wire.ask(b"reserve jobs 1 lease=5 HTTP/1.1\n", b"-this is no HTTP server\n")
    wire.expect_close()
    assert list(server.queue_path.glob("a*")) == []


def test_what_cannot_be_written_is_not_reserved(server: ServerProcess, wire: Wire) -> None:
    """The error takes the place of the items, which stay where they are."""
    with Wire(server) as memcache:
        put(memcache, "jobs", "a" * (1 << 20))
        put(memcache, "jobs", "b")
        with largest_file(1 << 20, server.process.pid):
            assert ask(wire, f"reserve jobs 1 {LEASE} owner=w").startswith("-")
            wire.ask(b"version\n", b":")
            wire.until(b"\n")
        until(lambda: stats(memcache, "jobs")["items"] == "2")
        # About 1 MiB is reserved at a time.
        found = [reserve(wire, f"jobs 2 {LEASE}") for _ in range(2)]
        assert [[len(one.data) for one in some] for some in found] == [[1 << 20], [1]]
