"""`foreachBatch`: with Delta Lake as `docs/spark-lake.md` shows it, and to queues."""

from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.client import Client
from kestrelmq.spark.session import start_query
from tests.spark.spools import adds, write
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess


def test_a_batch_that_is_run_again_is_in_the_delta_table_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The table's own log says which batch was written last."""
    table, checkpoint, batches = str(tmp_path / "table"), tmp_path / "checkpoint", list[int]()

    def append(rows: DataFrame, batch: int) -> None:
        batches.append(batch)
        if DeltaTable.is_deltatable(table):
            written = DeltaTable(table).transaction_version("kestrel")
            if written is not None and written >= batch:
                return
        note = CommitProperties(app_transactions=[Transaction("kestrel", batch)])
        write_deltalake(table, rows.toArrow(), mode="append", commit_properties=note)

    def run() -> list[bytes]:
        rows = spark.readStream.format("kestrel.journal").load(str(tmp_path / "spool"))
        writer = rows.where("operation = 'ADDX'").select("queue", "data").writeStream
        writer = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(append)
        assert start_query(writer.trigger(availableNow=True)).awaitTermination(PATIENCE)
        return sorted(DeltaTable(table).to_pyarrow_table()["data"].to_pylist())

    write(tmp_path / "spool" / "q.1", adds([b"1", b"2"]))
    assert run() == [b"1", b"2"]
    for file in (checkpoint / "commits").iterdir():
        file.unlink()  # as if the driver had died before Spark wrote it
    write(tmp_path / "spool" / "q", adds([b"3"]))
    assert run() == [b"1", b"2", b"3"]
    assert batches == [0, 0, 1]


def test_two_writes_of_a_batch_to_one_queue(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    """The second one is not taken for a repetition of the first one; nor are dead letters."""
    options = {"servers": server.address, "deadLetterPath": str(tmp_path / "dead")}

    def write_twice(rows: DataFrame, _batch: int) -> None:
        for data in (b"1", b"2"):
            some = rows.where(f.col("data") == f.lit(data)).selectExpr("queue", "data")
            bad = some.selectExpr("cast(null as string) as queue", "data")
            writer = some.union(bad).write.format("kestrel").mode("append")
            writer.options(**options).save()

    write(tmp_path / "spool" / "q", adds([b"1", b"2"]))
    rows = spark.readStream.format("kestrel.journal").load(str(tmp_path / "spool"))
    writer = rows.where("operation = 'ADDX'").select("queue", "data").writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).foreachBatch(write_twice)
    assert start_query(writer.trigger(availableNow=True)).awaitTermination(PATIENCE)
    with Client(server.address) as client:
        assert {client.get("q"), client.get("q")} == {b"1", b"2"}
    dead = spark.read.parquet(str(tmp_path / "dead")).collect()
    assert sorted(bytes(row.data) for row in dead) == [b"1", b"2"]
