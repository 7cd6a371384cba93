"""What a queue waits for when its journal is rotated or deleted."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import item_data
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.upkeep import upkeep
from tests.support.crash_sites import function
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker, LateWorker
from tests.support.local_queues import items_on_disk
from tests.support.recording_directory import Append, RecordingDirectory, Rename, SyncFile

REST = 1000
SETTINGS = QueueConfig(
    max_memory_size=20_000, default_journal_size=10_000, min_journal_compact_delay=0
)


@pytest.fixture
def directory(tmp_path: Path) -> RecordingDirectory:
    """Return a directory that records what is synced."""
    (tmp_path / "queues").mkdir()
    return RecordingDirectory(tmp_path / "queues")


def opened(directory: RecordingDirectory | CrashingDirectory) -> QueueCollection:
    """Return queues on it."""
    config = ServerConfig(queue_path=directory.path, default=SETTINGS)
    collection = QueueCollection(config, FakeClock(), directory)
    collection.open()
    return collection


def in_rotations(directory: RecordingDirectory) -> list[int]:
    """Return how many bytes each rotation had to sync while the queue waited."""
    written: dict[int, int] = {}
    found = []
    for operation in directory.operations:
        match operation:
            case Append(file, data):
                written[file] = written.get(file, 0) + len(data)
            case SyncFile(file):
                rest = written.pop(file, 0)
                if function(operation.caller) == "_sync_rest":
                    found.append(rest)
    return found


def rotations(directory: RecordingDirectory) -> int:
    """Return how often a current file got another name."""
    steps = [step for step in directory.operations if isinstance(step, Rename)]
    return sum(step.old == "jobs" for step in steps)


@pytest.mark.parametrize("held", [1, 3, 7])
def test_a_rotation_waits_for_the_last_records_only(
    directory: RecordingDirectory, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """All that came before them is synced by the worker, which takes its time."""
    monkeypatch.setattr(upkeep, "ROTATION_SYNC_LIMIT", REST)
    collection = opened(directory)
    worker = collection.commits.worker = HeldWorker()
    queue = collection.obtain("jobs")
    for number in range(900):
        queue.add(bytes(100))
        assert not collection.commits.commit()
        if number % held == 0:
            worker.step()
    while worker.step():
        collection.tick()
    collection.close()
    assert rotations(directory) > 2
    assert 0 < max(in_rotations(directory)) <= REST


def test_a_worker_that_falls_behind_puts_a_rotation_off(
    directory: RecordingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written while it synced is synced by it again, if that is much."""
    monkeypatch.setattr(upkeep, "ROTATION_SYNC_LIMIT", REST)
    collection = opened(directory)
    worker = collection.commits.worker = LateWorker()
    queue = collection.obtain("jobs")
    for _ in range(20):
        for _ in range(50):
            queue.add(bytes(100))
            queue.line.remove()
            assert not collection.commits.commit()
        worker.step()
    assert rotations(directory) == 0
    collection.tick()
    while worker.step():
        collection.tick()
    assert rotations(directory) > 0
    assert max(in_rotations(directory), default=0) <= REST
    collection.close()


def test_a_deletion_syncs_no_contents(directory: RecordingDirectory) -> None:
    """They are not wanted any more."""
    collection = opened(directory)
    queue = collection.obtain("jobs")
    queue.add(bytes(3000))
    assert not collection.commits.commit()
    collection.delete("jobs")
    assert not [step for step in directory.operations if isinstance(step, SyncFile)]
    collection.close()


def test_a_sync_that_fails_puts_a_rotation_off(tmp_path: Path) -> None:
    """The old file must not be followed by another one before it is on disk."""
    directory = CrashingDirectory.within(tmp_path)
    collection = opened(directory)
    queue = collection.obtain("jobs")
    directory.fail = lambda point: point == "sync jobs"
    for _ in range(200):
        queue.add(bytes(100))
        queue.line.remove()
        assert not collection.commits.commit()
    assert [name for name in directory.names() if "~~lock" not in name] == ["jobs"]
    collection.close()


def test_a_deletion_that_fails_leaves_the_queue(tmp_path: Path) -> None:
    """Whatever fails: what is added afterwards is there at the next start, too."""
    directory = CrashingDirectory.within(tmp_path)
    collection = opened(directory)
    for step in range(5):
        name = f"jobs{step}"
        queue = collection.obtain(name)
        queue.add(b"one")
        assert not collection.commits.commit()
        seen = iter(range(100))
        directory.fail = lambda _point, step=step, seen=seen: next(seen) == step  # type: ignore[misc]
        with pytest.raises(JournalError):
            collection.delete(name)
        directory.mend()
        queue.add(b"two")
        assert not collection.commits.commit()
    collection.close()
    again = opened(directory)
    found = {
        name: [item_data(record) for record in queue.backlog.browse(99)]
        for name, queue in again.queues.items()
    }
    again.close()
    assert found == {f"jobs{step}": [b"one", b"two"] for step in range(5)}


def test_a_journal_whose_sync_failed_is_rotated_only_to_be_replaced(tmp_path: Path) -> None:
    """A power loss may take what was to be synced, and with it the end of a rotated file."""
    directory = CrashingDirectory.within(tmp_path)
    collection = opened(directory)
    queue = collection.obtain("jobs")
    queue.add(b"one")
    assert not collection.commits.commit()
    directory.break_steps("sync")
    with pytest.raises(OSError, match="No space left"):
        queue.sync()
    directory.mend()
    journal = queue.journal
    assert isinstance(journal, FileJournal)
    with pytest.raises(OSError, match="an earlier sync failed"):
        journal.end_file()
    assert not journal.sizes
    queue.tick()
    assert (journal.rewrites, journal.suspect) == (1, False)
    queue.add(b"two")
    assert not collection.commits.commit()
    journal.end_file()
    assert len(journal.sizes) == 2
    collection.close()
    assert items_on_disk(directory.path) == [b"one", b"two"]
