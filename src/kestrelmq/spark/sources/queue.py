"""`kestrel.queue`: what is in the queues now, as a server would load it from the journals.

Open reads are given back to the head, ascending by xid; `position` 0 is the head. A queue with a
small journal is replayed by the task that reads it. A queue with a large one is planned first: its
files are summarised in parallel, and then only those that hold live items are read again. No item
data passes through the driver.

Delayed items come after the items in line, by the times at which they are due. No reader gets them
yet: without them, which is an option, the table is what a server would hand out.

Spark plans a source in a separate process that cannot start jobs. There, a pool of processes on the
driver's machine summarises the files; the pipeline `replay` has a job do it.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.records import item_add_time, item_data, item_expiry
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.spark.replay.noted_replay import delayed_items, replay_noted
from kestrelmq.spark.replay.read_plans import (
    FileReadPlan,
    SummariseFiles,
    SummaryTask,
    live_items,
    replay_in_order,
    replay_in_parallel,
    summarise,
)
from kestrelmq.spark.replay.segments import SegmentSummary
from kestrelmq.spark.sources.journal_options import QueueReadOptions, queue_read_options
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.scanning import Chunk, FileView
from kestrelmq.spark.storage.spool import SpoolFile, by_queue, list_files
from kestrelmq.spark.tables import (
    SPOOL_COLUMN,
    ColumnMakers,
    TableSource,
    arrow_schema,
    divide_by_cost,
    rows,
    with_spool,
)

QUEUE_FORMAT: Final = "kestrel.queue"
QUEUE_SCHEMA: Final = (
    StructType()
    .add("queue", "string", nullable=False)
    .add("position", "long", nullable=False)
    .add("xid", "integer")
    .add("owner", "string")
    .add("tag", "string")
    .add("deliveries", "integer")
    .add("add_time", "timestamp")
    .add("expiry", "timestamp")
    .add("size", "integer", nullable=False)
    .add("data", "binary", nullable=False)
    .add("due", "timestamp")
)
_OF_READS: Final = frozenset({"owner", "tag", "deliveries"})
"""Columns that need a queue with open reads to be replayed with its notes."""
ReadOf = Callable[[int], OpenRead | None]


class QueuePartition(InputPartition):
    """What one task reads: whole queues to replay, the live items of a plan, or delayed items.

    `delayed` are the files of queues that were planned; queues to replay have theirs themselves.
    """

    def __init__(
        self,
        queues: Sequence[Sequence[SpoolFile]] = (),
        planned: Sequence[FileReadPlan] = (),
        delayed: Sequence[Sequence[SpoolFile]] = (),
    ) -> None:
        super().__init__(None)
        self.queues = tuple(tuple(files) for files in queues)
        self.planned = tuple(planned)
        self.delayed = tuple(tuple(files) for files in delayed)


class QueueSource(TableSource):
    """The data source `kestrel.queue`."""

    format_name = QUEUE_FORMAT
    table = QUEUE_SCHEMA
    on_demand = SPOOL_COLUMN

    def columns(self) -> StructType:
        """Return the columns; with several queue paths, the column `spool` is one of them."""
        options = queue_read_options(self.options)
        return self.picked(options.columns, lambda: with_spool(self.table, options.path))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        self.check_asked(schema)
        return QueueSourceReader(queue_read_options(self.options), schema)


class QueueSourceReader(DataSourceReader):
    """Reads what is in the queues."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self, run: SummariseFiles | None = None) -> list[InputPartition]:
        """Divide small queues, and the files with live items of large ones, into partitions.

        `run` summarises the files of large ones; by default, processes on this machine do.
        """
        run = run or summarise_in_processes
        options = self._options
        files = [file for file in list_files(options.path) if options.chooses(file.queue)]
        small, large = split_by_size(files, options.direct_bytes)
        replayed = []
        if options.mode == "failfast":
            replayed = replay_in_parallel(large, run)
        else:
            for files in large:
                try:
                    replayed += replay_in_parallel([files], run)
                except DamagedJournal:
                    small.append(files)  # the task that reads it tells so
        plans = [plan for queue in replayed for plan in queue.plans()]
        shared = divide_by_cost(small, _cost, options.partition_bytes)
        return [
            *(QueuePartition(queues) for queues in shared),
            *self._planned(plans),
            *self._delayed([queue.files for queue in replayed if queue.end.delays]),
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the live items of a partition."""
        if not isinstance(partition, QueuePartition):
            return iter(())
        return columns.coalesce(self._batches(partition), self._options.batch_rows)

    def _planned(self, plans: Sequence[FileReadPlan]) -> list[InputPartition]:
        """Divide planned files into partitions; small files share one."""
        shared = divide_by_cost(plans, lambda plan: plan.file.size, self._options.partition_bytes)
        return [QueuePartition(planned=share) for share in shared]

    def _delayed(self, queues: Sequence[Sequence[SpoolFile]]) -> list[InputPartition]:
        """Divide queues whose delayed items are to be read into partitions."""
        if not self._options.delayed:
            return []
        shared = divide_by_cost(queues, _cost, self._options.partition_bytes)
        return [QueuePartition(delayed=share) for share in shared]

    def _batches(self, partition: QueuePartition) -> Iterator[pa.RecordBatch]:
        for files in partition.queues:
            try:
                replayed = replay_in_order(files)
            except DamagedJournal as damage:
                yield from self._damaged(files[0].queue, files[0].spool, damage)
                continue
            for plan in replayed.plans():
                yield from self._read_file(plan)
            if self._options.delayed and replayed.end.delays:
                yield from self._read_delayed(files)
        for plan in partition.planned:
            yield from self._read_file(plan)
        for files in partition.delayed:
            yield from self._read_delayed(files)

    def _read_delayed(self, files: Sequence[SpoolFile]) -> Iterator[pa.RecordBatch]:
        found = delayed_items(files)
        for start in range(0, len(found.records), self._options.batch_rows):
            some = found.records[start : start + self._options.batch_rows]
            yield rows(self._schema, _delayed_makers(files[0], some, found.in_line + start))

    def _damaged(self, queue: str, spool: str, damage: DamagedJournal) -> Iterator[pa.RecordBatch]:
        """Raise an error, or yield a row with the position -1 that has it as data, or nothing."""
        if self._options.mode == "failfast":
            raise damage
        if self._options.mode == "permissive":
            told = str(damage).encode()
            values = {"queue": queue, "spool": spool, "position": -1}
            values |= {"size": len(told), "data": told}
            yield pa.RecordBatch.from_arrays(
                [pa.array([values.get(field.name.lower())], field.type) for field in self._schema],
                schema=self._schema,
            )

    def _read_file(self, plan: FileReadPlan) -> Iterator[pa.RecordBatch]:
        read_of = self._reads(plan)
        for view, items, ordinals in live_items(plan):
            done = 0
            for batch in columns.batches(items, self._options.batch_rows):
                here = ordinals[done : done + len(batch)]
                done += len(batch)
                yield rows(self._schema, _makers(view, plan, batch, here, read_of))

    def _reads(self, plan: FileReadPlan) -> ReadOf:
        asked = not _OF_READS.isdisjoint(name.lower() for name in self._schema.names)
        return replay_noted(plan.opened).open.get if asked and plan.opened else lambda _: None


def split_by_size(
    files: Sequence[SpoolFile], direct_bytes: int
) -> tuple[list[list[SpoolFile]], list[list[SpoolFile]]]:
    """Return the queues to replay directly, and those to plan: large ones of several files."""
    small: list[list[SpoolFile]] = []
    large: list[list[SpoolFile]] = []
    for queue in by_queue(files):
        size = sum(file.size for file in queue)
        (large if len(queue) > 1 and size > direct_bytes else small).append(queue)
    return small, large


def summarise_in_processes(tasks: Sequence[SummaryTask]) -> list[SegmentSummary]:
    """Summarise files in a pool of processes on this machine."""
    workers = min(os.cpu_count() or 1, len(tasks))
    if workers == 1:
        return [summarise(task) for task in tasks]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(summarise, tasks))


def _makers(
    view: FileView,
    plan: FileReadPlan,
    batch: Chunk,
    ordinals: NDArray[np.int64],
    read_of: ReadOf,
) -> ColumnMakers:
    """Return how to make each column of a batch; `read_of` tells the open read of an xid."""

    def of_reads(kind: pa.DataType, tell: Callable[[OpenRead], int | str | None]) -> pa.Array:
        xids = _open_xids(plan, ordinals)
        opened = (None if xid is None else read_of(xid) for xid in xids)
        return pa.array((None if read is None else tell(read) for read in opened), kind)

    return {
        "queue": lambda: columns.constant(plan.file.queue, len(batch)),
        "spool": lambda: columns.constant(plan.file.spool, len(batch)),
        "position": lambda: pa.array(_positions(plan, ordinals)),
        "xid": lambda: pa.array(_open_xids(plan, ordinals), pa.int32()),
        "owner": lambda: of_reads(pa.string(), _owner),
        "tag": lambda: of_reads(pa.string(), _tag),
        "deliveries": lambda: of_reads(pa.int32(), _deliveries),
        # An ADD has no add time: as in replay, it is 0, the earliest time.
        "add_time": lambda: columns.timestamps(columns.add_times(view, batch).fill_null(0)),
        "expiry": lambda: columns.timestamps(columns.expiries(view, batch), 0),
        "size": lambda: columns.sizes(batch),
        "data": lambda: columns.data(view, batch),
        "due": lambda: pa.nulls(len(batch), pa.timestamp("us", "UTC")),
    }


def _cost(files: Sequence[SpoolFile]) -> int:
    return sum(file.cost for file in files)


def _delayed_makers(file: SpoolFile, items: Sequence[bytes], first: int) -> ColumnMakers:
    """Return how to make each column of delayed items, the first of which has position `first`.

    `file` is one of their queue.
    """
    count = len(items)
    due = columns.timestamps(pa.array(map(item_add_time, items), pa.int64()))
    return {
        "queue": lambda: columns.constant(file.queue, count),
        "spool": lambda: columns.constant(file.spool, count),
        "position": lambda: pa.array(np.arange(first, first + count)),
        "xid": lambda: pa.nulls(count, pa.int32()),
        "owner": lambda: pa.nulls(count, pa.string()),
        "tag": lambda: pa.nulls(count, pa.string()),
        "deliveries": lambda: pa.nulls(count, pa.int32()),
        "add_time": lambda: due,
        "expiry": lambda: columns.timestamps(pa.array(map(item_expiry, items), pa.int64()), 0),
        "size": lambda: pa.array((len(item_data(item)) for item in items), pa.int32()),
        "data": lambda: pa.array(map(item_data, items), pa.binary()),
        "due": lambda: due,
    }


def _positions(plan: FileReadPlan, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
    positions = ordinals + plan.shift
    for place, item in _exceptions(plan, ordinals):
        positions[place] = plan.exceptions[item][0]
    return positions


def _open_xids(plan: FileReadPlan, ordinals: NDArray[np.int64]) -> list[int | None]:
    xids: list[int | None] = [None] * len(ordinals)
    for place, item in _exceptions(plan, ordinals):
        xids[place] = plan.exceptions[item][1]
    return xids


def _owner(read: OpenRead) -> str | None:
    return (read.reservation and read.reservation.terms.owner) or None


def _tag(read: OpenRead) -> str | None:
    return (read.reservation and read.reservation.terms.tag) or None


def _deliveries(read: OpenRead) -> int:
    return read.deliveries + read.is_counted


def _exceptions(plan: FileReadPlan, ordinals: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    if plan.exceptions:
        items = np.fromiter(plan.exceptions, dtype=np.int64)
        for place in np.flatnonzero(np.isin(ordinals, items)).tolist():
            yield place, int(ordinals[place])
