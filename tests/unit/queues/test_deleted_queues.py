"""What a deleted queue leaves behind: nothing, on disk and in memory."""

import gc
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.queues.collection import QueueCollection
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled


def opened(path: Path) -> QueueCollection:
    """Return the queues of `path`, whose journals are soon too long."""
    config = ServerConfig(queue_path=path, default=QueueConfig(default_journal_size=100))
    collection = QueueCollection(config, FakeClock())
    collection.open()
    return collection


@pytest.mark.parametrize("change", ["take", "add", "flush"])
def test_files_of_a_queue_that_was_changed_in_the_same_turn(tmp_path: Path, change: str) -> None:
    """They are all gone, and the queue does not come back."""
    collection = opened(tmp_path)
    queue = collection.obtain("jobs")
    for _ in range(3):
        queue.add(bytes(500))
    assert not collection.commits.commit()
    match change:
        case "take":
            while queue.line.remove():
                pass
        case "add":
            queue.add(b"x")
        case _:
            queue.flush()
    assert collection.delete("jobs")
    assert not collection.commits.commit()
    assert [path.name for path in tmp_path.glob("jobs*")] == []
    collection.close()
    again = opened(tmp_path)
    assert list(again.queues) == []
    again.close()


def test_memory_of_queues_that_come_and_go(tmp_path: Path) -> None:
    """It is free at once, without the collector of cycles, which may come late."""
    collection = opened(tmp_path)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            for name in ("jobs", "jobs+copy"):
                collection.obtain(name).add(bytes(500))
                assert not collection.commits.commit()
            for name in ("jobs", "jobs+copy"):
                collection.delete(name)
                assert not collection.commits.commit()
        assert gc.collect() < 20
    finally:
        gc.enable()
        collection.close()
