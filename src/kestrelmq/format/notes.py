"""Notes: what the journal says that its format has no record for.

A note is a run of SAVE_XID records. SAVE_XID sets the last-used xid, and the last one of a note
sets it to what it was, so a note has no effect for a reader that does not know it. The xids before
that one are the words of the note, each four bytes:

    4E 4F 54 45   "NOTE"
    u8, u24       the kind, and the length of the payload in bytes
    u32           CRC-32 of the word before and the payload
    ...           the payload, filled with zeros to whole words

A note is written together with the record that it is about, in one write. A crash leaves neither,
or the note alone, which then has no meaning, or the beginning of the note. That is set right when
the journal is loaded: the file is rotated, and the next one begins with the last-used xid.
`docs/journal-notes.md` lists the kinds.

Notes of delayed items hold the items, and there may be millions. So each is one record for
`scanning`, and its payload is in columns: first the first bytes of all its words, then the second.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from kestrelmq.format.checksum import crc32
from kestrelmq.format.records import (
    ADDX_HEADER,
    SAVE_XID,
    Buffer,
    Item,
    NotedItem,
    item_add_time,
    item_deliveries,
    item_letter,
    kept_xid,
    noted,
    record_of,
    save_xid,
    save_xids,
    unremove,
)

DELIVERIES: Final = 1
"""Kind: u32, how often the item that the next record adds was handed out before."""
UNCOUNTED: Final = 2
"""Kind: no payload; the read that the next UNREMOVE gives back is not counted."""

DELAYED: Final = 3
"""Kind: u64 number, u32 offset, bytes of the ADDX record of the delayed item from there on."""
JOINED: Final = 4
"""Kind: u64 number; the next record adds this delayed item, which is due."""
DEAD: Final = 5
"""Kind: u32, how often the item that the next record adds was handed out, and its `DeadLetter`."""
FLUSHED: Final = 6
"""Kind: no payload; the delayed items of the notes before it were dropped."""

_WORD: Final = Struct("<i")
_U32: Final = Struct("<I")
NOTE_MARK: Final = b"NOTE"
"""The first word of a note."""
_MARK_WORD: Final[int] = _WORD.unpack(NOTE_MARK)[0]
_HEADER_WORDS: Final = 3
_SAVE_XID_SIZE: Final = 5
_OPCODE: Final = bytes((SAVE_XID,))
_BEGIN: Final = Struct("<B4sBIBI")
"""The SAVE_XIDs of the mark, the head and the checksum of a note."""
_HEAD_AND_CHECKSUM: Final = Struct("<6xIxI")
_PLACES: Final = (1, 2, 3, 4)
_MOST: Final = 0xFFFF_FFFF
_LETTER: Final = Struct("<qB")
_PART_HEAD: Final = Struct("<QI")
_NUMBER: Final = Struct("<Q")
_PART: Final = 256 << 10
"""Bytes of a delayed item in one note: making it takes a third of a millisecond."""
MAX_WHY: Final = 200
"""The most bytes of the reason of a dead letter."""


ItemNote = Callable[[bytes, int], bytes]
"""Makes the note that stands before an item, given its record and the last-used xid."""


class Note(NamedTuple):
    """A note: its kind and its payload."""

    kind: int
    payload: bytes


class DeadLetter(NamedTuple):
    """What a dead letter keeps besides its deliveries.

    Attributes:
        origin: the name of the queue that it came from.
        died: when (ms since the epoch).
        why: why it was given back the last time.
    """

    origin: str
    died: int
    why: str

    def packed(self) -> bytes:
        """Return it as bytes: i64 died, u8 length and origin, why."""
        origin, why = self.origin.encode(), self.why.encode()[:MAX_WHY]
        return _LETTER.pack(self.died, len(origin)) + origin + why


def dead_letter(one: Item) -> DeadLetter | None:
    """Return what a dead letter keeps; None for any other item."""
    letter = item_letter(one)
    if not letter:
        return None
    died, length = _LETTER.unpack_from(letter)
    end = _LETTER.size + length
    origin, why = (
        part.decode(errors="replace") for part in (letter[_LETTER.size : end], letter[end:])
    )
    return DeadLetter(origin, died, why)


def encode(note: Note, last_xid: int) -> bytes:
    """Return the records of a note; `last_xid` is the last-used xid, before and after it."""
    payload = note.payload
    head = _U32.pack(len(payload) << 8 | note.kind)
    checksum = _U32.pack(crc32(payload, crc32(head)))
    words = b"".join((NOTE_MARK, head, checksum, payload, bytes(-len(payload) % 4)))
    return save_xids(words) + save_xid(last_xid)


def counted(one: Item, last_xid: int) -> bytes:
    """Return the records that add an item: with a note before it, if there is anything to note."""
    return item_note(one, last_xid) + one.record if isinstance(one, NotedItem) else one


def item_note(one: Item, last_xid: int) -> bytes:
    """Return the note with what the record of an item cannot hold; empty if that is nothing."""
    deliveries, letter = item_deliveries(one), item_letter(one)
    if letter:
        return encode(Note(DEAD, _U32.pack(min(deliveries, _MOST)) + letter), last_xid)
    return deliveries_note(deliveries, last_xid) if deliveries else b""


def deliveries_note(count: int, last_xid: int) -> bytes:
    """Return the note that the next item was handed out `count` times."""
    return encode(Note(DELIVERIES, _U32.pack(min(count, _MOST))), last_xid)


def uncounted_unremove(xid: int, last_xid: int) -> bytes:
    """Return the records that give the read `xid` back without counting it."""
    return encode(Note(UNCOUNTED, b""), last_xid) + unremove(xid)


def about_item(note: Note) -> Note | None:
    """Return `note` if it is the one that `item_note` makes; otherwise None."""
    return note if noted_deliveries(note) or noted_letter(note) else None


def noted_item(one: Item, note: Note | None) -> Item:
    """Return an item with what the note before it says (see `about_item`)."""
    if note is None:
        return one
    return noted(record_of(one), noted_deliveries(note), noted_letter(note), kept_xid(one))


def noted_deliveries(note: Note) -> int:
    """Return how often the next item was handed out, if `note` says so; otherwise 0."""
    if not ((note.kind == DELIVERIES and len(note.payload) == _U32.size) or noted_letter(note)):
        return 0
    count: int = _U32.unpack_from(note.payload)[0]
    return count


def noted_letter(note: Note) -> bytes:
    """Return the packed `DeadLetter` that the next item is, if `note` says so; otherwise empty."""
    if note.kind != DEAD:
        return b""
    letter = note.payload[_U32.size :]
    is_whole = len(letter) >= _LETTER.size and len(letter) >= _LETTER.size + letter[8]
    return letter if is_whole else b""


def delayed_notes(number: int, record: bytes, last_xid: int) -> bytes:
    """Return the notes that hold `record`, an item that is delayed, under `number`."""
    size = len(record)
    if size <= _PART:
        return _delayed_note(number, 0, record, last_xid)
    parts = [
        _delayed_note(number, at, record[at : at + _PART], last_xid) for at in range(0, size, _PART)
    ]
    return b"".join(parts)


def _delayed_note(number: int, offset: int, part: bytes, last_xid: int) -> bytes:
    size = _PART_HEAD.size + len(part)
    payload = b"".join((_PART_HEAD.pack(number, offset), part, bytes(-size % 4)))
    head = size << 8 | DELAYED
    count = (size + 3) // 4
    words = bytearray(_OPCODE * (5 * count))
    # A column of all words at once, which takes a third of the time of word by word.
    words[1::5] = payload[:count]
    words[2::5] = payload[count : 2 * count]
    words[3::5] = payload[2 * count : 3 * count]
    words[4::5] = payload[3 * count :]
    checksum = crc32(payload, crc32(_U32.pack(head)))
    begin = _BEGIN.pack(SAVE_XID, NOTE_MARK, SAVE_XID, head, SAVE_XID, checksum)
    return b"".join((begin, words, save_xid(last_xid)))


DelayedPart = tuple[int, int, bytes]
"""What a note of kind DELAYED says: an item's number, an offset, and its bytes from there on."""
DAMAGED_PART: Final[DelayedPart] = (-1, 0, b"")


