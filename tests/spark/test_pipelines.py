"""Pipelines over journals, end to end on real spools."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.errors import QueuePathLocked
from kestrelmq.format.notes import delayed_notes
from kestrelmq.format.records import (
    AddX,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    Unremove,
    item,
)
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.journal.reserved_reads import done_note, reserved_note
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.pipelines import history, pack, replay, report, restore, verify
from kestrelmq.spark.pipelines.replay import QueueContents
from kestrelmq.spark.reading import read_journals, read_queues
from tests.spark.spools import NOW, Loaded, adds, load, random_spool, write
from tests.support.journal_bytes import encode

HOUR = 3_600_000
OPENING: dict[Dialect, set[str]] = {
    "documented": {"SAVE_XID", "ADD_XID", "REMOVE_TENTATIVE"},
    # How often an item was given back is in a note, which is made of SAVE_XIDs.
    "kestrel-2": {"SAVE_XID", "REMOVE_TENTATIVE_XID"},
}


def filled(queues: dict[str, list[Loaded]]) -> dict[str, list[Loaded]]:
    """Return the queues that hold anything."""
    return {queue: items for queue, items in queues.items() if items}


def test_replay_writes_present_contents_and_restore_brings_them_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spool to Parquet to spool: the same items in the same order; open reads are items again."""
    spool, table, back = tmp_path / "spool", tmp_path / "table", tmp_path / "back"
    random_spool(random.Random(11), spool, 8)
    write(spool / "007", adds([b"a number for a name"]))
    write(spool / "__HIVE_DEFAULT_PARTITION__", adds([b"Spark's own name for no name"]))
    expected = filled(load(spool))

    summary = replay(spark, str(spool), str(table))
    restored = restore(spark, str(table), str(back))

    assert summary == [
        QueueContents(
            queue,
            len(items),
            sum(item.xid is not None for item in items),
            sum(len(item.data) for item in items),
        )
        for queue, items in sorted(expected.items())
    ]
    assert restored == sum(map(len, expected.values()))
    assert load(back) == {
        queue: [Loaded(None, item.add_time, item.expiry, item.data) for item in items]
        for queue, items in expected.items()
    }


def test_restore_of_a_time_range(spark: SparkSession, tmp_path: Path) -> None:
    """Time travel: only what was added from `since` on and before `until`."""
    write(tmp_path / "spool" / "q", [AddX(NOW + n * 1000, 0, b"%d" % n) for n in range(10)])
    history(spark, tmp_path / "spool", with_data=True).write.parquet(str(tmp_path / "table"))

    def time(second: int) -> datetime:
        return datetime.fromtimestamp(NOW / 1000 + second, UTC)

    restored = restore(spark, tmp_path / "table", tmp_path / "back", since=time(3), until=time(6))

    assert restored == 3
    assert [item.data for item in load(tmp_path / "back")["q"]] == [b"3", b"4", b"5"]


def test_an_empty_spool_goes_through_the_pipelines(spark: SparkSession, tmp_path: Path) -> None:
    """No queue at all is no error: nothing comes out, and nothing comes back."""
    spool, table, back = (str(tmp_path / name) for name in ("spool", "table", "back"))
    Path(spool).mkdir()

    assert replay(spark, spool, table) == []
    assert restore(spark, table, back) == 0
    assert load(Path(back)) == {}
    assert history(spark, spool).count() == 0
    assert (pack(spark, spool), verify(spark, spool)) == ([], [])


