"""`archive`: write servers' queues to a partitioned Parquet table, once or continuously.

The queues are either drained or copied. To copy a queue, `archive` reads a fanout child of it,
which gets all items added to the queue from when the child is created; the queue's own readers are
not disturbed.

The table has the columns of `kestrel` and `date` (of the read time, UTC), and is partitioned by
`queue` and `date`. Spark's file sink writes each batch to it once. A crash may leave files in it
that belong to no batch: Spark ignores them, but other readers of Parquet do not.
"""

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, StructField, StructType

from kestrelmq.errors import ConfigError
from kestrelmq.journal.files import make_directory, rename_durably
from kestrelmq.names import master_of, queue_name_error
from kestrelmq.spark.kestrel_options import (
    DEFAULT_BYTES,
    DEFAULT_ITEMS,
    DEFAULT_LOADING_PATIENCE,
    ClusterOptions,
)
from kestrelmq.spark.kestrel_source import KESTREL_FORMAT, KESTREL_SCHEMA
from kestrelmq.spark.reading import read_partitioned
from kestrelmq.spark.server_probe import ServerProbe
from kestrelmq.spark.session import start_query
from kestrelmq.spark.spool import local_path

STAGING: Final = "_staging"
CHECKPOINT: Final = "_checkpoint"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What to archive, and where to.

    Attributes:
        cluster: the servers.
        queues: the queues, without duplicates.
        output: the table's directory, which the driver and every executor see. Its subdirectories
            `_staging` and `_checkpoint` hold staged items and the checkpoint, so that a query that
            is started again continues where it stopped.
        child: copy through the fanout child with this name; None drains the queues.
        max_items_per_batch: maximum number of items in a batch, for each queue.
        max_bytes_per_batch: approximate maximum of bytes in a batch, for each queue.
    """

    cluster: ClusterOptions
    queues: Sequence[str]
    output: str
    child: str | None = None
    max_items_per_batch: int = DEFAULT_ITEMS
    max_bytes_per_batch: int = DEFAULT_BYTES

    def sources(self) -> list[str]:
        """Return the queues to read: the given ones, or their children.

        They are sorted, because Spark identifies the sources of a query by their number only.

        Raises:
            ConfigError: no queue is given, one is given twice, a name is not allowed, or a child of
                a fanout child is requested.
        """
        if not self.queues:
            raise ConfigError("archive: no queue was given")
        for name in [*self.queues, *([self.child] if self.child is not None else [])]:
            error = queue_name_error(name)
            if error is not None:
                raise ConfigError(f"archive: {name!r} is not allowed: {error}")
        if len(set(self.queues)) < len(self.queues):
            raise ConfigError("archive: a queue was given twice")
        if self.child is None:
            return sorted(self.queues)
        for queue in self.queues:
            if master_of(queue) is not None:
                raise ConfigError(
                    f"archive: {queue!r} is a fanout child already: drain it, do not copy it"
                )
        return sorted(f"{queue}+{self.child}" for queue in self.queues)


@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """Totals of one queue in an archive: items, and bytes of data."""

    queue: str
    items: int
    bytes: int


def archive(
    spark: SparkSession, options: ArchiveOptions, *, every: str | None = None
) -> StreamingQuery:
    """Start to archive; the returned query ends by itself unless `every` is given.

    Args:
        spark: the session.
        options: what to archive, and where to.
        every: the interval between batches ("10 seconds") of a query that runs until it is stopped;
            None archives what is in the queues now, and ends.

    Raises:
        ConfigError: the options cannot be used, or `output` is the archive of other queues.
        ServerUnavailable: ZooKeeper cannot be reached.
    """
    options = replace(options, output=local_path(options.output, "output"))
    sources = options.sources()
    _check_same_queues(Path(options.output), sources)
    if options.child is not None:
        _create(options.cluster, sources)
    rows = functools.reduce(DataFrame.union, [_read(spark, options, name) for name in sources])
    writer = (
        rows.withColumn("date", f.to_date(f.timestamp_millis("read_time")))
        .writeStream.format("parquet")
        .option("path", options.output)
        .option("checkpointLocation", f"{options.output}/{CHECKPOINT}")
        .partitionBy("queue", "date")
        .queryName("archive")
    )
    if every is None:
        return start_query(writer.trigger(availableNow=True))
    return start_query(writer.trigger(processingTime=every))


def read_archive(spark: SparkSession, output: str) -> DataFrame:
    """Return the table that `archive` writes; it is empty if nothing was written yet."""
    schema = StructType([*KESTREL_SCHEMA.fields, StructField("date", DateType())])
    if not (Path(local_path(output, "output")) / "_spark_metadata").exists():
        return spark.createDataFrame([], schema)
    return read_partitioned(spark, output, schema)


def archived(spark: SparkSession, output: str) -> list[ArchivedQueue]:
    """Return the totals of an archive, by queue."""
    rows = read_archive(spark, output).groupBy("queue")
    totals = rows.agg(f.count("*").alias("items"), f.sum("size").alias("bytes")).orderBy("queue")
    return [ArchivedQueue(**row.asDict()) for row in totals.collect()]


def _read(spark: SparkSession, options: ArchiveOptions, queue: str) -> DataFrame:
    return (
        spark.readStream.format(KESTREL_FORMAT)
        .options(**options.cluster.as_options())
        .option("queue", queue)
        .option("staging_location", f"{options.output}/{STAGING}/{queue}")
        .option("max_items_per_batch", str(options.max_items_per_batch))
        .option("max_bytes_per_batch", str(options.max_bytes_per_batch))
        .load()
    )


def _create(cluster: ClusterOptions, queues: Sequence[str]) -> None:
    """Create every queue on every server that can be asked, by peeking at it."""
    for queue in queues:
        probe = ServerProbe(cluster.membership(), queue)
        try:
            probe.check_readable(DEFAULT_LOADING_PATIENCE)
        finally:
            probe.close()


def _check_same_queues(output: Path, sources: Sequence[str]) -> None:
    """Check that a query is not started again with other sources than before."""
    staging = output / STAGING
    if not staging.exists():
        unfinished = output / f"{STAGING}~"
        shutil.rmtree(unfinished, ignore_errors=True)
        for queue in sources:
            make_directory(unfinished / queue)
        rename_durably(unfinished, staging)
    before = sorted(directory.name for directory in staging.iterdir())
    if before != sources:
        raise ConfigError(
            f"archive: {output} holds the queues {', '.join(before)}, not {', '.join(sources)}: "
            "archive other queues to another directory"
        )
