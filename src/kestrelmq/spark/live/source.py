"""`kestrel`: read queues of running servers as a stream or as a table, and write to them.

Rows are items; each is taken off its queue once it is staged: see `staging`. `stream_driver` plans
the batches of a stream, in one process that lives as long as the query; tasks read them. Spark
calls `commit` late, and never for the last batch of a stream, so it only deletes parts.

A table, read with `spark.read`, is one batch: what the queue has when the table's first action is
planned, up to the limits. Spark plans the source again for each action, but uses the same
`KestrelSource`, made by `load()`, for all actions of a DataFrame; its constructor names the batch.
So the first planning writes the plan to the batch's own directory in the staging location, and
every later one reads it there. The batch is never deleted, because a source does not learn when a
table is no longer used. The option `batch` reads it again.
"""

import json
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

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
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kestrelmq.clock import SystemClock
from kestrelmq.errors import ConfigError
from kestrelmq.spark.live.batch_plan import (
    BatchPlan,
    WaitingQueue,
    first_position,
    from_offset,
    share_out,
)
from kestrelmq.spark.live.file_batches import FileBatches
from kestrelmq.spark.live.options import (
    DEFAULT_STREAM_LEASE,
    DEFAULT_TABLE_LEASE,
    KestrelReadOptions,
    kestrel_read_options,
    kestrel_write_options,
)
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.server_reads import MonitoredReads, ServerAccess, TaggedReads
from kestrelmq.spark.live.shares import PartitionShare
from kestrelmq.spark.live.staging import QueueReads, Reached, StagedPart, Staging
from kestrelmq.spark.live.stored_batches import PartsToRead, StoredBatches, planning_lock
from kestrelmq.spark.live.stream_driver import Batches, BatchLimits, StreamDriver
from kestrelmq.spark.live.writer import KestrelStreamWriter, KestrelWriter
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.locations import Location
from kestrelmq.spark.tables import TableSource, arrow_schema, rows

KESTREL_FORMAT: Final = "kestrel"
KESTREL_SCHEMA: Final = StructType(
    [
        StructField("queue", StringType(), nullable=False),
        StructField("server", StringType(), nullable=False),
        StructField("position", LongType(), nullable=False),
        StructField("read_time", LongType(), nullable=False),
        StructField("add_time", LongType(), nullable=True),
        StructField("expiry", LongType(), nullable=True),
        StructField("deliveries", IntegerType(), nullable=True),
        StructField("size", IntegerType(), nullable=False),
        StructField("data", BinaryType(), nullable=False),
    ]
)
_PLAN: Final = "plan.json"
_TOLD: Final = {"add_time": pa.int64(), "expiry": pa.int64(), "deliveries": pa.int32()}
"""Columns of what only servers with reserved reads tell."""


class KestrelPartition(InputPartition):
    """What one task reads: a partition of a batch, with the staging location `staging`."""

    def __init__(
        self, options: KestrelReadOptions, plan: BatchPlan, partition: int, *, waits: bool
    ) -> None:
        """Describe partition number `partition` of `plan`.

        Args:
            options: the options, with the batch's own staging location and lease.
            plan: the plan of the batch.
            partition: the number.
            waits: whether to wait for a queue that is loading; False leaves its items for later.
        """
        super().__init__(None)
        self.staging = str(options.staging_location)
        self.epoch = plan.epoch
        self.partition = partition
        self.only = options.queue.only
        self.share = plan.shares[partition]
        self.patience = options.patience if waits else None
        self.lease = options.lease or DEFAULT_STREAM_LEASE
        self.name = plan.staging

    def reads(self) -> QueueReads:
        """Return the reads of its server, none of them open yet."""
        access = ServerAccess(self.share.server, self.patience)
        if self.share.reserves:
            return TaggedReads(access, self.name, self.lease)
        return MonitoredReads(access)


class StoredPartition(InputPartition):
    """What one task reads: parts of a batch that the driver has staged in a store."""

    def __init__(self, epoch: int, parts: PartsToRead) -> None:
        super().__init__(None)
        self.epoch = epoch
        self.partition = parts.partition
        self.parts = parts


