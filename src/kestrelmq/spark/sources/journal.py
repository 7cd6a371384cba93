"""`kestrel.journal`: read journals as a table with one row for each operation, and write journals.

`journal_stream` reads them as a stream.

Rows come file by file, in the order of the file. A file is read up to the size it had when the
query was planned, so a journal that grows meanwhile gives the same rows whenever it is read. A
torn record at the end of a queue's last file is not damage: it is being written, or was when the
machine crashed. It yields no row, just as a server loads no item from it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark.sinks.journal import JournalWriter
from kestrelmq.spark.sources.journal_options import (
    JournalReadOptions,
    journal_options,
    journal_read_options,
    journal_stream_options,
    journal_write_path,
)
from kestrelmq.spark.sources.journal_rows import JOURNAL_SCHEMA, RowMaker
from kestrelmq.spark.sources.journal_stream import SEQUENCE_COLUMN, JournalStreamReader
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import SpoolFile, list_files
from kestrelmq.spark.tables import (
    SPOOL_COLUMN,
    TableSource,
    divide_by_cost,
    with_spool,
)

JOURNAL_FORMAT: Final = "kestrel.journal"
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
    on_demand = StructType([*SPOOL_COLUMN, *SEQUENCE_COLUMN])

    def schema(self) -> StructType:
        """Return the columns; with several queue paths, the column `spool` is one of them."""
        options = journal_options(self.options)
        return self.picked(options.columns, lambda: with_spool(self.table, options.path))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        self.check_asked(schema)
        if any(name.lower() in SEQUENCE_COLUMN.names for name in schema.names):
            raise ConfigError("schema of kestrel.journal: 'sequence' is for spark.readStream only")
        options = journal_read_options(self.options)
        kind = PushdownJournalSourceReader if options.pushdown else JournalSourceReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's
        """Return a reader of a stream of the columns of `schema`."""
        self.check_asked(schema)
        return JournalStreamReader(journal_stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return a writer of rows of `schema`."""
        return JournalWriter(journal_write_path(self.options), schema, overwrite=overwrite)


class JournalSourceReader(DataSourceReader):
    """Reads journals."""

    def __init__(self, options: JournalReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = RowMaker(schema, options.mode, options.batch_rows)
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
        return self._rows.joined(parts)

    def _allows(self, column: str, value: str) -> bool:
        return column not in self._allowed or value in self._allowed[column]

    def _read_file(self, file: SpoolFile) -> Iterator[pa.RecordBatch]:
        view = open_view(file)
        operations = self._allowed.get("operation")
        return self._rows.batches(file, view, replayed_only=False, operations=operations)


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
