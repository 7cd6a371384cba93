"""Listing and opening the files of a queue path while a server renames and deletes them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kestrelmq.errors import ConfigError, JournalError
from kestrelmq.spark.storage.opening import ENDS, open_view
from kestrelmq.spark.storage.spool import SpoolFile, check_apart, list_files
from tests.spark.spools import adds, write


def read(file: SpoolFile) -> bytes:
    """Return the bytes that a task reads of a file that was listed."""
    return open_view(file).bytes.tobytes()


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


def test_a_current_file_that_is_cut_while_it_is_read_keeps_its_bytes(tmp_path: Path) -> None:
    """A server cuts off what it could not write whole; a mapping would end the reader's process."""
    write(tmp_path / "q", adds([bytes(1000)] * 100))
    read_after_cut = """
import os, sys
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import list_files
(file,) = list_files(sys.argv[1])
view = open_view(file)
os.truncate(file.path, 10)
print(sum(len(chunk) for chunk in view.chunks()))
"""

    ended = subprocess.run(
        [sys.executable, "-c", read_after_cut, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (0, "100\n"), ended.stderr


def test_a_file_that_was_cut_since_it_was_listed_is_an_error(tmp_path: Path) -> None:
    """It names the file, and how much of it is gone."""
    (tmp_path / "q").write_bytes(bytes(10_000))
    (tmp_path / "r.1000").write_bytes(bytes(10_000))
    current, rotated = list_files(str(tmp_path))
    for file in (current, rotated):
        os.truncate(file.path, 5000)

        with pytest.raises(JournalError, match="shrank from 10000 to 5000 bytes while it was read"):
            read(file)


def test_only_what_is_wanted_of_a_current_file_is_read(tmp_path: Path) -> None:
    """And both ends of it, which tell whose it is; the rest is zeros."""
    (tmp_path / "q").write_bytes(b"x" * 100_000)
    (file,) = list_files(str(tmp_path))

    view = open_view(file, 90_000, begin=50_000)
    ends = open_view(file, begin=100_000)

    assert view.bytes.tobytes() == b"x" * ENDS + bytes(50_000 - ENDS) + b"x" * 40_000
    assert ends.bytes.tobytes() == b"x" * ENDS + bytes(100_000 - 2 * ENDS) + b"x" * ENDS


def test_an_output_among_the_journals_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the directory, whose path is empty here."""
    (tmp_path / "q").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"apart from the journals in \.$"):
        check_apart("q", str(tmp_path / "table"))
