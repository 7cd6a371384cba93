"""Replacing files by one that says the same: what a step that fails, and is tried again, does."""

from pathlib import Path

import pytest

from kestrelmq.clock import no_pause
from kestrelmq.format.records import item
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.replacement import MemorySource, Replacement, ReplacementCancelled
from tests.support.crashing_directory import CrashingDirectory

pytestmark = pytest.mark.compiled


def replacement(tmp_path: Path) -> tuple[CrashingDirectory, Replacement]:
    """Return one that is about to replace two files by one with a single item."""
    path = tmp_path / "queues"
    path.mkdir()
    for name in ("jobs.1", "jobs.2"):
        (path / name).write_bytes(item(1, 0, b"old"))
    directory = CrashingDirectory.within(tmp_path)
    source = MemorySource("documented", 0, ReadTable(), [item(1, 0, b"live")])
    return directory, Replacement(directory, "jobs", ["jobs.1", "jobs.2"], source)


@pytest.mark.parametrize("step", ["create", "append", "sync", "rename"])
def test_placing_may_be_tried_again(tmp_path: Path, step: str) -> None:
    """What failed left the old files as they were."""
    directory, job = replacement(tmp_path)
    directory.break_steps(step)
    with pytest.raises(OSError, match="No space"):
        job.place(no_pause)
    assert (directory.path / "jobs.2").read_bytes() == item(1, 0, b"old")
    directory.mend()
    job.place(no_pause)
    job.clear(no_pause)
    assert directory.names() == ["jobs.2"]


@pytest.mark.parametrize("failing", range(5))
def test_clearing_may_be_tried_again(tmp_path: Path, failing: int) -> None:
    """At whichever step it failed; the new file has the name of an old one, and must stay."""
    directory, job = replacement(tmp_path)
    job.place(no_pause)
    points: list[str] = []

    def fails(point: str) -> bool:
        points.append(point)
        return len(points) == failing + 1

    directory.fail = fails
    with pytest.raises(OSError, match="No space"):
        job.clear(no_pause)
    directory.mend()
    job.clear(no_pause)
    assert directory.names() == ["jobs.2"]
    assert item(1, 0, b"live") in (directory.path / "jobs.2").read_bytes()


def test_a_cancelled_replacement_replaces_nothing(tmp_path: Path) -> None:
    """Not even when all of the new file is written; it may be resumed."""
    directory, job = replacement(tmp_path)

    def cancel_last(point: str) -> bool:
        """Cancel in the last step before the new file gets its name."""
        if point == "sync the directory":
            job.cancel()
        return False

    directory.fail = cancel_last
    with pytest.raises(ReplacementCancelled):
        job.place(no_pause)
    assert not job.is_placed
    assert sorted(directory.names()) == ["jobs.1", "jobs.2"]
    directory.mend()
    job.resume()
    job.place(no_pause)
    job.clear(no_pause)
    assert directory.names() == ["jobs.2"]


def test_clearing_that_is_cancelled_leaves_the_new_file_in_place(tmp_path: Path) -> None:
    """Under the name under which it stands for the old ones; clearing may be resumed."""
    directory, job = replacement(tmp_path)
    job.place(no_pause)

    def cancel_last(point: str) -> bool:
        """Cancel in the last step before the new file gets its final name."""
        if point == "sync the directory":
            job.cancel()
        return False

    directory.fail = cancel_last
    with pytest.raises(ReplacementCancelled):
        job.clear(no_pause)
    assert directory.names() == ["jobs.2.pack"]
    directory.mend()
    job.resume()
    job.clear(no_pause)
    assert directory.names() == ["jobs.2"]