def test_verify_names_damage_by_file_and_position(spark: SparkSession, tmp_path: Path) -> None:
    """Good files, damaged files, and a torn tail, which is good at the end of the last file."""
    torn = encode(AddX(NOW, 0, b"torn"))[:-1]
    write(tmp_path / "a.1", adds([b"x"] * 2), tail=b"\x63")
    write(tmp_path / "a", [Remove()], tail=torn)
    write(tmp_path / "b.1", [Remove()], tail=torn)
    write(tmp_path / "b", [])
    write(tmp_path / "c", [Remove()], tail=bytes(5000))
    write(tmp_path / "d.1", [*adds([b"x"]), RemoveTentative()], tail=b"\x63")
    write(tmp_path / "d", [], tail=delayed_notes(1, item(NOW, 0, b"late"), 0)[:-1])
    write(tmp_path / "c~~torn-1", [], tail=torn)

    found = {Path(one.file).name: one for one in verify(spark, tmp_path)}

    assert {name: (one.records, one.damaged_at, one.torn_at) for name, one in found.items()} == {
        "a.1": (2, 44, None),
        "a": (1, None, 1),
        "b.1": (1, 1, None),
        "b": (0, None, None),
        "c": (1, None, 1),
        "d.1": (2, 23, None),
        "d": (0, None, 0),
    }
    damaged = [name for name, one in found.items() if not one.is_good]
    assert damaged == ["a.1", "b.1", "d.1"]
    (one,) = verify(spark, tmp_path / "d.1")
    assert (one.queue, one.damaged_at) == ("d", 23)
    assert found["a.1"].reason == "unknown opcode 99"


def test_items_that_a_tag_finished_do_not_come_back(spark: SparkSession, tmp_path: Path) -> None:
    """A crash cut off the records that confirm them; the note says that they are confirmed."""
    opened = [*adds([b"a", b"b", b"c"]), RemoveTentative(), RemoveTentative()]
    terms = ReserveTerms(600_000, tag="sink:1:0")
    notes = reserved_note(7, terms, (1, 2), 2) + done_note("sink:1:0", 2, 2)
    write(tmp_path / "q", opened, tail=notes + encode(ConfirmRemove(1)))

    fates = {
        bytes(row.data): row.fate for row in history(spark, tmp_path, with_data=True).collect()
    }
    assert fates == {b"a": "confirmed", b"b": "confirmed", b"c": "live"}
    contents = read_queues(spark, tmp_path, ["data"]).collect()
    assert [bytes(row.data) for row in contents] == [b"c"]
    assert len(load(tmp_path)["q"]) == 1


@pytest.mark.parametrize(
    ("seed", "dialect"), [(0, "documented"), (1, "kestrel-2"), (2, "documented")]
)
def test_packed_queues_load_as_before(
    spark: SparkSession, tmp_path: Path, seed: int, dialect: Dialect
) -> None:
    """Items, open reads and order are the same; the journals are smaller, and packing again too."""
    random_spool(random.Random(seed), tmp_path, 10)
    expected = load(tmp_path)

    packed = pack(spark, tmp_path, dialect=dialect)
    once = load(tmp_path)
    written = {row.operation for row in read_journals(spark, tmp_path, ["operation"]).collect()}
    pack(spark, tmp_path)

    assert once == expected
    assert written <= {"ADD", "ADDX", *OPENING[dialect]}
    assert load(tmp_path) == expected
    assert sum(one.after for one in packed) < sum(one.before for one in packed)
    assert {one.queue: one.items for one in packed} == {
        queue: len(items) for queue, items in expected.items()
    }
    assert not list(tmp_path.glob("~~write-*"))


def test_packing_sets_a_torn_tail_aside(spark: SparkSession, tmp_path: Path) -> None:
    """Cut bytes are kept beside the journal: nothing is ever deleted."""
    torn = encode(AddX(NOW, 0, b"torn"))[:-1]
    write(tmp_path / "q", adds([b"x"]), tail=torn)

    pack(spark, tmp_path)

    assert [path.read_bytes() for path in tmp_path.glob("q~~torn-*")] == [torn]
    assert [item.data for item in load(tmp_path)["q"]] == [b"x"]


def test_packing_needs_the_queue_path_for_itself(spark: SparkSession, tmp_path: Path) -> None:
    """While a server runs, nothing is packed."""
    write(tmp_path / "q", adds([b"x"]))
    lock = QueuePathLock(tmp_path)
    lock.acquire()
    try:
        with pytest.raises(QueuePathLocked):
            pack(spark, str(tmp_path))
    finally:
        lock.release()


@pytest.mark.parametrize("some", ["q.1", "q.*"])
def test_packing_needs_the_whole_queue_path(spark: SparkSession, some: str, tmp_path: Path) -> None:
    """A pack would replace the files that were not named, too."""
    write(tmp_path / "q.1", adds([b"x"]))
    write(tmp_path / "q", adds([b"y"]))

    with pytest.raises(ValueError, match="only some files"):
        pack(spark, tmp_path / some)

    assert [item.data for item in load(tmp_path)["q"]] == [b"x", b"y"]


