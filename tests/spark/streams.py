"""Streams of the tests: the queue `work` of live servers to a table."""

import os
import signal
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kestrelmq.spark.session import start_query
from kestrelmq.spark.sources.live import KestrelSource
from tests.support.patience import PATIENCE

QUEUE: Final = "work"


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return items that differ."""
    return [b"%d" % number for number in range(start, start + count)]


def stream(
    spark: SparkSession,
    cluster: str,
    *,
    form: str = "kestrel",
    queue: str = QUEUE,
    **options: str,
) -> DataFrame:
    """Return the queue as a stream."""
    reader = spark.readStream.format(form).options(servers=cluster, queue=queue, wait="200ms")
    return reader.options(**options).load()


def drain(rows: DataFrame, root: Path) -> list[int]:
    """Take what is there now to the table; return the rows of each batch that has any."""
    writer = rows.writeStream.format("parquet").option("path", str(root / "table"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    query = start_query(writer.trigger(availableNow=True))
    assert query.awaitTermination(PATIENCE)
    counts = [progress["numInputRows"] for progress in query.recentProgress]
    return [count for count in counts if count]


def items_in(spark: SparkSession, root: Path) -> list[bytes]:
    """Return the items of the table, in the order in which they were read."""
    table = root / "table"
    if not (table / "_spark_metadata" / "0").exists():
        return []
    rows = spark.read.parquet(str(table)).orderBy("position").select("data").collect()
    return [bytes(row[0]) for row in rows]


def register_killed(spark: SparkSession, step: str, marker: Path) -> None:
    """Register a source whose first worker to come to a step is killed there: `kestrel.killed`."""

    def reached(point: str) -> None:
        if point == step and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class KilledSource(KestrelSource):
        """The source, told where to die."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return "kestrel.killed"

    KilledSource.reached = staticmethod(reached)
    spark.dataSource.register(KilledSource)
