"""Outputs of the pipelines in a store: written by our own tasks, read by ours and by others."""

import copy
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow.dataset import dataset
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kestrelmq.cli.main import main
from kestrelmq.client import Client
from kestrelmq.format.records import Remove
from kestrelmq.spark.live.options import ClusterOptions
from kestrelmq.spark.pipelines import replay, report, restore, restore_live
from kestrelmq.spark.reading import read_parquet, read_partitioned, write_parquet
from kestrelmq.spark.sources import stored_tables
from kestrelmq.spark.sources.stored_tables import (
    TEMPORARY,
    StoredTableWriter,
    TableExists,
    is_without_rows,
    table_files,
    table_schema,
)
from kestrelmq.spark.storage import Location, located
from tests.spark.spools import adds, load, random_spool, write
from tests.support.object_store import BUCKET, SECRET_KEY, ObjectStore
from tests.support.server import ServerProcess

ODD = "a b%25=ü+{1}"
"""A queue with characters that the names of directories cannot have as they are."""


def at(store: ObjectStore, path: str) -> Location:
    """Return a location in the bucket."""
    found = located(f"s3://{BUCKET}/{path}", store.options)
    assert isinstance(found, Location)
    return found


def files_in(location: Location) -> list[str]:
    """Return all objects below a location, without those that mark directories."""
    return [name for name, size in location.files() if size or name.endswith("_SUCCESS")]


def seen_in(location: Location) -> list[str]:
    """Return those of them that are not below `_temporary`."""
    return [name for name in files_in(location) if not name.startswith(f"{TEMPORARY}/")]


