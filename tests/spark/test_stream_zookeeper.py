"""`kestrel` with servers that ZooKeeper knows: a real ZooKeeper, and two real servers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from tests.spark.streams import QUEUE, drain, items_in, numbered
from tests.support.server import ServerProcess, running_server
from tests.support.zookeeper import SERVE_ON_LOOPBACK, ZooKeeper

PREFIX = "/services/kestrel"


class Cluster:
    """Servers in the sets of one ZooKeeper."""

    def __init__(self, zookeeper: ZooKeeper, servers: list[ServerProcess]) -> None:
        self.servers = servers
        self.options = {"zookeeper": zookeeper.hosts, "pathPrefix": PREFIX, "queue": QUEUE}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Run ZooKeeper and two servers, which join it before they are ready."""
    monkeypatch.setattr(ServerProcess, "command", SERVE_ON_LOOPBACK)
    zookeeper = ZooKeeper(tmp_path)
    config = f'[zookeeper]\nhosts = ["{zookeeper.hosts}"]\npath_prefix = "{PREFIX}"\n'
    with ExitStack() as stack:
        stack.callback(zookeeper.stop)
        zookeeper.start()
        servers = [
            stack.enter_context(running_server(tmp_path / name, config=config))
            for name in ("one", "two")
        ]
        yield Cluster(zookeeper, servers)


def test_zookeeper_knows_the_servers_of_every_read_and_write(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """A table is written to whoever takes items; a stream reads from all of them."""
    rows = spark.range(600).selectExpr("cast(id as string) AS data").repartition(4)
    rows.write.format("kestrel").options(**cluster.options).mode("append").save()
    for place, server in enumerate(cluster.servers):
        with Client(server.address) as direct:
            direct.put_many(QUEUE, numbered(10, 600 + 10 * place))

    reader = spark.readStream.format("kestrel").options(**cluster.options, wait="200ms")
    drain(reader.load(), tmp_path)
    assert sorted(map(int, items_in(spark, tmp_path))) == list(range(620))
    read_from = spark.read.parquet(str(tmp_path / "table")).select("server").distinct().collect()
    assert {row[0] for row in read_from} == {server.address for server in cluster.servers}
