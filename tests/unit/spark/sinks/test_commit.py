"""Commit of a bulk write: a crash at any step leaves each queue as it was or as it shall be."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kestrelmq.disk.directories import DiskDirectory, DiskFile
from kestrelmq.disk.opening import FoundFile
from kestrelmq.errors import JournalError
from kestrelmq.format.records import AddX, Record, Remove
from kestrelmq.spark.sinks.journal_commit import JournalCommit
from kestrelmq.spark.sinks.journal_parts import JournalPart
from tests.spark.spools import NOW, adds, load, write
from tests.support.journal_bytes import encode


class Crash(Exception):  # noqa: N818 # no error: the end of a process
    """The machine stops here."""


class CrashingDirectory(DiskDirectory):
    """Stops before its n-th change of names."""

    __slots__ = ("left",)

    def __init__(self, path: Path, left: int) -> None:
        super().__init__(path)
        self.left = left

    def _step(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def append_to(self, name: str, found: FoundFile | None = None) -> DiskFile:
        """Open a file, or crash."""
        self._step()
        return super().append_to(name, found)

    def rename(self, old: str, new: str) -> None:
        """Rename, or crash."""
        self._step()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        """Remove, or crash."""
        self._step()
        super().remove(name)


def nothing(spool: Path) -> None:
    """Leave the queue path empty."""


def rotated_and_current(spool: Path) -> None:
    """Two files with items, one of them removed."""
    write(spool / "q.5", adds([b"old1", b"old2"]))
    write(spool / "q", [Remove(), *adds([b"old3"])])


def a_pack_to_clean_up(spool: Path) -> None:
    """A pack beside what it replaced."""
    write(spool / "q.4", adds([b"dead"]))
    write(spool / "q.5.pack", adds([b"old2", b"old3"]))


def parts_of(spool: Path, contents: Sequence[Sequence[Record]]) -> list[JournalPart]:
    """Write parts as tasks do."""
    made = []
    for number, records in enumerate(contents):
        path = spool / "~~write-1" / str(number)
        write(path, records)
        made.append(JournalPart("q", path, len(records), path.stat().st_size))
    return made


def items(spool: Path) -> list[bytes]:
    """Return what a server would load."""
    return [item.data for item in load(spool).get("q", [])]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("part_count", [1, 3])
@pytest.mark.parametrize("before", [nothing, rotated_and_current, a_pack_to_clean_up])
def test_a_crash_at_any_step_leaves_all_or_nothing(
    tmp_path: Path,
    before: Callable[[Path], None],
    part_count: int,
    overwrite: bool,  # noqa: FBT001
) -> None:
    """However far the commit got: the old contents, or the new; and a second try succeeds."""
    new = [b"new%d" % number for number in range(part_count)]
    contents = [adds([item]) for item in new]
    steps = 0
    while True:
        spool = tmp_path / str(steps)
        spool.mkdir()
        before(spool)
        old = items(spool)
        wanted = new if overwrite else [*old, *new]
        directory = CrashingDirectory(spool, steps)
        try:
            JournalCommit(directory, spool / "~~write-1", NOW, overwrite=overwrite).run(
                {"q": parts_of(spool, contents)}
            )
        except Crash:
            after = items(spool)
            assert after in (old, wanted)
            if after == old:
                shutil.rmtree(spool / "~~write-1")
                JournalCommit(
                    DiskDirectory(spool), spool / "~~write-1", NOW + 50, overwrite=overwrite
                ).run({"q": parts_of(spool, contents)})
                assert items(spool) == wanted
            steps += 1
            continue
        assert items(spool) == wanted
        break
    assert steps >= 1


def test_other_queues_are_left_alone(tmp_path: Path) -> None:
    """Overwriting replaces the queues that are written, and no other."""
    write(tmp_path / "q", adds([b"old"]))
    write(tmp_path / "other", adds([b"kept"]))

    JournalCommit(DiskDirectory(tmp_path), tmp_path / "~~write-1", NOW, overwrite=True).run(
        {"q": parts_of(tmp_path, [adds([b"new"])])}
    )

    assert {queue: [item.data for item in found] for queue, found in load(tmp_path).items()} == {
        "q": [b"new"],
        "other": [b"kept"],
    }


def test_timestamps_always_increase(tmp_path: Path) -> None:
    """Files from a clock that was ahead are not overtaken."""
    write(tmp_path / f"q.{NOW + 999}", adds([b"first"]))

    JournalCommit(DiskDirectory(tmp_path), tmp_path / "~~write-1", NOW, overwrite=False).run(
        {"q": parts_of(tmp_path, [adds([b"second"])])}
    )

    assert items(tmp_path) == [b"first", b"second"]


@pytest.mark.parametrize("last", ["q", "q.5"])
def test_nothing_is_put_behind_a_torn_tail(tmp_path: Path, last: str) -> None:
    """It would become damage in the middle of the journal; the error says what to do."""
    write(tmp_path / last, adds([b"old"]), tail=encode(AddX(NOW, 0, b"torn"))[:-1])
    names = sorted(path.name for path in tmp_path.iterdir())

    commit = JournalCommit(DiskDirectory(tmp_path), tmp_path / "~~write-1", NOW, overwrite=False)
    with pytest.raises(JournalError, match="the last record is cut short at byte 24"):
        commit.run({"q": parts_of(tmp_path, [adds([b"new"])])})

    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "~~write-1"]
