"""Items whose `expire_to_queue` cannot take them: not lost, in nobody's way, and tried again."""

import logging
from pathlib import Path

import pytest

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import Item, item_data, item_deliveries
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.worker import run_to_end
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled

LATER = "later"


class Spool(LocalQueues):
    """A queue `jobs` whose items expire to another queue."""

    def __init__(self, path: Path, **target: object) -> None:
        self.path = path
        super().__init__(self.settings(**target))

    def settings(self, **target: object) -> ServerConfig:
        """Return the settings, with these of the target."""
        jobs = QueueConfig(expire_to_queue=LATER, max_memory_size=100)
        other = QueueConfig(expire_to_queue="both")
        return ServerConfig(
            queue_path=self.path,
            queues={"jobs": jobs, LATER: QueueConfig.model_validate(target), "other": other},
            aliases={"both": AliasConfig(destination_queues=("free", LATER))},
        )

    def put(self, *items: bytes, name: str = "jobs") -> None:
        """Add items that expire in a second."""
        self.add(*items, name=name, expiry=self.clock.now() + 1000)

    def pass_time(self) -> None:
        """Let a second pass and the sweep come."""
        self.clock.advance(1)
        self.collection.sweep()
        self.commit()


def fill_target(spool: Spool) -> None:
    """Let the target be full."""
    spool.add(b"full", name=LATER)


def test_a_flush_leaves_them(tmp_path: Path) -> None:
    """They have left the queue, and only wait for their target."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a", b"b")
    spool.pass_time()
    spool.add(b"c", name="jobs")
    assert spool.collection.flush("jobs") == 1
    assert spool.collection.queues["jobs"].reads.items_aside == 2
    assert spool.collection.flush(LATER) == 1
    spool.pass_time()
    assert spool.collection.queues[LATER].line.peek() is not None


def test_a_full_target_gets_them_when_it_has_room(tmp_path: Path) -> None:
    """Meanwhile readers get what is behind them, and statistics tell."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a", b"b")
    spool.add(b"live")
    spool.pass_time()
    queue = spool.queue()
    assert (len(queue), queue.reads.items_aside, queue.counts.expired_items, queue.age) == (
        1,
        2,
        0,
        0,
    )
    assert spool.drain("jobs") == [b"live"]
    assert spool.drain(LATER) == [b"full"]
    spool.pass_time()
    assert spool.drain(LATER) == [b"a"]
    spool.pass_time()
    assert spool.drain(LATER) == [b"b"]
    assert (queue.reads.items_aside, queue.counts.expired_items, len(queue.reads.open)) == (0, 2, 0)
    spool.close()


def test_they_survive_a_restart(tmp_path: Path) -> None:
    """They are in the journal of their own queue until they are in the other one."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a", b"b")
    spool.pass_time()
    spool.config = spool.settings(max_items=10)
    spool.restart()
    assert len(spool.queue()) == 2
    spool.pass_time()
    assert spool.drain(LATER) == [b"full", b"a", b"b"]
    spool.close()


def test_a_damaged_target_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Adds, reads, waiting readers and `flush_all_expired` work; the log tells, once."""
    (tmp_path / LATER).write_bytes(b"\xff\xff\xff\xff")
    spool = Spool(tmp_path)
    assert LATER in spool.collection.damaged
    queue = spool.queue()
    told: list[Item | None] = []
    with caplog.at_level(logging.WARNING):
        queue.waiters.add(
            Waiter(ReadMode.REMOVE, lambda record, _: told.append(record), _unexpected)
        )
        for number in range(3):
            assert queue.add(b"%d" % number, 1)
        assert told == []
        spool.add(b"live")
        assert [record and item_data(record) for record in told] == [b"live"]
        spool.put(b"other", name="another")
        spool.clock.advance(2)
        assert run_to_end(spool.collection.expiring()) == 1
    spool.commit()
    assert queue.reads.items_aside == 3
    lines = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(lines) == 1
    assert "cannot be loaded" in lines[0]
    assert lines[0].endswith("; they are set aside, and tried again with every sweep")
    spool.close()


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_an_alias_takes_all_or_nothing(tmp_path: Path) -> None:
    """While one of its queues is full, the others do not get the item again and again."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a", name="other")
    for _ in range(3):
        spool.pass_time()
    assert spool.queue("other").reads.items_aside == 1
    assert spool.drain("free") == []
    spool.drain(LATER)
    spool.pass_time()
    assert (spool.drain("free"), spool.drain(LATER)) == ([b"a"], [b"a"])
    spool.close()


def test_without_a_target_any_more_they_are_dropped(tmp_path: Path) -> None:
    """As everything that expires then."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a")
    spool.pass_time()
    spool.collection.reload(ServerConfig(queue_path=tmp_path))
    spool.pass_time()
    assert (spool.queue().reads.items_aside, spool.queue().counts.expired_items) == (0, 1)
    spool.close()


