"""The contents of queues as rows, for export and import: JSON Lines, and Parquet with pyarrow.

`export_rows` says what a row is. Items of open reads come first, as if they had been given back.

An import writes the items of a queue to a temporary and syncs it. Then it rotates the current file,
and the temporary takes its place. A crash leaves a queue with all of the items or none, and perhaps
temporaries; an error leaves no temporary. No server may use the queue meanwhile.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kestrelmq.clock import Clock
from kestrelmq.disk.directories import Directory, FileWriter
from kestrelmq.disk.opening import mapped
from kestrelmq.errors import JournalError
from kestrelmq.format.names import (
    NEXT,
    QueueFiles,
    group_files,
    later_timestamp,
    rotated_name,
    temporary_name,
)
from kestrelmq.format.records import item_add_time, item_data, item_expiry
from kestrelmq.journal.life import RESTART
from kestrelmq.journal.loading import fold, recover
from kestrelmq.journal.walk import WINDOW
from kestrelmq.tools.export_rows import ExportRow, checked_row, dead_letter_fields
from kestrelmq.tools.journal_files import SelectedQueue

_ROWS: Final = 4096


def rows(selected: SelectedQueue) -> Iterator[ExportRow]:
    """Yield the items of a queue as a server would load it, and then those that are delayed.

    Raises:
        DamagedJournal: the journal is damaged.
        JournalError: a file was cut short meanwhile.
        OSError: a file cannot be read.
    """
    state = selected.new_replay()
    for index, name in enumerate(selected.files):
        path = selected.path / name
        with mapped(path) as buffer:
            files = selected.files[: index + 1]
            fold(state, buffer, files, path, lambda _at: WINDOW, last=selected.is_last(name))
    state.end()
    for xid in sorted(state.open, reverse=True):
        state.end_read(RESTART, xid)
    number = 0
    while (record := state.take()) is not None:
        data, added, expiry = item_data(record), item_add_time(record), item_expiry(record)
        dead = dead_letter_fields(record)
        yield ExportRow(selected.queue, number, data, added, expiry, dead_letter=dead)
        number += 1
    for record in state.delayed.in_order() if state.delayed is not None else ():
        due = item_add_time(record)
        yield ExportRow(selected.queue, 0, item_data(record), due, item_expiry(record), due=due)


# --- importing ---


def import_rows(
    directory: Directory, source: Iterable[ExportRow], clock: Clock, *, append: bool = False
) -> dict[str, int]:
    """Add items to queues; return how many each got. Nobody else may use the queue path.

    Args:
        directory: the queue path.
        source: the items, in the order in which they are to be read.
        clock: for the names of files.
        append: whether a queue may already exist; its items then come first.

    Raises:
        JournalError: a queue exists or is damaged, or a row is invalid; no queue got anything.
        OSError: a file could not be written; each queue got all of its items, or none.
    """
    found = group_files(directory.names())
    writers: dict[str, FileWriter] = {}
    temporaries: list[str] = []
    counts: dict[str, int] = {}
    now = clock.now()
    try:
        for row in source:
            writer = writers.get(row.queue)
            if writer is None:
                if not append:
                    _check_new(row.queue, found.queues)
                name = temporary_name(row.queue, NEXT, now)
                temporaries.append(name)
                writer = FileWriter(directory, name, one_of_many=True)
                writers[row.queue] = writer
                counts[row.queue] = 0
            counts[row.queue] += 1
            writer.add(row.records(counts[row.queue]))
        for writer in writers.values():
            writer.sync()
        existing: dict[str, QueueFiles] = {}
        for name in writers:
            files = found.queues.get(name) or QueueFiles(name)
            existing[name] = recover(directory, files, clock) if files.present else files
        directory.crash_point("import: written")
        for queue, writer in writers.items():
            writer.close()
            _put_in_place(directory, existing[queue], writer.name, clock)
    except BaseException:
        for writer in writers.values():
            writer.close()
        for name in temporaries:
            directory.remove(name)
        raise
    directory.sync()
    return counts


def _check_new(queue: str, existing: Mapping[str, QueueFiles]) -> None:
    if queue in existing:
        raise JournalError(f"queue {queue} is there already")


def _put_in_place(directory: Directory, files: QueueFiles, temporary: str, clock: Clock) -> None:
    if files.has_current:
        stamp = later_timestamp(files.rotated, clock.now())
        directory.sync_file(files.queue)
        directory.rename(files.queue, rotated_name(files.queue, stamp))
        directory.crash_point("import: current file rotated")
    directory.rename(temporary, files.queue)
    directory.crash_point("import: file named")


# --- Parquet ---


def write_parquet(source: Iterable[ExportRow], file: Path) -> int:
    """Write rows to a Parquet file; return how many. Raises JournalError without pyarrow."""
    arrow, parquet = _pyarrow()
    schema = arrow.schema(
        [
            ("queue", arrow.string()),
            ("position", arrow.int64()),
            ("data", arrow.binary()),
            ("add_time", arrow.int64()),
            ("expiry", arrow.int64()),
            ("due", arrow.int64()),
        ]
    )
    count = 0
    rest = iter(source)
    with parquet.ParquetWriter(file, schema) as writer:
        while batch := list(islice(rest, _ROWS)):
            columns = [[getattr(row, name) for row in batch] for name in schema.names]
            arrays = [
                arrow.array(column, type=field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            count += len(batch)
    return count


def read_parquet(file: Path, now: int) -> Iterator[ExportRow]:
    """Yield the rows of a Parquet file with the columns `queue` and `data`.

    The columns `add_time` (default `now`), `expiry` and `due` are optional.

    Raises:
        JournalError: pyarrow is not installed, the file is not Parquet, or a row is invalid.
    """
    for number, fields in enumerate(_parquet_rows(file), 1):
        data: Any = fields.get("data")
        try:
            data = data.encode() if isinstance(data, str) else bytes(memoryview(data))
            added, expiry = fields.get("add_time"), fields.get("expiry")
            added = now if added is None else added
            due = fields.get("due") or 0
            yield checked_row(fields.get("queue"), number, data, added, expiry or 0, due)
        except (ValueError, TypeError) as error:
            raise JournalError(f"{file}: row {number}: {error}") from None


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    arrow, parquet = _pyarrow()
    try:
        for batch in parquet.ParquetFile(file).iter_batches(_ROWS):
            yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise JournalError(f"{file}: {error}") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise JournalError("Parquet needs pyarrow: pip install kestrelmq[parquet]") from None
