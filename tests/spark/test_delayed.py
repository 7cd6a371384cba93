"""Delayed items in tables of queues, and their way through `replay` and `restore`."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.client import Client
from kestrelmq.clock import SystemClock
from kestrelmq.format.notes import delayed_notes, joined_note
from kestrelmq.format.records import RemoveTentative, item
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.pipelines import history, pack, replay, report, restore, restore_live
from kestrelmq.spark.pipelines.replay import QueueContents
from kestrelmq.spark.reading import read_queues, replayed_queues, write_journals
from tests.spark.spools import NOW, adds, write
from tests.support.commands import run_command
from tests.support.server import running_server

HOUR = 3_600_000


def delayed_spool(path: Path) -> Path:
    """Write items in line, an open read, three delayed items and one that has joined."""
    soon, later, joined = (
        item(at, 0, data)
        for at, data in ((NOW + HOUR, b"soon"), (NOW + 2 * HOUR, b"later"), (NOW, b"joined"))
    )
    last = item(NOW + HOUR + 1, 7, b"last")
    delayed = [delayed_notes(n, one, 0) for n, one in enumerate((joined, later, soon), 1)]
    write(path / "jobs.5", [], tail=b"".join(delayed))
    records = [*adds([b"open", b"first"]), RemoveTentative()]
    notes = joined_note(1, 1) + joined + delayed_notes(4, last, 1)
    write(path / "jobs", records, tail=notes)
    write(path / "only", [], tail=delayed_notes(1, item(NOW + 1, 0, b"alone"), 0))
    write(path / "plain", adds([b"x"]))
    return path


DUE = "unix_millis(due) AS due"


def contents(rows: DataFrame) -> list[tuple[str, int, int | None, int, int | None, bytes]]:
    """Return what matters of each row, in order."""
    times = {name: f.unix_millis(name) for name in ("expiry", "due")}
    return [
        (row.queue, row.position, row.xid, row.expiry or 0, row.due, bytes(row.data))
        for row in rows.withColumns(times).orderBy("queue", "position").collect()
    ]


@pytest.mark.parametrize("direct_bytes", [1, 1 << 20])
def test_delayed_items_are_rows_behind_the_others(
    spark: SparkSession, tmp_path: Path, direct_bytes: int
) -> None:
    """By due time, and not those that have joined their queue; an option leaves them out."""
    spool = str(delayed_spool(tmp_path / "spool"))
    expected = [
        ("jobs", 0, 1, 0, None, b"open"),
        ("jobs", 1, None, 0, None, b"first"),
        ("jobs", 2, None, 0, None, b"joined"),
        ("jobs", 3, None, 0, NOW + HOUR, b"soon"),
        ("jobs", 4, None, 7, NOW + HOUR + 1, b"last"),
        ("jobs", 5, None, 0, NOW + 2 * HOUR, b"later"),
        ("only", 0, None, 0, NOW + 1, b"alone"),
        ("plain", 0, None, 0, None, b"x"),
    ]
    rows = read_queues(spark, spool, direct_bytes=direct_bytes)

    assert contents(rows) == expected
    assert rows.columns[-1] == "due"
    assert rows.where("due IS NOT NULL AND add_time = due AND size = length(data)").count() == 4
    plain = read_queues(spark, spool, delayed=False, direct_bytes=direct_bytes)
    assert contents(plain) == [row for row in expected if row[4] is None]
    loaded = spark.read.format("kestrel.queue").load(spool)
    assert contents(loaded) == expected


def test_a_large_queue_with_delayed_items_is_planned(spark: SparkSession, tmp_path: Path) -> None:
    """Positions go on behind the items in line, also if those are of several files."""
    spool = delayed_spool(tmp_path)
    write(spool / "jobs.1", adds([b"%d" % number for number in range(100)]))
    rows = read_queues(spark, str(spool), direct_bytes=1)
    late = contents(rows.where("queue = 'jobs' AND due IS NOT NULL"))

    assert [(row[1], row[5]) for row in late] == [(103, b"soon"), (104, b"last"), (105, b"later")]
    assert rows.where("queue = 'jobs'").select("position").distinct().count() == 106
    assert contents(replayed_queues(spark, str(spool), 1)) == contents(rows)


def test_replay_and_restore_keep_delayed_items(spark: SparkSession, tmp_path: Path) -> None:
    """A server gets them with the rest of their delay; restoring twice in place adds none."""
    now = SystemClock().now()
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many("jobs", [b"first", b"second"])
        client.put("jobs", b"later", delay=3600)
        client.put("jobs", b"much later", delay=7200)
        client.put("only", b"alone", delay=3600)
        server.kill9()
    table, back = str(tmp_path / "table"), tmp_path / "back" / "queues"
    assert replay(spark, str(server.queue_path), table) == [
        QueueContents("jobs", 4, 0, 26, 2),
        QueueContents("only", 1, 0, 5, 1),
    ]
    assert restore(spark, table, str(back)) == 5
    for _ in range(2):
        assert restore(spark, table, str(back), mode="overwrite") == 5
    exported = run_command("journal", "export", str(back))
    assert exported.stdout == run_command("journal", "export", str(server.queue_path)).stdout

    with running_server(tmp_path / "back") as restored, Client(restored.address) as client:
        assert list(client.consume("jobs", idle_timeout=0)) == [b"first", b"second"]
        assert {one.name: one.number("delayed") for one in client.queues()} == {
            "jobs": 2,
            "only": 1,
        }
    times = spark.read.parquet(table).where("due IS NOT NULL").selectExpr(DUE).collect()
    assert all(now + HOUR <= row.due for row in times)


@pytest.mark.parametrize("stays", ["in line", "later"])
def test_overwriting_replaces_items_in_line_and_delayed_ones(
    spark: SparkSession, tmp_path: Path, stays: str
) -> None:
    """Whichever of them the rows have of a queue; a queue without rows keeps both."""
    schema = "queue string, data string, due long"
    later = SystemClock().now() + HOUR
    spool = tmp_path / "queues"
    for name in ("jobs", "kept"):
        rows = spark.createDataFrame([(name, "in line", None), (name, "later", later)], schema)
        write_journals(rows, str(spool))
    due = later if stays == "later" else None
    write_journals(spark.createDataFrame([("jobs", "new", due)], schema), str(spool), "overwrite")
    rows = read_queues(spark, str(spool)).orderBy("queue", "position")
    found = rows.selectExpr("queue", "data", DUE).collect()
    assert [(row.queue, bytes(row.data), row.due) for row in found] == [
        ("jobs", b"new", due),
        ("kept", b"in line", None),
        ("kept", b"later", later),
    ]
    with running_server(tmp_path) as server, Client(server.address) as client:
        items = {one.name: (one.items, one.number("delayed")) for one in client.queues()}
        assert items == {"jobs": (0, 1) if due else (1, 0), "kept": (1, 1)}


def test_appended_delayed_items_join_those_that_are_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Those that are due join their queue, behind what waits."""
    spool = tmp_path / "queues"
    now = SystemClock().now()
    for number in range(3):
        rows = spark.createDataFrame(
            [
                ("jobs", f"in line {number}", None),
                ("jobs", f"later {number}", now + HOUR),
                ("jobs", f"due {number}", now - HOUR),
                ("jobs", f"zero {number}", 0),
            ],
            "queue string, data string, due long",
        )
        write_journals(rows.coalesce(1), str(spool))
    table = str(tmp_path / "table")
    assert replay(spark, str(spool), table)[0].delayed == 6

    with running_server(tmp_path) as server, Client(server.address) as client:
        got = list(client.consume("jobs", idle_timeout=2, max_items=9))
        assert sorted(got[6:]) == [b"due 0", b"due 1", b"due 2"]
        assert {one.name: one.number("delayed") for one in client.queues()} == {"jobs": 3}


