"""Check and cast the columns of rows to write; names may be in any case.

A type is accepted if an INSERT in Spark would cast it to that of the column. A type that an INSERT
would reject, such as text for a time, is an error before anything is written. A time that is a
number is milliseconds since the epoch.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark.tables import fields_by_name

_WHOLE: Final = ("long", "integer", "short", "byte")
_TEXT: Final = ("string", "varchar", "char")
_NUMBER: Final = (*_WHOLE, "decimal", "double", "float")
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?(?::?(\d{2}))?", re.ASCII
)
_UTC: Final = frozenset({"Z", "UT"})
"""Names of UTC that Java knows and Arrow does not."""
_TIME: Final = ("timestamp", "timestamp_ntz", "date")


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The types that a column may have, by Spark's names, and how Arrow casts them."""

    types: tuple[str, ...]
    cast: Callable[[pa.Array, str], pa.Array]


def _to_text(column: pa.Array, _zone: str) -> pa.Array:
    return column.cast(pa.string())


def _to_binary(column: pa.Array, _zone: str) -> pa.Array:
    return column.cast(pa.binary())


def _to_whole(column: pa.Array, _zone: str = "") -> pa.Array:
    """Cast to whole numbers as Spark does: fractions are truncated."""
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return column.cast(pa.int64())
    return pc.cast(pc.trunc(column), pa.int64(), safe=True)


def _to_milliseconds(column: pa.Array, zone: str) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    if not pa.types.is_timestamp(column.type):
        return _to_whole(column)
    if column.type.tz is None:
        column = _in_zone(column, zone)
    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _in_zone(column: pa.Array, zone: str) -> pa.Array:
    """Return local times as points in time; `zone` is as Spark has it: a region or an offset."""
    offset = _OFFSET.fullmatch(zone)
    if offset is not None:
        sign, *parts = offset.groups("0")
        hours, minutes, seconds = map(int, parts)
        ahead = timedelta(hours=hours, minutes=minutes, seconds=seconds) * int(f"{sign}1")
        column, zone = pc.subtract_checked(column, pa.scalar(ahead, pa.duration("us"))), "UTC"
    # As in Spark, a local time that occurs twice means the earlier one. A local time that the
    # clock skips becomes the first moment after the gap.
    return pc.assume_timezone(
        column, "UTC" if zone in _UTC else zone, ambiguous="earliest", nonexistent="latest"
    )


COLUMN_RULES: Final[Mapping[str, ColumnRule]] = {
    "queue": ColumnRule((*_TEXT, *_WHOLE, "decimal", "boolean", "date"), _to_text),
    "data": ColumnRule(("binary", *_TEXT), _to_binary),
    "add_time": ColumnRule((*_NUMBER, *_TIME), _to_milliseconds),
    "expiry": ColumnRule((*_NUMBER, *_TIME), _to_milliseconds),
    "due": ColumnRule((*_NUMBER, *_TIME), _to_milliseconds),
    "sequence": ColumnRule(_NUMBER, _to_whole),
}
"""All columns that can be written, by name in lower case."""


def check(purpose: str, schema: StructType, allowed: Sequence[str]) -> None:
    """Check that the columns of `schema` are among `allowed`, and have types that can be cast.

    Raises:
        ConfigError: a column is unknown, occurs twice, or has a type that cannot be cast; or there
            is no column `data`.
    """
    fields = fields_by_name(purpose, schema, allowed)
    for name, field in fields.items():
        # Spark has the type void for a column that is null in every row.
        types = COLUMN_RULES[name].types
        if field.dataType.typeName() not in {*types, "void"}:
            raise ConfigError(
                f"{purpose}: column {field.name!r} cannot be "
                f"{field.dataType.simpleString()}: allowed are {', '.join(types)}"
            )
    if "data" not in fields:
        raise ConfigError(f"{purpose}: column 'data' is missing")


def cast(batch: pa.RecordBatch, zone: str = "UTC") -> pa.RecordBatch:
    """Return a batch with names in lower case, and with every column cast to what is written.

    Args:
        batch: rows of a schema that passed `check`.
        zone: the time zone of dates, and of times without one.

    Raises:
        ValueError: a number is NaN or too large; the error names the column.
    """
    names = [name.lower() for name in batch.schema.names]
    columns = [_cast(name, batch.column(place), zone) for place, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _cast(name: str, column: pa.Array, zone: str) -> pa.Array:
    try:
        return COLUMN_RULES[name].cast(column, zone)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name!r}: {error}") from None


def session_zone() -> str:
    """Return the time zone of the Spark session that runs this task; UTC outside a task."""
    context = TaskContext.get()
    zone = context.getLocalProperty("spark.sql.session.timeZone") if context is not None else None
    return zone or "UTC"
