"""Parquet tables in a store that Spark itself cannot open: write them from tasks, and read them.

Spark opens `s3://` and the like only with jars of Hadoop's. So tables there are written and read
with `pyarrow.fs`, by a data source of our own. A table has the layout that Spark gives it: files
`part-...parquet`, below directories such as `queue=NAME` for columns that it is partitioned by, and
`_SUCCESS`. Readers of Parquet ignore names that begin with an underscore.

A task writes its files below `_temporary/JOB`; no two attempts have a name in common. The driver
moves the files of the attempts that Spark accepted to their places when all tasks are done, then
deletes the files that it replaces, if any, and writes `_SUCCESS` last. A job that fails leaves
nothing but its directory below `_temporary`, and removes that if it can. What is left there by a
driver that was killed, or by a task that ends late, the next write to the table removes
(`stored_writes`). If the driver dies while it moves files, some are in the table, and `_SUCCESS` is
missing.

A stream writes each batch once:

    step                                              what a crash during the step leaves
    1  tasks write files below `_temporary`           files that are not in the table
    2  write the manifest of the batch: its files     the same
    3  move these files into place                    some are in place
    4  delete what else the batch has written,        the whole batch is in place
       and the manifests of earlier batches

If there is a manifest, the batch is decided: a driver that runs the batch again only finishes steps
3 and 4, and what its tasks have written is not used. Two drivers that commit the same batch at the
same moment could both decide, because a store has no lock: so a query must not be started again
while its driver is still running. The manifests are in `_batches/QUERY`, the last one of which is
kept: so an archive knows the query, and thereby the checkpoint, that it is of.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from kestrelmq.errors import ConfigError, KestrelError, StorageError
from kestrelmq.spark.plan.dividing import divide_by_cost
from kestrelmq.spark.plan.filesystems import StoreTree, fixed_part, is_pattern
from kestrelmq.spark.sources import stored_writes
from kestrelmq.spark.sources.tables import arrow_schema
from kestrelmq.spark.storage import Location, in_parallel, located, storage_options

STORED_TABLE_FORMAT: Final = "kestrel.stored_table"
BATCHES: Final = "_batches"
SUCCESS: Final = "_SUCCESS"
TEMPORARY: Final = "_temporary"
NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows whose value is null; Spark's name for it."""
_PARTITION_COLUMNS: Final = "partition_columns"
_ESCAPED: Final = re.compile(r"[\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
"""What Spark writes as three characters in the name of a directory."""
_BUFFERED: Final = 64 << 20
"""Bytes of rows that a task keeps in memory before it writes files."""
_PARTITION_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 10_000

_log: Final = logging.getLogger("kestrelmq.spark")

Key = tuple[str | None, ...]
"""The values of a row in the columns by which the table is partitioned, as text."""


class FilesWritten(WriterCommitMessage):
    """A task's message to the driver: the files that it wrote, relative to the job's directory."""

    def __init__(self, files: Sequence[str], query: str = "") -> None:
        self.files = tuple(files)
        self.query = query


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one directory that are not written yet."""

    batches: list[pa.RecordBatch]
    bytes: int


class PartFiles:
    """The files of one task."""

    def __init__(self, work: Location, columns: Sequence[str], partition: int) -> None:
        """Prepare to write.

        Args:
            work: the job's directory.
            columns: the columns by which the table is partitioned.
            partition: the number of the task's partition.
        """
        self._work = work
        self._columns = tuple(columns)
        self._name = f"part-{partition:05d}-{uuid4().hex}"
        self._rows: dict[Key, _Rows] = {}
        self._files: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; if there are many in memory, write some."""
        for key, rows in _split(batch, self._columns):
            known = self._rows.get(key, _Rows([], 0))
            self._rows[key] = _Rows([*known.batches, rows], known.bytes + rows.nbytes)
        total = sum(rows.bytes for rows in self._rows.values())
        for key in sorted(self._rows, key=lambda one: -self._rows[one].bytes):
            if total <= _BUFFERED:
                return
            total -= self._rows[key].bytes
            self._write(key)

    def finish(self) -> list[str]:
        """Write what is left; return all files, relative to the job's directory."""
        for key in list(self._rows):
            self._write(key)
        return self._files

    def _write(self, key: Key) -> None:
        rows = self._rows.pop(key)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(rows.batches), sink)
        directories = [
            f"{column}={NULL_NAME if value in {None, ''} else _escaped(value or '')}/"
            for column, value in zip(self._columns, key, strict=True)
        ]
        file = f"{''.join(directories)}{self._name}-{len(self._files)}.parquet"
        (self._work / file).write(sink.getvalue())
        self._files.append(file)


