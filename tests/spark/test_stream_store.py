"""Streams and tables of live queues whose batches are staged in a store.

`tests/integration/test_spark_store.py` has a crash at every step, without Spark, and
`test_live_streams.py` there a session that is killed.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from tests.spark.streams import QUEUE, drain, items_in, numbered, register_killed, stream
from tests.support.object_store import BUCKET, SECRET_KEY, ObjectStore
from tests.support.server import ServerProcess


def staged_in(store: ObjectStore, name: str) -> Mapping[str, str]:
    """Return the options that let batches be staged in a store."""
    return {"staging_location": f"s3://{BUCKET}/{name}", **store.source_options}


def test_a_worker_that_is_killed_is_replaced(
    spark: SparkSession, server: ServerProcess, store: ObjectStore, tmp_path: Path
) -> None:
    """Spark runs its task again, which reads the same; items wait on two partitions."""
    marker = tmp_path / "killed"

    register_killed(spark, "yielding", marker)
    options = {**staged_in(store, "worker"), "min_partitions": "2"}
    with Client(server.address) as client:
        client.put_many(QUEUE, numbered(300))
        drain(stream(spark, server.address, tmp_path, form="kestrel.killed", **options), tmp_path)
        assert client.get(QUEUE) is None

    assert marker.exists()
    assert sorted(items_in(spark, tmp_path)) == sorted(numbered(300))


def test_a_dataframe_is_one_batch(
    spark: SparkSession, server: ServerProcess, store: ObjectStore
) -> None:
    """All actions see the same rows; another session can read it by its name."""
    options = staged_in(store, "tables")
    reader = spark.read.format("kestrel").options(servers=server.address, queue=QUEUE, **options)
    with Client(server.address) as client:
        client.put_many(QUEUE, numbered(40))
        rows = reader.load().selectExpr("*", "int(string(data)) AS number")
        assert rows.count() == 40
        client.put_many(QUEUE, numbered(5, 100))
        assert rows.where("number < 30").count() == 30
        assert rows.alias("a").join(rows.alias("b"), "number").count() == 40
        assert rows.where("add_time IS NULL OR deliveries <> 1").count() == 0
        (batch,) = store.names("tables")
        other = reader.load()
        assert other.count() == 5
        assert reader.load().count() == 0
        assert client.get(QUEUE) is None

    again = reader.option("batch", batch).load()
    assert sorted(int(row.data) for row in again.collect()) == list(range(40))
    with pytest.raises(PySparkException, match="'nothing' is not allowed"):
        reader.option("batch", "nothing").load().count()


def test_errors_say_what_is_wrong_and_no_secret(
    spark: SparkSession, server: ServerProcess, store: ObjectStore
) -> None:
    """A store refuses."""
    options = staged_in(store, "errors")
    with Client(server.address) as client:
        client.put_many(QUEUE, numbered(5))
    with store.checking_rights():
        reader = spark.read.format("kestrel").options(servers=server.address, queue=QUEUE)
        with pytest.raises(PySparkException, match="s3://bucket/errors") as refused:
            reader.options(**options).load().count()
    assert SECRET_KEY not in str(refused.value)
