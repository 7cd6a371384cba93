"""Background work goes on after errors, and an error of one queue is not another's."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig
from kestrelmq.errors import JournalError, KestrelError
from kestrelmq.format.records import Item, add_xid, item, item_data, save_xid, unremove
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.durability import GroupCommit, SyncRound
from kestrelmq.server.loop.background import kept_running
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


class Reader:
    """A reader that waits, and what it was told."""

    def __init__(
        self, queue: Queue, wanted: ReadMode = ReadMode.REMOVE, *, broken: bool = False
    ) -> None:
        self.told: list[object] = []
        self._broken = broken
        queue.waiters.add(Waiter(wanted, self.serve, self.told.append))

    def serve(self, record: Item | None, _xid: int) -> None:
        """Take note of an item."""
        self.told.append(None if record is None else item_data(record))
        if self._broken:
            raise ValueError("a bug of the reader's")


class Disk(LocalQueues):
    """Queues on a directory that can be made to fail."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.crashing = CrashingDirectory.within(path)
        super().__init__(queue_settings(self.crashing.path, **settings), self.crashing)

    def opened(self, name: str, count: int) -> list[int]:
        """Return the reads of so many items `0`, `1` and so on of a queue."""
        self.add(*(b"%d" % number for number in range(count)), name=name)
        return [self.open_read(name) for _ in range(count)]


