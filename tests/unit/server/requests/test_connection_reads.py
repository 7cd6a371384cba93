"""The open reads of one connection: the oldest come first, and what has ended is passed over."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from kestrelmq.journal.open_read import OpenRead
from kestrelmq.queue.queue import Queue
from kestrelmq.server.requests.reads import ConnectionOpenReads
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[LocalQueues]:
    """Return queues on an empty path."""
    found = LocalQueues(queue_settings(tmp_path))
    yield found
    found.close()


def opened(queues: LocalQueues, count: int) -> tuple[Queue, ConnectionOpenReads]:
    """Return a queue and the reads of so many items."""
    queue, reads = queues.queue(), ConnectionOpenReads()
    for number in range(count):
        assert queue.add(b"%d" % number)
    for _ in range(count):
        found = open_read(queue)
        assert found is not None
        reads.add(queue, queue.reads.open[found[0]])
    queues.commit()
    return queue, reads


def test_the_oldest_are_confirmed(queues: LocalQueues) -> None:
    """All or none; those that have ended do not count."""
    queue, reads = opened(queues, 6)
    queue.returns.give_back([2])
    queue.reads.confirm(4)
    assert reads.confirm_oldest("jobs", 5) is None
    assert reads.confirm_oldest("other", 1) is None
    assert reads.confirm_oldest("other", 0) == ()
    assert reads.confirm_oldest("jobs", 0) == ()
    assert sorted(queue.reads.open) == [1, 3, 5, 6]
    assert reads.confirm_oldest("jobs", 3) == (queue,)
    assert sorted(queue.reads.open) == [6]
    assert reads.count("jobs") == 1
    assert reads.confirm_oldest("jobs", 1) == (queue,)
    assert reads.by_queue == {}
    queues.commit()
    queues.restart()
    assert queues.items() == [b"1"]


def test_the_oldest_is_taken(queues: LocalQueues) -> None:
    """Until none is left."""
    queue, reads = opened(queues, 4)
    for xid in (1, 2, 4):
        queue.returns.give_back([xid])
    assert reads.take_oldest("jobs") == (queue, 3)
    assert reads.take_oldest("jobs") is None
    assert reads.by_queue == {}


def test_a_deleted_queue_has_no_reads(queues: LocalQueues) -> None:
    """Nor has the next one of its name those of the first."""
    _, reads = opened(queues, 2)
    assert queues.collection.delete("jobs")
    assert reads.confirm_oldest("jobs", 1) is None
    queue, others = opened(queues, 2)
    assert reads.take_oldest("jobs") is None
    assert others.confirm_oldest("jobs", 2) == (queue,)


def test_only_the_oldest_are_looked_at(queues: LocalQueues) -> None:
    """So many reads of a connection can be confirmed one by one."""
    queue, reads = opened(queues, 4)
    queue.returns.give_back([1])
    unreadable = cast("Queue", None)
    reads.by_queue["jobs"].append((unreadable, cast("OpenRead", None)))
    assert reads.confirm_oldest("jobs", 2) == (queue,)
    assert reads.take_oldest("jobs") == (queue, 4)
    with pytest.raises((AttributeError, TypeError)):
        reads.take_oldest("jobs")
