"""What backups and restores force to disk, and when: before a rename makes it count."""

import os
from pathlib import Path

import pytest

from kestrelmq.tools.backup import MANIFEST_NAME, back_up, restore
from tests.support.backups import FILES, spool
from tests.support.fake_clock import FakeClock

Steps = list[tuple[str, str]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What is synced, and what a rename makes, by their last names."""
    noted: Steps = []
    rename = os.rename

    def note_sync(descriptor: int) -> None:
        noted.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    def note_rename(old: Path, new: Path) -> None:
        rename(old, new)
        noted.append(("rename", Path(new).name))

    monkeypatch.setattr("os.fsync", note_sync)
    monkeypatch.setattr("os.rename", note_rename)
    return noted


def test_a_backup_is_on_disk_before_it_has_its_name(tmp_path: Path, steps: Steps) -> None:
    """All that is copied, the names in it, and then its own name. Links need no sync."""
    path = spool(tmp_path / "queues")
    part = ".kestrelmq-backup-one"
    back_up(path, tmp_path / "one", FakeClock())
    copied = {("sync", name) for name in FILES if name not in {"jobs.1", "jobs.2"}}
    assert set(steps[: len(copied)]) == copied
    assert steps[len(copied) :] == [
        ("sync", MANIFEST_NAME),
        ("sync", part),
        ("rename", "one"),
        ("sync", tmp_path.name),
    ]


def test_restored_files_are_on_disk_before_they_count(tmp_path: Path, steps: Steps) -> None:
    """They count from the rename of their directory on, and then get their places."""
    back_up(spool(tmp_path / "queues"), tmp_path / "one", FakeClock())
    (tmp_path / "restored").mkdir()
    steps.clear()
    restore(tmp_path / "one", tmp_path / "restored")
    commit = steps.index(("rename", "~~restored"))
    assert {("sync", name) for name in FILES} <= set(steps[:commit])
    kind, work = steps[commit - 1]
    assert (kind, work[:7]) == ("sync", "~~write")
    rest = steps[commit + 1 :]
    assert rest[0] == ("sync", "restored")
    assert set(rest[1:-2]) == {("rename", name) for name in FILES}
    assert rest[-2:] == [("sync", "restored")] * 2
