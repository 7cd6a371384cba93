"""Reserved reads over memcache, on a real server that is killed and started again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = """
[queues.failing]
max_deliveries = 9
dead_letter_queue = "dead"
retry_delay = "1 hour"
"""


@dataclass(frozen=True)
class Item:
    """An item of a reply to `reserve`."""

    queue: str
    read: str
    deliveries: int
    added: int
    expiry: int
    data: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that most tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("reserve"), config=CONFIG) as running:
        yield running


def items(reply: bytes) -> list[Item]:
    """Return the items of a reply; it has nothing else."""
    found = []
    line = re.compile(rb"ITEM (\S+) (-?\d+-[0-9a-f]{16}) (\d+) (\d+) (\d+) (\d+)\r\n")
    at = 0
    while (match := line.match(reply, at)) is not None:
        queue, read, *numbers, size = match.groups()
        end = match.end() + int(size)
        data = reply[match.end() : end]
        assert reply[end : end + 2] == b"\r\n"
        deliveries, added, expiry = map(int, numbers)
        found.append(Item(queue.decode(), read.decode(), deliveries, added, expiry, data.decode()))
        at = end + 2
    assert reply[at:] == b"END\r\n"
    return found


def reserve(wire: Wire, arguments: str) -> list[Item]:
    """Reserve items; return them."""
    return items(wire.ask_until(f"reserve {arguments}\r\n".encode(), b"END\r\n"))


def ask(wire: Wire, request: str) -> str:
    """Send a request, and return the line that answers it."""
    return wire.ask_until(request.encode() + b"\r\n", b"\r\n").decode().strip()


def found(wire: Wire, queue: str) -> list[str]:
    """Read everything that waits in a queue."""
    got = []
    while (reply := wire.ask_until(f"get {queue}\r\n".encode(), b"END\r\n")) != b"END\r\n":
        got.append(reply.split(b"\r\n")[1].decode())
    return got


def test_a_read_outlives_its_connection(server: ServerProcess, wire: Wire) -> None:
    """Any connection may finish it, once; other reads of the queue go on."""
    put(wire, "r1", "a", "b", "c")
    with Wire(server) as reader:
        first, second = reserve(reader, "r1 2 lease=600000")
    assert (first.queue, first.data, first.deliveries, first.expiry) == ("r1", "a", 1, 0)
    assert ask(wire, f"finish r1 {first.read} {first.read} 5-{'0' * 16}") == "FINISHED 1"
    assert ask(wire, f"finish r1 {first.read}") == "FINISHED 0"
    assert ask(wire, f"finish other {second.read}") == "FINISHED 0"
    assert stats(wire, "other") == {}
    assert found(wire, "r1") == ["c"]
    assert ask(wire, f"release r1 {second.read}") == "RELEASED 1"
    (again,) = reserve(wire, "r1 5 lease=600000")
    assert (again.data, again.deliveries) == ("b", 2)
    assert again.read != second.read
    assert ask(wire, f"release r1 {again.read} uncounted") == "RELEASED 1"
    assert [one.deliveries for one in reserve(wire, "r1 5 lease=600000")] == [2]


def test_a_lease_ends_or_is_extended(wire: Wire) -> None:
    """In real time."""
    put(wire, "r2", "a", "b")
    first, second = reserve(wire, "r2 2 lease=300")
    assert ask(wire, f"extend r2 600000 {second.read} 9-{'f' * 16}") == "EXTENDED 1"
    wait_for(wire, "r2", "items", 1)
    assert ask(wire, f"finish r2 {first.read} {second.read}") == "FINISHED 1"
    assert found(wire, "r2") == ["a"]


def test_several_queues_in_one_wait(server: ServerProcess, wire: Wire) -> None:
    """They are asked in order; what comes first ends the wait, and those who waited come first."""
    put(wire, "r3b", "b")
    put(wire, "r3c", "c")
    assert [one.data for one in reserve(wire, "r3a,r3b,r3c 2 lease=600000")] == ["b", "c"]
    with Wire(server) as reader, Wire(server) as later:
        reader.send(b"reserve r3a,r3b 9 lease=600000 t=600000\r\n")
        wait_for(wire, "r3b", "waiters", 1)
        later.send(b"get r3b/t=600000\r\n")
        wait_for(wire, "r3b", "waiters", 2)
        put(wire, "r3b", "first", "second")
        (one,) = items(reader.until(b"END\r\n"))
        assert (one.queue, one.data) == ("r3b", "first")
        assert b"second" in later.until(b"END\r\n")
        wait_for(wire, "r3a", "waiters", 0)
    assert reserve(wire, "r3a,r3b 9 lease=600000 t=20") == []


@contextmanager
def waiting_twice(server: ServerProcess, wire: Wire, tag: str) -> Iterator[tuple[list[Item], Wire]]:
    """Let two readers wait for a tag; yield what one of them got, and the other one."""
    queue = tag.partition(":")[0]
    request = f"reserve {queue}-empty,{queue} 9 lease=600000 t=600000 tag={tag}\r\n".encode()
    with Wire(server) as first, Wire(server) as second:
        for number, reader in enumerate((first, second), start=1):
            reader.send(request)
            wait_for(wire, queue, "waiters", number)
        put(wire, queue, "item")
        yield items(first.until(b"END\r\n")), second


def test_a_wait_ends_as_its_tag_says(server: ServerProcess, wire: Wire) -> None:
    """Of two readers that wait for one tag, the second must not hear that there is nothing.

    It would finish what it never got.
    """
    with waiting_twice(server, wire, "r10:7:a") as (got, second):
        second.send(b"version\r\n")
        assert items(second.until(b"END\r\n")) == got
    with waiting_twice(server, wire, "r11:7:a") as (got, second):
        assert ask(wire, "delete r11-empty") == "DELETED"
        assert items(second.until(b"END\r\n")) == got
    with waiting_twice(server, wire, "r12:7:a") as (_, second):
        assert ask(wire, "finish r12 tag=r12:7:a") == "FINISHED 1"
        second.send(b"version\r\n")
        assert second.until(b"\r\n") == b"DONE\r\n"
    with waiting_twice(server, wire, "r13:7:a") as (_, second):
        assert ask(wire, "retire r13 r13 7") == "RETIRED 1"
        second.send(b"version\r\n")
        assert second.until(b"\r\n") == b"CLIENT_ERROR the epoch of tag r13:7:a is retired\r\n"


def test_what_another_reader_of_the_tag_has_is_not_released(
    server: ServerProcess, wire: Wire
) -> None:
    """The first reader hangs, and does not read its answer; later its connection ends."""
    large = "x" * 30_000_000
    put(wire, "r14", large)
    request = b"reserve r14 1 lease=600000 tag=r14:7:a\r\n"
    with Wire(server) as hanging:
        hanging.send(request)
        wait_for(wire, "r14", "open_transactions", 1)
        got = items(wire.ask_until(request, b"END\r\n"))
    until(lambda: stats(wire)["curr_connections"] == "1")
    assert stats(wire, "r14")["open_transactions"] == "1"
    assert (ask(wire, "finish r14 tag=r14:7:a"), got[0].data) == ("FINISHED 1", large)


def test_the_end_of_an_owner(server: ServerProcess, wire: Wire) -> None:
    """Its items come back after the grace, unless it is back before."""
    put(wire, "r4", "a")
    put(wire, "r4other", "b")
    with Wire(server) as worker:
        reserve(worker, "r4 1 lease=600000 owner=quick grace=1")
        reserve(worker, "r4other 1 lease=600000 owner=slow")
        assert ask(worker, "extend owner=quick 500000") == "EXTENDED 1"
    wait_for(wire, "r4", "items", 1)
    assert ask(wire, "extend owner=slow 600000") == "EXTENDED 1"
    assert ask(wire, "release r4other owner=slow") == "RELEASED 1"
    assert ask(wire, "extend owner=slow 600000") == "EXTENDED 0"


def test_delays_and_dead_letters(wire: Wire) -> None:
    """A release may have its own delay, and may be the last."""
    put(wire, "failing", "a", "b", "c")
    first, second, third = reserve(wire, "failing 3 lease=600000")
    assert ask(wire, f"release failing {first.read} delay=0") == "RELEASED 1"
    assert ask(wire, f"release failing {second.read}") == "RELEASED 1"
    assert stats(wire, "failing")["delayed"] == "1"
    assert ask(wire, f"release failing {third.read} dead") == "RELEASED 1"
    assert found(wire, "failing") == ["a"]
    (dead,) = reserve(wire, "dead 1 lease=600000")
    assert (dead.data, dead.deliveries) == ("c", 2)
    assert ask(wire, f"release dead {dead.read} dead") == (
        "CLIENT_ERROR queue dead has no dead_letter_queue"
    )


def test_a_tag_that_has_nothing_takes_nothing(wire: Wire) -> None:
    """With `again`; the data may stay away."""
    put(wire, "r20", "a", "bcd")
    again = b"reserve r20,r21 9 lease=600000 tag=t:1:0 again nodata\r\n"
    assert wire.ask_until(again, b"END\r\n") == b"END\r\n"
    assert stats(wire, "r21") == {}
    took = wire.ask_until(b"reserve r20 9 lease=600000 tag=t:1:0 nodata\r\n", b"END\r\n")
    nonce = took.split()[2].decode()
    assert took == f"HELD r20 {nonce} 2 4\r\nEND\r\n".encode()
    assert wire.ask_until(again, b"END\r\n") == took
    put(wire, "r20", "e")
    first, second = reserve(wire, "r20 9 lease=600000 tag=t:1:0 again")
    assert (first.data, second.data) == ("a", "bcd")
    assert {read.partition("-")[2] for read in (first.read, second.read)} == {nonce}
    assert ask(wire, "finish r20 tag=t:1:0") == "FINISHED 2"
    assert ask(wire, "reserve r20 9 lease=600000 tag=t:1:0 again") == "DONE"
    assert found(wire, "r20") == ["e"]


def test_what_owners_hold(server: ServerProcess, wire: Wire) -> None:
    """Each is listed, and released in all queues at once; a lease without end outlives a client."""
    put(wire, "r22", "a", "b")
    put(wire, "r23", "c", "d")
    with Wire(server) as reader:
        reserve(reader, "r22 2 lease=0 tag=t:1:0 owner=own-1 grace=0")
        reserve(reader, "r23 1 lease=0 owner=own-1 grace=0")
        reserve(reader, "r23 1 lease=600000 owner=own-2 grace=600000")
    until(lambda: owned(wire, "own-*")["own-2"][-1] == "0")
    assert {name: words[:3] for name, words in owned(wire, "own-*").items()} == {
        "own-1": ["3", "2", "1"],
        "own-2": ["1", "1", "0"],
    }
    assert owned(wire, "nobody") == {}
    assert ask(wire, "release owner=own-1 uncounted") == "RELEASED 3"
    assert ask(wire, "release owner=own-1") == "RELEASED 0"
    assert (found(wire, "r22"), found(wire, "r23")) == (["a", "b"], ["c"])
    assert list(owned(wire, "own-*")) == ["own-2"]


def owned(wire: Wire, pattern: str) -> dict[str, list[str]]:
    """Return what `owners` says of each: reads, queues, tags, age, connections."""
    reply = wire.ask_until(f"owners {pattern}\r\n".encode(), b"END\r\n").decode()
    rows = [line.split() for line in reply.splitlines()[:-1]]
    assert all(row[0] == "OWNER" and len(row) == 7 for row in rows)
    return {row[1]: row[2:] for row in rows}


def test_malformed_requests_take_nothing(wire: Wire) -> None:
    """The connection goes on, and nothing was taken."""
    put(wire, "r5", "a")
    for request in (
        "reserve r5 1",
        "reserve r5 1 lease=5 tag=a:b:c",
        "finish r5 tag=a",
        "release r5 tag=a:1",
        "extend r5 5 tag=x",
        "reserve r5/open 1 lease=5",
    ):
        assert ask(wire, request).startswith("CLIENT_ERROR ")
    assert found(wire, "r5") == ["a"]
    assert ask(wire, "retire r5 sink 7") == "RETIRED 0"
    for request in ("reserve r5 1 lease=5 tag=sink:7:x", "finish r5 tag=sink:6:x"):
        assert ask(wire, request) == (
            f"CLIENT_ERROR the epoch of tag {request.partition('tag=')[2]} is retired"
        )


def test_a_worker_finds_its_tag_after_a_kill(tmp_path: Path) -> None:
    """The same items under the same READs; what was finished never comes again."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            put(wire, "work", *"abcdef")
            done = reserve(wire, "work 2 lease=600000 tag=sink:1:0")
            first = reserve(wire, "work 2 lease=600000 tag=sink:2:0 owner=w grace=1")
            plain = reserve(wire, "work 1 lease=600000")
            assert ask(wire, "finish work tag=sink:1:0") == "FINISHED 2"
            wire.send(b"get work/open\r\n")
            wire.until(b"END\r\n")
            server.kill9()
        server.restart()
        with Wire(server) as wire:
            assert reserve(wire, "work 9 lease=600000 tag=sink:2:0 owner=w grace=1") == first
            assert ask(wire, "reserve work 9 lease=600000 tag=sink:1:0") == "DONE"
            assert ask(wire, "finish work tag=sink:1:0") == "FINISHED 2"
            assert ask(wire, f"finish work {first[0].read} {plain[0].read}") == "FINISHED 2"
            assert [one.data for one in done] == ["a", "b"]
            server.kill9()
        server.restart()
        with Wire(server) as wire:
            assert reserve(wire, "work 9 lease=600000 tag=sink:2:0") == first[1:]
            assert ask(wire, "retire work sink 1") == "RETIRED 1"
            assert ask(wire, "finish work tag=sink:2:0") == "FINISHED 1"
            assert found(wire, "work") == ["f"]
            assert stats(wire, "work")["open_transactions"] == "0"


def test_a_restarted_server_gives_the_owner_time(tmp_path: Path) -> None:
    """A worker that connects again after a kill has its whole lease, and goes on."""
    with running_server(tmp_path) as server:
        with Wire(server) as worker:
            put(worker, "work", "a")
            (one,) = reserve(worker, "work 1 lease=600000 owner=w grace=1")
            server.kill9()
        server.restart()
        with Wire(server) as worker:
            assert ask(worker, f"finish work {one.read}") == "FINISHED 1"
            put(worker, "work", "b")
            reserve(worker, "work 1 lease=600000 owner=w grace=1")
            assert ask(worker, "extend owner=w 600000") == "EXTENDED 1"
        with Wire(server) as wire:
            until(lambda: stats(wire, "work")["items"] == "1")