def test_nobody_can_give_them_back(tmp_path: Path) -> None:
    """They are no reader's, though the journal holds them open."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a")
    spool.pass_time()
    queue = spool.queue()
    assert queue.returns.give_back(list(queue.reads.open)) == 0
    assert queue.reads.items_aside == len(queue.reads.open) == 1
    spool.close()


def test_one_that_never_fits_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Items larger than the target takes have their turn after the others."""
    spool = Spool(tmp_path, max_item_size=1)
    spool.put(*(b"large" for _ in range(100)))
    spool.put(b"1", b"2")
    for _ in range(10):
        spool.pass_time()
    assert spool.drain(LATER) == [b"1", b"2"]
    assert spool.queue().reads.items_aside == 100
    spool.close()


def test_a_restart_counts_no_delivery(tmp_path: Path) -> None:
    """Nobody got what was set aside."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a", b"b")
    spool.pass_time()
    assert spool.queue().reads.items_aside == 2
    spool.kill()
    assert [item_deliveries(record) for record in spool.queue().backlog.browse(9)] == [0, 0]
    spool.close()


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    """Beyond that they stay in the queue, whose memory is bounded, and are not delivered."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(*(b"x" * 300_000 for _ in range(8)))
    spool.add(b"live")
    spool.pass_time()
    queue = spool.queue()
    assert (queue.reads.items_aside, len(queue)) == (3, 6)
    assert queue.line.remove() is None
    assert queue.line.peek() is None
    spool.collection.reload(spool.settings(max_items=100))
    spool.pass_time()
    assert spool.drain("jobs") == [b"live"]
    assert len(spool.drain(LATER)) == 9
    spool.close()


def test_setting_aside_that_is_not_written_is_taken_back(tmp_path: Path) -> None:
    """The item is at the head again."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a")
    queue = spool.queue()
    spool.clock.advance(1)
    run_to_end(queue.line.expiring())
    assert queue.reads.items_aside == 1
    queue.journal.close()
    assert queue in spool.collection.commits.commit()
    assert (queue.reads.items_aside, len(queue), len(queue.reads.open)) == (0, 1, 0)
    spool.close()


def test_a_reader_may_confirm_one_whose_xid_it_guessed(tmp_path: Path) -> None:
    """Then it is gone, and the target does not get it."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.put(b"a", b"b")
    spool.pass_time()
    queue = spool.queue()
    first, second = queue.reads.open
    assert not queue.reads.is_held(first)
    assert queue.reads.confirm(first)
    spool.drain(LATER)
    spool.pass_time()
    assert queue.reads.items_aside == 0
    assert second not in queue.reads.open
    assert spool.drain(LATER) == [b"b"]
    spool.close()


def test_a_sweep_waits_for_no_sync(tmp_path: Path) -> None:
    """Many items may expire at once, and the others of the server are to be served."""
    spool = LocalQueues(
        ServerConfig(
            queue_path=tmp_path,
            default=QueueConfig.model_validate({"sync_journal": "1s"}),
            queues={"jobs": QueueConfig.model_validate({"expire_to_queue": LATER})},
        )
    )
    for number in range(20):
        spool.add(b"%d" % number, expiry=spool.clock.now() + 1000)
    spool.add(b"first", name=LATER)
    journal = spool.queue(LATER).journal
    before = journal.syncs
    spool.clock.advance(1)
    spool.collection.sweep()
    spool.commit()
    assert len(spool.queue(LATER)) == 21
    assert journal.syncs == before
    spool.close()


