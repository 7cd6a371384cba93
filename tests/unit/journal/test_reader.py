"""Reading items back from a journal: all of them, in order, and never for long at once."""

from pathlib import Path

import pytest

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.notes import deliveries_note
from kestrelmq.format.records import (
    ADDX_HEADER,
    REMOVE_RECORD,
    REMOVE_TENTATIVE_RECORD,
    Item,
    confirm_remove,
    item,
    item_deliveries,
    record_of,
)
from kestrelmq.format.scanning import MIN_RUN
from kestrelmq.journal.reader import CHUNK, RUN, JournalReader

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
    found: list[Item] = []
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
    found: list[Item] = []
    while some := reader.read(files, at_once, 1 << 30):
        found += some
    assert found == items
    assert reader.item_bytes == sum(map(len, items))
    reader.close()


@pytest.mark.parametrize("count", [1, MIN_RUN - 1, MIN_RUN, 2 * MIN_RUN])
def test_a_note_is_about_the_next_item_only(tmp_path: Path, count: int) -> None:
    """Also when that begins a run, whose items are cut out together."""
    note = deliveries_note(3, 0)
    before = item(1, 0, bytes(CHUNK - ADDX_HEADER - len(note)))  # the items are in a new chunk
    items = [item(number, 0, b"%08d" % number) for number in range(count)]
    files = write(tmp_path, before + note + b"".join(items))
    reader = JournalReader(tmp_path, files[0], 0)
    found = reader.read(files, count + 1, 1 << 30)
    assert list(map(record_of, found)) == [before, *items]
    assert [item_deliveries(record) for record in found] == [0, 3, *[0] * (count - 1)]
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


def test_damage_behind_records_of_many_sizes(tmp_path: Path) -> None:
    """What comes before it in what is read together is handed out first."""
    items = [item(number, 0, b"x" * number) for number in range(5)]
    files = write(tmp_path, b"".join(items) + b"\xff" + FIRST)
    reader = JournalReader(tmp_path, files[0], 0)
    assert reader.read(files, 100, 1 << 30) == items
    with pytest.raises(DamagedJournal, match=r"jobs\.1: damaged at byte 115"):
        reader.read(files, 100, 1 << 30)
    reader.close()


@pytest.mark.parametrize("cut", [1, 4, 9, 21])
def test_an_item_that_is_still_being_written_is_not_read(tmp_path: Path, cut: int) -> None:
    """Neither as items nor as damage; when all of it is there, it is."""
    files = write(tmp_path, FIRST + FIRST[:cut])
    reader = JournalReader(tmp_path, files[0], 0)
    assert reader.read(files, 5, 1 << 30) == [FIRST]
    assert reader.read(files, 5, 1 << 30) == []
    with (tmp_path / files[0]).open("ab") as file:
        file.write(FIRST[cut:])
    assert reader.read(files, 5, 1 << 30) == [FIRST]
    reader.close()


@pytest.mark.parametrize("sizes", [[8] * 3000, [*range(200)] * 3, [5] * 20 + [7] * 3])
@pytest.mark.parametrize("read", [0, 1, 100])
def test_items_are_passed_over(tmp_path: Path, sizes: list[int], read: int) -> None:
    """As many as are asked for, or as there are; also when some were read together already."""
    items = [item(number, 0, b"x" * size) for number, size in enumerate(sizes)]
    files = write(tmp_path, b"".join(items[:-1]), items[-1])
    left = items[read:]
    for count in (0, 1, len(left) - 2, len(left), len(left) + 5):
        reader = JournalReader(tmp_path, files[0], 0)
        reader.read(files, read, 1 << 30)
        expected = max(0, min(count, len(left)))
        assert reader.skip(files, max(0, count)) == expected
        assert reader.read(files, 1, 1) == left[expected : expected + 1]
        reader.close()


def test_a_file_is_opened_where_the_reader_is_sent(tmp_path: Path) -> None:
    """At once: it may be gone, or have another name, when it is read."""
    files = write(tmp_path, FIRST, LAST)
    reader = JournalReader(tmp_path, files[0], 0)
    reader.seek(files[1], 0)
    (tmp_path / files[1]).unlink()
    assert reader.read(files, 5, 1 << 30) == [LAST]
    with pytest.raises(FileNotFoundError):
        reader.seek(files[1], 0)
    reader.close()


def test_a_copy_reads_the_file_that_is_open(tmp_path: Path) -> None:
    """It goes on where the reader is, although the file's name is gone."""
    files = write(tmp_path, FIRST + LAST)
    reader = JournalReader(tmp_path, files[0], 0)
    assert reader.read(files, 1, 1 << 30) == [FIRST]
    (tmp_path / files[0]).unlink()
    copy = reader.copy()
    reader.close()
    assert copy.read(files, 5, 1 << 30) == [LAST]
    copy.close()


def test_a_large_record_is_left_to_a_thread(tmp_path: Path) -> None:
    """It is used if the reader is still there, and ignored at another place of the same number."""
    large = item(1, 0, b"x" * 100_000)
    files = write(tmp_path, FIRST + large + LAST, FIRST + large.replace(b"x", b"y") + LAST)
    reader = JournalReader(tmp_path, files[0], 0)
    assert reader.read(files, 5, 1 << 30, max_record=100_000) == [FIRST]
    assert reader.read(files, 5, 1 << 30, max_record=100_000) == []
    assert reader.large == len(large)
    for is_moved in (False, True):
        ahead = reader.large_record()
        ahead.load()
        assert ahead.data == large
        if is_moved:
            reader.seek(files[1], len(FIRST))
        reader.use(ahead)
        found = reader.read(files, 1, 1 << 30, max_record=100_000)
        assert found == ([] if is_moved else [large])
        if not is_moved:
            reader.seek(files[0], len(FIRST))
            assert reader.read(files, 1, 1 << 30, max_record=100_000) == []
    assert reader.read(files, 5, 1 << 30) == [large.replace(b"x", b"y"), LAST]
    reader.close()


def test_a_large_record_that_is_not_all_there(tmp_path: Path) -> None:
    """The thread says so; it is not used."""
    large = item(1, 0, b"x" * 100_000)
    (file,) = write(tmp_path, large)
    reader = JournalReader(tmp_path, file, 0)
    assert reader.read([file], 1, 1, max_record=100_000) == []
    (tmp_path / file).write_bytes(large[:-1])
    ahead = reader.large_record()
    with pytest.raises(OSError, match="has only 100020 of the 100021 bytes"):
        ahead.load()
    reader.close()
