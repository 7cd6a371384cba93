"""Marks of producers as notes: what they look like, and when they count."""

import re
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from kestrelmq.format.notes import Note, NoteReader, encode
from kestrelmq.format.records import item, item_data, record_xid, save_xid
from kestrelmq.format.scanning import scan
from kestrelmq.idempotent_producers import MAX_PRODUCER, MAX_SEQUENCE, PutMark, check_mark
from kestrelmq.journal.producers import (
    MARK,
    MARKS,
    LastMark,
    Producers,
    describe,
    marked,
    marks_notes,
    noted_mark,
)
from kestrelmq.journal.replay import Replay
from tests.support.fake_clock import FakeClock

NOW = 1_700_000_001
RECORD = item(NOW * 1000, 0, b"a")
JOURNAL_DOCS = Path(__file__).parents[3] / "docs" / "journal-notes.md"


def replayed(records: bytes) -> Replay:
    """Return the state after `records`, which are a whole file."""
    state = Replay()
    starts: list[int] = []
    end = scan(records, 0, len(records), starts)
    state.feed(records, starts, end)
    state.end()
    return state


def test_the_notes_are_as_documented() -> None:
    """Byte by byte, in docs/journal-notes.md."""
    blocks = re.findall(r"(?m)(?:^    (?:[0-9A-F]{2,} ?)+\n)+", JOURNAL_DOCS.read_text())
    documented = {bytes.fromhex(block) for block in blocks}
    assert marked(RECORD, PutMark(b"p", 5), NOW, 0) + RECORD in documented
    assert b"".join(marks_notes([(b"p", LastMark(5, NOW))], 0)) in documented


@pytest.mark.parametrize("sequence", [0, 2**32 - 1, 2**32, 2**33 + 5, MAX_SEQUENCE])
@pytest.mark.parametrize("producer", [b"p", b"name", "\u00e9\u00e8".encode(), b"n" * MAX_PRODUCER])
@pytest.mark.parametrize("last_xid", [-(2**31), -1, 0, 2**31 - 1])
def test_a_mark_is_noted_as_anything_else(sequence: int, producer: bytes, last_xid: int) -> None:
    """Though its note is made in a faster way."""
    for added in (0, NOW, 2**32 - 1):
        payload = struct.pack("<QII", sequence, added, zlib.crc32(RECORD)) + producer
        found = marked(RECORD, PutMark(producer, sequence), added, last_xid)
        assert found == encode(Note(MARK, payload), last_xid)


def test_a_mark_counts_only_with_its_item() -> None:
    """Not without one, and not with another."""
    note = marked(RECORD, PutMark(b"p", 5), NOW, 3)
    whole = replayed(save_xid(3) + note + RECORD)
    assert list(whole.producers.snapshot()) == [(b"p", LastMark(5, NOW))]
    assert whole.last_xid == 3
    assert not whole.is_note_cut
    assert [item_data(one) for one in whole.memory] == [b"a"]
    for end in range(5, len(note) + 1, 5):
        alone = replayed(save_xid(3) + note[:end])
        assert alone.is_note_cut
        assert alone.last_xid == 3
        assert not len(alone.producers)
    other = replayed(note + item(NOW * 1000, 0, b"b") + RECORD)
    assert not len(other.producers)
    assert len(other.memory) == 2


def test_every_producer_has_its_last_mark() -> None:
    """Wherever it says so: before an item, or in a file written anew, a few at a time."""
    many = [(b"%d" % number, LastMark(number, NOW)) for number in range(25_000)]
    pauses: list[None] = []
    notes = b"".join(marks_notes(many, 0, lambda: pauses.append(None)))
    assert len(pauses) == 25
    state = replayed(notes + marked(RECORD, PutMark(b"7", 99), NOW + 5, 0) + RECORD)
    expected = dict(many) | {b"7": LastMark(99, NOW + 5)}
    assert dict(state.producers.snapshot()) == expected
    assert list(state.producers.snapshot())[-1] == (b"7", LastMark(99, NOW + 5))


