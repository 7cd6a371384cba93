"""Columns that are written: names in any case, and what Spark casts by itself."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kestrelmq.errors import ConfigError
from kestrelmq.spark.sinks.written_columns import COLUMN_RULES, cast, check

MIDNIGHT = datetime(2024, 5, 1, tzinfo=UTC)
MIDNIGHT_MS = int(MIDNIGHT.timestamp() * 1000)
BERLIN_MS = 2 * 3_600_000


def schema_of(**columns: DataType) -> StructType:
    """Return a schema of these columns."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("queue", pa.array([7, None], pa.int8()), ["7", None]),
        ("queue", pa.array([True]), ["true"]),
        ("queue", pa.array([Decimal(12345678901234567890)]), ["12345678901234567890"]),
        ("queue", pa.array([date(2024, 5, 1)]), ["2024-05-01"]),
        ("queue", pa.nulls(1), [None]),
        ("data", pa.nulls(1), [None]),
        ("expiry", pa.nulls(2), [None, None]),
        ("sequence", pa.nulls(1), [None]),
        ("queue", pa.array(["a"], pa.large_string()), ["a"]),
        ("data", pa.array(["ä"]), ["ä".encode()]),
        ("data", pa.array([b"\xff"], pa.large_binary()), [b"\xff"]),
        ("sequence", pa.array([3], pa.int16()), [3]),
        ("sequence", pa.array([Decimal("-2.99")]), [-2]),
        ("add_time", pa.array([5], pa.int32()), [5]),
        ("add_time", pa.array([Decimal("1700000000000.9")]), [1_700_000_000_000]),
        ("add_time", pa.array([1.7e12, None]), [1_700_000_000_000, None]),
        ("expiry", pa.array([MIDNIGHT], pa.timestamp("us", "UTC")), [MIDNIGHT_MS]),
        ("expiry", pa.array([MIDNIGHT], pa.timestamp("us", "Asia/Tokyo")), [MIDNIGHT_MS]),
        (
            "expiry",
            pa.array([MIDNIGHT.replace(tzinfo=None)], pa.timestamp("us")),
            [MIDNIGHT_MS - BERLIN_MS],
        ),
        ("add_time", pa.array([date(2024, 5, 1), None]), [MIDNIGHT_MS - BERLIN_MS, None]),
    ],
)
def test_values_are_cast(name: str, given: pa.Array, expected: list[object]) -> None:
    """As Spark does; a time without a zone is the session's."""
    batch = pa.RecordBatch.from_arrays([given], names=[name.upper()])

    found = cast(batch, "Europe/Berlin")

    assert found.schema.names == [name]
    assert found.column(0).to_pylist() == expected


@pytest.mark.parametrize(
    ("zone", "seconds"),
    [
        ("UTC", 0),
        ("Z", 0),
        ("UT", 0),
        ("+01:00", 3600),
        ("-1", -3600),
        ("GMT+1", 3600),
        ("GMT-08:00", -28800),
        ("UTC+0530", 19800),
        ("+01:30:15", 5415),
        ("-1:5", -3900),
    ],
)
def test_local_times_may_be_in_any_zone_that_spark_writes(zone: str, seconds: int) -> None:
    """Java's default for a zone without a name is such as GMT+01:00."""
    times = pa.array([MIDNIGHT.replace(tzinfo=None), None], pa.timestamp("us"))

    found = cast(pa.RecordBatch.from_arrays([times], names=["expiry"]), zone)

    assert found.column(0).to_pylist() == [MIDNIGHT_MS - seconds * 1000, None]


def test_a_number_that_is_none_is_an_error() -> None:
    """Spark would refuse it as well. The error names the column."""
    for value in (float("nan"), 1e30):
        with pytest.raises(ValueError, match=r"column 'sequence': .*converting to int64"):
            cast(pa.RecordBatch.from_pydict({"sequence": [value]}))


def test_columns_are_checked_before_anything_is_written() -> None:
    """Any case, every type that can be cast; nothing twice."""
    allowed = tuple(COLUMN_RULES)
    times = (LongType(), DoubleType(), DecimalType(20, 3), TimestampType(), TimestampNTZType())
    for time in (*times, DateType(), ByteType(), NullType()):
        check("writing", schema_of(DATA=BinaryType(), Expiry=time, add_TIME=time), allowed)
    texts = (StringType(), CharType(3), BooleanType(), DateType())
    for queue in (*texts, ByteType(), DecimalType(38, 0), NullType()):
        check("writing", schema_of(data=StringType(), Queue=queue), allowed)

    for schema, message in (
        (schema_of(data=BinaryType(), Data=BinaryType()), "column 'Data' occurs twice"),
        (schema_of(data=LongType()), "column 'data' cannot be bigint: allowed are binary"),
        (schema_of(data=StringType(), expiry=StringType()), "'expiry' cannot be string"),
        (schema_of(data=StringType(), colour=StringType()), "'colour' is unknown: allowed are"),
        (schema_of(queue=StringType()), "column 'data' is missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            check("writing", schema, allowed)
