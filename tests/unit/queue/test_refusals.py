"""What a queue refuses is counted by reason, and logged at most once a minute."""

import logging
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.queue.refusals import Refusals
from kestrelmq.queues.disk_space import DiskSpace
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

REASONS = ("too_large", "full_items", "full_bytes", "memory", "forbidden", "failed")


def counts(refusals: Refusals) -> dict[str, int]:
    """Return how many requests were refused for each reason, without zeros."""
    return {name: getattr(refusals, name) for name in REASONS if getattr(refusals, name)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"max_item_size": 1}, {"too_large": 3}),
        ({"max_items": 2}, {"full_items": 1}),
        ({"max_size": 4}, {"full_bytes": 1}),
        ({"max_items": 1, "max_size": 2}, {"full_items": 2}),
        ({"keep_journal": False, "max_memory_size": 4}, {"memory": 1}),
        ({"max_items": 1, "discard_old_when_full": True}, {}),
        ({"fanout_only": True, "max_item_size": 1}, {}),
    ],
)
@pytest.mark.compiled
def test_each_refusal_is_counted_by_its_reason(
    tmp_path: Path, settings: dict[str, object], expected: dict[str, int]
) -> None:
    """Three items of two bytes each; what makes room, or keeps nothing, refuses nothing."""
    spool = LocalQueues(queue_settings(tmp_path, **settings))
    queue = spool.queue()
    stored = [queue.add(data) for data in (b"a1", b"a2", b"a3")]
    assert counts(queue.refusals) == expected
    assert stored.count(False) == sum(expected.values())
    spool.close()


@pytest.mark.compiled
def test_nothing_is_refused_for_items_that_have_expired(tmp_path: Path) -> None:
    """However many they are, and however few a sweep drops."""
    spool = LocalQueues(queue_settings(tmp_path, max_expire_sweep=1))
    spool.add(*[b"old"] * 1100, expiry=spool.clock.now() + 1000)
    spool.reload(queue_settings(tmp_path, max_expire_sweep=1, max_items=1))
    spool.clock.advance(2)
    spool.add(b"new")
    assert (spool.items(), spool.queue().counts.expired_items) == ([b"new"], 1100)
    assert counts(spool.queue().refusals) == {}
    spool.close()


@pytest.mark.compiled
def test_a_child_counts_what_it_refuses_itself(tmp_path: Path) -> None:
    """Its master took the item."""
    spool = LocalQueues(queue_settings(tmp_path))
    child = spool.queue("jobs+audit")
    child.configure(child.config.model_copy(update={"max_items": 0}))
    spool.add(b"one")
    assert (counts(child.refusals), counts(spool.queue().refusals)) == (
        {"full_items": 1},
        {},
    )
    spool.close()


@pytest.mark.compiled
def test_whether_there_is_room_is_no_refusal(tmp_path: Path) -> None:
    """Asking changes nothing."""
    spool = LocalQueues(queue_settings(tmp_path, max_items=1))
    queue = spool.queue()
    assert queue.has_room(1)
    spool.add(b"one")
    assert not queue.has_room(1)
    assert counts(queue.refusals) == {}
    spool.close()


@pytest.mark.compiled
def test_what_could_not_be_written_is_counted(tmp_path: Path) -> None:
    """Each change that was undone, adds and reads alike; what was written before is none."""
    directory = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(directory.path), directory)
    spool.add(b"one", b"two")
    queue = spool.queue()
    directory.break_steps("append")
    queue.add(b"three")
    queue.line.remove()
    assert list(spool.collection.commits.commit()) == [queue]
    assert counts(queue.refusals) == {"failed": 2}
    directory.mend()
    spool.add(b"four")
    assert counts(queue.refusals) == {"failed": 2}
    assert spool.items() == [b"one", b"two", b"four"]
    spool.close()


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["jobs", "jobs+audit"])
def test_a_short_disk_takes_no_items(tmp_path: Path, name: str) -> None:
    """They are refused before anything is written, and the queue fails until one is stored."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.queue("jobs+audit")
    queue = spool.queue(name)
    spool.add(b"one", b"two", name=name)
    collection = spool.collection
    collection.disk_space.total, least = 1 << 30, collection.config.min_free_disk
    collection.disk_space.free = least - 1
    collection.look_at_disk()
    read = open_read(queue)
    assert read is not None
    for add in (queue.add, lambda data: queue.add(data, due=spool.clock.now() + 1000)):
        with pytest.raises(QueueUnavailable, match="less room than min_free_disk"):
            add(b"three")
    assert not queue.has_room(1)
    queue.reads.confirm(read[0])
    assert not spool.collection.commits.commit()
    assert (queue.refusals.disk, queue.refusals.failed) == (2, 0)
    assert "min_free_disk" in str(queue.core.problem)
    collection.disk_space.free = least
    collection.look_at_disk()
    collection.tick()
    assert queue.core.is_failing
    spool.add(b"three", name=name)
    assert (queue.core.is_failing, queue.core.problem) == (False, None)
    assert spool.items(name)[-2:] == [b"two", b"three"]
    spool.close()


@pytest.mark.compiled
def test_a_queue_without_a_journal_needs_no_disk(tmp_path: Path) -> None:
    """Unless a child has one."""
    spool = LocalQueues(queue_settings(tmp_path, keep_journal=False))
    queue = spool.queue()
    spool.collection.commits.is_disk_short = True
    assert queue.add(b"one")
    spool.collection.declare("jobs+audit", QueueConfig(keep_journal=True))
    with pytest.raises(QueueUnavailable, match="less room than min_free_disk"):
        queue.add(b"two")
    spool.close()


@pytest.mark.compiled
def test_a_queue_whose_add_found_no_room_fails_until_one_is_stored(tmp_path: Path) -> None:
    """Though the small records of reads can be written meanwhile."""
    directory = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(directory.path), directory)
    spool.add(b"one", b"two")
    queue = spool.queue()
    directory.break_steps("append")
    queue.add(b"three")
    assert list(spool.collection.commits.commit()) == [queue]
    directory.mend()
    queue.line.remove()
    assert not spool.collection.commits.commit()
    spool.collection.tick()
    assert (queue.core.failure, queue.core.is_failing) == (None, True)
    assert "No space left" in str(queue.core.problem)
    spool.add(b"four")
    assert (queue.core.is_failing, queue.core.problem) == (False, None)
    assert spool.items() == [b"two", b"four"]
    spool.close()


def test_refusals_are_logged_at_most_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The first at once; then one line with how many of each kind there were since the last."""
    clock = FakeClock()
    refusals = Refusals("jobs", clock)
    with caplog.at_level(logging.WARNING):
        refusals.count("full_items")
        clock.advance(59.9)
        refusals.count("full_items")
        refusals.count("too_large")
        clock.advance(0.1)
        refusals.count("full_items")
    assert caplog.messages == [
        "queue jobs refused requests: full_items 1",
        "queue jobs refused requests: full_items 2, too_large 1",
    ]
    assert counts(refusals) == {"full_items": 3, "too_large": 1}


def test_the_room_on_the_disk(tmp_path: Path) -> None:
    """It is read only when asked for, and stays as it was when the path is gone."""
    path = tmp_path / "queues"
    path.mkdir()
    space = DiskSpace(path)
    assert (space.free, space.total) == (0, 0)
    space.read()
    assert 0 < space.free <= space.total
    before = (space.free, space.total)
    path.rmdir()
    space.read()
    assert (space.free, space.total) == before
