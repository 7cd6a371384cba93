"""Journal records: opcodes, bytes <-> records, and the scan that finds record boundaries.

Pure: no file is touched here. Integers are little-endian, `i32` and `i64` signed; times are
milliseconds since the epoch, except in ADD, whose expiry is in seconds. An expiry of 0 is "never".

    opcode  record                payload
    0       ADD                   i32 size, i32 expiry (s), data of size - 4
    1       REMOVE
    2       ADDX                  i32 size, i64 add time, i64 expiry, data of size - 16
    3       REMOVE_TENTATIVE
    4       SAVE_XID              i32 xid
    5       UNREMOVE              i32 xid
    6       CONFIRM_REMOVE        i32 xid
    7       ADD_XID               i32 xid, i32 size, i64 add time, i64 expiry, data of size - 16
    8       STATE_DUMP            i32 xid, i32 open reads                  (documented dialect)
    8       CONTINUE              i32 xid, i32 size, i64, i64, data        (Kestrel 2.x)
    9       REMOVE_TENTATIVE_XID  i32 xid                                  (Kestrel 2.x)

In memory an item is its ADDX record, one `bytes` object: what was written is what is kept, and
`item_data` slices the data out.
"""

from collections.abc import Container
from dataclasses import dataclass
from mmap import mmap
from struct import Struct
from typing import Final

from kestrelmq.errors import DamagedJournal

ADD: Final = 0
REMOVE: Final = 1
ADDX: Final = 2
REMOVE_TENTATIVE: Final = 3
SAVE_XID: Final = 4
UNREMOVE: Final = 5
CONFIRM_REMOVE: Final = 6
ADD_XID: Final = 7
STATE_DUMP: Final = 8
REMOVE_TENTATIVE_XID: Final = 9

_ADD: Final = Struct("<Bii")
_ADDX: Final = Struct("<Biqq")
_ADD_XID: Final = Struct("<Biiqq")
_XID: Final = Struct("<Bi")
_TWO: Final = Struct("<Bii")
_TIMES: Final = Struct("<qq")
_I32: Final = Struct("<i")
_I64: Final = Struct("<q")

ADDX_HEADER: Final = _ADDX.size
"""Bytes before the data in an ADDX record, and so in every item held in memory."""
ADD_HEADER: Final = _ADD.size
ADD_XID_HEADER: Final = _ADD_XID.size
TIMES_SIZE: Final = _TIMES.size
"""Bytes that the size field of ADDX counts besides the data."""
pack_header: Final = _ADDX.pack
"""Packs the header of an ADDX record: opcode, size field, add time, expiry."""
assert (_ADD.size, ADDX_HEADER, ADD_XID_HEADER, _XID.size) == (9, 21, 25, 5)  # noqa: S101 # the format

NO_EXPIRY: Final = bytes(8)
"""The expiry field of an item that never expires."""

MIN_XID: Final = -(2**31)
MAX_XID: Final = 2**31 - 1
# Add times a CONTINUE may have; what else starts with opcode 8 is a STATE_DUMP.
_YEAR_2000: Final = 946_684_800_000
_YEAR_2100: Final = 4_102_444_800_000

REMOVE_RECORD: Final = bytes([REMOVE])
REMOVE_TENTATIVE_RECORD: Final = bytes([REMOVE_TENTATIVE])


@dataclass(frozen=True, slots=True)
class Add:
    """Append an item, as Starling wrote it: the expiry is in whole seconds, 0 for never."""

    expiry_seconds: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Remove:
    """Drop the head."""


@dataclass(frozen=True, slots=True)
class AddX:
    """Append an item; times in milliseconds."""

    add_time: int
    expiry: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RemoveTentative:
    """Open a read of the head, under the xid it was added with or else the next free one."""


@dataclass(frozen=True, slots=True)
class SaveXid:
    """Set the last-used xid."""

    xid: int


@dataclass(frozen=True, slots=True)
class Unremove:
    """Give an open read back to the head."""

    xid: int


@dataclass(frozen=True, slots=True)
class ConfirmRemove:
    """Finish an open read: its item is gone."""

    xid: int


@dataclass(frozen=True, slots=True)
class AddXid:
    """Append an item that keeps `xid` when it is opened."""

    xid: int
    add_time: int
    expiry: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StateDump:
    """A read-behind checkpoint; it changes nothing."""

    xid: int
    open_reads: int


@dataclass(frozen=True, slots=True)
class Continue:
    """Append an item and finish the open read `xid`, as one step."""

    xid: int
    add_time: int
    expiry: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RemoveTentativeXid:
    """Open a read of the head under `xid`."""

    xid: int


Record = (
    Add
    | Remove
    | AddX
    | RemoveTentative
    | SaveXid
    | Unremove
    | ConfirmRemove
    | AddXid
    | StateDump
    | Continue
    | RemoveTentativeXid
)

Buffer = bytes | bytearray | memoryview | mmap


