"""Encode rows of a DataFrame as ADDX records, a whole Arrow batch at once.

Arrow joins an array of headers with the array of data; the values buffer of the result holds
the journal's bytes. No Python code runs per row, except for rows with a due time. These are delayed
items: their records, with that time as add time, are in notes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError, InvalidQueueName
from kestrelmq.format.notes import delayed_notes
from kestrelmq.format.records import ADDX, ADDX_HEADER, NO_EXPIRY
from kestrelmq.names import queue_name_error
from kestrelmq.spark.sinks import written_columns

_HEADER: Final = np.dtype(
    [("opcode", "u1"), ("size", "<i4"), ("add_time", "<i8"), ("expiry", "<i8")]
)
_TIMES_SIZE: Final = ADDX_HEADER - 5
# Bytes of records, headers included, that one Arrow array can address.
_MAX_JOINED: Final = 2**31 - 1 - (1 << 20)

_COLUMNS: Final = ("queue", "data", "add_time", "expiry", "sequence", "due")


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded rows of one batch, grouped by queue; within a queue in the batch's order.

    Attributes:
        queues: names of the queues.
        bounds: queue n has the rows from bounds[n] up to, not including, bounds[n + 1].
        offsets: where each row's record begins in `records`, and where the last one ends.
        records: the encoded records.
        sequences: the rows' sequence numbers; None without the column `sequence`.
    """

    queues: list[str]
    bounds: list[int]
    offsets: NDArray[np.integer]
    records: memoryview
    sequences: NDArray[np.int64] | None


def check_columns(schema: StructType) -> None:
    """Check that rows of `schema` can be written.

    Raises:
        ConfigError: a column is missing, unknown or of a type that is not allowed.
    """
    written_columns.check("writing kestrel.journal", schema, _COLUMNS)
    if "queue" not in (name.lower() for name in schema.names):
        raise ConfigError("writing kestrel.journal: column 'queue' is missing")


def encode(
    batch: pa.RecordBatch, now: int, zone: str = "UTC", numbers: Iterator[int] | None = None
) -> list[EncodedRows]:
    """Encode a batch.

    Args:
        batch: rows of a schema that passed `check_columns`.
        now: the add time for rows without one (ms).
        zone: the time zone of dates, and of times without one.
        numbers: those of the delayed items, increasing; from 1 on if it is not given.

    Raises:
        ValueError: a row has no queue or no data, or its data is too long for the format; or a
            number cannot be cast.
        InvalidQueueName: a queue has a name that is not allowed.
    """
    if not batch.num_rows:
        return []
    return _encode(written_columns.cast(batch, zone), now, count(1) if numbers is None else numbers)


def _encode(batch: pa.RecordBatch, now: int, numbers: Iterator[int]) -> list[EncodedRows]:
    data = _column(batch, "data")
    if data.nbytes + batch.num_rows * (ADDX_HEADER + 1) > _MAX_JOINED:
        if batch.num_rows == 1:
            raise ValueError("column 'data': an item of 2 GiB or more does not fit into a journal")
        half = batch.num_rows // 2
        return [
            *_encode(batch.slice(0, half), now, numbers),
            *_encode(batch.slice(half), now, numbers),
        ]
    queues = _column(batch, "queue").dictionary_encode()
    codes: NDArray[np.int32] = queues.indices.to_numpy(zero_copy_only=False)
    names: list[str] = queues.dictionary.to_pylist()
    _check_names(names)
    if len(names) > 1:
        order = np.argsort(codes, kind="stable")
        batch = batch.take(pa.array(order))
        codes = codes[order]
        data = _column(batch, "data")
    bounds = [0, *np.flatnonzero(np.diff(codes) != 0).tolist(), len(codes)]
    bounds[1:-1] = [bound + 1 for bound in bounds[1:-1]]
    due = _due_times(batch)
    joined = pc.binary_join_element_wise(_headers(batch, data, now, due), data, pa.scalar(b""))
    _, buffer, values = joined.buffers()
    offsets: NDArray[np.integer] = np.frombuffer(buffer, dtype=np.int32)[
        joined.offset : joined.offset + len(joined) + 1
    ]
    records = memoryview(values)
    if due is not None and np.any(due > 0):
        offsets, records = _noted(offsets, records, due > 0, numbers)
    return [
        EncodedRows(
            queues=[names[codes[bound]] for bound in bounds[:-1]],
            bounds=bounds,
            offsets=offsets,
            records=records,
            sequences=_whole(batch, "sequence"),
        )
    ]


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        error = queue_name_error(name)
        if error is not None:
            raise InvalidQueueName(f"column 'queue': {name!r} is not allowed: {error}")


def _due_times(batch: pa.RecordBatch) -> NDArray[np.int64] | None:
    """Return when each row is due, above 0 for delayed items only; None without that column."""
    if "due" not in batch.schema.names:
        return None
    return batch.column("due").fill_null(0).to_numpy()  # type: ignore[no-any-return]


def _noted(
    offsets: NDArray[np.integer],
    records: memoryview,
    are_delayed: NDArray[np.bool_],
    numbers: Iterator[int],
) -> tuple[NDArray[np.integer], memoryview]:
    """Return the offsets and the records of rows, with those that are delayed in notes."""
    made: list[bytes | memoryview] = []
    for (start, end), is_delayed in zip(
        pairwise(offsets.tolist()), are_delayed.tolist(), strict=True
    ):
        record = records[start:end]
        made.append(delayed_notes(next(numbers), bytes(record), 0) if is_delayed else record)
    return np.cumsum([0, *map(len, made)]), memoryview(b"".join(made))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has a row without a value")
    return column


def _headers(
    batch: pa.RecordBatch, data: pa.Array, now: int, due: NDArray[np.int64] | None
) -> pa.Array:
    rows = batch.num_rows
    headers = np.zeros(rows, dtype=_HEADER)
    headers["opcode"] = ADDX
    headers["size"] = pc.binary_length(data).to_numpy() + _TIMES_SIZE
    headers["add_time"] = _milliseconds(batch, "add_time", now)
    if due is not None:
        headers["add_time"] = np.where(due > 0, due, headers["add_time"])
    headers["expiry"] = _milliseconds(batch, "expiry", int.from_bytes(NO_EXPIRY))
    offsets = np.arange(rows + 1, dtype=np.int32) * ADDX_HEADER
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(headers.view(np.uint8))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _milliseconds(batch: pa.RecordBatch, name: str, default: int) -> Any:
    if name not in batch.schema.names:
        return default
    return batch.column(name).fill_null(default).to_numpy()


def _whole(batch: pa.RecordBatch, name: str) -> NDArray[np.int64] | None:
    if name not in batch.schema.names:
        return None
    return _column(batch, name).to_numpy()  # type: ignore[no-any-return]


assert _HEADER.itemsize == ADDX_HEADER  # noqa: S101 # the format
