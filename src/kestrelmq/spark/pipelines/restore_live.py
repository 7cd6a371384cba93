"""`restore` to running servers: add items of a table to queues again, optionally of a time range.

Like every write to servers, it adds items at least once: if a restore fails, some items may have
been added, and running it again adds them a second time.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from kestrelmq.spark.live.options import DEFAULT_PATIENCE, ClusterOptions
from kestrelmq.spark.live.source import KESTREL_FORMAT
from kestrelmq.spark.pipelines.restore import Time, in_time_range, read_items, with_data
from kestrelmq.spark.storage import Location, located

_ORDER = ("ordinal", "position")


def restore_live(
    spark: SparkSession,
    source: str | Location,
    cluster: ClusterOptions,
    *,
    queue: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    patience: float = DEFAULT_PATIENCE,
    storage: Mapping[str, str] | None = None,
) -> int:
    """Add the items of a table to queues of running servers.

    Each item goes behind those that its queue has; a delayed one waits until it is due. With one
    server, a queue gets its items in their original order; with several, each server gets its share
    of the items in that order.

    Args:
        spark: the session.
        source: a Parquet table, or its URI in a store, as `replay`, `history` and `archive` write
            it.
        cluster: the servers.
        queue: add all items to this queue; None adds each item to the queue that it is from.
        since: restore only items added at this time or later, as for `restore`.
        until: restore only items added before this time.
        patience: seconds to wait for room in a full queue.
        storage: options of the store that the table is in.

    Returns:
        The number of items restored.

    Raises:
        ValueError: the table has items, but no data; or a time is none.
    """
    table = located(source, storage, "source")
    rows = in_time_range(with_data(read_items(spark, table), str(table)), since, until)
    order = [name for name in _ORDER if name in rows.columns][:1]
    ordered = rows.repartition("queue").sortWithinPartitions("queue", *order)
    kept = [name for name in ("queue", "data", "expiry", "due") if name in rows.columns]
    written = ordered.select(*kept)
    writer = written.drop("queue") if queue is not None else written
    options = cluster.as_options() | ({"queue": queue} if queue is not None else {})
    (
        writer.write.format(KESTREL_FORMAT)
        .options(**options)
        .option("patience", str(patience))
        .mode("append")
        .save()
    )
    return rows.count()
