"""An exception in the middle of an operation, at each call of the clock and of the system in turn.

It stands for a time limit, a Ctrl-C or a bug. Afterwards a queue either is whole, or answers
QueueUnavailable until it was closed and set up again. It then is as its journal says.
"""

import asyncio
import inspect
import os
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq import (
    AsyncPersistentQueue,
    KestrelError,
    NotSynced,
    PersistentQueue,
    QueueCollection,
    QueueConfig,
    QueueUnavailable,
)
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE, until

pytestmark = pytest.mark.compiled

STEPS: Final = ("write", "fsync", "rename", "link", "unlink", "ftruncate", "fstat", "pread")
"""What the directory and the files of a journal ask of the system."""
CONFIG: Final = QueueConfig(sync_journal=0, open_transaction_timeout=20)
TAG: Final = "step:1:0"
LONG: Final = 7200.0
"""Seconds; by then all delays and leases have ended."""
ITEMS: Final = (b"a", b"b", b"c", b"d", b"e", b"late")
READS: Final = 3
"""How many of these are open reads."""
WAITING: Final = ITEMS[READS:-1]


class TimeLimit(Exception):  # noqa: N818 # as programs call it
    """What a signal handler raises in the middle of anything."""


class Interrupted(BaseException):
    """Stands for a KeyboardInterrupt, which would end the event loop and pytest."""


KINDS: Final = (TimeLimit, Interrupted, TimeoutError)


def _sync_nothing(_descriptor: int) -> None:
    """Stand for an fsync: no machine crashes here."""


class Faults:
    """Raises an exception once: at the n-th call of the clock and of the system by this thread.

    It is raised before the call is done, or after it. After one of the clock is before the next.

    Attributes:
        happened: what was raised.
        is_of_disk: whether a queue takes it for a failure of the disk, of one journal: it is an
            OSError, or a sync raised it.
    """

    def __init__(self) -> None:
        self.happened: BaseException | None = None
        self.is_of_disk = False
        self._left = 0
        self._is_after = False
        self._kind: type[BaseException] = TimeLimit
        self._thread = threading.get_ident()

    def arm(self, number: int, kind: type[BaseException], *, is_after: bool = False) -> None:
        """Raise at the call of that number, counted from 1, before or after it is done."""
        self._left, self._kind, self._is_after = number, kind, is_after
        self.happened, self.is_of_disk = None, False

    def disarm(self) -> None:
        """Raise nothing."""
        self._left = 0

    def call(self, step: Callable[..., Any], *arguments: object, **named: object) -> Any:
        """Do a step."""
        result = step(*arguments, **named) if self._is_after else None
        if self._left and threading.get_ident() == self._thread:
            self._left -= 1
            if not self._left:
                self.happened = self._kind("enough")
                self.is_of_disk = step is _sync_nothing or isinstance(self.happened, OSError)
                raise self.happened
        return result if self._is_after else step(*arguments, **named)

    def look(self, clock: Callable[[], float]) -> float:
        """Ask a clock."""
        return clock() if self._is_after else float(self.call(clock))


class FaultyClock(FakeClock):
    """A clock at whose calls it happens, too."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return int(self._faults.look(super().now))

    def monotonic(self) -> float:
        """Return seconds since the clock was made."""
        return self._faults.look(super().monotonic)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Return what raises in the middle of operations."""
    faults = Faults()

    def faulty(name: str) -> Callable[..., Any]:
        step = _sync_nothing if name == "fsync" else getattr(os, name)
        return lambda *arguments, **named: faults.call(step, *arguments, **named)

    for name in STEPS:
        monkeypatch.setattr(os, name, faulty(name))
    yield faults
    faults.disarm()


async def result_of(begun: Any) -> Any:
    """Return the result of a method, or all of an iterator."""
    if inspect.isawaitable(begun):
        return await begun
    if isinstance(begun, AsyncIterator):
        return [one async for one in begun]
    return list(begun) if isinstance(begun, Iterator) else begun


