"""What a failed write left of a record is cut off, and what comes next goes to another file."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import item_data
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.fake_clock import FakeClock
from tests.support.limits import largest_file
from tests.support.real_directory import SimulatedCrash

pytestmark = pytest.mark.compiled

NAME = "jobs"
NOW = 1_700_000_000_000


class Follower:
    """Reads files as they grow, as Spark and backups do, and must never find other bytes.

    A file is known by its number in the file system, which it keeps when it is renamed; a copy
    under another name keeps the number from being used again.
    """

    def __init__(self, path: Path, links: Path) -> None:
        """Follow the files in `path`; `links` is an empty directory beside it."""
        self._path = path
        self._links = links
        self._read: dict[int, bytes] = {}

    def look(self, *, torn: int = 0) -> None:
        """Read what is new; what was read before must be as it was, or be gone.

        `torn` bytes at the end of a file may be unread, as of a record that is not whole yet.
        """
        for file in self._path.iterdir():
            inode = file.stat().st_ino
            if inode not in self._read:
                os.link(file, self._links / str(inode))
            found = file.read_bytes()
            before = self._read.get(inode, b"")
            assert before.startswith(found[: len(before)]), f"{file.name} was written over"
            if len(found) < len(before):
                found = before
            self._read[inode] = found[: len(found) - torn] if torn else found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue path."""
    found = tmp_path / "queues"
    found.mkdir()
    return found


@pytest.fixture
def follower(tmp_path: Path, path: Path) -> Follower:
    """Somebody who follows the queue path."""
    links = tmp_path / "followed"
    links.mkdir()
    return Follower(path, links)


@contextmanager
def queues(path: Path, memory: int = 1 << 20) -> Iterator[QueueCollection]:
    """Queues on a directory, closed in the end."""
    config = QueueConfig(max_memory_size=memory)
    collection = QueueCollection(ServerConfig(queue_path=path, default=config), FakeClock())
    collection.open()
    try:
        yield collection
    finally:
        collection.close()


def add(collection: QueueCollection, *items: bytes) -> bool:
    """Add items in one turn; whether they were stored."""
    queue = collection.obtain(NAME)
    for data in items:
        try:
            queue.add(data)
        except QueueUnavailable:
            collection.commits.commit()
            return False
    return not collection.commits.commit()


def contents(queue: Queue) -> list[bytes]:
    """Take everything off a queue."""
    found = []
    while (record := queue.line.remove()) is not None:
        found.append(item_data(record))
    return found


def journals(path: Path) -> list[str]:
    """Return the names of the journal files."""
    return sorted(file.name for file in path.iterdir() if "~~" not in file.name)


def write_and_fail(descriptor: int, data: bytes) -> int:
    """Write everything, and report an error all the same, as a network file system may."""
    os.pwrite(descriptor, data, os.fstat(descriptor).st_size)
    raise OSError(errno.EIO, "lost the server")


def write_half_and_stop(descriptor: int, data: bytes) -> int:
    """Write half of it until Ctrl-C is pressed."""
    os.pwrite(descriptor, data[: len(data) // 2], os.fstat(descriptor).st_size)
    raise KeyboardInterrupt


def close_and_fail(close: Callable[[int], None], descriptor: int) -> None:
    """Close it, and report an error all the same, as a network file system may."""
    close(descriptor)
    raise OSError(errno.EIO, "lost the server")


def cut_nothing(descriptor: int, size: int) -> None:  # as `os.ftruncate`
    """Fail as where a file may only grow."""
    raise OSError(errno.EPERM, "it may only grow")


def test_what_follows_a_failed_write_is_in_another_file(path: Path, follower: Follower) -> None:
    """Half of a record was in the file, where somebody may have seen it."""
    with queues(path) as collection:
        assert add(collection, b"first")
        follower.look()
        size = (path / NAME).stat().st_size
        with largest_file(size + 50):
            assert not add(collection, b"x" * 100)
        assert (path / NAME).stat().st_size == size
        follower.look()
        assert add(collection, b"y" * 100)
        follower.look()
        assert add(collection, b"z")
        assert len(journals(path)) == 2
        assert (path / NAME).stat().st_size == 100 + 21 + 1 + 21
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"y" * 100, b"z"]


def test_a_write_that_failed_though_it_wrote_everything(
    path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item was refused, and so it must not be in the queue, nor anything in its place."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with monkeypatch.context() as patch:
            patch.setattr("os.write", write_and_fail)
            assert not add(collection, b"refused")
        assert add(collection, b"taken")
        follower.look()
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"taken"]


def test_an_error_at_closing_the_old_file_takes_nothing_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is in the new file, whatever a network file system tells of the old one."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with largest_file((path / NAME).stat().st_size + 50):
            assert not add(collection, b"x" * 100)
        close = os.close
        with monkeypatch.context() as patch:
            patch.setattr("os.close", lambda descriptor: close_and_fail(close, descriptor))
            assert add(collection, b"y" * 100)
        assert add(collection, b"z")
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"y" * 100, b"z"]


def test_a_write_that_was_interrupted(
    path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item was not added; the next one is, and nothing stands between it and the first."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with monkeypatch.context() as patch:
            patch.setattr("os.write", write_half_and_stop)
            with pytest.raises(KeyboardInterrupt):
                add(collection, b"refused")
        assert len(collection.obtain(NAME)) == 1
        assert add(collection, b"taken")
        follower.look()
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"taken"]


