"""Arrow columns made from the records of a journal file.

numpy gathers header fields from the mapped file. Item data is copied once: an Arrow array over
the mapping has as its elements, alternately, the data of a record and the bytes up to the next
record's data; taking every second element copies the data alone.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kestrelmq.format.records import ADD, ADD_XID, ADDX, SAVE_XID, STATE_DUMP
from kestrelmq.spark.storage.scanning import Chunk, FileView, xids_at

OPERATIONS: Final = (
    "ADD",
    "REMOVE",
    "ADDX",
    "REMOVE_TENTATIVE",
    "SAVE_XID",
    "UNREMOVE",
    "CONFIRM_REMOVE",
    "ADD_XID",
    "STATE_DUMP",
    "REMOVE_TENTATIVE_XID",
    "CONTINUE",
)
"""Names of operations, by opcode; CONTINUE, which shares opcode 8 with STATE_DUMP, comes last."""
CONTINUE_CODE: Final = 10
DAMAGED: Final = "DAMAGED"

MAX_BATCH_BYTES: Final = 64 << 20
"""Maximum bytes of journal in an Arrow batch; a longer record gets its own batch."""

LONGEST: Final = (2**63 - 1) // 1000
"""How far from the epoch a time in ms may be, for its microseconds to fit into 64 bits."""
_DATA_AT: Final[NDArray[np.int64]] = np.array([9, 0, 21, 0, 0, 0, 0, 25, 25, 0], dtype=np.int64)
# An ADD has its expiry, in seconds, where an ADDX has its add time.
_TIMES_AT: Final[NDArray[np.int64]] = np.array([5, 0, 5, 0, 0, 0, 0, 9, 9, 0], dtype=np.int64)


def batches(chunk: Chunk, rows: int) -> Iterator[Chunk]:
    """Split a chunk into parts of at most `rows` records and `MAX_BATCH_BYTES`."""
    begin = 0
    while begin < len(chunk):
        reach = chunk.starts[begin] + MAX_BATCH_BYTES
        fitting = int(np.searchsorted(chunk.ends, reach, side="right"))
        end = min(begin + rows, max(fitting, begin + 1))
        yield chunk.part(slice(begin, end))
        begin = end


def operation_codes(chunk: Chunk) -> NDArray[np.uint8]:
    """Return indexes into `OPERATIONS`."""
    return np.where(chunk.continues, np.uint8(CONTINUE_CODE), chunk.opcodes)


def operations(chunk: Chunk) -> pa.Array:
    """Return the names of the operations."""
    # Not at the top: it looks for pandas, and imports it, which a process that plans does not need.
    return pa.array(OPERATIONS).take(pa.array(operation_codes(chunk)))


def xids(view: FileView, chunk: Chunk) -> pa.Array:
    """Return the xids, null for records without one."""
    has_xid = chunk.opcodes >= SAVE_XID
    if not has_xid.any():
        return pa.nulls(len(chunk), pa.int32())
    return _spread(has_xid, view.field("<i4", xids_at(chunk.part(has_xid))))


def sizes(chunk: Chunk) -> pa.Array:
    """Return the sizes of items' data (bytes), null for records that add no item."""
    lengths = chunk.ends - chunk.starts - _DATA_AT[chunk.opcodes]
    items = chunk.adds
    return pa.array(lengths.astype(np.int32), mask=None if items.all() else ~items)


def add_times(view: FileView, chunk: Chunk) -> pa.Array:
    """Return items' add times (ms), null for records without one, such as an ADD."""
    timed = chunk.adds & (chunk.opcodes != ADD)
    return _spread(timed, view.field("<i8", _times_at(chunk, timed)))


def expiries(view: FileView, chunk: Chunk) -> pa.Array:
    """Return items' expiries (ms, 0 for never), null for records that add no item."""
    starling = chunk.opcodes == ADD
    timed = chunk.adds & ~starling
    found = view.field("<i8", _times_at(chunk, timed) + 8)
    if not starling.any():
        return _spread(timed, found)
    values = np.zeros(len(chunk), dtype=np.int64)
    values[timed] = found
    values[starling] = view.field("<i4", _times_at(chunk, starling)).astype(np.int64) * 1000
    return pa.array(values, mask=~(timed | starling))


