"""Backups of a queue path whose files change meanwhile, and what a restore refuses."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.disk.locks import QueuePathLock, lock_directory
from kestrelmq.disk.restored import RESTORED_NAME
from kestrelmq.errors import JournalError, QueuePathLocked
from kestrelmq.format.records import Remove
from kestrelmq.tools.backup import MANIFEST_NAME, Manifest, back_up, restore
from tests.support.backups import FILES, Files, append, files_in, items, pack, rotate, spool
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode, numbered
from tests.support.limits import largest_file

OTHERS: Files = {
    "~~lock": b"1\n",
    "jobs~~torn-1": b"x",
    "jobs~~pack-2": b"x",
    "some.thing": b"x",
}


class Server(FakeClock):
    """Does something to the files between two looks at them: whenever the time is asked for."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        super().__init__()
        self._actions = list(actions)

    def monotonic(self) -> float:
        """Return the time, which stands still."""
        if self._actions:
            self._actions.pop(0)()
        return super().monotonic()


def test_what_counts_is_copied_or_linked(tmp_path: Path) -> None:
    """All files but the last of each queue are linked; there and back, the bytes are the same."""
    path, target = spool(tmp_path / "queues", FILES | OTHERS), tmp_path / "backups" / "one"
    made = back_up(path, target, FakeClock())
    assert files_in(target) == FILES
    assert {one.name for one in made.files if one.crc32 is None} == {"jobs.1", "jobs.2"}
    assert {name for name in FILES if (path / name).stat().st_nlink > 1} == {"jobs.1", "jobs.2"}
    assert [one.name for one in made.files if one.queue == "jobs"] == ["jobs.1", "jobs.2", "jobs"]
    assert (made.is_one_moment, made.queues) == (True, 2)
    assert made.size == sum(map(len, FILES.values()))
    assert restore(target, tmp_path / "new") == made
    assert files_in(tmp_path / "new") == FILES
    assert all((tmp_path / "new" / name).stat().st_nlink == 1 for name in FILES)
    assert [one.name for one in target.parent.iterdir()] == ["one"]


def test_what_a_pack_replaces_is_left_out(tmp_path: Path) -> None:
    """And the pack has its final name."""
    files = {"jobs.1": numbered(1), "jobs.2": numbered(2), "jobs.2.pack": numbered(3)}
    path = spool(tmp_path / "queues", files | {"jobs": numbered(4)})
    back_up(path, tmp_path / "one", FakeClock())
    assert files_in(tmp_path / "one") == {"jobs.2": numbered(3), "jobs": numbered(4)}


def test_the_last_file_is_never_linked(tmp_path: Path) -> None:
    """A rotation that failed half-way leaves the file that is appended to under a rotated name."""
    path = spool(tmp_path / "queues", {"jobs.1": numbered(1), "jobs.2": numbered(2)})
    back_up(path, tmp_path / "one", FakeClock())
    append(path, "jobs.2", numbered(3))
    assert files_in(tmp_path / "one") == {"jobs.1": numbered(1), "jobs.2": numbered(2)}


def test_an_item_that_moves_is_in_one_queue(tmp_path: Path) -> None:
    """A moment in which two queues change is not taken."""
    path = spool(tmp_path / "queues", {"a": numbered(1), "b": b""})

    def move() -> None:
        append(path, "b", numbered(1))
        append(path, "a", encode(Remove()))

    made = back_up(path, tmp_path / "one", Server(move))
    assert made.is_one_moment
    assert items(tmp_path / "one") == {"a": [], "b": [b"1"]}


def test_one_queue_may_grow_all_the_time(tmp_path: Path) -> None:
    """What was in it at some moment is in the backup."""
    path = spool(tmp_path / "queues", {"a": numbered(1), "b": numbered(1)})
    grows = [lambda number=number: append(path, "a", numbered(number)) for number in range(2, 9)]
    made = back_up(path, tmp_path / "one", Server(*grows))
    assert made.is_one_moment
    assert items(tmp_path / "one") == {"a": [b"1"], "b": [b"1"]}


def test_queues_that_all_change_have_a_moment_each(tmp_path: Path) -> None:
    """After a second it is content with that; one whose files change then has a later one."""
    path = spool(tmp_path / "queues", {"jobs": numbered(1), "work": numbered(1)})

    def grow() -> None:
        append(path, "jobs", numbered(2))
        append(path, "work", numbered(2))
        clock.advance(0.1)

    clock = Server(*[grow] * 10, lambda: rotate(path, 1), grow, grow, grow, grow)
    made = back_up(path, tmp_path / "one", clock)
    assert not made.is_one_moment
    found = items(tmp_path / "one")
    assert found["jobs"] > found["work"] > [b"1"]
    assert {one for queue in found.values() for one in queue} == {b"1", b"2"}


