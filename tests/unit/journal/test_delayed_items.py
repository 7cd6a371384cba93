"""Notes of delayed items: how they are written, found and read, and what replay makes of them."""

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kestrelmq.format import notes, salvage
from kestrelmq.format.notes import decode_delayed, delayed_notes, flushed_note, joined_note
from kestrelmq.format.records import MAX_XID, MIN_XID, item
from kestrelmq.format.scanning import record_length
from kestrelmq.journal.delayed_items import DelayedItems, notes_of
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.walk import find_records
from tests.support.examples import examples
from tests.support.journal_bytes import journal
from tests.support.readings import Reading

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
JOURNAL_DOCS = Path(__file__).parents[3] / "docs" / "journal-notes.md"
LATE = [item(NOW + due, 0, b"%d" % due) for due in (1, 2, 3)]


def replayed(*records: bytes) -> Replay:
    """Return what a server makes of a file."""
    raw, state = b"".join(records), Replay()
    batch, end = find_records(raw, 0, len(raw), more=False)
    assert end == len(raw)
    state.feed_batch(raw, batch, ("jobs",))
    state.end()
    return state


def late(state: Replay) -> list[bytes]:
    """Return the delayed items."""
    return [] if state.delayed is None else state.delayed.in_order()


def test_the_example_in_the_docs() -> None:
    """Byte by byte, in docs/journal-notes.md."""
    record = item(1_700_000_001_000, 0, b"a")
    docs = "".join(JOURNAL_DOCS.read_text().split())
    for written in (delayed_notes(1, record, 0), joined_note(1, 0) + record):
        assert written.hex().upper() in docs


@given(
    data=st.binary(max_size=300),
    number=st.integers(0, 2**64 - 1),
    last_xid=st.integers(MIN_XID, MAX_XID),
)
@example(data=b"\x04NOTE\x04\x03" * 9, number=1, last_xid=7)
@settings(max_examples=examples(100))
def test_a_note_is_one_record_that_others_skip(data: bytes, number: int, last_xid: int) -> None:
    """Others find SAVE_XIDs that leave the last-used xid as it is."""
    record = item(NOW, 9, data)
    note = delayed_notes(number, record, last_xid)
    assert record_length(note, 0, len(note)) == len(note)
    assert decode_delayed(note, 0, len(note)) == (number, 0, record)
    assert decode_delayed(memoryview(note), 0, len(note)) == (number, 0, record)
    state = replayed(note, journal("x"))
    assert (late(state), state.items, state.last_xid) == ([record], 1, last_xid)
    reading = Reading(keeps_xid=True)
    reading.file(note)
    assert (reading.queue, reading.last) == ([], last_xid)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_any_flaw_makes_a_note_say_nothing(size: int) -> None:
    """Of an item of several notes, a single one."""
    record = item(NOW, 0, random.Random(size).randbytes(size))
    note = delayed_notes(1, record, 0)
    assert late(replayed(note)) == [record]
    for at in (12, len(note) - 9):
        flawed = bytearray(note)
        flawed[at] ^= 1
        assert late(replayed(bytes(flawed), delayed_notes(2, LATE[0], 0))) == [LATE[0]]


def test_another_server_goes_on_behind_half_a_note() -> None:
    """Its records are found; the half says nothing."""
    note = delayed_notes(1, item(NOW, 0, bytes(1000)), 5)
    for cut in range(15, len(note), 5):
        state = replayed(note[:cut], journal("x"))
        assert (state.items, late(state)) == (1, [])


def test_what_joins_comes_once() -> None:
    """The note says nothing without the item."""
    delayed = [delayed_notes(n, one, 0) for n, one in enumerate(LATE)]
    state = replayed(*reversed(delayed), joined_note(0, 0), LATE[0], joined_note(1, 0), LATE[1])
    assert (list(state.memory), late(state)) == (LATE[:2], LATE[2:])
    assert late(replayed(*delayed, joined_note(0, 0))) == LATE
    assert late(replayed(*delayed, flushed_note(0), delayed[1])) == [LATE[1]]


def test_an_item_whose_note_was_lost_comes_again() -> None:
    """And none that is due later is taken for it."""
    delayed = [delayed_notes(n, one, 0) for n, one in enumerate(LATE)]
    state = replayed(*delayed, LATE[0], joined_note(1, 0), LATE[1])
    assert (list(state.memory), late(state)) == (LATE[:2], [LATE[0], LATE[2]])
    state = replayed(delayed[0], delayed[2], joined_note(1, 0), LATE[1])
    assert late(state) == [LATE[0], LATE[2]]


@pytest.mark.parametrize("step", [64, 19])  # 5 * 19 bytes are up to the first of the note
def test_records_go_on_at_a_note_behind_damage(step: int) -> None:
    """It has a checksum; one that is flawed is passed over, and so is the data of a cut item."""
    note = delayed_notes(1, LATE[0], 0)
    flawed = bytearray(note)
    flawed[20] ^= 1
    raw = bytes(30) + bytes(flawed) + note + b"\x63"
    assert salvage.next_record(raw, 0, step=lambda _at: step) == 30 + len(note)
    cut = item(NOW, 0, note + bytes(100))[:-1]
    assert salvage.next_after_cut(cut, 0, step=lambda _at: 64) == len(cut)


def test_what_is_taken_back_does_not_join() -> None:
    """Nor is it in a new file; what was taken comes first again."""
    items = DelayedItems()
    keys = [items.add(number, record) for number, record in enumerate(LATE)]
    items.take_back(keys[0], 1)
    items.take_back(keys[2], 1)
    assert (len(items), items.size, items.next_due) == (1, 1, NOW + 2)
    entry = items.take()
    assert (entry[1], items.next_due, len(items), items.size) == (LATE[1], None, 0, 0)
    items.restore(entry)
    assert late(replayed(*notes_of(items.snapshot(), 0))) == [LATE[1]]
    items.drop_all()
    assert (len(items), items.size, items.next_due) == (0, 0, None)


def test_a_note_is_described() -> None:
    """For `journal dump`."""
    first, second = (
        notes.describe_delayed((7, offset, part)) for offset, part in ((0, LATE[0]), (9, b"ab"))
    )
    assert first == f"item 7 is delayed until {NOW + 1}, 22 bytes"
    assert second == "item 7 goes on, 2 bytes"
    assert notes.describe_delayed(notes.DAMAGED_PART) == "a damaged note"