def test_history_tells_the_fate_of_every_item(spark: SparkSession, tmp_path: Path) -> None:
    """Removed, confirmed after two aborts, expired, open and live; across files.

    An item counts as confirmed if it expired after it was read, and as expired if it did before:
    then it was set aside on its way to another queue.
    """
    old: list[Record] = [
        *adds([b"removed"]),
        AddX(NOW + 1, NOW + 50, b"aborted"),
        *adds([b"open", b"stale"], at=NOW + 2),
        AddX(NOW + 10, NOW + 20, b"expires"),
        AddX(NOW + 10, NOW + 20, b"set aside"),
        Remove(),
        RemoveTentative(),
        Unremove(1),
        RemoveTentative(),
    ]
    new: list[Record] = [
        Unremove(2),
        RemoveTentative(),
        RemoveTentative(),
        AddX(NOW + 100, 0, b"later"),
        ConfirmRemove(3),
        Remove(),
        Remove(),
        RemoveTentative(),
        ConfirmRemove(5),
        AddX(NOW + 200, 0, b"last"),
    ]
    write(tmp_path / "q.1", old)
    write(tmp_path / "q", new)

    times = {name: f.unix_millis(name) for name in ("gone_after", "gone_before")}
    found = history(spark, tmp_path, with_data=True).withColumns(times)
    rows = found.orderBy("ordinal").collect()

    assert [(bytes(row.data), row.fate, row.aborts) for row in rows] == [
        (b"removed", "removed", 0),
        (b"aborted", "confirmed", 2),
        (b"open", "open", 0),
        (b"stale", "removed", 0),
        (b"expires", "expired", 0),
        (b"set aside", "expired", 0),
        (b"later", "live", 0),
        (b"last", "live", 0),
    ]
    bounds = {bytes(row.data): (row.gone_after, row.gone_before) for row in rows}
    assert bounds[b"removed"] == (NOW + 10, NOW + 100)
    assert bounds[b"expires"] == (NOW + 100, NOW + 200)
    assert bounds[b"later"] == (None, None)


def test_history_counts_what_replay_counts(spark: SparkSession, tmp_path: Path) -> None:
    """On any spool, the items that are live or open are those that a server loads."""
    random_spool(random.Random(21), tmp_path, 9)
    expected = {queue: len(items) for queue, items in load(tmp_path).items() if items}

    rows = history(spark, tmp_path).where("fate IN ('live', 'open')")
    counts = {row.queue: row["count"] for row in rows.groupBy("queue").count().collect()}

    assert counts == expected


