"""Filters that are pushed down to journals, without Spark around the reader."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from kestrelmq.format.records import AddX, Remove
from kestrelmq.spark.sources.journal import PushdownJournalSourceReader
from kestrelmq.spark.sources.journal_options import journal_read_options
from kestrelmq.spark.sources.journal_rows import JOURNAL_SCHEMA
from tests.spark.spools import NOW, write

A_SECOND_ON = datetime.fromtimestamp(NOW / 1000 + 1, UTC)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([GreaterThan(("add_time",), A_SECOND_ON)], [2, 3]),
        ([GreaterThanOrEqual(("add_time",), A_SECOND_ON)], [1, 2, 3]),
        ([LessThan(("add_ms",), NOW + 1000)], [0]),
        ([LessThanOrEqual(("add_ms",), NOW + 1000), GreaterThan(("add_ms",), NOW)], [1]),
        ([EqualTo(("expiry",), A_SECOND_ON)], [2]),
        ([EqualTo(("expiry_ms",), 0)], [0, 1, 3]),
        ([In(("queue",), ("q", "other")), EqualTo(("operation",), "REMOVE")], [None]),
        ([StringStartsWith(("operation",), "REM"), StringContains(("file",), "q")], [None]),
        ([StringEndsWith(("queue",), "x")], []),
    ],
)
def test_what_is_taken_is_applied(
    tmp_path: Path, filters: list[Filter], found: list[int | None]
) -> None:
    """Null meets no condition, and damage behind the rows is none of them."""
    items = [AddX(NOW + n * 1000, NOW + 1000 if n == 2 else 0, bytes([n])) for n in range(4)]
    write(tmp_path / "q", [*items, Remove()], tail=b"\x63")
    options = journal_read_options({"path": str(tmp_path), "mode": "permissive"})
    wanted = StructType([JOURNAL_SCHEMA["data"]])
    reader = PushdownJournalSourceReader(options, wanted)

    others: list[Filter] = [IsNotNull(("add_time",)), StringStartsWith(("data",), "q")]
    assert list(reader.pushFilters([*filters, *others])) == others
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = pa.Table.from_batches(batches).column("data").to_pylist() if batches else []
    assert [row if row is None else row[0] for row in rows] == found