def encode(record: Record) -> bytes:  # one case an opcode
    """Return the bytes of `record`.

    Raises:
        struct.error: a number does not fit its field.
    """
    match record:
        case Add(expiry, data):
            return _ADD.pack(ADD, len(data) + 4, expiry) + data
        case Remove():
            return REMOVE_RECORD
        case AddX(add_time, expiry, data):
            return item(add_time, expiry, data)
        case RemoveTentative():
            return REMOVE_TENTATIVE_RECORD
        case SaveXid(xid):
            return _XID.pack(SAVE_XID, xid)
        case Unremove(xid):
            return _XID.pack(UNREMOVE, xid)
        case ConfirmRemove(xid):
            return _XID.pack(CONFIRM_REMOVE, xid)
        case AddXid(xid, add_time, expiry, data):
            return _ADD_XID.pack(ADD_XID, xid, len(data) + 16, add_time, expiry) + data
        case StateDump(xid, open_reads):
            return _TWO.pack(STATE_DUMP, xid, open_reads)
        case Continue(xid, add_time, expiry, data):
            return _ADD_XID.pack(STATE_DUMP, xid, len(data) + 16, add_time, expiry) + data
        case RemoveTentativeXid(xid):
            return _XID.pack(REMOVE_TENTATIVE_XID, xid)


def item(add_time: int, expiry: int, data: bytes) -> bytes:
    """Return an item: its ADDX record."""
    return _ADDX.pack(ADDX, len(data) + 16, add_time, expiry) + data


def item_data(record: bytes) -> bytes:
    """Return the data of an item."""
    return record[ADDX_HEADER:]


def item_add_time(record: bytes) -> int:
    """Return when an item was added (ms)."""
    return _I64.unpack_from(record, 5)[0]  # type: ignore[no-any-return]


def item_expiry(record: bytes) -> int:
    """Return when an item expires (ms), 0 for never."""
    return _I64.unpack_from(record, 13)[0]  # type: ignore[no-any-return]


def save_xid(xid: int) -> bytes:
    """Return a SAVE_XID record."""
    return _XID.pack(SAVE_XID, xid)


def unremove(xid: int) -> bytes:
    """Return an UNREMOVE record."""
    return _XID.pack(UNREMOVE, xid)


def confirm_remove(xid: int) -> bytes:
    """Return a CONFIRM_REMOVE record."""
    return _XID.pack(CONFIRM_REMOVE, xid)


def remove_tentative_xid(xid: int) -> bytes:
    """Return a REMOVE_TENTATIVE_XID record (Kestrel 2.x)."""
    return _XID.pack(REMOVE_TENTATIVE_XID, xid)


class NamedItem(bytes):
    """An item that was added with ADD_XID: it keeps `xid` when it is opened."""

    xid: int

    @classmethod
    def of(cls, xid: int, record: bytes) -> "NamedItem":
        """Return `record` as an item that keeps `xid`."""
        named = cls(record)
        named.xid = xid
        return named


def added_item(buffer: Buffer, start: int, end: int) -> bytes | None:
    """Return the item that the whole record in `buffer[start:end]` adds, or None if it adds none.

    An ADD has no add time: it is 0, the oldest there is.
    """
    opcode = buffer[start]
    if opcode == ADDX:
        return bytes(buffer[start:end])
    if opcode == ADD:
        seconds: int = _I32.unpack_from(buffer, start + 5)[0]
        return item(0, seconds * 1000, bytes(buffer[start + 9 : end]))
    if opcode == ADD_XID or (opcode == STATE_DUMP and end - start != _TWO.size):
        record = bytes((ADDX,)) + bytes(buffer[start + 5 : end])
        if opcode == STATE_DUMP:
            return record
        return NamedItem.of(_I32.unpack_from(buffer, start + 1)[0], record)
    return None


def record_xid(buffer: Buffer, start: int) -> int:
    """Return the xid of the record at `start`, which must be of a kind that has one."""
    return _I32.unpack_from(buffer, start + 1)[0]  # type: ignore[no-any-return]


def add_xid(xid: int, record: bytes) -> bytes:
    """Return the ADD_XID record of an item that is open under `xid`."""
    return _XID.pack(ADD_XID, xid) + record[1:]


def next_xid(last: int, taken: Container[int]) -> int:
    """Return the xid after `last` that is non-zero and not taken, wrapping within i32."""
    xid = last
    while True:
        xid = xid + 1 if xid < MAX_XID else MIN_XID
        if xid != 0 and xid not in taken:
            return xid


def decode(buffer: Buffer, position: int, end: int) -> tuple[Record, int] | None:
    """Return the record at `position` and where the next begins; None when it is cut by `end`.

    Raises:
        DamagedJournal: the bytes are no record.
    """
    length = record_length(buffer, position, end)
    if length is None or position + length > end:
        return None
    return _decode_whole(buffer, position, length), position + length