@dataclass(frozen=True)
class Operation:
    """An operation: what it does, and which items it takes out of the queue and puts into it.

    `act` gets the queue, its clock, and the xids of two open reads, those of `b` and `c`.
    """

    name: str
    act: Callable[[Any, FakeClock, list[int]], Any]
    gains: Iterable[Any] = ()
    loses: Iterable[Any] = ()


def _later(queue: Any, clock: FakeClock, _: list[int]) -> Any:
    clock.advance(40)  # `b` and `c` come back, and `late` is due
    return queue.peek()


LINES: Final = ['{"data": "x"}', '{"data": "y"}', '{"data": "z"}']
OPERATIONS: Final = (
    Operation("add", lambda q, *_: q.add(b"x"), [b"x"]),
    Operation("add with a delay", lambda q, *_: q.add(b"x", delay=60), [b"x"]),
    Operation("add with a number", lambda q, *_: q.add(b"x", producer="p", sequence=1), [b"x"]),
    Operation("add expired", lambda q, *_: q.add(b"x", -1), [], []),
    Operation("remove", lambda q, *_: q.remove(), [], [b"d"]),
    Operation("open", lambda q, *_: q.remove(transaction=True)),
    Operation("confirm", lambda q, _, xids: q.confirm_remove(xids[0]), [], [b"b"]),
    Operation("unremove", lambda q, _, xids: q.unremove(xids[1])),
    Operation("release", lambda q, _, xids: q.release(xids[1])),
    Operation("release later", lambda q, _, xids: q.release(xids[0], 30)),
    Operation("extend", lambda q, _, xids: q.extend(xids[0], 30)),
    Operation("wait", lambda q, *_: q.wait_remove(), [], [b"d"]),
    Operation("wait and open", lambda q, *_: q.wait_remove(0, transaction=True)),
    Operation("peek", lambda q, *_: q.peek()),
    Operation("peek later", _later),
    Operation("flush", lambda q, *_: q.flush(), [], (*WAITING, b"late")),
    Operation("reserve", lambda q, *_: q.reserve_many(2, 60)),
    Operation("reserve again", lambda q, *_: q.reserve_many(2, 90, tag=TAG)),
    Operation("reserve by tag", lambda q, *_: q.reserve_many(2, 60, tag="step:1:1")),
    Operation("finish", lambda q, *_: q.finish(TAG), [], [b"a"]),
    Operation("retire", lambda q, *_: q.retire("step", 1)),
    Operation("browse", lambda q, *_: q.browse()),
    Operation("search", lambda q, *_: q.search(b"d")),
    Operation("export", lambda q, *_: q.export()),
    Operation("import", lambda q, *_: q.import_items(LINES), [b"x", b"y", b"z"]),
    Operation("consume", lambda q, *_: q.consume(max_items=2), [], WAITING[:2]),
    Operation("close", lambda q, *_: q.close()),
)


def check(found: Counter[Any], before: Counter[Any], operation: Operation, *, done: bool) -> None:
    """Check what is there: exactly what should be if the operation is done; else with or without.

    Each item it takes or adds may be there or not, but no other is lost, and none comes up twice.
    """
    gains, loses = Counter(operation.gains), Counter(operation.loses)
    assert before - loses <= found <= before + gains
    if done:
        assert found == before - loses + gains


def files_with_items(path: Path) -> None:
    """Make a queue with the items."""
    with PersistentQueue("work", path, CONFIG, clock=FakeClock()) as queue:
        for item in ITEMS[:-1]:
            queue.add(item)
        queue.add(ITEMS[-1], delay=30)


async def drain(queue: Any) -> Counter[bytes]:
    """Take out all items, those on delay and of open reads too."""
    found: Counter[bytes] = Counter()
    while (item := await result_of(queue.remove())) is not None:
        found[item.data] += 1
    return found


