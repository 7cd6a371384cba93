"""Journal records: the opcodes, their layout and their encoding; `scanning` decodes them.

This module does no I/O. Integers are little-endian, `i32` and `i64` signed; times are milliseconds
since the epoch, except in ADD, whose expiry is in seconds. An expiry of 0 means "never".

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

In memory, an item is its ADDX record: one `bytes` object, exactly as it is written to the journal.
`item_data` slices the data out. The few items of which there is more to say are `NotedItem`s.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import repeat
from mmap import mmap
from struct import Struct
from typing import Final

from kestrelmq.clock import Pause

ADD: Final = 0
REMOVE: Final = 1
ADDX: Final = 2
REMOVE_TENTATIVE: Final = 3
SAVE_XID: Final = 4
UNREMOVE: Final = 5
CONFIRM_REMOVE: Final = 6
ADD_XID: Final = 7
STATE_DUMP: Final = 8
CONTINUE: Final = 8
"""The same opcode as STATE_DUMP, see `is_state_dump`. In the batches of a walk, 8 is CONTINUE."""
REMOVE_TENTATIVE_XID: Final = 9
OPERATIONS: Final = (
    "ADD",
    "REMOVE",
    "ADDX",
    "REMOVE_TENTATIVE",
    "SAVE_XID",
    "UNREMOVE",
    "CONFIRM_REMOVE",
    "ADD_XID",
    "CONTINUE",
    "REMOVE_TENTATIVE_XID",
)
"""The name of each opcode in the batches of a walk."""

_ADD: Final = Struct("<Bii")
_ADDX: Final = Struct("<Biqq")
_ADD_XID: Final = Struct("<Biiqq")
_XID: Final = Struct("<Bi")
_STATE_DUMP: Final = Struct("<Bii")
_TIMES: Final = Struct("<qq")
_I32: Final = Struct("<i")
_I64: Final = Struct("<q")
_PIECE: Final = 1 << 20

# Literals, because mypyc compiles those to constants.
ADDX_HEADER: Final = 21
"""Bytes before the data in an ADDX record, and so in every item held in memory."""
ADD_HEADER: Final = 9
ADD_XID_HEADER: Final = 25
STATE_DUMP_SIZE: Final = 9
TIMES_SIZE: Final = 16
"""Bytes that the size field of ADDX counts in addition to the data."""
pack_header: Final = _ADDX.pack
"""Packs the header of an ADDX record: opcode, size field, add time, expiry."""
assert (  # noqa: S101 # the format
    (_ADD.size, _ADDX.size, _ADD_XID.size, _STATE_DUMP.size, _TIMES.size, _XID.size)
    == (ADD_HEADER, ADDX_HEADER, ADD_XID_HEADER, STATE_DUMP_SIZE, TIMES_SIZE, 5)
)

NO_EXPIRY: Final = bytes(8)
"""The expiry field of an item that never expires."""
LATEST: Final = 2**63 - 1
"""The latest time (ms since the epoch) that a record can hold."""

MIN_XID: Final = -(2**31)
MAX_XID: Final = 2**31 - 1
YEAR_2000: Final = 946_684_800_000
YEAR_2101: Final = 4_133_980_800_000
"""If the bytes alone do not decide, an add time (ms) is believed from 2000 to the end of 2100."""

_BYTES: Final = bytes(range(256))
_SPLIT_WORDS: Final = tuple([Struct("4s" * count).unpack for count in range(33)])
"""Each returns that many words of four bytes."""
_SAVE_XID: Final = bytes((SAVE_XID,))
REMOVE_RECORD: Final = bytes([REMOVE])
REMOVE_TENTATIVE_RECORD: Final = bytes([REMOVE_TENTATIVE])
EMPTY_ADD: Final = _ADD.pack(ADD, 4, 0)
"""An ADD of an item without data: the shortest record that adds one."""


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
    """Open a read of the head, under the xid of its ADD_XID or else the next free one."""


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
    """Append an item that has `xid` when it is opened for the first time."""

    xid: int
    add_time: int
    expiry: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StateDump:
    """A read-behind checkpoint; replay continues with the next file.

    The ADD_XID records after it repeat the reads that are already open. They are for a packer.
    """

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


@dataclass(slots=True, init=False)
class NotedItem:
    """An item with what its record cannot hold.

    Attributes:
        record: its ADDX record.
        deliveries: how often it was handed out before.
        letter: if it is a dead letter, where it came from, when and why, as `notes.DeadLetter`
            packs it; otherwise empty.
        xid: the xid of its ADD_XID, which it has when it is opened for the first time; or None.
    """

    record: bytes
    deliveries: int
    letter: bytes
    xid: int | None

    def __init__(
        self, record: bytes, deliveries: int = 0, letter: bytes = b"", xid: int | None = None
    ) -> None:
        self.record = record
        self.deliveries = deliveries
        self.letter = letter
        self.xid = xid


Item = bytes | NotedItem
"""An item that waits: its record, if there is nothing more to say."""


def item(add_time: int, expiry: int, data: bytes) -> bytes:
    """Return an item: its ADDX record."""
    return _ADDX.pack(ADDX, len(data) + 16, add_time, expiry) + data


def item_in_pieces(add_time: int, expiry: int, data: bytes | memoryview, pause: Pause) -> bytes:
    """Return what `item` does; from any thread. Others may run between pieces of 1 MiB.

    `pause` is called after each piece.
    """
    record = BytesIO()
    record.write(_ADDX.pack(ADDX, len(data) + 16, add_time, expiry))
    whole = memoryview(data)
    for start in range(0, len(data), _PIECE):
        record.write(whole[start : start + _PIECE])
        pause()
    return record.getvalue()


def record_of(one: Item) -> bytes:
    """Return the record of an item."""
    return one.record if isinstance(one, NotedItem) else one


def item_data(one: Item) -> bytes:
    """Return the data of an item."""
    return record_of(one)[ADDX_HEADER:]


def item_size(one: Item) -> int:
    """Return the bytes of data in an item."""
    return len(record_of(one)) - ADDX_HEADER


def item_add_time(one: Item) -> int:
    """Return when an item was added (ms)."""
    return _I64.unpack_from(record_of(one), 5)[0]  # type: ignore[no-any-return]


def item_expiry(one: Item) -> int:
    """Return when an item expires (ms), 0 for never."""
    return _I64.unpack_from(record_of(one), 13)[0]  # type: ignore[no-any-return]


def item_times(one: Item) -> tuple[int, int]:
    """Return when an item was added and when it expires, as `item_add_time` and `item_expiry`."""
    return _TIMES.unpack_from(record_of(one), 5)


def item_deliveries(one: Item) -> int:
    """Return how often an item was handed out before."""
    return one.deliveries if isinstance(one, NotedItem) else 0


def item_letter(one: Item) -> bytes:
    """Return where a dead letter came from, when and why (`notes.DeadLetter`); empty for others."""
    return one.letter if isinstance(one, NotedItem) else b""


def kept_xid(one: Item) -> int | None:
    """Return the xid that an item has when it is opened for the first time; None for most."""
    return one.xid if isinstance(one, NotedItem) else None


def noted(record: bytes, deliveries: int, letter: bytes, xid: int | None = None) -> Item:
    """Return an item with what its record cannot hold; the record itself if that is nothing."""
    if deliveries or letter or xid is not None:
        return NotedItem(record, deliveries, letter, xid)
    return record


def waiting_again(one: Item, *, counted: bool) -> Item:
    """Return the item of an open read as it waits again: the xid of its ADD_XID is used up.

    `counted` is whether it was handed out once more.
    """
    return noted(record_of(one), item_deliveries(one) + counted, item_letter(one))


def save_xid(xid: int) -> bytes:
    """Return a SAVE_XID record."""
    return _XID.pack(SAVE_XID, xid)


def unremove(xid: int) -> bytes:
    """Return an UNREMOVE record."""
    return _XID.pack(UNREMOVE, xid)


def confirm_remove(xid: int) -> bytes:
    """Return a CONFIRM_REMOVE record."""
    return _XID.pack(CONFIRM_REMOVE, xid)


def confirm_removes(xids: Sequence[int]) -> bytes:
    """Return a CONFIRM_REMOVE record for each of `xids`, which differ."""
    if not is_run(xids):
        return b"".join(map(_XID.pack, repeat(CONFIRM_REMOVE), xids))
    parts = []
    at = first_xid(xids)
    end = at + len(xids)
    while at < end:  # those whose last byte alone differs, at once
        place = at & 0xFF
        stop = min(end, at - place + 256)
        records = bytearray(_XID.pack(CONFIRM_REMOVE, at) * (stop - at))
        records[1::5] = _BYTES[place : place + stop - at]
        parts.append(records)
        at = stop
    return b"".join(parts)


def first_xid(xids: Sequence[int]) -> int:
    """Return the first of some xids; a range takes long to index."""
    return xids.start if type(xids) is range else xids[0]


def is_run(xids: Sequence[int]) -> bool:
    """Whether some xids, which differ, are consecutive and in order; a range of ours always is."""
    if type(xids) is range:
        return True
    count = len(xids)
    return count > 0 and xids[-1] - xids[0] == count - 1 and sorted(xids) == list(xids)


def save_xids(words: bytes) -> bytes:
    """Return a SAVE_XID record for each four bytes of `words`, which are its payload."""
    count = len(words) // 4
    if count < len(_SPLIT_WORDS):
        return _SAVE_XID + _SAVE_XID.join(_SPLIT_WORDS[count](words)) if count else b""
    # Byte by byte of all records at once, because there may be hundreds.
    records = bytearray(count * 5)
    records[::5] = _SAVE_XID * count
    for place in range(4):
        records[place + 1 :: 5] = words[place::4]
    return bytes(records)


def remove_tentative_xid(xid: int) -> bytes:
    """Return a REMOVE_TENTATIVE_XID record (Kestrel 2.x)."""
    return _XID.pack(REMOVE_TENTATIVE_XID, xid)


def added_item(buffer: Buffer, start: int, end: int) -> Item | None:
    """Return the item that the whole record in `buffer[start:end]` adds, or None if it adds none.

    An ADD has no add time. Its item gets 0, the oldest possible.
    """
    opcode = buffer[start]
    if opcode == ADDX:
        return bytes(buffer[start:end])
    if opcode == ADD:
        seconds: int = _I32.unpack_from(buffer, start + 5)[0]
        return item(0, seconds * 1000, bytes(buffer[start + 9 : end]))
    if opcode == ADD_XID or (opcode == CONTINUE and not is_state_dump(buffer, start, end - start)):
        record = bytes((ADDX,)) + bytes(buffer[start + 5 : end])
        if opcode == CONTINUE:
            return record
        return NotedItem(record, xid=record_xid(buffer, start))
    return None


def is_state_dump(buffer: Buffer, start: int, length: int) -> bool:
    """Whether the record of `length` bytes at `start` is a STATE_DUMP rather than a CONTINUE.

    `length` must come from `scanning.record_length`, which holds the rule that decides.
    """
    return length == STATE_DUMP_SIZE and buffer[start] == STATE_DUMP


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


def xid_before(xid: int) -> int:
    """Return the last-used xid after which `xid` is the next, wrapping within i32."""
    return xid - 1 if xid > MIN_XID else MAX_XID
