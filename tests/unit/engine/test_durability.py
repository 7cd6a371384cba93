"""What waits for time to pass: whoever keeps the time is told, and sleeps when there is none."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.testing.clock import FakeClock

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
    collection.obtain("work").open_read()
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
    queue.open_read()
    queue.open_read()
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