def _split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Yield the rows of each directory, in their order, without the columns of its name."""
    if not batch.num_rows:
        return
    if not columns:
        yield (), batch
        return
    texts = [batch.column(name).cast(pa.string()).to_pylist() for name in columns]
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(zip(*texts, strict=True)):
        places.setdefault(key, []).append(place)
    rest = batch.drop_columns(list(columns))
    for key, mine in places.items():
        yield key, rest.take(pa.array(np.array(mine, dtype=np.int64)))


class StoredTableWriter(DataSourceArrowWriter):
    """Writes a table. The driver makes it, sends a copy to every task, and commits with it."""

    def __init__(self, location: Location, columns: Sequence[str], *, overwrite: bool) -> None:
        stored_writes.remove_abandoned(location / TEMPORARY)
        self._location = location
        self._work = stored_writes.begin(location / TEMPORARY, stored_writes.driver())
        self._columns = tuple(columns)
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Write the files of one task."""
        return write_files(self._work, self._columns, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Put the files of all tasks in place."""
        replaced = table_files(self._location) if self._overwrite else []
        written = files_of(messages)
        in_parallel(lambda file: (self._work / file).move(self._location / file), written)
        in_parallel(lambda file: (self._location / file).delete(), replaced)
        (self._location / SUCCESS).write(b"")
        self._work.delete_tree()

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:  # noqa: ARG002
        """Remove all files of the job, if the store can be reached."""
        try:
            self._work.delete_tree()
        except StorageError as error:
            _log.warning("%s: files of a job that failed are left: %s", self._work, error)


class StoredTableStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream. Spark makes a new one for every batch, and another one to commit it."""

    def __init__(self, location: Location, columns: Sequence[str]) -> None:
        self._location = location
        self._columns = tuple(columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Write the files of one task."""
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a batch can be written only by a Spark task")
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        work = StoredBatchOfTable(self._location, query, batch).work
        return FilesWritten(write_files(work, self._columns, iterator).files, query)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 # Spark's
        """Put the files of a batch in place, unless they are."""
        written = [message for message in messages if isinstance(message, FilesWritten)]
        if written:
            StoredBatchOfTable(self._location, written[0].query, batchId).commit(files_of(messages))

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 # Spark's
        """Do nothing: when the batch is run again, its commit removes what was written."""


class StoredBatchOfTable:
    """A batch of a stream that is written to a table."""

    def __init__(
        self,
        location: Location,
        query: str,
        batch: int,
        reached: Callable[[str], None] = lambda _point: None,
    ) -> None:
        """Describe a batch; no I/O is done.

        Args:
            location: the table's directory.
            query: Spark's name of the query, which its checkpoint has.
            batch: the batch's number.
            reached: called at every step; crash tests stop there.
        """
        self._location = location
        self._manifests = location / BATCHES / query
        self._name = f"{batch:010d}.json"
        self._prefix = f"{query}-"
        self.work = location / TEMPORARY / f"{self._prefix}{batch:010d}"
        self._reached = reached

    def commit(self, files: Sequence[str]) -> None:
        """Put files into the table, or those that an earlier attempt has decided on."""
        manifest = self._manifests / self._name
        try:
            files = json.loads(bytes(manifest.read()))
        except FileNotFoundError:
            manifest.write(json.dumps(list(files)).encode())
            moving = list(files)
        else:
            left = {name for name, _ in self.work.files()}
            moving = [file for file in files if file in left]
        self._reached("decided")
        in_parallel(self._move, moving)
        self.work.delete_tree()
        self._reached("placed")
        for one in self._manifests.entries():
            if not one.is_directory and one.name < self._name:
                (self._manifests / one.name).delete()
        works = self._location / TEMPORARY
        for one in works.entries(missing_ok=True):
            if one.name.startswith(self._prefix) and one.name < self.work.name:
                # Of a task that was ended late.
                (works / one.name).delete_tree()

    def _move(self, file: str) -> None:
        (self.work / file).move(self._location / file)
        self._reached("moved")


class _FilesToRead(InputPartition):
    """What one task reads: files, relative to the directory `base`."""

    def __init__(self, base: Location, files: Sequence[str]) -> None:
        super().__init__(None)
        self.base = base
        self.files = tuple(files)


class StoredTableReader(DataSourceReader):
    """Reads a table, in parallel over its files."""

    def __init__(self, location: Location, schema: StructType) -> None:
        self._location = location
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Return the files of the table; small ones share a partition."""
        base, found = _found(self._location)
        shared = divide_by_cost(found, itemgetter(1), _PARTITION_BYTES)
        return [_FilesToRead(base, [file for file, _ in share]) for share in shared]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files."""
        if not isinstance(partition, _FilesToRead):
            return
        for file in partition.files:
            values = _values(file)
            with _at(partition.base, file).open() as opened:
                for batch in pq.ParquetFile(opened).iter_batches(_BATCH_ROWS):
                    yield self._conformed(batch, values)

    def _conformed(self, batch: pa.RecordBatch, values: Mapping[str, str | None]) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            if field.name in values:
                text = pa.scalar(values[field.name], pa.string())
                columns.append(pa.repeat(text, batch.num_rows).cast(field.type))
            elif field.name in batch.schema.names:
                columns.append(batch.column(field.name).cast(field.type))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class StoredTableSource(DataSource):
    """The data source of tables in a store; `write_table` and `read_table` use it."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return STORED_TABLE_FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table."""
        return table_schema(self._location())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a table."""
        return StoredTableReader(self._location(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002, FBT001 # Spark's
        """Return a writer of a table."""
        return StoredTableWriter(self._location(), self._columns(), overwrite=overwrite)

    def streamWriter(  # noqa: N802 # Spark's
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002, FBT001 # Spark's
    ) -> DataSourceStreamWriter:
        """Return a writer of a stream."""
        return StoredTableStreamWriter(self._location(), self._columns())

    def _columns(self) -> list[str]:
        return [str(name) for name in json.loads(self.options.get(_PARTITION_COLUMNS, "[]"))]

    def _location(self) -> Location:
        path = self.options.get("path", "")
        found = located(path, storage_options(self.options))
        if not isinstance(found, Location):
            raise ConfigError(f"format {STORED_TABLE_FORMAT}: {path!r} is no URI of a store")
        return found


def write_table(
    rows: DataFrame, location: Location, mode: str, columns: Sequence[str] = ()
) -> None:
    """Write a Parquet table to a store.

    Args:
        rows: the rows.
        location: the table's directory.
        mode: `error` if nothing may be there, `append`, or `overwrite`.
        columns: the columns by which it is partitioned.

    Raises:
        TableExists: there is something, and the mode is `error`.
    """
    if mode == "error" and _is_taken(location):
        raise TableExists(
            f"{location} already exists: give --overwrite, or in a program mode='overwrite', to "
            "replace it"
        )
    (
        rows.write.format(STORED_TABLE_FORMAT)
        .options(**table_options(location, columns))
        .mode("overwrite" if mode == "overwrite" else "append")
        .save()
    )


def _is_taken(location: Location) -> bool:
    """Whether there is anything but what a job has left that failed."""
    found = [name for name, _ in location.files() if not name.startswith(f"{TEMPORARY}/")]
    there = None if found else location.find()
    return bool(found) or (there is not None and not there.is_directory)


def table_options(location: Location, columns: Sequence[str]) -> dict[str, str]:
    """Return the options of writing a table to `location`, partitioned by `columns`."""
    return {
        **location.as_options(),
        "path": str(location),
        _PARTITION_COLUMNS: json.dumps(list(columns)),
    }


def read_table(
    spark: SparkSession, location: Location, schema: StructType | None = None
) -> DataFrame:
    """Return a Parquet table of a store, or a single file.

    The location may be a glob of tables, of directories in one, or of files. Without `schema` the
    columns are those of the first file, and, as text, those by which the table is partitioned.

    Raises:
        FileNotFoundError: there is no table.
    """
    schema = table_schema(location) if schema is None else schema
    reader = spark.read.format(STORED_TABLE_FORMAT).schema(schema)
    return reader.options(**location.as_options()).load(str(location))


class TableExists(KestrelError):  # noqa: N818 # says what it is
    """There is something where a table is to be written."""


def write_files(
    work: Location, columns: Sequence[str], iterator: Iterator[pa.RecordBatch]
) -> FilesWritten:
    """Write the rows of this task to files below `work`."""
    context = TaskContext.get()
    files = PartFiles(work, columns, context.partitionId() if context is not None else 0)
    for batch in iterator:
        files.add(batch)
    return FilesWritten(files.finish())


def files_of(messages: "Sequence[WriterCommitMessage | None]") -> list[str]:
    """Return the files of all tasks."""
    return [
        file for message in messages if isinstance(message, FilesWritten) for file in message.files
    ]


def table_files(location: Location) -> list[str]:
    """Return the Parquet files of a table, relative to its directory, sorted."""
    return [file for file, _ in _sizes(location) if file]


def table_schema(location: Location) -> StructType:
    """Return the columns of a table's first file, and those by which it is partitioned.

    Raises:
        FileNotFoundError: there is no table.
    """
    base, files = _found(location)
    if not files:
        raise FileNotFoundError(f"{location}: there is no Parquet table")
    first, _ = files[0]
    with _at(base, first).open() as opened:
        found = from_arrow_schema(pq.ParquetFile(opened).schema_arrow)
    named = [StructField(name, StringType()) for name in _values(first)]
    return StructType([*found, *named])


def is_without_rows(location: Location) -> bool:
    """Whether a table was written, or the tables of a glob, but has no Parquet file."""
    _, places = _matches(location)
    return not _found(location)[1] and any((place / SUCCESS).exists() for place in places)


def _matches(location: Location) -> tuple[Location, list[Location]]:
    """Return the tables that a location means, which may be a glob, and what they are all in."""
    tree, path = StoreTree(location), f"/{location.path}"
    if not is_pattern(tree, path):
        return location, [location]
    return tree.location(fixed_part(tree, path)), [tree.location(one) for one in tree.glob(path)]


def _found(location: Location) -> tuple[Location, list[tuple[str, int]]]:
    """Return a directory, and the Parquet files in it, with their sizes, that a location means.

    Of a glob it is the directory that all it can match is in. So the names have all parts that say
    in which directory of a table a file is.
    """
    base, places = _matches(location)
    found = []
    for place in places:
        inside = place.path.removeprefix(base.path).strip("/")
        for name, size in _sizes(place):
            file = f"{inside}/{name}".strip("/")
            if not any(map(_is_ignored, file.split("/"))):
                found.append((file, size))
    return base, found


def _at(location: Location, file: str) -> Location:
    return location / file if file else location


def _sizes(location: Location) -> list[tuple[str, int]]:
    """Return a table's Parquet files with their sizes; of a single file, the name is empty."""
    found = location.files()
    if not found:
        there = location.find()
        return [("", there.size)] if there is not None and not there.is_directory else []
    return [(name, size) for name, size in found if not any(map(_is_ignored, name.split("/")))]


def _is_ignored(name: str) -> bool:
    return name.startswith((".", "_")) and "=" not in name


def _values(file: str) -> dict[str, str | None]:
    """Return the values that the names of a file's directories say."""
    pairs = [part.partition("=") for part in file.split("/")[:-1]]
    return {
        name: None if value == NULL_NAME else unquote(value)
        for name, equals, value in pairs
        if equals
    }


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value)
