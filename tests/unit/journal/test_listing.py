"""What is in a queue path."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.journal.files import list_directory

pytestmark = pytest.mark.compiled


def test_files_have_sizes_and_directories_have_none(tmp_path: Path) -> None:
    """A link is a file, whatever it is to."""
    (tmp_path / "jobs").write_bytes(b"12345")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    found = list_directory(tmp_path)
    assert found.sizes == {"jobs": 5, "link": len("directory")}
    assert found.directories == ["directory"]


def test_a_file_that_goes_meanwhile_is_known_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it is told what is wrong; the others have their sizes."""
    for name in ("gone", "jobs"):
        (tmp_path / name).write_bytes(b"12345")
    scandir = os.scandir

    class Removing:
        """Removes a file after its name was found."""

        def __init__(self, path: Path) -> None:
            self._path = path

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            with scandir(self._path) as entries:
                found = list(entries)
            (self._path / "gone").unlink()
            return iter(found)

        def __exit__(self, *_: object) -> None:
            """Do nothing."""

    monkeypatch.setattr(os, "scandir", Removing)
    assert list_directory(tmp_path).sizes == {"gone": 0, "jobs": 5}
