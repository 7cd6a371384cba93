"""`kestrel.journal` written to a store: queues that a server loads once they are on its disk."""

import subprocess
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.client import Client
from kestrelmq.clock import SystemClock
from kestrelmq.disk.write_directories import WriteOwner
from kestrelmq.spark.pipelines import replay, restore
from kestrelmq.spark.reading import read_journals, read_queues, write_journals
from kestrelmq.spark.sinks.stored_commit import new_directory
from kestrelmq.spark.storage.locations import Location, located
from tests.spark.test_commands import Terminal
from tests.spark.test_journal_writer import data as data_in
from tests.support.object_store import BUCKET, SECRET_KEY, ObjectStore
from tests.support.patience import until
from tests.support.server import running_server

HOUR = 3_600_000


def save(rows: DataFrame, store: ObjectStore, path: str, mode: str = "append") -> None:
    """Write rows to journals."""
    writer = rows.write.format("kestrel.journal").options(**store.source_options)
    writer.mode(mode).save(f"s3://{BUCKET}/{path}")


def fetch(store: ObjectStore, path: str, target: Path) -> Path:
    """Copy a queue path of the store to a disk."""
    target.mkdir(parents=True)
    for name in store.names(path):
        (target / name).write_bytes(store.get(f"{path}/{name}"))
    return target