def test_delayed_items_are_restored_to_live_servers(spark: SparkSession, tmp_path: Path) -> None:
    """They wait there until they are due; what is due by now waits in line."""
    spool = tmp_path / "spool"
    later = delayed_notes(1, item(SystemClock().now() + HOUR, 0, b"later"), 0)
    due = delayed_notes(2, item(NOW, 0, b"due"), 0)
    write(spool / "jobs", adds([b"first"]), tail=later + due)
    table = str(tmp_path / "table")
    replay(spark, str(spool), table)

    with running_server(tmp_path) as server, Client(server.address) as client:
        assert restore_live(spark, table, ClusterOptions(server.address)) == 3
        assert sorted(client.consume("jobs", idle_timeout=0)) == [b"due", b"first"]
        assert [one.number("delayed") for one in client.queues()] == [1]


def test_a_single_journal_file_has_its_delayed_items(spark: SparkSession, tmp_path: Path) -> None:
    """Those of other files are not there."""
    spool = delayed_spool(tmp_path)
    rows = read_queues(spark, str(spool / "jobs")).where("due IS NOT NULL")

    assert [bytes(row.data) for row in rows.collect()] == [b"last"]


def fates_in(rows: DataFrame) -> list[tuple[str, int, str, int | None, bytes]]:
    """Return what became of each item, in order."""
    found = rows.orderBy("queue", "ordinal").withColumn("due", f.unix_millis("due")).collect()
    return [(row.queue, row.ordinal, row.fate, row.due, bytes(row.data)) for row in found]


