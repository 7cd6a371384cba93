"""`history`: every item that is still in the journals, with its fate.

    removed     taken by a get without a transaction, dropped or flushed
    confirmed   taken by a read that was confirmed
    expired     gone, and its expiry had passed when it left the queue
    open        held by an open read at the end of the journal
    live        in the queue
    delayed     waits until it is due

A delayed item counts once: as delayed until it joins its queue, and then in the queue. One that was
dropped before it was due does not count.

`aborts` counts how often a read of the item was given back. A remove has no time in the journal:
`gone_after` and `gone_before` are the add times of the nearest adds with a time before and
after it, in whichever files; null if there is none. An item counts as expired if even the time
before it left the queue is past its expiry: before the remove, or before the read that was
confirmed was opened, because a server hands out no expired item. How a journal is divided into
files makes no difference.

Packing drops history: items that were gone before a journal was packed are not in it any more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from kestrelmq.format.records import item_add_time, item_data, item_expiry
from kestrelmq.journal.life import CONFIRM, GIVE_BACK, READ
from kestrelmq.spark.reading import map_on, place_of, rows_on, summarise_on
from kestrelmq.spark.replay import item_history
from kestrelmq.spark.replay.noted_replay import delayed_items
from kestrelmq.spark.replay.read_plans import ReplayedQueue, replay_in_parallel
from kestrelmq.spark.sources.journal_options import DEFAULT_BATCH_ROWS
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.locations import GivenPath
from kestrelmq.spark.storage.spool import SpoolFile, by_queue, list_files

T = TypeVar("T")

_KEY = ["spool", "queue", "ordinal"]
_TIMES = ("add_time", "expiry", "gone_after", "gone_before", "due")
_DELAYED_SCHEMA = pa.schema(
    [
        *item_history.ITEM_SCHEMA,
        ("fate", pa.string()),
        ("aborts", pa.int32()),
        ("gone_after", pa.int64()),
        ("gone_before", pa.int64()),
        ("due", pa.int64()),
    ]
)


def history(
    spark: SparkSession,
    path: GivenPath,
    *,
    with_data: bool = False,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return every item that the journals still have an add of.

    Columns: `spool, queue, ordinal, file, position, add_time, expiry, size, data, fate, aborts,
    gone_after, gone_before, due`; `ordinal` counts a queue's adds from 0, and its delayed items
    behind those, by the times at which they are due; `position` is the byte where the record
    begins. Only delayed items have a `due`, which is also their `add_time`. Times are null if Spark
    cannot hold them, and an expiry is null for never.

    `path` means whole queues. Without `with_data`, no data is read, and `data` is null.
    """
    items = history_in_ms(spark, path, with_data=with_data, storage=storage)
    named = {name: timestamp(f.col(name)) for name in _TIMES}
    return items.withColumn("expiry", f.nullif("expiry", f.lit(0))).withColumns(named)


def timestamp(time: Column) -> Column:
    """Return a time (ms) as Spark has it; null for one that it cannot hold."""
    held = time.between(-columns.LONGEST, columns.LONGEST)
    return f.when(held, f.timestamp_millis(time))


def history_in_ms(
    spark: SparkSession,
    path: GivenPath,
    *,
    with_data: bool = False,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return what `history` does, with times in ms as journals have them; expiry 0 is never."""
    queues = list(by_queue(list_files(place_of(spark, path, storage))))
    replayed = replay_in_parallel(queues, summarise_on(spark))
    times = iter(
        map_on(spark, item_history.add_times, [f for queue in replayed for f in queue.files])
    )
    trace_tasks = [
        task
        for queue in replayed
        for task in item_history.trace_tasks(
            queue.files, queue.starts, [next(times) for _ in queue.files]
        )
    ]

    read = partial(item_history.items, with_data=with_data, rows=DEFAULT_BATCH_ROWS)
    added = _traced(spark, trace_tasks, read, item_history.ITEM_SCHEMA)
    item_events = _traced(
        spark, trace_tasks, item_history.item_events, item_history.EVENT_SCHEMA
    ).union(_finished(spark, replayed))
    items = added.join(_by_item(item_events), _KEY, "left").select(
        *(f.col(name) for name in item_history.ITEM_SCHEMA.names),
        _fate().alias("fate"),
        f.coalesce("aborts", f.lit(0)).cast("int").alias("aborts"),
        "gone_after",
        "gone_before",
        f.lit(None).cast("long").alias("due"),
    )
    tasks = [(one.files, one.end.adds, with_data) for one in replayed if one.end.delays]
    if not tasks:
        return items
    return items.union(_traced(spark, tasks, _delayed, _DELAYED_SCHEMA))


def _delayed(task: tuple[Sequence[SpoolFile], int, bool]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the delayed items of a queue.

    `task` is its files, how many items in line it has had, and whether the rows have the data.
    """
    files, adds, with_data = task
    found = delayed_items(files)
    for place, (record, (file, at)) in enumerate(zip(found.records, found.places, strict=True)):
        due, data = item_add_time(record), item_data(record)
        where = (file.spool, file.queue, adds + place, file.name, at)
        item = (due, item_expiry(record), len(data), data if with_data else None)
        row = (*where, *item, "delayed", 0, None, None, due)
        yield pa.RecordBatch.from_arrays([[one] for one in row], schema=_DELAYED_SCHEMA)


def _traced(
    spark: SparkSession,
    tasks: Sequence[T],
    read: Callable[[T], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return the rows that `read` makes of each task."""

    def work(_place: int, task: T) -> Iterator[pa.RecordBatch]:
        return columns.coalesce(read(task), DEFAULT_BATCH_ROWS)

    return rows_on(spark, work, tasks, from_arrow_schema(schema))


def _fate() -> Column:
    was_read = f.col("gone") == CONFIRM
    left_after = f.when(was_read, f.col("opened_after")).otherwise(f.col("gone_after"))
    expired = (f.col("expiry") != 0) & (left_after >= f.col("expiry"))
    return (
        f.when(f.col("gone").isNull(), f.when(f.col("is_open"), "open").otherwise("live"))
        .when(expired, "expired")
        .when(was_read, "confirmed")
        .otherwise("removed")
    )


def _by_item(item_events: DataFrame) -> DataFrame:
    fate = f.col("fate")
    is_gone = fate.isin(*item_history.TERMINAL)
    ends_read = fate.isin(GIVE_BACK, CONFIRM)
    return item_events.groupBy(*_KEY).agg(
        f.count_if(fate == GIVE_BACK).alias("aborts"),
        (f.count_if(fate == READ) > f.count_if(ends_read)).alias("is_open"),
        f.max(f.when(fate == READ, f.col("not_before"))).alias("opened_after"),
        f.max(f.when(is_gone, f.col("fate"))).alias("gone"),
        f.max(f.when(is_gone, f.col("not_before"))).alias("gone_after"),
        f.max(f.when(is_gone, f.col("not_after"))).alias("gone_before"),
    )


def _finished(spark: SparkSession, replayed: Sequence[ReplayedQueue]) -> DataFrame:
    """Return the events that are missing in journals that end within them; when is not known."""
    rows = [
        (queue.files[0].spool, queue.files[0].queue, item, CONFIRM, None, None)
        for queue in replayed
        for item in queue.finished
    ]
    return spark.createDataFrame(rows, from_arrow_schema(item_history.EVENT_SCHEMA))
