"""The walk of a file: where it ends, what it holds in memory, and what it is asked too early."""

from pathlib import Path

import pytest

from kestrelmq.disk.opening import mapped
from kestrelmq.format.records import AddX, Continue, RemoveTentative, RemoveTentativeXid
from kestrelmq.journal.walk import WINDOW, EndKind, Walk, find_records
from tests.support.journal_bytes import encode, journal

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000


def test_the_end_is_not_known_before_the_walk_is_there() -> None:
    """To ask for it is a mistake of the program, not the end of the file."""
    walk = Walk(journal("one", "two") + b"\xff", find_records, last=True)
    batches = walk.batches()
    with pytest.raises(RuntimeError, match="not at the end"):
        _ = walk.end
    next(batches)
    with pytest.raises(RuntimeError, match="not at the end"):
        walk.checked_end("jobs")
    assert list(batches) == []
    assert walk.end.kind is EndKind.DAMAGED


@pytest.mark.parametrize("zeros", [64, 100, WINDOW + 100])
@pytest.mark.parametrize("behind", [b"\x01", journal("behind")])
def test_zeros_that_something_follows_are_damage(tmp_path: Path, zeros: int, behind: bytes) -> None:
    """A file system leaves zeros at the end only; what is behind others would be lost."""
    whole = journal("whole")
    file = tmp_path / "jobs"
    file.write_bytes(whole + bytes(zeros) + behind)
    with mapped(file) as buffer:
        walk = Walk(buffer, find_records, last=True, path=file)
        assert sum(len(batch.starts) for batch in walk.batches()) == 1
        assert (walk.end.kind, walk.end.position) == (EndKind.DAMAGED, len(whole))
        expected = len(buffer) if behind == b"\x01" else len(whole) + zeros
        assert walk.resume_position() == expected


def resident(file: Path) -> int:
    """Return how many bytes of the maps of `file` are in this process's memory."""
    kilobytes = 0
    is_map = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name:
            is_map = line.endswith(str(file))
        elif is_map and name == "Rss:":
            kilobytes += int(values[0])
    return kilobytes << 10


def test_a_second_look_at_a_long_file_holds_little_of_it(tmp_path: Path) -> None:
    """Whether its last bytes are a torn CONTINUE, the last tentative remove tells.

    Both looks give back what they have seen: a map of a long journal would fill the memory.
    """
    sizes = [size for _ in range(4000) for size in (3000, 3001, 3002)]
    items = [AddX(NOW, 0, bytes([1]) * size) for size in sizes]
    whole = (
        journal(RemoveTentative(), *items, RemoveTentativeXid(1))
        + encode(Continue(1, NOW, 0, b"torn"))[:12]
    )
    file = tmp_path / "jobs"
    file.write_bytes(whole)
    most = 0
    positions: list[int] = []
    with mapped(file) as buffer:

        def step(position: int) -> int:
            nonlocal most
            positions.append(position)
            most = max(most, resident(file))
            return WINDOW

        walk = Walk(buffer, find_records, last=True, step=step, path=file)
        assert sum(len(batch.starts) for batch in walk.batches()) == len(items) + 2
    assert (walk.end.kind, walk.end.position) == (EndKind.TORN, len(whole) - 12)
    assert positions.count(0) == 2  # two looks from the beginning
    assert len(whole) > 32 << 20
    assert 0 < most < 24 << 20
