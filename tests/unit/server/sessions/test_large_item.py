"""A large item in pieces: whole however it is cut, and never more than what belongs to it."""

import asyncio
import socket
import struct
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import item, item_add_time, item_data, item_expiry
from kestrelmq.protocol.memcache import Set
from kestrelmq.scheduling.worker import LARGE_ITEM
from kestrelmq.server.requests.changes import wait_until_durable
from kestrelmq.server.requests.put import put
from kestrelmq.server.sessions.large_item import ArrivingLargeItem
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import thrift_put

pytestmark = pytest.mark.compiled

LARGE: Final = b"x" * LARGE_ITEM


def feed(large: ArrivingLargeItem, pieces: list[bytes]) -> bytes:
    """Hand the pieces over, until the item is whole or bad; return what it left."""
    left = b""
    for piece in pieces:
        end = large.take(piece, 0) if not (large.is_whole or large.is_bad) else 0
        left += piece[end:]
    return left


@given(
    data=st.binary(max_size=40),
    ending=st.sampled_from([b"\r\n", b"\n"]),
    after=st.binary(max_size=10),
    cuts=st.lists(st.integers(0, 52), max_size=6),
)
def test_an_item_is_whole_however_it_is_cut(
    data: bytes, ending: bytes, after: bytes, cuts: list[int]
) -> None:
    """Its data and its record are right, and what comes after it is left."""
    stream = data + ending + after
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    large = ArrivingLargeItem(Set("jobs", 0, len(data), noreply=False, plain="jobs"))
    assert feed(large, pieces) == after
    assert (large.is_whole, large.is_bad, large.missing) == (True, False, 0)
    assert large.data() == data
    assert large.record(1000, 5) == item(1000, 5, data)


@pytest.mark.parametrize("ending", [b"x\n", b"\r\r\n", b"\rx"])
def test_something_else_than_a_line_end_is_bad(ending: bytes) -> None:
    """The item is never whole then."""
    large = ArrivingLargeItem(Set("jobs", 0, 3, noreply=False, plain="jobs"))
    feed(large, [b"abc", ending])
    assert (large.is_whole, large.is_bad) == (False, True)


def test_data_comes_from_the_middle_of_what_was_received() -> None:
    """Where the line of the `set` ended."""
    large = ArrivingLargeItem(Set("jobs", 0, 3, noreply=False, plain="jobs"))
    assert large.take(b"set jobs 0 0 3\r\nabc\r\nget", 16) == 21
    assert large.is_whole
    assert bytes(large.data()) == b"abc"


PUTS: Final = {
    "memcache": (b"set work 0 0 %d\r\n%b\r\n" % (len(LARGE), LARGE), b"STORED\r\n"),
    "text": (b"put work:\n%b\n\n" % LARGE, b"+1\n"),
    "thrift": (thrift_put(b"work", LARGE), struct.pack(">bhix", 8, 0, 1)),
}


async def receive(turning: Turning, worker: HeldWorker, client: socket.socket, end: bytes) -> bytes:
    """Return what comes up to `end`, while the worker does what it is given."""
    received = bytearray()
    while not received.endswith(end):
        worker.step()
        received += await turning.receive_some(client)
    return bytes(received)


