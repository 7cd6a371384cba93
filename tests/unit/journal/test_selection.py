"""Reading files that a server may replace meanwhile."""

from pathlib import Path

import pytest

from kestrelmq.errors import JournalError
from kestrelmq.journal.dump import entries
from kestrelmq.journal.selection import select, steady
from kestrelmq.journal.verify import verify


def spool(tmp_path: Path) -> Path:
    """Return a queue path with one queue in two files."""
    for name in ("jobs.1", "jobs"):
        (tmp_path / name).touch()
    return tmp_path


def replace(path: Path, change: str) -> None:
    """Do to the current file what a server may do."""
    current = path / "jobs"
    if change == "rotated":
        current.rename(path / "jobs.2")
    elif change == "removed":
        current.unlink()
        current.read_bytes()
    else:
        (path / "new").touch()
        (path / "new").rename(current)


def test_what_grows_is_read(tmp_path: Path) -> None:
    """Neither that nor other queues are in the way."""
    (one,) = select([spool(tmp_path)])
    with steady(one):
        (tmp_path / "jobs").write_bytes(b"\x01")
        (tmp_path / "other").touch()


@pytest.mark.parametrize("change", ["rotated", "removed", "made anew"])
def test_what_is_replaced_is_an_error(tmp_path: Path, change: str) -> None:
    """Files of different times do not make a queue."""
    (one,) = select([spool(tmp_path)])
    with pytest.raises(JournalError, match="try again"), steady(one):
        replace(tmp_path, change)


def test_a_single_file_may_be_looked_at_whatever_happens(tmp_path: Path) -> None:
    """It is read as it was when it was opened."""
    (one,) = select([spool(tmp_path) / "jobs.1"])
    with steady(one):
        (tmp_path / "jobs").unlink()


@pytest.mark.parametrize("name", ["work.bak", "plain.txt", "jobs~~torn-17", "jobs.1.pack.old"])
def test_a_copy_under_another_name(tmp_path: Path, name: str) -> None:
    """A file with a name that no server gives is looked at alone; nobody replaces it."""
    (tmp_path / name).write_bytes(b"\x01")
    (one,) = select([tmp_path / name])
    with steady(one):
        pass
    assert verify(one).operations == {1: 1}
    assert [type(entry.record).__name__ for entry in entries(one)] == ["Remove"]
