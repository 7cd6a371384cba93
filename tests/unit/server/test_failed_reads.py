"""Reads on a full disk: who has them when they could not be opened, confirmed or given back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import item_data
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queue.queue import Queue
from tests.support.crashing_directory import CrashingDirectory
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import thrift_get

pytestmark = pytest.mark.compiled

OPENING = {
    "memcache": (b"get work/open\r\n", b"SERVER_ERROR", b"\r\n"),
    "memcache, several": (b"get work/open other\r\n", b"SERVER_ERROR", b"\r\n"),
    "memcache, monitor": (b"monitor work 0 1\r\n", b"SERVER_ERROR", b"END\r\n"),
    "memcache, many": (b"monitor work 0 9\r\n", b"SERVER_ERROR", b"END\r\n"),
    "text": (b"get work\n", b"-queue work", b"\n"),
    "text, monitor": (b"monitor work 0 9\n", b"-queue work", b"\n"),
}


def serving(path: Path) -> tuple[CrashingDirectory, Turning]:
    """Return a server, and the directory of its queues, which fails on demand."""
    disk = CrashingDirectory.within(path)
    config = ServerConfig(queue_path=disk.path, max_open_transactions=9)
    return disk, Turning(disk.path, config, directory=disk)


def test_a_read_that_could_not_be_opened_before_a_wait_is_not_answered(tmp_path: Path) -> None:
    """The reply comes in a later turn, when the disk may work again."""
    disk, turning = serving(tmp_path)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(b"x")
        await turning.turn()
        first, second = turning.connect("memcache"), turning.connect("memcache")
        disk.break_steps("append")
        await turning.send(first, b"get work/open other/open/t=60000\r\n")
        await turning.until(lambda: queue.reads.held == 0)
        disk.mend()
        await turning.send(second, b"set other 0 0 1\r\ny\r\n")
        assert await turning.receive(second, b"\r\n") == b"STORED\r\n"
        assert (await turning.receive(first, b"\r\n")).startswith(b"SERVER_ERROR")
        await turning.send(second, b"get work\r\n")
        assert b"\r\nx\r\n" in await turning.receive(second, b"END\r\n")
        for client in (first, second):
            await turning.hang_up(client)

    with turning:
        turning.run(scenario())


@pytest.mark.parametrize("kind", OPENING)
def test_a_read_that_could_not_be_opened_is_nobodys(tmp_path: Path, kind: str) -> None:
    """The next reader gets its item, and has it for itself when the first one leaves."""
    disk, turning = serving(tmp_path)
    request, error, end = OPENING[kind]

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(b"x")
        await turning.turn()
        first, second = turning.connect(kind.partition(",")[0]), turning.connect("memcache")
        disk.break_steps("append")
        await turning.send(first, request)
        assert (await turning.receive(first, end)).startswith(error)
        disk.mend()
        await turning.send(second, b"get work/open\r\n")
        assert b"\r\nx\r\n" in await turning.receive(second, b"END\r\n")
        await turning.hang_up(first)
        assert (len(queue), queue.reads.held) == (0, 1)
        await turning.hang_up(second)
        assert (len(queue), queue.reads.held) == (1, 0)

    with turning:
        turning.run(scenario())


def test_other_open_reads_stay_when_one_could_not_be_opened(tmp_path: Path) -> None:
    """They have nothing to do with it, and the connection lives on."""
    disk, turning = serving(tmp_path)

    async def scenario() -> None:
        for name in ("work", "other"):
            turning.collection.obtain(name).add(b"x")
        await turning.turn()
        client = turning.connect("memcache")
        await turning.send(client, b"get other/open\r\n")
        assert b"\r\nx\r\n" in await turning.receive(client, b"END\r\n")
        disk.break_steps("append")
        await turning.send(client, b"get work/open\r\n")
        assert (await turning.receive(client, b"\r\n")).startswith(b"SERVER_ERROR")
        disk.mend()
        await turning.send(client, b"get other/close\r\n")
        assert await turning.receive(client, b"END\r\n") == b"END\r\n"
        assert turning.collection.obtain("other").reads.held == 0
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


SYNCED = OPENING | {
    "memcache, several": (b"get other/open work/open\r\n", b"SERVER_ERROR", b"\r\n"),
    "memcache, gets": (b"gets work/open\r\n", b"SERVER_ERROR", b"\r\n"),
}


@pytest.mark.parametrize("kind", SYNCED)
def test_a_read_whose_sync_failed_is_given_back(tmp_path: Path, kind: str) -> None:
    """Its client got an error, and could confirm with its next request what it has never seen."""
    disk = CrashingDirectory.within(tmp_path)
    synced = QueueConfig.model_validate({"sync_journal": "0ms"})
    config = ServerConfig(queue_path=disk.path, queues={"work": synced})
    request, error, _ = SYNCED[kind]

    async def scenario() -> None:
        queues = [turning.collection.obtain(name) for name in ("work", "other")]
        for queue in queues:
            queue.add(b"x")
        await turning.turn()
        client = turning.connect(kind.partition(",")[0])
        number = client.fileno()
        disk.break_steps("sync")
        await turning.send(client, request)
        await turning.until(lambda: number not in turning.connections)
        assert client.recv(9999).startswith(error)
        disk.mend()
        await wait_for(turning, lambda: all(queue.reads.held == 0 for queue in queues))
        assert [len(queue) for queue in queues] == [1, 1]
        client.close()

    with Turning(disk.path, config, directory=disk) as turning:
        turning.run(scenario())


REMOVING = {
    "get": ("memcache", b"get work\r\n", b"END\r\n"),
    "gets": ("memcache", b"gets work\r\n", b"END\r\n"),
    "several": ("memcache", b"get work work\r\n", b"END\r\n"),
    "several queues": ("memcache", b"get work other\r\n", b"END\r\n"),
    "several turns": ("memcache", b"get work other/t=1\r\n", b"END\r\n"),
    "an open read after it": ("memcache", b"get work\r\nget other/open\r\n", b"END\r\nEND\r\n"),
    "thrift": ("thrift", thrift_get(b"work", 9, 0), b"\0\0"),
    "thrift, waiting": ("thrift", thrift_get(b"work", 9, 1), b"\0\0"),
}


@pytest.mark.parametrize("size", [1, 300_000])
@pytest.mark.parametrize("kind", REMOVING)
def test_a_removed_item_reaches_its_client_although_the_sync_failed(
    tmp_path: Path, kind: str, size: int
) -> None:
    """Nobody else would get it. What is added later is refused."""
    disk = CrashingDirectory.within(tmp_path)
    synced = QueueConfig.model_validate({"sync_journal": "0ms"})
    config = ServerConfig(queue_path=disk.path, queues={"work": synced})
    protocol, request, end = REMOVING[kind]
    item = b"x" * size

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(item)
        await turning.turn()
        client, other = turning.connect(protocol), turning.connect("memcache")
        disk.break_steps("sync")
        await turning.send(client, request)
        assert item in await turning.receive(client, end)
        assert len(queue) == queue.reads.held == 0
        await turning.send(other, b"set work 0 0 1\r\ny\r\n")
        assert (await turning.receive(other, b"\r\n")).startswith(b"SERVER_ERROR queue work")
        assert len(queue) == 0
        disk.mend()
        await wait_for(turning, lambda: is_well(queue))
        await turning.send(other, b"set work 0 0 1\r\ny\r\n")
        assert await turning.receive(other, b"\r\n") == b"STORED\r\n"
        for one in (client, other):
            await turning.hang_up(one)

    with Turning(disk.path, config, directory=disk) as turning:
        turning.run(scenario())
    with Turning(disk.path) as again:
        assert data_of(again.collection.obtain("work")) == [b"y"]


def is_well(queue: Queue) -> bool:
    """Whether the journal was written anew after a failed sync."""
    return isinstance(queue.journal, FileJournal) and not queue.journal.suspect


def data_of(queue: Queue) -> list[bytes]:
    """Return the items of a queue."""
    return [item_data(record) for record in queue.backlog.browse(9)]


@pytest.mark.parametrize("broken", ["first", "second"])
@pytest.mark.parametrize("write", [1, 2])
def test_one_of_several_queues_that_cannot_be_written(
    tmp_path: Path, broken: str, write: int
) -> None:
    """A `get` of both loses nothing: what it cannot remove stays, and what it can is answered.

    The queue fails at the write that opens the read, or at the one that confirms it.
    """
    disk, turning = serving(tmp_path)
    writes = 0

    def fails(point: str) -> bool:
        nonlocal writes
        writes += point.startswith("append") and point.endswith(broken)
        return writes >= write and point.startswith("append") and point.endswith(broken)

    async def scenario() -> None:
        for name in ("first", "second"):
            turning.collection.obtain(name).add(name.encode())
        await turning.turn()
        client = turning.connect("memcache")
        disk.fail = fails
        await turning.send(client, b"get first second\r\n")
        reply = await turning.receive(client, b"\r\n")
        disk.mend()
        left = {name: [name.encode()] for name in ("first", "second")}
        if write == 1:
            assert reply.startswith(b"SERVER_ERROR")
        else:
            (answered,) = left.keys() - {broken}
            size = len(answered)
            assert reply == b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (
                answered.encode(),
                size,
                answered.encode(),
            )
            left[answered] = []
        queues = {name: turning.collection.obtain(name) for name in left}
        await wait_for(
            turning, lambda: left == {name: data_of(queue) for name, queue in queues.items()}
        )
        assert not any(queue.reads.held for queue in queues.values())
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())
    with Turning(disk.path) as again:
        left = [data_of(again.collection.obtain(name)) for name in ("first", "second")]
    answered = broken != "first", broken != "second"
    gone = [is_answered and write == 2 for is_answered in answered]
    assert left == [[] if gone[0] else [b"first"], [] if gone[1] else [b"second"]]


ENDING: dict[str, tuple[str, bytes, bytes, bytes]] = {
    "close": ("memcache", b"get work/open\r\n", b"END\r\n", b"get work/close\r\n"),
    "close and open": ("memcache", b"get work/open\r\n", b"END\r\n", b"get work/close/open\r\n"),
    "abort": ("memcache", b"get work/open\r\n", b"END\r\n", b"get work/abort\r\n"),
    "confirm": ("memcache", b"monitor work 0 9\r\n", b"END\r\nEND\r\n", b"confirm work 2\r\n"),
    "hang up": ("memcache", b"get work/open\r\n", b"END\r\n", b""),
    "hang up, many": ("memcache", b"monitor work 0 9\r\n", b"END\r\nEND\r\n", b""),
    "text": ("text", b"get work\n", b"\n", b"get work\n"),
    "text, confirm": ("text", b"monitor work 0 9\n", b"*\n", b"confirm work 2\n"),
    "text, hang up": ("text", b"get work\n", b"\n", b""),
    "two queues": ("memcache", b"get work other/t=9999\r\n", b"", b""),
    "thrift": ("thrift", thrift_get(b"work", 9, 9999), b"", b""),
}


@pytest.mark.parametrize("kind", ENDING)
def test_a_read_that_could_not_be_ended_comes_back(tmp_path: Path, kind: str) -> None:
    """As soon as the disk works again, without a restart: its reader has forgotten it."""
    disk, turning = serving(tmp_path)
    protocol, request, reply, ending = ENDING[kind]

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(b"1")
        queue.add(b"2")
        client = turning.connect(protocol)
        await turning.send(client, request)
        if reply:
            await turning.receive(client, reply)
        disk.break_steps("append")
        if ending:
            await turning.send(client, ending)
            await turning.receive(client, b"\n")
        await turning.hang_up(client)
        assert queue.core.failure is not None
        disk.mend()
        await wait_for(turning, lambda: len(queue) == 2)
        assert [item_data(record) for record in queue.backlog.browse(9)] == [b"1", b"2"]

    with turning:
        turning.run(scenario())
        assert turning.collection.commits.commit() == {}
    with Turning(disk.path) as again:
        assert len(again.collection.obtain("work")) == 2


@pytest.mark.parametrize(
    ("protocol", "request_"),
    [("memcache", b"get work other/t=9999\r\n"), ("thrift", thrift_get(b"work", 2, 9999))],
)
def test_items_that_a_waiting_client_did_not_get(
    tmp_path: Path, protocol: str, request_: bytes
) -> None:
    """It was answered with an error when the last of them came; they are in the queue again."""
    disk, turning = serving(tmp_path)

    async def scenario() -> None:
        queue, other = turning.collection.obtain("work"), turning.collection.obtain("other")
        queue.add(b"1")
        client = turning.connect(protocol)
        await turning.send(client, request_)
        assert queue.reads.held == 1
        disk.break_steps("append")
        (queue if protocol == "thrift" else other).add(b"2")
        with pytest.raises(JournalError):
            await turning.turns.committed(queue)
        assert queue.reads.held == 1
        disk.mend()
        await wait_for(turning, lambda: len(queue) == 1)
        await turning.hang_up(client)
        assert [item_data(record) for record in queue.backlog.browse(9)] == [b"1"]

    with turning:
        turning.run(scenario())


async def wait_for(turning: Turning, condition: Callable[[], bool]) -> None:
    """Do what is due, until something is so."""

    def is_so() -> bool:
        turning.collection.check_deadlines()
        turning.collection.tick()
        return condition()

    await turning.until(is_so)
