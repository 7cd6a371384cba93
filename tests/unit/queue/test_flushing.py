"""A flush in short pieces: it drops all that waits when it begins, and nothing that comes later.

What could be read and what is delayed goes at once, and then what waits for its retry delay.
"""

from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest

from kestrelmq.disk.directories import Directory
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import item_data
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.worker import run_to_end
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled

MANY = 3000
RETRIES = 2000


class Spool(LocalQueues):
    """A queue with many items that wait to be tried again, and many delayed ones.

    All of these but the last are due in a second, and so are those.
    """

    def __init__(self, path: Path, directory: Directory | None = None, **settings: object) -> None:
        super().__init__(queue_settings(path, retry_delay=1, **settings), directory)
        self.add(*(b"old" for _ in range(RETRIES)))
        given_back(self.queue(), RETRIES)
        for number in range(MANY):
            self.delay(b"old %d" % number, 1 if number < MANY - 1 else 1000)
        self.commit()

    def delay(self, data: bytes, seconds: float) -> None:
        """Add an item that is due so many seconds from now; without a commit."""
        assert self.queue().add(data, due=self.clock.now() + round(seconds * 1000))

    def begin(self, pieces: int = 1) -> Generator[None, None, int]:
        """Begin a flush; return the rest of it."""
        flush = self.queue().flushing()
        for _ in range(pieces):
            next(flush)
        return flush

    def join_all(self) -> list[bytes]:
        """Let all items join that are due in three seconds; return those that wait then."""
        self.advance(3)
        for _ in range(MANY // 100):
            self.advance(0.001)
        return self.items()


def given_back(queue: Queue, count: int) -> None:
    """Read so many items, and give them back."""
    for _ in range(count):
        opened = open_read(queue)
        assert opened is not None
        queue.returns.give_back([opened[0]])


def test_each_piece_is_short(tmp_path: Path) -> None:
    """Others are served in between; the delayed items take one note, however many they are."""
    spool = Spool(tmp_path)
    flush = spool.begin()
    left = [spool.queue().delayed]
    while next(flush, True) is None:
        left.append(spool.queue().delayed)
    assert max(before - after for before, after in pairwise(left)) <= 500
    assert spool.queue().delayed == 0
    spool.close()


def test_what_comes_meanwhile_stays(tmp_path: Path) -> None:
    """Added, delayed or given back: it comes after the flush."""
    spool = Spool(tmp_path)
    spool.add(b"open", b"old")
    xid = spool.open_read()
    flush = spool.begin()
    assert spool.items() == []
    spool.add(b"new")
    spool.delay(b"later", 2)
    spool.delay(b"at once", 0)
    spool.queue().returns.give_back([xid])
    spool.commit()
    assert run_to_end(flush) == MANY + RETRIES + 1
    assert spool.join_all() == [b"open", b"new", b"at once", b"later"]
    spool.kill()
    assert spool.join_all() == [b"open", b"new", b"at once", b"later"]
    spool.close()


def test_what_is_due_meanwhile_does_not_come(tmp_path: Path) -> None:
    """It was there when the flush began, and is dropped with the others."""
    spool = Spool(tmp_path)
    flush = spool.begin(2)
    assert spool.join_all() == []
    assert run_to_end(flush) == MANY + RETRIES
    assert spool.join_all() == []
    assert spool.queue().delayed == 0
    spool.kill()
    assert (spool.join_all(), spool.queue().delayed) == ([], 0)
    spool.close()


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_kill_in_the_middle(tmp_path: Path, pieces: int) -> None:
    """What came meanwhile is there, and perhaps some of the old, since nobody was told."""
    spool = Spool(tmp_path)
    spool.begin(pieces)
    spool.add(b"new")
    spool.delay(b"later", 2)
    spool.commit()
    spool.kill()
    found = spool.join_all()
    assert [data for data in found if not data.startswith(b"old")] == [b"new", b"later"]
    assert len(found) - 2 < MANY
    left = len(found) + spool.queue().delayed
    assert spool.queue().flush() == left
    assert spool.join_all() == []
    spool.close()


def test_a_flush_that_cannot_be_written(tmp_path: Path) -> None:
    """All is there as before, and what was added meanwhile."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(disk.path, disk)
    spool.delay(b"later", 2)
    spool.commit()
    disk.break_steps("append to jobs")
    with pytest.raises(JournalError):
        spool.queue().flush()
    spool.collection.commits.commit()
    assert spool.queue().delayed == MANY + RETRIES + 1
    disk.mend()
    spool.advance(1)
    found = spool.join_all()
    assert len(found) == MANY + RETRIES
    assert found[-1] == b"later"
    spool.close()


def test_one_flush_waits_for_the_other(tmp_path: Path) -> None:
    """It is over only when both have dropped what there was."""
    spool = Spool(tmp_path)
    first = spool.begin()
    spool.delay(b"between", 1)
    second = spool.begin(3)
    assert spool.queue().delayed > 1
    assert run_to_end(first) == MANY + RETRIES
    assert spool.queue().delayed == 1
    assert run_to_end(second) == 1
    assert spool.join_all() == []
    spool.close()


def test_a_flush_that_is_given_up(tmp_path: Path) -> None:
    """The next one need not wait for it."""
    spool = Spool(tmp_path)
    spool.begin().close()
    assert 0 < spool.queue().flush() < RETRIES
    assert spool.join_all() == []
    spool.close()


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_queue_that_is_deleted_meanwhile(tmp_path: Path, pieces: int) -> None:
    """Whoever asked for the flush is told; the flush of all queues goes on."""
    spool = Spool(tmp_path)
    spool.add(b"x", name="other")
    one, every = spool.begin(pieces), spool.collection.flushing()
    next(every)
    assert spool.collection.delete("jobs")
    with pytest.raises(QueueUnavailable, match="closed"):
        run_to_end(one)
    assert [queue.name for changed in every for queue in changed] == ["other"]
    assert spool.items("other") == []
    spool.close()


def test_retries_whose_time_is_up_meanwhile(tmp_path: Path) -> None:
    """They do not come back; those that are given back meanwhile do."""
    spool = LocalQueues(queue_settings(tmp_path, retry_delay=1, retry_backoff=1))
    spool.add(*(b"old %d" % number for number in range(2000)))
    queue = spool.queue()
    given_back(queue, 2000)
    spool.add(b"new")
    xid = spool.open_read()
    flush = queue.flushing()
    next(flush)
    queue.returns.give_back([xid])
    spool.commit()
    for _ in range(10):
        spool.advance(1)
    assert spool.items() == [b"new"]
    assert run_to_end(flush) == 2000
    assert (spool.items(), queue.delayed) == ([b"new"], 0)
    spool.kill()
    assert spool.items() == [b"new"]
    spool.close()


def test_retries_that_cannot_be_written(tmp_path: Path) -> None:
    """They come back when their time is up, as if nothing had been asked for."""
    disk = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(disk.path, retry_delay=10), disk)
    spool.add(*(b"%d" % number for number in range(1200)))
    given_back(spool.queue(), 1200)
    spool.commit()
    flush = spool.queue().flushing()
    next(flush)
    disk.break_steps("append to jobs")
    with pytest.raises(JournalError):
        run_to_end(flush)
    spool.collection.commits.commit()
    disk.mend()
    assert spool.queue().delayed == 700
    for _ in range(4):
        spool.advance(10)
    assert sorted(map(int, spool.items())) == list(range(500, 1200))
    spool.close()


def test_retries_of_a_long_queue_have_no_place_any_more(tmp_path: Path) -> None:
    """A pack of the files before would otherwise take them for open reads."""
    spool = LocalQueues(
        queue_settings(
            tmp_path,
            max_memory_size=300,
            default_journal_size=1000,
            retry_delay=10,
            retry_backoff=1,
        )
    )
    spool.add(*(b"%02d" % number + bytes(50) for number in range(20)))
    queue = spool.queue()
    spool.add(*(b"%02d" % number + bytes(50) for number in range(20, 40)))
    given_back(queue, 5)
    spool.commit()
    assert queue.changes.places is not None
    assert len(queue.changes.places.opened) == 5
    assert queue.flush() == 40
    assert len(queue.changes.places.opened) == 0
    spool.kill()
    spool.advance(10)
    assert spool.items() == []
    spool.close()


def test_a_flush_is_synced(tmp_path: Path) -> None:
    """If the settings ask for that, before the answer."""
    spool = Spool(tmp_path, sync_journal=0)
    spool.add(b"x")
    syncs = spool.collection.commits.syncs
    syncs.take_unsynced()
    run_to_end(spool.queue().flushing())
    assert syncs.take_unsynced() == {spool.queue()}
    spool.close()


def test_the_memory_of_a_deleted_queue_is_freed_by_the_worker(tmp_path: Path) -> None:
    """Nobody waits until a million open reads, reservations and delayed items are gone."""
    freed: list[object] = []
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(MANY)))
    queue = spool.queue()
    first = open_read(queue, 60)
    for _ in range(MANY - 1):
        open_read(queue, 60)
    spool.commit()
    assert first is not None
    assert item_data(queue.reads.open[first[0]].item) == b"0"
    worker = spool.collection.commits.worker
    worker.free = freed.extend  # type: ignore[method-assign, assignment]
    assert spool.collection.delete("jobs")
    pages = [one for one in freed if isinstance(one, dict)]
    assert sum(map(len, pages)) >= MANY  # the open reads
    assert sum(isinstance(one, tuple) for one in freed) >= MANY  # the delayed items
    spool.close()
