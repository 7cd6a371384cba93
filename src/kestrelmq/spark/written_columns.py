"""Columns of rows that are written: names in any case, and every type that Spark casts by itself.

What an INSERT of Spark's would cast to text, to a whole number or to a time is taken; what it
would refuse, such as text in the place of a time, is an error before anything is written. A time is
milliseconds since the epoch if it is a number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from kestrelmq.errors import ConfigError

_WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)
_TEXT: Final = (StringType, VarcharType, CharType)
_NUMBER: Final = (*_WHOLE, DecimalType, DoubleType, FloatType)
_TIME: Final = (TimestampType, TimestampNTZType, DateType)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a column is: the types it may have, and how Arrow makes it what is written."""

    types: tuple[type[DataType], ...]
    cast: Callable[[pa.Array, str], pa.Array]


def _to_text(column: pa.Array, _zone: str) -> pa.Array:
    return column.cast(pa.string())


def _to_binary(column: pa.Array, _zone: str) -> pa.Array:
    return column.cast(pa.binary())


def _to_whole(column: pa.Array, _zone: str = "") -> pa.Array:
    """Cast as Spark does: what is behind the point is cut off."""
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return pc.cast(pc.trunc(column), pa.int64(), safe=True)


def _to_milliseconds(column: pa.Array, zone: str) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    if not pa.types.is_timestamp(column.type):
        return _to_whole(column)
    if column.type.tz is None:
        # A time that a clock skips, or shows twice, is the earlier one, as in Spark.
        column = pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="latest")
    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


KINDS: Final[Mapping[str, Kind]] = {
    "queue": Kind((*_TEXT, *_WHOLE, BooleanType), _to_text),
    "data": Kind((BinaryType, *_TEXT), _to_binary),
    "add_time": Kind((*_NUMBER, *_TIME), _to_milliseconds),
    "expiry": Kind((*_NUMBER, *_TIME), _to_milliseconds),
    "sequence": Kind(_NUMBER, _to_whole),
}
"""Every column that can be written, by its name in lower case."""


def check(purpose: str, schema: StructType, allowed: Sequence[str]) -> None:
    """Check that the columns of `schema` are among `allowed`, of types that can be cast.

    Raises:
        ConfigError: one is unknown, occurs twice, or has a type that cannot be cast.
    """
    seen: set[str] = set()
    for field in schema:
        name = field.name.lower()
        if name not in allowed:
            raise ConfigError(
                f"{purpose}: column {field.name!r} is unknown: allowed are {', '.join(allowed)}"
            )
        if name in seen:
            raise ConfigError(f"{purpose}: column {field.name!r} occurs twice")
        seen.add(name)
        if not isinstance(field.dataType, KINDS[name].types):
            names = ", ".join(kind.typeName() for kind in KINDS[name].types)
            raise ConfigError(
                f"{purpose}: column {field.name!r} cannot be "
                f"{field.dataType.simpleString()}: allowed are {names}"
            )
    if "data" not in seen:
        raise ConfigError(f"{purpose}: column 'data' is missing")


def cast(batch: pa.RecordBatch, zone: str = "UTC") -> pa.RecordBatch:
    """Return a batch with names in lower case, and text, bytes, whole numbers and milliseconds.

    Args:
        batch: rows of a schema that was checked.
        zone: the time zone of dates, and of times without one.

    Raises:
        ValueError: a number is not one, or too large.
    """
    names = [name.lower() for name in batch.schema.names]
    columns = [KINDS[name].cast(batch.column(place), zone) for place, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(columns, names=names)


def session_zone() -> str:
    """Return the time zone of the Spark session whose task this is; UTC outside a task."""
    context = TaskContext.get()
    zone = context.getLocalProperty("spark.sql.session.timeZone") if context is not None else None
    return zone or "UTC"