def timestamps(times: pa.Array, never: int | None = None) -> pa.Array:
    """Return times (ms) as Spark has them; null for `never`, and for one that Spark cannot hold."""
    values = times.fill_null(LONGEST + 1).to_numpy(zero_copy_only=False)
    missing = (values < -LONGEST) | (values > LONGEST) | (values == never)
    return pa.array(values * 1000, pa.timestamp("us", "UTC"), mask=missing)


def data(view: FileView, chunk: Chunk) -> pa.Array:
    """Return items' data, null for records that add no item."""
    items = chunk.adds
    begins = np.where(items, chunk.starts + _DATA_AT[chunk.opcodes], chunk.ends)
    count = len(chunk)
    base = int(begins[0])
    bounds = np.empty(2 * count + 1, dtype=np.int32)
    bounds[0:-1:2] = begins - base
    bounds[1::2] = chunk.ends - base
    bounds[-1] = bounds[-2]
    over = pa.py_buffer(view.buffer).slice(base, int(chunk.ends[-1]) - base)
    laid = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), over])
    every_second = np.arange(0, 2 * count, 2, dtype=np.int64)
    return laid.take(pa.array(every_second, mask=None if items.all() else ~items))


def constant(text: str, count: int) -> pa.Array:
    """Return a column of `count` rows that all hold `text`."""
    return pa.repeat(pa.scalar(text), count)


def coalesce(parts: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join small batches into batches of about `rows`: many small ones are slow in Spark."""
    pending: list[pa.RecordBatch] = []
    waiting = size = 0
    for part in parts:
        more = part.nbytes
        if more > MAX_BATCH_BYTES:
            # Joined with others, it might exceed what one array can address.
            if pending:
                yield pa.concat_batches(pending)
            yield part
            pending = []
            waiting = size = 0
            continue
        pending.append(part)
        waiting += part.num_rows
        size += more
        if 2 * waiting > rows or size > MAX_BATCH_BYTES:
            yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)
            pending = []
            waiting = size = 0
    if pending:
        yield pa.concat_batches(pending)


Column = Callable[[FileView, Chunk], pa.Array]

RECORD_COLUMNS: Final[dict[str, Column]] = {
    "position": lambda _, chunk: pa.array(chunk.starts),
    "opcode": lambda _, chunk: pa.array(chunk.opcodes.astype(np.int32)),
    "operation": lambda _, chunk: operations(chunk),
    "xid": xids,
    "add_time": lambda view, chunk: timestamps(add_times(view, chunk)),
    "expiry": lambda view, chunk: timestamps(expiries(view, chunk), 0),
    "add_ms": add_times,
    "expiry_ms": expiries,
    "size": lambda _, chunk: sizes(chunk),
    "data": data,
}
"""How to make the columns that come from a file's bytes; the other columns identify the file."""


def _times_at(chunk: Chunk, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where the times of the wanted records begin."""
    if not wanted.all():
        chunk = chunk.part(wanted)
    return chunk.starts + _TIMES_AT[chunk.opcodes]


def _spread(where: NDArray[np.bool_], values: NDArray[Any]) -> pa.Array:
    """Return `values` where `where` is set, null elsewhere."""
    if len(values) == len(where):
        return pa.array(values)
    spread = np.zeros(len(where), dtype=values.dtype)
    spread[where] = values
    return pa.array(spread, mask=~where)


assert (_DATA_AT[ADDX], _DATA_AT[ADD], _DATA_AT[ADD_XID]) == (21, 9, 25)  # noqa: S101 # the format
assert OPERATIONS[STATE_DUMP] == "STATE_DUMP"  # noqa: S101 # opcodes are indexes