class KestrelSource(TableSource):
    """The data source `kestrel`."""

    format_name = KESTREL_FORMAT
    table = KESTREL_SCHEMA
    reached: Reached | None = None
    """For crash tests: called at every step of staging."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._batch = f"batch-{SystemClock().now()}-{uuid4().hex[:8]}"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's
        """Return a reader of a stream."""
        self.check_asked(schema)
        options = kestrel_read_options(self.options)
        if options.batch is not None:
            raise ConfigError("option 'batch' of reading kestrel is for spark.read only")
        return KestrelStreamReader(options, schema, self.reached)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of one batch."""
        self.check_asked(schema)
        options = kestrel_read_options(self.options)
        if options.max_items_per_second is not None:
            raise ConfigError(
                "option 'max_items_per_second' of reading kestrel is for spark.readStream only"
            )
        return KestrelSourceReader(options, schema, self.reached, self._batch)

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


class _PartitionReader:
    """Reads partitions: the common part of the readers of streams and tables."""

    def __init__(
        self, options: KestrelReadOptions, schema: StructType, reached: Reached | None
    ) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._reached = reached

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's items: those staged already, then new ones, which it stages first."""
        if isinstance(partition, StoredPartition):
            parts = partition.parts.read(self._reached)
        elif isinstance(partition, KestrelPartition):
            parts = Staging(Path(partition.staging), self._reached, partition.only).read(
                partition.epoch,
                partition.partition,
                partition.share,
                partition.reads,
                SystemClock(),
            )
        else:
            return
        position = first_position(partition.epoch, partition.partition)
        for part in parts:
            queues, start = part.queues(), 0
            for batch in part.batches:
                names = queues.slice(start, batch.num_rows)
                yield self._rows(part, batch, names, position + start)
                start += batch.num_rows
            position += start

    def _rows(
        self, part: StagedPart, batch: pa.RecordBatch, names: pa.Array, position: int
    ) -> pa.RecordBatch:
        count, data = batch.num_rows, batch.column(0)
        return rows(
            self._schema,
            {
                "queue": lambda: names,
                "server": lambda: columns.constant(part.server, count),
                "position": lambda: pa.array(np.arange(position, position + count)),
                "read_time": lambda: pa.array(np.full(count, part.read_time, dtype=np.int64)),
                **{name: partial(_column, batch, name, kind) for name, kind in _TOLD.items()},
                "size": lambda: pc.binary_length(data),
                "data": lambda: data,
            },
        )

    def _stored(self, location: Location, servers: ServerProbe, lease: float) -> StoredBatches:
        lease = self._options.lease or lease

        def connect(share: PartitionShare, name: str, patience: float) -> TaggedReads:
            return TaggedReads(ServerAccess(share.server, patience or None), name, lease)

        return StoredBatches(location, servers, connect, reached=self._reached)

    def _probe(self) -> ServerProbe:
        options = self._options
        return ServerProbe(
            options.cluster.membership(), options.queue, create_children=options.create_children
        )


