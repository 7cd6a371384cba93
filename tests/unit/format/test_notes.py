"""Notes: what they look like, and that they change nothing for those who do not know them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.format.notes import (
    DEAD,
    DELIVERIES,
    MAX_WHY,
    DeadLetter,
    Note,
    NoteReader,
    counted,
    dead_letter,
    deliveries_note,
    describe,
    encode,
    flushed_note,
    joined_note,
    noted_deliveries,
    noted_letter,
)
from kestrelmq.format.records import (
    MAX_XID,
    MIN_XID,
    SAVE_XID,
    NotedItem,
    item,
    item_deliveries,
    record_of,
    record_xid,
    save_xid,
    waiting_again,
)
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay
from tests.support.journal_bytes import journal
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.readings import replayed as read_by_others

pytestmark = pytest.mark.compiled

RECORD = 5
"""Bytes of a SAVE_XID."""

notes = st.builds(Note, st.integers(0, 255), st.binary(max_size=300))
xids = st.integers(MIN_XID, MAX_XID)


def words(records: bytes) -> list[int]:
    """Return the xids of SAVE_XID records, and check that there is nothing else."""
    assert not len(records) % RECORD
    starts = range(0, len(records), RECORD)
    assert all(records[start] == SAVE_XID for start in starts)
    return [record_xid(records, start) for start in starts]


def found(records: bytes) -> list[Note]:
    """Return the notes in SAVE_XID records."""
    reader = NoteReader()
    return [note for xid in words(records) if (note := reader.feed(xid)) is not None]


def replayed(records: bytes) -> Replay:
    """Return what records that all begin with an opcode and an xid, or are items, replay to."""
    state = Replay()
    starts, position = [], 0
    while position < len(records):
        starts.append(position)
        is_item = records[position] == 2
        position += len(item(0, 0, b"a")) if is_item else RECORD
    state.feed(records, starts, position)
    return state


def test_the_example_of_the_format() -> None:
    """It is the one in docs/journal-notes.md."""
    expected = "044e4f54450401040000040a54724f04030000000400000000"
    assert deliveries_note(3, 0).hex() == expected


@pytest.mark.parametrize("size", [0, 1, 4, 5, 115, 116, 117, 120, 121, 4000])
def test_long_and_short_notes_are_written_alike(size: int) -> None:
    """Each word is the xid of a SAVE_XID."""
    payload = bytes(number % 251 for number in range(size))
    found = words(encode(Note(200, payload), 7))
    written = b"".join(xid.to_bytes(4, "little", signed=True) for xid in found)
    assert written[12:] == payload + bytes(-size % 4) + bytes((7, 0, 0, 0))


@given(notes, xids)
def test_a_note_is_found_again(note: Note, last_xid: int) -> None:
    """It also leaves the last-used xid as it was."""
    records = encode(note, last_xid)
    assert found(records) == [note]
    assert words(records)[-1] == last_xid


@given(st.lists(notes, max_size=4), st.lists(xids, max_size=9))
def test_notes_are_found_between_other_save_xids(some: list[Note], others: list[int]) -> None:
    """SAVE_XIDs that are no notes are none, whatever their xids."""
    records = b"".join(encode(note, 7) for note in some)
    plain = b"".join(bytes((SAVE_XID,)) + xid.to_bytes(4, "little", signed=True) for xid in others)
    mark = int.from_bytes(b"NOTE", "little")
    if mark not in others:
        assert found(plain + records) == some


@given(notes, st.data())
def test_a_changed_note_is_ignored(note: Note, data: st.DataObject) -> None:
    """Its checksum tells, or it is not whole."""
    records = bytearray(encode(note, 0))
    place = data.draw(st.integers(RECORD, len(records) - RECORD - 1).filter(lambda at: at % RECORD))
    padding = -len(note.payload) % 4
    if place // RECORD == len(records) // RECORD - 2 and place % RECORD > 4 - padding:
        return  # zeros that fill the last word; they say nothing
    records[place] ^= data.draw(st.integers(1, 255))
    assert note not in found(bytes(records))


def test_the_next_item_has_the_count() -> None:
    """The one after it has none."""
    one, two = item(1, 0, b"a"), item(2, 0, b"b")
    state = replayed(deliveries_note(5, 9) + one + two)
    assert [record_of(found) for found in state.memory] == [one, two]
    assert [item_deliveries(record) for record in state.memory] == [5, 0]
    assert state.last_xid == 9


def test_an_item_without_deliveries_has_no_note() -> None:
    """So a queue that nobody gives items back to has not one byte of notes."""
    assert counted(item(1, 0, b"a"), 3) == item(1, 0, b"a")
    again = item(1, 0, b"a")
    assert counted(NotedItem(again, 2), 3) == deliveries_note(2, 3) + again


LETTER = DeadLetter("größer", 1_700_000_000_000, "w" * 300)


@pytest.mark.parametrize("deliveries", [0, 3])
def test_a_dead_letter_keeps_where_it_came_from(tmp_path: Path, deliveries: int) -> None:
    """Read from memory or from disk, given back or written again; the next item has none."""
    one, two = item(1, 0, b"a"), item(2, 0, b"b")
    letter = NotedItem(one, deliveries, LETTER.packed())
    records = counted(letter, 9) + two
    state = replayed(records)
    (tmp_path / "jobs").write_bytes(records)
    reader = JournalReader(tmp_path, "jobs", 0)
    for found in (
        list(state.memory),
        reader.read(["jobs"], 9, 9999),
        [waiting_again(letter, counted=False), two],
    ):
        assert list(map(record_of, found)) == [one, two]
        assert [item_deliveries(record) for record in found] == [deliveries, 0]
        kept = LETTER._replace(why="w" * MAX_WHY)
        assert [dead_letter(record) for record in found] == [kept, None]
        assert b"".join(counted(record, 9) for record in found) == records
    reader.close()


def test_what_is_no_letter_is_none() -> None:
    """A note of the right kind may still be cut short."""
    whole = b"\2\0\0\0" + LETTER.packed()
    assert noted_letter(Note(DEAD, whole)) == LETTER.packed()
    for end in (0, 3, 12, 13 + len(LETTER.origin)):
        assert noted_letter(Note(DEAD, whole[:end])) == b""
        assert noted_deliveries(Note(DEAD, whole[:end])) == 0


def test_a_note_at_the_end_of_a_file_says_nothing_about_the_next_file() -> None:
    """A crash cut the item off; what is in the next file is another one."""
    state = Replay()
    note, records = deliveries_note(5, 9), journal("a")
    state.feed(note, range(0, len(note), RECORD), len(note), ("jobs.1",))
    state.feed(records, [0], len(records), ("jobs.1", "jobs"))
    assert [item_deliveries(record) for record in state.memory] == [0]


def test_notes_are_described() -> None:
    """For `journal dump`."""
    (note,) = found(deliveries_note(3, 0))
    assert describe(note) == "the next item was delivered 3 times"
    (note,) = found(counted(NotedItem(b"", 3, LETTER.packed()), 0))
    assert describe(note) == "the next item is a dead letter, delivered 3 times"
    (note,) = found(joined_note(7, 0))
    assert describe(note) == "the next item was delayed, as number 7"
    (note,) = found(flushed_note(0))
    assert describe(note) == "the delayed items are dropped"
    assert describe(Note(2, b"")) == "the next UNREMOVE does not count as a delivery"
    assert describe(Note(99, b"")) == "a note of the unknown kind 99"


def test_a_count_that_is_not_one_is_none() -> None:
    """A note of the right kind may still have the wrong length."""
    assert noted_deliveries(Note(DELIVERIES, b"123")) == 0


@pytest.mark.parametrize("cut", [5, 10, 15, 20])
def test_a_note_that_a_crash_cut_short(tmp_path: Path, cut: int) -> None:
    """The last-used xid is the one before it, and later notes are read: other readers agree."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(b"a", b"b")
    spool.queue().reads.confirm(spool.open_read())
    spool.commit()
    spool.close()
    note = deliveries_note(3, 1)[:cut]
    (tmp_path / "jobs").write_bytes((tmp_path / "jobs").read_bytes() + note)
    spool.open()
    assert spool.queue().reads.last_xid == 1
    spool.queue().returns.give_back((spool.open_read(),), counted=False)
    spool.commit()
    spool.restart()
    assert [item_deliveries(record) for record in spool.queue().backlog.browse(9)] == [0]
    assert spool.open_read() == 3
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for keeps_xid in (True, False):
        reading = read_by_others(files, "jobs", keeps_xid=keeps_xid)
        assert (list(reading.reads), reading.last) == ([3], 3)
    spool.close()


@pytest.mark.parametrize("note", [deliveries_note(3, 1), encode(Note(2, b""), 1)])
def test_a_note_without_its_record_says_nothing(tmp_path: Path, note: bytes) -> None:
    """A crash cut the record off, and what is added or given back next is something else."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(b"a")
    spool.open_read()
    spool.close()
    (tmp_path / "jobs").write_bytes((tmp_path / "jobs").read_bytes() + note)
    spool.open()
    spool.add(b"b")
    spool.restart()
    assert [item_deliveries(record) for record in spool.queue().backlog.browse(9)] == [1, 0]
    spool.close()


def test_the_last_used_xid_may_be_the_mark() -> None:
    """A note after it is found."""
    mark = words(deliveries_note(3, 0))[0]
    assert found(save_xid(mark) + deliveries_note(3, mark)) == [Note(DELIVERIES, b"\3\0\0\0")]
    assert len(found(deliveries_note(3, mark) * 3)) == 3