def test_history_has_delayed_items_and_restore_takes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Behind the others by due time; one that has joined its queue counts there only."""
    spool, table = delayed_spool(tmp_path / "spool"), str(tmp_path / "table")
    items = history(spark, str(spool), with_data=True)

    assert fates_in(items) == [
        ("jobs", 0, "open", None, b"open"),
        ("jobs", 1, "live", None, b"first"),
        ("jobs", 2, "live", None, b"joined"),
        ("jobs", 3, "delayed", NOW + HOUR, b"soon"),
        ("jobs", 4, "delayed", NOW + HOUR + 1, b"last"),
        ("jobs", 5, "delayed", NOW + 2 * HOUR, b"later"),
        ("only", 0, "delayed", NOW + 1, b"alone"),
        ("plain", 0, "live", None, b"x"),
    ]
    times = {name: f.unix_millis(name) for name in ("add_time", "expiry")}
    late = items.where("fate = 'delayed'").orderBy("queue", "ordinal").withColumns(times).collect()
    assert [(row.file, row.position, row.add_time, row.expiry, row.aborts) for row in late] == [
        ("jobs.5", 140, NOW + HOUR, None, 0),
        ("jobs", 109, NOW + HOUR + 1, 7, 0),
        ("jobs.5", 70, NOW + 2 * HOUR, None, 0),
        ("only", 0, NOW + 1, None, 0),
    ]
    items.write.parquet(table)
    assert restore(spark, table, str(tmp_path / "back")) == 8
    back = history(spark, str(tmp_path / "back"), with_data=True)
    assert [row[3:] for row in fates_in(back)] == [row[3:] for row in fates_in(items)]


def test_an_item_counts_once_before_and_after_it_is_due(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In history and report: as delayed, then with its queue; one that was flushed is gone."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("jobs", b"first")
        client.put("jobs", b"due at once", delay=0.001)
        client.put("jobs", b"later", delay=3600)
        client.put("flushed", b"x", delay=3600)
        client.flush("flushed")
        assert list(client.consume("jobs", idle_timeout=2, max_items=2)) == [
            b"first",
            b"due at once",
        ]
        server.kill9()
    spool = str(server.queue_path)

    fates = [(row[0], row[2], row[4]) for row in fates_in(history(spark, spool, with_data=True))]
    assert fates == [
        ("jobs", "confirmed", b"first"),
        ("jobs", "confirmed", b"due at once"),
        ("jobs", "delayed", b"later"),
    ]
    made = report(spark, spool, str(tmp_path / "report"))
    (totals,) = made.queues
    assert (totals.items, totals.confirmed, totals.delayed, totals.live) == (3, 2, 1, 0)
    hours = spark.read.parquet(str(tmp_path / "report" / "hours"))
    assert hours.agg(f.sum("items_in"), f.sum("items_out")).collect()[0][:] == (2, 2)
    assert "items delayed" in Path(str(made.page)).read_text()


def test_packing_changes_no_fate_of_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    """Delayed items are among it."""
    spool = delayed_spool(tmp_path / "spool")
    before = [row[2:] for row in fates_in(history(spark, str(spool), with_data=True))]
    pack(spark, str(spool))
    after = [row[2:] for row in fates_in(history(spark, str(spool), with_data=True))]
    assert sorted(before, key=str) == sorted(after, key=str)
