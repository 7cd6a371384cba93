"""`restore`: write items from a table to journals that a server loads at start, or to servers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.reading import DEFAULT_FORMAT, counted, place_of, read_table, write_journals
from kestrelmq.spark.sinks.journal import check_not_served
from kestrelmq.spark.sinks.live_options import DEFAULT_PATIENCE
from kestrelmq.spark.sources.live import KESTREL_FORMAT
from kestrelmq.spark.sources.queue import QUEUE_SCHEMA
from kestrelmq.spark.storage.locations import GivenPath, StrPath
from kestrelmq.units import parse_time

Time = datetime | int | str
"""A time, in milliseconds since the epoch, or either as text; without a zone it is UTC."""

_KEPT = ("queue", "data", "add_time", "expiry", "due")
_ORDER = ("ordinal", "position")


def restore(
    spark: SparkSession,
    source: StrPath,
    path: GivenPath,
    *,
    since: Time | None = None,
    until: Time | None = None,
    mode: Literal["append", "overwrite"] = "append",
    table_format: str = DEFAULT_FORMAT,
    storage: Mapping[str, str] | None = None,
) -> int:
    """Write items from a table to journals, in their original order.

    Args:
        spark: the session.
        source: a table, as `replay` and `history` write it: `queue`, `data`, optionally `add_time`,
            `expiry` and `due` (timestamps, or ms), and optionally the order of a queue's items:
            `position` (replay) or `ordinal` (history).
        path: the queue path, or its URI in a store; no server may run on it.
        since: restore only items added at this time or later: a datetime, text such as
            "2026-01-31T10:00" or milliseconds since the epoch; without a zone it is UTC.
        until: restore only items added before this time.
        mode: `append` or `overwrite`, as for `write_journals`.
        table_format: the table's format, such as `parquet`, `delta` or `iceberg`.
        storage: options of the store that the queue path is in.

    Returns:
        The number of items restored.

    Raises:
        ValueError: the table has items, but no data; or a time cannot be read.
        QueuePathLocked: a server uses the queue path.
    """
    path = place_of(spark, path, storage)
    check_not_served(path)
    rows, order = _chosen(spark, source, table_format, since, until)
    kept = [f.col(name) for name in _KEPT if name in rows.columns]
    chosen = rows.select(*kept, *(f.col(name).alias("sequence") for name in order))
    return write_journals(chosen, path, mode)


def restore_live(
    spark: SparkSession,
    source: StrPath,
    cluster: ClusterOptions,
    *,
    queue: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    patience: float = DEFAULT_PATIENCE,
    table_format: str = DEFAULT_FORMAT,
) -> int:
    """Add the items of a table to queues of running servers.

    Each item goes behind those that its queue has; a delayed one waits until it is due. With one
    server, a queue gets its items in their original order; with several, each server gets its share
    of the items in that order.

    A task that Spark runs again stores nothing twice. But each call is a write of its own: if it
    fails, some items may have been added, and another call adds them a second time.

    Args:
        spark: the session.
        source: a table, as `replay`, `history` and `archive` write it.
        cluster: the servers.
        queue: add all items to this queue; None adds each item to the queue that it is from.
        since: restore only items added at this time or later, as for `restore`.
        until: restore only items added before this time.
        patience: seconds to wait for room in a full queue.
        table_format: the table's format, such as `parquet`, `delta` or `iceberg`.

    Returns:
        The number of items restored.

    Raises:
        ValueError: the table has items, but no data; or a time cannot be read.
    """
    rows, order = _chosen(spark, source, table_format, since, until)
    kept = [name for name in ("queue", "data", "expiry", "due") if name in rows.columns]
    # The order of what a task writes must be the same when it is run again.
    ordered = rows.repartition("queue").sortWithinPartitions("queue", *order, *kept[1:])
    written = ordered.select(*kept)
    writer, restored = counted(written.drop("queue") if queue is not None else written)
    options = cluster.as_options() | ({"queue": queue} if queue is not None else {})
    (
        writer.write.format(KESTREL_FORMAT)
        .options(**options)
        .option("patience", str(patience))
        .mode("append")
        .save()
    )
    return restored()


def _chosen(
    spark: SparkSession, table: StrPath, table_format: str, since: Time | None, until: Time | None
) -> tuple[DataFrame, list[str]]:
    """Return the rows to restore, and the column that orders them, if there is one."""
    items = read_table(spark, table, table_format, QUEUE_SCHEMA)
    rows = in_time_range(_with_data(items, table), since, until)
    return rows, [name for name in _ORDER if name in rows.columns][:1]


def in_time_range(rows: DataFrame, since: Time | None, until: Time | None) -> DataFrame:
    """Return the rows whose time is at or after `since` and before `until`.

    The time of a row is its add time. `archive` has none of items of a server that does not tell
    it; then the time at which the item was read counts.

    Raises:
        ValueError: there is a range, but the rows have neither time; or `since` or `until` is not a
            time.
    """
    if since is None and until is None:
        return rows
    kinds = dict(rows.dtypes)
    times = [
        f.unix_millis(name) if kinds[name].startswith("timestamp") else f.col(name)
        for name in ("add_time", "read_time")
        if name in kinds
    ]
    if not times:
        raise ValueError("a time range needs a table with a column 'add_time' or 'read_time'")
    time = f.coalesce(*times)
    if since is not None:
        rows = rows.where(time >= in_ms("since", since))
    if until is not None:
        rows = rows.where(time < in_ms("until", until))
    return rows


def _with_data(rows: DataFrame, source: StrPath) -> DataFrame:
    """Return the rows that have data; `source` is the table's name, for the error message.

    Raises:
        ValueError: there are rows, but none has data: it is a history written without data.
    """
    found = rows.where(f.col("data").isNotNull())
    if found.isEmpty() and not rows.isEmpty():
        raise ValueError(f"{source} has items without their data: write the history with data")
    return found


def in_ms(name: str, time: datetime | int | str) -> int:
    """Return a time in milliseconds since the epoch; `name` is the argument, for the error."""
    try:
        return parse_time(time)
    except ValueError as error:
        raise ValueError(f"{name}: {time!r} is not a time: {error}") from None
