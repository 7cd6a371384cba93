"""`AsyncPersistentQueue`: a durable queue for asyncio."""

import asyncio
import math
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from threading import Event

import pytest

from kestrelmq import (
    AsyncPersistentQueue,
    Item,
    JournalError,
    QueueConfig,
    QueuePathLocked,
    QueueUnavailable,
)
from kestrelmq.clock import Pause
from kestrelmq.journal.writer import FileJournal
from tests.support.fake_clock import FakeClock
from tests.support.limits import largest_file
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.compiled

LONG = PATIENCE


def data(item: Item | None) -> bytes | None:
    """Return an item's data."""
    return None if item is None else item.data


async def waiting(
    queue: AsyncPersistentQueue, read: Awaitable[Item | None]
) -> asyncio.Task[Item | None]:
    """Start `read` and return once it waits in the line."""
    before = len(queue._queue().waiters)
    task = asyncio.ensure_future(read)
    assert isinstance(task, asyncio.Task)
    while len(queue._queue().waiters) == before:  # noqa: ASYNC110 # it tells nobody
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("sync_journal", [None, 0])
async def test_life_of_an_item(tmp_path: Path, sync_journal: float | None) -> None:
    """Add, peek, open, give back, open, confirm, restart."""
    config = QueueConfig(sync_journal=sync_journal)
    clock = FakeClock()
    async with AsyncPersistentQueue("work", tmp_path, config, clock=clock) as queue:
        assert await queue.add(b"a", expiry=10)
        assert await queue.add(b"b")
        assert await queue.peek() == Item(b"a", clock.now(), clock.now() + 10_000)
        item = await queue.remove(transaction=True)
        assert item is not None
        assert await queue.unremove(item.xid)
        item = await queue.remove(transaction=True)
        assert item is not None
        assert await queue.confirm_remove(item.xid)
        assert not await queue.confirm_remove(item.xid)
        assert (len(queue), queue.bytes, queue.name, bool(queue)) == (1, 1, "work", True)
        assert queue.journal_size == (tmp_path / "work").stat().st_size
    assert queue.is_closed
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        assert data(await queue.wait_peek(LONG)) == b"b"
        assert await queue.flush() == 1
        assert await queue.remove() is None


@pytest.mark.parametrize("sync_journal", [None, 0])
async def test_tasks_are_served_in_order(tmp_path: Path, sync_journal: float | None) -> None:
    """Who waits first gets the first item; a read without transaction leaves nothing open."""
    config = QueueConfig(sync_journal=sync_journal)
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        first = await waiting(queue, queue.wait_remove())
        second = await waiting(queue, queue.wait_remove(LONG, transaction=True))
        third = await waiting(queue, queue.wait_peek(LONG))
        for text in (b"1", b"2", b"3"):
            await queue.add(text)
        assert await first == Item(b"1", (await first).add_time, None, 0)  # type: ignore[union-attr]
        held = await second
        assert held is not None
        assert (held.data, data(await third)) == (b"2", b"3")
        assert await queue.confirm_remove(held.xid)
        assert data(await queue.remove()) == b"3"
    async with AsyncPersistentQueue("work", tmp_path) as queue:
        assert await queue.remove() is None


async def test_wait_that_times_out_takes_nothing(tmp_path: Path) -> None:
    """The task leaves the line, so that a later item is not lost with it."""
    async with AsyncPersistentQueue("work", tmp_path) as queue:
        assert await queue.wait_remove(0) is None
        assert await queue.wait_remove(0.01) is None
        await queue.add(b"x")
        assert data(await queue.remove()) == b"x"


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("sync_journal", [None, 0])
async def test_cancelled_task_takes_nothing(
    tmp_path: Path, *, transaction: bool, sync_journal: float | None
) -> None:
    """A task that is cancelled in the very turn in which it is served gives the item back."""
    config = QueueConfig(sync_journal=sync_journal)
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        idle = await waiting(queue, queue.wait_remove(LONG, transaction=transaction))
        idle.cancel()
        await asyncio.wait([idle])
        served = await waiting(queue, queue.wait_remove(LONG, transaction=transaction))
        add = asyncio.create_task(queue.add(b"x"))
        await asyncio.sleep(0)
        assert not served.done()
        served.cancel()
        await add
        with pytest.raises(asyncio.CancelledError):
            await served
        await asyncio.sleep(0)
        assert data(await queue.remove()) == b"x"
        assert await queue.remove() is None


