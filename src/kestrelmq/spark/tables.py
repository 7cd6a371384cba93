"""What the sources have in common: a fixed table, of which a reader may ask for some columns."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark.spool import has_several_spools

Makers = Mapping[str, Callable[[], pa.Array]]
"""How to make each column; only those are made that were asked for."""


class Table(DataSource):
    """A data source with a fixed table.

    Attributes:
        format_name: what Spark calls it.
        table: its columns.
        on_demand: columns that it has if they are asked for, or are needed.
    """

    format_name: ClassVar[str]
    table: ClassVar[StructType]
    on_demand: ClassVar[StructType] = StructType()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    def schema(self) -> StructType:
        """Return the columns; a reader that asks for fewer gets fewer."""
        return self.table

    def check_asked(self, asked: StructType) -> None:
        """Check that the columns asked for are known ones, in any case, of their types.

        Raises:
            ConfigError: one is not.
        """
        types = {field.name: field.dataType for field in [*self.table, *self.on_demand]}
        source = f"schema of {self.format_name}"
        for field in asked:
            name = field.name.lower()
            if name not in types:
                raise ConfigError(
                    f"{source}: column {field.name!r} is unknown: allowed are {', '.join(types)}"
                )
            if field.dataType != types[name]:
                raise ConfigError(
                    f"{source}: column {field.name!r} cannot be {field.dataType.simpleString()}: "
                    f"it must be {types[name].simpleString()}"
                )


SPOOL_COLUMN: Final = StructType([StructField("spool", StringType(), nullable=False)])
"""Says the queue path, where a table is of several."""


def with_spool(table: StructType, path: str) -> StructType:
    """Return the columns of a table over journals: `spool` among them if `path` means several."""
    several = has_several_spools(path)
    return StructType([*table, *SPOOL_COLUMN]) if several else table


def arrow_schema(asked: StructType) -> pa.Schema:
    """Return the schema that Spark expects of batches; make it once, for it takes a while."""
    return to_arrow_schema(asked, timezone="UTC")


def rows(asked: pa.Schema, makers: Makers) -> pa.RecordBatch:
    """Make the columns that are asked for, exactly as Spark wants them."""
    return pa.RecordBatch.from_arrays(
        [makers[name.lower()]() for name in asked.names], schema=asked
    )
