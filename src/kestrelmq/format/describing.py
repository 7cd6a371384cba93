"""Records as text, one line each, for traces and `journal dump`."""

from collections.abc import Iterator
from itertools import pairwise

from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
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
from kestrelmq.format.scanning import data_size, decode_whole, scan
from kestrelmq.units import format_time


def describe_records(records: bytes) -> Iterator[str]:
    """Yield one line for each of the whole records in `records`, without its data."""
    starts: list[int] = []
    end = scan(records, 0, len(records), starts)
    for start, stop in pairwise((*starts, end)):
        record = decode_whole(records, start, stop, with_data=False)
        yield describe_record(record, data_size(records, start, stop))


def describe_record(record: Record, size: int) -> str:
    """Return a record with `size` bytes of data as one line."""
    match record:
        case Add(expiry, _):
            return f"ADD {size} bytes{_until(expiry * 1000)}"
        case Remove():
            return "REMOVE"
        case AddX(added, expiry, _):
            return f"ADDX {size} bytes at {_time(added)}{_until(expiry)}"
        case RemoveTentative():
            return "REMOVE_TENTATIVE"
        case SaveXid(xid):
            return f"SAVE_XID {xid}"
        case Unremove(xid):
            return f"UNREMOVE {xid}"
        case ConfirmRemove(xid):
            return f"CONFIRM_REMOVE {xid}"
        case AddXid(xid, added, expiry, _):
            return f"ADD_XID {xid}, {size} bytes at {_time(added)}{_until(expiry)}"
        case StateDump(xid, count):
            return f"STATE_DUMP {xid}, {count} open reads"
        case Continue(xid, added, expiry, _):
            return f"CONTINUE {xid}, {size} bytes at {_time(added)}{_until(expiry)}"
        case RemoveTentativeXid(xid):  # pragma: no branch: mypy sees that no kind is missing
            return f"REMOVE_TENTATIVE_XID {xid}"


def _time(milliseconds: int) -> str:
    try:
        return format_time(milliseconds / 1000)
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms"


def _until(expiry: int) -> str:
    return f", expires at {_time(expiry)}" if expiry else ""
