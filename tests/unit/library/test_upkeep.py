"""The library rewrites journals beside its users, and leaves no thread behind."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer

import pytest

from kestrelmq import AsyncPersistentQueue, PersistentQueue, QueueCollection, QueueConfig
from kestrelmq.clock import Pause
from kestrelmq.errors import QueueUnavailable
from kestrelmq.journal.replacement import Replacement
from kestrelmq.library import BlockingQueue
from kestrelmq.upkeep.states import Idle
from tests.support.fake_clock import FakeClock
from tests.support.limits import no_new_threads
from tests.support.patience import PATIENCE, until

pytestmark = pytest.mark.compiled

LONG = PATIENCE
"""Seconds that nothing here takes unless it is broken."""

SMALL = QueueConfig(default_journal_size=4000, max_journal_size=8000, min_journal_compact_delay=60)


class Gated:
    """Replacements that go on when the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.began = Event()
        self.go_on = Event()
        place = Replacement.place

        def gated(replacement: Replacement, pause: Pause) -> None:
            self.began.set()
            assert self.go_on.wait(LONG)
            place(replacement, pause)

        patch.setattr(Replacement, "place", gated)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    """Hold every replacement."""
    found = Gated(monkeypatch)
    yield found
    found.go_on.set()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """What began during a test has ended with it; asyncio's helpers end with their loop."""
    before = set(threading.enumerate())
    yield
    left = [one.name for one in set(threading.enumerate()) - before]
    assert [name for name in left if not name.startswith("asyncio")] == []


def failing_write(path: Path) -> Callable[[int, bytes], int]:
    """Return an `os.write` for which the disk is full when it writes to this file."""
    write, full = os.write, path.stat().st_ino

    def failing(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_ino == full:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data)

    return failing


def churn(queue: BlockingQueue, enough: Callable[[], bool]) -> None:
    """Add and remove until something is so."""
    while not enough():
        queue.add(b"x" * 500)
        queue.remove()


def names() -> set[str]:
    """Return the names of the threads there are."""
    return {thread.name for thread in threading.enumerate()}


def test_a_rewrite_stalls_nobody(tmp_path: Path, gated: Gated) -> None:
    """While the thread writes, adds and reads go on; what they did is after what it wrote."""
    with PersistentQueue("work", tmp_path, SMALL) as queue:
        queue.add(b"kept")
        queue.remove(transaction=True)
        churn(queue, gated.began.is_set)
        queue.add(b"meanwhile")
        before = queue.journal_size
        gated.go_on.set()
        until(lambda: queue.journal_size < before)
    with PersistentQueue("work", tmp_path, SMALL) as queue:
        found = [queue.remove(), queue.remove(), queue.remove()]
        assert [item and item.data for item in found] == [b"kept", b"meanwhile", None]


def test_a_queue_that_needs_no_upkeep_has_no_thread(tmp_path: Path) -> None:
    """Neither does one without a journal."""
    before = set(threading.enumerate())
    for config in (QueueConfig(), QueueConfig(keep_journal=False)):
        with PersistentQueue("work", tmp_path, config) as queue:
            queue.add(b"x")
            queue.remove()
            assert set(threading.enumerate()) <= before


def test_threads_end_though_the_user_failed(tmp_path: Path, gated: Gated) -> None:
    """With a rewrite under way, which is given up; the journal is whole all the same."""

    def fail() -> None:
        with PersistentQueue("work", tmp_path, SMALL) as queue:
            churn(queue, gated.began.is_set)
            queue.add(b"kept")
            closing.start()
            raise KeyError

    closing = Timer(0.05, gated.go_on.set)
    with pytest.raises(KeyError):
        fail()
    closing.join()
    with PersistentQueue("work", tmp_path) as queue:
        item = queue.remove()
        assert item is not None
        assert item.data == b"kept"


def test_a_rewrite_comes_when_the_delay_is_over_though_nobody_writes(tmp_path: Path) -> None:
    """A thread looks for what time brings about, from when there is something to wait for."""
    clock = FakeClock()
    with PersistentQueue("work", tmp_path, SMALL, clock=clock) as queue:
        journal = queue._queue().journal
        queue.add(b"there is always one")
        churn(queue, lambda: journal.rewrites == 1)
        upkeep = queue._queue()._upkeep
        assert upkeep is not None
        until(lambda: isinstance(upkeep.state, Idle))
        churn(queue, lambda: journal.size > 12_000)
        assert journal.rewrites == 1
        assert "kestrelmq-upkeep-work" in names()
        clock.advance(60)
        queue._do_upkeep()
        assert journal.rewrites == 2


