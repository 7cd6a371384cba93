"""The notes about reserved reads: their bytes, and what they replay to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.format.notes import Note, NoteReader, encode
from kestrelmq.format.records import (
    MAX_XID,
    MIN_XID,
    AddX,
    ConfirmRemove,
    RemoveTentativeXid,
    Unremove,
    record_xid,
)
from kestrelmq.format.scanning import scan
from kestrelmq.journal.open_read import OpenRead, ReserveTerms
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.reserved_reads import (
    DONE,
    HELD_BACK,
    RESERVED,
    RETIRED,
    ReservedReads,
    describe,
    done_note,
    held_back_note,
    reserved_note,
    retired_note,
    unreserved_note,
)
from kestrelmq.tags import MAX_EPOCH, Tag, parse_tag
from tests.support.journal_bytes import journal
from tests.support.open_reads import reservations, uncounted

pytestmark = pytest.mark.compiled

TERMS = ReserveTerms(30_000, 5000, "w")
TAGGED = ReserveTerms(30_000, 5000, "worker 1", "sink:7:0")
xids = st.lists(st.integers(MIN_XID, MAX_XID), unique=True, max_size=20)
names = st.text("abc:\u00e9", max_size=20)


def notes_in(records: bytes) -> list[Note]:
    """Return the notes in SAVE_XID records."""
    reader = NoteReader()
    found = [reader.feed(record_xid(records, at)) for at in range(0, len(records), 5)]
    return [note for note in found if note is not None]


def replayed(records: bytes) -> Replay:
    """Return what the records of a file replay to."""
    state = Replay()
    starts: list[int] = []
    end = scan(records, 0, len(records), starts)
    state.feed(records, starts, end)
    return state


def opened(*some: int) -> bytes:
    """Return records that add an item for each xid and open it."""
    adds = [AddX(1_700_000_000_000, 0, b"%d" % xid) for xid in some]
    return journal(*adds, *map(RemoveTentativeXid, some))


def test_the_bytes_of_the_documentation() -> None:
    """docs/journal-notes.md has this example."""
    written = (
        "04 4E4F5445 04 10230000 04 DBAAC273 04 EFCDAB89 04 67452301 04 30750000 04 00000000 "
        "04 88130000 04 00000000 04 01770007 04 00000002 04 00000000 04 08000000"
    )
    assert reserved_note(0x0123456789ABCDEF, TERMS, (7, 8), 8) == bytes.fromhex(written)


def test_reserved_reads_are_replayed() -> None:
    """With their terms and in their order; those that have ended are gone, and ordinary ones."""
    state = replayed(opened(4, 5, 9, 7, 2) + reserved_note(1, TAGGED, (9, 4, 5, 7), 9))
    (reservation,) = set(reservations(state.open).values())
    assert (reservation.nonce, reservation.terms) == (1, TAGGED)
    assert state.reserved.live(reservation) == (9, 4, 5, 7)
    assert state.reserved.by_tag == {"sink:7:0": reservation}
    assert sorted(state.open) == [2, 4, 5, 7, 9]
    assert state.last_xid == 9
    more = opened(4, 5, 9) + reserved_note(1, TAGGED, (4, 5, 9), 9)
    state = replayed(more + journal(ConfirmRemove(5), Unremove(4)))
    (reservation,) = reservations(state.open).values()
    assert state.reserved.live(reservation) == (9,)
    state = replayed(more + unreserved_note((4, 9), 9) + journal(ConfirmRemove(5)))
    assert (state.reserved.count, state.reserved.by_tag) == (0, {})
    assert sorted(state.open) == [4, 9]


def test_reads_that_are_reserved_again_have_new_terms() -> None:
    """Under the same nonce; and reads that are not open are not reserved."""
    both = reserved_note(1, TAGGED, (4, 5), 5) + reserved_note(
        1, ReserveTerms(1, 2, "other", "sink:7:0"), (4, 5, 6), 5
    )
    state = replayed(opened(4, 5) + both)
    (reservation,) = set(reservations(state.open).values())
    assert (reservation.terms.owner, reservation.xids, reservation.left) == ("other", (4, 5), 2)
    assert state.reserved.by_tag == {"sink:7:0": reservation}
    assert not replayed(reserved_note(1, TAGGED, (4,), 5)).reserved.by_tag


def test_tags_are_done_and_retired() -> None:
    """A retired epoch takes the done tags of its name with it, and stays."""
    done = done_note("a:1:x", 3, 0) + done_note("a:2:x", 4, 0) + done_note("ab:1:x", 5, 0)
    reserved = replayed(done + retired_note("a", 1, 0) + retired_note("a", 0, 0)).reserved
    assert reserved.done == {"a:2:x": 4, "ab:1:x": 5}
    assert reserved.retired == {"a": 1}
    assert [reserved.is_retired(Tag("a", epoch, "y")) for epoch in (0, 1, 2)] == [True, True, False]
    assert not reserved.is_retired(Tag("ab", 0, "x"))


def test_a_tag_is_over_as_a_whole() -> None:
    """Though a crash cut off the records behind the note, all of them or some."""
    begun = opened(4, 5, 6) + reserved_note(1, TAGGED, (4, 5), 6)
    done = begun + done_note("sink:7:0", 2, 6)
    for records, left in ((b"", [4, 5]), (journal(ConfirmRemove(4)), [5])):
        state = replayed(done + records)
        assert (sorted(state.open), sorted(state.reserved.unconfirmed)) == ([6], left)
        assert (state.reserved.count, state.reserved.by_tag) == (0, {})
    assert not replayed(done + journal(ConfirmRemove(4), ConfirmRemove(5))).reserved.unconfirmed
    state = replayed(begun + retired_note("sink", 7, 6))
    assert (sorted(state.open), state.reserved.by_tag) == ([4, 5, 6], {})


@given(
    st.integers(0, 2**64 - 1),
    st.builds(
        ReserveTerms, st.integers(0, 2**53), st.integers(0, 2**53), names, st.just("a:1:\u00e9")
    ),
    xids,
    st.dictionaries(st.sampled_from(["a:1:x", "a:2:x", "b:1:x"]), st.integers(0, 1000)),
    st.dictionaries(names.filter(lambda name: ":" not in name), st.integers(0, MAX_EPOCH)),
    st.integers(0, 20),
)
def test_a_snapshot_replays_to_the_same(
    nonce: int,
    terms: ReserveTerms,
    some: list[int],
    done: dict[str, int],
    retired: dict[str, int],
    kept: int,
) -> None:
    """As a rewritten journal begins with it; and what it takes in a file is known roughly."""
    first, second = (
        ReservedReads(ReadTable((xid, OpenRead(xid, b"x")) for xid in some)) for _ in range(2)
    )
    for name, epoch in retired.items():
        first.retire(name, epoch)
    for tag, count in done.items():
        first.set_done(tag, count)
    some, held_back = some[:kept], some[kept:]
    for note in notes_in(reserved_note(nonce, terms, some, 0) + held_back_note(held_back, 0)):
        first.apply(note)
    written = b"".join(first.snapshot().records(0))
    for note in notes_in(written):
        second.apply(note)
    assert (second.done, second.retired) == (done, retired)
    assert set(reservations(second.opened)) == set(reservations(first.opened)) == set(some)
    assert [(one.nonce, one.terms, one.xids) for one in second.by_tag.values()] == (
        [(nonce, terms, tuple(some))] if some else []
    )
    assert set(uncounted(second.opened)) == set(uncounted(first.opened)) == set(held_back)
    assert second.note_bytes == first.note_bytes
    assert len(written) <= 2 * (first.note_bytes + 13 * len(some)) + 45 * len(held_back)


def test_only_open_reads_are_held_back() -> None:
    """Another read may have the xid later, which would then not count as a delivery."""
    state = replayed(opened(4) + held_back_note((4, 5), 5))
    assert uncounted(state.open) == [4]


def test_a_snapshot_leaves_out_reads_that_have_ended() -> None:
    """In a rewritten journal, others may have their xids."""
    reserved = ReservedReads(ReadTable((xid, OpenRead(xid, b"x")) for xid in (4, 5, 9)))
    for note in notes_in(reserved_note(7, TAGGED, (9, 4, 5), 9)):
        reserved.apply(note)
    reserved.end(reserved.opened[4])
    del reserved.opened[4]
    written = b"".join(reserved.snapshot().records(9))
    assert written == reserved_note(7, TAGGED, (9, 5), 9)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", bytes(23), bytes(25) + b"\x09a", bytes(26) + b"\xff" * 8, b"\xff" * 90],
)
@pytest.mark.parametrize("kind", [RESERVED, 17, DONE, RETIRED, HELD_BACK])
def test_a_note_that_makes_no_sense_is_ignored(kind: int, payload: bytes) -> None:
    """Nothing is reserved by it, and it can be printed."""
    state = replayed(opened(1) + encode(Note(kind, payload), 1))
    assert not state.reserved.count
    assert not state.reserved.done
    assert describe(Note(kind, payload))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (reserved_note(1, TERMS, (7, 8, 11), 8), "reads 7 to 8, 11 are reserved for w, 30000 ms"),
        (reserved_note(1, TAGGED, (7,), 8), "reads 7 are reserved for worker 1 as sink:7:0, 300"),
        (unreserved_note((7,), 8), "reads 7 are not reserved any more"),
        (held_back_note((7,), 8), "reads 7 are held back, and were no deliveries"),
        (done_note("a:1:x", 3, 8), "tag a:1:x is done, 3 reads"),
        (retired_note("a", 1, 8), "tags of a up to 1 are retired"),
    ],
)
def test_a_note_can_be_printed(written: bytes, told: str) -> None:
    """In the words of the documentation."""
    (note,) = notes_in(written)
    assert (describe(note) or "").startswith(told)


def test_another_note_is_none_of_these() -> None:
    """Deliveries are described elsewhere."""
    assert describe(Note(1, b"")) is None


def test_tags_have_three_parts() -> None:
    """A name, an epoch and a part."""
    assert parse_tag("a:07:x") == ("a", 7, "x")
    for bad in ("", "a", "a:1", "a:1:", ":1:x", "a:-1:x", "a:x:x", "a:1:x:y", "a:\u0661:x"):
        with pytest.raises(ValueError, match="NAME:EPOCH:PART"):
            parse_tag(bad)
    with pytest.raises(ValueError, match="200 bytes"):
        parse_tag("a:1:" + "\u00e9" * 99)
    with pytest.raises(ValueError, match="epoch is at most"):
        parse_tag(f"a:{MAX_EPOCH + 1}:x")


def test_a_tag_that_is_done_twice_counts_once() -> None:
    """The later note says with how many reads; a rewritten journal has one note of it."""
    once, twice = done_note("a:1:x", 3, 0), done_note("a:1:x", 4, 0)
    state = replayed(once + twice)
    assert state.reserved.done == {"a:1:x": 4}
    assert state.reserved.note_bytes == replayed(once).reserved.note_bytes
    assert b"".join(state.reserved.snapshot().records(0)) == twice
