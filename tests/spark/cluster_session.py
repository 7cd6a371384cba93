"""Every source, sink and pipeline on a cluster: runs on the hub of `tests.support.spark_cluster`.

    python -m tests.spark.cluster_session SHARED connect|session|commands

Journals are in an object store, and tables and checkpoints in the directory SHARED. The server has
users and speaks TLS. What is run by a session of Spark, over Spark Connect, or by the commands, is
checked in the same way: by what is in queues, journals and tables afterwards.
"""

import contextlib
import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kestrelmq.client import Client
from kestrelmq.format.records import item
from kestrelmq.spark import pipelines, register, session
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.reading import (
    place_of,
    read_journals,
    read_queues,
    read_table,
    replayed_queues,
    write_journals,
)
from kestrelmq.spark.session import local_session, start_query
from tests.integration.test_tls import Site
from tests.spark.processes import PIPELINE
from tests.support.object_store import ObjectStore, running_store
from tests.support.patience import PATIENCE
from tests.support.server import running_server
from tests.support.spark_cluster import HUB, MASTER
from tests.support.users import PASSWORD, users_config

ITEMS: Final = [b"%03d" % number for number in range(200)]
SPOOL: Final = "s3://bucket/spool"
_ROWS: Final = "queue string, sequence long, data binary"
_SETTINGS: Final = session.QUICK | {
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True)
class Place:
    """Where everything is: the shared directory, the store, the server and how to sign in there."""

    shared: Path
    store: ObjectStore
    cluster: ClusterOptions

    def table(self, name: str) -> str:
        """Return the path of a table."""
        return str(self.shared / name)


@contextlib.contextmanager
def everything_around(shared: Path) -> Iterator[Place]:
    """Run the server and the store during a `with` block."""
    site = Site(shared)
    site.show(site.authority.issue("hub", names=(HUB,)))
    (shared / "password").write_text(PASSWORD)
    config = (
        f'listen_address = "{HUB}"\n'
        + site.config()
        + users_config(spark='read = ["*", "*+*"]\nwrite = ["*"]')
    )
    with (
        running_server(shared, config=config) as server,
        running_store(HUB) as store,
    ):
        cluster = ClusterOptions(
            f"{HUB}:{server.ports['memcache']}",
            user="spark",
            password_file=str(shared / "password"),
            tls_ca=str(site.authority.certificate),
        )
        yield Place(shared, store, cluster)


def end(query: StreamingQuery) -> None:
    """Wait until a query has ended."""
    assert query.awaitTermination(PATIENCE)


def by_session(spark: SparkSession, place: Place) -> None:
    """Run everything with a session: first what is about journals, then what is about servers."""
    storage: Mapping[str, str] = place.store.options
    rows = spark.createDataFrame([("jobs", n, one) for n, one in enumerate(ITEMS)], _ROWS)
    assert write_journals(rows, SPOOL, storage=storage) == len(ITEMS)
    write_journals(rows.where("sequence < 9"), SPOOL, storage=storage)
    total = len(ITEMS) + 9
    assert read_journals(spark, SPOOL, storage=storage).count() == total
    assert read_queues(spark, SPOOL, storage=storage).count() == total
    planned = replayed_queues(spark, place_of(spark, SPOOL, storage), 1)
    assert planned.select("position").distinct().count() == total
    assert sum(one.records for one in pipelines.verify(spark, SPOOL, storage=storage)) == total
    (queue,) = pipelines.replay(spark, SPOOL, place.table("replay"), storage=storage)
    assert queue.items == total
    assert pipelines.history(spark, SPOOL, storage=storage).where("fate = 'live'").count() == total
    report = pipelines.report(spark, SPOOL, place.table("report"), storage=storage)
    assert report.queues[0].items == total
    (packed,) = pipelines.pack(spark, SPOOL, "s3://bucket/packed", storage=storage)
    assert packed.items == total
    restored = pipelines.restore(spark, place.table("replay"), "s3://bucket/back", storage=storage)
    assert restored == total
    files = pipelines.JournalArchiveOptions(SPOOL, place.table("files"), storage=storage)
    end(pipelines.archive_journals(spark, files))
    assert pipelines.archived(spark, files.output)[0].items == total

    options, cluster = place.cluster.as_options(), place.cluster
    with Client(cluster.servers or "", options=cluster.client_options()) as client:
        table = read_table(spark, place.table("replay"))
        table.select("queue", "data").write.format("kestrel").options(**options).mode(
            "append"
        ).save()
        reading = spark.read.format("kestrel").options(**options, queue="jobs", minPartitions="2")
        assert reading.load().select("data").distinct().count() == len(ITEMS)
        stream = spark.readStream.format("kestrel").options(**options, queue="jobs")
        writer = stream.load().select("data").writeStream.format("kestrel").options(**options)
        writer = writer.options(queue="out", checkpointLocation=place.table("checkpoint"))
        end(start_query(writer.trigger(availableNow=True)))
        archiving = pipelines.ArchiveOptions(cluster, ["out"], place.table("live"))
        end(pipelines.archive(spark, archiving))
        assert pipelines.archived(spark, archiving.output)[0].items == total
        assert pipelines.restore_live(spark, archiving.output, cluster) == total
        assert sorted(client.consume("out", idle_timeout=0)) == sorted([*ITEMS, *ITEMS[:9]])
        assert client.get("jobs") is None


