"""`kestrel`: live servers as streams and tables, and as their sink, end to end.

`tests/integration/test_live_streams.py` has streams without Spark.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.pipelines import ArchiveOptions, archive, restore
from kestrelmq.spark.session import start_query
from kestrelmq.spark.sources.refusals import QueueCannotBeRead
from tests.spark.spools import adds, load, write
from tests.spark.streams import QUEUE, drain, items_in, numbered, stream
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server


def test_a_cluster_is_drained_in_batches(
    spark: SparkSession, cluster: str, client: Client, servers: list[ServerProcess], tmp_path: Path
) -> None:
    """Every item once, in each server's order, in limited batches; a later query goes on."""
    client.put_many(QUEUE, numbered(3000))
    rows = stream(spark, cluster, maxItemsPerTrigger="1000", minPartitions="3")

    batches = drain(rows, tmp_path)
    client.put_many(QUEUE, numbered(10, 3000))
    drain(rows, tmp_path)

    assert max(batches) <= 1000
    assert sum(batches) == 3000
    assert sorted(map(int, items_in(spark, tmp_path))) == list(range(3010))
    table = spark.read.parquet(str(tmp_path / "table"))
    sizes = table.where("queue = 'work' AND size = length(data) AND read_time > '2023-11-14'")
    assert {row[0] for row in sizes.select("server").distinct().collect()} == {
        server.address for server in servers
    }
    assert sizes.select("position").distinct().count() == 3010
    times = "add_time > '2023-11-14' AND add_time <= read_time"
    told = table.where(f"deliveries = 1 AND expiry IS NULL AND {times}")
    assert told.count() == 3010


def test_a_source_that_comes_up_too_late_is_started_again(
    spark: SparkSession, cluster: str, client: Client, tmp_path: Path
) -> None:
    """On a busy machine a source's process may not connect in the time that Spark gives it."""
    client.put_many(QUEUE, numbered(5))
    python, late = Path(spark.sparkContext.pythonExec), tmp_path / "late"
    assert python.parent.name.startswith("kestrelmq-spark-python-")  # it is the session's own
    script = python.read_text()
    waits = f"""
case "$*" in *python_streaming_source_runner*)
    [ -e {late} ] || {{ touch {late}; exec sleep 20; }} ;;
esac
"""
    python.write_text(script.replace("\n", waits, 1))
    try:
        assert drain(stream(spark, cluster), tmp_path) == [5]
    finally:
        python.write_text(script)
    assert late.exists()


def test_a_table_is_what_waits(spark: SparkSession, cluster: str, client: Client) -> None:
    """Nothing is taken, and another table has what waits then."""
    client.put_many(QUEUE, numbered(500))
    reader = spark.read.format("kestrel").options(servers=cluster, queue=QUEUE, minPartitions="4")
    rows = reader.load()
    assert sorted(int(row[0]) for row in rows.select("data").collect()) == list(range(500))
    assert rows.where("deliveries IS NULL AND read_time >= add_time").count() == 500
    client.put_many(QUEUE, numbered(5, 500))
    assert reader.load().count() == 505
    assert reader.option("queue", "nothing").load().count() == 0
    with pytest.raises(PySparkException, match="= '/s' of reading kestrel is unknown"):
        reader.option("stagingLocation", "/s").load().count()


def test_a_table_of_servers_that_are_away_is_an_error(spark: SparkSession) -> None:
    """No rows would say that the queue is empty; the error says which server, and why."""
    reader = spark.read.format("kestrel").options(servers="127.0.0.1:1", queue=QUEUE)
    with pytest.raises(
        PySparkException, match=r"no server can be asked .*: 127\.0\.0\.1:1: connection ref"
    ):
        reader.load().count()


