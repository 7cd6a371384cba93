"""`kestrel.journal`, read: one row for each operation, against real Spark."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
)
from kestrelmq.spark.pipelines import replay, restore
from kestrelmq.spark.reading import read_journals, read_queues, write_journals
from kestrelmq.spark.sources.journal import JournalSourceReader
from kestrelmq.spark.sources.journal_options import JournalReadOptions
from kestrelmq.spark.sources.journal_rows import JOURNAL_SCHEMA
from tests.spark.spools import NOW, adds, random_spool, write
from tests.support.journal_bytes import encode

EVERY_RECORD: list[Record] = [
    Add(1_800_000_000, b"starling"),
    Remove(),
    AddX(NOW, NOW + 5, b"kestrel"),
    RemoveTentative(),
    SaveXid(-7),
    Unremove(1),
    ConfirmRemove(2),
    AddXid(3, NOW, 0, b""),
    StateDump(4, 1),
    Continue(5, NOW, 9, b"\x00\xff"),
    RemoveTentativeXid(6),
]
DAMAGE = b"\x63 is no opcode"


def test_a_name_with_brackets_is_no_glob(spark: SparkSession, tmp_path: Path) -> None:
    """What is there under the very name is meant; a glob of it is written with brackets too."""
    write(tmp_path / "a[bc]" / "right", adds([b"1"]))
    write(tmp_path / "ab" / "wrong", adds([b"2"]))
    write_journals(
        spark.createDataFrame([("more", "3")], "queue string, data string"),
        str(tmp_path / "a[bc]"),
    )

    def queues(path: str) -> list[str]:
        operations = spark.read.format("kestrel.journal").load(str(tmp_path / path)).collect()
        items = spark.read.format("kestrel.queue").load(str(tmp_path / path)).collect()
        assert sorted(row.queue for row in items) == sorted(row.queue for row in operations)
        return sorted(row.queue for row in items)

    assert queues("a[bc]") == ["more", "right"]
    assert queues("a[[]bc]") == ["more", "right"]
    assert queues("a[b]") == ["wrong"]
    replay(spark, str(tmp_path / "a[bc]"), str(tmp_path / "out[1]"))
    assert restore(spark, str(tmp_path / "out[1]"), str(tmp_path / "back")) == 2


@pytest.mark.parametrize("form", ["kestrel.journal", "kestrel.queue"])
def test_queues_are_chosen_by_name_and_by_pattern(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """As for live queues; what is not chosen need not be whole."""
    for name in ("orders_eu", "orders_us", "orders_us+copy", "mails"):
        write(tmp_path / name, adds([b"x"]))
    write(tmp_path / "damaged", [], tail=b"\xff")

    def chosen(queue: str) -> list[str]:
        rows = spark.read.format(form).option("queue", queue).load(str(tmp_path))
        return [row.queue for row in rows.orderBy("queue").collect()]

    assert chosen("orders_*") == ["orders_eu", "orders_us"]
    assert chosen("mails,orders_*+copy") == ["mails", "orders_us+copy"]
    assert chosen("none") == []
    with pytest.raises(
        PySparkException, match=r"option 'queue' of reading .*: 'a/b' is not allowed"
    ):
        chosen("a/b")


def test_several_spools_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    """A glob over queue paths gives the column `spool`; one queue path has it when asked."""
    for name in ("one", "two"):
        write(tmp_path / name / "q", adds([name.encode()]))
    expected = [(str(tmp_path / name), name.encode()) for name in ("one", "two")]

    for form in ("kestrel.journal", "kestrel.queue"):
        rows = spark.read.format(form).load(str(tmp_path / "*"))
        assert rows.columns[-1] == "spool"
        found = rows.select("spool", "data").orderBy("spool").collect()
        assert [(row.spool, bytes(row.data)) for row in found] == expected
        single = spark.read.format(form).load(str(tmp_path / "one"))
        assert "spool" not in single.columns
        asked = spark.read.format(form).schema("SPOOL string, Queue string")
        assert [tuple(row) for row in asked.load(str(tmp_path / "one")).collect()] == [
            (str(tmp_path / "one"), "q")
        ]
    assert read_queues(spark, str(tmp_path / "*"), ["spool"]).distinct().count() == 2
    assert read_journals(spark, str(tmp_path / "*")).columns[-1] == "spool"


def test_every_operation_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """Each kind of record has a name, and exactly the values that it carries."""
    write(tmp_path / "work", EVERY_RECORD)

    table = spark.read.format("kestrel.journal").load(str(tmp_path)).orderBy("position")
    rows = table.drop("add_time", "expiry").collect()

    assert [tuple(row)[3:] for row in rows] == [
        (0, "ADD", None, None, 1_800_000_000_000, 8, b"starling"),
        (1, "REMOVE", None, None, None, None, None),
        (2, "ADDX", None, NOW, NOW + 5, 7, b"kestrel"),
        (3, "REMOVE_TENTATIVE", None, None, None, None, None),
        (4, "SAVE_XID", -7, None, None, None, None),
        (5, "UNREMOVE", 1, None, None, None, None),
        (6, "CONFIRM_REMOVE", 2, None, None, None, None),
        (7, "ADD_XID", 3, NOW, 0, 0, b""),
        (8, "STATE_DUMP", 4, None, None, None, None),
        (8, "CONTINUE", 5, NOW, 9, 2, b"\x00\xff"),
        (9, "REMOVE_TENTATIVE_XID", 6, None, None, None, None),
    ]
    lengths = [len(encode(record)) for record in EVERY_RECORD]
    assert [row.position for row in rows] == [sum(lengths[:n]) for n in range(len(lengths))]
    assert {(row.queue, row.file) for row in rows} == {("work", "work")}


def test_rows_hold_the_bytes_of_the_files(spark: SparkSession, tmp_path: Path) -> None:
    """Items of all sizes, in files of all kinds, come back byte for byte."""
    rng = random.Random(5)
    written = {}
    for number, size in enumerate([0, 1, 100, 70_000, 3_000_000]):
        items = [rng.randbytes(size) for _ in range(7)]
        written[f"q{number}"] = items
        write(tmp_path / f"q{number}.{number}", adds(items))

    rows = read_journals(spark, str(tmp_path), ["queue", "position", "data"]).collect()

    found: dict[str, list[bytes]] = {}
    for row in sorted(rows, key=lambda row: (row.queue, row.position)):
        found.setdefault(row.queue, []).append(bytes(row.data))
    assert found == written


def test_only_the_files_of_queues_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """Packs replace what they cover; temporaries, other names and directories are left out."""
    for name in ["a.5", "a.7.pack", "a.8", "a", "a~~pack-9", "b.1", "not a queue", "c+d", "~~lock"]:
        write(tmp_path / name, [Remove()])
    write(tmp_path / "folder" / "inside", [Remove()])

    rows = read_journals(spark, str(tmp_path), ["queue", "file"]).collect()

    assert sorted(map(tuple, rows)) == [
        ("a", "a"),
        ("a", "a.7.pack"),
        ("a", "a.8"),
        ("b", "b.1"),
        ("c+d", "c+d"),
    ]


def test_a_path_is_a_directory_a_file_or_a_glob(spark: SparkSession, tmp_path: Path) -> None:
    """Each form finds its files, and names them so that no two are called the same."""
    for spool in ("one", "two"):
        write(tmp_path / spool / "q.1", [Remove()])
        write(tmp_path / spool / "q", [Remove()])

    def files(path: str) -> list[str]:
        return sorted(row.file for row in read_journals(spark, path, ["file"]).collect())

    assert files(f"{tmp_path}/one") == ["q", "q.1"]
    assert files(f"{tmp_path}/one/q.1") == ["q.1"]
    assert files(f"{tmp_path}/*") == ["one/q", "one/q.1", "two/q", "two/q.1"]
    assert files(f"{tmp_path}/*/q.*") == ["one/q.1", "two/q.1"]


def test_filters_are_pushed_down_and_change_no_result(spark: SparkSession, tmp_path: Path) -> None:
    """With and without push-down the same rows come; with it, other files are not opened."""
    random_spool(random.Random(3), tmp_path, 6)
    (tmp_path / "damaged").write_bytes(DAMAGE)
    condition = (
        "queue = 'queue1' AND operation IN ('ADDX', 'CONTINUE') AND position > 10 "
        f"AND add_time >= timestamp_millis({NOW}) AND add_ms < 9e18"
    )

    pushed = read_journals(spark, str(tmp_path)).where(condition).collect()
    by_hand = spark.read.format("kestrel.journal").option("mode", "dropmalformed")
    rows = by_hand.load(str(tmp_path)).where(condition).collect()

    assert sorted(pushed) == sorted(rows)
    assert pushed != []


def test_an_empty_directory_and_empty_files_give_no_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing to read is no error."""
    assert spark.read.format("kestrel.journal").load(str(tmp_path)).count() == 0
    write(tmp_path / "empty", [])
    assert spark.read.format("kestrel.journal").load(str(tmp_path)).count() == 0


