"""Commit of a write to a store: a crash behind any step leaves each queue as it was or shall be."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from pyarrow import fs

from kestrelmq.disk import write_directories
from kestrelmq.disk.write_directories import WRITE_MARK, WriteOwner
from kestrelmq.errors import JournalError
from kestrelmq.format.records import AddX, Record, Remove, RemoveTentative
from kestrelmq.spark.sinks.journal_parts import JournalPart
from kestrelmq.spark.sinks.stored_commit import (
    StoredJournalCommit,
    files_found,
    new_directory,
    remove_abandoned,
)
from kestrelmq.spark.storage import locations as storage
from kestrelmq.spark.storage.locations import Location, located
from tests.spark.spools import NOW, adds, load, write
from tests.support.journal_bytes import encode
from tests.support.object_store import BUCKET, ObjectStore

ELSEWHERE = WriteOwner("0" * 8, "1" * 8, 7, 8)
"""A process of another machine."""
HERE = WriteOwner.of(os.getpid())
ENDED = WriteOwner.of(2**22 + 1)
"""One of this machine that does not run."""


class Crash(Exception):  # noqa: N818 # no error: the end of a process
    """The machine stops here."""


def at(store: "ObjectStore | RenamingStore", path: str) -> Location:
    """Return a location in the store."""
    if isinstance(store, RenamingStore):
        return store.at(path)
    found = located(f"s3://{BUCKET}/{path}", store.options)
    assert isinstance(found, Location)
    return found


@dataclass(frozen=True, slots=True)
class RenamingStore:
    """Stands for HDFS, which needs a cluster and Java's libraries: a directory, for `pyarrow.fs`.

    What counts is that it has renames, and that a file that is written is there at once.
    """

    root: Path

    def at(self, path: str) -> Location:
        """Return a location in it."""
        return Location("hdfs", "host", path)

    def copy(self, directory: Path, path: str) -> str:
        """Copy the files of a directory."""
        shutil.copytree(directory, self.root / path)
        return f"hdfs://host/{path}"

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return sorted(one.name for one in (self.root / path).iterdir())

    def get(self, path: str) -> bytes:
        """Return the bytes of a file."""
        return (self.root / path).read_bytes()


@pytest.fixture
def renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RenamingStore:
    """Return a store with renames."""
    root = tmp_path / "renaming"
    root.mkdir()
    system = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
    monkeypatch.setattr(storage, "_made", lambda *_: system)
    move = Location.move

    def move_alone(self: Location, target: Location) -> None:
        assert not target.exists()
        move(self, target)

    monkeypatch.setattr(Location, "move", move_alone)
    return RenamingStore(root)


def nothing(spool: Path) -> None:
    """Leave the queue path empty."""


def rotated(spool: Path) -> None:
    """Items that wait, that are open, and that are gone, in several files."""
    write(spool / "q.5", [*adds([b"gone", b"open", b"old1"]), Remove(), RemoveTentative()])
    write(spool / "q.6", [*adds([b"old2", b"also gone"]), Remove()])


def a_pack_to_clean_up(spool: Path) -> None:
    """A pack beside what it replaced."""
    write(spool / "q.4", adds([b"dead"]))
    write(spool / "q.5.pack", adds([b"old2", b"old3"]))


def upload_parts(work: Location, contents: Sequence[Sequence[Record]]) -> list[JournalPart]:
    """Write parts as tasks do."""
    made = []
    for number, records in enumerate(contents):
        data = b"".join(map(encode, records))
        (work / str(number)).write_bytes(data)
        made.append(JournalPart("q", Path(str(number)), len(records), len(data)))
    return made


def items(store: ObjectStore | RenamingStore, path: str, scratch: Path) -> list[bytes]:
    """Return what a server loads of `q` when the files were copied to its disk."""
    for name in store.names(path):
        if "~~" not in name:
            write(scratch / name, [], tail=store.get(f"{path}/{name}"))
    return [item.data for item in load(scratch).get("q", [])] if scratch.exists() else []


BEFORE = [nothing, rotated, a_pack_to_clean_up]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("before", "part_count"), [(nothing, 1), *((before, 2) for before in BEFORE)]
)
def test_a_crash_behind_any_step_leaves_all_or_nothing(
    store: ObjectStore,
    tmp_path: Path,
    before: Callable[[Path], None],
    part_count: int,
    overwrite: bool,  # noqa: FBT001
) -> None:
    """However far the commit got: the old contents, or the new; a second try leaves no rest.

    The steps of one part are others only where there is nothing yet.
    """
    crash_behind_each_step(store, tmp_path, before, part_count, overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("part_count", [1, 2])
@pytest.mark.parametrize("before", BEFORE)
def test_so_it_is_in_a_store_with_renames(
    renaming: RenamingStore,
    tmp_path: Path,
    before: Callable[[Path], None],
    part_count: int,
    overwrite: bool,  # noqa: FBT001
) -> None:
    """No file is replaced there, because that takes two steps."""
    crash_behind_each_step(renaming, tmp_path, before, part_count, overwrite=overwrite)


def crash_behind_each_step(
    store: ObjectStore | RenamingStore,
    tmp_path: Path,
    before: Callable[[Path], None],
    part_count: int,
    *,
    overwrite: bool,
) -> None:
    """Commit, and crash behind the first step, the second, and so on."""
    new = [b"new%d" % number for number in range(part_count)]
    contents = [adds([item]) for item in new]
    (tmp_path / "before").mkdir()
    before(tmp_path / "before")
    old = [item.data for item in load(tmp_path / "before").get("q", [])]
    wanted = new if overwrite else [*old, *new]

    def commit(path: str, now: int, crash_behind: int) -> None:
        work = new_directory(at(store, path), ELSEWHERE)
        steps = count()

        def reached(step: str) -> None:
            said.append(step)
            if next(steps) == crash_behind:
                raise Crash

        commit = StoredJournalCommit(work, now, overwrite=overwrite, reached=reached)
        try:
            commit.run({"q": upload_parts(work, contents)}, files_found(work.parent))
        finally:
            work.delete_tree()

    changes, path = 0, ""
    for crash_behind in count():
        path, said = f"{tmp_path.name}/{crash_behind}", list[str]()
        store.copy(tmp_path / "before", path)
        try:
            commit(path, NOW, crash_behind)
        except Crash:
            after = items(store, path, tmp_path / f"{crash_behind}-after")
            assert after in (old, wanted), said
            changes += after != old
            if after == old:
                commit(path, NOW + 50, -1)
                assert items(store, path, tmp_path / f"{crash_behind}-again") == wanted, said
            continue
        assert items(store, path, tmp_path / "whole") == wanted
        break
    assert changes
    assert [name for name in store.names(path) if name.endswith(".pack") or "~~" in name] == []
    if overwrite and before is not nothing:
        assert len(store.names(path)) == 1


def test_dead_files_of_other_queues_go_too(store: ObjectStore, tmp_path: Path) -> None:
    """A killed driver left them; the queues are the same."""
    write(tmp_path / "other.7", adds([b"dead"]))
    write(tmp_path / "other.8.pack", adds([b"kept"]))
    store.copy(tmp_path, tmp_path.name)
    work = new_directory(at(store, tmp_path.name), ELSEWHERE)

    parts = {"q": upload_parts(work, [adds([b"1"])])}
    StoredJournalCommit(work, NOW, overwrite=False).run(parts, files_found(work.parent))
    work.delete_tree()

    assert store.names(tmp_path.name) == ["other.8", f"q.{NOW}"]
    assert store.get(f"{tmp_path.name}/other.8") == b"".join(map(encode, adds([b"kept"])))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("name", "tail", "problem"),
    [
        ("q.5", encode(AddX(NOW, 0, b"torn"))[:-1], "the last record is cut short at byte 24"),
        ("q.5", b"\xff", "at byte 24"),
        ("q", b"", "is a server's: .* pack the queue path to another place first"),
    ],
)
def test_what_cannot_be_changed_stays_as_it_is(
    store: ObjectStore,
    tmp_path: Path,
    name: str,
    tail: bytes,
    problem: str,
    overwrite: bool,  # noqa: FBT001
) -> None:
    """Behind an end that is not one, items would be lost; what is overwritten may have any."""
    write(tmp_path / name, adds([b"old"]), tail=tail)
    store.copy(tmp_path, tmp_path.name)
    work = new_directory(at(store, tmp_path.name), ELSEWHERE)
    parts = {"q": upload_parts(work, [adds([b"new"])])}
    commit = StoredJournalCommit(work, NOW, overwrite=overwrite)

    if overwrite and name != "q":
        commit.run(parts, files_found(work.parent))
        assert items(store, tmp_path.name, tmp_path / "after") == [b"new"]
        return
    with pytest.raises(JournalError, match=f"s3://bucket/.*/q.*{problem}"):
        commit.run(parts, files_found(work.parent))
    work.delete_tree()

    assert store.names(tmp_path.name) == [name]
    assert store.get(f"{tmp_path.name}/{name}") == (tmp_path / name).read_bytes()


def test_what_killed_writes_left_goes(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the process has ended, or nothing has changed for a day; a running one is left alone."""
    path = at(store, tmp_path.name)
    ended, elsewhere, mine = (new_directory(path, owner) for owner in (ENDED, ELSEWHERE, HERE))
    for work in (ended, elsewhere, mine, path / f"{WRITE_MARK}unknown"):
        (work / "part").write_bytes(b"x")
    remove_abandoned(path)
    assert store.names(tmp_path.name) == sorted([elsewhere.name, mine.name])
    monkeypatch.setattr(write_directories, "_LONGEST_SILENCE", -1)
    remove_abandoned(path)
    assert store.names(tmp_path.name) == [mine.name]
    remove_abandoned(at(store, f"{tmp_path.name}/nowhere"))