async def use(queue: Any) -> tuple[Counter[bytes], Counter[bytes]]:
    """Add and remove items after an exception; return those that were added, and removed.

    Either all of it works, or nothing.
    """
    added: Counter[bytes] = Counter()
    removed: Counter[bytes] = Counter()
    refused = 0
    for number in range(3):
        try:
            assert await result_of(queue.add(b"after %d" % number))
            added[b"after %d" % number] += 1
            item = await result_of(queue.remove())
            removed[item.data] += 1
        except KestrelError:
            refused += 1
    assert refused in {0, 3}
    return added, removed


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("kind", [PersistentQueue, AsyncPersistentQueue], ids=["blocking", "aio"])
async def test_no_half_change_is_used(
    tmp_path: Path,
    faults: Faults,
    kind: type[PersistentQueue] | type[AsyncPersistentQueue],
    operation: Operation,
    *,
    is_after: bool,
) -> None:
    """What is acknowledged is there, and nothing is acknowledged that is not kept."""
    files_with_items(tmp_path / "made")
    for number in count(1):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", path)
        clock = FaultyClock(faults)
        queue: Any = kind("work", path, CONFIG, clock=clock)
        await result_of(queue.setup())
        await result_of(queue.reserve_many(1, 3600, tag=TAG))
        xids = [(await result_of(queue.remove(transaction=True))).xid for _ in range(READS - 1)]
        faults.arm(number, KINDS[(number + is_after) % len(KINDS)], is_after=is_after)
        done = False
        with suppress(*KINDS, KestrelError):
            await result_of(operation.act(queue, clock, xids))
            done = True
        faults.disarm()
        added, removed = await use(queue)
        with suppress(NotSynced):  # if that was a TimeoutError of an fsync
            await result_of(queue.close())
        assert queue.is_closed
        again: Any = kind("work", path, CONFIG, clock=clock)
        await result_of(again.setup())
        clock.advance(LONG)
        found = await drain(again)
        await result_of(again.close())
        found.update(removed)
        found.subtract(added)
        check(found, Counter(ITEMS), operation, done=done)
        shutil.rmtree(path)
        if faults.happened is None:
            assert done
            break


def collection(path: Path, clock: FakeClock) -> QueueCollection:
    """Return a collection with a fanout, an alias and a queue whose expired items move on."""
    settings = {"expiring": QueueConfig(expire_to_queue="expired", sync_journal=0)}
    aliases = {"both": ["one", "two"]}
    return QueueCollection(path, CONFIG, settings, aliases, sweep_period=None, clock=clock)


def _expire(queues: QueueCollection, clock: FakeClock, _: list[int]) -> None:
    clock.advance(40)
    queues.sweep()


def _each(items: Iterable[bytes], *names: str) -> list[tuple[str, bytes]]:
    return [(name, item) for name in names for item in items]


SEVERAL: Final = (
    Operation("fanout", lambda q, *_: q.add("one", b"x"), _each([b"x"], "one", "one+audit")),
    Operation("alias", lambda q, *_: q.add("both", b"x"), _each([b"x"], "one", "one+audit", "two")),
    Operation("expire", _expire, _each([b"1", b"2"], "expired"), _each([b"1", b"2"], "expiring")),
    Operation(
        "move",
        lambda q, *_: q.move("one", "two"),
        _each([b"a", b"b"], "two"),
        _each([b"a", b"b"], "one"),
    ),
    Operation("copy", lambda q, *_: q.copy("one", "two"), _each([b"a", b"b"], "two")),
    Operation("delete", lambda q, *_: q.delete("two"), [], _each([b"a", b"b"], "two")),
    Operation("flush", lambda q, *_: q.flush("two"), [], _each([b"a", b"b"], "two")),
    Operation("new", lambda q, *_: q.queue("new").add(b"x"), _each([b"x"], "new")),
    Operation("declare", lambda q, *_: q.declare("new", QueueConfig(max_items=9))),
    Operation("pause", lambda q, *_: q.pause("two", "writes")),
    Operation("close", lambda q, *_: q.close()),
)


def _data(items: Iterable[tuple[str, bytes]]) -> Counter[bytes]:
    return Counter(data for _, data in items)


