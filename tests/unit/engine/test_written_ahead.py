"""An item whose record is written before it is added: what becomes of its file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import ReadMode, Waiter
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.journal.records import item, item_data
from kestrelmq.marks import PutMark
from kestrelmq.testing.clock import FakeClock
from kestrelmq.testing.crashing import CrashingDirectory, CrashLoss
from kestrelmq.testing.queues import items_on_disk

pytestmark = pytest.mark.compiled

CONFIG = ServerConfig(
    queues={
        "full": QueueConfig(max_items=1),
        "aged": QueueConfig(max_age=60),
        "synced": QueueConfig(sync_journal=0),
    }
)


@pytest.fixture
def directory(tmp_path: Path) -> CrashingDirectory:
    """Return a directory that can be made to fail."""
    return CrashingDirectory.within(tmp_path)


@pytest.fixture
def collection(directory: CrashingDirectory) -> Iterator[QueueCollection]:
    """Return the queues on it."""
    config = CONFIG.model_copy(update={"queue_path": directory.path})
    opened = QueueCollection(config, FakeClock(), directory)
    opened.open()
    yield opened
    opened.close()


def begin(queue: Queue, data: bytes) -> tuple[bytes, str]:
    """Write an item; return its record and file."""
    record, file = item(1000, 0, data), queue.new_file_name()
    queue.write_ahead(file, record, lambda: None)
    return record, file


def files(directory: CrashingDirectory) -> list[str]:
    """Return the names of all files but the lock."""
    return sorted(name for name in directory.names() if not name.startswith("~~"))


def test_the_file_becomes_the_journals_current_one(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """After what was collected, and before what comes; a restart finds all in order."""
    queue = collection.obtain("jobs")
    record, file = begin(queue, b"large")
    assert files(directory) == ["jobs", file]
    queue.add(b"before")
    assert queue.add_written_ahead(record, file)
    queue.add(b"after")
    assert not collection.commits.commit()
    (rotated,) = queue.journal.sizes  # type: ignore[union-attr]
    assert files(directory) == ["jobs", rotated]
    found = (directory.path / "jobs").read_bytes()
    assert found.startswith(record)
    assert queue.journal.size == sum(
        (directory.path / name).stat().st_size for name in files(directory)
    )
    collection.close()
    again = QueueCollection(ServerConfig(queue_path=directory.path), FakeClock())
    again.open()
    loaded = again.obtain("jobs").browse(9)
    again.close()
    assert list(map(item_data, loaded)) == [b"before", b"large", b"after"]


def test_a_refused_item_leaves_its_file_to_be_forgotten(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """And the queue as it was."""
    queue = collection.obtain("full")
    queue.add(b"one")
    record, file = begin(queue, b"two")
    assert not queue.add_written_ahead(record, file)
    queue.discard_file(file)
    assert not collection.commits.commit()
    assert (files(directory), len(queue)) == (["full"], 1)


@pytest.mark.parametrize("step", ["rename", "open"])
def test_a_failure_changes_nothing(
    collection: QueueCollection, directory: CrashingDirectory, step: str
) -> None:
    """The item is not added, the failure shows, and the queue goes on when the disk does."""
    queue = collection.obtain("jobs")
    record, file = begin(queue, b"large")
    queue.add(b"before")
    directory.break_steps(step)
    with pytest.raises(JournalError):
        queue.add_written_ahead(record, file)
    assert step in str(queue.failure)
    assert (len(queue), queue.total_items) == (1, 1)
    directory.mend()
    queue.discard_file(file)
    queue.add(b"after")
    assert not collection.commits.commit()
    assert queue.failure is None
    assert [item_data(record) for record in queue.browse(9)] == [b"before", b"after"]
    assert len(files(directory)) <= 2


def test_an_interruption_changes_nothing(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """An item that is not in the journal is not in the queue, either."""
    queue = collection.obtain("jobs")
    record, file = begin(queue, b"large")

    def interrupt(_point: str) -> bool:
        raise KeyboardInterrupt

    directory.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        queue.add_written_ahead(record, file)
    directory.mend()
    assert (len(queue), queue.total_items) == (0, 0)
    queue.discard_file(file)
    assert files(directory) == ["jobs"]


def test_a_disk_that_is_full_leaves_no_file(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """What was written of it is removed at once."""
    queue = collection.obtain("jobs")
    directory.break_steps("append")
    with pytest.raises(OSError, match="append"):
        begin(queue, b"large")
    assert files(directory) == ["jobs"]


def test_a_queue_that_got_fanout_children_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """They get the item too, each in its own journal, and the file goes."""
    queue = collection.obtain("jobs")
    record, file = begin(queue, b"large")
    child = collection.obtain("jobs+copy")
    assert queue.add_written_ahead(record, file)
    assert not collection.commits.commit()
    assert (len(queue), len(child)) == (1, 1)
    assert files(directory) == ["jobs", "jobs+copy"]


def test_a_producers_item_for_a_queue_that_got_fanout_children_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """They get it too, each once, however often the producer repeats the add."""
    queue, mark = collection.obtain("jobs"), PutMark(b"p", 1)
    record, file = begin(queue, b"large")
    child = collection.obtain("jobs+copy")
    assert queue.add_written_ahead(record, file, mark=mark)
    assert queue.add_once(b"large", mark)
    assert not collection.commits.commit()
    assert (len(queue), len(child)) == (1, 1)
    assert files(directory) == ["jobs", "jobs+copy"]


def test_a_queue_that_was_deleted_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """It refuses the item, and the file goes."""
    queue = collection.obtain("jobs")
    record, file = begin(queue, b"large")
    collection.delete("jobs")
    with pytest.raises(QueueUnavailable):
        queue.add_written_ahead(record, file)
    assert files(directory) == []


def test_a_queue_whose_journal_was_turned_off_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """It takes the item in memory, and no file is left; a new one is not written."""
    queue = collection.obtain("jobs")
    record, file = begin(queue, b"large")
    default = QueueConfig(keep_journal=False)
    assert collection.reload(collection.config.model_copy(update={"default": default})) == []
    with pytest.raises(OSError, match="queue jobs keeps no journal any more"):
        begin(queue, b"another")
    assert queue.add_written_ahead(record, file)
    assert not collection.commits.commit()
    assert [item_data(record) for record in queue.browse(9)] == [b"large"]
    assert files(directory) == []


def test_a_waiting_reader_gets_it(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """As any other item."""
    queue = collection.obtain("jobs")
    told: list[bytes | None] = []
    queue.wait(Waiter(ReadMode.REMOVE, lambda record, _: told.append(record), _unexpected))
    record, file = begin(queue, b"large")
    assert queue.add_written_ahead(record, file)
    assert not collection.commits.commit()
    assert (told, len(queue)) == ([record], 0)


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_which_queues_take_no_such_item(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """Those that may have to change its expiry."""
    assert collection.obtain("jobs").can_write_ahead
    assert not collection.obtain("aged").can_write_ahead


def test_its_reply_waits_for_a_sync(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """When the settings say that replies do."""
    queue = collection.obtain("synced")
    assert queue.add_written_ahead(*begin(queue, b"large"))
    assert not collection.commits.commit()
    assert collection.commits.syncs.take_unsynced() == {queue}


def test_two_queues_of_one_name_begin_different_files(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """One may still be written when the other begins."""
    first = collection.obtain("jobs").new_file_name()
    collection.delete("jobs")
    assert collection.obtain("jobs").new_file_name() != first


@pytest.mark.parametrize("loss", CrashLoss)
def test_behind_a_sync_that_failed_nothing_is_in_another_file(
    tmp_path: Path, collection: QueueCollection, directory: CrashingDirectory, loss: CrashLoss
) -> None:
    """A power loss may take what was to be synced: a later file must not be there without it."""
    queue = collection.obtain("jobs")
    queue.add(b"first")
    assert not collection.commits.commit()
    queue.sync()
    record, file = begin(queue, b"large")
    for data in (b"second", b"third"):
        queue.add(data)
        assert not collection.commits.commit()
    directory.break_steps("sync")
    with pytest.raises(OSError, match="No space left"):
        queue.sync()
    directory.mend()
    assert not queue.can_write_ahead
    assert queue.add_written_ahead(record, file)
    assert not collection.commits.commit()
    assert [item_data(one) for one in queue.browse(9)] == [b"first", b"second", b"third", b"large"]
    directory.survive(loss, tmp_path / "survived")
    found = items_on_disk(tmp_path / "survived")
    assert found == [b"first", b"second", b"third", b"large"][: len(found)]
    assert found
