"""The files of one queue as they are written: rotations, syncs and removals that go wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.clock import no_pause
from kestrelmq.disk.directories import DiskDirectory, DiskFile, UnnamedFiles
from kestrelmq.journal.writer import FileJournal
from tests.support.crashing_directory import CrashingDirectory
from tests.support.descriptors import open_below
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import journal
from tests.support.local_queues import items_on_disk
from tests.support.real_directory import RealFile

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
FIRST, SECOND = journal("first"), journal("second")


@pytest.fixture
def directory(tmp_path: Path) -> CrashingDirectory:
    """Return a directory that fails on demand."""
    return CrashingDirectory.within(tmp_path)


@pytest.fixture
def written(directory: CrashingDirectory) -> FileJournal:
    """Return an open journal with one item that is not synced."""
    one = FileJournal(directory, "jobs", {}, FakeClock(NOW))
    one.open()
    one.append(FIRST)
    return one


def test_a_closed_journal_takes_nothing(directory: CrashingDirectory, written: FileJournal) -> None:
    """To append or rotate is an error; there is nothing to sync, and the disk can be tried."""
    written.close()
    with pytest.raises(OSError, match="the journal is closed"):
        written.append(SECOND)
    with pytest.raises(OSError, match="the journal is closed"):
        written.rotate()
    written.sync_current()
    written.probe()
    directory.break_steps("append")
    with pytest.raises(OSError, match="No space left"):
        written.probe()
    assert {name: (directory.path / name).read_bytes() for name in directory.names()} == {
        "jobs": FIRST
    }


def test_a_queue_that_is_deleted_begins_no_file(
    directory: CrashingDirectory, written: FileJournal
) -> None:
    """It goes on in the one that it has; a new queue may have the name already."""
    removal = written.begin_removal()
    written.append(SECOND)
    with pytest.raises(OSError, match="the journal is being removed"):
        written.rotate()
    assert directory.names() == [f"jobs.{NOW}"]
    removal.replace(no_pause)
    written.close()
    removal.remove(UnnamedFiles(), no_pause)
    assert directory.names() == []


def test_a_queue_whose_rotation_failed_half_way_is_deleted_whole(
    directory: CrashingDirectory, written: FileJournal
) -> None:
    """Its current file has the name of a rotated one already, and is renamed no more."""
    directory.break_steps("rename jobs~~")
    with pytest.raises(OSError, match="No space left"):
        written.rotate()
    assert written.current_name == f"jobs.{NOW}"
    directory.mend()
    written.append(SECOND)
    removal = written.begin_removal()
    assert directory.names() == [f"jobs.{NOW}"]
    removal.replace(no_pause)
    written.close()
    removal.remove(UnnamedFiles(), no_pause)
    assert directory.names() == []


def test_files_of_a_deleted_queue_that_cannot_be_removed_mean_nothing(
    directory: CrashingDirectory, written: FileJournal, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that they stay; they are gone after the next start."""
    removal = written.begin_removal()
    removal.replace(no_pause)
    written.close()
    directory.break_steps("remove")
    removal.remove(UnnamedFiles(), no_pause)
    told = "queue jobs is deleted, but not all of its files: [Errno 28] No space left on device"
    assert told in caplog.text
    assert sorted(directory.names()) == [f"jobs.{NOW}", f"jobs.{NOW}.pack"]
    assert items_on_disk(directory.path) == []


@pytest.mark.parametrize("step", ["rename", "open"])
def test_records_that_need_a_new_file_are_written_whole_or_not(
    directory: CrashingDirectory, written: FileJournal, step: str
) -> None:
    """When they cannot become the current file, none of them stays, nor does a temporary."""
    written.is_torn = True
    directory.break_steps(step)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            written.append(SECOND)
        assert directory.names() == ["jobs"]
    directory.mend()
    written.append(SECOND)
    written.close()
    assert sorted(directory.names()) == ["jobs", f"jobs.{NOW}"]
    assert items_on_disk(directory.path) == [b"first", b"second"]


def test_a_suspect_journal_goes_on_in_a_new_file(
    directory: CrashingDirectory, written: FileJournal
) -> None:
    """Only to be replaced: another failing sync of its old file is no matter then."""
    directory.break_steps("sync jobs")
    with pytest.raises(OSError, match="No space left"):
        written.rotate()
    assert written.suspect
    assert directory.names() == ["jobs"]
    with pytest.raises(OSError, match="an earlier sync failed"):
        written.rotate()
    assert written.rotate(cures=True) == f"jobs.{NOW}"
    assert sorted(directory.names()) == ["jobs", f"jobs.{NOW}"]
    with pytest.raises(OSError, match="an earlier sync failed"):
        written.sync()
    with pytest.raises(OSError, match="an earlier sync failed"):
        written.probe()
    written.close()


def test_a_file_that_could_not_be_removed_is_not_gone_on_with(
    directory: CrashingDirectory, written: FileJournal
) -> None:
    """Trying the disk leaves it, under the name that the next file has until it is in use."""
    directory.break_steps("remove")
    with pytest.raises(OSError, match="No space left"):
        written.probe()
    directory.mend()
    assert written.rotate() == f"jobs.{NOW}"
    written.append(SECOND)
    written.close()
    assert written.size == len(FIRST + SECOND)
    assert items_on_disk(directory.path) == [b"first", b"second"]
    assert open_below(directory.path) == []


class WatchedFile(RealFile):
    """A file on disk; something is done before its first sync, as by another thread."""

    def __init__(self, file: DiskFile, before: Callable[[], object]) -> None:
        super().__init__(file)
        self._before = before
        self._is_first = True

    def append(self, data: bytes) -> None:
        """Write all of `data`."""
        self.file.append(data)

    def sync(self) -> None:
        """Force it to disk."""
        if self._is_first:
            self._is_first = False
            self._before()
        self.file.sync()


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_that_is_rotated_during_its_sync(
    directory: CrashingDirectory, monkeypatch: pytest.MonkeyPatch, *, is_packed: bool
) -> None:
    """The sync of a thread says nothing of the new file, and does not fail with the old one gone.

    The rotation has synced the old file itself; a pack may have taken its place since.
    """

    def rotate() -> None:
        rotated = one.rotate()
        one.append(SECOND)
        if is_packed:
            disk.remove(rotated)

    disk = DiskDirectory(directory.path)
    monkeypatch.setattr(
        directory, "append_to", lambda name, _found: WatchedFile(disk.append_to(name), rotate)
    )
    for step in ("rename", "remove"):
        monkeypatch.setattr(directory, step, getattr(disk, step))
    one = FileJournal(directory, "jobs", {}, FakeClock(NOW))
    one.open()
    monkeypatch.setattr(directory, "append_to", disk.append_to)
    one.append(FIRST)
    one.sync_current()
    assert list(one.sizes) == [f"jobs.{NOW}"]
    assert not one.suspect
    assert one.unsynced == len(SECOND)
    one.sync_current()
    assert one.unsynced == 0
    one.close()
    assert open_below(directory.path) == []
