"""Items whose `expire_to_queue` cannot take them: not lost, in nobody's way, and tried again."""

import logging
from pathlib import Path

import pytest

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Waiter, Wanted
from kestrelmq.engine.worker import at_once
from kestrelmq.journal.records import item_data
from kestrelmq.testing.clock import FakeClock

pytestmark = pytest.mark.compiled

LATER = "later"


class Spool:
    """A queue `jobs` whose items expire to another queue."""

    def __init__(self, path: Path, **target: object) -> None:
        self.path = path
        self.clock = FakeClock()
        self.target = target
        self.come_up()

    def come_up(self, **more: object) -> None:
        """Load the queue path with these settings for the target."""
        self.collection = QueueCollection(self.settings(**more), self.clock)
        self.collection.open()

    def settings(self, **more: object) -> ServerConfig:
        """Return the settings, with others for the target."""
        target = QueueConfig.model_validate(self.target | more)
        jobs = QueueConfig(expire_to_queue=LATER, max_memory_size=100)
        other = QueueConfig(expire_to_queue="both")
        return ServerConfig(
            queue_path=self.path,
            queues={"jobs": jobs, LATER: target, "other": other},
            aliases={"both": AliasConfig(destination_queues=("free", LATER))},
        )

    def queue(self, name: str = "jobs") -> Queue:
        """Return a queue."""
        return self.collection.obtain(name)

    def commit(self) -> None:
        """Commit, which must succeed."""
        assert not self.collection.commits.commit()

    def add(self, *items: bytes, expires: float = 1, name: str = "jobs") -> None:
        """Add items that expire in so many seconds; 0 is never."""
        for data in items:
            due = self.clock.now() + int(expires * 1000) if expires else 0
            assert self.queue(name).add(data, due)
        self.commit()

    def pass_time(self) -> None:
        """Let a second pass and the sweep come."""
        self.clock.advance(1)
        self.collection.sweep()
        self.commit()

    def drain(self, name: str) -> list[bytes]:
        """Take all items of a queue."""
        found = []
        while (record := self.queue(name).remove()) is not None:
            found.append(item_data(record))
        self.commit()
        return found


def fill_target(spool: Spool) -> None:
    """Let the target be full."""
    spool.add(b"full", expires=0, name=LATER)


def test_a_full_target_gets_them_when_it_has_room(tmp_path: Path) -> None:
    """Meanwhile readers get what is behind them, and statistics tell."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(b"a", b"b")
    spool.add(b"live", expires=0)
    spool.pass_time()
    queue = spool.queue()
    assert (len(queue), queue.set_aside, queue.expired_items, queue.age) == (1, 2, 0, 0)
    assert spool.drain("jobs") == [b"live"]
    assert spool.drain(LATER) == [b"full"]
    spool.pass_time()
    assert spool.drain(LATER) == [b"a"]
    spool.pass_time()
    assert spool.drain(LATER) == [b"b"]
    assert (queue.set_aside, queue.expired_items, len(queue.open)) == (0, 2, 0)
    spool.collection.close()


def test_they_survive_a_restart(tmp_path: Path) -> None:
    """They are in the journal of their own queue until they are in the other one."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(b"a", b"b")
    spool.pass_time()
    spool.collection.close()
    spool.come_up(max_items=10)
    assert len(spool.queue()) == 2
    spool.pass_time()
    assert spool.drain(LATER) == [b"full", b"a", b"b"]
    spool.collection.close()


def test_a_damaged_target_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Adds, reads, waiting readers and `flush_all_expired` work; the log tells, once."""
    (tmp_path / LATER).write_bytes(b"\xff\xff\xff\xff")
    spool = Spool(tmp_path)
    assert LATER in spool.collection.damaged
    queue = spool.queue()
    told: list[bytes | None] = []
    with caplog.at_level(logging.WARNING):
        queue.wait(Waiter(Wanted.REMOVE, lambda record, _: told.append(record), _unexpected))
        for number in range(3):
            assert queue.add(b"%d" % number, 1)
        assert told == []
        spool.add(b"live", expires=0)
        assert [record and item_data(record) for record in told] == [b"live"]
        spool.add(b"other", expires=1, name="another")
        spool.clock.advance(2)
        assert at_once(spool.collection.expiring()) == 1
    spool.commit()
    assert queue.set_aside == 3
    lines = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(lines) == 1
    assert "cannot be loaded" in lines[0]
    spool.collection.close()


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_an_alias_takes_all_or_nothing(tmp_path: Path) -> None:
    """While one of its queues is full, the others do not get the item again and again."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(b"a", name="other")
    for _ in range(3):
        spool.pass_time()
    assert spool.queue("other").set_aside == 1
    assert spool.drain("free") == []
    spool.drain(LATER)
    spool.pass_time()
    assert (spool.drain("free"), spool.drain(LATER)) == ([b"a"], [b"a"])
    spool.collection.close()


def test_without_a_target_any_more_they_are_dropped(tmp_path: Path) -> None:
    """As everything that expires then."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(b"a")
    spool.pass_time()
    spool.collection.reload(ServerConfig(queue_path=tmp_path))
    spool.pass_time()
    assert (spool.queue().set_aside, spool.queue().expired_items) == (0, 1)
    spool.collection.close()


def test_nobody_can_give_them_back(tmp_path: Path) -> None:
    """They are no reader's, though the journal holds them open."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(b"a")
    spool.pass_time()
    queue = spool.queue()
    assert queue.give_back(list(queue.open)) == 0
    assert queue.set_aside == len(queue.open) == 1
    spool.collection.close()


def test_one_that_never_fits_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Items larger than the target takes have their turn after the others."""
    spool = Spool(tmp_path, max_item_size=1)
    spool.add(*(b"large" for _ in range(100)))
    spool.add(b"1", b"2")
    for _ in range(10):
        spool.pass_time()
    assert spool.drain(LATER) == [b"1", b"2"]
    assert spool.queue().set_aside == 100
    spool.collection.close()


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    """Beyond that they stay in the queue, whose memory is bounded, and are not delivered."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(*(b"x" * 300_000 for _ in range(8)))
    spool.add(b"live", expires=0)
    spool.pass_time()
    queue = spool.queue()
    assert (queue.set_aside, len(queue)) == (3, 6)
    assert queue.remove() is None
    assert queue.peek() is None
    spool.collection.reload(spool.settings(max_items=100))
    spool.pass_time()
    assert spool.drain("jobs") == [b"live"]
    assert len(spool.drain(LATER)) == 9
    spool.collection.close()


def test_setting_aside_that_is_not_written_is_taken_back(tmp_path: Path) -> None:
    """The item is at the head again."""
    spool = Spool(tmp_path, max_items=1)
    fill_target(spool)
    spool.add(b"a")
    queue = spool.queue()
    spool.clock.advance(1)
    queue.expire()
    assert queue.set_aside == 1
    queue.journal.close()
    assert queue in spool.collection.commits.commit()
    assert (queue.set_aside, len(queue), len(queue.open)) == (0, 1, 0)
    spool.collection.close()
