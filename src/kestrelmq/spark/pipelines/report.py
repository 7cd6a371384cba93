"""`report`: write what went through the queues, by hour, as tables and as an HTML page.

Under `output`: the tables `hours` and `queues`, and `report.html`, which needs no other file.

Adds have a time in the journal, but removes have none. So the time at which an item left is known
only as two bounds, the add times of the adds around the remove. An item counts as gone in the hour
of the lower bound, or, without one, of the upper bound or else of its own add. Sojourn times are
given as two bounds.

A delayed item comes into its queue when it is due, and is in no hour before. It is among the items
of the queue, as delayed until then; so it counts once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from kestrelmq.spark.pipelines.history import history_in_ms, timestamp
from kestrelmq.spark.pipelines.report_page import (
    HOUR_MS,
    LargestItem,
    QueueHour,
    QueueReport,
    page,
)
from kestrelmq.spark.pipelines.restore import Time, in_ms, in_time_range
from kestrelmq.spark.reading import DEFAULT_FORMAT, WriteMode, place_of, read_table, write_table
from kestrelmq.spark.storage.locations import GivenPath, Location, StrPath
from kestrelmq.spark.storage.spool import check_apart

_KEYS = ["spool", "queue"]
_PERCENTILES = (50, 95, 99)
_LARGEST = 10
_PAGE = "report.html"
_FIRST_HOUR = -(2**63 // HOUR_MS)


@dataclass(frozen=True, slots=True)
class ReportResult:
    """Where a report's page is, and its totals by queue."""

    page: Path | Location
    queues: tuple[QueueReport, ...]


def report(
    spark: SparkSession,
    path: GivenPath,
    output: StrPath,
    *,
    since: Time | None = None,
    until: Time | None = None,
    mode: WriteMode = "error",
    table_format: str = DEFAULT_FORMAT,
    storage: Mapping[str, str] | None = None,
) -> ReportResult:
    """Write a report on the queues of `path`, which means whole queues.

    Spark writes the tables to the directory `output`, and this process the page, by `storage`.
    Between `since` and `until` are the hours of which a part is, and the totals and the largest
    items are those of items that were added then. Times are as for `restore`.

    Raises:
        ConfigError: `output` is not apart from the journals.
        ValueError: `since` or `until` is not a time.
    """
    path = place_of(spark, path, storage)
    target = place_of(spark, output, storage, "output")
    check_apart(path, target)
    hours_table, queues_table = f"{output}/hours", f"{output}/queues"
    items = history_in_ms(spark, path).drop("data").persist()
    try:
        chosen = in_time_range(items, since, until)
        hours = _in_range(by_hour(items), since, until)
        write_table(hours, hours_table, mode, table_format=table_format)
        write_table(by_queue(chosen), queues_table, mode, table_format=table_format)
        queues = tuple(
            QueueReport(**row.asDict())
            for row in read_table(spark, queues_table, table_format).orderBy(*_KEYS).collect()
        )
        # The page has one name for a queue.
        several = len({one.spool for one in queues}) > 1
        name = (f.concat_ws("/", *_KEYS) if several else f.col("queue")).alias("queue")
        largest = [
            LargestItem(**row.asDict())
            for row in chosen.orderBy(f.desc("size"), "queue", "spool", "ordinal")
            .select(name, "file", "position", "size", "fate")
            .limit(_LARGEST)
            .collect()
        ]
    finally:
        items.unpersist()
    shown = [
        QueueHour(**row.asDict())
        for row in read_table(spark, hours_table, table_format)
        .withColumn("hour", f.coalesce(f.unix_millis("hour"), f.lit(0)))
        .select(name, *(field.name for field in fields(QueueHour)[1:]))
        .orderBy("queue", "hour")
        .collect()
    ]
    named = [replace(one, queue=f"{one.spool}/{one.queue}") if several else one for one in queues]
    written = (target if isinstance(target, Location) else Path(target)) / _PAGE
    written.write_bytes(page(named, shown, largest).encode())
    return ReportResult(written, queues)


def _in_range(hours: DataFrame, since: Time | None, until: Time | None) -> DataFrame:
    begin = f.unix_millis("hour")
    if since is not None:
        hours = hours.where(begin > in_ms("since", since) - HOUR_MS)
    return hours if until is None else hours.where(begin < in_ms("until", until))