def test_files_that_come_and_go(tmp_path: Path) -> None:
    """A queue is looked at until it has the same files three times in a row."""
    path = spool(tmp_path / "queues", {"jobs": numbered(1)})
    changes = [
        lambda: rotate(path, 1, numbered(2)),
        lambda: rotate(path, 2, numbered(3)),
        lambda: pack(path, "jobs.1", "jobs.2", content=numbered(1, 2)),
        lambda: (path / "jobs.2.pack").rename(path / "jobs.2"),
        lambda: rotate(path, 3, numbered(4)),
    ]
    made = back_up(path, tmp_path / "one", Server(*changes))
    assert made.is_one_moment
    assert items(tmp_path / "one") == {"jobs": [b"1", b"2", b"3", b"4"]}


def test_a_single_queue_is_not_opened_beside_an_interrupted_restore(tmp_path: Path) -> None:
    """Only who has the whole queue path can finish it."""
    spool(tmp_path / RESTORED_NAME)
    with pytest.raises(QueuePathLocked, match="interrupted"), QueuePathLock(tmp_path, shared=True):
        pass
    with QueuePathLock(tmp_path):
        assert files_in(tmp_path) == FILES
    with QueuePathLock(tmp_path, shared=True):
        pass


def test_a_restore_finishes_what_another_one_left(tmp_path: Path) -> None:
    """If that was of the same backup, all is well; otherwise the queue path is not empty now."""
    path, source, new = spool(tmp_path / "queues"), tmp_path / "one", tmp_path / "new"
    made = back_up(path, source, FakeClock())
    new.mkdir()
    spool(new / RESTORED_NAME)
    assert restore(source, new) == made
    assert files_in(new) == FILES
    (new / RESTORED_NAME).mkdir()
    (new / "jobs").unlink()
    with pytest.raises(JournalError, match="not empty"):
        restore(source, new)


def test_a_full_disk(tmp_path: Path) -> None:
    """Neither a backup nor a restore leaves anything."""
    files = {"jobs": numbered(*range(10_000)), "work": numbered(1)}
    path = spool(tmp_path / "queues", files)
    base = tmp_path / "backups"
    with largest_file(100 << 10), pytest.raises(OSError, match="File too large"):
        back_up(path, base / "one", FakeClock())
    assert list(base.iterdir()) == []
    back_up(path, base / "one", FakeClock())
    with largest_file(100 << 10), pytest.raises(OSError, match="File too large"):
        restore(base / "one", tmp_path / "new")
    assert files_in(tmp_path / "new") == {}
    restore(base / "one", tmp_path / "new")
    assert files_in(tmp_path / "new") == files


def test_another_file_system(tmp_path: Path) -> None:
    """All files are copied, because none can be linked."""
    memory = Path("/dev/shm")  # noqa: S108 # a name of our own
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system")
    target = memory / f"kestrelmq-{os.getpid()}" / "backup"
    try:
        made = back_up(spool(tmp_path / "queues"), target, FakeClock())
        assert files_in(target) == FILES
        assert all(one.crc32 is not None for one in made.files)
    finally:
        for one in target.iterdir():
            one.unlink()
        target.rmdir()
        target.parent.rmdir()


def test_what_killed_backups_left_is_removed(tmp_path: Path) -> None:
    """But what another one is writing stays."""
    path = spool(tmp_path / "queues")
    left, used = (tmp_path / f".kestrelmq-backup-{name}" for name in ("left", "used"))
    spool(left)
    spool(used)
    lock = lock_directory(used, 0)
    with pytest.raises(JournalError, match="is running"):
        back_up(path, tmp_path / "used", FakeClock())
    back_up(path, tmp_path / "one", FakeClock())
    assert not left.exists()
    assert files_in(used) == files_in(path) == FILES
    os.close(lock)


def test_damage_is_kept(tmp_path: Path) -> None:
    """A backup looks at no record."""
    files = {"jobs": numbered(1) + b"cc" + numbered(2), "work": numbered(3)[:-1]}
    back_up(spool(tmp_path / "queues", files), tmp_path / "one", FakeClock())
    restore(tmp_path / "one", tmp_path / "new")
    assert files_in(tmp_path / "new") == files


