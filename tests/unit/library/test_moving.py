"""Browsing queues, and moving and copying their items, without a server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from kestrelmq import (
    AsyncPersistentQueue,
    InvalidQueueName,
    JournalError,
    PersistentQueue,
    QueueCollection,
    QueueConfig,
    QueueUnavailable,
)
from kestrelmq.library import Item, Moved
from kestrelmq.queues.browsing import View
from tests.support.fake_clock import FakeClock
from tests.support.limits import largest_file

pytestmark = pytest.mark.compiled

COUNT = 1000
TINY = QueueConfig(max_memory_size=100)
FULL = "small is full, or the item is too large for it"
SETTINGS = {
    "disk": TINY,
    "small": QueueConfig(max_items=2),
    "work": QueueConfig(max_deliveries=1, dead_letter_queue="dead"),
    "safe": QueueConfig(sync_journal=0),
}


def opened(path: Path) -> QueueCollection:
    """Return a collection that is not set up yet."""
    return QueueCollection(path, None, SETTINGS, {"both": ["a", "b"]}, sweep_period=None)


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[QueueCollection]:
    """Run a collection."""
    with opened(tmp_path) as collection:
        yield collection


def data(items: list[Item]) -> list[bytes]:
    """Return what is in items."""
    return [item.data for item in items]


def fill(queues: QueueCollection, name: str, count: int = COUNT) -> list[bytes]:
    """Add numbered items; return them."""
    items = [b"%d" % number for number in range(count)]
    for item in items:
        assert queues.add(name, item)
    return items


@pytest.mark.parametrize("name", ["memory", "disk"])
def test_items_are_shown_from_an_offset_and_stay(queues: QueueCollection, name: str) -> None:
    """In memory and on disk."""
    items = fill(queues, name)
    queue = queues.queue(name)
    assert data(queue.browse()) == items[:100]
    assert data(queue.browse(700, 200)) == items[700:900]
    assert data(queue.browse(990, 100)) == items[990:]
    assert queue.browse(COUNT, 5) == queue.browse(0, 0) == []
    assert len(queue) == COUNT
    first = queue.peek()
    assert queue.browse(0, 1) == [first]
    for offset, count in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="not below 0"):
            queue.browse(offset, count)


def test_what_is_shown_counts_its_deliveries(tmp_path: Path) -> None:
    """And an item of an open read is not in the queue."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"a", expiry=10)
        queue.add(b"b")
        item = queue.remove(transaction=True)
        assert item is not None
        assert data(queue.browse()) == [b"b"]
        queue.unremove(item.xid)
        assert [(one.data, one.deliveries, one.xid) for one in queue.browse()] == [
            (b"a", 1, 0),
            (b"b", 0, 0),
        ]
        assert queue.browse(0, 1)[0].expiry == item.expiry
    with pytest.raises(QueueUnavailable, match="not set up"):
        queue.browse()


@pytest.mark.parametrize("memory", [100, 1 << 20])
async def test_the_same_for_asyncio(tmp_path: Path, memory: int) -> None:
    """In memory, and on disk in a thread."""
    items = [b"%d" % number for number in range(COUNT)]
    config = QueueConfig(max_memory_size=memory)
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        for item in items:
            await queue.add(item)
        assert data(await queue.browse(700, 200)) == items[700:900]
        assert data(await queue.browse()) == items[:100]
        assert await queue.browse(COUNT) == []
        with pytest.raises(ValueError, match="not below 0"):
            await queue.browse(-1)
        assert len(queue) == COUNT
    with pytest.raises(QueueUnavailable):
        await queue.browse()


