"""Which open reads thrift clients may end."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.durability import GroupCommit
from kestrelmq.server.sessions.thrift_reads import ThriftOpenReads
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


@pytest.fixture
def reads() -> ThriftOpenReads:
    """Return a server's open reads, of which there are none."""
    return ThriftOpenReads()


def a_queue() -> Queue:
    """Return a queue in memory, with many items."""
    queue = Queue("q", QueueConfig(), FakeClock(), GroupCommit())
    for number in range(2000):
        queue.add(b"%d" % number)
    return queue


def opened(queue: Queue) -> int:
    """Open a read and return its xid."""
    read = open_read(queue)
    assert read is not None
    return read[0]


def test_reads_are_taken_oldest_first_and_once(reads: ThriftOpenReads) -> None:
    """In whatever order, and however often, they are asked for."""
    queue = a_queue()
    xids = [opened(queue) for _ in range(3)]
    first, second, third = (reads.add(queue, xid) for xid in xids)
    assert reads.take("q", (third, first, 999, first)) == (queue, [xids[0], xids[2]])
    assert reads.take("q", (third, first)) is None
    assert reads.take("other", (second,)) is None
    assert reads.take("q", (second,)) == (queue, [xids[1]])


def test_ids_cannot_be_guessed(reads: ThriftOpenReads) -> None:
    """They are random, never 0, and every language holds them; a journal's xid ends nothing."""
    queue = a_queue()
    xids = [opened(queue) for _ in range(1000)]
    ids = [reads.add(queue, xid) for xid in xids]
    assert len(set(ids)) == 1000
    assert all(0 < one < 2**53 for one in ids)
    # Of 1000 random numbers, about half have each bit.
    assert all(300 < sum(one >> bit & 1 for one in ids) < 700 for bit in range(53))
    assert reads.take("q", set(xids) - set(ids)) is None
    assert ids != [ThriftOpenReads().add(queue, xid) for xid in xids]


def test_a_read_that_ended_by_itself_is_not_taken(reads: ThriftOpenReads) -> None:
    """Its item is somebody else's by now."""
    queue = a_queue()
    xid = opened(queue)
    identity = reads.add(queue, xid)
    assert reads.is_open(identity)
    queue.returns.give_back([xid])
    assert not reads.is_open(identity)
    assert reads.take("q", (identity,)) is None


def test_an_item_is_not_taken_from_its_next_reader(tmp_path: Path, reads: ThriftOpenReads) -> None:
    """Nor if the journal was packed while it was open, which then says its xid."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(b"x")
    xid = spool.open_read()
    identity = reads.add(spool.queue(), xid)
    upkeep = spool.queue()._upkeep
    assert upkeep is not None
    upkeep._rewrite()
    assert spool.queue().returns.give_back([xid])
    next_xid = spool.open_read()
    other = reads.add(spool.queue(), next_xid)
    assert not reads.is_open(identity)
    assert reads.take("jobs", (identity,)) is None
    assert reads.take("jobs", (other,)) == (spool.queue(), [next_xid])
    spool.close()


def test_a_new_queue_of_the_same_name_begins_without_reads(reads: ThriftOpenReads) -> None:
    """Both count their xids from the start."""
    old, new = a_queue(), a_queue()
    xid = opened(old)
    identity = reads.add(old, xid)
    old.drop()
    assert opened(new) == xid
    new_identity = reads.add(new, xid)
    assert reads.take("q", (identity,)) is None
    assert reads.take("q", (new_identity,)) == (new, [xid])


def test_reads_that_ended_are_forgotten_in_time(reads: ThriftOpenReads) -> None:
    """Clients that never confirm do not fill the memory."""
    queue = a_queue()
    kept_xid = opened(queue)
    kept = reads.add(queue, kept_xid)
    for _ in range(1000):
        xid = opened(queue)
        reads.add(queue, xid)
        queue.returns.give_back([xid])
    assert len(reads) < 100
    assert reads.take("q", (kept,)) == (queue, [kept_xid])
