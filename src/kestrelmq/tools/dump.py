"""A journal as text or JSON, one line for each record."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from itertools import pairwise

from kestrelmq.disk.opening import mapped
from kestrelmq.format import notes
from kestrelmq.format.describing import describe_record
from kestrelmq.format.notes import NoteReader
from kestrelmq.format.records import (
    STATE_DUMP_SIZE,
    Add,
    AddX,
    AddXid,
    Buffer,
    Continue,
    Record,
    SaveXid,
)
from kestrelmq.format.scanning import data_size, decode_whole
from kestrelmq.journal import producers, reserved_reads
from kestrelmq.journal.walk import Walk, find_records
from kestrelmq.tools.export_rows import data_fields
from kestrelmq.tools.journal_files import SelectedQueue


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """A record and where it is.

    Attributes:
        file: the file's name.
        position: where in the file the record begins.
        record: the decoded record, perhaps without its data.
        size: bytes of data in the record.
        is_replayed: whether replay uses it; records behind a STATE_DUMP are ignored.
        note: for a SAVE_XID that is part of a note, what the note says or that it is one.
    """

    file: str
    position: int
    record: Record
    size: int
    is_replayed: bool
    note: str = ""


def entries(selected: SelectedQueue, *, with_data: bool = True) -> Iterator[DumpEntry]:
    """Yield every record of the files, in order; with the data only if `with_data`.

    A record cut short at the end of the last file is left out, as are zeros there.

    Raises:
        DamagedJournal: the next bytes are not a record, or a record is cut short elsewhere; the
            error says where.
        OSError: a file cannot be read.
    """
    for name in selected.files:
        path = selected.path / name
        found = NoteReader()
        with mapped(path) as buffer:
            walk = Walk(buffer, find_records, last=selected.is_last(name), path=path)
            for number, (begin, batches) in enumerate(walk.sections()):
                if number:
                    dump = begin - STATE_DUMP_SIZE
                    yield _entry(
                        name, buffer, dump, begin, found, with_data, is_replayed=number == 1
                    )
                for batch in batches:
                    for start, end in pairwise((*batch.starts, batch.end)):
                        yield _entry(
                            name, buffer, start, end, found, with_data, is_replayed=not number
                        )
                if not number:
                    walk.checked_end(path)


def _entry(
    name: str,
    buffer: Buffer,
    start: int,
    end: int,
    found: NoteReader,
    with_data: bool,  # noqa: FBT001
    *,
    is_replayed: bool,
) -> DumpEntry:
    record = decode_whole(buffer, start, end, with_data=with_data)
    if notes.is_delayed(buffer, start, end):
        note = notes.describe_delayed(notes.decode_delayed(buffer, start, end))
    else:
        note = _part_of_note(record, found)
    return DumpEntry(name, start, record, data_size(buffer, start, end), is_replayed, note)


def _part_of_note(record: Record, found: NoteReader) -> str:
    """Return what the note says that a SAVE_XID completes, or that it is part of one."""
    if not isinstance(record, SaveXid):
        return ""
    note = found.feed(record.xid)
    if note is not None:
        return reserved_reads.describe(note) or producers.describe(note) or notes.describe(note)
    return "part of a note" if found.is_within else ""


def added_data(record: Record) -> bytes | None:
    """Return the data of the item that `record` adds, if it adds one."""
    match record:
        case Add(_, data) | AddX(_, _, data) | AddXid(_, _, _, data) | Continue(_, _, _, data):
            return data
        case _:
            return None


def describe(entry: DumpEntry) -> str:
    """Return a record as one line, without its data."""
    line = describe_record(entry.record, entry.size)
    if entry.note:
        line += f" ({entry.note})"
    return line if entry.is_replayed else f"{line} (not replayed)"


def as_json(queue: str, entry: DumpEntry) -> str:
    """Return a record as a line of JSON; data that is not UTF-8 is in `data_base64`."""
    record = entry.record
    fields: dict[str, object] = {
        "queue": queue,
        "file": entry.file,
        "position": entry.position,
        "operation": type(record).__name__,
    }
    if not entry.is_replayed:
        fields["is_replayed"] = False
    if entry.note:
        fields["note"] = entry.note
    for name in (one.name for one in dataclass_fields(record)):
        value = getattr(record, name)
        if isinstance(value, bytes):
            fields |= data_fields(value)
        else:
            fields[name] = value
    return json.dumps(fields, ensure_ascii=False)
