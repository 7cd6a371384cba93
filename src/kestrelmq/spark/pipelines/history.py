"""`history`: every item that is still in the journals, with its fate.

    removed     taken by a get without a transaction, dropped or flushed
    confirmed   taken by a read that was confirmed
    expired     gone, and its expiry had passed when it left the queue
    open        held by an open read at the end of the journal
    live        in the queue
    delayed     waits until it is due

Delayed items have a journal of their own. What has left that has either joined its queue, where it
has one of the other fates, or was dropped before it was due, and is in no journal any more. So an
item counts once: as delayed until its queue has it, then in the queue.

`aborts` counts how often a read of the item was given back. A remove has no time in the journal:
`gone_after` and `gone_before` (ms) are the add times of the nearest adds with a time before and
after it, in whichever files; null if there is none. An item counts as expired if even the time
before it left the queue is past its expiry: before the remove, or before the read that was
confirmed was opened, because a server hands out no expired item. How a journal is divided into
files makes no difference.

Packing drops history: items that were gone before a journal was packed are not in it any more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from kestrelmq.spark.reading import map_on, place_of, rows_on, summarise_on
from kestrelmq.spark.replay import item_history
from kestrelmq.spark.replay.delayed_items import DelayedJournal, joined_ordinals, list_with_delayed
from kestrelmq.spark.replay.read_plans import ReplayedQueue, replay_in_parallel
from kestrelmq.spark.replay.segments import ReplayState
from kestrelmq.spark.replay.summarising import Fate
from kestrelmq.spark.sources.journal_options import DEFAULT_BATCH_ROWS
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.spool import by_queue

_KEY = ["spool", "queue", "ordinal"]


def history(
    spark: SparkSession,
    path: JournalPath,
    *,
    with_data: bool = False,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return every item that the journals still have an add of.

    Columns: `spool, queue, ordinal, file, position, add_time, expiry, size, data, fate, aborts,
    gone_after, gone_before, due`; `ordinal` counts a queue's adds from 0, and its delayed items
    behind those, by the times at which they are due; `position` is the byte where the record
    begins. Only delayed items have a `due`, which is also their `add_time`.

    Args:
        spark: the session.
        path: a queue path, or a glob of queue paths; whole queues.
        with_data: read the items' data; otherwise `data` is null.
        storage: options of the store that the journals are in; see "Paths" in `docs/pipeline.md`.
    """
    files, companions = list_with_delayed(place_of(spark, path, storage))
    queues = [*by_queue(files), *(one.files for one in companions)]
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
    joined = added.join(_by_item(item_events), _KEY, "left").join(
        _open_items(spark, replayed), _KEY, "left"
    )
    items = joined.select(
        *(f.col(name) for name in item_history.ITEM_SCHEMA.names),
        _fate().alias("fate"),
        f.coalesce("aborts", f.lit(0)).cast("int").alias("aborts"),
        "gone_after",
        "gone_before",
        f.lit(None).cast("long").alias("due"),
    )
    return _with_delayed(spark, items, replayed, companions) if companions else items


def _with_delayed(
    spark: SparkSession,
    items: DataFrame,
    replayed: Sequence[ReplayedQueue],
    companions: Sequence[DelayedJournal],
) -> DataFrame:
    """Return the items, with those of the journals `companions` as delayed items of the queues."""
    ends = {(one.files[0].spool, one.files[0].queue): one.end for one in replayed}
    tasks = [(one, ends[one.spool, one.files[0].queue]) for one in companions]
    have_joined = map_on(spark, lambda task: joined_ordinals(*task), tasks)
    journals = spark.createDataFrame(
        [
            (one.spool, one.files[0].queue, one.queue, _adds(ends.get((one.spool, one.queue))))
            for one in companions
        ],
        "spool string, queue string, master string, adds bigint",
    )
    joined = spark.createDataFrame(
        [
            (one.spool, one.files[0].queue, item)
            for one, found in zip(companions, have_joined, strict=True)
            for item in found
        ],
        "spool string, queue string, ordinal bigint",
    )
    by_due = Window.partitionBy("spool", "queue").orderBy("add_time", "ordinal")
    waiting = (
        items.where(f.col("fate").isin("live", "open"))
        .join(joined, _KEY, "left_anti")
        .join(f.broadcast(journals), ["spool", "queue"])
        .withColumns(
            {
                "ordinal": f.col("adds") + f.row_number().over(by_due) - 1,
                "due": f.col("add_time"),
                "fate": f.lit("delayed"),
            }
        )
        .drop("queue")
        .withColumnRenamed("master", "queue")
    )
    own = items.join(f.broadcast(journals), ["spool", "queue"], "left_anti")
    return own.unionByName(waiting.select(*own.columns))


def _traced(
    spark: SparkSession,
    tasks: Sequence[item_history.TraceTask],
    read: Callable[[item_history.TraceTask], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return the rows that `read` makes of each file."""

    def work(_place: int, task: item_history.TraceTask) -> Iterator[pa.RecordBatch]:
        return columns.coalesce(read(task), DEFAULT_BATCH_ROWS)

    return rows_on(spark, work, tasks, from_arrow_schema(schema))


def _adds(end: ReplayState | None) -> int:
    """Return how many items a queue has had; there may be nothing but its delayed items."""
    return 0 if end is None else end.adds


def _fate() -> Column:
    was_read = f.col("gone") == int(Fate.CONFIRMED)
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
    return item_events.groupBy(*_KEY).agg(
        f.count_if(fate == int(Fate.GIVEN_BACK)).alias("aborts"),
        f.max(f.when(fate == int(Fate.OPENED), f.col("not_before"))).alias("opened_after"),
        f.max(f.when(is_gone, f.col("fate"))).alias("gone"),
        f.max(f.when(is_gone, f.col("not_before"))).alias("gone_after"),
        f.max(f.when(is_gone, f.col("not_after"))).alias("gone_before"),
    )


def _finished(spark: SparkSession, replayed: Sequence[ReplayedQueue]) -> DataFrame:
    """Return the events that are missing in journals that end within them; when is not known."""
    rows = [
        (queue.files[0].spool, queue.files[0].queue, item, int(Fate.CONFIRMED), None, None)
        for queue in replayed
        for item in queue.finished
    ]
    return spark.createDataFrame(rows, from_arrow_schema(item_history.EVENT_SCHEMA))


def _open_items(spark: SparkSession, replayed: Sequence[ReplayedQueue]) -> DataFrame:
    rows = [
        (queue.files[0].spool, queue.files[0].queue, item, True)
        for queue in replayed
        for item in queue.end.open.values()
    ]
    schema = "spool string, queue string, ordinal bigint, is_open boolean"
    return spark.createDataFrame(rows, schema)