def by_hour(items: DataFrame) -> DataFrame:
    """Return a row for each queue of a spool and hour in which an item was added or left.

    Columns:
        spool, queue, hour: the queue, and when the hour begins; null if Spark cannot hold the time.
        items_in, bytes_in, largest: of items added in the hour.
        aborted: how often these items were given back, at any time.
        items_out, bytes_out, expired: of items that left in the hour.
        at_least_p50, at_most_p50, ...: bounds of their sojourn times (ms).
        depth, depth_bytes: of items in the queue or in open reads at the end of the hour.
    """
    items = items.where("fate != 'delayed'")
    came = items.select(*_KEYS, _hour(f.col("add_time")).alias("hour"), "size", "aborts")
    added = came.groupBy(*_KEYS, "hour").agg(
        f.count("*").alias("items_in"),
        f.sum("size").cast("long").alias("bytes_in"),
        f.max("size").alias("largest"),
        f.sum("aborts").alias("aborted"),
    )
    left = items.where(_is_gone()).withColumn("hour", _hour(_gone_at()))
    gone = left.groupBy(*_KEYS, "hour").agg(
        f.count("*").alias("items_out"),
        f.sum("size").cast("long").alias("bytes_out"),
        f.count_if(f.col("fate") == "expired").alias("expired"),
    )
    gone = _with_quantiles(gone, left, [*_KEYS, "hour"])
    hours = added.join(gone, [*_KEYS, "hour"], "full").fillna(0, subset=_COUNTS)
    so_far = Window.partitionBy(*_KEYS).orderBy("hour")
    return hours.withColumns(
        {
            "depth": f.sum(f.col("items_in") - f.col("items_out")).over(so_far),
            "depth_bytes": f.sum(f.col("bytes_in") - f.col("bytes_out")).over(so_far),
        }
    ).withColumn("hour", timestamp(f.col("hour")))


def by_queue(items: DataFrame) -> DataFrame:
    """Return a row of totals for each queue; sojourn times are bounds, in ms."""
    totals = items.groupBy(*_KEYS).agg(
        f.count("*").alias("items"),
        f.sum("size").alias("bytes"),
        *(f.count_if(f.col("fate") == fate).alias(fate) for fate in _FATES),
        f.sum("aborts").alias("aborts"),
        f.max("size").alias("largest"),
    )
    return _with_quantiles(totals, items.where(_is_gone()), _KEYS)


_COUNTS = ["items_in", "bytes_in", "aborted", "items_out", "bytes_out", "expired"]
_FATES = ("removed", "confirmed", "expired", "open", "live", "delayed")


def _is_gone() -> Column:
    return ~f.col("fate").isin("live", "open", "delayed")


def _hour(time: Column) -> Column:
    # The first hour of all begins before what fits into 64 bits.
    return (f.greatest(f.floor(time / HOUR_MS), f.lit(_FIRST_HOUR)) * HOUR_MS).cast("long")


def _gone_at() -> Column:
    known = f.coalesce(f.col("gone_after"), f.col("gone_before"), f.col("add_time"))
    return f.greatest(known, f.col("add_time"))


def _stays() -> tuple[Column, Column]:
    """Return bounds of the time (ms) that an item was in its queue, null if unknown."""
    timed = f.col("add_time") > 0

    def since_add(time: str) -> Column:
        # The difference itself may not fit into 64 bits: a journal may have any time.
        return f.when(timed, f.greatest(time, "add_time") - f.col("add_time"))

    known = f.col("gone_after").isNotNull()
    at_most = f.when(f.col("gone_before").isNotNull(), since_add("gone_before"))
    return f.when(known, since_add("gone_after")), at_most


def _with_quantiles(totals: DataFrame, left: DataFrame, keys: list[str]) -> DataFrame:
    """Add the percentiles of both bounds of the stays of items that left to the rows of `totals`.

    They are exact, so they do not depend on how Spark divides the items among tasks. Spark sorts
    the values, so they need not all be in memory.
    """
    at_least, at_most = _stays()
    bounds = f.create_map(f.lit("at_least"), at_least, f.lit("at_most"), at_most)
    stays = left.select(*keys, f.explode(bounds).alias("bound", "value"))
    values = stays.where("value IS NOT NULL").groupBy(*keys, "bound", "value").count()
    in_group = Window.partitionBy(*keys, "bound")
    ranked = values.withColumns(
        {
            "reached": f.sum("count").over(in_group.orderBy("value")),
            "total": f.sum("count").over(in_group),
        }
    )
    percentiles = ranked.groupBy(*keys).agg(
        *(
            f.min(
                f.expr(f"if(bound = '{bound}' and reached * 100 >= total * {n}, value, null)")
            ).alias(f"{bound}_p{n}")
            for bound in ("at_least", "at_most")
            for n in _PERCENTILES
        )
    )
    return totals.join(percentiles, keys, "left")