def test_a_torn_tail_of_the_last_file_is_no_damage(spark: SparkSession, tmp_path: Path) -> None:
    """A record that is being written gives no row; the same in an older file is damage."""
    torn = encode(AddX(NOW, 0, b"torn"))[:-1]
    write(tmp_path / "q.1", [Remove()])
    write(tmp_path / "q", [Remove()], tail=torn)
    assert read_journals(spark, str(tmp_path), ["queue"]).count() == 2

    write(tmp_path / "q.1", [Remove()], tail=torn)
    with pytest.raises(PySparkException, match=r"q\.1: damaged at byte 1"):
        read_journals(spark, str(tmp_path), ["queue"]).collect()


def test_damage_stops_is_named_or_is_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """The three modes: an error with file and byte; a row that says so; the rows before it."""
    write(tmp_path / "bad", adds([b"x"] * 3), tail=DAMAGE)
    write(tmp_path / "good", adds([b"y"]))
    at = 3 * 22

    with pytest.raises(PySparkException, match=f"bad: damaged at byte {at}: unknown opcode 99"):
        read_journals(spark, str(tmp_path)).collect()
    permissive = read_journals(spark, str(tmp_path), mode="permissive").collect()
    dropped = read_journals(spark, str(tmp_path), mode="dropmalformed").collect()

    named = [row for row in permissive if row.operation == "DAMAGED"]
    assert [(row.queue, row.position, row.opcode, row.size, row.data) for row in named] == [
        ("bad", at, 99, len(DAMAGE), b"unknown opcode 99")
    ]
    assert sorted(row.queue for row in dropped) == ["bad", "bad", "bad", "good"]
    assert len(permissive) == len(dropped) + 1


