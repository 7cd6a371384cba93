"""Records as text, one line each, for traces and `journal dump`."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, get_args

from kestrelmq.format.records import (
    OPERATIONS,
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

_KINDS: Final = [kind for kind in get_args(Record) if kind is not StateDump]
_NAMES: Final = {**dict(zip(_KINDS, OPERATIONS, strict=True)), StateDump: "STATE_DUMP"}


def describe_records(records: bytes) -> Iterator[str]:
    """Yield one line for each of the whole records in `records`, without its data."""
    starts: list[int] = []
    end = scan(records, 0, len(records), starts)
    for start, stop in pairwise((*starts, end)):
        record = decode_whole(records, start, stop, with_data=False)
        yield describe_record(record, data_size(records, start, stop))


def describe_record(record: Record, size: int) -> str:
    """Return a record with `size` bytes of data as one line."""
    name = _NAMES[type(record)]
    match record:
        case Add(expiry, _):
            return f"{name} {size} bytes{_until(expiry * 1000)}"
        case AddX(added, expiry, _):
            return f"{name} {size} bytes at {_time(added)}{_until(expiry)}"
        case AddXid(xid, added, expiry, _) | Continue(xid, added, expiry, _):
            return f"{name} {xid}, {size} bytes at {_time(added)}{_until(expiry)}"
        case StateDump(xid, count):
            return f"{name} {xid}, {count} open reads"
        case SaveXid(xid) | Unremove(xid) | ConfirmRemove(xid) | RemoveTentativeXid(xid):
            return f"{name} {xid}"
        case Remove() | RemoveTentative():  # pragma: no branch: mypy sees that no kind is missing
            return str(name)


def _time(milliseconds: int) -> str:
    try:
        return format_time(milliseconds / 1000)
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms"


def _until(expiry: int) -> str:
    return f", expires at {_time(expiry)}" if expiry else ""
