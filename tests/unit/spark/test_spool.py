"""Listing and opening the files of a queue path while a server renames and deletes them."""

import os
from pathlib import Path

import pytest

from kestrelmq.errors import JournalError
from kestrelmq.spark.scanning import open_view
from kestrelmq.spark.spool import SpoolFile, list_files


def read(file: SpoolFile) -> bytes:
    """Return the bytes that a task reads of a file that was listed."""
    return open_view(file.path, file.size, file.inode).bytes.tobytes()


def test_a_file_that_was_rotated_is_found_by_its_new_name(tmp_path: Path) -> None:
    """Not what has its name now, though that is as long."""
    (tmp_path / "q").write_bytes(b"listed")
    (file,) = list_files(str(tmp_path))
    (tmp_path / "q").rename(tmp_path / "q.1000")
    (tmp_path / "q").write_bytes(b"not listed")

    assert read(file) == b"listed"


def test_a_file_that_was_packed_away_is_an_error(tmp_path: Path) -> None:
    """Whether there is none of its name, or another one."""
    (tmp_path / "q.1000").write_bytes(b"listed")
    (file,) = list_files(str(tmp_path))
    (tmp_path / "new").write_bytes(b"not listed")

    (tmp_path / "new").rename(tmp_path / "q.1000")
    with pytest.raises(JournalError, match="packed away"):
        read(file)

    (tmp_path / "q.1000").unlink()
    with pytest.raises(JournalError, match="packed away"):
        read(file)


def test_a_listing_that_changed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that rotates between the names and the sizes hides no file."""
    (tmp_path / "q").write_bytes(b"old")
    listdir = os.listdir

    def rotating(path: str) -> list[str]:
        names = listdir(path)
        if "q.1000" not in names:
            (tmp_path / "q").rename(tmp_path / "q.1000")
            (tmp_path / "q").write_bytes(b"newer")
        return names

    monkeypatch.setattr(os, "listdir", rotating)

    assert [(file.name, file.size) for file in list_files(str(tmp_path))] == [
        ("q.1000", 3),
        ("q", 5),
    ]


def test_names_that_never_rest_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than a listing that may miss a file."""
    made = iter(range(10_000))
    monkeypatch.setattr(os, "listdir", lambda _: [f"q.{next(made)}"])

    with pytest.raises(JournalError, match="too fast"):
        list_files(str(tmp_path))
