"""Backups and restores that are killed at every step."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.disk.restored import is_unfinished
from kestrelmq.errors import JournalError
from kestrelmq.tools.backup import back_up, restore
from tests.support.backups import CALLS, FILES, disturbed_at, files_in, spool
from tests.support.fake_clock import FakeClock
from tests.support.forks import in_a_fork


def killed(root: Path, work: Callable[[Path], object]) -> Iterator[Path]:
    """Do some work again and again, and kill it at each of its steps; yield its directories."""
    outcome = ""
    step = 0
    while not outcome:
        step += 1
        base = root / f"at-{step}"
        base.mkdir()
        spool(base / "queues")

        def run(step: int = step, base: Path = base) -> None:
            with disturbed_at(step, [lambda: os._exit(9)]):
                work(base)

        outcome = in_a_fork(run)
        yield base
    assert outcome == "None"  # no error
    assert step > len(CALLS)


def back_up_queues(base: Path) -> None:
    """Make the backup `one`."""
    back_up(base / "queues", base / "one", FakeClock())


def test_a_killed_backup_is_none(root: Path) -> None:
    """It is there as a whole, or not at all; the next one beside it takes away what is left."""
    found = set()
    for base in killed(root, back_up_queues):
        found.add((base / "one").exists())
        if (base / "one").exists():
            restore(base / "one", base / "new")
            assert files_in(base / "new") == FILES
        back_up(base / "queues", base / "two", FakeClock())
        assert files_in(base / "two") == FILES
        assert {one.name for one in base.iterdir()} <= {"queues", "one", "two", "new"}
    assert found == {True, False}


@pytest.mark.parametrize("next_is", ["a server", "a restore"])
def test_a_killed_restore_is_none(root: Path, next_is: str) -> None:
    """Whoever locks the queue path next finds all files, or none; a second restore ends well."""
    back_up(spool(root / "queues"), root / "backup", FakeClock())
    found = set()
    for base in killed(root, lambda base: restore(root / "backup", base / "new")):
        new = base / "new"
        is_in_place = (new / "jobs").exists() and not is_unfinished(new)
        if next_is == "a server" and new.exists():
            with QueuePathLock(new):
                assert files_in(new) in ({}, FILES)
                is_in_place = bool(files_in(new))
        found.add(is_in_place)
        if is_in_place:
            with pytest.raises(JournalError, match="not empty"):
                restore(root / "backup", new)
        else:
            restore(root / "backup", new)
        assert files_in(new) == FILES
        assert [one.name for one in new.iterdir() if one.is_dir()] == []
    assert found == {True, False}
