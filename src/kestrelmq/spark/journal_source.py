"""`kestrel.journal`: journals as a table, one row for each operation; and the way to write them.

Rows come file by file, in the order of the file. A file is read up to the size it had when the
query was planned, so a journal that grows meanwhile gives the same rows whenever it is read. A
record that is cut short at the end of a queue's last file is being written, or was when the
machine died; it is no damage and gives no row, as it gives a server no item.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kestrelmq.errors import ConfigError, DamagedJournal
from kestrelmq.spark import columns
from kestrelmq.spark.journal_writer import JournalWriter
from kestrelmq.spark.options import (
    JournalReadOptions,
    journal_read_options,
    journal_write_options,
)
from kestrelmq.spark.scanning import FileView, open_view
from kestrelmq.spark.spool import SpoolFile, list_files

JOURNAL_FORMAT: Final = "kestrel.journal"
JOURNAL_SCHEMA: Final = StructType(
    [
        StructField("queue", StringType(), nullable=False),
        StructField("file", StringType(), nullable=False),
        StructField("position", LongType(), nullable=False),
        StructField("opcode", IntegerType(), nullable=True),
        StructField("operation", StringType(), nullable=False),
        StructField("xid", IntegerType(), nullable=True),
        StructField("add_time", LongType(), nullable=True),
        StructField("expiry", LongType(), nullable=True),
        StructField("size", IntegerType(), nullable=True),
        StructField("data", BinaryType(), nullable=True),
    ]
)
_PUSHED: Final = frozenset({"queue", "file", "operation"})


class JournalPartition(InputPartition):
    """Files that one task reads."""

    def __init__(self, files: Sequence[SpoolFile]) -> None:
        super().__init__(None)
        self.files = tuple(files)


class JournalSource(DataSource):
    """The data source `kestrel.journal`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return JOURNAL_FORMAT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def schema(self) -> StructType:
        """Return all columns; a reader that asks for fewer gets fewer."""
        return JOURNAL_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        options = journal_read_options(self.options)
        check_schema(schema, JOURNAL_SCHEMA, JOURNAL_FORMAT)
        kind = PushdownJournalReader if options.pushdown else JournalReader
        return kind(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return a writer of rows of `schema`."""
        return JournalWriter(journal_write_options(self.options), schema, overwrite=overwrite)


class JournalReader(DataSourceReader):
    """Reads journals."""

    def __init__(self, options: JournalReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._allowed: dict[str, frozenset[str]] = {}

    def partitions(self) -> list[InputPartition]:
        """List the files and share them out."""
        files = [
            file
            for file in list_files(self._options.path)
            if self._allows("queue", file.queue) and self._allows("file", file.name)
        ]
        return [JournalPartition(share) for share in shares(files, self._options.partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, JournalPartition):
            return iter(())
        parts = (batch for file in partition.files for batch in self._file(file))
        return columns.coalesce(parts, self._options.batch_rows)

    def _allows(self, column: str, value: str) -> bool:
        return column not in self._allowed or value in self._allowed[column]

    def _file(self, file: SpoolFile) -> Iterator[pa.RecordBatch]:
        view = open_view(file.path, file.size)
        try:
            for chunk in view.chunks(tail_may_be_torn=file.last):
                wanted = chunk
                if "operation" in self._allowed:
                    codes = columns.operation_codes(chunk)
                    wanted = chunk.part(np.isin(codes, self._allowed_codes()))
                for batch in columns.batches(wanted, self._options.batch_rows):
                    yield self._batch(
                        file,
                        len(batch),
                        {
                            name: partial(make, view, batch)
                            for name, make in columns.RECORD_COLUMNS.items()
                        },
                    )
        except DamagedJournal as damage:
            yield from self._damaged(file, view, damage)

    def _allowed_codes(self) -> list[int]:
        allowed = self._allowed["operation"]
        return [code for code, name in enumerate(columns.OPERATIONS) if name in allowed]

    def _damaged(
        self, file: SpoolFile, view: FileView, damage: DamagedJournal
    ) -> Iterator[pa.RecordBatch]:
        if self._options.mode == "failfast":
            raise DamagedJournal(damage.position, damage.reason, file.path) from None
        if self._options.mode == "dropmalformed" or not self._allows("operation", columns.DAMAGED):
            return
        row = {
            "position": damage.position,
            "opcode": int(view.bytes[damage.position]),
            "operation": columns.DAMAGED,
            "size": min(file.size - damage.position, 2**31 - 1),
            "data": damage.reason.encode(),
        }
        types = {field.name: field.type for field in to_arrow_schema(JOURNAL_SCHEMA)}
        yield self._batch(
            file,
            1,
            {
                name: partial(pa.array, [row.get(name)], types[name])
                for name in columns.RECORD_COLUMNS
            },
        )

    def _batch(self, file: SpoolFile, count: int, makers: dict[str, Any]) -> pa.RecordBatch:
        """Make the columns that are asked for, and only those."""
        constants = {"queue": file.queue, "file": file.name}
        arrays = [
            columns.constant(constants[name], count) if name in constants else makers[name]()
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(
            arrays, schema=to_arrow_schema(self._schema, timezone="UTC")
        )


class PushdownJournalReader(JournalReader):
    """Reads journals, and leaves out what Spark's filters would drop.

    A class of its own, because Spark refuses a reader with `pushFilters` while the setting
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take equality with, and membership in, known text; return the rest."""
        for given in filters:
            values = _values(given)
            if values is None:
                yield given
                continue
            column = given.attribute[0]  # type: ignore[attr-defined]
            before = self._allowed.get(column, values)
            self._allowed[column] = before & values


def _values(given: Filter) -> frozenset[str] | None:
    if not isinstance(given, EqualTo | EqualNullSafe | In):
        return None
    if len(given.attribute) != 1 or given.attribute[0] not in _PUSHED:
        return None
    values = list(given.value) if isinstance(given, In) else [given.value]
    return frozenset(values) if all(isinstance(value, str) for value in values) else None


def shares(files: Sequence[SpoolFile], partition_bytes: int) -> list[list[SpoolFile]]:
    """Share out files, in order: a large one by itself, small ones together."""
    found: list[list[SpoolFile]] = []
    room = 0
    for file in files:
        # A file costs a look even when it is empty.
        cost = max(file.size, 64 << 10)
        if cost > room:
            found.append([])
            room = partition_bytes
        found[-1].append(file)
        room -= cost
    return found


def check_schema(asked: StructType, known: StructType, source: str) -> None:
    """Check that the columns asked for are known ones, of their types.

    Raises:
        ConfigError: one is not.
    """
    types = {field.name: field.dataType for field in known}
    for field in asked:
        if field.name not in types:
            raise ConfigError(
                f"schema of {source}: column {field.name!r} is unknown: "
                f"allowed are {', '.join(types)}"
            )
        if field.dataType != types[field.name]:
            raise ConfigError(
                f"schema of {source}: column {field.name!r} cannot be "
                f"{field.dataType.simpleString()}: it must be {types[field.name].simpleString()}"
            )