@pytest.mark.parametrize("cause", ["damaged", "quiescent"])
def test_a_queue_that_is_not_given_is_an_error(
    spark: SparkSession, tmp_path: Path, cause: str
) -> None:
    """A table and `availableNow` name queue and server; other servers do not make up for it."""
    write(tmp_path / "bad" / "queues" / QUEUE, adds([b"kept"]), tail=b"\x63" * 30)
    with running_server(tmp_path / "good") as good, running_server(tmp_path / "bad") as bad:
        with Client(good.address) as client:
            client.put_many(QUEUE, numbered(5))
        if cause == "quiescent":
            with Client(bad.address) as client:
                client.set_status("quiescent")
        cluster = f"{good.address},{bad.address}"
        message = f"queue 'work' on {bad.address} cannot be read: .*{cause}"
        with pytest.raises(PySparkException, match=message):
            drain(stream(spark, cluster), tmp_path)
        reader = spark.read.format("kestrel").options(servers=cluster, queue=QUEUE)
        with pytest.raises(PySparkException, match=message):
            reader.load().count()
        options = ArchiveOptions(ClusterOptions(cluster), [QUEUE], str(tmp_path / "archive"))
        with pytest.raises(QueueCannotBeRead, match=message):
            archive(spark, options).awaitTermination(60)

        with Client(good.address) as client:
            assert len(list(client.consume(QUEUE, idle_timeout=0))) == 5


def test_rows_become_items_of_the_queues_they_name(
    spark: SparkSession, cluster: str, client: Client
) -> None:
    """Text is stored as UTF-8; an expiry that passed makes an item that nobody gets."""
    rows = spark.createDataFrame(
        [("one", "ä", 0), ("two", "b", None), ("two", "gone", 1)],
        "queue string, data string, expiry long",
    )
    rows.write.format("kestrel").options(servers=cluster).mode("append").save()

    assert client.get("one") == "ä".encode()
    assert client.get("two") == b"b"
    assert client.get("two") is None


def test_written_items_are_delayed(spark: SparkSession, cluster: str, client: Client) -> None:
    """They count in their queue at once, and are read only when they are due."""
    rows = spark.range(10).selectExpr("cast(id AS string) AS data")
    writer = rows.write.format("kestrel").options(servers=cluster, queue="late", delay="1 hour")
    writer.mode("append").save()

    found = [one.values for one in client.queues() if one.name == "late"]
    assert sum(int(values["delayed"]) for values in found) == 10
    assert client.get("late") is None


def test_errors_of_a_write_name_what_is_wrong(spark: SparkSession, cluster: str) -> None:
    """A wrong column, a wrong mode: nothing is written."""
    rows = spark.range(1).selectExpr("'q' AS queue", "'x' AS data", "1 AS colour")
    writer = rows.write.format("kestrel").options(servers=cluster)
    with pytest.raises(PySparkException, match="column 'colour' is unknown"):
        writer.mode("append").save()
    with pytest.raises(PySparkException, match='use mode\\("append"\\)'):
        rows.drop("colour").write.format("kestrel").options(servers=cluster).mode(
            "overwrite"
        ).save()


def test_a_full_queue_is_back_pressure(spark: SparkSession, tmp_path: Path) -> None:
    """The write waits for readers to make room, and no row is lost."""
    config = "[queues.small]\nmax_items = 20\n"
    got: list[bytes] = []

    def consume(address: str) -> None:
        with Client(address) as client:
            got.extend(client.consume("small", idle_timeout=PATIENCE, max_items=400))

    with running_server(tmp_path, config=config) as server:
        consumer = Thread(target=consume, args=(server.address,))
        consumer.start()
        rows = spark.range(400).selectExpr("cast(id AS string) AS data")
        writer = rows.write.format("kestrel").options(servers=server.address, queue="small")
        writer.mode("append").save()
        consumer.join()

    assert sorted(map(int, got)) == list(range(400))


def test_a_queue_that_stays_full_fails_the_write(spark: SparkSession, tmp_path: Path) -> None:
    """After its patience the query fails and says why."""
    with running_server(tmp_path, config="[queues.small]\nmax_items = 5\n") as server:
        rows = spark.range(10).selectExpr("cast(id AS string) AS data").coalesce(1)
        writer = rows.write.format("kestrel").options(servers=server.address, queue="small")
        with pytest.raises(PySparkException, match="5 items of queue 'small' could not be stored"):
            writer.option("patience", "300ms").mode("append").save()


