"""What the sources have in common: a fixed table, of which a reader may ask for some columns."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError

Makers = Mapping[str, Callable[[], pa.Array]]
"""How to make each column; only those are made that were asked for."""


class Table(DataSource):
    """A data source with a fixed table.

    Attributes:
        format_name: what Spark calls it.
        table: all its columns.
    """

    format_name: ClassVar[str]
    table: ClassVar[StructType]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    def schema(self) -> StructType:
        """Return all columns; a reader that asks for fewer gets fewer."""
        return self.table

    def check_asked(self, asked: StructType) -> None:
        """Check that the columns asked for are known ones, of their types.

        Raises:
            ConfigError: one is not.
        """
        types = {field.name: field.dataType for field in self.table}
        source = f"schema of {self.format_name}"
        for field in asked:
            if field.name not in types:
                raise ConfigError(
                    f"{source}: column {field.name!r} is unknown: allowed are {', '.join(types)}"
                )
            if field.dataType != types[field.name]:
                raise ConfigError(
                    f"{source}: column {field.name!r} cannot be {field.dataType.simpleString()}: "
                    f"it must be {types[field.name].simpleString()}"
                )


def arrow_schema(asked: StructType) -> pa.Schema:
    """Return the schema that Spark expects of batches; make it once, for it takes a while."""
    return to_arrow_schema(asked, timezone="UTC")


def rows(asked: pa.Schema, makers: Makers) -> pa.RecordBatch:
    """Make the columns that are asked for, exactly as Spark wants them."""
    return pa.RecordBatch.from_arrays([makers[name]() for name in asked.names], schema=asked)