class KestrelStreamReader(_PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Spark calls `read` on a copy, in tasks, and the rest in one process."""

    _driver: StreamDriver | None = None
    _batches: StoredBatches | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's
        """Return the offset before the first batch."""
        return self._stream_driver().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's
        """Return the limit of items in a batch; `latestOffset` adds the limit of bytes."""
        return ReadMaxRows(self._options.max_items_per_batch)

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
        driver = self._stream_driver()
        plan = driver.plan_of(end)
        if self._batches is not None:
            return _stored_partitions(self._batches, plan)
        return _partitions(self._options, plan, waits=driver.is_limited)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the parts of all batches up to `end`."""
        self._stream_driver().commit(end)

    def stop(self) -> None:
        """Release the staging location."""
        if self._driver is not None:
            self._driver.close()
            self._driver = self._batches = None

    def _stream_driver(self) -> StreamDriver:
        if self._driver is None:
            options, probe = self._options, self._probe()
            batches: Batches
            if isinstance(options.staging_location, Location):
                batches = self._batches = self._stored(
                    options.staging_location, probe, DEFAULT_STREAM_LEASE
                )
            else:
                path = Path(options.staging_location)
                batches = FileBatches(Staging(path, self._reached, options.queue.only), probe)
            self._driver = StreamDriver(
                batches,
                probe,
                options.queue,
                wait=options.wait,
                patience=options.patience,
                partitions=options.min_partitions,
                rate=options.max_items_per_second,
            )
        return self._driver

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        items, size = self._options.max_items_per_batch, self._options.max_bytes_per_batch
        match limit:
            case ReadAllAvailable():
                return BatchLimits(None, 1 << 62)
            case ReadMaxRows(max_rows=most):
                return BatchLimits(min(items, most), size)
            case ReadMaxBytes(max_bytes=most):
                return BatchLimits(items, min(size, most))
            case _:
                return BatchLimits(items, size)


class KestrelSourceReader(_PartitionReader, DataSourceReader):
    """Reads a table: one batch, however often it is planned."""

    def __init__(
        self, options: KestrelReadOptions, schema: StructType, reached: Reached | None, batch: str
    ) -> None:
        super().__init__(options, schema, reached)
        self._batch = options.batch or batch

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the batch's plan; make the plan if there is none."""
        if isinstance(self._options.staging_location, Location):
            return self._partitions_in_store(self._options.staging_location)
        directory = Path(self._options.staging_location) / self._batch
        try:
            text = (directory / _PLAN).read_text()
        except FileNotFoundError as error:
            if self._options.batch is not None:
                raise self._not_allowed(error) from None
            # If two processes plan at the same time, the plan of the first is kept; both use it.
            with closing(self._probe()) as probe:
                planned = json.dumps(self._plan(probe).to_offset())
            text = Staging(directory).keep_first(_PLAN, planned)
        lease = self._options.lease or DEFAULT_TABLE_LEASE
        options = replace(self._options, staging_location=str(directory), lease=lease)
        return _partitions(options, self._parsed(text), waits=True)

    def _partitions_in_store(self, location: Location) -> list[InputPartition]:
        """Return the same of a batch in a store; it is staged when its plan is made."""
        file = location / self._batch / _PLAN
        with closing(self._probe()) as probe:
            batches = self._stored(location, probe, DEFAULT_TABLE_LEASE)
            with planning_lock():
                try:
                    plan = self._parsed(bytes(file.read()).decode())
                except FileNotFoundError as error:
                    if self._options.batch is not None:
                        raise self._not_allowed(error) from None
                    shares = self._plan(probe).shares
                    queue, patience = str(self._options.queue), self._options.patience
                    before = BatchPlan(0, self._batch, queue)
                    made = batches.make(before, queue, shares, patience) if shares else None
                    plan = made or replace(before, epoch=1)
                    file.write(json.dumps(plan.to_offset()).encode())
            return _stored_partitions(batches, plan)

    def _plan(self, probe: ServerProbe) -> BatchPlan:
        options = self._options
        probe.check_readable(options.patience)
        counts = probe.counts()
        reserving = probe.reserving(counts)
        if not reserving:
            raise probe.unavailable()
        waiting = [
            WaitingQueue(server, name, items)
            for server in reserving
            for name, items in counts[server].items()
            if items
        ]
        Random().shuffle(waiting)  # noqa: S311 # if they are too many, any may come first
        shares = share_out(
            waiting,
            options.max_items_per_batch,
            options.max_bytes_per_batch,
            options.min_partitions,
            reserving,
        )
        return BatchPlan(1, self._batch, str(options.queue), shares)

    def _parsed(self, text: str) -> BatchPlan:
        choice = self._options.queue
        try:
            plan = from_offset(json.loads(text), choice.only)
        except (ValueError, KeyError, TypeError) as error:
            raise self._not_allowed(error) from None
        if plan.queue is not None and not choice.means(plan.queue):
            raise ConfigError(
                f"option 'queue' of reading kestrel: {str(choice)!r} is not allowed: "
                f"batch {self._batch!r} is of queue {plan.queue!r}"
            )
        return plan

    def _not_allowed(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"option 'batch' of reading kestrel: {self._batch!r} is not allowed: it must be "
            f"the name of a directory in the staging location that a read made ({error})"
        )


def _partitions(
    options: KestrelReadOptions, plan: BatchPlan, *, waits: bool
) -> list[InputPartition]:
    return [
        KestrelPartition(options, plan, place, waits=waits) for place in range(len(plan.shares))
    ]


def _stored_partitions(batches: StoredBatches, plan: BatchPlan) -> list[InputPartition]:
    return [StoredPartition(plan.epoch, parts) for parts in batches.to_read(plan)]


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column of a part; it has none if its server did not tell."""
    if name in batch.schema.names:
        return batch.column(name)
    return pa.nulls(batch.num_rows, kind)