@pytest.mark.parametrize("wait", [True, False])
async def test_task_cancelled_while_its_read_is_synced(tmp_path: Path, *, wait: bool) -> None:
    """An open read is given back at once."""
    async with AsyncPersistentQueue("jobs", tmp_path, QueueConfig(sync_journal=0)) as queue:
        await queue.add(b"x")
        read = queue.wait_remove if wait else queue.remove
        reader = asyncio.create_task(read(transaction=True))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert data(await queue.remove()) == b"x"


@pytest.mark.parametrize("is_waited_for", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
async def test_task_cancelled_while_its_removal_is_synced(
    tmp_path: Path, *, is_waited_for: bool, is_there: bool
) -> None:
    """It gets the item, and the cancellation with its next wait."""
    taken: list[bytes | None] = []
    async with AsyncPersistentQueue("jobs", tmp_path, QueueConfig(sync_journal=0)) as queue:

        async def work() -> None:
            taken.append(data(await (queue.wait_remove() if is_waited_for else queue.remove())))
            await asyncio.sleep(LONG)

        if is_there:
            await queue.add(b"x")
        worker = asyncio.create_task(work())
        await asyncio.sleep(0)
        if not is_there:
            await queue.add(b"x")
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        left = data(await queue.remove())
        assert [*filter(None, taken), *filter(None, [left])] == [b"x"]
        if is_there:
            assert taken == [b"x"]


async def test_time_out_around_a_removal(tmp_path: Path) -> None:
    """It is told as one, and the item is there or was taken."""
    taken = None
    async with AsyncPersistentQueue("jobs", tmp_path, QueueConfig(sync_journal=0)) as queue:
        await queue.add(b"x")
        try:
            async with asyncio.timeout(0):
                taken = await queue.wait_remove()
                await asyncio.sleep(LONG)
        except TimeoutError:
            pass
        else:
            pytest.fail("no TimeoutError")
        assert b"x" in {data(taken), data(await queue.remove())}


@pytest.mark.parametrize("wait", [True, False])
async def test_an_item_is_the_result_of_a_task_that_only_removes_it(
    tmp_path: Path, *, wait: bool
) -> None:
    """Also if the task is cancelled while that is synced, as `wait_for` does at its time-out."""
    async with AsyncPersistentQueue("jobs", tmp_path, QueueConfig(sync_journal=0)) as queue:
        await queue.add(b"x")
        remover = asyncio.create_task(queue.wait_remove() if wait else queue.remove())
        await asyncio.sleep(0)
        remover.cancel()
        assert data(await remover) == b"x"


async def test_a_time_out_is_over_with_its_block(tmp_path: Path) -> None:
    """If it was put off until the item was there, nothing is cancelled behind the block."""
    async with AsyncPersistentQueue("jobs", tmp_path, QueueConfig(sync_journal=0)) as queue:
        await queue.add(b"x")
        async with asyncio.timeout(0):
            taken = await queue.wait_remove()
        for _ in range(3):
            await asyncio.sleep(0)
        assert data(taken) == b"x"


async def test_close_ends_waits(tmp_path: Path) -> None:
    """A task that waits hears that the queue was closed; later calls do too."""
    queue = AsyncPersistentQueue("work", tmp_path)
    with pytest.raises(QueueUnavailable):
        await queue.add(b"x")
    await queue.setup()
    await queue.setup()
    reader = await waiting(queue, queue.wait_remove())
    await queue.close()
    await queue.close()
    with pytest.raises(QueueUnavailable, match="closed"):
        await reader
    with pytest.raises(QueueUnavailable, match="closed"):
        await queue.add(b"x")


async def test_a_close_that_is_cancelled_still_ends_the_threads_first(tmp_path: Path) -> None:
    """Nobody else may open the queue while a thread may be replacing its files."""
    queue, other = AsyncPersistentQueue("work", tmp_path), AsyncPersistentQueue("work", tmp_path)
    await queue.setup()
    has_begun, may_end = Event(), Event()

    def job(_: Pause) -> None:
        has_begun.set()
        may_end.wait(LONG)

    queue._commits.worker.run(job, lambda _: None)
    has_begun.wait(LONG)
    closer = asyncio.create_task(queue.close())
    await asyncio.sleep(0)
    closer.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(QueuePathLocked):
        await other.setup()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await closer
    async with other:
        assert len(other) == 0


async def test_a_fork_of_the_process_does_not_share_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a copy of it, which it cannot use, nor close."""
    async with AsyncPersistentQueue("work", tmp_path) as queue:
        await queue.add(b"x")
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(QueueUnavailable, match="forked"):
                await queue.remove()
            await queue.close()
        assert data(await queue.remove()) == b"x"


@pytest.mark.parametrize("sync_journal", [None, 0])
def test_a_queue_belongs_to_one_event_loop(tmp_path: Path, sync_journal: float | None) -> None:
    """Another one is told so, where a sync would never be heard of."""
    queue = AsyncPersistentQueue("work", tmp_path, QueueConfig(sync_journal=sync_journal))
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(queue.setup())
        for call in (queue.add(b"x"), queue.remove(), queue.wait_remove(), queue.close()):
            with pytest.raises(QueueUnavailable, match="belongs to another event loop"):
                second.run(call)
        assert first.run(queue.add(b"x"))
        first.run(queue.close())


async def test_overdue_read_is_given_back(tmp_path: Path) -> None:
    """A task that waits gets the item of a read whose time is up."""
    config = QueueConfig(open_transaction_timeout=0.02)
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        await queue.add(b"x")
        held = await queue.wait_remove(LONG, transaction=True)
        assert held is not None
        assert data(await queue.wait_remove(LONG, transaction=True)) == b"x"
        assert data(await queue.wait_remove(LONG)) == b"x"
        assert not await queue.confirm_remove(held.xid)


async def test_one_fsync_serves_many_tasks(tmp_path: Path) -> None:
    """Adds that wait at the same time share their fsyncs."""
    async with AsyncPersistentQueue("work", tmp_path, QueueConfig(sync_journal=0)) as queue:
        assert all(await asyncio.gather(*(queue.add(b"x") for _ in range(100))))
        assert 1 <= queue._queue().journal.syncs <= 3


async def test_a_read_that_cannot_be_given_back_now(tmp_path: Path) -> None:
    """It comes back when the disk works again, though no task uses the queue meanwhile."""
    async with AsyncPersistentQueue("work", tmp_path) as queue, asyncio.timeout(LONG):
        await queue.add(b"x")
        item = await queue.remove(transaction=True)
        assert item is not None
        with largest_file(queue.journal_size), pytest.raises(JournalError):
            await queue.unremove(item.xid)
        while not len(queue):  # noqa: ASYNC110 # it tells nobody
            await asyncio.sleep(0.01)
        assert data(await queue.remove()) == b"x"


async def test_failed_sync_is_loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An add whose fsync failed raises; a read gets its item, which nobody else would.

    Then nothing may be added or taken until all is written anew.
    """

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    async with AsyncPersistentQueue("work", tmp_path, QueueConfig(sync_journal=0)) as queue:
        reader = await waiting(queue, queue.wait_remove(LONG))
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", fail)
            with pytest.raises(JournalError, match="Input/output"):
                await queue.add(b"x")
            assert data(await reader) == b"x"
            for later in (queue.add(b"y"), queue.remove(), queue.remove(transaction=True)):
                with pytest.raises(JournalError, match="earlier sync failed"):
                    await later
        journal = queue._queue().journal
        assert isinstance(journal, FileJournal)
        queue._do_upkeep(queue._queue())
        deadline = time.monotonic() + LONG
        while journal.suspect:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
        assert len(queue) == 0
        assert await queue.add(b"z")
        assert data(await queue.remove()) == b"z"


async def test_queue_in_use_is_refused(tmp_path: Path) -> None:
    """A queue has one user at a time."""
    async with AsyncPersistentQueue("work", tmp_path):
        with pytest.raises(QueuePathLocked):
            await AsyncPersistentQueue("work", tmp_path).setup()


async def test_times_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """As by `PersistentQueue`."""
    async with AsyncPersistentQueue("work", tmp_path) as queue:
        await queue.add(b"x")
        item = await queue.remove(transaction=True)
        assert item is not None
        with pytest.raises(ValueError, match="by 0 to"):
            await queue.extend(item.xid, math.nan)
        with pytest.raises(ValueError, match="a timeout is a number"):
            await queue.wait_remove(math.nan)