@pytest.mark.parametrize("place", ["jobs.1", "jobs"])
def test_what_is_no_file_is_an_error(tmp_path: Path, place: str) -> None:
    """The queue may miss something."""
    path = spool(tmp_path / "queues", {"jobs.2": numbered(2)})
    (path / place).symlink_to("jobs.2")
    with pytest.raises(OSError, match="not a regular file"):
        back_up(path, tmp_path / "one", FakeClock())
    assert [one.name for one in tmp_path.iterdir()] == ["queues"]


def test_where_no_backup_goes(tmp_path: Path) -> None:
    """What is there stays."""
    path = spool(tmp_path / "queues")
    (tmp_path / "one").mkdir()
    (tmp_path / "unfinished" / RESTORED_NAME).mkdir(parents=True)
    several = tmp_path / "several"
    spool_of_one = several / "process-0"
    several.mkdir()
    spool(spool_of_one)
    for source, target, reason in (
        (path, tmp_path / "one", "exists"),
        (path, path / "one", "is in the queue path"),
        (path, path / ".." / "queues" / "sub" / "one", "is in the queue path"),
        (tmp_path / "none", tmp_path / "two", "not a queue path"),
        (several, tmp_path / "two", "process-0"),
        (tmp_path / "unfinished", tmp_path / "two", "interrupted"),
    ):
        with pytest.raises(JournalError, match=reason):
            back_up(source, target, FakeClock())
    assert files_in(path) == FILES
    assert not (tmp_path / "two").exists()


def test_an_empty_queue_path(tmp_path: Path) -> None:
    """A backup of nothing restores to nothing."""
    (tmp_path / "queues").mkdir()
    back_up(tmp_path / "queues", tmp_path / "one", FakeClock())
    assert restore(tmp_path / "one", tmp_path / "new").files == []


def test_where_nothing_is_restored(tmp_path: Path) -> None:
    """A queue path that is in use, or has anything; what is there stays."""
    path, source, empty = spool(tmp_path / "queues"), tmp_path / "one", tmp_path / "empty"
    back_up(path, source, FakeClock())
    append(path, "jobs", numbered(7))
    with pytest.raises(JournalError, match="not empty"):
        restore(source, path)
    assert files_in(path)["jobs"] == numbered(4, 7)
    empty.mkdir()
    with QueuePathLock(empty), pytest.raises(QueuePathLocked):
        restore(source, empty)
    (empty / "process-0").mkdir()
    with pytest.raises(JournalError, match="not empty"):
        restore(source, empty)
    (empty / "process-0").rmdir()
    (empty / "lost+found").mkdir()
    restore(source, empty)


def test_a_backup_that_is_not_whole(tmp_path: Path) -> None:
    """Each flaw is named, and nothing is restored."""
    path, source, new = spool(tmp_path / "queues"), tmp_path / "one", tmp_path / "new"
    made = back_up(path, source, FakeClock())
    good, manifest = (source / "jobs").read_bytes(), (source / MANIFEST_NAME).read_text()

    def refused(reason: str) -> None:
        with pytest.raises((JournalError, OSError), match=reason):
            restore(source, new)
        assert not new.exists() or files_in(new) == {}
        (source / "jobs").unlink(missing_ok=True)
        (source / "jobs").write_bytes(good)
        (source / MANIFEST_NAME).write_text(manifest)

    (source / "jobs").write_bytes(good[:-1] + b"x")
    refused("jobs has a wrong checksum")
    (source / "jobs").write_bytes(good[:-1])
    refused("jobs has 21 bytes and not 22")
    (source / "jobs").write_bytes(good + b"x")
    refused("jobs has 23 bytes and not 22")
    (source / "jobs").unlink()
    refused("jobs is missing")
    (source / "jobs").unlink()
    (source / "jobs").symlink_to(path / "jobs")
    refused("symbolic link")
    for text, reason in (
        ("", "JSON"),
        (manifest.replace("jobs.1", "../jobs.1"), "not a journal's name"),
        (manifest.replace("jobs.1", "~~lock"), "not a journal's name"),
        (manifest.replace('"version": 1', '"version": 2'), "version"),
        (json.dumps({"kestrelmq": "backup"}), "queue_path"),
    ):
        (source / MANIFEST_NAME).write_text(text)
        refused(reason)
    (source / MANIFEST_NAME).unlink()
    refused("is not a backup")
    assert Manifest.model_validate_json(manifest) == made
    assert restore(source, new) == made
