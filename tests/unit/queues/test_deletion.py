"""Queues that are deleted by a worker: what they do until they are gone, and who is told."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kestrelmq.errors import JournalError
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.worker import InlineWorker
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled


class Spool(LocalQueues):
    """A queue `jobs` on a disk that fails when the test wants it.

    Attributes:
        deleting: what deletes queues.
        disk: where they are.
        told: how deletions ended, in their order.
    """

    def __init__(self, path: Path, **settings: object) -> None:
        self.disk = CrashingDirectory.within(path)
        self.told: list[JournalError | None] = []
        self.deleting = HeldWorker()
        super().__init__(queue_settings(self.disk.path, **settings), self.disk)

    def open(self) -> None:
        """Load the queue, and have deletions wait for the test."""
        super().open()
        self.collection.deletions.worker = self.deleting

    def delete(self) -> bool:
        """Begin to delete the queue, if it exists."""
        queue = self.collection.existing("jobs")
        if queue is not None:
            self.collection.deletions.begin(queue, self.told.append)
        return queue is not None

    def found(self) -> list[bytes] | None:
        """Return what is in the queue; None when there is none."""
        return self.items() if "jobs" in self.collection.queues else None

    def after_restart(self) -> list[bytes] | None:
        """Start again, and return what is in the queue."""
        self.restart()
        return self.found()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """Queues whose journals are soon too long."""
    opened = Spool(tmp_path, default_journal_size=100, max_journal_size=300)
    yield opened
    opened.close()


def test_a_queue_serves_until_it_is_gone(spool: Spool) -> None:
    """What was added meanwhile goes with it; who asked is told when its files are gone."""
    spool.add(b"one")
    assert spool.delete()
    spool.add(b"two")
    assert spool.found() == [b"one", b"two"]
    assert spool.deleting.step()
    assert (spool.found(), spool.told) == (None, [])
    assert spool.deleting.step()
    assert spool.told == [None]
    assert [name for name in spool.disk.names() if "jobs" in name] == []
    assert not spool.delete()
    assert spool.collection.deletes == 1


def test_two_requests_to_delete_are_both_answered(spool: Spool) -> None:
    """It is deleted once."""
    spool.add(b"one")
    assert spool.delete()
    assert spool.delete()
    while spool.deleting.step():
        pass
    assert spool.told == [None, None]
    assert spool.collection.deletes == 1


def test_a_queue_that_is_gone_is_not_deleted_again(spool: Spool) -> None:
    """Whoever asked is told; a new one of its name stays."""
    queue = spool.queue()
    assert spool.collection.delete("jobs")
    spool.add(b"x")
    spool.collection.deletions.begin(queue, spool.told.append)
    assert (spool.told, spool.found()) == ([None], [b"x"])


def test_a_queue_that_goes_begins_no_other_file(spool: Spool) -> None:
    """However long its journal gets: the file would come after the pack that stands for all."""
    spool.add(b"one")
    assert spool.delete()
    before = spool.disk.names()
    for _ in range(20):
        spool.add(bytes(200))
        spool.collection.tick()
    assert spool.disk.names() == before
    while spool.deleting.step():
        pass
    assert spool.after_restart() is None


def test_items_delayed_during_a_deletion_are_deleted(spool: Spool) -> None:
    """It is in the journal that is removed."""
    spool.add(b"one")
    assert spool.delete()
    assert spool.collection.add("jobs", b"late", due=spool.clock.now() + 1000)
    spool.add(b"two")
    while spool.deleting.step():
        pass
    assert [name for name in spool.disk.names() if "jobs" in name] == []
    spool.advance(2)
    assert "jobs" not in spool.collection.queues


def test_a_new_queue_of_its_name_keeps_its_own_files(spool: Spool) -> None:
    """It may begin, and rotate, before those of the old one are removed, in one millisecond."""
    for number in range(20):
        spool.add(b"old %d" % number + bytes(50))
    assert spool.delete()
    assert spool.deleting.step()
    added = [b"new %d" % number + bytes(200) for number in range(10)]
    for data in added:
        spool.add(data)
        spool.take()
        spool.add(data)
    queue = spool.collection.queues["jobs"]
    assert queue.journal.rotations
    added = spool.found() or []
    assert len(added) == 10
    while spool.deleting.step():
        pass
    assert spool.found() == added
    assert spool.after_restart() == added


@pytest.mark.parametrize("step", range(4))
def test_a_queue_that_cannot_be_deleted_stays(spool: Spool, step: int) -> None:
    """With what was added meanwhile and later, and with its journal looked after."""
    spool.add(b"one")
    seen = iter(range(100))
    spool.disk.fail = lambda _point: next(seen) == step
    assert spool.delete()
    spool.disk.mend()
    if not spool.told:
        spool.add(b"two")
        seen = iter(range(1, 100))
        spool.disk.fail = lambda _point: next(seen) == step
        assert spool.deleting.step()
        spool.disk.mend()
    else:
        spool.add(b"two")
    (failure,) = spool.told
    assert isinstance(failure, JournalError)
    spool.add(b"three")
    expected = [b"one", b"two", b"three"]
    assert spool.found() == expected
    for _ in range(20):
        spool.clock.advance(2)
        spool.add(bytes(100))
        spool.take()
        spool.collection.tick()
    assert spool.collection.queues["jobs"].journal.rotations
    left = spool.found()
    assert spool.after_restart() == left


def test_settings_that_came_while_it_was_to_be_deleted(spool: Spool) -> None:
    """They are in force for a queue that stays."""
    spool.add(b"one")
    assert spool.delete()
    default = spool.config.default.model_copy(update={"max_items": 7})
    spool.collection.reload(spool.config.model_copy(update={"default": default}))
    spool.disk.fail = lambda _point: True
    assert spool.deleting.step()
    spool.disk.mend()
    assert isinstance(spool.told[0], JournalError)
    assert spool.collection.queues["jobs"].config.max_items == 7


def test_an_expired_queue_takes_nothing_along(tmp_path: Path) -> None:
    """It was empty when it went; what comes next is in a new queue of its name."""
    spool = Spool(tmp_path, max_queue_age="1s", default_journal_size=100)
    spool.add(b"one")
    spool.take()
    spool.clock.advance(2)
    spool.collection.sweep()
    assert (spool.found(), spool.collection.expires) == (None, 1)
    added = [b"%d" % number + bytes(200) for number in range(5)]
    for data in added:
        spool.add(data)
    while spool.deleting.step():
        pass
    assert spool.found() == added
    assert spool.after_restart() == added
    spool.close()


def test_queues_of_one_name_that_expire_one_after_the_other(tmp_path: Path) -> None:
    """Files of the third are not taken for those of the second, which are still to be removed."""
    spool = Spool(tmp_path, max_queue_age="1s", max_memory_size=300)
    for _ in range(2):
        spool.add(b"x")
        spool.take()
        spool.clock.advance(2)
        spool.collection.sweep()
    assert (spool.found(), spool.collection.expires) == (None, 2)
    for _ in range(3):
        assert spool.deleting.step()
    added = [b"%d" % number + bytes(200) for number in range(5)]
    for data in added:
        spool.add(data)
    while spool.deleting.step():
        pass
    assert spool.collection.queues["jobs"].journal.rotations
    assert spool.after_restart() is not None
    assert spool.drain() == added
    spool.close()


def test_an_expired_queue_whose_files_stay_comes_back_with_nothing_of_its_own(
    tmp_path: Path,
) -> None:
    """A disk that fails, or a crash, leaves files of an empty queue before those of the new one."""
    spool = Spool(tmp_path, max_queue_age="1s", default_journal_size=100)
    spool.add(b"one")
    spool.take()
    spool.clock.advance(2)
    spool.collection.sweep()
    spool.add(b"two")
    spool.disk.fail = lambda _point: True
    assert spool.deleting.step()
    spool.disk.mend()
    spool.add(b"three")
    assert spool.after_restart() == [b"two", b"three"]
    spool.close()


def test_very_many_readers_that_wait_are_told_in_several_turns(spool: Spool) -> None:
    """All of them that the queue is gone, in their order; one that leaves meanwhile is not."""
    told: list[int] = []
    queue = spool.queue()

    def waiter_for(number: int) -> Waiter:
        return Waiter(ReadMode.REMOVE, lambda _item, _xid: told.append(number), print)

    waiters = [waiter_for(number) for number in range(1000)]
    for waiter in waiters:
        queue.waiters.add(waiter)
    spool.delete()
    lengths = []
    while spool.deleting.step():
        lengths.append(len(told))
        queue.waiters.cancel(waiters[-1])
    assert told == list(range(999))
    assert max(after - before for before, after in pairwise([0, *lengths])) <= 300
    assert spool.told == [None]


def test_a_reader_that_leaves_while_the_others_are_told_stops_no_sweep(spool: Spool) -> None:
    """The deleted queue is none any more that a sweep could look at."""
    queue = spool.queue()
    waiters = [Waiter(ReadMode.REMOVE, lambda _item, _xid: None, print) for _ in range(1000)]
    for waiter in waiters:
        queue.waiters.add(waiter)
    spool.collection.sweep()
    spool.delete()
    assert spool.deleting.step()
    assert queue.waiters.cancel(waiters[-1])
    spool.collection.sweep()
    while spool.deleting.step():
        pass
    assert spool.told == [None]


def test_a_sync_that_fails_once_the_queue_is_deleted_stops_no_sweep(spool: Spool) -> None:
    """Another thread may still be syncing it then."""
    queue = spool.queue()
    spool.collection.sweep()
    spool.delete()
    while spool.deleting.step():
        pass
    assert queue.state.is_closed
    assert str(queue.failed(OSError(5, "I/O error"))).startswith("queue jobs: ")
    spool.collection.sweep()


def test_a_bug_while_a_queue_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets an error, and may try again."""
    queues = LocalQueues(queue_settings(tmp_path))
    queues.add(b"x")

    def broken(_queue: Queue) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "begin_removal", broken)
        with pytest.raises(JournalError, match=r"jobs was not deleted: .*a bug"):
            queues.collection.delete("jobs")
    assert "queue jobs was not deleted" in caplog.messages
    assert queues.items() == [b"x"]
    failures: list[JournalError | None] = []
    queues.collection.deletions.begin(queues.queue(), failures.append, InlineWorker())
    assert failures == [None]
    queues.close()