def test_many_are_synced_at_once_where_each_change_is(tmp_path: Path) -> None:
    """Before they leave; if that fails they stay, set aside."""
    disk = CrashingDirectory.within(tmp_path)
    jobs = QueueConfig(expire_to_queue=LATER, sync_journal=0)
    spool = LocalQueues(ServerConfig(queue_path=disk.path, queues={"jobs": jobs}), disk)
    queue, journal = spool.queue(), spool.queue(LATER).journal
    spool.add(*[b"old"] * 20, expiry=spool.clock.now() + 1000)
    spool.clock.advance(1)
    assert (spool.take(), queue.counts.expired_items, queue.reads.items_aside) == (None, 20, 0)
    assert (spool.items(LATER), journal.syncs) == ([b"old"] * 20, 1)
    spool.add(b"kept", expiry=spool.clock.now() + 1000)
    disk.fail = lambda point: point.startswith("sync") and LATER in point
    spool.clock.advance(1)
    spool.collection.sweep()
    assert (queue.counts.expired_items, queue.reads.items_aside, len(queue.reads.open)) == (
        20,
        1,
        1,
    )
    disk.mend()
    spool.close()


def test_one_that_could_not_be_forgotten_is_not_moved_again_and_again(tmp_path: Path) -> None:
    """It is in the target once; and once more when the disk works, for nobody knows better."""
    disk = CrashingDirectory.within(tmp_path)
    config = ServerConfig(queue_path=disk.path, queues={"jobs": QueueConfig(expire_to_queue=LATER)})
    spool = LocalQueues(config, disk)
    queue = spool.queue()
    spool.add(b"a", expiry=spool.clock.now() + 1000)
    disk.fail = lambda point: point == "append to jobs"
    spool.clock.advance(1)
    for _ in range(3):
        spool.collection.sweep()
        spool.collection.commits.commit()
    assert spool.items(LATER) == [b"a"]
    assert len(queue) == 1
    disk.mend()
    spool.collection.tick()
    spool.collection.sweep()
    spool.commit()
    assert spool.items(LATER) == [b"a", b"a"]
    assert (len(queue), queue.reads.items_aside) == (0, 0)
    spool.close()


def test_one_that_was_set_aside_stays_so_while_the_disk_is_full(tmp_path: Path) -> None:
    """Its read is open as before, and is ended when that can be written."""
    disk = CrashingDirectory.within(tmp_path)
    queues = {
        "jobs": QueueConfig(expire_to_queue=LATER),
        LATER: QueueConfig(max_items=1),
    }
    spool = LocalQueues(ServerConfig(queue_path=disk.path, queues=queues), disk)
    spool.add(b"full", name=LATER)
    spool.add(b"a", expiry=spool.clock.now() + 1000)
    spool.clock.advance(1)
    spool.collection.sweep()
    spool.commit()
    queue = spool.queue()
    assert spool.drain(LATER) == [b"full"]
    disk.fail = lambda point: point == "append to jobs"
    spool.collection.sweep()
    assert list(spool.collection.commits.commit()) == [queue]
    assert (queue.reads.items_aside, len(queue.reads.open), queue.counts.expired_items) == (1, 1, 0)
    disk.mend()
    assert spool.drain(LATER) == [b"a"]
    spool.collection.tick()
    spool.collection.sweep()
    spool.commit()
    assert (queue.reads.items_aside, len(queue.reads.open), queue.counts.expired_items) == (0, 0, 1)
    spool.close()


def test_an_alias_takes_none_that_is_too_large_for_one_of_its_queues(tmp_path: Path) -> None:
    """It would be in the others again and again."""
    spool = Spool(tmp_path, max_item_size=1)
    spool.put(b"large", b"1", name="other")
    for _ in range(3):
        spool.pass_time()
    assert (spool.drain("free"), spool.drain(LATER)) == ([b"1"], [b"1"])
    assert spool.queue("other").reads.items_aside == 1
    spool.close()


