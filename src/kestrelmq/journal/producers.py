"""Marks of producers: which of a producer's items a queue has, so that it may repeat an add.

A producer numbers its items. Each is written with a mark, and the queue remembers the last mark of
each producer. Two kinds of note say so in the journal:

    32  MARK       u64 sequence, u32 when (s), u32 CRC-32 of the item's ADDX record, and the
                   producer's name; the next record adds that item
    33  MARKS      u64 sequence, u32 when (s), u8 length and the producer's name; repeated. An entry
                   without a name says when they were written

Times are those of a clock that the queue has for its producers. It counts only while the queue is
open, and goes on where the newest note says it was. So no wall clock can be wrong, and a producer
that could not reach the queue is not forgotten.

MARK is written before its item, with the same write, and counts only if the item is behind it: so
a mark without its item counts for nothing. MARKS is in files that are written from the contents of
a queue. Their items are in older files, which are on disk by then, or were read already.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from math import inf
from struct import Struct
from struct import error as StructError  # noqa: N812 # it is a class
from typing import Any, Final, NamedTuple

from kestrelmq.clock import Clock, Pause, no_pause
from kestrelmq.format.checksum import crc32
from kestrelmq.format.notes import NOTE_MARK, Note, encode
from kestrelmq.format.records import SAVE_XID, save_xids
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.shared_empty import NOTHING, own

MARK: Final = 32
"""Kind: the item that the next record adds is the one of a producer with this number."""
MARKS: Final = 33
"""Kind: the last numbers of these producers."""

MAX_PRODUCERS: Final = 100_000
"""Most producers that a queue remembers."""
_MARK_BYTES: Final = 16
"""Bytes of a mark in a MARKS note besides the name, about."""
_MARKS_IN_NOTE: Final = 10_000
_MARKS_AT_ONCE: Final = 1000
"""Marks that are written before others are served."""
_FORGOTTEN_AT_ONCE: Final = 500
"""Most producers that are forgotten at once; that takes one or two milliseconds."""
_NEVER: Final = 1 << 60
_LAST_SECOND: Final = (1 << 32) - 1

_MARK_HEAD: Final = Struct("<QII")
_pack_mark: Final = _MARK_HEAD.pack
_U32_PAIR: Final = Struct("<II")
_OPCODE: Final = bytes((SAVE_XID,))
_checksum_of: Final = crc32  # compiled, a name of another module is looked up at each use
_MARKS_HEAD: Final = Struct("<QIB")


@dataclass(slots=True, init=False)
class LastMark:
    """The last mark of a producer: the number, and when its item was added (s).

    It is not changed, but not frozen; see `idempotent_producers.PutMark`.
    """

    sequence: int
    added: int

    def __init__(self, sequence: int, added: int) -> None:
        self.sequence = sequence
        self.added = added


class Producers:
    """The last mark of each producer of a queue.

    Attributes:
        note_bytes: about how many bytes a MARKS note with all of them takes.
        ttl: milliseconds after its last item until a producer is forgotten.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.note_bytes = 0
        self.ttl = _NEVER
        # By name, in order of the second in which they were set. It is a plain dict: of an
        # OrderedDict of 100,000, a snapshot would take ten times as long.
        self._marks: dict[bytes, LastMark] = NOTHING
        # Not after the second of the first mark, so that most calls of `forget_before` end soon.
        self._oldest = _NEVER
        # The greatest time that a note has (s).
        self._newest = 0
        # Set by `start_clock`; and by how much the time is ahead of its monotonic one (ms).
        self._clock: Clock
        self._ahead = 0

    def __len__(self) -> int:
        """How many producers are remembered."""
        return len(self._marks)

    def start_clock(self, clock: Clock) -> None:
        """Let the time go on where the notes end, by `clock`: the queue is open now.

        The more are known, the more of the time before counts, up to a thousandth of `ttl`. Where
        no process ever has the queue for long, there would be too many of them some day.
        """
        self._clock = clock
        before = self.ttl * len(self) // (1000 * MAX_PRODUCERS)
        self._ahead = (self._newest + 1) * 1000 + before - int(clock.monotonic() * 1000)

    def now(self) -> int:
        """Return what time it is (ms); the clock must have been started."""
        return min(int(self._clock.monotonic() * 1000) + self._ahead, _LAST_SECOND * 1000)

    def last(self, producer: bytes, now: int) -> int:
        """Return the number of the producer's last item; -1 if that is unknown, or forgotten."""
        last = self._marks.get(producer)
        return -1 if last is None or last.added < _second(now - self.ttl) else last.sequence

    def last_number(self, producer: bytes) -> int:
        """Forget the producers whose time is over, then return what `last` returns."""
        now = self.now()
        self.forget_old(now)
        return self.last(producer, now)

    @property
    def is_full(self) -> bool:
        """Whether another producer cannot be remembered, too."""
        return len(self) >= MAX_PRODUCERS

    def set(self, mark: PutMark, added: int) -> LastMark | None:
        """Set the last mark of a producer; return the one before it, for `restore`."""
        return self._set(mark.producer, mark.sequence, added)

    def _set(self, producer: bytes, sequence: int, added: int) -> LastMark | None:
        marks = self._marks = own(self._marks)
        before = marks.get(producer)
        if before is None:
            self.note_bytes += _MARK_BYTES + len(producer)
        elif before.added != added:
            del marks[producer]  # its place is at the end now
        marks[producer] = LastMark(sequence, added)
        self._oldest = min(self._oldest, added)
        self._newest = max(self._newest, added)
        return before

    def restore(self, producer: bytes, before: LastMark | None) -> None:
        """Undo `set`."""
        if before is None:
            self._forget(producer)
        else:
            self._set(producer, before.sequence, before.added)

    def forgets_in(self, now: int) -> float:
        """Return how long `forget_old` forgets nobody (ms); infinite if there are no producers."""
        return (self._oldest + 1) * 1000 + self.ttl - now if self._marks else inf

    def forget_old(self, now: int) -> bool:
        """Forget the producers whose time is over `now` (ms); see `forget_before`."""
        return self.forget_before(now - self.ttl)

    def forget_before(self, time: int) -> bool:
        """Forget some producers whose last item was added before `time` (ms).

        Returns:
            Whether there may be more of them.
        """
        second = _second(time)
        if second <= self._oldest:
            return False
        for producer, last in list(islice(self._marks.items(), _FORGOTTEN_AT_ONCE)):
            self._oldest = last.added
            if second <= self._oldest:
                return False
            self._forget(producer)
        return True

    def _forget(self, producer: bytes) -> None:
        if self._marks.pop(producer, None) is not None:
            self.note_bytes -= _MARK_BYTES + len(producer)
            if not self._marks:  # a dict that was large stays so
                self._marks, self._oldest = NOTHING, _NEVER

    def drop_all(self) -> list[LastMark]:
        """Forget all of them; return what is to be freed."""
        marks, self._marks = list(self._marks.values()), NOTHING
        self.note_bytes, self._oldest = 0, _NEVER
        return marks

    def apply(self, note: Note) -> None:
        """Apply a MARKS note. Other kinds, and notes that make no sense, are ignored."""
        if note.kind == MARKS:
            for producer, last in _decode_marks(note.payload):
                if producer:
                    self._set(producer, last.sequence, last.added)
                self._newest = max(self._newest, last.added)

    def snapshot(self) -> Iterable[tuple[bytes, LastMark]]:
        """Return what there is now, oldest first, to be written once with `marks_notes`."""
        return zip(list(self._marks), list(self._marks.values()), strict=True)

    def noted(self, now: int) -> Iterable[tuple[bytes, LastMark]]:
        """Return `snapshot` and, without a name, what time it is (ms)."""
        time = LastMark(0, max(now // 1000, self._newest))
        return chain(self.snapshot(), ((b"", time),)) if self._marks else ()


def _second(time: int) -> int:
    """Return the first second that does not begin before `time` (ms).

    What was added before that second was added before `time`. To multiply seconds instead takes
    long: compiled code takes such products for large ones.
    """
    return -(-time // 1000)


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
    producer, sequence = mark.producer, mark.sequence
    # Any: compiled, an int would be made anew for each call that it is passed to.
    when: Any = added
    checksum: Any = _checksum_of(record)
    begin, head_checksum, middle, end, pack = _note_parts(producer, sequence >> 32, when)
    covered: Any = _checksum_of(_pack_mark(sequence, when, checksum) + producer, head_checksum)
    low = sequence & 0xFFFF_FFFF
    return pack(begin, covered, _OPCODE, low, middle, checksum, end, last_xid)


def _make_note_parts(
    producer: bytes, high: int, added: int
) -> tuple[bytes, Any, bytes, bytes, Callable[..., bytes]]:
    """Return what MARK notes of a producer have in common, most of those of a second.

    Args:
        producer: the name.
        high: the upper half of the number.
        added: when the item was added (s).

    Returns:
        The first two records; the CRC-32 of the second word; the records of `high` and `added`;
        those of the name; and what packs the whole note. Behind these records is the first byte of
        the next one.
    """
    size = _MARK_HEAD.size + len(producer)
    head = bytes((MARK,)) + size.to_bytes(3, "little")
    begin = save_xids(NOTE_MARK + head) + _OPCODE
    middle = save_xids(_U32_PAIR.pack(high, added)) + _OPCODE
    end = save_xids(producer + bytes(-size % 4)) + _OPCODE
    return begin, crc32(head), middle, end, _note_layout(len(begin), len(middle), len(end)).pack


_note_parts: Final = lru_cache(1000)(_make_note_parts)


@lru_cache(100)
def _note_layout(begin: int, middle: int, end: int) -> Struct:
    """Return the layout of a MARK note, whose parts have so many bytes."""
    return Struct(f"<{begin}sIcI{middle}sI{end}si")


def noted_mark(note: Note) -> NotedMark | None:
    """Return what a MARK note says; None for other kinds, or if it makes no sense."""
    if note.kind != MARK or len(note.payload) <= _MARK_HEAD.size:
        return None
    sequence, added, checksum = _MARK_HEAD.unpack_from(note.payload)
    producer = note.payload[_MARK_HEAD.size :]
    return NotedMark(PutMark(producer, sequence), added, checksum)


def marks_notes(
    marks: Iterable[tuple[bytes, LastMark]], last_xid: int, pause: Pause = no_pause
) -> Iterator[bytes]:
    """Yield notes of the last marks of producers; `pause` is called after each short piece."""
    some: list[bytes] = []
    for producer, last in marks:
        some.append(_MARKS_HEAD.pack(last.sequence, last.added, len(producer)) + producer)
        if len(some) % _MARKS_AT_ONCE == 0:
            pause()
        if len(some) == _MARKS_IN_NOTE:
            yield encode(Note(MARKS, b"".join(some)), last_xid)
            some.clear()
    if some:
        yield encode(Note(MARKS, b"".join(some)), last_xid)


def _decode_marks(payload: bytes) -> list[tuple[bytes, LastMark]]:
    """Return the entries of a MARKS note; none if it makes no sense."""
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
        producers = [producer for producer, _ in _decode_marks(note.payload) if producer]
        return f"the last marks of {len(producers)} producers"
    if note.kind != MARK:
        return None
    noted = noted_mark(note)
    if noted is None:
        return f"a note of kind {note.kind} that makes no sense"
    name = noted.mark.producer.decode(errors="replace")
    return f"the next item is number {noted.mark.sequence} of producer {name}"