@pytest.mark.parametrize("protocol", PUTS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_thread_writes_it(tmp_path: Path, protocol: str, *, exists: bool) -> None:
    """Whether it is the queue's first item or not; others are served meanwhile."""
    worker = HeldWorker()
    request, reply = PUTS[protocol]

    async def scenario() -> None:
        client, other = turning.connect(protocol), turning.connect("memcache")
        if exists:
            turning.collection.obtain("work").add(b"first")
        await turning.send(client, request)
        while not turning.collection.obtain("work").core.is_writing:
            worker.step()  # decodes the frame, or copies the item
            await turning.turn()
        await turning.send(other, b"set other 0 0 1\r\nx\r\nget other\r\n")
        assert (await turning.receive(other, b"END\r\n")).startswith(b"STORED")
        assert len(worker) == 1
        assert worker.step()
        assert (await turning.receive(client, reply)).endswith(reply)
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    with Turning(tmp_path, writer=worker) as turning:
        turning.run(scenario())
        assert item_data(turning.collection.obtain("work").backlog.browse(2)[exists]) == LARGE


@pytest.mark.parametrize("protocol", PUTS)
@pytest.mark.parametrize("destinations", [["work"], ["a", "b", "work"]])
def test_a_thread_writes_it_for_an_alias(
    tmp_path: Path, protocol: str, destinations: list[str]
) -> None:
    """Each destination gets it; one that is full, or cannot be used, stops no other."""
    worker = HeldWorker()
    request, reply = (one.replace(b"work", b"ways") for one in PUTS[protocol])
    config = ServerConfig(
        queue_path=tmp_path, aliases={"ways": AliasConfig(destination_queues=destinations)}
    )

    async def scenario() -> None:
        client = turning.connect(protocol)
        await turning.send(client, request)
        assert (await receive(turning, worker, client, reply)).endswith(reply)
        await turning.hang_up(client)

    with Turning(tmp_path, config, writer=worker) as turning:
        turning.run(scenario())
        for name in destinations:
            assert [
                item_data(one) for one in turning.collection.obtain(name).backlog.browse(2)
            ] == [LARGE]
    with Turning(tmp_path, config) as turning:
        for name in destinations:
            assert [
                item_data(one) for one in turning.collection.obtain(name).backlog.browse(2)
            ] == [LARGE]


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_writes_what_comes_over_http(tmp_path: Path, *, fails: bool) -> None:
    """A small item is added at once."""
    worker = HeldWorker()
    directory = CrashingDirectory.within(tmp_path)
    config = ServerConfig(queue_path=directory.path)

    async def put_large() -> None:
        assert await put(turning.context, "work", LARGE)
        await wait_until_durable(turning.context, turning.collection.obtain("work"))

    async def scenario() -> None:
        assert await put(turning.context, "work", b"small")
        large = asyncio.create_task(put_large())
        await turning.until(lambda: len(worker) == 1)
        assert len(turning.collection.obtain("work")) == 1
        if fails:
            directory.fail = lambda point: point == "append to work"
        for _ in range(2):  # it copies the item, and then writes it
            await turning.until(lambda: len(worker) == 1)
            assert worker.step()
        if fails:
            with pytest.raises(JournalError):
                await large
        else:
            await large
        directory.mend()

    with Turning(tmp_path, config, directory=directory, writer=worker) as turning:
        turning.run(scenario())
        assert len(turning.collection.obtain("work")) == 2 - fails


@pytest.mark.parametrize("request_word", ["move", "copy"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_writes_what_is_moved(tmp_path: Path, request_word: str, *, fails: bool) -> None:
    """Others are served meanwhile; if it cannot be written, nothing has moved."""
    worker = HeldWorker()
    done = {"move": b"MOVED 2\r\n", "copy": b"COPIED 2\r\n"}[request_word]
    directory = CrashingDirectory.within(tmp_path)
    config = ServerConfig(queue_path=directory.path)

    async def scenario() -> None:
        client, other = turning.connect("memcache"), turning.connect("memcache")
        for item_ in (LARGE, b"small"):
            turning.collection.obtain("work").add(item_)
        await turning.until(lambda: len(worker) == 1)
        assert worker.step()
        await turning.send(client, b"%b work other\r\n" % request_word.encode())
        await turning.until(lambda: len(worker) == 1)
        await turning.send(other, b"version\r\n")
        await turning.receive(other, b"\r\n")
        if fails:
            directory.fail = lambda point: point == "append to other"
        reply = await receive(turning, worker, client, b"\r\n")
        directory.mend()
        assert reply.startswith(b"SERVER_ERROR" if fails else done)
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    with Turning(tmp_path, config, directory=directory, writer=worker) as turning:
        turning.run(scenario())
        found = {
            name: [item_data(one) for one in turning.collection.obtain(name).backlog.browse(3)]
            for name in ("work", "other")
        }
    items = [LARGE, b"small"]
    assert found == {
        "work": items if fails or request_word == "copy" else [],
        "other": [] if fails else items,
    }


@pytest.mark.parametrize(
    ("broken", "reply"), [("full", b"NOT_STORED\r\n"), ("damaged", b"SERVER_ERROR")]
)
def test_a_destination_that_does_not_take_it(tmp_path: Path, broken: str, reply: bytes) -> None:
    """The others get it all the same, and the client is told."""
    (tmp_path / "damaged").write_bytes(b"\xff" * 100)
    config = ServerConfig(
        queue_path=tmp_path,
        queues={"full": QueueConfig(max_items=1)},
        aliases={"ways": AliasConfig(destination_queues=["a", broken, "b"])},
    )

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"set full 0 0 1\r\nx\r\n")
        assert await turning.receive(client, b"\r\n") == b"STORED\r\n"
        await turning.send(client, b"set ways 0 0 %d\r\n%b\r\n" % (len(LARGE), LARGE))
        assert (await turning.receive(client, b"\r\n")).startswith(reply)
        client.close()
        await turning.until(lambda: not turning.connections)

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert [len(turning.collection.obtain(name)) for name in ("a", "b", "full")] == [1, 1, 1]


def test_an_expiry_that_is_limited_is_no_work_for_the_loop(tmp_path: Path) -> None:
    """The record is made with the shorter expiry."""
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(keep_journal=False, max_age=60))

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, PUTS["memcache"][0])
        assert await turning.receive(client, b"\r\n") == b"STORED\r\n"
        await turning.hang_up(client)

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        (record,) = turning.collection.obtain("work").backlog.browse(2)
        assert item_expiry(record) == item_add_time(record) + 60_000


