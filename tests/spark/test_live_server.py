"""Spools of a real server: written for it, copied from it under load, packed behind its back."""

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from pymemcache.client.base import Client as Memcache
from pymemcache.exceptions import MemcacheError
from pyspark.sql import SparkSession

from kestrelmq.spark.pipelines import pack
from kestrelmq.spark.reading import read_queues, write_journals
from tests.spark.spools import load
from tests.support.server import ServerProcess, running_server

QUEUES = ("a", "b", "c")
# Small files, so that they are rotated, rewritten and read behind within a second.
CONFIG = """
memcache_dialect = "memcached"
[default]
default_journal_size = "64 KiB"
max_memory_size = "64 KiB"
max_journal_size = "256 KiB"
"""


def drain(server: ServerProcess, queue: str) -> list[bytes]:
    """Take everything out of a queue."""
    client = Memcache(("127.0.0.1", server.ports["memcache"]))
    items = iter(lambda: client.get(queue), None)
    taken = [bytes(item) for item in items]
    client.close()
    return taken


def work(port: int, seed: int, stop: threading.Event) -> None:
    """Set, get, open, confirm and abort, until told to stop."""
    rng = random.Random(seed)
    client = Memcache(("127.0.0.1", port))
    while not stop.is_set():
        queue = rng.choice(QUEUES)
        for _ in range(rng.randrange(20)):
            client.set(queue, rng.randbytes(rng.randrange(2000)))
        for _ in range(rng.randrange(15)):
            ending = rng.choice(["", "/open", "/close/open", "/abort"])
            try:
                client.get(queue + ending)
            except (MemcacheError, OSError):
                client.close()  # the server ends connections that mix kinds of reads
    client.close()


def copies_under_load(server: ServerProcess, target: Path) -> Iterator[Path]:
    """Copy the queue path several times while clients work; packed files may vanish meanwhile."""
    stop = threading.Event()
    workers = [
        threading.Thread(target=work, args=(server.ports["memcache"], seed, stop))
        for seed in range(3)
    ]
    for worker in workers:
        worker.start()
    try:
        for number in range(4):
            stop.wait(0.4)
            copy = target / str(number)
            copy.mkdir(parents=True)
            for file in sorted(
                server.queue_path.iterdir(), key=lambda file: (-len(file.name), file)
            ):
                if file.is_file():
                    try:
                        shutil.copy(file, copy / file.name)
                    except FileNotFoundError:
                        continue
            yield copy
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_spools_copied_under_load_are_as_a_server_loads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A copy may end anywhere, in a record too: what it holds is what the server's load holds."""
    with running_server(tmp_path, config=CONFIG) as server:
        copies = list(copies_under_load(server, tmp_path / "copies"))

    assert any(len(list(copy.glob("*.*"))) > 0 for copy in copies)
    found: dict[str, dict[str, list[tuple[int | None, bytes]]]] = {}
    rows = read_queues(spark, str(tmp_path / "copies" / "*"), direct_bytes=1)
    for row in rows.orderBy("spool", "queue", "position").collect():
        queues = found.setdefault(row.spool, {})
        queues.setdefault(row.queue, []).append((row.xid, bytes(row.data)))
    assert found == {
        str(copy): {
            queue: [(item.xid, item.data) for item in items]
            for queue, items in load(copy).items()
            if items
        }
        for copy in copies
    }


def test_a_server_serves_what_was_written_and_packed(spark: SparkSession, tmp_path: Path) -> None:
    """Written, appended to, packed: the server hands the items out in order."""
    spool = tmp_path / "queues"
    numbers = spark.range(0, 3000, 1, 3)
    rows = numbers.selectExpr("'a' queue", "cast(id as string) data", "id sequence")
    write_journals(rows, str(spool))
    more = spark.range(3000, 4000, 1, 3).selectExpr("'a' queue", "cast(id as string) data")
    more.write.format("kestrel.journal").mode("append").save(str(spool))
    packed = pack(spark, str(spool))

    with running_server(tmp_path) as server:
        taken = drain(server, "a")

    assert taken == [b"%d" % number for number in range(4000)]
    assert [one.items for one in packed] == [4000]


def test_items_put_behind_a_servers_own_are_served_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A server's journal, an append, and the server again: its own items first."""
    spool = tmp_path / "queues"
    with running_server(tmp_path) as server:
        client = Memcache(("127.0.0.1", server.ports["memcache"]))
        for number in range(5):
            client.set("a", b"own %d" % number)
        assert client.get("a") == b"own 0"
        client.close()
    rows = spark.createDataFrame([("a", "loaded")], "queue string, data string")
    write_journals(rows, str(spool))

    with running_server(tmp_path) as server:
        taken = drain(server, "a")

    assert taken == [b"own 1", b"own 2", b"own 3", b"own 4", b"loaded"]
