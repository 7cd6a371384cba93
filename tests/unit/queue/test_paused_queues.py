"""A paused queue: readers find it empty, adding is refused, and open reads can be ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import Item, item_data
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.waiters import ReadMode, Waiter
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled


@pytest.fixture(name="spool")
def local_queues(tmp_path: Path) -> Iterator[LocalQueues]:
    """Queues with default settings; `jobs` has two items."""
    queues = LocalQueues(ServerConfig(queue_path=tmp_path))
    queues.add(b"one", b"two")
    yield queues
    queues.close()


@pytest.mark.parametrize("operations", [Paused.READS, Paused.ALL])
def test_readers_find_a_queue_empty_whose_reads_are_paused(
    spool: LocalQueues, operations: Paused
) -> None:
    """In every mode; the items stay, and come in order after the resume."""
    assert spool.collection.pause("jobs", operations)
    queue = spool.queue()
    assert [queue.line.take_as(mode) for mode in ReadMode] == [(None, 0)] * len(ReadMode)
    assert (len(queue), queue.state.limits.reads_paused) == (2, True)
    spool.collection.resume("jobs", Paused.READS)
    assert spool.drain() == [b"one", b"two"]


def test_a_reader_that_waits_is_served_after_the_resume(spool: LocalQueues) -> None:
    """In the order in which they began to wait, also with items that come meanwhile."""
    spool.drain()
    served: list[Item | None] = []

    def serve(record: Item | None, _xid: int) -> None:
        served.append(None if record is None else item_data(record))

    queue = spool.queue()
    for _ in range(2):
        queue.waiters.add(Waiter(ReadMode.REMOVE, serve, lambda error: pytest.fail(str(error))))
    spool.collection.pause("jobs", Paused.READS)
    spool.add(b"first", b"second")
    assert (served, queue.waiters.readers) == ([], 2)
    spool.collection.resume("jobs", Paused.ALL)
    spool.commit()
    assert (served, len(queue)) == ([b"first", b"second"], 0)


def test_adding_to_a_queue_whose_writes_are_paused_is_refused(spool: LocalQueues) -> None:
    """With the reason; reading goes on."""
    spool.collection.pause("jobs", Paused.WRITES)
    with pytest.raises(QueueUnavailable, match="queue jobs is paused for writes"):
        spool.queue().add(b"three")
    assert spool.queue().refusals.paused == 1
    assert spool.queue().state.limits.writes_paused
    assert not spool.queue().has_room(1)
    assert spool.drain() == [b"one", b"two"]


def test_open_reads_can_be_ended_while_all_is_paused(spool: LocalQueues) -> None:
    """Confirmed or given back."""
    first, second = spool.open_read(), spool.open_read()
    spool.collection.pause("jobs", Paused.ALL)
    assert spool.queue().reads.confirm(first)
    assert spool.queue().returns.give_back([second])
    spool.commit()
    spool.collection.resume("jobs", Paused.ALL)
    assert spool.drain() == [b"two"]


def test_a_paused_child_is_passed_over_and_a_paused_master_stops_all(spool: LocalQueues) -> None:
    """A child refuses as a full one does; a refused add to the master reaches no child."""
    spool.queue("jobs+audit")
    spool.collection.pause("jobs+audit", Paused.WRITES)
    spool.add(b"three")
    assert (spool.items("jobs+audit"), spool.items()) == ([], [b"one", b"two", b"three"])
    assert spool.queue("jobs+audit").refusals.paused == 1
    spool.collection.resume("jobs+audit", Paused.WRITES)
    spool.collection.pause("jobs", Paused.WRITES)
    with pytest.raises(QueueUnavailable):
        spool.collection.add("jobs", b"four")
    assert spool.items("jobs+audit") == []


def test_expired_items_wait_for_a_paused_target(tmp_path: Path) -> None:
    """Set aside, and moved after the resume."""
    spool = LocalQueues(queue_settings(tmp_path, expire_to_queue="late"))
    spool.queue("late").configure(spool.config.default.model_copy(update={"expire_to_queue": None}))
    spool.collection.pause("late", Paused.WRITES)
    spool.add(b"old", expiry=spool.clock.now() + 10)
    spool.clock.advance(1)
    spool.collection.sweep()
    assert (spool.queue().reads.items_aside, len(spool.queue("late"))) == (1, 0)
    spool.collection.resume("late", Paused.WRITES)
    spool.collection.sweep()
    assert (spool.queue().reads.items_aside, spool.items("late")) == (0, [b"old"])
    spool.close()


def test_what_is_paused_adds_up(spool: LocalQueues) -> None:
    """Reads and writes are all; each can be resumed by itself."""
    shown = []
    for change, operations in [
        (spool.collection.pause, Paused.READS),
        (spool.collection.pause, Paused.WRITES),
        (spool.collection.resume, Paused.READS),
        (spool.collection.resume, Paused.READS),
        (spool.collection.resume, Paused.ALL),
    ]:
        change("jobs", operations)
        shown.append(str(spool.queue().paused))
    assert shown == ["reads", "all", "writes", "writes", ""]


def test_a_queue_that_is_not_there_is_not_paused_and_not_created(spool: LocalQueues) -> None:
    """As by a flush."""
    assert not spool.collection.pause("none", Paused.ALL)
    assert not spool.collection.resume("none", Paused.ALL)
    assert list(spool.collection.queues) == ["jobs"]


def test_what_is_paused_survives_a_restart_and_new_settings(spool: LocalQueues) -> None:
    """Once it is saved; other limits do not end it."""
    spool.collection.pause("jobs", Paused.READS)
    spool.collection.registry.save(lambda failure: pytest.fail(str(failure)) if failure else None)
    spool.restart()
    spool.reload(queue_settings(spool.config.queue_path, max_items=5))
    assert (spool.take(), str(spool.queue().paused)) == (None, "reads")


def test_a_queue_without_checks_checks_nothing_after_the_resume(spool: LocalQueues) -> None:
    """The pause costs nothing while nothing is paused."""
    before = spool.queue().state.checks > 0
    spool.collection.pause("jobs", Paused.ALL)
    during = spool.queue().state.checks > 0
    spool.collection.resume("jobs", Paused.ALL)
    assert (before, during, spool.queue().state.checks > 0) == (False, True, False)


def test_a_paused_queue_is_not_deleted_for_its_age(tmp_path: Path) -> None:
    """Somebody wants it to stay as it is."""
    spool = LocalQueues(queue_settings(tmp_path, max_queue_age=1))
    spool.queue()
    spool.collection.pause("jobs", Paused.READS)
    spool.clock.advance(5)
    spool.collection.sweep()
    assert list(spool.collection.queues) == ["jobs"]
    spool.collection.resume("jobs", Paused.READS)
    spool.collection.sweep()
    assert list(spool.collection.queues) == []
    spool.close()
