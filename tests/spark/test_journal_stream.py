"""`kestrel.journal`, read as a stream: journals of real servers, followed by real Spark.

`tests/integration/test_journal_streams.py` has what does not need Spark.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kestrelmq.client import Client
from kestrelmq.spark.session import start_query
from tests.spark.spools import adds, write
from tests.spark.streams import drain, numbered
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess

CONFIG = """\
[default]
max_memory_size = "20 KiB"
default_journal_size = "1 GiB"
disable_aggressive_rewrites = true
"""
COLUMNS = "queue string, operation string, size int, data binary, sequence long, file string"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def follow(spark: SparkSession, path: Path, schema: str = COLUMNS, **options: str) -> DataFrame:
    """Return a stream of journals."""
    reader = spark.readStream.format("kestrel.journal").schema(schema)
    return reader.options(**{"wait": "0s", **options}).load(str(path))


def rows_in(spark: SparkSession, root: Path) -> list[Row]:
    """Return the rows of the table, in the order of the journals."""
    rows = spark.read.parquet(str(root / "table"))
    return rows.orderBy("queue", "sequence").collect()


def items_in(spark: SparkSession, root: Path, queue: str = "work") -> list[bytes]:
    """Return the items in the table that were added to a queue."""
    rows = [row for row in rows_in(spark, root) if row.queue == queue]
    return [bytes(row.data) for row in rows if row.operation in {"ADDX", "ADD"}]


def test_a_query_that_runs_on_tells_its_backlog(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """New items come while it runs, those of new queues, too; the progress has what is left."""
    rows = follow(spark, server.queue_path, wait="1s", maxBytesPerTrigger="10 KiB")
    writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    items = [b"%d " % number + bytes(900) for number in range(100)]
    client.put_many("work", items)
    query = start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    try:
        until(lambda: rows_read(query) == 100)
        client.put("more", b"of another queue")
        until(lambda: rows_read(query) == 101)
        backlogs = [backlog(progress) for progress in query.recentProgress]
    finally:
        query.stop()
    assert items_in(spark, tmp_path) == items
    assert items_in(spark, tmp_path, "more") == [b"of another queue"]
    assert max(one["bytes"] for one in backlogs) > 50_000
    assert max(one["files"] for one in backlogs) > 2
    assert backlogs[-1] == {"bytes": 0, "files": 0, "queues": 0}


def rows_read(query: StreamingQuery) -> int:
    """Return how many rows a query has read, at a little cost."""
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def backlog(progress: Any) -> dict[str, int]:
    """Return the backlog in a progress."""
    found: dict[str, int] = json.loads(progress["sources"][0]["latestOffset"])
    return found


def test_the_same_columns_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """All of them, of several queue paths with `spool`; the data only if it is requested."""
    for name in ("one", "two"):
        write(tmp_path / "spools" / name / "q", adds([name.encode(), b"\x00"]))
    path = str(tmp_path / "spools" / "*")
    table = spark.read.format("kestrel.journal").load(path)
    rows = spark.readStream.format("kestrel.journal").load(path)
    assert rows.schema == table.schema
    drain(rows, tmp_path)
    found = spark.read.parquet(str(tmp_path / "table"))
    order = ("spool", "position")
    assert found.orderBy(*order).collect() == table.orderBy(*order).collect()

    drain(follow(spark, tmp_path / "spools" / "one", "queue string, SIZE int"), tmp_path / "less")
    less = spark.read.parquet(str(tmp_path / "less" / "table")).collect()
    assert sorted(less) == [("q", 1), ("q", 3)]


def test_available_now_ends_at_what_was_there(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """What is added while the query runs is for the next one."""
    client.put_many("work", numbered(300))
    rows = follow(spark, server.queue_path, maxBytesPerTrigger="1 KiB")
    read: list[int] = []

    def add_more(batch: DataFrame, number: int) -> None:
        client.put_many("work", numbered(10, 1000 + 10 * number))
        read.append(batch.count())

    writer = rows.writeStream.foreachBatch(add_more).trigger(availableNow=True)
    query = start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert query.awaitTermination(PATIENCE)
    assert (sum(read), len(read) > 3) == (300, True)


def test_errors_say_what_is_allowed(spark: SparkSession, tmp_path: Path) -> None:
    """What our code raises is in Spark's error."""
    write(tmp_path / "spool" / "q", adds([b"1"]))
    rows = follow(spark, tmp_path / "spool", startingOffsets="yesterday")
    with pytest.raises(PySparkException, match="earliest, latest, or a time"):
        drain(rows, tmp_path)
