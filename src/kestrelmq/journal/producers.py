"""Marks of producers: which of a producer's items a queue has, so that it may repeat an add.

A producer numbers its items. Each is written with a mark, and the queue remembers the last mark of
each producer. Two kinds of note say so in the journal:

    32  MARK       u64 sequence, u32 when (s), u32 CRC-32 of the item's ADDX record, and the
                   producer's name; the next record adds that item
    33  MARKS      u64 sequence, u32 when (s), u8 length and the producer's name; repeated

MARK is written before its item, with the same write, and counts only if the item is behind it: so
a mark without its item counts for nothing. MARKS is in files that are written from the contents of
a queue. Their items are in older files, which are on disk by then, or were read already.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from math import inf
from struct import Struct
from struct import error as StructError  # noqa: N812 # it is a class
from typing import Final, NamedTuple

from kestrelmq.journal.checksum import crc32
from kestrelmq.journal.empty import NOBODY, own_line
from kestrelmq.journal.notes import NOTE_MARK, Note, encode
from kestrelmq.journal.records import SAVE_XID, save_xid
from kestrelmq.marks import PutMark

MARK: Final = 32
"""Kind: the item that the next record adds is the one of a producer with this number."""
MARKS: Final = 33
"""Kind: the last numbers of these producers."""

MAX_PRODUCERS: Final = 100_000
"""Most producers that a queue remembers."""
_MARK_BYTES: Final = 16
"""Bytes of a mark in a MARKS note besides the name, about."""
_MARKS_IN_NOTE: Final = 10_000

_MARK_HEAD: Final = Struct("<QII")
_MARKS_HEAD: Final = Struct("<QIB")
_BEGIN: Final = bytes((SAVE_XID,)) + NOTE_MARK
_MARK_WORDS: Final = Struct("<B4sBIBIBIBIBI")
"""SAVE_XID records: the opcode and a word, six times."""


class LastMark(NamedTuple):
    """The last mark of a producer: the number, and when its item was added (epoch seconds)."""

    sequence: int
    added: int


class Producers:
    """The last mark of each producer of a queue.

    Attributes:
        marks: these, by the name of the producer; the one whose last item is oldest comes first.
        note_bytes: about how many bytes a MARKS note with all of them takes.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.marks: OrderedDict[bytes, LastMark] = NOBODY
        self.note_bytes = 0
        # Not after the time of the first mark, so that most calls of `forget_before` end at once.
        self._oldest = inf

    def last(self, producer: bytes) -> int:
        """Return the number of the producer's last item; -1 if none is known."""
        last = self.marks.get(producer)
        return -1 if last is None else last.sequence

    @property
    def is_full(self) -> bool:
        """Whether another producer cannot be remembered, too."""
        return len(self.marks) >= MAX_PRODUCERS

    def set(self, mark: PutMark, added: int) -> LastMark | None:
        """Set the last mark of a producer; return the one before it, for `restore`."""
        producer = mark.producer
        marks = self.marks = own_line(self.marks)
        before = marks.pop(producer, None)
        if before is None:
            self.note_bytes += _MARK_BYTES + len(producer)
        marks[producer] = LastMark(mark.sequence, added)
        self._oldest = min(self._oldest, float(added))
        return before

    def restore(self, producer: bytes, before: LastMark | None) -> None:
        """Undo `set`."""
        if before is None:
            self._forget(producer)
        else:
            self.set(PutMark(producer, before.sequence), before.added)

    def forget_before(self, time: float) -> None:
        """Forget the producers whose last item was added before `time` (epoch seconds)."""
        if time <= self._oldest:
            return
        self._oldest = inf
        while self.marks:
            producer, last = next(iter(self.marks.items()))
            if last.added >= time:
                self._oldest = float(last.added)
                return
            self._forget(producer)

    def _forget(self, producer: bytes) -> None:
        if self.marks.pop(producer, None) is not None:
            self.note_bytes -= _MARK_BYTES + len(producer)

    def apply(self, note: Note) -> None:
        """Do what a MARKS note says; other kinds, and one that makes no sense, are ignored."""
        if note.kind == MARKS:
            for producer, last in _decode_marks(note.payload):
                self.set(PutMark(producer, last.sequence), last.added)

    def snapshot(self) -> list[tuple[bytes, LastMark]]:
        """Return what there is now, to be written later with `marks_notes`."""
        return list(self.marks.items())


