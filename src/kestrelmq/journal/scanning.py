"""Reading journal records: where each begins and ends, and what it says. Pure, as `records` is.

Records carry no mark and no checksum: one begins where the one before it ends, and bytes that are
no record are damage. What an opcode 8 is depends on what follows: a CONTINUE when its second
integer is at least 16, that many bytes follow, and the add time after it is one; otherwise a
STATE_DUMP. That rule is in `record_length`: a record of opcode 8 is a STATE_DUMP if its length is
that of one.

A producer leaves runs of records that are alike. Those are found faster than record by record.
"""

from struct import Struct
from typing import Final

from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.records import (
    ADD,
    ADD_HEADER,
    ADD_XID,
    ADD_XID_HEADER,
    ADDX,
    ADDX_HEADER,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    STATE_DUMP_SIZE,
    TIMES_SIZE,
    UNREMOVE,
    YEAR_2000,
    YEAR_2100,
    Add,
    AddX,
    AddXid,
    Buffer,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    is_state_dump,
)

WORTH: Final = 16
"""Records of a run that are worth taking together."""
_TOLD_CONTINUE: Final = STATE_DUMP_SIZE + 8
"""Bytes of an opcode 8 up to the end of the add time, which tells what it is."""
_HEADERS: Final = {
    ADD: ADD_HEADER,
    ADDX: ADDX_HEADER,
    ADD_XID: ADD_XID_HEADER,
    STATE_DUMP: ADD_XID_HEADER,
}
"""Bytes before the data, by the opcode of a record that has some."""
_HEAD: Final = Struct("<Bi")
_TIMES: Final = Struct("<qq")
_I32: Final = Struct("<i")
_I64: Final = Struct("<q")


def decode(buffer: Buffer, position: int, end: int) -> tuple[Record, int] | None:
    """Return the record at `position` and where the next begins; None when it is cut by `end`.

    Raises:
        DamagedJournal: the bytes are no record.
    """
    length = record_length(buffer, position, end)
    if length is None or position + length > end:
        return None
    return decode_whole(buffer, position, position + length), position + length


def data_size(buffer: Buffer, at: int, end: int) -> int:
    """Return how many bytes of item data the whole record in `buffer[at:end]` has."""
    if is_state_dump(buffer, at, end - at):
        return 0
    return max(0, end - at - _HEADERS.get(buffer[at], end - at))


def decode_whole(buffer: Buffer, at: int, end: int, *, with_data: bool = True) -> Record:
    """Return the whole record in `buffer[at:end]`; if that is not wanted, without its data."""
    length = end - at
    if not with_data:
        end = at
    opcode = buffer[at]
    if opcode == REMOVE:
        return Remove()
    if opcode == REMOVE_TENTATIVE:
        return RemoveTentative()
    if opcode == ADD:
        return Add(_I32.unpack_from(buffer, at + 5)[0], bytes(buffer[at + 9 : end]))
    if opcode == ADDX:
        add_time, expiry = _TIMES.unpack_from(buffer, at + 5)
        return AddX(add_time, expiry, bytes(buffer[at + ADDX_HEADER : end]))
    xid: int = _I32.unpack_from(buffer, at + 1)[0]
    if opcode == SAVE_XID:
        return SaveXid(xid)
    if opcode == UNREMOVE:
        return Unremove(xid)
    if opcode == CONFIRM_REMOVE:
        return ConfirmRemove(xid)
    if opcode == REMOVE_TENTATIVE_XID:
        return RemoveTentativeXid(xid)
    if is_state_dump(buffer, at, length):
        return StateDump(xid, _I32.unpack_from(buffer, at + 5)[0])
    add_time, expiry = _TIMES.unpack_from(buffer, at + 9)
    kind = AddXid if opcode == ADD_XID else Continue
    return kind(xid, add_time, expiry, bytes(buffer[at + ADD_XID_HEADER : end]))


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
    return YEAR_2000 <= add_time < YEAR_2100


def is_cut_continue(buffer: Buffer, position: int, end: int) -> bool | None:
    """Whether the STATE_DUMP at `position` may be a CONTINUE that the end of the file cuts short.

    Its size reaches beyond the end, and its add time is one. None: too little is left to see it.
    """
    left = end - position
    size: int = _I32.unpack_from(buffer, position + 5)[0]
    if left == STATE_DUMP_SIZE or size < TIMES_SIZE or position + 9 + size <= end:
        return False
    if left < _TOLD_CONTINUE:
        return None
    return _is_continue(buffer, position, size, position + 9 + size)


def scan(buffer: Buffer, position: int, end: int, starts: list[int], *, more: bool = False) -> int:
    """Append to `starts` where each whole record in `buffer[position:end]` begins.

    The one scanner: server, tools and Spark find records with it. `end` is the end of the file,
    or with `more` that of a chunk: then what could be a CONTINUE that reaches into the next chunk
    ends the scan, instead of being taken for a STATE_DUMP. So does a STATE_DUMP: in replay it ends
    its file.

    Returns:
        Where the scan stopped: `end`, or the start of a record that `end` cuts, or of a STATE_DUMP.

    Raises:
        DamagedJournal: the bytes at its `position` are no record; `starts` has all before it.
    """
    unpack = _HEAD.unpack_from  # an opcode and an i32: here the size
    found = starts.append
    last_header = end - _HEAD.size
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
        if length is None or position + length > end or is_state_dump(buffer, position, length):
            return position
        found(position)
        position += length
    return position


# --- runs of records that are alike: what a producer leaves ---


def uniform_run(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return how many records like the first (ADDX or ADD) `position` begins, and its length.

    A producer's items are often of one size; such a run is found without a look at each record.
    Only whole records count; (0, 0) when there is none.
    """
    if end - position < ADD_HEADER or buffer[position] not in {ADD, ADDX}:
        return 0, 0
    _, size = _HEAD.unpack_from(buffer, position)
    if size < (TIMES_SIZE if buffer[position] == ADDX else 4):
        return 0, 0
    length = size + 5
    count = (end - position) // length
    if count > WORTH:
        # A look at the first few tells most runs that are none, and costs next to nothing.
        few = _alike(buffer, position, WORTH, length)
        if few < WORTH:
            return few, length
    return _alike(buffer, position, count, length), length


def _alike(buffer: Buffer, position: int, count: int, length: int) -> int:
    """Return how many of `count` records of one length have the first one's opcode and size."""
    for offset in range(_HEAD.size):
        # Each byte of the header that must be the same, taken from all records at once.
        column = buffer[position + offset : position + count * length : length]
        if not isinstance(column, bytes):
            column = bytes(column)
        count = len(column) - len(column.lstrip(column[:1]))
        if not count:
            break
    return count


def added_run(buffer: Buffer, position: int, end: int, starts: list[int]) -> int:
    """Append to `starts` where the whole ADDX records begin that follow each other at `position`.

    Returns:
        Where the last of them ends.
    """
    unpack = _HEAD.unpack_from
    found = starts.append
    last_head = end - _HEAD.size
    while position <= last_head:
        opcode, size = unpack(buffer, position)
        if opcode != ADDX or size < TIMES_SIZE:
            break
        after: int = position + size + 5
        if after > end:
            break
        found(position)
        position = after
    return position