def test_expired_items_go_though_nobody_reads(tmp_path: Path) -> None:
    """The same thread drops them."""
    clock = FakeClock()
    with PersistentQueue("work", tmp_path, clock=clock) as queue:
        assert "kestrelmq-upkeep-work" not in names()
        queue.add(b"x", expiry=5)
        assert "kestrelmq-upkeep-work" in names()
        clock.advance(6)
        queue._do_upkeep()
        assert queue._queue().counts.expired_items == 1


def test_a_collection_rewrites_in_a_thread(tmp_path: Path, gated: Gated) -> None:
    """One thread for all its queues, which ends with it."""
    before = set(threading.enumerate())
    with QueueCollection(tmp_path, SMALL, sweep_period=None) as queues:
        assert set(threading.enumerate()) <= before
        churn(queues.queue("work"), gated.began.is_set)
        size = queues.queue("work").journal_size
        gated.go_on.set()
        until(lambda: queues.queue("work").journal_size < size)


def test_a_queue_that_fails_keeps_no_other_from_its_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its expired items cannot be dropped, and the delayed item of another queue is put in."""
    clock = FakeClock()
    with QueueCollection(tmp_path, sweep_period=LONG, clock=clock) as queues:
        queues.add("broken", b"x", expiry=1)
        queues.add("other", b"y", delay=1)
        clock.advance(2)
        with monkeypatch.context() as patch:
            patch.setattr("os.write", failing_write(tmp_path / "broken"))
            queues._do_upkeep()
        broken, other = (queues._queues.queues[name] for name in ("broken", "other"))
        assert (len(broken), len(other)) == (1, 1)


def test_upkeep_that_a_close_overtakes_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the upkeep waits for the lock while the queues are closed."""
    with QueueCollection(tmp_path, sweep_period=LONG) as queues:
        change = queues._access.change

        def change_after_close(operation: Callable[[], None]) -> object:
            monkeypatch.undo()
            queues.close()
            return change(operation)

        monkeypatch.setattr(queues._access, "change", change_after_close)
        queues._do_upkeep()
        assert queues.is_closed


async def test_a_rewrite_stalls_no_task(tmp_path: Path, gated: Gated) -> None:
    """Tasks go on while the thread writes."""
    async with AsyncPersistentQueue("work", tmp_path, SMALL) as queue:
        while not gated.began.is_set():
            await queue.add(b"x" * 500)
            await queue.remove()
        await queue.add(b"meanwhile")
        before = queue.journal_size
        gated.go_on.set()
        deadline = time.monotonic() + LONG
        while queue.journal_size >= before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
    async with AsyncPersistentQueue("work", tmp_path, SMALL) as queue:
        item = await queue.remove()
        assert item is not None
        assert item.data == b"meanwhile"


def test_no_thread_for_the_upkeep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The change that needs it is made, which the next one tries again; closing works."""
    with PersistentQueue("work", tmp_path) as queue:
        with no_new_threads():
            assert queue.add(b"first", delay=3600)
            assert queue.add(b"second", delay=3600)
        assert caplog.text.count("there is no thread for the upkeep of queues yet") == 1
        assert "kestrelmq-upkeep-work" not in names_of_threads()
        assert queue.add(b"third", delay=3600)
        assert "kestrelmq-upkeep-work" in names_of_threads()
    with no_new_threads():
        queue.setup()
        queue.close()
    with PersistentQueue("work", tmp_path) as queue:
        assert queue.flush() == 3


def test_no_thread_for_periodic_syncs(tmp_path: Path) -> None:
    """Nothing is set up without them, and nothing stays locked."""
    settings = QueueConfig(sync_journal=3600)
    queues = (
        PersistentQueue("work", tmp_path, settings),
        QueueCollection(tmp_path, settings),
    )
    for one in queues:
        refused = pytest.raises(QueueUnavailable, match="no thread for periodic syncs: can't start")
        with no_new_threads(), refused:
            one.setup()
        assert one.is_closed
        one.close()
        one.setup()
        one.close()


def test_an_asyncio_queue_closes_without_a_thread(tmp_path: Path) -> None:
    """It does not stay locked."""

    async def scenario() -> None:
        queue = AsyncPersistentQueue("work", tmp_path)
        await queue.setup()
        assert await queue.add(b"x")
        with no_new_threads():
            await queue.close()
        async with queue:
            assert len(queue) == 1

    asyncio.run(scenario())


def names_of_threads() -> list[str]:
    """Return the names of the threads that run."""
    return [thread.name for thread in threading.enumerate()]