def test_nothing_is_written_until_the_cut_succeeds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever adds gets errors meanwhile; a restart would cut off what is left."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with monkeypatch.context() as patch:
            patch.setattr("os.ftruncate", cut_nothing)
            with largest_file((path / NAME).stat().st_size + 50):
                assert not add(collection, b"x" * 100)
            left = (path / NAME).read_bytes()
            assert not add(collection, b"x")
            collection.tick()
            assert collection.obtain(NAME).core.failure is not None
            assert not add(collection, b"x")
            assert (path / NAME).read_bytes() == left
        collection.tick()
        assert collection.obtain(NAME).core.failure is None
        assert add(collection, b"taken")
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"taken"]


def test_a_disk_that_stays_full_gets_no_file_with_every_attempt(path: Path) -> None:
    """What is tried is written to a temporary, which goes again."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with largest_file((path / NAME).stat().st_size + 50):
            for _ in range(20):
                assert not add(collection, b"x" * 1000)
            assert journals(path) == [NAME]
            assert add(collection, b"small")
            assert len(journals(path)) == 2
        assert add(collection, b"x" * 1000)
        assert len(journals(path)) == 2
    assert [file.name for file in path.glob("*~~*")] == ["~~lock"]


def test_a_write_of_which_nothing_reached_the_file_is_simply_tried_again(path: Path) -> None:
    """Then nobody can have read anything."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with largest_file((path / NAME).stat().st_size):
            assert not add(collection, b"x")
        assert add(collection, b"second")
        assert journals(path) == [NAME]


@pytest.mark.parametrize("together", [1, 2, 5])
def test_a_queue_in_read_behind_finds_its_items_in_the_new_file(path: Path, together: int) -> None:
    """Also where the write that goes there begins with items that memory has, too."""
    with queues(path, memory=1000) as collection:
        queue = collection.obtain(NAME)
        assert add(collection, b"first")
        with largest_file((path / NAME).stat().st_size + 50):
            assert not add(collection, b"x" * 100)
        items = [b"%d" % number * 300 for number in range(together * 4)]
        for at in range(0, len(items), together):
            assert add(collection, *items[at : at + together])
        assert queue.backlog.read_behind
        assert contents(queue) == [b"first", *items]


def test_a_failure_in_read_behind(path: Path) -> None:
    """The reader goes on behind what was cut off."""
    with queues(path, memory=1000) as collection:
        queue = collection.obtain(NAME)
        items = [b"%d" % number * 300 for number in range(12)]
        for number, data in enumerate(items):
            if number % 4 == 3:
                with largest_file((path / NAME).stat().st_size + 50):
                    assert not add(collection, b"x" * 100)
            assert add(collection, data)
        assert contents(queue) == items


def test_a_rotation_cuts_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that others follow ends with a whole record."""
    with queues(path) as collection:
        assert add(collection, b"first")
        with monkeypatch.context() as patch:
            patch.setattr("os.write", write_and_fail)
            patch.setattr("os.ftruncate", cut_nothing)
            assert not add(collection, b"refused")
        journal = collection.obtain(NAME).journal
        assert isinstance(journal, FileJournal)
        whole = journal.size
        journal.rotate()
        assert add(collection, b"taken")
        (rotated,) = path.glob(f"{NAME}.*")
        assert rotated.stat().st_size == whole
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"taken"]


def test_a_file_that_became_shorter_is_not_made_longer(path: Path) -> None:
    """Somebody else cut it: zeros in place of what was there would be worse than an error."""
    file = DiskDirectory(path).append_to(NAME)
    file.append(b"0123456789")
    os.truncate(path / NAME, 3)
    with largest_file(3), pytest.raises(OSError, match="large"):
        file.append(b"x")
    with pytest.raises(OSError, match="changed by another program"):
        file.append(b"x")
    file.close()
    assert (path / NAME).read_bytes() == b"012"


# --- at load ---


def test_what_follows_a_torn_end_is_in_another_file(path: Path, follower: Follower) -> None:
    """The end was there for whoever read before the server came up again."""
    with queues(path) as collection:
        assert add(collection, b"first")
    with (path / NAME).open("ab") as file:
        file.write(b"\x02\x64\x00")
    follower.look()
    with queues(path) as collection:
        follower.look()
        assert add(collection, b"second")
        follower.look()
    assert len(journals(path)) == 2
    with queues(path) as collection:
        assert contents(collection.obtain(NAME)) == [b"first", b"second"]


@pytest.mark.parametrize("loss", CrashLoss)
def test_a_crash_while_a_torn_end_is_cut_off(tmp_path: Path, loss: CrashLoss) -> None:
    """Wherever it comes: the next start appends nothing to a file that was longer once."""
    for step in range(1, 100):
        base = tmp_path / str(step)
        for name in ("queues", "links", "followed"):
            (base / name).mkdir(parents=True)
        path = base / "queues"
        with queues(path) as collection:
            assert add(collection, b"first")
        whole = (path / NAME).read_bytes()
        before = whole + b"\x02\x64\x00"
        (path / NAME).write_bytes(before)
        directory = CrashingDirectory(path, base / "links")
        directory.crash_at = step
        crashed = QueueCollection(ServerConfig(queue_path=path), FakeClock(NOW), directory)
        try:
            crashed.open()
        except SimulatedCrash:
            pass
        else:
            crashed.close()
            break
        finally:
            crashed._lock.release()
            directory.abandon()
        directory.survive(loss, base / "survived")
        with queues(base / "survived") as collection:
            assert add(collection, b"second")
        found = (base / "survived" / NAME).read_bytes()
        assert before.startswith(found) or not found.startswith(whole)
        with queues(base / "survived") as collection:
            assert contents(collection.obtain(NAME)) == [b"first", b"second"]
    assert step > 5