def test_replay_and_restore_bring_items_back(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """As from a local table, file by file; anyone can read the table; it is replaced when asked."""
    spool, output = tmp_path / "spool", f"s3://{BUCKET}/contents"
    random_spool(random.Random(11), spool, 4)
    write(spool / ODD, adds([b"one", b"two"]))
    write(spool / "007", adds([b"a number for a name"]))
    local = replay(spark, str(spool), str(tmp_path / "local"))

    assert replay(spark, str(spool), output, storage=store.options) == local
    names = files_in(at(store, "contents"))
    assert names[0] == "_SUCCESS"
    assert all(name.endswith(".parquet") for name in names[1:])
    directories = {name.split("/")[0] for name in names[1:]}
    assert directories == {one.name for one in (tmp_path / "local").glob("queue=*")}
    with pytest.raises(TableExists, match="s3://bucket/contents already exists: give --overwrite"):
        replay(spark, str(spool), output, storage=store.options)
    assert replay(spark, str(spool), output, mode="overwrite", storage=store.options) == local
    assert not set(names[1:]) & set(files_in(at(store, "contents")))
    assert (at(store, "contents") / TEMPORARY).files() == []

    system = store.file_system
    rows = dataset(f"{BUCKET}/contents", filesystem=system, partitioning="hive").to_table()
    assert rows.num_rows == sum(one.items for one in local)
    assert set(rows.column("queue").to_pylist()) == {one.queue for one in local}
    items = restore(spark, output, str(tmp_path / "back"), storage=store.options)
    assert items == rows.num_rows
    assert {
        queue: [item.data for item in found] for queue, found in load(tmp_path / "back").items()
    } == {queue: [item.data for item in found] for queue, found in load(spool).items() if found}


def test_a_report_and_its_page(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    """The tables and the page are in the store; the figures come from there."""
    write(tmp_path / "q", [*adds([b"gone", b"waits"]), Remove()])
    made = report(spark, str(tmp_path), f"s3://{BUCKET}/report", storage=store.options)

    (totals,) = made.queues
    assert (totals.queue, totals.items, totals.removed, totals.live) == ("q", 2, 1, 1)
    assert str(made.page) == "s3://bucket/report/report.html"
    assert b"<!doctype html>" in store.get("report/report.html")
    assert table_files(at(store, "report/hours"))


def test_a_table_of_no_rows_and_live_servers(
    spark: SparkSession, store: ObjectStore, server: ServerProcess, tmp_path: Path
) -> None:
    """Nothing is restored of the one; the items of another go to the queues that they are from."""
    write(tmp_path / "empty" / "q", [*adds([b"gone"]), Remove()])
    write(tmp_path / "spool" / "q", adds([b"one", b"two"]))
    cluster = ClusterOptions(server.address)
    for name, items in (("empty", []), ("spool", [b"one", b"two"])):
        table = at(store, f"live-{name}")
        replay(spark, str(tmp_path / name), table)
        assert restore_live(spark, table, cluster) == len(items)
        with Client(server.address) as client:
            assert list(client.consume("q", idle_timeout=0)) == items
    with pytest.raises(FileNotFoundError, match="there is no Parquet table"):
        restore(spark, at(store, "nowhere"), str(tmp_path / "back"))


def test_tables_are_read_by_a_glob(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    """Several tables, some directories of one, single files; not what readers ignore."""
    name = tmp_path.name
    for place in ("one", "two"):
        for queue in ("a1", "a2", "b[1]"):
            write(tmp_path / place / queue, adds([f"{place} {queue}".encode()]))
        replay(spark, str(tmp_path / place), at(store, f"{name}/{place}"))
    write(tmp_path / "empty" / "q", [*adds([b"gone"]), Remove()])
    replay(spark, str(tmp_path / "empty"), at(store, f"{name}/zero"))
    store.put(f"{name}/one/_ignored/queue=a1/x.parquet", b"no table")

    def restored(pattern: str) -> dict[str, list[bytes]]:
        back = tmp_path / f"back {pattern.replace('/', ' ')}"
        source = f"s3://{BUCKET}/{name}/{pattern}"
        items = restore(spark, source, str(back), storage=store.options)
        found = {queue: sorted(item.data for item in items) for queue, items in load(back).items()}
        assert items == sum(map(len, found.values()))
        return found

    whole = {queue: [f"{one} {queue}".encode() for one in ("one", "two")] for queue in ("a1", "a2")}
    assert restored("*") == {**whole, "b[1]": [b"one b[1]", b"two b[1]"]}
    assert restored("*/queue=a*") == whole
    assert restored("one/queue=[ab]1/*.parquet") == {"a1": [b"one a1"]}
    assert restored("z*") == {}
    with pytest.raises(FileNotFoundError, match=r"none\*: there is no Parquet table"):
        restored("none*")


def test_attempts_that_do_not_count_leave_nothing(store: ObjectStore) -> None:
    """Only what the driver was told is in the table; what comes too late the next write removes."""
    table = at(store, "attempts")
    names = pa.array(["q", None, "q", "r"], pa.dictionary(pa.int32(), pa.string()))
    batch = pa.record_batch([names, pa.array([1, 2, 3, 4])], ["queue", "n"])
    writer = StoredTableWriter(table, ["queue"], overwrite=False)
    told, lost, late = (copy.deepcopy(writer) for _ in range(3))
    message = told.write(iter([batch, batch.slice(0, 1)]))
    lost.write(iter([batch]))
    assert table_files(table) == []
    writer.commit([message, None])
    late.write(iter([batch]))
    failed = StoredTableWriter(table, ["queue"], overwrite=True)
    before_failed = files_in(table)
    assert before_failed == seen_in(table)  # the late file is gone with the next write
    failed.write(iter([batch]))
    failed.abort([])
    assert files_in(table) == before_failed

    read = dataset(f"{BUCKET}/attempts", filesystem=store.file_system, partitioning="hive")
    rows = [(row["queue"], row["n"]) for row in read.to_table().to_pylist()]
    assert sorted(rows, key=str) == [("q", 1), ("q", 1), ("q", 3), ("r", 4), (None, 2)]
    assert len(table_files(table)) == 3
    assert table_schema(table).names == ["n", "queue"]
    assert table_schema(table / table_files(table)[0]).names == ["n"]
    empty = StoredTableWriter(table, ["queue"], overwrite=True)
    empty.commit([empty.write(iter([batch.slice(0, 0)]))])
    assert is_without_rows(table)


def test_a_task_writes_when_it_has_much(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is bounded; the rows of a directory stay in order."""
    monkeypatch.setattr(stored_tables, "_BUFFERED", 100)
    table = at(store, "much")
    writer = StoredTableWriter(table, [], overwrite=False)
    batches = [pa.record_batch([pa.array([n, n + 1])], ["n"]) for n in range(0, 40, 2)]
    message = writer.write(iter(batches))
    writer.commit([message])

    assert len(message.files) > 1
    read = [
        row
        for file in message.files
        for row in pa.parquet.read_table(pa.BufferReader((table / file).read()))["n"].to_pylist()
    ]
    assert read == list(range(40))


def test_a_job_that_fails_leaves_the_table_as_it_was(
    spark: SparkSession, store: ObjectStore
) -> None:
    """Also when it was to replace it; what is appended is added.

    A task that ends after its job was given up may still write below `_temporary`: what counts is
    what readers see.
    """
    table = at(store, "jobs")
    rows = spark.range(3000, numPartitions=2).withColumn("queue", f.lit("q"))
    failing = rows.withColumn("id", f.expr("if(id = 2999, raise_error('no more'), id)"))
    with pytest.raises(PySparkException, match="no more"):
        write_parquet(failing, table, "error", "queue")
    write_parquet(rows, table, "error", "queue")
    before = seen_in(table)
    with pytest.raises(PySparkException, match="no more"):
        write_parquet(failing, table, "overwrite", "queue")
    assert seen_in(table) == before

    read = read_partitioned(spark, table, rows.schema)
    assert read.count() == read.distinct().count() == 3000
    write_parquet(rows.limit(1), table, "append", "queue")
    assert read_parquet(spark, table).count() == 3001


def test_errors_name_the_store_and_no_secret(spark: SparkSession, store: ObjectStore) -> None:
    """It refuses."""
    rows, table = spark.range(1).toDF("n"), at(store, "refused")
    with (
        store.checking_rights(),
        pytest.raises(PySparkException, match="s3://bucket/refused") as refused,
    ):
        write_parquet(rows, table, "overwrite")
    assert SECRET_KEY not in str(refused.value)


def test_a_command_writes_to_a_store(
    spark: SparkSession, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes storage options, prints the same table, and says what replaces an output."""
    assert spark is not None  # the command uses its session
    write(tmp_path / "q", adds([b"one"]))
    words = ["pipeline", "history", str(tmp_path), "-o", f"s3://{BUCKET}/history"]
    for name, value in store.options.items():
        words += ["--storage-option", f"{name}={value}"]
    for more, status in ([], 0), ([], 1), (["--overwrite"], 0):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == status
    printed, errors = capsys.readouterr()
    assert [line.split() for line in printed.splitlines()] == [
        ["queue", "fate", "items"],
        ["q", "live", "1"],
    ] * 2
    assert "s3://bucket/history already exists: give --overwrite" in errors
    assert len(table_files(at(store, "history"))) == 1
