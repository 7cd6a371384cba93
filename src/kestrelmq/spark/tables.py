"""Common code of the data sources: a fixed table, of which a reader may request some columns."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark.given_options import options_of_created
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import public_value
from kestrelmq.spark.storage.spool import list_files

_OPTIONS: Final = "kestrelmq.options"
"""The metadata of a column that has the options of its table."""

Thing = TypeVar("Thing")
ColumnMakers = Mapping[str, Callable[[], pa.Array]]
"""How to make each column; only the requested columns are made."""


def fields_by_name(
    purpose: str, schema: StructType, allowed: Collection[str]
) -> dict[str, StructField]:
    """Return the columns of `schema` by their names in lower case; `purpose` is for the errors.

    Raises:
        ConfigError: a column is not among those `allowed`, or occurs twice.
    """
    fields: dict[str, StructField] = {}
    for field in schema:
        name = field.name.lower()
        if name not in allowed:
            raise ConfigError(
                f"{purpose}: column {field.name!r} is unknown: allowed are {', '.join(allowed)}"
            )
        if name in fields:
            raise ConfigError(f"{purpose}: column {field.name!r} occurs twice")
        fields[name] = field
    return fields


class TableSource(DataSource):
    """A data source with a fixed table.

    Attributes:
        format_name: the name of the format in Spark.
        table: its columns.
        on_demand: columns that it has only if they are requested or needed.
    """

    format_name: ClassVar[str]
    table: ClassVar[StructType]
    on_demand: ClassVar[StructType] = StructType()

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    def schema(self) -> StructType:
        """Return all columns; a reader that requests fewer gets fewer.

        Spark does not give a Python source the options of a table of its catalog, only the columns.
        So these keep the options of CREATE TABLE, except what may be secret.
        """
        kept = {
            name: value
            for name, value in (options_of_created(self.options) or {}).items()
            if public_value(name, value) == value
        }
        metadata = {_OPTIONS: kept} if kept else None
        return StructType(
            [StructField(one.name, one.dataType, one.nullable, metadata) for one in self.columns()]
        )

    def columns(self) -> StructType:
        """Return the columns that the options ask for."""
        return self.table

    def picked(self, names: Collection[str] | None, every: Callable[[], StructType]) -> StructType:
        """Return the columns `names`, which an option has; without that, what `every` tells.

        Raises:
            ConfigError: a column is unknown.
        """
        if names is None:
            return every()
        known = {field.name: field for field in [*self.table, *self.on_demand]}
        for name in names:
            if name.lower() not in known:
                raise ConfigError(
                    f"option 'columns' of {self.format_name}: {name!r} is unknown: allowed are "
                    f"{', '.join(known)}"
                )
        return StructType([known[name.lower()] for name in names])

    def check_asked(self, asked: StructType) -> None:
        """Check that the requested columns exist, with names in any case, and have their types.

        Spark would take rows without any column for no rows.

        The options that they keep, see `schema`, count where none is given.

        Raises:
            ConfigError: a column is unknown, occurs twice or has another type; or there is none.
        """
        for field in asked:
            self.options = {**field.metadata.get(_OPTIONS, {}), **self.options}
        types = {field.name: field.dataType for field in [*self.table, *self.on_demand]}
        source = f"schema of {self.format_name}"
        if not asked.fields:
            raise ConfigError(f"{source}: it has no column: allowed are {', '.join(types)}")
        for name, field in fields_by_name(source, asked, types).items():
            if field.dataType != types[name]:
                raise ConfigError(
                    f"{source}: column {field.name!r} cannot be {field.dataType.simpleString()}: "
                    f"it must be {types[name].simpleString()}"
                )


SPOOL_COLUMN: Final = StructType().add("spool", "string", nullable=False)
"""The queue path of a row, in a table of several queue paths."""


def with_spool(table: StructType, path: JournalPath) -> StructType:
    """Return the columns of `table`, and `spool` if `path` matches several queue paths.

    Raises FileNotFoundError: nothing matches.
    """
    spools = {file.spool for file in list_files(path)}
    return StructType([*table, *SPOOL_COLUMN]) if len(spools) > 1 else table


def arrow_schema(asked: StructType) -> pa.Schema:
    """Return the schema that Spark expects of batches. This is slow: call it once a reader."""
    return to_arrow_schema(asked, timezone="UTC")


def rows(asked: pa.Schema, makers: ColumnMakers) -> pa.RecordBatch:
    """Make the requested columns, with exactly the schema that Spark expects."""
    return pa.RecordBatch.from_arrays(
        [makers[name.lower()]() for name in asked.names], schema=asked
    )


def divide_by_cost(
    things: Iterable[Thing], cost: Callable[[Thing], int], room: int
) -> list[list[Thing]]:
    """Divide `things`, in order, into shares that cost at most `room` or hold a single thing."""
    found: list[list[Thing]] = []
    left = 0
    for thing in things:
        price = cost(thing)
        if price > left or not found:
            found.append([])
            left = room
        found[-1].append(thing)
        left -= price
    return found
