"""`kestrel.queue`: what is in the queues now is what a server would load."""

import random
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.format.records import AddX, Record, Remove, RemoveTentative, Unremove
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.journal.reserved_reads import reserved_note
from kestrelmq.spark.reading import read_queues
from kestrelmq.spark.sources.journal_options import Mode
from tests.spark.spools import NOW, Loaded, adds, load, random_spool, write


def contents(rows: DataFrame) -> dict[str, list[Loaded]]:
    """Return the items of each queue, in order; positions must count from 0."""
    found: dict[str, list[Loaded]] = {}
    times = {"add_time": f.unix_millis("add_time"), "expiry": f.unix_millis("expiry")}
    for row in rows.withColumns(times).orderBy("queue", "position").collect():
        items = found.setdefault(row.queue, [])
        assert row.position == len(items)
        assert row.size == len(row.data)
        items.append(Loaded(row.xid, row.add_time, row.expiry or 0, bytes(row.data)))
    return found


def test_random_spools_are_as_a_server_loads_them(spark: SparkSession, tmp_path: Path) -> None:
    """Both dialects, packs, rotation, open reads, torn tails: item for item, however planned."""
    for seed in range(4):
        random_spool(random.Random(seed), tmp_path / str(seed), 12)
    path = str(tmp_path / "*")

    direct = spark.read.format("kestrel.queue").load(path).persist()
    planned = read_queues(spark, path, direct_bytes=1).persist()

    for spool in tmp_path.iterdir():
        expected = {queue: items for queue, items in load(spool).items() if items}
        for rows in (direct, planned):
            assert contents(rows.where(f.col("spool") == str(spool))) == expected


def test_open_reads_go_back_to_the_head_by_xid(spark: SparkSession, tmp_path: Path) -> None:
    """Open reads come first, ascending by xid; then what was given back; then the rest."""
    opens: list[Record] = [RemoveTentative()] * 3
    write(tmp_path / "q.1", [*adds([b"a", b"b", b"c"]), *opens])
    write(tmp_path / "q", [*adds([b"d"]), Unremove(2)])

    rows = read_queues(spark, str(tmp_path)).orderBy("position").collect()

    assert [(row.xid, bytes(row.data)) for row in rows] == [
        (1, b"a"),
        (3, b"c"),
        (None, b"b"),
        (None, b"d"),
    ]


@pytest.mark.parametrize("direct_bytes", [1, 1 << 20])
def test_open_reads_have_owner_tag_and_deliveries(
    spark: SparkSession, tmp_path: Path, direct_bytes: int
) -> None:
    """Of a reservation its owner and tag; of each how often it was handed out, this time too."""
    reads: list[Record] = [RemoveTentative(), Unremove(1), *[RemoveTentative()] * 3]
    terms = ReserveTerms(0, owner="worker", tag="step:3:1")
    write(tmp_path / "q.1", adds([b"a", b"b"]))
    write(tmp_path / "q", [*adds([b"c", b"d"]), *reads], tail=reserved_note(7, terms, (2, 3), 4))

    names = ["data", "xid", "owner", "tag", "deliveries"]
    rows = read_queues(spark, str(tmp_path), [*names, "position"], direct_bytes=direct_bytes)

    assert rows.orderBy("position").select(*names).collect() == [
        (b"a", 2, "worker", "step:3:1", 2),
        (b"b", 3, "worker", "step:3:1", 1),
        (b"c", 4, None, None, 1),
        (b"d", None, None, None, None),
    ]


def test_data_is_not_needed(spark: SparkSession, tmp_path: Path) -> None:
    """A reader that asks for fewer columns gets those, in its own order."""
    write(tmp_path / "q", adds([b"abc", b""]))

    rows = read_queues(spark, str(tmp_path), ["size", "queue"])

    assert sorted(map(tuple, rows.collect())) == [(0, "q"), (3, "q")]


def test_damage_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged queue is not loaded in part: the error names file and byte."""
    write(tmp_path / "q.1", adds([b"x"]), tail=b"\x63")
    write(tmp_path / "q", [Remove()])

    with pytest.raises(PySparkException, match=r"q\.1: damaged at byte 22"):
        read_queues(spark, str(tmp_path)).collect()


def test_large_items_and_many_small_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Batches are cut by rows and by bytes; nothing is lost at the cuts."""
    rng = random.Random(1)
    large = [rng.randbytes(9_000_000) for _ in range(3)]
    small: list[Record] = [AddX(NOW + n, 0, b"%d" % n) for n in range(50_000)]
    write(tmp_path / "large", adds(large))
    write(tmp_path / "small", [*small, *[Remove()] * 25_001])

    rows = read_queues(spark, str(tmp_path))

    found = rows.where("queue = 'large'").orderBy("position").collect()
    assert [bytes(row.data) for row in found] == large
    first = rows.where("queue = 'small'").orderBy("position").first()
    assert first is not None
    assert bytes(first.data) == b"25001"
    assert rows.where("queue = 'small'").count() == 24_999


@pytest.mark.parametrize("direct_bytes", [1, 1 << 20])
def test_a_damaged_queue_need_not_stop_the_others(
    spark: SparkSession, tmp_path: Path, direct_bytes: int
) -> None:
    """By default it does; else it is left out, or is a row that says what is wrong with it."""
    for queue in ("bad", "good"):
        write(tmp_path / f"{queue}.1", adds([b"1"]), tail=b"\xff" if queue == "bad" else b"")
        write(tmp_path / queue, adds([b"2"]))

    def found(mode: Mode) -> list[tuple[str, int, bytes]]:
        rows = read_queues(spark, str(tmp_path), direct_bytes=direct_bytes, mode=mode)
        ordered = rows.orderBy("queue", "position").collect()
        return [(row.queue, row.position, bytes(row.data)) for row in ordered]

    with pytest.raises(PySparkException, match=r"bad\.1: damaged at byte 22"):
        found("failfast")
    good = [("good", 0, b"1"), ("good", 1, b"2")]
    assert found("dropmalformed") == good
    told, *others = found("permissive")
    assert others == good
    assert told[:2] == ("bad", -1)
    assert b"bad.1: damaged at byte 22: unknown opcode 255" in told[2]