def test_a_file_that_grows_while_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A query sees the file as it was when it was planned, though a record is half written."""
    record = encode(AddX(NOW, 0, b"later"))
    write(tmp_path / "q", adds([b"first"]))
    rows = read_journals(spark, str(tmp_path), ["data"])
    rows.explain()  # plans the query, and lists the files
    with (tmp_path / "q").open("ab") as file:
        file.write(record + record[:10])

    again = read_journals(spark, str(tmp_path), ["data"])

    assert [bytes(row.data) for row in again.collect()] == [b"first", b"later"]
    assert [bytes(row.data) for row in rows.collect()][:1] == [b"first"]


def test_a_thousand_queues(spark: SparkSession, tmp_path: Path) -> None:
    """Many small files share tasks."""
    for number in range(1000):
        write(tmp_path / f"q{number}", adds([b"x"]))

    rows = read_journals(spark, str(tmp_path), ["queue", "position"])

    assert rows.rdd.getNumPartitions() == 1
    assert rows.select("queue").distinct().count() == 1000


def test_planning_over_ten_thousand_files(tmp_path: Path) -> None:
    """They share a few tasks."""
    for number in range(10_000):
        (tmp_path / f"q{number % 100}.{number}").write_bytes(b"\x01")
    partitions = JournalSourceReader(JournalReadOptions(str(tmp_path)), JOURNAL_SCHEMA).partitions()

    assert len(partitions) == 10
    files = [file for part in partitions for file in part.value]
    assert len(files) == 10_000


def test_wrong_options_and_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the option or column, what was found and what is allowed."""
    reader = spark.read.format("kestrel.journal")
    with pytest.raises(PySparkException, match=r"option 'mode'.*'lenient'.*one of failfast"):
        reader.option("mode", "lenient").load(str(tmp_path)).collect()
    with pytest.raises(PySparkException, match="column 'date' is unknown"):
        spark.read.format("kestrel.journal").schema("date long").load(str(tmp_path)).collect()
    with pytest.raises(PySparkException, match="column 'QUEUE' occurs twice"):
        spark.read.format("kestrel.journal").schema("queue string, QUEUE string").load(
            str(tmp_path)
        ).collect()
    with pytest.raises(PySparkException, match="it has no column: allowed are queue, file"):
        read_journals(spark, str(tmp_path), []).count()
    with pytest.raises(PySparkException, match="no file or directory matches"):
        spark.read.format("kestrel.journal").load(str(tmp_path / "nowhere")).collect()


def test_times_are_timestamps_beside_what_the_journal_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Null for never, for no time, and for one that no timestamp can be."""
    write(tmp_path / "q", [AddX(NOW, NOW + 5, b"1"), AddX(2**63 - 1, 0, b"2"), Remove()])
    rows = spark.read.format("kestrel.journal").load(str(tmp_path)).orderBy("position")
    names = ["add_time", "expiry", "add_ms", "expiry_ms"]
    at = [datetime.fromtimestamp((NOW + ms) / 1000, UTC) for ms in (0, 5)]

    assert [rows.schema[name].dataType.simpleString() for name in names] == [
        *["timestamp"] * 2,
        *["bigint"] * 2,
    ]
    found = [tuple(row) for row in rows.select(*names).collect()]
    local = [time.astimezone().replace(tzinfo=None) for time in at]
    assert found == [(*local, NOW, NOW + 5), (None, None, 2**63 - 1, 0), (None,) * 4]
    with_time = f"add_time = timestamp_millis({NOW}) AND expiry > add_time"
    assert rows.where(with_time).count() == 1
    held = spark.read.format("kestrel.queue").load(str(tmp_path)).select("expiry").collect()
    assert [row.expiry for row in held] == [None]
