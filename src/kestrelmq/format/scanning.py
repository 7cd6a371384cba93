"""Finding and decoding journal records. Like `records`, this module does no I/O.

Records have no marker and no checksum: each begins where the one before it ends, and bytes that
are not a record are damage. Opcode 8 stands for two records. It is a CONTINUE if its second integer
is at least 16, that many bytes follow, and the add time in them is plausible; otherwise it is a
STATE_DUMP. `record_length` holds that rule: a record with opcode 8 is a STATE_DUMP if its length is
that of one.

Producers leave runs of similar records. `uniform_run` and `added_run` find them faster than `scan`.
"""

from struct import Struct
from typing import Final

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.notes import DELAYED, NOTE_MARK
from kestrelmq.format.records import (
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
    YEAR_2101,
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

MIN_RUN: Final = 16
"""Fewest records of a run that are worth processing together."""
_ADD_TIME_END: Final = STATE_DUMP_SIZE + 8
"""Bytes from an opcode 8 to the end of the add time, which decides whether it is a CONTINUE."""
_HEADERS: Final = {
    ADD: ADD_HEADER,
    ADDX: ADDX_HEADER,
    ADD_XID: ADD_XID_HEADER,
    STATE_DUMP: ADD_XID_HEADER,
}
"""Bytes before the data, for each opcode whose records have data."""
_NOTE_HEAD: Final = 10
"""Bytes of a note that tell its kind and its length."""
_LAST_OPCODES: Final = 16
_OPCODES: Final = bytes((SAVE_XID,)) * _LAST_OPCODES
_HEAD: Final = Struct("<Bi")
_TIMES: Final = Struct("<qq")
_I32: Final = Struct("<i")
_I64: Final = Struct("<q")


def data_size(buffer: Buffer, at: int, end: int) -> int:
    """Return how many bytes of item data the whole record in `buffer[at:end]` has."""
    # A STATE_DUMP, which has none, is shorter than the header of a CONTINUE.
    return max(0, end - at - _HEADERS.get(buffer[at], end - at))


def decode_whole(buffer: Buffer, at: int, end: int, *, with_data: bool = True) -> Record:
    """Return the whole record in `buffer[at:end]`, with its data only if `with_data`."""
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
    if opcode == SAVE_XID:
        return SaveXid(_I32.unpack_from(buffer, at + length - 4)[0])  # the last of a note
    xid: int = _I32.unpack_from(buffer, at + 1)[0]
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
    """Return the length of the record at `position`, which may extend beyond `end`.

    `end` is the end of the file or, with `more`, the end of a chunk. None: too few bytes to tell.

    Raises:
        DamagedJournal: the bytes are not a record.
    """
    left = end - position
    if left < 1:
        return None
    opcode = buffer[position]
    if opcode in {REMOVE, REMOVE_TENTATIVE}:
        return 1
    if opcode in {SAVE_XID, UNREMOVE, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID}:
        return _note_length(buffer, position, end, more=more) if opcode == SAVE_XID else 5
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


def _note_length(buffer: Buffer, position: int, end: int, *, more: bool) -> int | None:
    """Return the length of the SAVE_XID at `position`, or of all those of a note of kind DELAYED.

    There may be very many of such notes, so each is one record. Arguments as for `record_length`.
    """
    mark = buffer[position + 1 : position + 5]
    if mark != NOTE_MARK:
        return 5
    if end - position < _NOTE_HEAD:
        return None if more else 5
    if buffer[position + 5] != SAVE_XID or buffer[position + 6] != DELAYED:
        return 5
    size = int.from_bytes(buffer[position + 7 : position + _NOTE_HEAD], "little")
    length = 5 * ((size + 3) // 4 + 4)  # the mark, the head, the checksum and the last-used xid
    # A crash may have cut it short, and another server gone on: then other records are in its end.
    whole = min(length, (end - position) // 5 * 5)
    last = bytes(buffer[position + whole - min(whole, _LAST_OPCODES * 5) : position + whole : 5])
    return length if last == _OPCODES[: len(last)] else 5


def _is_continue(buffer: Buffer, position: int, size: int, end: int) -> bool:
    if size < TIMES_SIZE or position + 9 + size > end:
        return False
    add_time: int = _I64.unpack_from(buffer, position + 9)[0]
    return YEAR_2000 <= add_time < YEAR_2101


def is_cut_continue(buffer: Buffer, position: int, end: int) -> bool | None:
    """Whether the STATE_DUMP at `position` may be a CONTINUE that the end of the file cuts short.

    True if its size extends beyond the end of the file and its add time is plausible. None if the
    file ends before the add time does.
    """
    left = end - position
    size: int = _I32.unpack_from(buffer, position + 5)[0]
    if left == STATE_DUMP_SIZE or size < TIMES_SIZE or position + 9 + size <= end:
        return False
    if left < _ADD_TIME_END:
        return None
    return _is_continue(buffer, position, size, position + 9 + size)


def scan(buffer: Buffer, position: int, end: int, starts: list[int], *, more: bool = False) -> int:
    """Append to `starts` where each whole record in `buffer[position:end]` begins.

    The server, the tools and Spark all use this one scanner. `end` is the end of the file or, with
    `more`, the end of a chunk. In a chunk, a possible CONTINUE that extends into the next chunk
    ends the scan instead of being taken for a STATE_DUMP. A STATE_DUMP ends the scan as well,
    because it ends its file in replay.

    Returns:
        Where the scan stopped: `end`, or the start of a record that `end` cuts short, or the start
        of a STATE_DUMP.

    Raises:
        DamagedJournal: the bytes at its `position` are not a record; `starts` has all before it.
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


# --- runs of similar records, as producers leave them ---


def uniform_run(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the count and the length of the equally long ADDX or ADD records at `position`.

    A producer's items often have one size. Such a run is found without looking at each record.
    Only whole records count. The result is (0, 0) if there are none.
    """
    if end - position < ADD_HEADER or buffer[position] not in {ADD, ADDX}:
        return 0, 0
    _, size = _HEAD.unpack_from(buffer, position)
    if size < (TIMES_SIZE if buffer[position] == ADDX else 4):
        return 0, 0
    length = size + 5
    count = (end - position) // length
    if count > MIN_RUN:
        # The first few show in most cases that there is no run, and cost next to nothing to check.
        few = _alike(buffer, position, MIN_RUN, length)
        if few < MIN_RUN:
            return few, length
    return _alike(buffer, position, count, length), length


def _alike(buffer: Buffer, position: int, count: int, length: int) -> int:
    """Return how many of `count` records in a row have the opcode and the size of the first."""
    if count < 2:  # the first alone
        return count
    for offset in range(_HEAD.size):
        # One byte of the opcode and size at a time, from all records at once.
        column = buffer[position + offset : position + count * length : length]
        if not isinstance(column, bytes):
            column = bytes(column)
        count = len(column) - len(column.lstrip(column[:1]))
    return count


def added_run(buffer: Buffer, position: int, end: int, starts: list[int]) -> int:
    """Append to `starts` where each whole record of the run of ADDX at `position` begins.

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