def by_commands(place: Place) -> None:
    """Run the pipelines as commands."""
    cluster = place.cluster
    place.store.put("spool/jobs", b"".join(item(1, 0, one) for one in ITEMS))
    servers = ["--servers", cluster.servers or "", "--user", "spark"]
    servers += ["--password-file", cluster.password_file or "", "--tls-ca", cluster.tls_ca or ""]
    reach = [
        word
        for name, value in place.store.options.items()
        for word in ("--storage-option", f"{name}={value}")
    ]
    several: dict[str, tuple[list[str], str]] = {
        "verify": ([SPOOL, *reach], "good"),
        "replay": ([SPOOL, "-o", place.table("c-replay"), *reach], "jobs"),
        "history": ([SPOOL, "-o", place.table("c-history"), *reach], "live"),
        "report": ([SPOOL, "-o", place.table("c-report"), *reach], "report.html"),
        "pack": ([SPOOL, "-o", "s3://bucket/c-packed", *reach], "200"),
        "restore": ([place.table("c-replay"), "-o", "s3://bucket/c-back", *reach], "200"),
        "archive": (["jobs", "-o", place.table("c-archive"), *servers], "200"),
        "restore --live": ([place.table("c-archive"), *servers], "200"),
    }
    with Client(cluster.servers or "", options=cluster.client_options()) as client:
        client.put_many("jobs", ITEMS)
    conf = [word for one in _SETTINGS.items() for word in ("--conf", "=".join(one))]
    for name, (words, expected) in several.items():
        done = subprocess.run(
            [*PIPELINE, *name.split(), *words, "--master", MASTER, *conf],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, expected in done.stdout) == (0, True), done
        assert PASSWORD not in done.stdout + done.stderr


def main(shared: Path, way: str) -> None:
    """Run everything in one way; if it hangs, tell where before the test itself is ended."""
    faulthandler.dump_traceback_later(2 * PATIENCE - 60, exit=True)
    python = shared / "python"
    python.write_text(session.WORKER_PYTHON.format(python=sys.executable))
    python.chmod(0o700)
    os.environ["SPARK_LOCAL_IP"] = HUB
    # The one that runs in each `make test` is quick, the others have Python as clusters do.
    os.environ["PYSPARK_PYTHON"] = str(python) if way == "connect" else sys.executable
    os.environ["SPARK_TESTING"] = "1"  # the port of Spark Connect is any that is free
    with everything_around(shared) as place:
        if way == "connect":
            builder: Any = cast("Any", SparkSession.builder).config(map=_SETTINGS)
            spark = builder.master(MASTER).config("spark.api.mode", "connect").getOrCreate()
            register(spark)
            by_session(spark, place)
            spark.stop()
        elif way == "session":
            with local_session(MASTER, settings=_SETTINGS) as spark:
                by_session(spark, place)
        else:
            by_commands(place)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
