"""`kestrel.trace`: the items and events of files whose queues were replayed; for pipelines only.

It is not for users. `kestrelmq.spark.pipelines.history` makes its input and passes it as an option,
in compressed JSON, because options of a source are text. A hand-written option can name files to
read, as with `kestrel.journal`, and do no other harm.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark import columns, fates
from kestrelmq.spark.journal_options import DEFAULT_BATCH_ROWS, DEFAULT_PARTITION_BYTES
from kestrelmq.spark.segments import State
from kestrelmq.spark.sharing import shares
from kestrelmq.spark.spool import SpoolFile
from kestrelmq.spark.tables import arrow_schema

TRACE_FORMAT: Final = "kestrel.trace"
Kind = Literal["items", "items with data", "events"]


class TracePartition(InputPartition):
    """The files that one task traces."""

    def __init__(self, tracings: Sequence[fates.Tracing]) -> None:
        super().__init__(None)
        self.tracings = tuple(tracings)


class TraceSource(DataSource):
    """The data source `kestrel.trace`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return TRACE_FORMAT

    def schema(self) -> StructType:
        """Return the columns of items or of events."""
        is_events = self.options["kind"] == "events"
        return from_arrow_schema(fates.EVENT_SCHEMA if is_events else fates.ITEM_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the files that the options name."""
        return TraceReader(self.options["kind"], decoded(self.options["tracings"]), schema)


class TraceReader(DataSourceReader):
    """Reads items or events."""

    def __init__(self, kind: str, tracings: Sequence[fates.Tracing], schema: StructType) -> None:
        self._kind = kind
        self._tracings = tracings
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Divide the files into partitions."""
        shared = shares(self._tracings, lambda one: one.file.cost, DEFAULT_PARTITION_BYTES)
        return [TracePartition(share) for share in shared]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, TracePartition):
            return iter(())
        parts = (
            pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            for tracing in partition.tracings
            for batch in self._rows(tracing)
        )
        return columns.coalesce(parts, DEFAULT_BATCH_ROWS)

    def _rows(self, tracing: fates.Tracing) -> Iterator[pa.RecordBatch]:
        if self._kind == "events":
            return fates.happenings(tracing)
        with_data = self._kind == "items with data"
        return fates.items(tracing, with_data=with_data, rows=DEFAULT_BATCH_ROWS)


def trace(spark: SparkSession, tracings: Sequence[fates.Tracing], kind: Kind) -> DataFrame:
    """Return the items that files add, or the events in them."""
    reader = spark.read.format(TRACE_FORMAT).option("kind", kind)
    return reader.option("tracings", encoded(tracings)).load()


def encoded(tracings: Sequence[fates.Tracing]) -> str:
    """Return `tracings` as the text of an option."""
    text = json.dumps([asdict(tracing) for tracing in tracings])
    return base64.b64encode(zlib.compress(text.encode())).decode()


def decoded(option: str) -> list[fates.Tracing]:
    """Return the tracings that `encoded` turned into `option`.

    Raises:
        ConfigError: `option` is not from `encoded`.
    """
    try:
        listed = json.loads(zlib.decompress(base64.b64decode(option, validate=True)))
        return [
            fates.Tracing(
                SpoolFile(**tracing["file"]),
                _state(tracing["state"]),
                int(tracing["before"]),
                int(tracing["after"]),
            )
            for tracing in listed
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        raise ConfigError(
            "option 'tracings': not made by kestrelmq; `kestrel.trace` is for its pipelines only"
        ) from None


def _state(fields: Mapping[str, Any]) -> State:
    # JSON turns tuples into lists, and keys that are numbers into text.
    mended = {
        "head": tuple(fields["head"]),
        "open": _by_number(fields["open"]),
        "named": _by_number(fields["named"]),
    }
    return State(**{**fields, **mended})


def _by_number(entries: Mapping[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in entries.items()}
