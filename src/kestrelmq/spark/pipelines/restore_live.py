"""`restore` to live servers: items of a table added to queues again, optionally of a time range.

At least once, as every write to live queues: when a restore fails it is not known which items were
added before, and when it is run again those are added again.
"""

from datetime import datetime

from pyspark.sql import SparkSession

from kestrelmq.spark.live_options import DEFAULT_PATIENCE, ServersOptions
from kestrelmq.spark.pipelines.restore import in_time_range, read_items, with_data
from kestrelmq.spark.stream import LIVE_FORMAT

_ORDER = ("ordinal", "position")


def restore_live(
    spark: SparkSession,
    source: str,
    cluster: ServersOptions,
    *,
    queue: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    patience: float = DEFAULT_PATIENCE,
) -> int:
    """Add the items of a table to queues of live servers.

    On one server each queue gets its items in their old order, behind what it has; over several,
    each server does, of the items that it gets.

    Args:
        spark: the session.
        source: Parquet as `replay`, `history` and `archive` write it.
        cluster: who the servers are.
        queue: add everything to this queue; None adds each item to the queue it is from.
        since: only items added (of an archive: read) at this time or later; without a zone: UTC.
        until: only items from before this time.
        patience: how long, in seconds, to wait for room in a full queue.

    Returns:
        The number of items restored.

    Raises:
        ValueError: the table has items, but no data.
    """
    rows = in_time_range(with_data(read_items(spark, source), source), since, until)
    order = [name for name in _ORDER if name in rows.columns][:1]
    ordered = rows.repartition("queue").sortWithinPartitions("queue", *order)
    kept = [name for name in ("queue", "data", "expiry") if name in rows.columns]
    written = ordered.select(*kept)
    writer = written.drop("queue") if queue is not None else written
    options = cluster.as_options() | ({"queue": queue} if queue is not None else {})
    (
        writer.write.format(LIVE_FORMAT)
        .options(**options)
        .option("patience", str(patience))
        .mode("append")
        .save()
    )
    return rows.count()