async def test_a_cancelled_look_ends_with_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no file is closed while it is read."""
    loop = asyncio.get_running_loop()
    begun, cancelled = asyncio.Event(), asyncio.Event()
    load = View.load
    ended = []

    def slow(view: View) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(cancelled.wait(), loop).result()
        load(view)
        ended.append(view.records)

    monkeypatch.setattr(View, "load", slow)
    async with AsyncPersistentQueue("work", tmp_path, TINY) as queue:
        for number in range(COUNT):
            await queue.add(b"%d" % number)
        task = asyncio.create_task(queue.browse(900, 1))
        await begun.wait()
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ended) == 1


def test_items_are_moved_and_copied(queues: QueueCollection) -> None:
    """It is told how many, and why no more."""
    for item in (b"one", b"two", b"three"):
        queues.add("a", item)
    assert queues.copy("a", "b", 2) == Moved(2, None)
    assert queues.move("a", "b", 1) == Moved(1, None)
    assert queues.move("a", "small") == Moved(2, None)
    assert queues.move("b", "small") == queues.copy("b", "small") == Moved(0, FULL)
    assert queues.move("b", "c", 0) == Moved(0, None)
    assert data(queues.queue("b").browse()) == [b"one", b"two", b"one"]
    assert data(queues.queue("small").browse()) == [b"two", b"three"]
    assert queues.copy("small", "both") == Moved(2, None)
    assert data(queues.queue("a").browse()) == [b"two", b"three"]


@pytest.mark.parametrize(
    ("source", "target"), [("disk", "memory"), ("memory", "disk"), ("disk", "safe")]
)
def test_many_items_survive_a_restart_where_they_were_moved(
    tmp_path: Path, source: str, target: str
) -> None:
    """Slice after slice, from memory and disk."""
    with opened(tmp_path) as queues:
        items = fill(queues, source)
        assert queues.copy(source, "copied") == Moved(COUNT, None)
        assert queues.move(source, target, COUNT - 10) == Moved(COUNT - 10, None)
    with opened(tmp_path) as queues:
        assert data(queues.queue(target).browse(0, COUNT)) == items[:-10]
        assert data(queues.queue(source).browse()) == items[-10:]
        assert data(queues.queue("copied").browse(0, COUNT)) == items


def test_dead_letters_go_back(queues: QueueCollection) -> None:
    """To the queue that they came from, or to another one."""
    work = queues.queue("work")
    for item in (b"x", b"y"):
        work.add(item)
        read = work.remove(transaction=True)
        assert read is not None
        work.unremove(read.xid)
    assert data(queues.queue("dead").browse()) == [b"x", b"y"]
    (letter, _) = (item.dead_letter for item in queues.queue("dead").browse())
    assert letter is not None
    assert (letter.origin, letter.why) == ("work", "it was given back")
    assert queues.redrive("dead") == Moved(2, None)
    assert [item.dead_letter for item in work.browse()] == [None, None]
    assert queues.redrive("work", "other") == Moved(2, None)
    assert data(queues.queue("other").browse()) == [b"x", b"y"]


def test_a_refused_move_raises_its_reason(queues: QueueCollection) -> None:
    """Nothing is moved or created."""
    queues.add("a", b"x")
    assert queues.move("nosuch", "a") is queues.copy("nosuch", "a") is None
    assert queues.redrive("nosuch", "a") is queues.move("both", "a") is None
    for kind, names in (
        (queues.move, ("a", "a")),
        (queues.copy, ("a", "both")),
        (queues.move, ("a", "b/c")),
        (queues.move, ("b/c", "a")),
    ):
        with pytest.raises(InvalidQueueName):
            kind(*names)
    for transfer in (queues.move, queues.copy):
        with pytest.raises(ValueError, match="not below 0"):
            transfer("a", "b", -1)
    assert queues.pause("a", "writes")
    queues.add("b", b"y")
    paused = "queue a is paused for writes"
    assert queues.move("b", "a") == queues.copy("b", "a") == Moved(0, paused)
    assert queues.names() == ["a", "b"]
    queues.close()
    with pytest.raises(QueueUnavailable):
        queues.move("a", "b")


def test_a_target_that_cannot_be_written_loses_nothing(queues: QueueCollection) -> None:
    """The items are back in their queue, and can be moved later."""
    items = fill(queues, "a", 300)
    queues.add("b", bytes(2 << 20))
    with largest_file(1 << 20), pytest.raises(JournalError, match="File too large"):
        queues.move("a", "b")
    assert data(queues.queue("a").browse(0, COUNT)) == items
    assert queues.move("a", "b") == Moved(300, None)
    assert data(queues.queue("b").browse(1, COUNT)) == items


def test_a_target_that_cannot_be_synced_loses_nothing(
    queues: QueueCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves its queue before it is as safe as the target's settings ask for."""

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    items = fill(queues, "a", 300)
    queues.add("safe", b"first")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(JournalError, match="Input/output"):
            queues.move("a", "safe")
        for transfer in (queues.move, queues.copy):
            later = transfer("a", "safe")
            assert later is not None
            assert later.count == 0
            assert "earlier sync failed" in str(later.stopped)
    assert data(queues.queue("a").browse(0, COUNT)) == items


def test_others_use_the_queues_meanwhile(queues: QueueCollection) -> None:
    """A reader gets what is not being moved; each item is in one place in the end."""
    items = fill(queues, "a", 5000)
    taken: list[bytes] = []

    def read() -> None:
        queue = queues.queue("a")
        while (item := queue.remove()) is not None:
            taken.append(item.data)

    reader = Thread(target=read)
    reader.start()
    moved = queues.move("a", "b")
    reader.join()
    read()  # what came back behind the reader
    assert moved is not None
    assert sorted(taken + data(queues.queue("b").browse(0, 5000))) == sorted(items)
    assert len(queues.queue("b")) == moved.count


def test_a_collection_is_used_from_asyncio_by_threads(tmp_path: Path) -> None:
    """Its methods may be called from any thread."""

    async def move() -> Moved | None:
        with QueueCollection(tmp_path, clock=FakeClock()) as queues:
            await asyncio.to_thread(queues.add, "a", b"x")
            return await asyncio.to_thread(queues.move, "a", "b")

    assert asyncio.run(move()) == Moved(1, None)
