"""What a directory on disk forces there: the system calls that the crash tests stand in for."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.journal.files import DiskDirectory, DiskFile

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
    file = DiskFile(tmp_path / "jobs").open()
    assert file.release()
    file.sync()
    assert synced == [(tmp_path / "jobs").stat().st_ino]


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