def test_rows_that_can_never_be_items_are_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    """The others are stored, once; without a place for dead letters the write fails at once."""
    rows = spark.createDataFrame(
        [
            ("small", b"x" * 101),
            ("small", b"fits"),
            ("new", b"x" * 201),
            ("a/b", b"1"),
            ("q", None),
        ],
        "queue string, data binary",
    ).coalesce(1)
    config = "[default]\nmax_item_size = 200\n[queues.small]\nmax_item_size = 100\n"
    with running_server(tmp_path, config=config) as server, Client(server.address) as client:
        writer = rows.write.format("kestrel").options(servers=server.address).mode("append")
        writer.option("deadLetterPath", str(tmp_path / "dead")).save()
        assert list(client.consume("small", idle_timeout=0)) == [b"fits"]
        for queue, reason in (
            ("small", "has 101 bytes, and the servers take at most 100"),
            ("q", "'data' must not be null"),
        ):
            with pytest.raises(PySparkException, match=reason):
                rows.where(f"queue = '{queue}'").write.format("kestrel").options(
                    servers=server.address
                ).mode("append").save()

    dead = spark.read.parquet(str(tmp_path / "dead")).orderBy("queue").collect()
    assert [(row.queue, row.data and len(row.data)) for row in dead] == [
        ("a/b", 1),
        ("new", 201),
        ("q", None),
        ("small", 101),
    ]
    mended = spark.read.parquet(str(tmp_path / "dead")).where("queue IN ('new', 'small')")
    mended.write.parquet(str(tmp_path / "mended"))
    assert restore(spark, str(tmp_path / "mended"), str(tmp_path / "spool")) == 2
    assert set(load(tmp_path / "spool")) == {"new", "small"}
    with pytest.raises(ValueError, match="a column 'add_time' or 'read_time'"):
        restore(spark, str(tmp_path / "mended"), str(tmp_path / "spool"), since=datetime.now(UTC))


def test_a_batch_that_is_run_again_is_stored_once(
    spark: SparkSession, cluster: str, client: Client, tmp_path: Path
) -> None:
    """By the numbers of its rows, unless that was not wanted."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("\n".join(map(str, range(300))))
    for queue, once, times in (("once", "true", 1), ("often", "false", 2)):
        for _ in range(2):
            rows = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "data")
            writer = rows.writeStream.format("kestrel").options(servers=cluster, queue=queue)
            writer = writer.options(exactlyOnce=once, checkpointLocation=str(tmp_path / queue))
            assert start_query(writer.trigger(availableNow=True)).awaitTermination(PATIENCE)
            for file in (tmp_path / queue / "commits").iterdir():
                file.unlink()
        found = sorted(map(int, client.consume(queue, idle_timeout=0)))
        assert found == sorted([*range(300)] * times)


def test_a_stream_from_queue_to_queue(spark: SparkSession, tmp_path: Path) -> None:
    """Source and sink together: every item moves once. One server is on a Unix socket."""
    with (
        tempfile.TemporaryDirectory() as sockets,  # the path of a socket has few bytes
        running_server(tmp_path / "a", "--memcache-path", f"{sockets}/memcache"),
        running_server(tmp_path / "b") as other,
    ):
        cluster = f"unix:{sockets}/memcache,{other.address}"
        with Client(cluster) as client:
            client.put_many(QUEUE, numbered(300))
            writer = stream(spark, cluster).select("data").writeStream.format("kestrel")
            writer = writer.options(servers=cluster, queue="moved")
            writer = writer.option("checkpointLocation", str(tmp_path / "c"))
            assert start_query(writer.trigger(availableNow=True)).awaitTermination(PATIENCE)

            moved = sorted(map(int, client.consume("moved", idle_timeout=0)))
            assert moved == list(range(300))
            assert client.get(QUEUE) is None
