"""Rows made from journal files: one for each operation, in the order of the file.

A task reads a file up to the size that it had when the query was planned. Damage is what the option
`mode` says it is: an error, a row, or the end of the file.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from kestrelmq.errors import DamagedJournal
from kestrelmq.spark.sources.journal_options import Mode
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.scanning import FileView
from kestrelmq.spark.storage.spool import SpoolFile
from kestrelmq.spark.tables import ColumnMakers, arrow_schema, rows

JOURNAL_SCHEMA: Final = (
    StructType()
    .add("queue", "string", nullable=False)
    .add("file", "string", nullable=False)
    .add("position", "long", nullable=False)
    .add("opcode", "integer")
    .add("operation", "string", nullable=False)
    .add("xid", "integer")
    .add("add_time", "timestamp")
    .add("expiry", "timestamp")
    .add("add_ms", "long")
    .add("expiry_ms", "long")
    .add("size", "integer")
    .add("data", "binary")
)


TimeFilter = tuple[str, str, datetime | int]
"""A column of times, the function of Arrow's that compares it, and with what."""


class RowMaker:
    """Makes the requested columns of operations."""

    def __init__(self, schema: StructType, mode: Mode, batch_rows: int) -> None:
        """Prepare it.

        Args:
            schema: the requested columns.
            mode: what to do at damage, see `journal_options`.
            batch_rows: most records in a batch.
        """
        self._schema = arrow_schema(schema)
        self._mode = mode
        self._batch_rows = batch_rows

    def batches(
        self,
        file: SpoolFile,
        view: FileView,
        *,
        replayed_only: bool,
        operations: Collection[str] | None = None,
        times: Sequence[TimeFilter] = (),
        base: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file.

        Args:
            file: the file.
            view: its bytes.
            replayed_only: whether to leave out what follows a STATE_DUMP.
            operations: the operations wanted; None means all.
            times: conditions that the times of the wanted operations meet.
            base: what to add to the position of a record for its `sequence`.

        Raises:
            DamagedJournal: the file is damaged, and the mode is `failfast`.
        """
        chunks = view.chunks(replayed_only=replayed_only, begin=file.begin)
        try:
            for chunk in chunks:
                wanted = chunk
                if operations is not None:
                    codes = columns.operation_codes(chunk)
                    wanted = chunk.part(np.isin(codes, _codes(operations)))
                for column, comparison, than in times:
                    found = columns.RECORD_COLUMNS[column](view, wanted)
                    met = pc.call_function(comparison, [found, pa.scalar(than, found.type)])
                    wanted = wanted.part(met.fill_null(False).to_numpy(zero_copy_only=False))
                for batch in columns.batches(wanted, self._batch_rows):
                    made: dict[str, Callable[[], pa.Array]] = {
                        name: partial(make, view, batch)
                        for name, make in columns.RECORD_COLUMNS.items()
                    }
                    made["sequence"] = partial(_sequence, batch.starts, base)
                    yield self._rows(file, len(batch), made)
        except DamagedJournal as damage:
            yield from self._damaged(file, view, damage, [] if times else operations, base)

    def joined(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join small batches."""
        return columns.coalesce(batches, self._batch_rows)

    def _damaged(
        self,
        file: SpoolFile,
        view: FileView,
        damage: DamagedJournal,
        operations: Collection[str] | None,
        base: int,
    ) -> Iterator[pa.RecordBatch]:
        if self._mode == "failfast":
            raise DamagedJournal(damage.position, damage.reason, file.path) from None
        if self._mode == "dropmalformed" or (
            operations is not None and columns.DAMAGED not in operations
        ):
            return
        row = {
            "position": damage.position,
            "opcode": int(view.bytes[damage.position]),
            "operation": columns.DAMAGED,
            "size": min(file.size - damage.position, 2**31 - 1),
            "data": damage.reason.encode(),
        }
        types = {field.name: field.type for field in arrow_schema(JOURNAL_SCHEMA)}
        made: dict[str, Callable[[], pa.Array]] = {
            name: partial(pa.array, [row.get(name)], types[name]) for name in columns.RECORD_COLUMNS
        }
        made["sequence"] = partial(pa.array, [base + damage.position], pa.int64())
        yield self._rows(file, 1, made)

    def _rows(self, file: SpoolFile, count: int, made: ColumnMakers) -> pa.RecordBatch:
        names = {
            "queue": partial(columns.constant, file.queue, count),
            "file": partial(columns.constant, file.name, count),
            "spool": partial(columns.constant, file.spool, count),
        }
        return rows(self._schema, {**names, **made})


def _codes(operations: Collection[str]) -> list[int]:
    return [code for code, name in enumerate(columns.OPERATIONS) if name in operations]


def _sequence(starts: NDArray[np.int64], base: int) -> pa.Array:
    return pa.array(starts + base)
