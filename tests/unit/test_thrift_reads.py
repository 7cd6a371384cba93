"""Which open reads thrift clients may end."""

import pytest

from kestrelmq.config import QueueConfig
from kestrelmq.engine.commits import Commits
from kestrelmq.engine.queue import Queue
from kestrelmq.server.thrift_reads import ThriftReads
from kestrelmq.testing.clock import FakeClock


@pytest.fixture
def reads() -> ThriftReads:
    """Return a server's open reads, of which there are none."""
    return ThriftReads()


def a_queue() -> Queue:
    """Return a queue in memory, with many items."""
    queue = Queue("q", QueueConfig(), FakeClock(), Commits())
    for number in range(2000):
        queue.add(b"%d" % number)
    return queue


def opened(queue: Queue) -> int:
    """Open a read and return its id."""
    read = queue.open_read()
    assert read is not None
    return read[0]


def test_reads_are_taken_oldest_first_and_once(reads: ThriftReads) -> None:
    """In whatever order they are asked for."""
    queue = a_queue()
    first, second, third = (opened(queue) for _ in range(3))
    for xid in (first, second, third):
        reads.add(queue, xid)
    assert reads.take("q", (third, first, 999)) == (queue, [first, third])
    assert reads.take("q", (third, first)) is None
    assert reads.take("q", (second,)) == (queue, [second])
    assert reads.take("other", (second,)) is None


def test_a_read_of_another_protocol_is_not_theirs(reads: ThriftReads) -> None:
    """Guessing its id ends nothing."""
    queue = a_queue()
    reads.add(queue, opened(queue))
    foreign = opened(queue)
    assert not reads.is_open("q", foreign)
    assert reads.take("q", (foreign,)) is None


def test_a_read_that_ended_by_itself_is_not_taken(reads: ThriftReads) -> None:
    """Its item is somebody else's by now."""
    queue = a_queue()
    xid = opened(queue)
    reads.add(queue, xid)
    assert reads.is_open("q", xid)
    queue.unremove(xid)
    assert not reads.is_open("q", xid)
    assert reads.take("q", (xid,)) is None


def test_a_new_queue_of_the_same_name_begins_without_reads(reads: ThriftReads) -> None:
    """Both count their ids from the start."""
    old, new = a_queue(), a_queue()
    xid = opened(old)
    reads.add(old, xid)
    assert opened(new) == xid
    reads.add(new, opened(new))
    assert reads.take("q", (xid,)) is None


def test_reads_that_ended_are_forgotten_in_time(reads: ThriftReads) -> None:
    """Clients that never confirm do not fill the memory."""
    queue = a_queue()
    kept = opened(queue)
    reads.add(queue, kept)
    for _ in range(1000):
        xid = opened(queue)
        reads.add(queue, xid)
        queue.unremove(xid)
    assert sum(len(xids) for _, xids in reads._by_queue.values()) < 100
    assert reads.take("q", (kept,)) == (queue, [kept])
