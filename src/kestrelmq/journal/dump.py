"""A journal as text: one line a record, and a summary."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.files import mapped
from kestrelmq.journal.loading import is_zeros
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
from kestrelmq.journal.verify import CUT, scan_some
from kestrelmq.journal.writer import Dialect


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and where it is."""

    file: str
    position: int
    record: Record


def entries(selected: Selected) -> Iterator[Entry]:
    """Yield every record of the files, in order.

    A record cut short at the end of the last file is left out, as are zeros there.

    Raises:
        DamagedJournal: the next bytes are no record, or a record is cut short before that end; the
            error says where.
        OSError: a file cannot be read.
    """
    last = selected.plan.present[-1]
    dialect: Dialect | None = None
    for name in selected.files:
        path = selected.path / name
        with mapped(path) as buffer:
            position, size = 0, len(buffer)
            while position < size:
                starts: list[int] = []
                position, reason = scan_some(buffer, position, starts, dialect)
                for start in starts:
                    found = decode(buffer, start, size)
                    if found is None:
                        raise AssertionError("only whole records are found")
                    if isinstance(found[0], RemoveTentative | RemoveTentativeXid):
                        is_implicit = isinstance(found[0], RemoveTentative)
                        dialect = "documented" if is_implicit else "kestrel-2"
                    yield Entry(name, start, found[0])
                if reason is not None:
                    if name == last and (reason == CUT or is_zeros(buffer, position)):
                        break
                    raise DamagedJournal(position, reason, str(path))


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
