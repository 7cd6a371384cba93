"""A journal as text: one line a record, and a summary."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.files import mapped
from kestrelmq.journal.records import (
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
from kestrelmq.journal.scanning import decode
from kestrelmq.journal.selection import Selected


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and where it is."""

    file: str
    position: int
    record: Record


def entries(selected: Selected) -> Iterator[Entry]:
    """Yield every record of the files, in order; a record cut short at the end is left out.

    Raises:
        DamagedJournal: the next bytes are no record; the error says where.
        OSError: a file cannot be read.
    """
    for name in selected.files:
        path = selected.path / name
        with mapped(path) as buffer:
            position, size = 0, len(buffer)
            while position < size:
                try:
                    found = decode(buffer, position, size)
                except DamagedJournal as damage:
                    raise DamagedJournal(damage.position, damage.reason, str(path)) from None
                if found is None:
                    break
                yield Entry(name, position, found[0])
                position = found[1]


def added_data(record: Record) -> bytes | None:
    """Return the data of the item that `record` adds, if it adds one."""
    match record:
        case Add(_, data) | AddX(_, _, data) | AddXid(_, _, _, data) | Continue(_, _, _, data):
            return data
        case _:
            return None


def describe(record: Record) -> str:
    """Return a record as one line, without its data."""
    match record:
        case Add(expiry, data):
            return f"ADD {len(data)} bytes{_until(expiry * 1000)}"
        case Remove():
            return "REMOVE"
        case AddX(added, expiry, data):
            return f"ADDX {len(data)} bytes at {_time(added)}{_until(expiry)}"
        case RemoveTentative():
            return "REMOVE_TENTATIVE"
        case SaveXid(xid):
            return f"SAVE_XID {xid}"
        case Unremove(xid):
            return f"UNREMOVE {xid}"
        case ConfirmRemove(xid):
            return f"CONFIRM_REMOVE {xid}"
        case AddXid(xid, added, expiry, data):
            return f"ADD_XID {xid}, {len(data)} bytes at {_time(added)}{_until(expiry)}"
        case StateDump(xid, count):
            return f"STATE_DUMP {xid}, {count} open reads"
        case Continue(xid, added, expiry, data):
            return f"CONTINUE {xid}, {len(data)} bytes at {_time(added)}{_until(expiry)}"
        case RemoveTentativeXid(xid):
            return f"REMOVE_TENTATIVE_XID {xid}"


def as_json(queue: str, entry: Entry) -> str:
    """Return a record as a line of JSON; data that is no text is in `data_base64`."""
    import base64  # noqa: PLC0415 # only here

    record = entry.record
    fields: dict[str, object] = {
        "queue": queue,
        "file": entry.file,
        "position": entry.position,
        "operation": type(record).__name__,
    }
    for name in record.__slots__:
        value = getattr(record, name)
        if isinstance(value, bytes):
            try:
                fields["data"] = value.decode()
            except UnicodeDecodeError:
                fields["data_base64"] = base64.b64encode(value).decode()
        else:
            fields[name] = value
    return json.dumps(fields, ensure_ascii=False)


def _time(milliseconds: int) -> str:
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _until(expiry: int) -> str:
    return f", expires at {_time(expiry)}" if expiry else ""
