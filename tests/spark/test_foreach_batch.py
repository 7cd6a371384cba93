"""`foreachBatch` with Delta Lake: each batch once, as `docs/spark-lake.md` shows it."""

from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from kestrelmq.spark.session import start_query
from tests.spark.spools import adds, write
from tests.support.patience import PATIENCE


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