def test_items_may_expire_to_the_queue_that_they_are_in(tmp_path: Path) -> None:
    """They go to its end, and stay there."""
    config = queue_settings(tmp_path, expire_to_queue="jobs")
    spool = LocalQueues(config)
    spool.add(b"old", b"older", expiry=spool.clock.now() + 1000)
    spool.add(b"live")
    spool.clock.advance(1)
    spool.collection.sweep()
    spool.commit()
    assert (spool.items(), spool.queue().counts.expired_items) == ([b"live", b"old", b"older"], 2)
    spool.close()


def test_a_sweep_takes_no_more_than_it_may(tmp_path: Path) -> None:
    """The others have to wait for the next one, unless somebody reads."""
    spool = LocalQueues(queue_settings(tmp_path, max_expire_sweep=2))
    spool.add(*[b"old"] * 7, expiry=spool.clock.now() + 1000)
    spool.clock.advance(1)
    left = []
    for _ in range(2):
        spool.collection.sweep()
        spool.commit()
        left.append(len(spool.queue()))
    assert left == [5, 3]
    assert spool.take() is None
    assert spool.queue().counts.expired_items == 7
    spool.close()


def test_a_sweep_moves_no_more_of_what_is_set_aside_than_it_may(tmp_path: Path) -> None:
    """Although there is room for all of it."""

    def settings(room: int) -> ServerConfig:
        jobs = QueueConfig(expire_to_queue=LATER, max_expire_sweep=2)
        return ServerConfig(
            queue_path=tmp_path, queues={"jobs": jobs, LATER: QueueConfig(max_items=room)}
        )

    spool = LocalQueues(settings(1))
    spool.add(b"full", name=LATER)
    spool.add(*[b"old"] * 6, expiry=spool.clock.now() + 1000)
    spool.clock.advance(1)
    aside = []
    for room in (1, 1, 1, 9, 9):
        spool.reload(settings(room))
        spool.collection.sweep()
        spool.commit()
        aside.append(spool.queue().reads.items_aside)
    assert aside == [2, 4, 6, 4, 2]
    spool.close()


def waiting_at(*queues: Queue) -> list[object]:
    """Let a reader wait at all queues for one item; it, or an error, will be in the list."""
    served: list[object] = []

    def found(record: Item | None, _xid: int) -> None:
        served.append(record)
        for one, waiter in waiting.items():
            one.waiters.cancel(waiter)

    waiting = {one: Waiter(ReadMode.PEEK, found, served.append) for one in queues}
    for one, waiter in waiting.items():
        one.waiters.add(waiter)
    return served


def test_a_reader_that_was_served_elsewhere_does_not_wait_any_more(tmp_path: Path) -> None:
    """It waits for two queues; looking for the head of one moves an item to the other."""
    spool = Spool(tmp_path)
    queue, target = spool.queue(), spool.queue(LATER)
    served = waiting_at(queue, target)
    assert queue.add(b"expired", spool.clock.now())
    assert (len(served), len(target)) == (1, 1)
    assert (queue.waiters.readers, target.waiters.readers) == (0, 0)
    spool.close()


def test_who_was_served_elsewhere_is_not_told_of_an_error(tmp_path: Path) -> None:
    """The item behind the one that went to the other queue cannot be read."""
    spool = Spool(tmp_path)
    spool.collection.pause("jobs", Paused.READS)
    queue, target = spool.queue(), spool.queue(LATER)
    spool.put(bytes(100))
    spool.add(b"unreadable")
    assert queue.backlog.memory_items == 1
    served = waiting_at(queue, target)
    behind: list[object] = []
    queue.waiters.add(Waiter(ReadMode.PEEK, lambda *_: None, behind.append))
    spool.clock.advance(1)
    (tmp_path / "jobs").rename(tmp_path / "~~jobs")
    spool.collection.resume("jobs", Paused.READS)
    assert [type(one) for one in served] == [bytes]
    assert [type(one) for one in behind] == [QueueUnavailable]
    assert (queue.waiters.readers, target.waiters.readers) == (0, 0)
    (tmp_path / "~~jobs").rename(tmp_path / "jobs")
    spool.commit()
    assert spool.drain() == [b"unreadable"]
    spool.close()
