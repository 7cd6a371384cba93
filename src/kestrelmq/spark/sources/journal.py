"""`kestrel.journal`: read journals as a table with one row for each operation, and write journals.

`journal_stream` reads them as a stream.

Rows come file by file, in the order of the file. A file is read up to the size it had when the
query was planned, so a journal that grows meanwhile gives the same rows whenever it is read. A
torn record at the end of a queue's last file is not damage: it is being written, or was when the
machine crashed. It yields no row, just as a server loads no item from it.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
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
from kestrelmq.spark.sources.journal_rows import JOURNAL_SCHEMA, RowMaker, TimeFilter
from kestrelmq.spark.sources.journal_stream import SEQUENCE_COLUMN, JournalStreamReader
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import SpoolFile, list_files
from kestrelmq.spark.tables import (
    SPOOL_COLUMN,
    TableSource,
    divide_by_cost,
    with_spool,
)

JOURNAL_FORMAT: Final = "kestrel.journal"
_TEXTS: Final = frozenset({"queue", "file", "operation"})
_TIMES: Final = frozenset({"add_time", "expiry", "add_ms", "expiry_ms"})
_MATCHES: Final[dict[type[Filter], Callable[[str, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda text, values: text in values,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}
_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


class JournalSource(TableSource):
    """The data source `kestrel.journal`."""

    format_name = JOURNAL_FORMAT
    table = JOURNAL_SCHEMA
    on_demand = StructType([*SPOOL_COLUMN, *SEQUENCE_COLUMN])

    def columns(self) -> StructType:
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
        self._texts: list[tuple[str, type[Filter], Any]] = []
        self._times: list[TimeFilter] = []

    def partitions(self) -> list[InputPartition]:
        """List the files and divide them into partitions."""
        files = [
            file
            for file in list_files(self._options.path)
            if self._options.chooses(file.queue)
            and self._allows("queue", file.queue)
            and self._allows("file", file.name)
        ]
        shared = divide_by_cost(files, lambda file: file.cost, self._options.partition_bytes)
        return [InputPartition(share) for share in shared]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, which is a list of files; None if there is none."""
        parts = (batch for file in partition.value or () for batch in self._read_file(file))
        return self._rows.joined(parts)

    def _allows(self, column: str, text: str) -> bool:
        return all(_MATCHES[kind](text, than) for name, kind, than in self._texts if name == column)

    def _read_file(self, file: SpoolFile) -> Iterator[pa.RecordBatch]:
        view = open_view(file)
        named = (*columns.OPERATIONS, columns.DAMAGED)
        wanted = [name for name in named if self._allows("operation", name)]
        operations = wanted if len(wanted) < len(named) else None
        return self._rows.batches(
            file, view, replayed_only=False, operations=operations, times=self._times
        )


class PushdownJournalSourceReader(JournalSourceReader):
    """Reads journals, and skips rows that Spark's filters would drop.

    This is a separate class because Spark rejects a reader with `pushFilters` while the setting
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take those that compare texts, or times; return the others."""
        for given in filters:
            kind, than = type(given), cast(Any, getattr(given, "value", None))
            path: tuple[str, ...] = getattr(given, "attribute", ())
            column = path[0] if len(path) == 1 else ""
            if column in _TIMES and kind in _COMPARISONS:
                self._times.append((column, _COMPARISONS[kind], than))
            elif column in _TEXTS and kind in _MATCHES and than is not None:
                self._texts.append((column, kind, than))
            else:
                yield given