def test_cuts_change_neither_fates_nor_reports(spark: SparkSession, tmp_path: Path) -> None:
    """The same operations in one file and in many give the same history and the same figures."""
    rng = random.Random(4)
    records: list[Record] = []
    for number in range(300):
        at = NOW + number * HOUR // 40
        expiry = rng.choice([0, 0, at + HOUR // 20])
        records.append(AddX(at, expiry, bytes(rng.randrange(9))))
        records += rng.choice([[], [Remove()], [Remove(), Remove()], [RemoveTentativeXid(number)]])
        if rng.random() < 0.5:
            records.append(Continue(rng.randrange(number + 1), at + 7, 0, b"next"))
    cuts = [[], sorted(rng.sample(range(len(records)), 9)), range(0, len(records), 40)]

    for number, places in enumerate(cuts):
        for place, (begin, end) in enumerate(pairwise([0, *places, len(records)])):
            write(tmp_path / "spool" / f"q{number}.{place + 1}", records[begin:end])
    items = history(spark, tmp_path / "spool").orderBy("queue", "ordinal").collect()
    output = str(tmp_path / "out")
    made = report(spark, tmp_path / "spool", output)
    hours = spark.read.parquet(f"{output}/hours").orderBy("queue", "hour").collect()

    def of(rows: list[Row], number: int) -> list[dict[str, object]]:
        named = (row.asDict() for row in rows if row.queue == f"q{number}")
        places = {"spool", "queue", "file", "position"}
        return [{name: row[name] for name in row.keys() - places} for row in named]

    assert len({row["fate"] for row in of(items, 0)}) == 5
    for number in range(1, len(cuts)):
        assert of(items, number) == of(items, 0)
        assert of(hours, number) == of(hours, 0)
        assert replace(made.queues[number], queue="q0") == made.queues[0]


def test_report_counts_by_hour_and_writes_a_page(spark: SparkSession, tmp_path: Path) -> None:
    """Rows for each hour with adds or removes, totals, and a page that names every queue."""
    hour = NOW // HOUR * HOUR
    records: list[Record] = [AddX(hour + n * 1000, 0, b"x" * 10) for n in range(5)]
    records += [Remove(), AddX(hour + HOUR, 0, b"large" * 100), Remove(), Remove()]
    write(tmp_path / "spool" / "a+<b>", records)

    made = report(spark, tmp_path / "spool", tmp_path / "out")

    table = spark.read.parquet(str(tmp_path / "out" / "hours"))
    rows = table.withColumn("hour", f.unix_millis("hour")).orderBy("hour").collect()
    assert [(row.hour, row.items_in, row.items_out, row.depth) for row in rows] == [
        (hour, 5, 1, 4),
        (hour + HOUR, 1, 2, 3),
    ]
    assert [(row.largest, row.at_least_p50, row.at_most_p50) for row in rows] == [
        (10, 4000, HOUR),
        (500, HOUR - 2000, None),
    ]
    (totals,) = made.queues
    assert (totals.items, totals.bytes, totals.removed, totals.live) == (6, 550, 3, 3)
    assert totals.largest == 500
    text = Path(str(made.page)).read_text()
    assert "a+&lt;b&gt;" in text
    assert "<b>.1" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_report_of_a_time_and_of_several_spools(spark: SparkSession, tmp_path: Path) -> None:
    """Hours and totals are of that time, depths count what was before; spools are kept apart."""
    hour = NOW // HOUR * HOUR
    for spool, count in (("a", 1), ("b", 2)):
        records: list[Record] = [AddX(hour, 0, b"old")] * count
        records += [AddX(hour + HOUR, 0, b"new!"), Remove(), AddX(hour + 2 * HOUR, 0, b"later")]
        write(tmp_path / "spools" / spool / "q", records)

    path, output = str(tmp_path / "spools" / "*"), tmp_path / "out"
    made = report(spark, path, output, since=hour + HOUR, until=hour + 2 * HOUR)

    rows = spark.read.parquet(str(tmp_path / "out" / "hours")).orderBy("spool").collect()
    spools = [str(tmp_path / "spools" / name) for name in "ab"]
    assert [(row.spool, row.queue, row.items_in, row.items_out, row.depth) for row in rows] == [
        (spools[0], "q", 1, 1, 1),
        (spools[1], "q", 1, 1, 2),
    ]
    assert [(one.spool, one.items, one.bytes, one.live) for one in made.queues] == [
        (spools[0], 1, 4, 1),
        (spools[1], 1, 4, 1),
    ]
    assert f"{spools[1]}/q" in Path(str(made.page)).read_text()


def test_report_takes_every_time_that_fits_into_a_journal(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The stay of an item and the begin of an hour may not fit into 64 bits."""
    first, last = -(2**63), 2**63 - 1
    for queue, times in (("up", (first, last)), ("down", (last, first))):
        records = [record for at in (*times, NOW) for record in (AddX(at, 0, b"x"), Remove())]
        write(tmp_path / "spool" / queue, [*records, AddX(times[1], 0, b"left")])

    made = report(spark, tmp_path / "spool", tmp_path / "out")

    assert [(one.queue, one.removed, one.live) for one in made.queues] == [
        ("down", 3, 1),
        ("up", 3, 1),
    ]
    rows = spark.read.parquet(str(tmp_path / "out" / "hours")).where("queue = 'down'")
    hours = [row[0] for row in rows.select(f.unix_millis("hour")).orderBy("hour").collect()]
    assert hours == [None, None, NOW // HOUR * HOUR]
