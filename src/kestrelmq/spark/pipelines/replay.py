"""`replay`: write the current contents of every queue to a table."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kestrelmq.spark.reading import (
    DEFAULT_FORMAT,
    WriteMode,
    place_of,
    read_table,
    replayed_queues,
    write_table,
)
from kestrelmq.spark.storage.locations import GivenPath, StrPath
from kestrelmq.spark.storage.spool import check_apart


@dataclass(frozen=True, slots=True)
class QueueContents:
    """What was written of one queue.

    Attributes:
        queue: the queue.
        items: all its items.
        open_reads: how many of them were in open reads.
        bytes: bytes of data.
        delayed: how many of them are delayed.
    """

    queue: str
    items: int
    open_reads: int
    bytes: int
    delayed: int = 0


def replay(
    spark: SparkSession,
    path: GivenPath,
    output: StrPath,
    *,
    mode: WriteMode = "error",
    table_format: str = DEFAULT_FORMAT,
    storage: Mapping[str, str] | None = None,
) -> list[QueueContents]:
    """Write what is in the queues of `path` to a table, partitioned by queue.

    Columns are those of `kestrel.queue`; `position` orders the items of a queue.

    Returns:
        A summary for each queue that has items, sorted by name.

    Raises:
        ConfigError: `output` is not apart from the journals.
    """
    path = place_of(spark, path, storage)
    check_apart(path, output)
    contents = replayed_queues(spark, path)
    write_table(contents, output, mode, "queue", table_format=table_format)
    written = read_table(spark, output, table_format, contents.schema)
    rows = written.groupBy("queue").agg(
        f.count("*").alias("items"),
        f.count("xid").alias("open_reads"),
        f.sum("size").alias("bytes"),
        f.count("due").alias("delayed"),
    )
    return [QueueContents(**row.asDict()) for row in rows.orderBy("queue").collect()]
