"""Read and write journals, and tables of items, from a program that has a Spark session.

These functions use the data sources as `spark.read` and `df.write` do, and add what those cannot
do: request only the needed columns, push filters down, sort rows before they are written.

Tables are Spark's: of any format, and at any path, that the session can read and write.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from kestrelmq.spark.replay.read_plans import SummariseFiles, summarise
from kestrelmq.spark.sinks.journal import check_not_served
from kestrelmq.spark.sources.journal import JOURNAL_FORMAT
from kestrelmq.spark.sources.journal_options import (
    DEFAULT_DIRECT_BYTES,
    Mode,
    queue_read_options,
)
from kestrelmq.spark.sources.queue import QUEUE_FORMAT, QueueSource, QueueSourceReader
from kestrelmq.spark.storage.filesystems import LOCAL, JournalPath, is_pattern
from kestrelmq.spark.storage.locations import GivenPath, StrPath, located, path_options, scheme_of

A = TypeVar("A")
B = TypeVar("B")

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_S3A: Final = "spark.hadoop.fs.s3a."
_S3A_NAMES: Final = {
    "access.key": "access_key",
    "secret.key": "secret_key",
    "session.token": "session_token",
    "endpoint": "endpoint_override",
    "endpoint.region": "region",
}
"""Names of Hadoop's settings of S3, and of the storage options that they are."""
_GLOBS = "__globPaths__"
_NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows whose partition column is null; a queue may have this name."""

DEFAULT_FORMAT: Final = "parquet"

WriteMode = Literal["error", "overwrite", "append"]
"""What to do if there is something where a table is to be written."""


def place_of(
    spark: SparkSession,
    written: GivenPath,
    storage: Mapping[str, str] | None = None,
    option: str = "path",
) -> JournalPath:
    """Return what a path of journals means, see `storage.locations.located`.

    Of S3, the session's settings `spark.hadoop.fs.s3a.*` count where no storage option does.
    """
    known = {}
    if scheme_of(str(written)) in {"s3", "s3a"}:
        settings = {ours: spark.conf.get(f"{_S3A}{name}", "") for name, ours in _S3A_NAMES.items()}
        known = {ours: value for ours, value in settings.items() if value}
        scheme, mark, host = known.get("endpoint_override", "").partition("://")
        if mark:
            known |= {"scheme": scheme, "endpoint_override": host}
    return located(written, storage, option, known)


def read_journals(
    spark: SparkSession,
    path: GivenPath,
    columns: Sequence[str] | None = None,
    *,
    mode: Mode = "failfast",
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the operations in the journals of `path`.

    Args:
        spark: the session.
        path: a queue path, a journal file, or a glob of either.
        columns: the columns to read; without `data` no item data is read.
        mode: what to do at damage: see `kestrelmq.spark.sources.journal_options`.
        storage: options of the store that the path is in, see `kestrelmq.spark.storage.locations`.
    """
    path = place_of(spark, path, storage)
    pushdown = spark.conf.get(_PUSHDOWN, "false") or "false"
    reader = spark.read.format(JOURNAL_FORMAT)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    reader = reader.option("mode", mode).option("pushdown", pushdown)
    return reader.options(**path_options(path)).load()


