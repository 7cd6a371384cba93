"""Reading files that a server may replace meanwhile."""

from pathlib import Path

import pytest

from kestrelmq.errors import JournalError
from kestrelmq.tools.dump import entries
from kestrelmq.tools.journal_files import SelectedQueue, select, steady, whole_queues
from kestrelmq.tools.verify import verify


def spool(tmp_path: Path) -> Path:
    """Return a queue path with one queue in two files."""
    tmp_path.mkdir(exist_ok=True)
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
def test_a_file_replaced_meanwhile_is_an_error(tmp_path: Path, change: str) -> None:
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
    assert names([one]) == [(name, (name,))]
    assert verify(one).operations == {1: 1}
    assert [type(entry.record).__name__ for entry in entries(one)] == ["Remove"]


def test_a_file_of_others_that_is_not_there_is_told_as_it_is(tmp_path: Path) -> None:
    """No server replaced it: it is, say, where an export was to go."""
    (one,) = select([spool(tmp_path / "queues")])
    with pytest.raises(FileNotFoundError, match=r"items\.jsonl"), steady(one):
        (tmp_path / "missing" / "items.jsonl").write_text("")


def names(selected: list[SelectedQueue]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the queues that were selected, and their files."""
    return [(one.queue, one.files) for one in selected]


def test_queues_are_selected_by_name(tmp_path: Path) -> None:
    """In the order of their names; one that is not there is an error, which names it."""
    path = spool(tmp_path / "queues")
    for name in ("other", "third", "jobs.1~~torn-5", "jobs~~next-7"):
        (path / name).touch()
    jobs = ("jobs", ("jobs.1", "jobs"))
    assert names(select([path])) == [jobs, ("other", ("other",)), ("third", ("third",))]
    assert names(select([path], ["third", "jobs"])) == [jobs, ("third", ("third",))]
    with pytest.raises(JournalError, match="there is no journal of queue missing, none"):
        select([path], ["none", "jobs", "missing"])


def test_a_file_is_selected_alone(tmp_path: Path) -> None:
    """Of all the queues in its directory it is one's; that one can be had whole, but once."""
    path = spool(tmp_path / "queues")
    (path / "other").touch()
    (path / "jobs.1").write_bytes(b"\x01" * 5)
    (path / "jobs").write_bytes(b"\x01")
    files = select([path / "jobs.1", path / "jobs", path / "other"])
    assert names(files) == [
        ("jobs", ("jobs.1",)),
        ("jobs", ("jobs",)),
        ("other", ("other",)),
    ]
    assert [one.size for one in files] == [5, 1, 0]
    assert [one.is_last(one.files[0]) for one in files] == [False, True, True]
    whole = whole_queues(files)
    assert names(whole) == [("jobs", ("jobs.1", "jobs")), ("other", ("other",))]
    assert [one.size for one in whole] == [6, 0]


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    """It is neither a file nor a directory."""
    with pytest.raises(JournalError, match=r"missing: there is no such file or directory"):
        select([spool(tmp_path), tmp_path / "missing"])
