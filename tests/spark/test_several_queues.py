"""`kestrel` over several queues: lists and patterns, as streams and archives."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.pipelines import ArchiveOptions, archive, archived
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
    register_killed(spark, "yielding", tmp_path / "killed")
    options = {"form": "kestrel.killed", "queue": ",".join(QUEUES), "minPartitions": "4"}
    drain(stream(spark, cluster, **options), tmp_path)

    assert (tmp_path / "killed").exists()
    drain(stream(spark, cluster, queue=",".join(QUEUES)), tmp_path)
    assert items_by_queue(spark, tmp_path) == {queue: list(range(60)) for queue in QUEUES}


@pytest.mark.parametrize("queues", ["good,bad", "*"])
def test_a_damaged_queue_of_several_is_an_error(
    spark: SparkSession, tmp_path: Path, queues: str
) -> None:
    """A query that ends takes nothing then."""
    write(tmp_path / "queues" / "bad", adds([b"kept"]), tail=b"\x63" * 30)
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("good", b"1")
        message = f"queue 'bad' on {server.address} cannot be read: .*damaged"
        with pytest.raises(PySparkException, match=message):
            drain(stream(spark, server.address, queue=queues), tmp_path)
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
    with pytest.raises(ConfigError, match=r"holds work,orders_\*, not orders_a"):
        run("orders_a")

    assert run("orders_*", child="copy", table="copies") == {}
    client.put_many("orders_a", numbered(2))
    assert run("orders_*", child="copy", table="copies") == {"orders_a+copy": 2}
    assert len(list(client.consume("orders_a", idle_timeout=0))) == 2
