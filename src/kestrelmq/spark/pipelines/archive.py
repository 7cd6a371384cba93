"""`archive`: write servers' queues to a partitioned table, once or continuously.

The queues are either drained or copied. To copy a queue, `archive` reads a fanout child of it,
which gets all items added to the queue from when the child is created; the queue's own readers are
not disturbed.

One source reads all queues; the file `_source` in the table says which.

`archive_journals` writes what is added to queues to such a table from their journals, and takes
nothing from a server. What counts is in `new_items`.

The table has the columns of `kestrel` and `date` (of the read time, UTC), and is partitioned by
`queue` and `date`. It is Spark's, of any format, and so is the checkpoint, which is in it. Spark
writes each batch to it once. A crash may leave files in a Parquet table that belong to no batch:
Spark ignores them, but other readers of Parquet do not.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError
from kestrelmq.names import master_of, queue_name_error
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.reading import DEFAULT_FORMAT, place_of, read_table, table_path
from kestrelmq.spark.session import start_query
from kestrelmq.spark.sources.journal import JOURNAL_FORMAT
from kestrelmq.spark.sources.journal_options import DEFAULT_BATCH_BYTES, journal_stream_options
from kestrelmq.spark.sources.live import KESTREL_FORMAT, KESTREL_SCHEMA
from kestrelmq.spark.sources.live_options import (
    DEFAULT_BYTES,
    DEFAULT_ITEMS,
    kestrel_read_options,
)
from kestrelmq.spark.sources.queue_choice import QueueChoice, literally
from kestrelmq.spark.sources.server_probe import ServerProbe
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import GivenPath, Location, StrPath, path_options
from kestrelmq.spark.storage.spool import check_apart

CHECKPOINT: Final = "_checkpoint"
_NOTE: Final = "_source"
_FOLLOWED: Final = (
    "queue string, operation string, add_time timestamp, expiry timestamp, add_ms long, "
    "expiry_ms long, size int, data binary, sequence long, spool string"
)


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What to archive, and where to.

    Attributes:
        cluster: the servers.
        queues: names and patterns of the queues, without duplicates.
        output: the table: any path that the session can write. Its subdirectory `_checkpoint` holds
            the checkpoint, so that a query that is started again continues where it stopped.
        child: copy through the fanout child with this name; None drains the queues.
        max_items_per_batch: maximum number of items in a batch.
        max_bytes_per_batch: approximate maximum of bytes in a batch.
        storage: options of the store that the output is in, where its notes are.
    """

    cluster: ClusterOptions
    queues: Sequence[str]
    output: StrPath
    child: str | None = None
    max_items_per_batch: int = DEFAULT_ITEMS
    max_bytes_per_batch: int = DEFAULT_BYTES
    table_format: str = DEFAULT_FORMAT
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def choice(self) -> QueueChoice:
        """Return the queues to read: the given ones, or their children.

        Raises:
            ConfigError: no queue is given, one is given twice, a name is not allowed, or a child of
                a fanout child is requested.
        """
        if not self.queues:
            raise ConfigError("archive: no queue was given")
        if len(set(self.queues)) < len(self.queues):
            raise ConfigError("archive: a queue was given twice")
        if self.child is None:
            return _choice(self.queues)
        error = queue_name_error(self.child)
        if error is not None:
            raise ConfigError(f"archive: {self.child!r} is not allowed: {error}")
        for queue in self.queues:
            if master_of(queue) is not None:
                raise ConfigError(
                    f"archive: {queue!r} is a fanout child already: drain it, do not copy it"
                )
        return _choice([f"{queue}+{literally(self.child)}" for queue in self.queues])


def _choice(words: Sequence[str]) -> QueueChoice:
    try:
        return QueueChoice.of(words)
    except ValueError as error:
        shown = ", ".join(words)
        raise ConfigError(f"archive: {shown!r} is not allowed: it must be {error}") from None