def read_queues(
    spark: SparkSession,
    path: GivenPath,
    columns: Sequence[str] | None = None,
    *,
    direct_bytes: int = DEFAULT_DIRECT_BYTES,
    delayed: bool = True,
    mode: Mode = "failfast",
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return what is in the queues of `path` now.

    Args:
        spark: the session.
        path: a queue path, a journal file, or a glob of either.
        columns: the columns to read; without `data` no item data is read.
        direct_bytes: the size above which the files of a queue are summarised first, in parallel.
        delayed: whether delayed items are rows, too.
        mode: what to do with a damaged queue: see `kestrelmq.spark.sources.journal_options`.
        storage: options of the store that the path is in.
    """
    path = place_of(spark, path, storage)
    reader = spark.read.format(QUEUE_FORMAT).option("delayed", str(delayed)).option("mode", mode)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    reader = reader.option("directBytes", str(max(direct_bytes, 1)))
    return reader.options(**path_options(path)).load()


def replayed_queues(
    spark: SparkSession, path: JournalPath, direct_bytes: int = DEFAULT_DIRECT_BYTES
) -> DataFrame:
    """Return what is in the queues of `path` now, as planned by a Spark job.

    `read_queues` plans on the driver's machine, but only when the rows are needed.
    """
    source = QueueSource({"directBytes": str(direct_bytes)} | path_options(path))
    schema = source.schema()
    reader = QueueSourceReader(queue_read_options(source.options), schema)
    partitions = reader.partitions(summarise_on(spark))
    return rows_on(spark, lambda _, partition: reader.read(partition), partitions, schema)


def summarise_on(spark: SparkSession) -> SummariseFiles:
    """Return a function that summarises files with a Spark job."""
    return partial(map_on, spark, summarise)


def map_on(spark: SparkSession, work: Callable[[A], B], things: Sequence[A]) -> list[B]:
    """Apply `work` to each of `things` in a Spark job; return the results in order."""

    def batches(place: int, thing: A) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[place], [pickle.dumps(work(thing))]], ["place", "result"])

    rows = rows_on(spark, batches, things, "place long, result binary").collect()
    return [pickle.loads(row.result) for row in sorted(rows, key=attrgetter("place"))]  # noqa: S301 # as below


def rows_on(
    spark: SparkSession,
    work: Callable[[int, A], Iterable[pa.RecordBatch]],
    things: Sequence[A],
    schema: StructType | str,
) -> DataFrame:
    """Return the rows that `work` makes of the place of each of `things`, and of the thing."""

    class Run:
        """The tasks' part; `mapInArrow` would need pandas."""

        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            """Yield the rows of some things."""
            for row in batch.to_pylist():
                yield from work(row["place"], pickle.loads(row["thing"]))  # noqa: S301 # ours

    pickled = [(place, pickle.dumps(thing)) for place, thing in enumerate(things)]
    tasks = min(len(things), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    table = spark.createDataFrame(pickled, "place long, thing binary").repartition(max(tasks, 1))
    run: Any = f.arrow_udtf(Run, returnType=schema)
    made: DataFrame = run(table.asTable())
    return made


def write_journals(
    rows: DataFrame,
    path: GivenPath,
    mode: Literal["append", "overwrite"] = "append",
    *,
    storage: Mapping[str, str] | None = None,
) -> int:
    """Write rows to journals that a server loads at start; return how many.

    Columns, with names in any case: `queue`, `data`, and optionally `add_time`, `expiry` (ms or
    timestamps) and `sequence`, which orders the items of a queue. With `sequence`, Spark sorts the
    rows first, so that the writer has nothing to merge.

    Args:
        rows: the rows to write.
        path: the queue path, or its URI in a store.
        mode: `append` adds the items behind those that queues hold; `overwrite` replaces the
            contents of the queues that occur in `rows`, and leaves other queues alone.
        storage: options of the store that the queue path is in.

    Raises:
        QueuePathLocked: a server uses the queue path.
    """
    path = place_of(rows.sparkSession, path, storage)
    # The writer checks this, too, but Spark makes it only after the tasks that sort.
    check_not_served(path)
    if "sequence" in (name.lower() for name in rows.columns):
        rows = rows.repartition("queue").sortWithinPartitions("queue", "sequence")
    rows, written = counted(rows)
    rows.write.format(JOURNAL_FORMAT).mode(mode).options(**path_options(path)).save()
    return written()


def table_path(written: StrPath) -> str:
    """Return the path of a table as Spark has it: of S3, Hadoop's file system is called s3a."""
    written = os.fspath(written)
    return f"s3a{written[2:]}" if scheme_of(written) == "s3" else written


def write_table(
    rows: DataFrame,
    path: StrPath,
    mode: WriteMode,
    *columns: str,
    table_format: str = DEFAULT_FORMAT,
) -> None:
    """Write a table with Spark, partitioned by `columns`.

    Raises:
        AnalysisException: there is something, and the mode is `error`.
    """
    writer = rows.write.format(table_format).mode(mode)
    (writer.partitionBy(*columns) if columns else writer).save(table_path(path))


def read_table(
    spark: SparkSession,
    path: StrPath,
    table_format: str = DEFAULT_FORMAT,
    empty: StructType | None = None,
) -> DataFrame:
    """Return the rows of a table.

    Args:
        spark: the session.
        path: the table; a glob only if nothing exists under exactly that name.
        table_format: its format.
        empty: the columns of a table that was written without any rows, and so has no files; by
            default that is an error.

    Raises:
        AnalysisException: there is no table.
    """
    path = table_path(path)
    reader = spark.read.format(table_format)
    if scheme_of(path) in {None, "file"}:
        is_glob = is_pattern(LOCAL, path.removeprefix("file:"))
        reader = reader.option(_GLOBS, str(is_glob).lower())
    try:
        rows = reader.load(path)
        schema = rows.schema  # over Spark Connect, only this looks for the table
    except AnalysisException as error:
        if empty is None or error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        return spark.createDataFrame([], empty)
    if "queue" not in schema.names:
        return rows
    name = StructField("queue", StringType())
    if schema["queue"].dataType != name.dataType:
        # From the names of directories, Spark takes a queue `007` for a number.
        fields = [name if field.name == "queue" else field for field in schema]
        rows = reader.schema(StructType(fields)).load(path)
    return rows.withColumn("queue", f.coalesce("queue", f.lit(_NULL_NAME)))


def counted(rows: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return rows to write, and a function that tells how many were written once they are.

    Spark counts them as it writes them, so nothing is read again.
    """
    observation = Observation()
    observed = rows.observe(observation, f.count(f.lit(1)).alias("rows"))
    return observed, lambda: int(observation.get["rows"])