class NotedMark(NamedTuple):
    """What a MARK note says of the item behind it."""

    mark: PutMark
    added: int
    checksum: int

    def is_of(self, record: bytes) -> bool:
        """Whether `record`, an ADDX, is the item."""
        return crc32(record) == self.checksum


def marked(record: bytes, mark: PutMark, added: int, last_xid: int) -> bytes:
    """Return the note that the ADDX `record` has this mark; it is written before the record.

    It is what `encode` makes of a MARK note, in a tenth of the time.
    """
    producer, sequence, checksum = mark.producer, mark.sequence, crc32(record)
    head, name = _parts_of_name(producer)
    covered = b"%b%b%b" % (head, _MARK_HEAD.pack(sequence, added, checksum), producer)
    low, high = sequence & 0xFFFF_FFFF, sequence >> 32
    op = SAVE_XID
    words = (op, head, op, crc32(covered), op, low, op, high, op, added, op, checksum)
    return b"%b%b%b%b" % (_BEGIN, _MARK_WORDS.pack(*words), name, save_xid(last_xid))


@lru_cache(1000)
def _parts_of_name(producer: bytes) -> tuple[bytes, bytes]:
    """Return the second word of the MARK notes of a producer, and the records of its name."""
    size = _MARK_HEAD.size + len(producer)
    padded = producer + bytes(-size % 4)
    opcode = bytes((SAVE_XID,))
    records = b"".join(opcode + padded[at : at + 4] for at in range(0, len(padded), 4))
    return bytes((MARK,)) + size.to_bytes(3, "little"), records


def noted_mark(note: Note) -> NotedMark | None:
    """Return what a MARK note says; None for other kinds, or if it makes no sense."""
    if note.kind != MARK or len(note.payload) <= _MARK_HEAD.size:
        return None
    sequence, added, checksum = _MARK_HEAD.unpack_from(note.payload)
    return NotedMark(PutMark(note.payload[_MARK_HEAD.size :], sequence), added, checksum)


def marks_notes(marks: Iterable[tuple[bytes, LastMark]], last_xid: int) -> Iterator[bytes]:
    """Yield notes of the last marks of producers."""
    rest = iter(marks)
    while some := list(islice(rest, _MARKS_IN_NOTE)):
        payload = b"".join(
            _MARKS_HEAD.pack(last.sequence, last.added, len(producer)) + producer
            for producer, last in some
        )
        yield encode(Note(MARKS, payload), last_xid)


def _decode_marks(payload: bytes) -> list[tuple[bytes, LastMark]]:
    """Return the marks of a MARKS note; none if it makes no sense."""
    found = []
    at = 0
    try:
        while at < len(payload):
            sequence, added, length = _MARKS_HEAD.unpack_from(payload, at)
            at += _MARKS_HEAD.size + length
            found.append((payload[at - length : at], LastMark(sequence, added)))
    except StructError:
        return []
    return found if at == len(payload) else []


def describe(note: Note) -> str | None:
    """Return what a note says, as text; None if it is not about producers."""
    if note.kind == MARKS:
        return f"the last marks of {len(_decode_marks(note.payload))} producers"
    if note.kind != MARK:
        return None
    noted = noted_mark(note)
    if noted is None:
        return f"a note of kind {note.kind} that makes no sense"
    producer = noted.mark.producer.decode(errors="replace")
    return f"the next item is number {noted.mark.sequence} of producer {producer}"
