"""Runs of records of one length, which loading takes together."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.format.notes import deliveries_note
from kestrelmq.format.records import REMOVE_RECORD, Add, item, item_deliveries
from kestrelmq.format.scanning import added_run, uniform_run
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay
from tests.support.journal_bytes import encode

pytestmark = pytest.mark.compiled


@given(
    st.integers(0, 30),
    st.integers(0, 50),
    st.sampled_from([b"", REMOVE_RECORD, item(9, 0, b"longer than the others" * 3), b"\x02\x10"]),
)
def test_a_run_ends_where_a_record_differs(count: int, size: int, after: bytes) -> None:
    """Exactly the whole records of the first one's length are counted."""
    run = b"".join(item(number, 0, bytes(size)) for number in range(count))
    buffer = REMOVE_RECORD + run + after
    expected = (count, size + 21) if count else (0, 0)
    if not count and after[:1] == b"\x02" and len(after) > 20:
        expected = (1, len(after))
    for kind in (bytes, bytearray, memoryview):
        assert uniform_run(kind(buffer), 1, len(buffer)) == expected
    assert uniform_run(buffer, 1, len(buffer) - len(after) - 1)[0] == max(0, count - 1)


@given(
    st.integers(1, 40),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([None, 0, 10, 1000]),
    st.booleans(),
)
def test_a_run_is_replayed_like_its_records(
    count: int,
    size: int,
    limit: int | None,
    old: bool,  # noqa: FBT001 # drawn
) -> None:
    """Memory, counts and the first position behind are the same either way."""
    one_record = encode(Add(0, bytes(size))) if old else item(7, 0, bytes(size))
    buffer = one_record * count
    length = len(one_record)
    assert uniform_run(buffer, 0, len(buffer)) == (count, length)

    def reader(file: str, position: int) -> JournalReader:
        return JournalReader(Path(), file, position)

    one = Replay(limit, reader)
    other = Replay(limit, reader)
    one.feed(buffer, range(0, len(buffer), length), len(buffer), ("jobs",))
    other.feed_run(buffer, 0, count, length, ("jobs",))
    assert other.memory == one.memory
    assert other.memory_bytes == one.memory_bytes
    assert (other.items, other.size) == (one.items, one.size)
    assert (other.behind is None) == (one.behind is None)
    if one.behind is not None and other.behind is not None:
        assert (other.behind.file, other.behind.position) == ("jobs", one.behind.position)


@pytest.mark.parametrize("limit", [None, 1, 30])
@pytest.mark.parametrize("together", ["run", "added"])
def test_a_note_before_many_items_is_about_the_first(limit: int | None, together: str) -> None:
    """However they are taken together, and wherever they are then."""
    note, size = deliveries_note(3, 0), 8
    items = b"".join(item(number, 0, bytes(size)) for number in range(20))
    length = len(items) // 20
    starts = range(0, len(items), length)

    def reader(file: str, position: int) -> JournalReader:
        return JournalReader(Path(), file, position)

    one, other = Replay(limit, reader), Replay(limit, reader)
    for state in (one, other):
        state.feed(note, range(0, len(note), 5), len(note), ("jobs",))
    one.feed(items, starts, len(items), ("jobs",))
    if together == "run":
        other.feed_run(items, 0, len(starts), length, ("jobs",))
    else:
        other.feed_added(items, starts, len(items), ("jobs",))
    counts = [item_deliveries(record) for record in other.memory]
    assert counts == [item_deliveries(record) for record in one.memory]
    assert counts == [3, *[0] * (len(counts) - 1)]
    assert other.memory == one.memory
    assert (other.items, other.size) == (one.items, one.size) == (20, 20 * size)


ITEMS = st.lists(st.integers(0, 40), max_size=40)


@given(
    ITEMS,
    st.sampled_from([b"", REMOVE_RECORD, item(9, 0, b"cut")[:-1], b"\x02\x0f\0\0\0" + bytes(30)]),
)
def test_a_run_of_added_items_ends_where_another_record_begins(
    sizes: list[int], after: bytes
) -> None:
    """The starts of exactly the whole ADDX records are found, and where the last one ends."""
    buffer = REMOVE_RECORD
    expected = []
    for size in sizes:
        expected.append(len(buffer))
        buffer += item(7, 0, bytes(size))
    starts: list[int] = []
    assert added_run(buffer + after, 1, len(buffer + after), starts) == len(buffer)
    assert starts == expected


@given(ITEMS.filter(bool), ITEMS, st.sampled_from([None, 0, 10, 300, 10_000]))
def test_added_items_are_replayed_like_any_record(
    sizes: list[int], before: list[int], limit: int | None
) -> None:
    """Memory, counts and the first position behind are the same either way."""

    def reader(file: str, position: int) -> JournalReader:
        return JournalReader(Path(), file, position)

    one = Replay(limit, reader)
    other = Replay(limit, reader)
    for part in (before, sizes):
        starts: list[int] = []
        buffer = b"".join(item(7, 0, bytes(size)) for size in part)
        added_run(buffer, 0, len(buffer), starts)
        one.feed(buffer, starts, len(buffer), ("jobs",))
        if starts:
            other.feed_added(buffer, starts, len(buffer), ("jobs",))
    assert other.memory == one.memory
    assert other.memory_bytes == one.memory_bytes
    assert (other.items, other.size) == (one.items, one.size)
    assert (other.behind is None) == (one.behind is None)
    if one.behind is not None and other.behind is not None:
        assert other.behind.position == one.behind.position