def is_delayed(buffer: Buffer, at: int, end: int) -> bool:
    """Whether the record in `buffer[at:end]` is a whole note of kind DELAYED."""
    return end - at > _SAVE_XID_SIZE and buffer[at] == SAVE_XID


def decode_delayed(buffer: Buffer, at: int, end: int) -> DelayedPart:
    """Return what the note of kind DELAYED in `buffer[at:end]` says, or DAMAGED_PART."""
    head, checksum = _HEAD_AND_CHECKSUM.unpack_from(buffer, at)
    begin, stop, size = at + _BEGIN.size, end - _SAVE_XID_SIZE, head >> 8
    columns = [buffer[begin + place : stop : 5] for place in _PLACES]
    if isinstance(buffer, memoryview):
        columns = [bytes(column) for column in columns]
    payload = b"".join(columns)
    if size < _PART_HEAD.size or crc32(payload, crc32(_U32.pack(head))) != checksum:
        return DAMAGED_PART
    number, offset = _PART_HEAD.unpack_from(payload)
    return number, offset, payload[_PART_HEAD.size : size]


def describe_delayed(found: DelayedPart) -> str:
    """Return what a note of kind DELAYED says, as text."""
    number, offset, part = found
    if number < 0:
        return "a damaged note"
    if offset:
        return f"item {number} goes on, {len(part)} bytes"
    due = item_add_time(part) if len(part) >= ADDX_HEADER else 0
    return f"item {number} is delayed until {due}, {len(part)} bytes"