@dataclass(frozen=True, slots=True)
class JournalArchiveOptions:
    """Which journals to archive, and where to.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        output: the table's directory, as for `ArchiveOptions`.
        queues: names and patterns of the queues; none means all that there are.
        starting: where to begin, for a new archive: `earliest`, `latest` or a time, as the option
            `startingOffsets` of `kestrel.journal`.
        fails_on_loss: whether the query fails if files are gone that it has not read.
        max_bytes_per_batch: approximate maximum of bytes of journal in a batch.
        storage: options of the stores that the journals and the output are in.
    """

    path: GivenPath
    output: StrPath
    queues: Sequence[str] = ()
    starting: str = "earliest"
    fails_on_loss: bool = True
    max_bytes_per_batch: int = DEFAULT_BATCH_BYTES
    table_format: str = DEFAULT_FORMAT
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)


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

    `every` is the interval between batches ("10 seconds") of a query that runs until it is stopped;
    None archives what is in the queues now, and ends.

    A new archive that cannot be read now does not take `output`, unless it waits for its servers.

    Raises:
        ConfigError: the options cannot be used, or `output` is the archive of other queues.
        ServerUnavailable: ZooKeeper cannot be reached, or, without `every`, no server.
        QueueCannotBeRead: a server does not let a queue be read; without `every`, or of a copy.
    """
    output = place_of(spark, options.output, options.storage, "output")
    given = {
        **options.cluster.as_options(),
        "queue": str(options.choice()),
        "queryName": "archive",
        "createChildren": str(options.child is not None),
        "maxItemsPerTrigger": str(options.max_items_per_batch),
        "maxBytesPerTrigger": str(options.max_bytes_per_batch),
    }
    if every is None and not _note(output).exists():
        _check_readable(given, needs_server=True)
    _check_kept(output, given["queue"])
    if options.child is not None:
        _check_readable(given, needs_server=False)
    rows = spark.readStream.format(KESTREL_FORMAT).options(**given).load()
    return _start(rows, options.output, options.table_format, every)


def archive_journals(
    spark: SparkSession, options: JournalArchiveOptions, *, every: str | None = None
) -> StreamingQuery:
    """Start to archive what is added to queues, from their journals; `every` is as for `archive`.

    Raises:
        ConfigError: the options cannot be used, or `output` is another archive.
        FileNotFoundError: there are no such journals.
    """
    path = place_of(spark, options.path, options.storage)
    output = place_of(spark, options.output, options.storage, "output")
    choice = _choice(options.queues)
    given = {
        "startingOffsets": options.starting,
        "failOnDataLoss": str(options.fails_on_loss).lower(),
        "maxBytesPerTrigger": str(options.max_bytes_per_batch),
        **({"queue": str(choice)} if options.queues else {}),
        **path_options(path),
    }
    journal_stream_options(given)
    check_apart(path, output)
    _check_kept(output, f"{str(choice) or 'all queues'} of the journals in {_absolute(path)}")
    reader = spark.readStream.format(JOURNAL_FORMAT).schema(_FOLLOWED).options(**given)
    return _start(new_items(reader.load()), options.output, options.table_format, every)


def new_items(operations: DataFrame) -> DataFrame:
    """Return the items that operations of a stream of journals add, with the columns of `kestrel`.

    ADDX, ADD and ADD_XID add an item. A CONTINUE does not: it puts the item of an open read back
    into its queue. Nor does an item without data that a pack has in the place of one that is gone:
    an ADD that never expires, or an ADDX that was added at time 0. The records behind a STATE_DUMP,
    and packs of files that were read, are no operations of the stream.
    """
    is_place = (
        (f.col("size") == 0)
        & (f.col("expiry_ms") == 0)
        & ((f.col("operation") == "ADD") | (f.col("add_ms") == 0))
    )
    added = operations.where(f.col("operation").isin("ADD", "ADDX", "ADD_XID") & ~is_place)
    return added.select(
        "queue",
        f.col("spool").alias("server"),
        f.col("sequence").alias("position"),
        f.current_timestamp().alias("read_time"),
        "add_time",
        "expiry",
        f.lit(None).cast("int").alias("deliveries"),
        "size",
        "data",
    )


def _start(
    rows: DataFrame, output: StrPath, table_format: str, every: str | None
) -> StreamingQuery:
    """Start to append rows with the columns of `kestrel` to the table."""
    path = table_path(output)
    dated = rows.withColumn("date", f.to_date("read_time")).writeStream
    writer = dated.format(table_format).option("path", path).partitionBy("queue", "date")
    writer = writer.option("checkpointLocation", f"{path}/{CHECKPOINT}").queryName("archive")
    if every is None:
        return start_query(writer.trigger(availableNow=True))
    return start_query(writer.trigger(processingTime=every))


def read_archive(
    spark: SparkSession, output: StrPath, table_format: str = DEFAULT_FORMAT
) -> DataFrame:
    """Return the table that `archive` writes; it is empty if nothing was written yet."""
    try:
        return read_table(spark, output, table_format)
    except AnalysisException:
        return spark.createDataFrame([], StructType([*KESTREL_SCHEMA]).add("date", "date"))


def archived(
    spark: SparkSession, output: StrPath, table_format: str = DEFAULT_FORMAT
) -> list[ArchivedQueue]:
    """Return the totals of an archive, by queue."""
    rows = read_archive(spark, output, table_format).groupBy("queue")
    totals = rows.agg(f.count("*").alias("items"), f.sum("size").alias("bytes")).orderBy("queue")
    return [ArchivedQueue(**row.asDict()) for row in totals.collect()]


def _check_readable(options: Mapping[str, str], *, needs_server: bool) -> None:
    """Check that the queues can be read on the servers that can be asked; create the children.

    With `needs_server`, there must be such a server.
    """
    read = kestrel_read_options(options)
    with closing(ServerProbe.of(read)) as probe:
        (probe.present if needs_server else probe.check_readable)(read.patience)


def _absolute(path: JournalPath) -> JournalPath:
    return path if isinstance(path, Location) else os.path.abspath(path)  # noqa: PTH100 # keeps links


def _note(output: JournalPath) -> Path | Location:
    """Return where an archive has the note of what it is of."""
    return (output if isinstance(output, Location) else Path(output)) / _NOTE


def _check_kept(output: JournalPath, text: str) -> None:
    """Check that an archive is continued as it was begun, of what `text` says; a new one notes it.

    Raises:
        ConfigError: it is of something else.
    """
    note = _note(output)
    if not note.exists():
        if isinstance(note, Path):
            note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(text.encode())
    before = note.read_bytes().decode()
    if before != text:
        raise ConfigError(
            f"archive: {output} holds {before}, not {text}: archive others to another directory"
        )