def test_a_task_that_dies_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged each time."""

    async def run() -> None:
        begun: list[int] = []
        third = asyncio.Event()

        async def fail_twice() -> None:
            begun.append(1)
            if len(begun) == 3:
                third.set()
                await asyncio.get_running_loop().create_future()
            raise OSError("the disk is full")

        task = asyncio.create_task(kept_running(fail_twice, restart=0))
        await third.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_overdue_reads_that_cannot_be_written_are_given_back_later(tmp_path: Path) -> None:
    """They stay open while the disk is full, and end by themselves when it is not."""
    disk = Disk(tmp_path, open_transaction_timeout=5)
    xids = disk.opened("jobs", 2)
    queue = disk.queue()
    disk.crashing.break_steps("append")
    disk.clock.advance(6)
    disk.collection.check_deadlines()
    assert isinstance(disk.collection.commits.commit()[queue], JournalError)
    assert list(queue.reads.open) == xids
    disk.crashing.mend()
    disk.collection.check_deadlines()
    assert list(queue.reads.open) == xids, "it is not tried again at once"
    disk.clock.advance(1)
    disk.collection.check_deadlines()
    disk.commit()
    assert [item_data(record) for record in queue.backlog.browse(9)] == [b"0", b"1"]
    disk.close()


def test_reads_that_are_overdue_together_come_back_oldest_first(tmp_path: Path) -> None:
    """Whichever of them was to end first; readers that wait get them in that order."""
    disk = Disk(tmp_path)
    queue = disk.queue()
    for number in range(3):
        queue.add(b"%d" % number)
    for seconds in (3, 2, 1):
        assert open_read(queue, seconds) is not None
    readers = [Reader(queue) for _ in range(3)]
    disk.clock.advance(4)
    disk.collection.check_deadlines()
    assert [reader.told for reader in readers] == [[b"0"], [b"1"], [b"2"]]
    disk.close()


def test_many_reads_that_are_overdue_together(tmp_path: Path) -> None:
    """They come back in short pieces, and are in order at the end; those that were ended do not."""
    disk = Disk(tmp_path, open_transaction_timeout=5)
    xids = disk.opened("jobs", 3000)
    queue = disk.queue()
    disk.clock.advance(6)
    lengths: list[int] = []
    for _ in disk.collection.checking_deadlines():
        if not lengths:
            queue.reads.confirm(xids[0])  # whoever has a read may end it until it is given back
            queue.reads.extend(xids[1], 60)
        lengths.append(len(queue))
        disk.commit()
    assert lengths == sorted(set(lengths))
    assert len(lengths) > 4
    assert list(queue.reads.open) == [xids[1]]
    assert [int(item_data(record)) for record in queue.backlog.browse(4000)] == list(range(2, 3000))
    disk.restart()
    assert len(disk.queue()) == 2999
    disk.close()


def test_a_reader_passes_over_overdue_reads_that_have_ended(tmp_path: Path) -> None:
    """While many come back, youngest first, it gets the oldest that does."""
    disk = Disk(tmp_path, open_transaction_timeout=5)
    xids = disk.opened("jobs", 1500)
    queue = disk.queue()
    disk.clock.advance(6)
    next(disk.collection.checking_deadlines())
    assert 0 < len(queue) < 1500
    queue.reads.confirm(xids[0])
    queue.reads.extend(xids[1], 60)
    assert disk.take() == b"2"
    disk.collection.check_deadlines()
    assert [int(item_data(record)) for record in queue.backlog.browse(2000)] == list(range(3, 1500))
    disk.close()


def test_a_reader_does_not_wait_for_overdue_reads_that_have_all_ended(tmp_path: Path) -> None:
    """It gets what is the head already."""
    disk = Disk(tmp_path, open_transaction_timeout=5)
    xids, queue = disk.opened("jobs", 1500), disk.queue()
    disk.clock.advance(6)
    next(disk.collection.checking_deadlines())
    first = int(disk.items()[0])
    queue.reads.confirm_all(xids[:first])
    disk.commit()
    assert len(queue.reads.overdue) > 0
    assert [disk.take() for _ in range(2)] == [b"%d" % first, b"%d" % (first + 1)]
    assert not queue.returns.is_returning
    disk.close()


class Returning:
    """Reads that are given back one by one."""

    def __init__(self, queue: Queue, xids: list[int]) -> None:
        self._queue = queue
        self._xids = xids

    def oldest(self) -> int | None:
        """Return the oldest that was not given back."""
        return self._xids[0] if self._xids else None

    def give_back(self, xids: Sequence[int]) -> None:
        """Give some of them back."""
        self._queue.returns.give_back(xids)
        self._xids = [xid for xid in self._xids if xid not in xids]

    def give_back_some(self) -> bool:
        """Give back the youngest; return whether there are more."""
        self.give_back(self._xids[-1:])
        return bool(self._xids)


def test_to_stop_what_has_ended_stops_no_other(tmp_path: Path) -> None:
    """A client may go when its reads are back already, while those of another come back."""
    disk = Disk(tmp_path)
    xids, queue = disk.opened("jobs", 4), disk.queue()
    returned = Returning(queue, xids[2:]), Returning(queue, xids[:2])
    first, second = map(queue.returns.in_pieces, returned)
    next(first)
    next(second)  # the last read of the first one
    first.close()
    states = [queue.returns.is_returning]
    next(second)
    second.close()
    states.append(queue.returns.is_returning)
    assert states == [True, False]
    disk.commit()
    assert (disk.items(), list(queue.reads.open)) == ([b"1", b"2", b"3"], xids[:1])
    disk.close()


def test_the_last_read_that_ends_takes_all_deadlines_with_it(tmp_path: Path) -> None:
    """At the next upkeep, if not earlier; nothing is to be looked at later."""
    disk = Disk(tmp_path, open_transaction_timeout=3600)
    xids, queue = disk.opened("jobs", 9), disk.queue()
    queue.reads.confirm_all(xids)
    disk.commit()
    assert queue.next_deadline is not None
    disk.collection.tick()
    assert not queue.reads.has_deadlines
    disk.close()


def test_the_deadlines_of_ended_reads_are_forgotten(tmp_path: Path) -> None:
    """Few of them are kept, however many reads there were; none that counts is lost."""
    disk = Disk(tmp_path, open_transaction_timeout=3600)
    queue = disk.queue()
    kept = disk.opened("jobs", 100)
    for _ in range(5000):
        queue.add(b"x")
        read = open_read(queue)
        assert read is not None
        queue.reads.confirm(read[0])
        queue.reads.extend(kept[0], 60)
    disk.commit()
    reads = queue.reads
    assert len(reads._deadlines) < 10 * len(kept)
    disk.clock.advance(61)
    disk.collection.check_deadlines()
    assert list(queue.reads.open) == kept[1:]
    disk.clock.advance(3600)
    disk.collection.check_deadlines()
    assert not queue.reads.open
    assert not reads.has_deadlines
    disk.close()


def test_reads_that_ended_with_the_server_are_given_back_in_the_journal_too(
    tmp_path: Path,
) -> None:
    """Before long, though nobody uses the queue: other readers of the journal see its items."""
    disk = Disk(tmp_path)
    (xid,) = disk.opened("jobs", 1)
    disk.restart()
    journal = disk.crashing.path / "jobs"
    before = journal.read_bytes()
    disk.collection.tick()
    assert journal.read_bytes() == before + unremove(xid)
    disk.collection.tick()
    assert len(journal.read_bytes()) == disk.queue().journal.size
    assert disk.items() == [b"0"]
    disk.close()


def test_reads_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    """Also where records say the xid of a read, and an older one had a higher xid before."""
    records = [add_xid(11, item(1, 0, b"a")), add_xid(7, item(2, 0, b"b")), item(3, 0, b"c")]
    disk = Disk(tmp_path, journal_dialect="kestrel-2")
    (disk.crashing.path / "jobs").write_bytes(save_xid(11) + b"".join(records))
    disk.restart()
    for _ in range(3):
        disk.open_read()
    assert list(disk.queue().reads.open) == [12, 13, 14]
    disk.restart()
    assert disk.items() == [b"a", b"b", b"c"]
    disk.close()


def test_a_read_that_is_over_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """When its time would be up; one that was extended comes back later."""
    disk = Disk(tmp_path, open_transaction_timeout=5)
    done, extended = disk.opened("jobs", 2)
    queue = disk.queue()
    assert queue.reads.confirm(done)
    assert queue.reads.extend(extended, 9)
    assert not queue.reads.extend(done, 9)
    for seconds, expected in ((6, []), (4, [b"1"])):
        disk.clock.advance(seconds)
        disk.collection.check_deadlines()
        disk.commit()
        assert disk.items() == expected
    assert not disk.collection.commits.needs_timer
    assert caplog.messages == []
    disk.close()


def test_reads_that_are_over_take_no_memory_until_their_time_is_up(tmp_path: Path) -> None:
    """And those that are open still end in time."""
    disk = Disk(tmp_path)
    queue = disk.queue()
    disk.add(b"open")
    assert open_read(queue, 3600) is not None
    for _ in range(1000):
        queue.add(b"x")
        opened = open_read(queue, 7200)
        assert opened is not None
        queue.reads.confirm(opened[0])
        disk.commit()
    assert len(queue.reads._deadlines) < 100
    disk.clock.advance(3600)
    disk.collection.check_deadlines()
    disk.commit()
    assert disk.items() == [b"open"]
    disk.close()


def test_a_queue_that_fails_does_not_keep_others_from_their_upkeep(tmp_path: Path) -> None:
    """Overdue reads of the others come back, and the failure is reported by the commit."""
    disk = Disk(tmp_path, open_transaction_timeout=5)
    for name in ("a", "b", "c"):
        disk.opened(name, 1)
    steps = 0

    def second_fails(point: str) -> bool:
        nonlocal steps
        steps += point.startswith("append")
        return point.startswith("append") and steps == 2

    disk.crashing.fail = second_fails
    disk.clock.advance(6)
    disk.collection.check_deadlines()
    assert len(disk.collection.commits.commit()) == 1
    assert sorted(len(queue) for queue in disk.collection.queues.values()) == [0, 1, 1]
    disk.clock.advance(1)
    disk.collection.check_deadlines()
    disk.commit()
    assert [len(queue) for queue in disk.collection.queues.values()] == [1, 1, 1]
    disk.close()


def failing_queue(error: Exception) -> Queue:
    """Return a queue from which nothing that expired can be taken."""

    class FailingMover:
        """Moves nothing."""

        def __call__(self, *_: object, **__: object) -> bool:
            raise error

        def sync(self, *_: object, **__: object) -> JournalError | None:
            raise error

        def has_room(self, *_: object) -> bool:
            raise error

        def being_written(self, *_: object) -> list[Queue]:
            raise error

        def syncing(self, *_: object) -> SyncRound:
            raise error

    clock = FakeClock()
    config = QueueConfig(expire_to_queue="other")
    return Queue("jobs", config, clock, GroupCommit(), move_to=FailingMover())


def test_a_waiting_reader_is_told_that_it_cannot_be_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So is the next one; whoever added the item does not see the error."""
    queue = failing_queue(ValueError("a bug"))
    readers = [Reader(queue), Reader(queue, ReadMode.OPEN)]
    assert queue.add(b"x", 1)
    assert [str(told) for reader in readers for told in reader.told] == ["internal error"] * 2
    assert all(isinstance(told, KestrelError) for reader in readers for told in reader.told)
    assert "a bug" in caplog.text


