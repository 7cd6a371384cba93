"""Options that Spark itself adds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq import Client
from kestrelmq.spark.session import start_query
from tests.spark.spools import adds, write
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess


@pytest.fixture
def spool(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Return a queue path with one item; drop `a_view` and `a_table` at the end."""
    write(tmp_path / "spool" / "q", adds([b"x"]))
    yield tmp_path / "spool"
    spark.sql("DROP VIEW IF EXISTS a_view")
    spark.sql("DROP TABLE IF EXISTS a_table")


def test_a_table_of_sql(spark: SparkSession, spool: Path) -> None:
    """It keeps its options, except secrets; its owner and comment are none."""
    create = "CREATE TABLE a_table USING kestrel.journal OPTIONS ({}) COMMENT 'c'"
    with pytest.raises(Exception, match="option 'moode' = 'x' of reading"):
        spark.sql(create.format(f"path '{spool}', moode 'x'"))

    write(spool.parent / "other" / "p", adds([b"y"]))
    spark.sql(create.format(f"path '{spool}', columns 'queue,data', storage.secret_key 'sesame'"))

    assert spark.sql("SELECT * FROM a_table").collect() == [("q", b"x")]
    assert "sesame" not in spark.table("a_table").schema.json()
    query = f"SELECT * FROM a_table WITH (path '{spool.parent}/other')"  # noqa: S608 # of this test
    assert spark.sql(query).collect() == [("p", b"y")]


def test_a_view_of_sql(spark: SparkSession, spool: Path) -> None:
    """It keeps its options."""
    spark.sql(f"CREATE TEMPORARY VIEW a_view USING kestrel.journal OPTIONS (path '{spool}')")
    assert spark.sql("SELECT queue, data FROM a_view").collect() == [("q", b"x")]


def test_a_query_with_a_name(
    spark: SparkSession, spool: Path, server: ServerProcess, tmp_path: Path
) -> None:
    """The sink gets the name, and the checkpoint, as options."""
    rows = spark.readStream.format("kestrel.journal").load(str(spool)).select("data")
    writer = rows.writeStream.format("kestrel").queryName("named").trigger(availableNow=True)
    writer = writer.options(servers=server.address, queue="q")
    query = start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert query.awaitTermination(PATIENCE)
    with Client(server.address) as client:
        assert client.get("q") == b"x"


def test_a_wrong_option_of_a_stream_is_told_when_it_is_loaded(spark: SparkSession) -> None:
    """When the stream is started, Spark adds an error of its own."""
    reader = spark.readStream.format("kestrel").options(servers="localhost", queue="q", wiat="5s")
    with pytest.raises(Exception, match="option 'wiat' = '5s' of reading kestrel is unknown"):
        reader.load()