def test_notes_that_make_no_sense_say_nothing() -> None:
    """The items are there."""
    for kind, payload in (
        (MARK, b""),
        (MARK, bytes(16)),
        (MARKS, b"\1"),
        (MARKS, bytes(12) + b"\5p"),
        (MARKS, bytes(12) + b"\0"),
        (99, b"x"),
    ):
        state = replayed(encode(Note(kind, payload), 0) + RECORD)
        assert not len(state.producers)
        assert len(state.memory) == 1


def test_a_producer_takes_little() -> None:
    """At most 100 bytes of a file written anew, which is about what the queue reckons with."""
    producers = Producers()
    for number in range(1000):
        name = b"%d" % number
        producers.set(PutMark(name.rjust(MAX_PRODUCER, b"x"), MAX_SEQUENCE), 2**32 - 1)
    written = sum(map(len, marks_notes(producers.snapshot(), 0)))
    assert written / 1000 < 100
    assert 0.8 < producers.note_bytes / written < 1
    while producers.forget_before(2**32 * 1000):
        continue
    assert producers.note_bytes == 0


def test_what_producers_can_be_called() -> None:
    """A name that is not empty, of one word, without the slash that ends an option."""
    for name in ("p", "a-b:7", "é" * 32):
        check_mark(PutMark(name.encode(), 0))
    for bad in (b"", b"x" * 65, b"a b", b"a/b", b"a\n", b"\xff"):
        with pytest.raises(ValueError, match="a producer's name"):
            check_mark(PutMark(bad, 0))
    for number in (-1, MAX_SEQUENCE + 1):
        with pytest.raises(ValueError, match="a sequence number is from 0 to"):
            check_mark(PutMark(b"p", number))


def notes_in(records: bytes) -> list[Note]:
    """Return the notes in SAVE_XID records."""
    reader = NoteReader()
    found = [reader.feed(record_xid(records, at)) for at in range(0, len(records), 5)]
    return [note for note in found if note is not None]


def test_what_dumps_say() -> None:
    """Of each kind, and nothing of others."""
    (one,) = notes_in(marked(RECORD, PutMark(b"p", 5), NOW, 0))
    assert describe(one) == "the next item is number 5 of producer p"
    (table,) = notes_in(b"".join(marks_notes([(b"p", LastMark(5, NOW))], 0)))
    assert describe(table) == "the last marks of 1 producers"
    assert describe(Note(MARK, b"")) == "a note of kind 32 that makes no sense"
    unreadable = Note(MARK, bytes(16) + b"p\xff")
    assert describe(unreadable) == "the next item is number 0 of producer p\ufffd"
    assert describe(Note(1, b"")) is None
    assert noted_mark(table) is None


@pytest.mark.parametrize("known", [False, True])
def test_an_add_is_undone_after_its_producer_was_forgotten(*, known: bool) -> None:
    """The clock may be set before the add is written; only what was before it is left then."""
    producers = Producers()
    if known:
        producers.set(PutMark(b"p", 4), NOW)
    before = producers.set(PutMark(b"p", 5), NOW)
    reckoned = producers.note_bytes
    producers.forget_before(NOW * 1000 + 1)
    assert producers.note_bytes == 0
    producers.restore(b"p", before)
    assert list(producers.snapshot()) == ([(b"p", LastMark(4, NOW))] if known else [])
    assert producers.note_bytes == (reckoned if known else 0)


def names(producers: Producers) -> list[bytes]:
    """Return the names of those that are remembered, oldest first."""
    return [name for name, _ in producers.snapshot()]