def _decode_whole(buffer: Buffer, at: int, length: int) -> Record:
    opcode = buffer[at]
    if opcode == REMOVE:
        return Remove()
    if opcode == REMOVE_TENTATIVE:
        return RemoveTentative()
    if opcode == ADD:
        return Add(_I32.unpack_from(buffer, at + 5)[0], bytes(buffer[at + 9 : at + length]))
    if opcode == ADDX:
        add_time, expiry = _TIMES.unpack_from(buffer, at + 5)
        return AddX(add_time, expiry, bytes(buffer[at + ADDX_HEADER : at + length]))
    xid: int = _I32.unpack_from(buffer, at + 1)[0]
    if opcode == SAVE_XID:
        return SaveXid(xid)
    if opcode == UNREMOVE:
        return Unremove(xid)
    if opcode == CONFIRM_REMOVE:
        return ConfirmRemove(xid)
    if opcode == REMOVE_TENTATIVE_XID:
        return RemoveTentativeXid(xid)
    if opcode == STATE_DUMP and length == _TWO.size:
        return StateDump(xid, _I32.unpack_from(buffer, at + 5)[0])
    add_time, expiry = _TIMES.unpack_from(buffer, at + 9)
    kind = AddXid if opcode == ADD_XID else Continue
    return kind(xid, add_time, expiry, bytes(buffer[at + ADD_XID_HEADER : at + length]))


def record_length(buffer: Buffer, position: int, end: int, *, more: bool = False) -> int | None:
    """Return the length of the record at `position`, which may reach beyond `end`.

    `end` is the end of the file, or with `more` that of a chunk. None: too few bytes to tell.

    Raises:
        DamagedJournal: the bytes are no record.
    """
    left = end - position
    if left < 1:
        return None
    opcode = buffer[position]
    if opcode in {REMOVE, REMOVE_TENTATIVE}:
        return 1
    if opcode in {SAVE_XID, UNREMOVE, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID}:
        return 5
    if opcode in {ADD, ADDX}:
        if left < 5:
            return None
        size: int = _I32.unpack_from(buffer, position + 1)[0]
        least = 4 if opcode == ADD else TIMES_SIZE
        if size < least:
            raise DamagedJournal(position, f"size {size} of opcode {opcode} is less than {least}")
        return 5 + size
    if opcode in {ADD_XID, STATE_DUMP}:
        if left < 9:
            return None
        size = _I32.unpack_from(buffer, position + 5)[0]
        if opcode == STATE_DUMP:
            if more and size >= TIMES_SIZE and left < ADD_XID_HEADER:
                return None
            reach = position + 9 + size if more else end
            return 9 + size if _is_continue(buffer, position, size, reach) else 9
        if size < TIMES_SIZE:
            raise DamagedJournal(position, f"size {size} of opcode {opcode} is less than 16")
        return 9 + size
    raise DamagedJournal(position, f"unknown opcode {opcode}")


def _is_continue(buffer: Buffer, position: int, size: int, end: int) -> bool:
    if size < TIMES_SIZE or position + 9 + size > end:
        return False
    add_time: int = _I64.unpack_from(buffer, position + 9)[0]
    return _YEAR_2000 <= add_time < _YEAR_2100


def is_cut_continue(buffer: Buffer, position: int, end: int, *, explicit: bool) -> bool:
    """Whether what reads as a STATE_DUMP is a CONTINUE that the end of the file cuts short.

    Its size reaches beyond the end, and its add time is one; `explicit` says whether the file is
    in the dialect that has CONTINUE, and decides where too little is left to see the time.
    """
    left = end - position
    if buffer[position] != STATE_DUMP or left <= _TWO.size:
        return False
    size: int = _I32.unpack_from(buffer, position + 5)[0]
    if size < TIMES_SIZE or position + 9 + size <= end:
        return False
    return explicit if left < 17 else _is_continue(buffer, position, size, position + 9 + size)


def scan(buffer: Buffer, position: int, end: int, starts: list[int], *, more: bool = False) -> int:
    """Append to `starts` where each whole record in `buffer[position:end]` begins.

    The one scanner: server, tools and Spark find records with it. `end` is the end of the file,
    or with `more` that of a chunk: then what could be a CONTINUE that reaches into the next chunk
    ends the scan, instead of being taken for a STATE_DUMP.

    Returns:
        Where the scan stopped: `end`, or the start of a record that `end` cuts.

    Raises:
        DamagedJournal: the bytes at its `position` are no record; `starts` has all before it.
    """
    unpack = _XID.unpack_from  # an opcode and an i32: here the size
    found = starts.append
    last_header = end - _XID.size
    while position < end:
        while position <= last_header:
            opcode, size = unpack(buffer, position)
            if opcode == ADDX and size >= TIMES_SIZE:
                after = position + size + 5
                if after > end:
                    return position
                found(position)
                position = after
            elif opcode == REMOVE:
                found(position)
                position += 1
            else:
                break
        else:
            if position == end:
                break
        length = record_length(buffer, position, end, more=more)
        if length is None or position + length > end:
            return position
        found(position)
        position += length
    return position
