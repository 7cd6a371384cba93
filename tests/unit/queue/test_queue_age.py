"""What time does to a queue: its age, and when it is looked at again."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.queue.paused import Paused
from kestrelmq.queues.collection import QueueCollection
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize("read", ["remove", "open", "open and confirm", "confirm another"])
def test_age_is_of_the_last_item_that_was_read(tmp_path: Path, read: str) -> None:
    """However it was read; to finish an earlier read changes nothing."""
    clock = FakeClock()
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), clock)
    collection.open()
    queue = collection.obtain("jobs")
    for _ in range(3):
        queue.add(b"x")
        clock.advance(1)
    assert not collection.commits.commit()
    assert queue.age == 0
    if read == "remove":
        queue.line.remove()
    else:
        opened = open_read(queue)
        assert opened is not None
        if read == "confirm another":
            assert not collection.commits.commit()
            clock.advance(1)
        if read != "open":
            queue.reads.confirm(opened[0])
    assert not collection.commits.commit()
    assert queue.age == 3000
    collection.close()


def test_age_is_that_of_a_fetch_only(tmp_path: Path) -> None:
    """Items that expire, are dropped from a full queue or are given back change nothing."""
    clock = FakeClock()
    config = QueueConfig(max_items=2, discard_old_when_full=True)
    collection = QueueCollection(ServerConfig(queue_path=tmp_path, default=config), clock)
    collection.open()
    queue = collection.obtain("jobs")
    queue.add(b"expires", clock.now() + 1000)
    queue.add(b"x")
    clock.advance(5)
    collection.sweep()
    for _ in range(3):
        queue.add(b"y")
    assert not collection.commits.commit()
    assert (queue.counts.expired_items, queue.adding.discarded, queue.age) == (1, 2, 0)
    clock.advance(2)
    opened = open_read(queue)
    assert opened is not None
    queue.returns.give_back([opened[0]])
    queue.add(b"z")
    assert not collection.commits.commit()
    assert queue.age == 2000
    collection.close()


@pytest.mark.parametrize("by_reading", [True, False])
def test_nothing_is_looked_for_in_time_once_all_has_expired(
    tmp_path: Path, *, by_reading: bool
) -> None:
    """A queue whose last expiring item is gone is on the fast path again."""
    clock = FakeClock()
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), clock)
    collection.open()
    queue = collection.obtain("jobs")
    for _ in range(3):
        queue.add(b"x", clock.now() + 1000)
    assert not collection.commits.commit()
    has_work = [queue.has_background_work]
    clock.advance(2)
    if by_reading:
        assert queue.line.remove() is None
    else:
        collection.sweep()
    assert not collection.commits.commit()
    assert queue.counts.expired_items == 3
    collection.sweep()
    has_work.append(queue.has_background_work)
    assert has_work == [True, False]
    collection.close()


@pytest.mark.parametrize("delay", [0, 2000])
def test_an_old_queue_stays_while_a_producer_may_repeat_its_put(tmp_path: Path, delay: int) -> None:
    """Also when its item was delayed, or the server restarts; then it is deleted."""
    queues = LocalQueues(queue_settings(tmp_path, max_queue_age=5, producer_ttl=60))
    mark, due = PutMark(b"p", 1), queues.clock.now() + delay if delay else 0
    assert queues.collection.add("jobs", b"x", due=due, mark=mark)
    queues.advance(3)
    assert queues.drain() == [b"x"]
    for _ in range(2):
        queues.advance(10)
        queues.collection.sweep()
        assert queues.collection.add("jobs", b"x", mark=mark)
        queues.commit()
        assert queues.items() == []
        queues.restart()
    queues.advance(60)
    queues.collection.tick()
    queues.collection.sweep()
    assert queues.collection.queues == {}
    queues.close()


def test_an_old_queue_stays_while_a_tag_is_done(tmp_path: Path) -> None:
    """Its reader may ask again whether it has finished it; when it is retired, the queue goes."""
    queues = LocalQueues(queue_settings(tmp_path, max_queue_age=5))
    queues.add(b"x")
    assert queues.queue().reserved.reserve(ReserveTerms(60_000, tag="sink:1:0"), 7, 1, 1000)
    assert queues.queue().reserved.finish("sink:1:0") == 1
    queues.commit()
    for _ in range(2):
        queues.advance(10)
        queues.collection.sweep()
        assert queues.queue().reserved.finish("sink:1:0") == 1
        queues.restart()
    assert queues.queue().reserved.retire("sink", 1) == 1
    queues.commit()
    queues.collection.sweep()
    assert queues.collection.queues == {}
    queues.close()


def test_a_peek_shows_the_oldest_of_many_overdue_reads(tmp_path: Path) -> None:
    """Which stays open; unless it has expired, or reads are paused."""
    spool = LocalQueues(queue_settings(tmp_path))
    queue, clock = spool.queue(), spool.clock
    spool.add(b"oldest", expiry=clock.now() + 2000)
    spool.add(*(b"%d" % number for number in range(600)))
    for _ in range(600):
        assert open_read(queue, 0.5)
    spool.commit()
    clock.advance(1)
    assert queue.returns.give_back_overdue() == 500
    head = queue.line.peek()
    assert head is not None
    assert (item_data(head), len(queue.reads.open)) == (b"oldest", 100)
    queue.pause(Paused.READS)
    assert queue.line.peek() is None
    queue.pause(Paused.NOTHING)
    clock.advance(1)
    head = queue.line.peek()
    assert head is not None
    assert (item_data(head), queue.counts.expired_items) == (b"99", 1)
    spool.close()


@pytest.mark.parametrize("limit", ["its own", "the queue's"])
def test_an_item_has_expired_at_its_very_time(tmp_path: Path, limit: str) -> None:
    """A millisecond before, it is there; it may be older than the queue's limit."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(b"x", expiry=spool.clock.now() + 1000 if limit == "its own" else 0)
    if limit == "the queue's":
        assert not spool.reload(queue_settings(tmp_path, max_age="1 second"))
    spool.clock.advance(0.999)
    assert spool.queue().line.peek() is not None
    spool.clock.advance(0.001)
    assert spool.queue().line.peek() is None
    spool.close()
