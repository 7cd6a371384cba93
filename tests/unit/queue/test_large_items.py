"""An item whose record is written before it is added: what becomes of its file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import Item, item, item_data, item_expiry
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.large_items import LargePut, WrittenAhead
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.collection import QueueCollection
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import items_on_disk
from tests.support.open_reads import data_by_xid

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


def begin(queue: Queue, data: bytes, mark: PutMark | None = None, expiry: int = 0) -> WrittenAhead:
    """Write an item; return it, to be added."""
    large = WrittenAhead(queue, 1000, expiry, mark)
    large.write(data, lambda: None)
    return large


def files(directory: CrashingDirectory) -> list[str]:
    """Return the names of all files but the lock."""
    return sorted(name for name in directory.names() if not name.startswith("~~"))


def test_the_file_becomes_the_journals_current_one(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """After what was collected, and before what comes; a restart finds all in order."""
    queue = collection.obtain("jobs")
    large = begin(queue, b"large")
    assert len(files(directory)) == 2
    queue.add(b"before")
    assert large.add()
    queue.add(b"after")
    assert not collection.commits.commit()
    (rotated,) = queue.journal.sizes  # type: ignore[union-attr]
    assert files(directory) == ["jobs", rotated]
    found = (directory.path / "jobs").read_bytes()
    assert found.startswith(large.record)
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
    large = begin(queue, b"two")
    assert not large.add()
    large.discard()
    assert not collection.commits.commit()
    assert (files(directory), len(queue)) == (["full"], 1)


@pytest.mark.parametrize("step", ["rename", "open"])
def test_a_failure_changes_nothing(
    collection: QueueCollection, directory: CrashingDirectory, step: str
) -> None:
    """The item is not added, the failure shows, and the queue goes on when the disk does."""
    queue = collection.obtain("jobs")
    large = begin(queue, b"large")
    queue.add(b"before")
    directory.break_steps(step)
    with pytest.raises(JournalError):
        large.add()
    assert step in str(queue.failure)
    assert (len(queue), queue.backlog.total_items) == (1, 1)
    directory.mend()
    large.discard()
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
    large = begin(queue, b"large")

    def interrupt(_point: str) -> bool:
        raise KeyboardInterrupt

    directory.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        large.add()
    directory.mend()
    assert (len(queue), queue.backlog.total_items) == (0, 0)
    large.discard()
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
    """They get the item too, each in its own journal."""
    queue = collection.obtain("jobs")
    large = begin(queue, b"large")
    child = collection.obtain("jobs+copy")
    assert large.add()
    assert not collection.commits.commit()
    assert (len(queue), len(child)) == (1, 1)
    (rotated,) = queue.journal.sizes  # type: ignore[union-attr]
    assert files(directory) == ["jobs", "jobs+copy", rotated]


def restarted(directory: CrashingDirectory) -> dict[str, list[tuple[bytes, int]]]:
    """Return the items of all queues after a restart, with their expiries."""
    again = QueueCollection(ServerConfig(queue_path=directory.path), FakeClock())
    again.open()
    found = {
        name: [(item_data(one), item_expiry(one)) for one in queue.browse(9)]
        for name, queue in again.queues.items()
    }
    again.close()
    return found


def test_each_child_has_a_file_of_its_own(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """With the expiry that the item has there; a full child does not stop the others."""
    aged = QueueConfig(max_age=60)
    full = QueueConfig(max_items=1)
    config = collection.config
    queues = {**config.queues, "jobs+aged": aged, "jobs+full": full}
    assert collection.reload(config.model_copy(update={"queues": queues})) == []
    for name in ("jobs", "jobs+aged", "jobs+copy", "jobs+full"):
        collection.obtain(name)
    collection.obtain("jobs+full").add(b"one")
    large = begin(collection.obtain("jobs"), b"large", expiry=2_000_000)
    assert len([name for name in files(directory) if "~~" in name]) == 4
    assert large.add()
    large.discard()
    assert not collection.commits.commit()
    assert not [name for name in files(directory) if "~~" in name]
    collection.close()
    assert restarted(directory) == {
        "jobs": [(b"large", 2_000_000)],
        "jobs+aged": [(b"large", 61_000)],
        "jobs+copy": [(b"large", 2_000_000)],
        "jobs+full": [(b"one", 0)],
    }


def test_only_the_children_have_files_if_the_queue_keeps_nothing(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """A queue that is fanout_only hands the item on."""
    config = collection.config
    queues = {**config.queues, "jobs": QueueConfig(fanout_only=True)}
    assert collection.reload(config.model_copy(update={"queues": queues})) == []
    queue, child = collection.obtain("jobs"), collection.obtain("jobs+copy")
    large = WrittenAhead(queue, 1000, 0)
    assert large.is_useful
    large.write(b"large", lambda: None)
    assert large.add()
    assert not collection.commits.commit()
    assert (len(queue), [item_data(one) for one in child.browse(9)]) == (0, [b"large"])


def test_a_child_whose_file_cannot_be_written(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """It gets the item as any other."""
    queue, child = collection.obtain("jobs"), collection.obtain("jobs+copy")
    large = WrittenAhead(queue, 1000, 0)
    directory.break_steps("create jobs+copy~~")
    large.write(b"large", lambda: None)
    directory.mend()
    assert large.add()
    assert not collection.commits.commit()
    assert (len(queue), [item_data(one) for one in child.browse(9)]) == (1, [b"large"])


def test_a_child_that_cannot_add_it(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """The others and the queue get it all the same, and the client an error."""
    queue, child = collection.obtain("jobs"), collection.obtain("jobs+copy")
    last = collection.obtain("jobs+last")
    large = begin(queue, b"large")
    left = ["rename"]

    def is_first_rename(point: str) -> bool:
        return point.startswith("rename") and bool(left) and bool(left.pop())

    directory.fail = is_first_rename
    with pytest.raises(JournalError, match="jobs"):
        large.add()
    large.discard()
    assert not collection.commits.commit()
    assert (len(child), len(last), len(queue)) == (0, 1, 1)
    collection.close()
    found = restarted(directory)
    assert [len(found[name]) for name in ("jobs+copy", "jobs+last", "jobs")] == [0, 1, 1]


def test_a_shorter_max_age_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """It counts, and the file goes."""
    queue = collection.obtain("jobs")
    large = begin(queue, b"large")
    config = collection.config
    queues = {**config.queues, "jobs": QueueConfig(max_age=5)}
    assert collection.reload(config.model_copy(update={"queues": queues})) == []
    assert large.add()
    assert not collection.commits.commit()
    assert files(directory) == ["jobs"]
    collection.close()
    assert restarted(directory) == {"jobs": [(b"large", 6000)]}


def test_a_producers_item_for_a_queue_that_got_fanout_children_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """They get it too, each once, however often the producer repeats the add."""
    queue, mark = collection.obtain("jobs"), PutMark(b"p", 1)
    large = begin(queue, b"large", mark)
    child = collection.obtain("jobs+copy")
    assert large.add()
    assert queue.add_once(b"large", mark)
    assert not collection.commits.commit()
    assert (len(queue), len(child)) == (1, 1)
    large.discard()
    assert not [name for name in files(directory) if "~~" in name]


def test_a_repeated_add_for_a_queue_that_got_fanout_children_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """Only they get the item: the queue has it."""
    queue, mark = collection.obtain("jobs"), PutMark(b"p", 1)
    assert queue.add_once(b"large", mark)
    child = collection.obtain("jobs+copy")
    assert begin(queue, b"large", mark).add()
    assert not collection.commits.commit()
    assert (len(queue), [item_data(one) for one in child.browse(9)]) == (1, [b"large"])
    assert files(directory) == ["jobs", "jobs+copy"]


def test_a_producers_item_counts_after_a_restart(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """Its mark is in the file: when the producer repeats the add, nothing is stored."""
    collection.obtain("jobs+copy")
    mark = PutMark(b"p", 1)
    assert begin(collection.obtain("jobs"), b"large", mark).add()
    assert not collection.commits.commit()
    collection.close()
    again = QueueCollection(ServerConfig(queue_path=directory.path), FakeClock())
    again.open()
    assert again.obtain("jobs").add_once(b"large", mark)
    assert [len(again.obtain(name)) for name in ("jobs", "jobs+copy")] == [1, 1]
    again.close()


def test_it_expires(collection: QueueCollection, directory: CrashingDirectory) -> None:
    """As any other item; also in a child that the queue got meanwhile."""
    queue = collection.obtain("jobs")
    large = begin(queue, b"large", expiry=2000)
    child = collection.obtain("jobs+copy")
    assert large.add()
    assert [len(one) for one in (queue, child)] == [1, 1]
    assert [one.remove() for one in (queue, child)] == [None, None]
    assert [one.expired_items for one in (queue, child)] == [1, 1]


def test_a_queue_that_was_deleted_meanwhile(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """It refuses the item, and the file goes."""
    queue = collection.obtain("jobs")
    large = begin(queue, b"large")
    collection.delete("jobs")
    with pytest.raises(QueueUnavailable):
        large.add()
    assert files(directory) == []


def test_a_waiting_reader_gets_it(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """As any other item."""
    queue = collection.obtain("jobs")
    told: list[Item | None] = []
    queue.wait(Waiter(ReadMode.REMOVE, lambda record, _: told.append(record), _unexpected))
    large = begin(queue, b"large")
    assert large.add()
    assert not collection.commits.commit()
    assert (told, len(queue)) == ([large.record], 0)


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_which_queues_take_no_such_item(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """Those without a journal."""
    config = collection.config
    queues = {**config.queues, "jobs": QueueConfig(keep_journal=False)}
    assert WrittenAhead(collection.obtain("jobs"), 1000, 0).is_useful
    assert collection.delete("jobs")
    assert collection.reload(config.model_copy(update={"queues": queues})) == []
    assert not WrittenAhead(collection.obtain("jobs"), 1000, 0).is_useful


def test_its_reply_waits_for_a_sync(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """When the settings say that replies do."""
    queue = collection.obtain("synced")
    assert begin(queue, b"large").add()
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
    large = begin(queue, b"large")
    for data in (b"second", b"third"):
        queue.add(data)
        assert not collection.commits.commit()
    directory.break_steps("sync")
    with pytest.raises(OSError, match="No space left"):
        queue.sync()
    directory.mend()
    assert not queue.can_write_ahead
    assert large.add()
    assert not collection.commits.commit()
    assert [item_data(one) for one in queue.browse(9)] == [b"first", b"second", b"third", b"large"]
    directory.survive(loss, tmp_path / "survived")
    found = items_on_disk(tmp_path / "survived")
    assert found == [b"first", b"second", b"third", b"large"][: len(found)]
    assert found


def put_to_all(*queues: Queue, failure: str | None = None) -> LargePut:
    """Write an item for several queues; return it, to be added."""
    large = LargePut([WrittenAhead(queue, 1000, 0) for queue in queues], failure)
    large.write_record(item(1000, 0, b"large"), lambda: None)
    return large


def test_an_item_for_several_queues(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """Each has a file with it; one that is named twice gets it twice."""
    queues = [collection.obtain(name) for name in ("a", "b", "a")]
    large = put_to_all(*queues)
    assert large.add()
    assert large.targets == queues
    assert not collection.commits.commit()
    assert [len(queue) for queue in queues] == [2, 1, 2]
    assert not [name for name in directory.names() if "ahead" in name]
    collection.close()
    assert {name: len(found) for name, found in restarted(directory).items()} == {"a": 2, "b": 1}


def test_several_queues_of_which_one_refuses(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """Or was deleted meanwhile, or cannot be used: the others get the item, and no file is left."""
    full, gone = collection.obtain("full"), collection.obtain("gone")
    full.add(b"one")
    queues = [collection.obtain("a"), full, collection.obtain("b")]
    large = put_to_all(*queues)
    assert not large.add()
    large.discard()
    large = put_to_all(gone, *queues)
    collection.delete("gone")
    with pytest.raises(QueueUnavailable, match="gone"):
        large.add()
    large.discard()
    with pytest.raises(QueueUnavailable, match="is damaged"):
        put_to_all(*queues, failure="it is damaged").add()
    assert [len(queue) for queue in queues] == [3, 1, 3]
    assert len([name for name in directory.names() if "ahead" in name]) == 1


def test_several_queues_of_which_one_cannot_be_written(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """The others get the item, and the client an error."""
    queues = [collection.obtain(name) for name in ("a", "b", "c")]
    large = put_to_all(*queues)
    directory.fail = lambda point: "rename b" in point
    with pytest.raises(JournalError, match="queue b"):
        large.add()
    directory.mend()
    assert not collection.commits.commit()
    assert [len(queue) for queue in queues] == [1, 0, 1]
    directory.fail = lambda point: point.startswith("append") and "c~~ahead" in point
    large = LargePut([WrittenAhead(queue, 1000, 0) for queue in queues])
    with pytest.raises(OSError, match="append"):
        large.write(b"large", lambda: None)
    assert large.writing is queues[2]
    directory.mend()
    large.discard()
    assert not [name for name in directory.names() if "ahead" in name]


DUE: Final = 2_000_000_000_000
"""Later than the clock of a test says (ms)."""


def begin_delayed(queue: Queue, data: bytes, mark: PutMark | None = None) -> WrittenAhead:
    """Write an item that is delayed; return it, to be added."""
    large = WrittenAhead(queue, DUE, 0, mark, is_delayed=True)
    large.write(data, lambda: None)
    return large


def delayed_after_a_start(directory: CrashingDirectory) -> list[bytes]:
    """Return the delayed items that the next start finds."""
    config = CONFIG.model_copy(update={"queue_path": directory.path})
    collection = QueueCollection(config, FakeClock())
    collection.open()
    companion = collection.obtain("jobs").with_companion[-1]
    found = list(data_by_xid(companion.reads.open).values())
    collection.close()
    return found


def test_the_file_of_a_delayed_item_becomes_the_companions(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """After what was collected, and before what comes; a restart finds all delayed."""
    queue = collection.obtain("jobs")
    large = begin_delayed(queue, b"large")
    queue.add_delayed(b"before", DUE)
    assert large.add()
    queue.add_delayed(b"after", DUE)
    assert not collection.commits.commit()
    assert (directory.path / "jobs~~delayed").read_bytes().startswith(large.record)
    assert (len(queue), queue.delayed_items) == (0, 3)
    collection.close()
    assert delayed_after_a_start(directory) == [b"before", b"large", b"after"]


def test_a_delayed_item_whose_read_cannot_be_written_at_once(
    collection: QueueCollection, directory: CrashingDirectory
) -> None:
    """It is stored all the same: the next write opens the read first, and so does a start."""
    queue = collection.obtain("jobs")
    first, second = begin_delayed(queue, b"first"), begin_delayed(queue, b"second")
    directory.break_steps("append")
    assert first.add()
    directory.mend()
    assert delayed_in_a_copy(directory) == [b"first"]
    assert second.add()
    assert not collection.commits.commit()
    assert queue.delayed_items == 2
    collection.close()
    assert delayed_after_a_start(directory) == [b"first", b"second"]


def delayed_in_a_copy(directory: CrashingDirectory) -> list[bytes]:
    """Return the delayed items that a start would find now."""
    copy = CrashingDirectory.within(directory.path.parent / "copy")
    for name in directory.names():
        if not name.startswith("~~"):
            (copy.path / name).write_bytes((directory.path / name).read_bytes())
    return delayed_after_a_start(copy)


@pytest.mark.parametrize("limit", ["max_items", "max_age"])
def test_a_delayed_item_that_is_not_as_it_was_written(
    collection: QueueCollection, directory: CrashingDirectory, limit: str
) -> None:
    """One that is refused, or expires earlier by new settings, leaves no file."""
    queue = collection.obtain("jobs")
    large = begin_delayed(queue, b"large")
    queue.configure(queue.config.model_copy(update={limit: 0}))
    assert large.add() is (limit == "max_age")
    large.discard()
    assert not collection.commits.commit()
    assert not [name for name in directory.names() if "ahead" in name]
    assert queue.delayed_items == (limit == "max_age")


def test_a_delayed_item_of_a_producer(collection: QueueCollection) -> None:
    """It is stored once, whatever is sent again, also after a restart."""
    queue = collection.obtain("jobs")
    mark = PutMark(b"p", 5)
    assert begin_delayed(queue, b"large", mark).add()
    assert not collection.commits.commit()
    again = begin_delayed(queue, b"large", mark)
    assert again.add()
    assert (queue.delayed_items, queue.last_number(b"p")) == (1, 5)
    collection.close()
    reopened = QueueCollection(collection.config, FakeClock())
    reopened.open()
    assert reopened.obtain("jobs").last_number(b"p") == 5
    reopened.close()
