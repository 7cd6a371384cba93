"""`kestrel.journal`, read as a stream: the operations in journals, while servers write them.

Offsets are files and bytes, see `positions`, so each operation comes exactly once, whatever
fails. `spool_follower` plans the batches, in one process that lives as long as the query; tasks
read the ranges of files. No server is asked anything, and nothing is taken or written.

What repeats earlier operations is no row: packs of files that were read, and the records behind a
STATE_DUMP. A record that is being written is left for a later batch.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kestrelmq.spark.sources.journal_options import JournalStreamOptions
from kestrelmq.spark.sources.journal_rows import RowMaker
from kestrelmq.spark.sources.spool_follower import EVERYTHING, FileRange, SpoolFollower
from kestrelmq.spark.tables import divide_by_cost

SEQUENCE_COLUMN: Final = StructType().add("sequence", "long", nullable=False)
"""Orders the operations of a queue, in whichever files they are; only if it is requested."""


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Spark calls `read` on a copy, in tasks, and the rest in one process."""

    def __init__(self, options: JournalStreamOptions, schema: StructType) -> None:
        self._options = options
        self._rows = RowMaker(schema, options.mode, options.batch_rows)
        self._follower = SpoolFollower(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's
        """Return the offset before the first batch."""
        return self._follower.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's
        """Return the limit of bytes in a batch."""
        return ReadMaxBytes(self._options.max_bytes_per_batch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 # Spark's
        """Return the offset of the next batch, or `start` if nothing is new for a while."""
        match limit:
            case ReadAllAvailable():
                room = EVERYTHING
            case ReadMaxBytes(max_bytes=most):
                room = most
            case _:
                room = self._options.max_bytes_per_batch
        return self._follower.latest_offset(start, room)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's
        """Return the backlog, which the query's progress shows as the source's latest offset."""
        return asdict(self._follower.backlog)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's
        """Read what there is when the first batch is planned; then the query ends."""
        self._follower.limit_to_present()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of the batch between two offsets."""
        ranges = self._follower.ranges(start, end)
        shared = divide_by_cost(ranges, lambda one: one.cost, self._options.partition_bytes)
        return [InputPartition(share) for share in shared]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, which is a list of ranges; None if there is none."""
        parts = (batch for one in partition.value or () for batch in self._read_range(one))
        return self._rows.joined(parts)

    def _read_range(self, one: FileRange) -> Iterator[pa.RecordBatch]:
        return self._rows.batches(one.file, one.open(), replayed_only=True, base=one.base)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: there is nothing to release."""

    def stop(self) -> None:
        """Do nothing: nothing is open."""