def contents(queues: QueueCollection) -> Counter[tuple[str, bytes]]:
    """Return the items of all queues."""
    return Counter(
        (name, item.data) for name in queues.names() for item in queues.queue(name).browse()
    )


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", SEVERAL, ids=lambda operation: operation.name)
def test_no_half_change_of_several_queues_is_used(
    tmp_path: Path, faults: Faults, operation: Operation, *, is_after: bool
) -> None:
    """A collection is refused as a whole, until it is set up again."""
    with collection(tmp_path / "made", FakeClock()) as queues:
        queues.queue("one+audit").peek()
        for item in (b"a", b"b"):
            queues.add("both", item)
        for item in (b"1", b"2"):
            queues.add("expiring", item, 10)
        before = contents(queues)
    for number in count(1):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", path)
        clock = FaultyClock(faults)
        queues = collection(path, clock)
        queues.setup()
        faults.arm(number, KINDS[(number + is_after) % len(KINDS)], is_after=is_after)
        done = False
        with suppress(*KINDS, KestrelError):
            operation.act(queues, clock, [])
            done = True
        faults.disarm()
        added: Counter[tuple[str, bytes]] = Counter()
        for name in ("other", "expired"):
            with suppress(KestrelError):
                added[name, b"after"] += queues.add(name, b"after")
        assert sum(added.values()) in {0, 2} or faults.is_of_disk
        queues.close()
        with collection(path, clock) as again:
            found = contents(again)
        found.subtract(added)
        check(+found, before, operation, done=done and not faults.is_of_disk)
        gone = _data(operation.loses) - _data(operation.gains)
        assert _data(before.elements()) - gone <= _data(found.elements())  # in one queue or another
        shutil.rmtree(path)
        if faults.happened is None:
            assert done
            break


def test_all_is_refused_until_the_queue_is_set_up_again(tmp_path: Path, faults: Faults) -> None:
    """The error has the exception as its cause; a thread that waits gets it, too."""
    clock = FaultyClock(faults)
    queue = PersistentQueue("work", tmp_path, QueueConfig(sync_journal=0.01), clock=clock)
    before = set(threading.enumerate())  # an earlier test may have left one for the collector
    with queue, ThreadPoolExecutor(1) as threads:
        reader = threads.submit(queue.wait_remove)
        until(lambda: bool(queue._access.waiting))
        faults.arm(2, Interrupted)  # the first call is that of `add` itself
        with pytest.raises(Interrupted):
            queue.add(b"x")
        with pytest.raises(QueueUnavailable, match="set it up again"):
            reader.result(PATIENCE)
        for refused in (lambda: queue.add(b"y"), lambda: len(queue), queue.wait_peek):
            with pytest.raises(QueueUnavailable, match="set it up again") as raised:
                refused()
            assert raised.value.__cause__ is faults.happened
        queue.close()
        left = set(threading.enumerate()) - before
        assert not [one for one in left if one.name.endswith("-work")]
        queue.setup()
        assert queue.add(b"z")
        assert queue.wait_remove() is not None


async def test_tasks_are_refused_until_the_queue_is_set_up_again(
    tmp_path: Path, faults: Faults
) -> None:
    """A task that waits for an item or for a sync gets the error, too."""
    clock = FaultyClock(faults)
    async with AsyncPersistentQueue("work", tmp_path, CONFIG, clock=clock) as queue:
        reader = asyncio.create_task(queue.wait_remove())
        writer = asyncio.create_task(queue.add(b"w", delay=60))
        await asyncio.sleep(0)
        faults.arm(2, TimeLimit)
        with pytest.raises(TimeLimit):
            await queue.add(b"x")
        for waiting in (reader, writer):
            with pytest.raises(QueueUnavailable, match="half-way"):
                await waiting
        with pytest.raises(QueueUnavailable, match="set it up again") as raised:
            await queue.add(b"y")
        assert raised.value.__cause__ is faults.happened
        await queue.close()
        await queue.setup()
        assert await queue.add(b"z")
        assert await queue.wait_remove() is not None
        assert await queue.flush() == 1
