"""What waits for time to pass: whoever keeps the time is told, and sleeps when there is none."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import Item, item, item_data
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.durability import sync_now
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


def opened(path: Path, clock: FakeClock, **settings: object) -> tuple[QueueCollection, list[str]]:
    """A collection whose queues have `settings`, and a list that grows with each call."""
    config = ServerConfig(queue_path=path, default=QueueConfig.model_validate(settings))
    collection = QueueCollection(config, clock)
    calls: list[str] = []
    collection.commits.on_timer_needed = lambda: calls.append("timed")
    collection.open()
    return collection, calls


def test_nothing_is_timed(tmp_path: Path) -> None:
    """Queues without timeouts and periodic syncs need nobody to keep the time."""
    collection, calls = opened(tmp_path, FakeClock())
    collection.add("work", b"a")
    open_read(collection.obtain("work"))
    collection.commits.commit()
    assert calls == []
    assert not collection.commits.needs_timer
    collection.close()


def test_open_read_is_timed(tmp_path: Path) -> None:
    """The first read that ends by itself is told of; when it has ended nothing is timed."""
    clock = FakeClock()
    collection, calls = opened(tmp_path, clock, open_transaction_timeout=5)
    for data in (b"a", b"b"):
        collection.add("work", data)
    queue = collection.obtain("work")
    open_read(queue)
    open_read(queue)
    assert calls == ["timed"]
    before = collection.commits.needs_timer
    clock.advance(5)
    collection.check_deadlines()
    assert len(queue) == 2
    assert (before, collection.commits.needs_timer) == (True, False)
    collection.close()


def test_periodic_sync_is_timed(tmp_path: Path) -> None:
    """A write that is to be synced later is told of; when the sync was taken nothing is timed."""
    clock = FakeClock()
    collection, calls = opened(tmp_path, clock, sync_journal="1s")
    for data in (b"a", b"b"):
        collection.add("work", data)
        collection.commits.commit()
    assert calls == ["timed"]
    assert collection.commits.syncs.take_due(clock.monotonic()) == set()
    assert collection.commits.syncs.take_due(clock.monotonic() + 1) == {collection.obtain("work")}
    assert not collection.commits.needs_timer
    collection.close()


def test_queues_that_write_the_same_records_share_one_piece(tmp_path: Path) -> None:
    """Others get what is theirs, whatever was joined before."""
    collection, _ = opened(tmp_path, FakeClock())
    for name in ("work", "work+one", "work+two", "other"):
        collection.obtain(name)
    for data in (b"a", b"b"):
        collection.add("work", data)
        collection.add("other", data * 2)
    collection.add("work+two", b"c")
    assert not collection.commits.commit()
    work, one, two, other = (
        (tmp_path / name).read_bytes() for name in ("work", "work+one", "work+two", "other")
    )
    assert one == work
    assert two.startswith(work)
    assert two.endswith(b"c")
    assert (other.count(b"aa"), other.count(b"bb")) == (1, 1)
    collection.close()


def refusals(queue: Queue) -> list[bool]:
    """Return whether adding, and reading in each way, is refused as after a failed sync."""
    found = []
    for operation in (
        lambda: queue.add(b"refused"),
        queue.line.remove,
        lambda: open_read(queue),
        lambda: queue.add(item(1 << 42, 0, b"refused"), due=1 << 42),
    ):
        try:
            operation()
        except JournalError as error:
            assert "an earlier sync failed" in str(error)  # noqa: PT017 # the type is not enough
            found.append(True)
        else:
            found.append(False)
    return found


def test_nothing_is_added_or_taken_after_a_failed_sync(tmp_path: Path) -> None:
    """Each answer would be an error though all was done; reads end, and waiting readers wait."""
    disk = CrashingDirectory.within(tmp_path)
    queues = LocalQueues(queue_settings(disk.path, sync_journal=0), disk)
    queue = queues.collection.obtain("work")
    served: list[Item | None] = []
    for data in (b"a", b"b"):
        queue.add(data)
    opened = open_read(queue)
    assert opened is not None
    queues.commit()
    disk.break_steps("sync")
    assert sync_now(queue) is not None
    assert refusals(queue) == [True] * 4
    assert not queue.has_room(1)
    assert queue.reads.confirm(opened[0])
    queue.flush()
    queue.waiters.add(
        Waiter(ReadMode.REMOVE, lambda record, _xid: served.append(record), _unexpected)
    )
    queues.commit()
    queue.tick()
    assert refusals(queue)[0], "the journal cannot be rewritten yet"
    disk.mend()
    queues.advance(2)
    queue.tick()
    queue.add(b"c")
    assert served == []
    queue.tick()
    assert [item_data(record) for record in served if record is not None] == [b"c"]
    assert refusals(queue) == [False] * 4
    assert served[1:] == []
    queues.close()


def test_waiting_readers_are_served_once_the_journal_is_well(tmp_path: Path) -> None:
    """What is given back meanwhile is theirs then."""
    disk = CrashingDirectory.within(tmp_path)
    queues = LocalQueues(queue_settings(disk.path, sync_journal=0), disk)
    queue = queues.collection.obtain("work")
    served: list[Item | None] = []
    queue.add(b"a")
    opened = open_read(queue)
    assert opened is not None
    queue.waiters.add(
        Waiter(ReadMode.REMOVE, lambda record, _xid: served.append(record), _unexpected)
    )
    queues.commit()
    disk.break_steps("sync")
    assert sync_now(queue) is not None
    assert queue.returns.give_back([opened[0]])
    queues.commit()
    assert (served, len(queue)) == ([], 1)
    disk.mend()
    for _ in range(2):
        queue.tick()
    assert [item_data(record) for record in served if record is not None] == [b"a"]
    queues.close()


def _unexpected(error: Exception) -> None:
    pytest.fail(str(error))
