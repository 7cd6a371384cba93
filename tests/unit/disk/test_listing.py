"""What is in a queue path."""

from pathlib import Path

import pytest

from kestrelmq.disk.opening import file_size, list_directory

pytestmark = pytest.mark.compiled


def test_whatever_is_no_directory_is_a_file(tmp_path: Path) -> None:
    """A link is one, whatever it is to."""
    (tmp_path / "jobs").write_bytes(b"12345")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    found = list_directory(tmp_path)
    assert sorted(found.files) == ["jobs", "link"]
    assert found.directories == ["directory"]


def test_a_file_has_a_size_even_if_it_has_just_gone(tmp_path: Path) -> None:
    """Whoever opens it is told what is wrong."""
    (tmp_path / "jobs").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("jobs-elsewhere")
    assert file_size(str(tmp_path / "jobs")) == 5
    assert file_size(str(tmp_path / "link")) == len("jobs-elsewhere")
    assert file_size(str(tmp_path / "gone")) == 0