def test_rows_become_queues_that_a_server_loads(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """In their order, delayed ones too; what is appended comes behind."""
    name, due = tmp_path.name, SystemClock().now() + HOUR
    first = spark.range(0, 300, 1, 3).selectExpr(
        "if(id % 3 = 0, 'a+é', 'b') queue", "cast(id AS string) data"
    )
    save(first, store, name)
    assert len(store.names(name)) == 6  # a part of each task is a file, and nothing else is there
    more = spark.createDataFrame(
        [("b", "later", due), ("b", "more", None), ("c", "new", None)],
        "queue string, data string, due long",
    ).coalesce(1)
    for _ in range(2):
        save(more, store, name)

    place = f"s3://{BUCKET}/{name}"
    rows = read_queues(spark, place, ["queue", "position", "data"], storage=store.options)
    found = [(row.queue, bytes(row.data)) for row in rows.orderBy("queue", "position").collect()]
    expected = [("a+é", b"%d" % number) for number in range(0, 300, 3)]
    expected += [("b", b"%d" % number) for number in range(300) if number % 3]
    expected += [("b", b"more")] * 2 + [("b", b"later")] * 2 + [("c", b"new")] * 2
    assert found == expected
    rows = read_journals(spark, place, ["queue"], storage=store.options)
    assert rows.count() == len(expected)  # the delayed ones are in notes
    queue_path = fetch(store, name, tmp_path / "copy" / "queues")
    with running_server(tmp_path / "copy") as server, Client(server.address) as client:
        for queue in ("a+é", "b", "c"):
            items = [item for named, item in expected if named == queue and item != b"later"]
            assert list(client.consume(queue, idle_timeout=0)) == items
        assert {one.name: one.number("delayed") for one in client.queues()}["b"] == 2
    assert not [one.name for one in queue_path.iterdir() if "~~write" in one.name]


def test_the_sequence_orders_a_queue(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """Sorted by Spark, or merged at the commit; overwriting replaces the queues in the rows."""
    rows = spark.range(0, 400, 1, 4).select(
        f.lit("q").alias("queue"),
        f.col("id").cast("string").alias("data"),
        (f.col("id") * 79 % 401).alias("sequence"),
    )
    name = tmp_path.name
    expected = {"q": [b"%d" % n for n in sorted(range(400), key=lambda n: n * 79 % 401)]}
    save(spark.createDataFrame([("kept", "x")], "queue string, data string"), store, name)
    for place in ("merged", "sorted"):
        if place == "merged":
            save(rows, store, name, "overwrite")
        else:
            write_journals(rows, f"s3://{BUCKET}/{name}", "overwrite", storage=store.options)
        assert data_in(fetch(store, name, tmp_path / place)) == {**expected, "kept": [b"x"]}


def test_a_failed_job_leaves_no_trace(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """The queues are as before, and so is the directory; a task that is run again writes once."""
    name = tmp_path.name
    save(spark.createDataFrame([("q", "old")], "queue string, data string"), store, name)
    before = store.names(name)
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "if(id = 99, 'bad/name', 'q') queue", "cast(id as string) data"
    )
    with pytest.raises(PySparkException, match="'bad/name' is not allowed"):
        save(rows, store, name)
    assert store.names(name) == before
    with store.checking_rights(), pytest.raises(PySparkException, match=f"{name}") as refused:
        save(rows, store, name)
    assert SECRET_KEY not in str(refused.value)


def test_a_write_that_is_over_is_not_committed(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """Somebody took it for dead: its commit says so, and nothing is changed."""
    place = located(f"s3://{BUCKET}/{tmp_path.name}", store.options)
    assert isinstance(place, Location)
    scratch = tmp_path / "removed"

    def removing(number: int) -> str:
        if number == 3:
            until(lambda: bool(place.files()))  # the other task has written its part
            for one in place.entries():
                (place / one.name).delete_tree()
            scratch.touch()
        return str(number)

    rows = spark.range(0, 4, 1, 2).select(
        f.lit("q").alias("queue"), f.udf(removing, "string", useArrow=False)("id").alias("data")
    )
    with pytest.raises(PySparkException, match="is gone or not whole: nothing was changed"):
        save(rows, store, tmp_path.name)
    assert scratch.exists()
    assert not place.files()


def test_what_was_left_goes_with_the_next_write(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """By a process of this machine that has ended, in the middle of a commit."""
    place = located(f"s3://{BUCKET}/{tmp_path.name}", store.options)
    assert isinstance(place, Location)
    (new_directory(place, WriteOwner.of(2**22 + 1)) / "0-0-0").write_bytes(b"x")
    (place / "half.5").write_bytes(b"x")
    (place / "half.6.pack").write_bytes(b"")
    save(spark.createDataFrame([("q", "new")], "queue string, data string"), store, tmp_path.name)
    there = store.names(tmp_path.name)
    assert [name.partition(".")[0] for name in there] == ["half", "q"]
    assert store.get(f"{tmp_path.name}/{there[0]}") == b""


def test_what_a_killed_driver_left_goes_with_the_next_write(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """While it runs, another write leaves it alone."""
    rows = spark.createDataFrame([("a", "2")], "queue string, data string")
    name = tmp_path.name
    place = located(f"s3://{BUCKET}/{name}", store.options)
    assert isinstance(place, Location)
    with subprocess.Popen(["sleep", "1000"]) as driver:
        left = new_directory(place, WriteOwner.of(driver.pid))
        (left / "0-0-0").write_bytes(b"x")
        save(rows, store, name)
        assert left.name in store.names(name)
        driver.kill()
    save(rows, store, name)
    assert left.name not in store.names(name)
    assert data_in(fetch(store, name, tmp_path / "copy")) == {"a": [b"2", b"2"]}


@pytest.mark.parametrize("place", ["store", "file URL"])
def test_restore_to_a_uri(
    spark: SparkSession,
    store: ObjectStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
) -> None:
    """By function and by command; the items are the same."""
    name, due = tmp_path.name, SystemClock().now() + HOUR
    rows = spark.createDataFrame(
        [("a", "1", None), ("a", "2", None), ("b", "late", due)],
        "queue string, data string, due long",
    ).coalesce(1)
    write_journals(rows, str(tmp_path / "spool"))
    table = f"file://{tmp_path}/table"
    back = f"s3://{BUCKET}/{name}/back" if place == "store" else f"file://{tmp_path}/back"
    contents = replay(spark, f"file://{tmp_path}/spool", table)
    assert sum(one.items for one in contents) == 3

    assert restore(spark, table, back, storage=store.options) == 3
    assert restore(spark, table, back, mode="overwrite", storage=store.options) == 3
    assert replay(spark, back, table, mode="overwrite", storage=store.options) == contents
    flags = [w for one in store.options.items() for w in ("--storage-option", "=".join(one))]
    ended = Terminal(capsys).run("restore", table, "--output", f"{back}2", *flags)
    assert (ended.status, ended.table[-1]) == (0, [f"{back}2", "3"])
    only_late = spark.createDataFrame([("a", "late", due)], "queue string, data string, due long")
    write_journals(only_late, back, "overwrite", storage=store.options)  # the others are replaced
    told = read_queues(spark, back, storage=store.options)
    assert {(row.queue, bytes(row.data)) for row in told.collect()} == {
        ("a", b"late"),
        ("b", b"late"),
    }
    write_journals(rows.where("queue = 'a'"), back, "overwrite", storage=store.options)
    told = read_queues(spark, back, storage=store.options)
    assert {(row.queue, bytes(row.data)) for row in told.where("queue = 'a'").collect()} == {
        ("a", b"1"),
        ("a", b"2"),
    }
    told = read_queues(spark, f"{back}2", storage=store.options)
    ordered = told.orderBy("data").withColumn("due", f.unix_millis("due"))
    assert [(row.queue, bytes(row.data), row.due) for row in ordered.collect()] == [
        ("a", b"1", None),
        ("a", b"2", None),
        ("b", b"late", due),
    ]
