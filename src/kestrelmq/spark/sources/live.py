"""`kestrel`: read queues of running servers as a stream or a table, and write to them.

Rows are items. The driver reserves the items of a batch, tasks read them, and they are finished
when Spark has committed the batch: `live_offsets` and `live_stream` have the protocol. One process
lives as long as a query and plans its batches; Spark calls `commit` late, and never for the last
batch, so nothing depends on it. A table is a snapshot: see `live_snapshot`.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kestrelmq.client.commands import BrowsedItem, ReservedRead
from kestrelmq.clock import SystemClock
from kestrelmq.errors import ConfigError
from kestrelmq.spark.sinks.live import KestrelStreamWriter, KestrelWriter
from kestrelmq.spark.sinks.live_options import kestrel_write_options
from kestrelmq.spark.sources.live_offsets import Chunk, chunks_of, grouped
from kestrelmq.spark.sources.live_options import (
    KestrelReadOptions,
    kestrel_read_options,
)
from kestrelmq.spark.sources.live_reads import HeldItems
from kestrelmq.spark.sources.live_snapshot import Stretch, look_through, stretches
from kestrelmq.spark.sources.live_stream import BatchLimits, Reached, StreamDriver
from kestrelmq.spark.sources.server_probe import ServerProbe
from kestrelmq.spark.storage import columns
from kestrelmq.spark.tables import TableSource, arrow_schema, rows

KESTREL_FORMAT: Final = "kestrel"
KESTREL_SCHEMA: Final = (
    StructType()
    .add("queue", "string", nullable=False)
    .add("server", "string", nullable=False)
    .add("position", "long", nullable=False)
    .add("read_time", "timestamp", nullable=False)
    .add("add_time", "timestamp")
    .add("expiry", "timestamp")
    .add("deliveries", "integer")
    .add("size", "integer", nullable=False)
    .add("data", "binary", nullable=False)
)


class KestrelSource(TableSource):
    """The data source `kestrel`."""

    format_name = KESTREL_FORMAT
    table = KESTREL_SCHEMA
    reached: Reached | None = None
    """For crash tests: called at every step."""

    def columns(self) -> StructType:
        """Return all columns, if the options are right: Spark adds its own error to a stream's."""
        kestrel_read_options(self.options)
        return self.table

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's
        """Return a reader of a stream."""
        self.check_asked(schema)
        return KestrelStreamReader(kestrel_read_options(self.options), schema, self.reached)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what waits."""
        self.check_asked(schema)
        return KestrelTableReader(kestrel_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 # Spark's
        """Return a writer of a table."""
        if overwrite:
            raise ConfigError('writing kestrel: a queue is added to: use mode("append")')
        return KestrelWriter(kestrel_write_options(self.options), schema)

    def streamWriter(  # noqa: N802 # Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 # Spark's
    ) -> DataSourceStreamWriter:
        """Return a writer of a stream."""
        if overwrite:
            raise ConfigError('writing kestrel: a queue is added to: use outputMode("append")')
        return KestrelStreamWriter(kestrel_write_options(self.options), schema)


class _RowMaker:
    """Makes rows: the common part of the readers of streams and tables."""

    def __init__(self, options: KestrelReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def _rows(
        self,
        of: Chunk | Stretch,
        found: Sequence[ReservedRead] | Sequence[BrowsedItem],
        position: int,
        read_time: int,
    ) -> pa.RecordBatch:
        count, data = len(found), pa.array([one.data for one in found], pa.binary())
        positions = np.arange(position, position + count)
        add_times = pa.array([one.add_time for one in found], pa.int64())
        expiries = pa.array([one.expiry for one in found], pa.int64())
        deliveries = [one.deliveries if isinstance(one, ReservedRead) else None for one in found]
        return rows(
            self._schema,
            {
                "queue": lambda: columns.constant(of.queue, count),
                "server": lambda: columns.constant(of.server, count),
                "position": lambda: pa.array(positions),
                "read_time": lambda: columns.timestamps(pa.array([read_time] * count)),
                "add_time": lambda: columns.timestamps(add_times),
                "expiry": lambda: columns.timestamps(expiries, 0),
                "deliveries": lambda: pa.array(deliveries, pa.int32()),
                "size": lambda: pc.binary_length(data),
                "data": lambda: data,
            },
        )


class KestrelTableReader(_RowMaker, DataSourceReader):
    """Reads a table: what waits when an action is planned."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of a snapshot of now."""
        options, now = self._options, SystemClock().now()
        with closing(ServerProbe.of(options)) as probe:
            found = stretches(probe, options.patience, options.min_partitions)
        return [InputPartition((one, now)) for one in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the items of a partition that still wait."""
        if partition.value is None:
            return  # an empty queue
        stretch, read_time = partition.value
        for position, items in look_through(stretch, self._options.cluster.client_options()):
            yield self._rows(stretch, items, position, read_time)


class KestrelStreamReader(_RowMaker, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Spark calls `read` on a copy, in tasks, and the rest in one process."""

    _driver: StreamDriver | None = None

    def __init__(
        self, options: KestrelReadOptions, schema: StructType, reached: Reached | None
    ) -> None:
        super().__init__(options, schema)
        self._reached = reached or (lambda _: None)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's
        """Return the offset before the first batch."""
        return self._stream_driver().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's
        """Return the limit of items in a batch; `latestOffset` adds the limit of bytes."""
        return ReadMaxRows(self._options.max_items)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 # Spark's
        """Return the offset of the next batch, or `start` if no item comes for a while."""
        return self._stream_driver().latest_offset(start, self._limits(limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 # Spark's
        """Return the backlog, which the query's progress shows as the source's latest offset."""
        return self._stream_driver().backlog()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's
        """Record how many items there are now; the query ends once it has read them."""
        self._stream_driver().limit_to_present_items()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of the batch whose offset is `end`."""
        if start == end:
            return []
        offset = self._stream_driver().offset_of(end)
        groups = grouped(chunks_of(offset), self._options.min_partitions)
        return [InputPartition((group, offset.read_time)) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's items, which are the same each time."""
        if partition.value is None:
            return  # a batch without items
        chunks, read_time = partition.value
        with closing(HeldItems(self._options)) as held:
            for chunk in chunks:
                found = held.read(chunk)
                self._reached("yielding")
                if found:
                    yield self._rows(chunk, found, chunk.position, read_time)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that Spark has logged the batch behind `end`."""
        self._stream_driver().commit(end)

    def stop(self) -> None:
        """Close the connections; what the last batch holds stays so until the query goes on."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _stream_driver(self) -> StreamDriver:
        if self._driver is None:
            servers = ServerProbe.of(self._options)
            self._driver = StreamDriver(servers, self._options, reached=self._reached)
        return self._driver

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        items, size = self._options.max_items, self._options.max_bytes
        match limit:
            case ReadAllAvailable():
                return BatchLimits(None, 1 << 62)
            case ReadMaxRows(max_rows=most):
                return BatchLimits(min(items, most), size)
            case ReadMaxBytes(max_bytes=most):
                return BatchLimits(items, min(size, most))
            case _:
                return BatchLimits(items, size)
