"""`kestrel.journal`, read as a stream: journals of real servers, followed by real Spark."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from kestrelmq.client import Client
from kestrelmq.clock import SystemClock
from kestrelmq.journal.files import DiskDirectory
from kestrelmq.journal.names import group_files
from kestrelmq.journal.pack import pack
from kestrelmq.journal.records import AddX, encode
from kestrelmq.spark.reading import read_journals
from kestrelmq.spark.session import start_query
from tests.spark.processes import SparkProcess
from tests.spark.spools import NOW, adds, write
from tests.spark.streams import drain, numbered
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess

CONFIG = """\
[default]
max_memory_size = "20 KiB"
default_journal_size = "1 GiB"
disable_aggressive_rewrites = true
"""
COLUMNS = "queue string, operation string, size int, data binary, sequence long, file string"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def follow(spark: SparkSession, path: Path, schema: str = COLUMNS, **options: str) -> DataFrame:
    """Return a stream of journals."""
    reader = spark.readStream.format("kestrel.journal").schema(schema)
    return reader.options(**{"wait": "0s", **options}).load(str(path))


def rows_in(spark: SparkSession, root: Path) -> list[Row]:
    """Return the rows of the table, in the order of the journals."""
    if not (root / "table" / "_spark_metadata" / "0").exists():
        return []
    rows = spark.read.parquet(str(root / "table"))
    return rows.orderBy("queue", "sequence").collect()


def items_in(spark: SparkSession, root: Path, queue: str = "work") -> list[bytes]:
    """Return the items in the table that were added to a queue."""
    rows = [row for row in rows_in(spark, root) if row.queue == queue]
    return [bytes(row.data) for row in rows if row.operation in {"ADDX", "ADD"}]


def failure_of(rows: DataFrame, root: Path) -> str:
    """Return why a query fails."""
    with pytest.raises(StreamingQueryException) as caught:
        drain(rows, root)
    return str(caught.value)


def test_what_servers_write_comes_once(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Over rotations, a kill of the server, and queries that go on where the last one ended."""
    rows = follow(spark, server.queue_path, max_bytes_per_batch="60 KiB")
    sent = []
    batches: list[int] = []
    for number in range(4):
        items = [b"%d " % one + bytes(900) for one in numbered_from(100 * number)]
        sent += items
        client.put_many("work", items)
        for _ in range(10):
            client.get("work")
        if number == 2:
            server.kill9()
            with (server.queue_path / "work").open("ab") as file:
                file.write(encode(AddX(NOW, 0, b"cut short"))[:-3])
            drain(rows, tmp_path)
            server.restart()
        batches = drain(rows, tmp_path)
    assert len(list(server.queue_path.glob("work.*"))) > 5
    assert len(batches) > 1

    assert items_in(spark, tmp_path) == sent
    found = rows_in(spark, tmp_path)
    batch = read_journals(spark, str(server.queue_path), ["operation"]).groupBy("operation")
    stream = spark.read.parquet(str(tmp_path / "table")).groupBy("operation")
    assert sorted(batch.count().collect()) == sorted(stream.count().collect())
    sequence = [row.sequence for row in found]
    assert sequence == sorted(set(sequence))


def numbered_from(first: int) -> range:
    """Return a hundred numbers."""
    return range(first, first + 100)


