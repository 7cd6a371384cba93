"""`kestrel.journal`: read journals as a table with one row for each operation, and write journals.

Rows come file by file, in the order of the file. A file is read up to the size it had when the
query was planned, so a journal that grows meanwhile gives the same rows whenever it is read. A
torn record at the end of a queue's last file is not damage: it is being written, or was when the
machine crashed. It yields no row, just as a server loads no item from it.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
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

from kestrelmq.errors import DamagedJournal
from kestrelmq.spark import columns
from kestrelmq.spark.journal_options import (
    JournalReadOptions,
    journal_read_options,
    journal_write_options,
)
from kestrelmq.spark.journal_writer import JournalWriter
from kestrelmq.spark.scanning import FileView, open_view
from kestrelmq.spark.sharing import divide_by_cost
from kestrelmq.spark.spool import SpoolFile, list_files
from kestrelmq.spark.tables import (
    SPOOL_COLUMN,
    ColumnMakers,
    TableSource,
    arrow_schema,
    rows,
    with_spool,
)

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
    """The files that one task reads."""

    def __init__(self, files: Sequence[SpoolFile]) -> None:
        super().__init__(None)
        self.files = tuple(files)


class JournalSource(TableSource):
    """The data source `kestrel.journal`."""

    format_name = JOURNAL_FORMAT
    table = JOURNAL_SCHEMA
    on_demand = SPOOL_COLUMN

    def schema(self) -> StructType:
        """Return the columns; with several queue paths, the column `spool` is one of them."""
        return with_spool(self.table, journal_read_options(self.options).path)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        self.check_asked(schema)
        options = journal_read_options(self.options)
        kind = PushdownJournalSourceReader if options.pushdown else JournalSourceReader
        return kind(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return a writer of rows of `schema`."""
        return JournalWriter(journal_write_options(self.options), schema, overwrite=overwrite)


class JournalSourceReader(DataSourceReader):
    """Reads journals."""

    def __init__(self, options: JournalReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._allowed: dict[str, frozenset[str]] = {}

    def partitions(self) -> list[InputPartition]:
        """List the files and divide them into partitions."""
        files = [
            file
            for file in list_files(self._options.path)
            if self._allows("queue", file.queue) and self._allows("file", file.name)
        ]
        shared = divide_by_cost(files, lambda file: file.cost, self._options.partition_bytes)
        return [JournalPartition(share) for share in shared]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, JournalPartition):
            return iter(())
        parts = (batch for file in partition.files for batch in self._read_file(file))
        return columns.coalesce(parts, self._options.batch_rows)

    def _allows(self, column: str, value: str) -> bool:
        return column not in self._allowed or value in self._allowed[column]

    def _read_file(self, file: SpoolFile) -> Iterator[pa.RecordBatch]:
        view = open_view(file.path, file.size, file.inode)
        try:
            for chunk in view.chunks(tail_may_be_torn=file.last, replayed_only=False):
                wanted = chunk
                if "operation" in self._allowed:
                    codes = columns.operation_codes(chunk)
                    wanted = chunk.part(np.isin(codes, self._allowed_codes()))
                for batch in columns.batches(wanted, self._options.batch_rows):
                    made = {
                        name: partial(make, view, batch)
                        for name, make in columns.RECORD_COLUMNS.items()
                    }
                    yield self._rows(file, len(batch), made)
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
        made = {
            name: partial(pa.array, [row.get(name)], types[name]) for name in columns.RECORD_COLUMNS
        }
        yield self._rows(file, 1, made)

    def _rows(self, file: SpoolFile, count: int, made: ColumnMakers) -> pa.RecordBatch:
        names = {
            "queue": partial(columns.constant, file.queue, count),
            "file": partial(columns.constant, file.name, count),
            "spool": partial(columns.constant, file.spool, count),
        }
        return rows(self._schema, {**names, **made})


class PushdownJournalSourceReader(JournalSourceReader):
    """Reads journals, and skips rows that Spark's filters would drop.

    This is a separate class because Spark rejects a reader with `pushFilters` while the setting
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that compare a column with text by `=` or IN; return the others."""
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
