"""When a queue came into being: what its files tell, and what is made of it."""

import os
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.names import QueueFiles, group_files
from kestrelmq.format.records import REMOVE_RECORD, item
from kestrelmq.journal.loading import load_queue
from kestrelmq.queues.collection import QueueCollection
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled

HOUR = 3_600_000


def write(path: Path, name: str, data: bytes, written: int) -> None:
    """Make a file that was last written at a time (ms)."""
    (path / name).write_bytes(data)
    os.utime(path / name, ns=(written * 1_000_000, written * 1_000_000))


def created_at(path: Path, now: int) -> int:
    """Return when the queue `jobs` was created, as far as its files show."""
    directory = DiskDirectory(path)
    files = group_files(directory.names()).queues.get("jobs", QueueFiles("jobs"))
    return load_queue(directory, files, None, FakeClock(now)).created


def test_the_earliest_of_what_is_known_counts(tmp_path: Path) -> None:
    """The first item of the oldest file, its timestamp, or when a file was last written."""
    now = FakeClock().now()
    assert created_at(tmp_path, now) == now
    write(tmp_path, "jobs", b"", now - HOUR)
    assert created_at(tmp_path, now) == now - HOUR
    write(tmp_path, "jobs", item(now - 3 * HOUR, 0, b"x"), now - HOUR)
    assert created_at(tmp_path, now) == now - 3 * HOUR
    old = f"jobs.{now - 5 * HOUR}"
    write(tmp_path, old, REMOVE_RECORD, now - 2 * HOUR)
    assert created_at(tmp_path, now) == now - 5 * HOUR


def test_impossible_times_do_not_count(tmp_path: Path) -> None:
    """An add time of another epoch, a small timestamp, a file from the future."""
    now = FakeClock().now()
    write(tmp_path, "jobs.7", item(1, 0, b"x"), now + HOUR)
    assert created_at(tmp_path, now) == now


def test_a_queue_is_as_old_after_a_restart(tmp_path: Path) -> None:
    """And so it is deleted when it is empty and past its `max_queue_age`."""
    clock = FakeClock()
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(max_queue_age=7200))
    collection = QueueCollection(config, clock)
    collection.open()
    queue = collection.obtain("jobs")
    created = queue.create_time
    queue.add(b"x")
    assert not collection.commits.commit()
    clock.advance(3600)
    queue.line.remove()
    collection.close()
    collection = QueueCollection(config, clock)
    collection.open()
    assert collection.obtain("jobs").create_time == created
    clock.advance(3599)
    collection.sweep()
    assert "jobs" in collection.queues
    clock.advance(2)
    collection.sweep()
    assert "jobs" not in collection.queues
    collection.close()
