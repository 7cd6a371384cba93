"""`kestrel` over several queues: lists and patterns, as streams, tables and archives."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.spark.live.options import ClusterOptions
from kestrelmq.spark.pipelines import ArchiveOptions, archive, archived, read_archive
from kestrelmq.spark.pipelines.archive import ArchivedQueue
from tests.spark.spools import adds, write
from tests.spark.streams import drain, numbered, register_killed, stream
from tests.support.patience import PATIENCE
from tests.support.server import running_server

QUEUES = ("orders_a", "orders_b", "orders_c")


def items_by_queue(spark: SparkSession, root: Path) -> dict[str, list[int]]:
    """Return the numbers in the table by queue, sorted."""
    rows = spark.read.parquet(str(root / "table")).select("queue", "data").collect()
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row.queue, []).append(int(row.data))
    return {queue: sorted(numbers) for queue, numbers in sorted(found.items())}


def test_a_worker_that_is_killed_over_several_queues_is_replaced(
    spark: SparkSession, cluster: str, client: Client, tmp_path: Path
) -> None:
    """The task that follows it takes up what it had reserved in each queue."""
    for queue in QUEUES:
        client.put_many(queue, numbered(60))
    register_killed(spark, "opened", tmp_path / "killed")
    options = {"form": "kestrel.killed", "queue": ",".join(QUEUES), "min_partitions": "4"}
    drain(stream(spark, cluster, tmp_path, **options), tmp_path)

    assert (tmp_path / "killed").exists()
    drain(stream(spark, cluster, tmp_path, queue=",".join(QUEUES)), tmp_path)
    assert items_by_queue(spark, tmp_path) == {queue: list(range(60)) for queue in QUEUES}


def test_a_table_of_several_queues(
    spark: SparkSession, cluster: str, client: Client, tmp_path: Path
) -> None:
    """One batch of all of them, the same for every action; it is of its queues only."""
    for queue in QUEUES:
        client.put_many(queue, numbered(20))
    reader = spark.read.format("kestrel").options(servers=cluster, queue="orders_*")
    reader = reader.option("staging_location", str(tmp_path / "staging"))
    rows = reader.option("max_items_per_batch", "50").load()

    assert rows.count() == 50
    counts = {row.queue: row["count"] for row in rows.groupBy("queue").count().collect()}
    assert set(counts) == set(QUEUES)
    assert sum(counts.values()) == 50
    assert reader.load().count() == 10
    batch = min(one.name for one in (tmp_path / "staging").iterdir())
    assert reader.option("batch", batch).load().count() == 50
    with pytest.raises(PySparkException, match="is of queue 'orders_\\*'"):
        reader.options(batch=batch, queue="orders_a").load().count()


@pytest.mark.parametrize("queues", ["good,bad", "*"])
def test_a_damaged_queue_of_several_is_an_error(
    spark: SparkSession, tmp_path: Path, queues: str
) -> None:
    """A query that ends, and a table, take nothing then."""
    write(tmp_path / "queues" / "bad", adds([b"kept"]), tail=b"\x63" * 30)
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("good", b"1")
        message = f"queue 'bad' on {server.address} cannot be read: .*damaged"
        with pytest.raises(PySparkException, match=message):
            drain(stream(spark, server.address, tmp_path, queue=queues), tmp_path)
        reader = spark.read.format("kestrel").options(servers=server.address, queue=queues)
        with pytest.raises(PySparkException, match=message):
            reader.option("staging_location", str(tmp_path / "tables")).load().count()
        assert client.get("good") == b"1"


def test_archives_of_patterns(
    spark: SparkSession, cluster: str, client: Client, tmp_path: Path
) -> None:
    """New queues join at the next run; other queues need another archive."""

    def run(*queues: str, child: str | None = None, table: str = "table") -> dict[str, int]:
        output = str(tmp_path / table)
        options = ArchiveOptions(ClusterOptions(cluster), queues, output, child)
        assert archive(spark, options).awaitTermination(PATIENCE)
        return {one.queue: one.items for one in archived(spark, output)}

    client.put_many("orders_a", numbered(10))
    client.put_many("work", numbered(7))
    assert run("orders_*", "work") == {"orders_a": 10, "work": 7}
    client.put_many("orders_b", numbered(3))
    assert run("work", "orders_*") == {"orders_a": 10, "orders_b": 3, "work": 7}
    with pytest.raises(ConfigError, match=r"holds the queues work, orders_\*, not orders_a"):
        run("orders_a")

    assert run("orders_*", child="copy", table="copies") == {}
    client.put_many("orders_a", numbered(2))
    assert run("orders_*", child="copy", table="copies") == {"orders_a+copy": 2}
    assert len(list(client.consume("orders_a", idle_timeout=0))) == 2


def test_an_archive_of_an_earlier_version_is_continued(
    spark: SparkSession, cluster: str, client: Client, tmp_path: Path
) -> None:
    """It has a source and a staging location for each queue."""
    output = tmp_path / "table"
    for queue in ("a", "b"):
        (output / "_staging" / queue).mkdir(parents=True)
        client.put_many(queue, numbered(4))
    options = ArchiveOptions(ClusterOptions(cluster), ["b", "a"], str(output))
    for _ in range(2):
        assert archive(spark, options).awaitTermination(PATIENCE)

    assert archived(spark, str(output)) == [ArchivedQueue("a", 4, 4), ArchivedQueue("b", 4, 4)]
    assert read_archive(spark, str(output)).select("position").count() == 8
