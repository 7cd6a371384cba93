"""What a directory on disk forces there: the system calls that the crash tests stand in for."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.renaming import make_directory, rename_durably, sync_path

pytestmark = pytest.mark.compiled


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the inodes of what is synced are noted."""
    noted: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: noted.append(os.fstat(descriptor).st_ino))
    return noted


def test_a_sync_of_the_directory_is_one(tmp_path: Path, synced: list[int]) -> None:
    """Of the directory itself."""
    DiskDirectory(tmp_path).sync()
    assert synced == [tmp_path.stat().st_ino]


@pytest.mark.parametrize(
    "action",
    [
        lambda directory: directory.sync_file("jobs"),
        lambda directory: directory.truncate("jobs", 2),
        lambda directory: directory.append_to("jobs").sync(),
    ],
)
def test_a_file_is_synced(
    tmp_path: Path, synced: list[int], action: Callable[[DiskDirectory], None]
) -> None:
    """By each method that promises it."""
    (tmp_path / "jobs").write_bytes(b"content")
    action(DiskDirectory(tmp_path))
    assert synced == [(tmp_path / "jobs").stat().st_ino]


def test_a_file_that_gave_up_its_descriptor_is_synced(tmp_path: Path, synced: list[int]) -> None:
    """By another descriptor."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    assert file.release()
    file.sync()
    assert synced == [(tmp_path / "jobs").stat().st_ino]


def test_a_path_is_synced(tmp_path: Path, synced: list[int]) -> None:
    """A file, or the names in a directory."""
    (tmp_path / "part").write_bytes(b"content")
    sync_path(tmp_path / "part")
    sync_path(tmp_path)
    assert synced == [(tmp_path / "part").stat().st_ino, tmp_path.stat().st_ino]


def test_a_rename_by_path_is_synced(tmp_path: Path, synced: list[int]) -> None:
    """By a sync of the directory, which comes after it."""
    (tmp_path / "old").mkdir()
    rename_durably(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    assert synced == [tmp_path.stat().st_ino]


def test_a_directory_is_made_durably(tmp_path: Path, synced: list[int]) -> None:
    """So are those it is in, as far as they are new; what is there already costs nothing."""
    make_directory(tmp_path / "one" / "two", 0o750)
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "one").stat().st_ino]
    assert (tmp_path / "one" / "two").stat().st_mode & 0o777 == 0o750
    make_directory(tmp_path / "one" / "two")
    assert len(synced) == 2


def test_a_copy_is_synced(
    tmp_path: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no links."""

    def refuse(*_paths: object, **_directories: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", refuse)
    (tmp_path / "jobs").write_bytes(b"content")
    DiskDirectory(tmp_path).link("jobs", "copy")
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert synced == [(tmp_path / "copy").stat().st_ino]
    assert synced != [(tmp_path / "jobs").stat().st_ino]