@pytest.mark.parametrize("protocol", PUTS)
def test_no_thread_writes_it_if_there_is_no_journal(tmp_path: Path, protocol: str) -> None:
    """It is added all the same."""
    request, reply = PUTS[protocol]
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(keep_journal=False))

    async def scenario() -> None:
        client = turning.connect(protocol)
        await turning.send(client, request)
        assert (await turning.receive(client, reply)).endswith(reply)
        await turning.hang_up(client)

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        (record,) = turning.collection.obtain("work").backlog.browse(2)
        assert type(record) is bytes
        assert item_data(record) == LARGE


@pytest.mark.parametrize("protocol", ["text", "thrift"])
def test_large_items_among_small_ones(tmp_path: Path, protocol: str) -> None:
    """They keep their order."""
    items = [b"a", LARGE, b"b", LARGE[::-1], LARGE[1:], b"c"]
    lines = b"".join(item + b"\n" for item in items)
    requests = {"text": b"put work:\n%b\n" % lines, "thrift": thrift_put(b"work", *items)}
    reply = {"text": b"+6\n", "thrift": struct.pack(">bhix", 8, 0, 6)}[protocol]

    async def scenario() -> None:
        client = turning.connect(protocol)
        await turning.send(client, requests[protocol])
        assert (await turning.receive(client, reply)).endswith(reply)
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert [
            item_data(one) for one in turning.collection.obtain("work").backlog.browse(9)
        ] == items
    with Turning(tmp_path) as turning:
        assert [
            item_data(one) for one in turning.collection.obtain("work").backlog.browse(9)
        ] == items


@pytest.mark.parametrize(
    ("name", "reply"),
    [(b"all", b"STORED\r\n"), (b"no+such+queue", b"CLIENT_ERROR"), (b"bad/~~", b"CLIENT_ERROR")],
)
def test_a_large_item_for_no_single_queue(tmp_path: Path, name: bytes, reply: bytes) -> None:
    """An alias takes it; a name that no queue can have is refused."""
    aliases = {"all": AliasConfig(destination_queues=["a", "b"])}
    config = ServerConfig(queue_path=tmp_path, aliases=aliases)

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"set %b 0 0 %d\r\n%b\r\n" % (name, len(LARGE), LARGE))
        assert (await turning.receive(client, b"\r\n")).startswith(reply)
        client.close()
        await turning.until(lambda: not turning.connections)

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        expected = ["a", "b"] if name == b"all" else []
        assert sorted(turning.collection.queues) == expected
