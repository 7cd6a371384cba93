"""The bytes of journals, made of records."""

from struct import pack
from typing import Final

from kestrelmq.format.records import (
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
)
from kestrelmq.format.scanning import decode_whole, record_length

NUMBERED_SINCE: Final = 1_700_000_000_000
"""When item 0 of `numbered` was added (ms); each item was added a millisecond after the last."""


def encode(record: Record) -> bytes:
    """Return the bytes of a record. Raises struct.error: a number does not fit its field."""
    match record:
        case Add(expiry, data):
            return pack("<Bii", 0, len(data) + 4, expiry) + data
        case Remove():
            return b"\x01"
        case AddX(added, expiry, data):
            return pack("<Biqq", 2, len(data) + 16, added, expiry) + data
        case RemoveTentative():
            return b"\x03"
        case SaveXid(xid):
            return pack("<Bi", 4, xid)
        case Unremove(xid):
            return pack("<Bi", 5, xid)
        case ConfirmRemove(xid):
            return pack("<Bi", 6, xid)
        case AddXid(xid, added, expiry, data):
            return pack("<Biiqq", 7, xid, len(data) + 16, added, expiry) + data
        case StateDump(xid, open_reads):
            return pack("<Bii", 8, xid, open_reads)
        case Continue(xid, added, expiry, data):
            return pack("<Biiqq", 8, xid, len(data) + 16, added, expiry) + data
        case RemoveTentativeXid(xid):
            return pack("<Bi", 9, xid)


def decode(buffer: Buffer, position: int, end: int) -> tuple[Record, int] | None:
    """Return the record at `position` and where the next begins; None if `end` cuts it short.

    Raises:
        DamagedJournal: the bytes are not a record.
    """
    length = record_length(buffer, position, end)
    if length is None or position + length > end:
        return None
    return decode_whole(buffer, position, position + length), position + length


def journal(*records: Record | str) -> bytes:
    """Return the bytes of records; a text stands for an item that never expires."""
    return b"".join(
        encode(AddX(NUMBERED_SINCE, 0, one.encode()) if isinstance(one, str) else one)
        for one in records
    )


def numbered(*numbers: int) -> bytes:
    """Return the records of items whose data are these numbers."""
    return b"".join(encode(AddX(NUMBERED_SINCE + one, 0, b"%d" % one)) for one in numbers)
