"""`kestrel.trace`: the items and events of files whose queues were replayed; for pipelines only.

It is not for users. `kestrelmq.spark.pipelines.history` makes its input and passes it as an option,
in compressed JSON, because options of a source are text. A hand-written option can name files to
read, as with `kestrel.journal`, and do no other harm.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark.plan import columns, item_history
from kestrelmq.spark.plan.dividing import divide_by_cost
from kestrelmq.spark.plan.segments import ReplayState
from kestrelmq.spark.plan.spool import SpoolFile, to_text
from kestrelmq.spark.sources.journal_options import DEFAULT_BATCH_ROWS, DEFAULT_PARTITION_BYTES
from kestrelmq.spark.sources.tables import arrow_schema
from kestrelmq.spark.storage import storage_options

TRACE_FORMAT: Final = "kestrel.trace"
TraceKind = Literal["items", "items with data", "events"]


class TracePartition(InputPartition):
    """The files that one task traces."""

    def __init__(self, trace_tasks: Sequence[item_history.TraceTask]) -> None:
        super().__init__(None)
        self.trace_tasks = tuple(trace_tasks)


class TraceSource(DataSource):
    """The data source `kestrel.trace`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return TRACE_FORMAT

    def schema(self) -> StructType:
        """Return the columns of items or of events."""
        is_events = self.options["kind"] == "events"
        return from_arrow_schema(
            item_history.EVENT_SCHEMA if is_events else item_history.ITEM_SCHEMA
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the files that the options name."""
        found = decoded(self.options["tracings"], storage_options(self.options))
        return TraceSourceReader(self.options["kind"], found, schema)


class TraceSourceReader(DataSourceReader):
    """Reads items or events."""

    def __init__(
        self, kind: str, trace_tasks: Sequence[item_history.TraceTask], schema: StructType
    ) -> None:
        self._kind = kind
        self._trace_tasks = trace_tasks
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Divide the files into partitions."""
        shared = divide_by_cost(
            self._trace_tasks, lambda one: one.file.cost, DEFAULT_PARTITION_BYTES
        )
        return [TracePartition(share) for share in shared]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, TracePartition):
            return iter(())
        parts = (
            pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            for task in partition.trace_tasks
            for batch in self._rows(task)
        )
        return columns.coalesce(parts, DEFAULT_BATCH_ROWS)

    def _rows(self, task: item_history.TraceTask) -> Iterator[pa.RecordBatch]:
        if self._kind == "events":
            return item_history.item_events(task)
        with_data = self._kind == "items with data"
        return item_history.items(task, with_data=with_data, rows=DEFAULT_BATCH_ROWS)


def trace(
    spark: SparkSession, trace_tasks: Sequence[item_history.TraceTask], kind: TraceKind
) -> DataFrame:
    """Return the items that files add, or the events in them; all are in the same place."""
    reader = spark.read.format(TRACE_FORMAT).option("kind", kind)
    location = trace_tasks[0].file.location if trace_tasks else None
    if location is not None:
        reader = reader.options(**location.as_options())
    return reader.option("tracings", encoded(trace_tasks)).load()


def encoded(trace_tasks: Sequence[item_history.TraceTask]) -> str:
    """Return `trace_tasks` as the text of an option."""
    return base64.b64encode(zlib.compress(to_text(trace_tasks).encode())).decode()


def decoded(option: str, storage: Mapping[str, str]) -> list[item_history.TraceTask]:
    """Return the tasks that `encoded` turned into `option`; `storage` are storage options.

    Raises:
        ConfigError: `option` is not from `encoded`.
    """
    try:
        listed = json.loads(zlib.decompress(base64.b64decode(option, validate=True)))
        return [
            item_history.TraceTask(
                SpoolFile.of(task["file"], storage),
                _state(task["state"]),
                int(task["before"]),
                int(task["after"]),
            )
            for task in listed
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        raise ConfigError(
            "option 'tracings': not made by kestrelmq; `kestrel.trace` is for its pipelines only"
        ) from None


def _state(fields: Mapping[str, Any]) -> ReplayState:
    # JSON turns tuples into lists, and keys that are numbers into text.
    mended = {
        "head": tuple(fields["head"]),
        "open": _by_number(fields["open"]),
        "named": _by_number(fields["named"]),
        "counter": (fields["counter"][0], _by_number(fields["counter"][1])),
    }
    return ReplayState(**{**fields, **mended})


def _by_number(entries: Mapping[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in entries.items()}