def test_a_query_that_runs_on_tells_its_backlog(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """New items come while it runs, those of new queues, too; the progress has what is left."""
    rows = follow(spark, server.queue_path, wait="1s", max_bytes_per_batch="10 KiB")
    writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    items = [b"%d " % number + bytes(900) for number in range(100)]
    client.put_many("work", items)
    query = start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    try:
        until(lambda: len(items_in(spark, tmp_path)) == 100)
        client.put("more", b"of another queue")
        until(lambda: items_in(spark, tmp_path, "more") == [b"of another queue"])
        backlogs = [backlog(progress) for progress in query.recentProgress]
    finally:
        query.stop()
    assert items_in(spark, tmp_path) == items
    assert max(one["bytes"] for one in backlogs) > 50_000
    assert max(one["files"] for one in backlogs) > 2
    assert backlogs[-1] == {"bytes": 0, "files": 0, "queues": 0}


def backlog(progress: Any) -> dict[str, int]:
    """Return the backlog in a progress."""
    found: dict[str, int] = json.loads(progress["sources"][0]["latestOffset"])
    return found


def test_the_same_columns_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """All of them, of several queue paths with `spool`; the data only if it is requested."""
    for name in ("one", "two"):
        write(tmp_path / "spools" / name / "q", adds([name.encode(), b"\x00"]))
    path = str(tmp_path / "spools" / "*")
    table = spark.read.format("kestrel.journal").load(path)
    rows = spark.readStream.format("kestrel.journal").load(path)
    assert rows.schema == table.schema
    drain(rows, tmp_path)
    found = spark.read.parquet(str(tmp_path / "table"))
    order = ("spool", "position")
    assert found.orderBy(*order).collect() == table.orderBy(*order).collect()

    drain(follow(spark, tmp_path / "spools" / "one", "queue string, SIZE int"), tmp_path / "less")
    less = spark.read.parquet(str(tmp_path / "less" / "table")).collect()
    assert sorted(less) == [("q", 1), ("q", 3)]


def test_a_pack_of_files_that_were_read_repeats_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The server packs what its readers are done with, while the stream is behind it."""
    rows = follow(spark, server.queue_path)
    sent = [b"%d " % number + bytes(3000) for number in range(60)]
    client.put_many("work", sent)
    drain(rows, tmp_path)
    files = set(server.queue_path.glob("work.*"))
    for _ in range(50):  # fewer than were read: no other file is packed
        assert client.get("work") is not None
        sent.append(b"%d " % len(sent) + bytes(3000))
        client.put("work", sent[-1])
    until(lambda: not files <= set(server.queue_path.glob("work.*")))
    until(lambda: not list(server.queue_path.glob("work.*.pack")))
    client.put("work", b"after the pack")
    drain(rows, tmp_path)

    assert items_in(spark, tmp_path) == [*sent, b"after the pack"]


def pack_all(spool: Path) -> None:
    """Pack the journals of a queue path, as `kestrelmq journal pack` does."""
    directory = DiskDirectory(spool)
    for files in group_files(directory.names()).queues.values():
        pack(directory, files, "documented", SystemClock())


def test_files_that_were_packed_unread_are_lost(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The query fails, and says what is gone; or it goes on with what the pack has."""
    client.put_many("work", [b"read", b"kept"])
    drain(follow(spark, server.queue_path), tmp_path)
    assert client.get("work") == b"read"
    client.put_many("work", [b"removed unread", b"kept unread"])
    assert client.get("work") == b"kept"
    assert client.get("work") == b"removed unread"
    server.stop()
    pack_all(server.queue_path)
    client_again = server.restart()
    with Client(client_again.address) as again:
        again.put("work", b"later")

    error = failure_of(follow(spark, server.queue_path), tmp_path)
    assert "data of queue work was lost" in error
    assert "failOnDataLoss" in error
    drain(follow(spark, server.queue_path, failOnDataLoss="false"), tmp_path)
    assert items_in(spark, tmp_path) == [b"read", b"kept", b"kept unread", b"later"]
    assert drain(follow(spark, server.queue_path), tmp_path) in ([], [0])


def test_a_deleted_queue_leaves_the_offset(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """A new one of its name begins at its beginning, with the very bytes of the old one."""
    rows = follow(spark, server.queue_path)
    client.put_many("work", [b"same", b"old"])
    client.put("other", b"item")
    drain(rows, tmp_path)
    assert '"work"' in newest_offset(tmp_path)
    client.delete("work")
    until(lambda: not list(server.queue_path.glob("work*")))
    drain(rows, tmp_path)
    assert '"other"' in newest_offset(tmp_path)
    assert '"work"' not in newest_offset(tmp_path)
    client.put_many("work", [b"same", b"new"])
    drain(rows, tmp_path)
    # The sequence begins anew, too.
    assert sorted(items_in(spark, tmp_path)) == [b"new", b"old", b"same", b"same"]


def newest_offset(root: Path) -> str:
    """Return the last offset that Spark logged."""
    offsets = (root / "checkpoint" / "offsets").glob("[0-9]*")
    return max(offsets, key=lambda one: int(one.name)).read_text()


def test_a_queue_that_is_created_again_at_once_may_have_lost_data(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """It looks like one that was packed, so it is an error; without that it is read anew."""
    client.put_many("work", [b"same", b"old"])
    drain(follow(spark, server.queue_path), tmp_path)
    client.delete("work")
    until(lambda: not list(server.queue_path.glob("work*")))
    client.put_many("work", [b"same", b"new"])
    assert "deleted and created again" in failure_of(follow(spark, server.queue_path), tmp_path)
    drain(follow(spark, server.queue_path, failOnDataLoss="false"), tmp_path)
    assert items_in(spark, tmp_path) == [b"same", b"old", b"same", b"new"]


def test_where_a_stream_begins(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """At the beginning, at the end, or at the first item of a time or later."""
    client.put_many("work", [b"%d" % number for number in range(3)])
    until(lambda: SystemClock().now() > add_times(spark, server)[-1])
    moment = SystemClock().now()
    client.put_many("work", [b"3", b"4"])
    for name, starting in (("all", "earliest"), ("none", "latest"), ("some", str(moment))):
        drain(follow(spark, server.queue_path, startingOffsets=starting), tmp_path / name)
    client.put("work", b"5")
    client.put("new", b"6")
    found = {}
    for name in ("all", "none", "some"):
        # Where to begin does not matter any more.
        drain(follow(spark, server.queue_path, startingOffsets="latest"), tmp_path / name)
        found[name] = b"".join(items_in(spark, tmp_path / name))
        assert items_in(spark, tmp_path / name, "new") == [b"6"]
    assert found == {"all": b"012345", "none": b"5", "some": b"345"}


def add_times(spark: SparkSession, server: ServerProcess) -> list[int]:
    """Return the add times in the journals."""
    rows = read_journals(spark, str(server.queue_path), ["add_time"]).collect()
    return sorted(row.add_time for row in rows if row.add_time is not None)


def test_available_now_ends_at_what_was_there(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """What is added while the query runs is for the next one."""
    client.put_many("work", numbered(300))
    rows = follow(spark, server.queue_path, max_bytes_per_batch="1 KiB")
    read: list[int] = []

    def add_more(batch: DataFrame, number: int) -> None:
        client.put_many("work", numbered(10, 1000 + 10 * number))
        read.append(batch.count())

    writer = rows.writeStream.foreachBatch(add_more).trigger(availableNow=True)
    query = start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert query.awaitTermination(PATIENCE)
    assert (sum(read), len(read) > 3) == (300, True)


def test_damage_is_what_the_mode_says(spark: SparkSession, tmp_path: Path) -> None:
    """An error at its byte, a row, or nothing; the next file follows."""
    spool = tmp_path / "spool"
    write(spool / "work.1000", adds([b"before"]), tail=b"\x63 is no opcode")
    write(spool / "work", adds([b"behind"]))
    assert "work.1000" in failure_of(follow(spark, spool), tmp_path / "fails")
    damaged = {}
    for mode in ("permissive", "dropmalformed"):
        drain(follow(spark, spool, mode=mode), tmp_path / mode)
        assert items_in(spark, tmp_path / mode) == [b"before", b"behind"]
        damaged[mode] = [
            (row.size, row.file)
            for row in rows_in(spark, tmp_path / mode)
            if row.operation == "DAMAGED"
        ]
    assert damaged == {"permissive": [(14, "work.1000")], "dropmalformed": []}


def test_a_session_that_is_killed_reads_each_record_once(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The whole session dies within a batch; its files get other names before it is read again."""
    sent = [b"%d " % number + bytes(500) for number in range(200)]
    client.put_many("work", sent[:150])
    session = SparkProcess("tests.spark.journal_session", tmp_path, str(server.queue_path))
    session.wait_until_reached()
    client.put_many("work", sent[150:])
    session.kill9()
    copy = tmp_path / "copy"
    shutil.copytree(server.queue_path, copy)
    drain(follow(spark, copy, max_bytes_per_batch="20 KiB"), tmp_path)
    assert items_in(spark, tmp_path) == sent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "yesterday"}, "earliest, latest, or a time"),
        ({"pushdown": "true"}, "'pushdown'"),
        ({"max_bytes_per_batch": "0"}, "a size above 0"),
    ],
)
def test_options_that_are_not_allowed(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """The error names the option and what is allowed."""
    write(tmp_path / "spool" / "q", adds([b"1"]))
    with pytest.raises(PySparkException) as caught:
        drain(follow(spark, tmp_path / "spool", **options), tmp_path)
    assert message in str(caught.value)
