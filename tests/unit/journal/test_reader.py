"""Reading items back from a journal: all of them, in order, and never for long at once."""

from pathlib import Path

import pytest

from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.reader import CHUNK, RUN, JournalReader
from kestrelmq.journal.records import (
    REMOVE_RECORD,
    REMOVE_TENTATIVE_RECORD,
    confirm_remove,
    item,
)

pytestmark = pytest.mark.compiled

FIRST, LAST = item(1, 0, b"first"), item(2, 0, b"last" * CHUNK)
RELIABLE = b"".join(REMOVE_TENTATIVE_RECORD + confirm_remove(xid) for xid in range(1, 30_000))


def write(path: Path, *contents: bytes) -> list[str]:
    """Write files; return their names."""
    names = [f"jobs.{number}" for number in range(1, len(contents) + 1)]
    for name, content in zip(names, contents, strict=True):
        (path / name).write_bytes(content)
    return names


@pytest.mark.parametrize("between", [REMOVE_RECORD * 300_000, RELIABLE, b""])
@pytest.mark.parametrize("split", [False, True])
def test_what_is_no_item_is_passed_over(tmp_path: Path, between: bytes, *, split: bool) -> None:
    """However much of it there is, and whether or not another file begins in it."""
    parts = [FIRST + between, between + LAST] if split else [FIRST + between + between + LAST]
    files = write(tmp_path, *parts)
    reader = JournalReader(tmp_path, files[0], 0)
    assert reader.read(files, 5, 1 << 30) == [FIRST, LAST]
    assert reader.read(files, 5, 1 << 30) == []
    reader.close()


@pytest.mark.parametrize("between", [REMOVE_RECORD * 30_000, RELIABLE])
def test_a_short_look_may_find_nothing_yet(tmp_path: Path, between: bytes) -> None:
    """It goes on from there the next time, and misses nothing."""
    files = write(tmp_path, FIRST + between + LAST)
    reader = JournalReader(tmp_path, files[0], 0)
    found: list[bytes] = []
    looks = 0
    while len(found) < 2:
        before = reader.position
        found += reader.read(files, 5, 1 << 30, max_other=1000)
        looks += 1
        assert reader.position > before
    assert found == [FIRST, LAST]
    assert looks > 1
    reader.close()


@pytest.mark.parametrize("at_once", [1, 63, 64, 65, 1000])
def test_a_run_is_cut_into_its_items(tmp_path: Path, at_once: int) -> None:
    """However many are asked for at once; what was handed out is counted."""
    items = [item(number, 0, b"%08d" % number) for number in range(2 * RUN // 29)]
    files = write(tmp_path, b"".join(items))
    reader = JournalReader(tmp_path, files[0], 0)
    found: list[bytes] = []
    while some := reader.read(files, at_once, 1 << 30):
        found += some
    assert found == items
    assert reader.item_bytes == sum(map(len, items))
    reader.close()


def test_what_comes_before_damage_is_not_lost(tmp_path: Path) -> None:
    """It is returned; the damage is told the next time."""
    items = [item(number, 0, b"before") for number in range(1000)]
    files = write(tmp_path, b"".join(items) + b"\xff")
    reader = JournalReader(tmp_path, files[0], 0)
    assert reader.read(files, 5000, 1 << 30) == items
    with pytest.raises(DamagedJournal):
        reader.read(files, 5000, 1 << 30)
    reader.close()