def joined_note(number: int, last_xid: int) -> bytes:
    """Return the note that the next record adds the delayed item `number`."""
    return encode(Note(JOINED, _NUMBER.pack(number)), last_xid)


def noted_join(note: Note) -> int | None:
    """Return the number of the delayed item that the next record adds; None if it is another."""
    if note.kind != JOINED or len(note.payload) != _NUMBER.size:
        return None
    number: int = _NUMBER.unpack(note.payload)[0]
    return number


def flushed_note(last_xid: int) -> bytes:
    """Return the note that all delayed items so far were dropped."""
    return encode(Note(FLUSHED, b""), last_xid)


def describe(note: Note) -> str:
    """Return what a note says, as text."""
    if note.kind == JOINED:
        return f"the next item was delayed, as number {noted_join(note)}"
    if note.kind == FLUSHED:
        return "the delayed items are dropped"
    if note.kind == UNCOUNTED:
        return "the next UNREMOVE does not count as a delivery"
    if note.kind == DELIVERIES:
        return f"the next item was delivered {noted_deliveries(note)} times"
    if note.kind == DEAD:
        return f"the next item is a dead letter, delivered {noted_deliveries(note)} times"
    return f"a note of the unknown kind {note.kind}"


class NoteReader:
    """Finds the notes among the SAVE_XIDs of a journal."""

    __slots__ = ("_is_complete", "_words")

    def __init__(self) -> None:
        self._words: list[int] = []
        # Whether the last SAVE_XID completed a note; that of the last-used xid comes next.
        self._is_complete = False

    def feed(self, xid: int) -> Note | None:
        """Return the note that the next SAVE_XID, of `xid`, completes; None if it completes none.

        A note whose checksum is wrong is left out.
        """
        words = self._words
        is_last, self._is_complete = self._is_complete, False
        if not words:
            if xid == _MARK_WORD and not is_last:
                words.append(xid)
            return None
        if xid == _MARK_WORD and len(words) == 1:
            return None  # the first of them was the last-used xid
        words.append(xid)
        head = _WORD.pack(words[1])
        length = int.from_bytes(head[1:], "little")
        if len(words) < _HEADER_WORDS + (length + 3) // 4:
            return None
        self._is_complete = True
        payload = b"".join(map(_WORD.pack, words[_HEADER_WORDS:]))[:length]
        is_whole = len(words) >= _HEADER_WORDS and _WORD.pack(words[2]) == _U32.pack(
            crc32(payload, crc32(head))
        )
        words.clear()
        return Note(head[0], payload) if is_whole else None

    @property
    def is_within(self) -> bool:
        """Whether the last SAVE_XID belongs to a note that is not complete yet."""
        return bool(self._words)

    @property
    def is_cut(self) -> bool:
        """Whether it would be cut short if nothing followed."""
        return self._is_complete or bool(self._words)

    def copy(self) -> "NoteReader":
        """Return a reader that has read the same."""
        reader = NoteReader()
        reader._words = self._words.copy()
        reader._is_complete = self._is_complete
        return reader

    def reset(self) -> None:
        """Begin anew: what follows does not continue what was read so far."""
        self._words.clear()
        self._is_complete = False