def test_a_reader_that_cannot_be_told_of_an_error_hurts_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one is told that the items cannot be read."""
    disk = Disk(tmp_path, max_memory_size=1)
    disk.add(b"0", b"1")
    queue = disk.queue()
    assert disk.take() == b"0"
    (journal,) = disk.crashing.path.glob("jobs.*")
    journal.rename(tmp_path / "away")
    told: list[KestrelError] = []

    def broken(_error: KestrelError) -> None:
        raise ValueError("a bug of the reader's")

    queue.waiters.add(Waiter(ReadMode.REMOVE, _nobody, broken))
    queue.waiters.add(Waiter(ReadMode.REMOVE, _nobody, told.append))
    queue.add(b"2")
    assert [str(error).startswith("queue jobs cannot be read: ") for error in told] == [True]
    assert "a bug of the reader's" in caplog.text
    disk.close()


def _nobody(record: Item | None, _xid: int) -> None:
    raise AssertionError(record)


def test_a_reader_that_cannot_be_answered_hurts_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next one gets the next item."""
    queue = Queue("jobs", QueueConfig(), FakeClock(), GroupCommit())
    readers = [Reader(queue, broken=True), Reader(queue)]
    assert queue.add(b"0")
    assert queue.add(b"1")
    assert [reader.told for reader in readers] == [[b"0"], [b"1"]]
    assert "a bug of the reader's" in caplog.text