def test_producers_are_forgotten_in_the_order_of_their_last_items() -> None:
    """Whatever was looked for before; also those that were added while the clock was set back."""
    producers = Producers()
    producers.forget_before(NOW * 1000)
    for name, added in ((b"a", NOW), (b"b", NOW + 1), (b"a", NOW + 2)):
        producers.set(PutMark(name, added), added)
    producers.forget_before(NOW * 1000 + 1000)
    assert names(producers) == [b"b", b"a"]
    producers.forget_before(NOW * 1000 + 1001)
    assert names(producers) == [b"a"]
    producers.forget_before(NOW * 1000 + 3000)
    producers.set(PutMark(b"c", 1), NOW)
    producers.set(PutMark(b"d", 1), NOW - 9)
    producers.forget_before(NOW * 1000)
    assert names(producers) == [b"c", b"d"]
    producers.forget_before(NOW * 1000 + 1)
    assert not len(producers)


def test_many_producers_are_forgotten_in_several_steps() -> None:
    """None of them counts from the beginning on."""
    producers = Producers()
    producers.ttl = 5000
    for number in range(2500):
        producers.set(PutMark(b"%d" % number, 7), NOW)
    now = NOW * 1000 + 5000
    assert not producers.forget_old(now)
    assert producers.last(b"2400", now) == 7
    left = []
    while producers.forget_old(now + 1):
        assert producers.last(b"2400", now + 1) == -1
        left.append(len(producers))
    assert left == [2000, 1500, 1000, 500, 0]
    assert not len(producers)


def test_many_producers_take_little_memory() -> None:
    """Less than 270 bytes each, names of 24 bytes included; when all are forgotten, none."""
    tracemalloc.start()
    producers = Producers()
    for number in range(20_000):
        producers.set(PutMark(b"%024d" % number, 10**12 + number), NOW)
    taken = tracemalloc.get_traced_memory()[0]
    while producers.forget_before(NOW * 1000 + 1):
        continue
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / 20_000 < 270
    assert left < taken / 20


def test_a_snapshot_stays_as_it_is() -> None:
    """Whatever becomes of the producers before it is written."""
    producers = Producers()
    for name in (b"a", b"b", b"c"):
        producers.set(PutMark(name, 1), NOW)
    snapshot = producers.snapshot()
    producers.set(PutMark(b"a", 2), NOW + 1)
    producers.set(PutMark(b"d", 1), NOW + 1)
    assert len(producers.drop_all()) == 4
    assert list(snapshot) == [(name, LastMark(1, NOW)) for name in (b"a", b"b", b"c")]
    assert (len(producers), producers.note_bytes, names(producers)) == (0, 0, [])


def test_the_time_goes_on_where_the_notes_end() -> None:
    """A file written anew says what time it was; each start counts as at most one second more."""
    clock = FakeClock()
    producers = Producers()
    for expected in (1000, 62_000, 123_000):
        producers.ttl = 60_000
        producers.start_clock(clock)
        assert producers.now() == expected
        producers.set(PutMark(b"p", expected), producers.now() // 1000)
        clock.advance(60)
        assert producers.now() == expected + 60_000
        notes = b"".join(marks_notes(producers.noted(producers.now()), 0))
        producers = replayed(notes).producers
        assert list(producers.snapshot()) == [(b"p", LastMark(expected, expected // 1000))]
        clock = FakeClock(clock.now() - 8 * 86_400_000)
    assert list(Producers().noted(5000)) == []


def test_the_last_second_that_a_note_can_have() -> None:
    """Whatever a journal says, items can be added."""
    producers = Producers()
    producers.set(PutMark(b"p", 1), 2**32 - 1)
    producers.start_clock(FakeClock())
    assert marked(RECORD, PutMark(b"p", 2), producers.now() // 1000, 0)


def test_processes_that_are_short() -> None:
    """Each has a producer of its own; though no time passes, they do not become too many."""
    producers = Producers()
    producers.ttl = 7 * 86_400_000
    for number in range(30_000):
        producers.start_clock(FakeClock())
        producers.set(PutMark(b"%d" % number, 1), producers.now() // 1000)
        producers.forget_old(producers.now())
    assert 5000 < len(producers) < 15_000
