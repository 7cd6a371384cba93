"""`kestrel.journal`, written: a DataFrame becomes queues that a server loads."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.clock import SystemClock
from kestrelmq.config.model import ServerConfig
from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.errors import QueuePathLocked
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.spark import register
from kestrelmq.spark.reading import write_journals
from tests.spark.spools import NOW, Loaded, adds, load, write

ZONE = "spark.sql.session.timeZone"


def save(rows: DataFrame, path: Path, mode: str = "append") -> None:
    """Write rows to journals."""
    rows.write.format("kestrel.journal").mode(mode).save(str(path))


def data(path: Path) -> dict[str, list[bytes]]:
    """Return the data of the items a server would load."""
    return {queue: [item.data for item in items] for queue, items in load(path).items()}


def leftovers(path: Path) -> list[str]:
    """Return names that are no journal's and not the lock's."""
    return [entry.name for entry in path.iterdir() if "~~" in entry.name and entry.name != "~~lock"]


def test_rows_are_loaded_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    """Times in ms and as timestamps, missing times, empty data, odd names, text."""
    time = datetime(2024, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    milliseconds = int(time.timestamp() * 1000)
    rows = spark.createDataFrame(
        [("a+b", bytearray(b""), NOW, 0), ("a+b", bytearray(b"\x00\xff"), NOW + 1, -5)],
        "queue string, data binary, add_time long, expiry long",
    ).coalesce(1)
    save(rows, tmp_path)
    stamps = spark.createDataFrame(
        [("é", "text", time, time), ("é", "more", time, None)],
        "queue string, data string, add_time timestamp, expiry timestamp",
    ).coalesce(1)
    save(stamps, tmp_path)
    before = int(datetime.now(UTC).timestamp() * 1000)
    save(spark.createDataFrame([("bare", "x")], "queue string, data string"), tmp_path)

    loaded = load(tmp_path)

    assert loaded["a+b"] == [Loaded(None, NOW, 0, b""), Loaded(None, NOW + 1, -5, b"\x00\xff")]
    assert loaded["é"] == [
        Loaded(None, milliseconds, milliseconds, b"text"),
        Loaded(None, milliseconds, 0, b"more"),
    ]
    assert before <= loaded["bare"][0].add_time
    assert leftovers(tmp_path) == []


def test_names_in_any_case_and_the_types_that_spark_casts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Numbers of every width, decimals, dates, times without a zone; a queue may be a number."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        rows = spark.sql(
            f"SELECT 7S AS QUEUE, 'wide' AS Data, {NOW}BD AS Add_Time, "
            "DATE '2024-05-01' AS EXPIRY, 1Y AS Sequence "
            f"UNION ALL SELECT 7S, CAST('byte' AS CHAR(4)), {NOW} + 0.75BD, DATE '2024-05-02', 0Y"
        )
        save(rows.coalesce(1), tmp_path)
        local = spark.sql(
            "SELECT 'zone' AS queue, X'00FF' AS data, TIMESTAMP_NTZ '2024-05-01 05:30:00' AS "
            "add_time, 1.7e12D AS expiry, CAST(5 AS DECIMAL(38, 0)) AS sequence"
        )
        write_journals(local, str(tmp_path))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")

    midnight = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp() * 1000)
    kolkata = midnight - int(5.5 * 3_600_000)
    assert load(tmp_path) == {
        "7": [
            Loaded(None, NOW, kolkata + 86_400_000, b"byte"),
            Loaded(None, NOW, kolkata, b"wide"),
        ],
        "zone": [Loaded(None, midnight, 1_700_000_000_000, b"\x00\xff")],
    }


def test_dates_are_in_the_zone_of_a_session_that_was_given_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It has that of the driver's Java, of which tasks know nothing by themselves."""
    zones: Any = spark.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]
    machine, given = zones.getDefault(), spark.conf.get(ZONE, None)
    zones.setDefault(zones.getTimeZone("Asia/Kolkata"))
    spark.conf.unset(ZONE)
    try:
        register(spark)
        rows = spark.sql("SELECT 'q' AS queue, 'x' AS data, DATE '2024-05-01' AS add_time")
        save(rows, tmp_path)
    finally:
        zones.setDefault(machine)
        spark.conf.set(ZONE, given or "UTC")

    midnight = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp() * 1000)
    assert load(tmp_path) == {"q": [Loaded(None, midnight - int(5.5 * 3_600_000), 0, b"x")]}


@pytest.mark.parametrize("sort_first", [True, False])
def test_the_sequence_orders_a_queue(
    spark: SparkSession,
    tmp_path: Path,
    sort_first: bool,  # noqa: FBT001
) -> None:
    """Whatever order tasks have the rows in, sorted by Spark or merged at the commit."""
    rows = spark.range(0, 4000, 1, 4).select(
        f.concat(f.lit("q"), f.col("id") % 3).alias("queue"),
        f.col("id").cast("string").alias("data"),
        (f.col("id") * 7919 % 4001).alias("sequence"),
    )
    if sort_first:
        write_journals(rows, str(tmp_path))
    else:
        save(rows, tmp_path)

    expected = {
        f"q{queue}": [
            str(number).encode()
            for number in sorted(range(queue, 4000, 3), key=lambda number: number * 7919 % 4001)
        ]
        for queue in range(3)
    }
    assert data(tmp_path) == expected


def test_without_a_sequence_the_order_is_that_of_the_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Partition after partition, row after row; several parts of a queue are several files."""
    rows = spark.range(0, 1000, 1, 4).selectExpr("'q' queue", "cast(id as string) data")

    save(rows, tmp_path)

    assert data(tmp_path) == {"q": [b"%d" % number for number in range(1000)]}
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("q.")]) == 4


def test_append_adds_and_overwrite_replaces(spark: SparkSession, tmp_path: Path) -> None:
    """Append goes behind what is there; overwrite touches the queues in the rows only."""
    write(tmp_path / "a", adds([b"1"]))
    write(tmp_path / "b", adds([b"1"]))
    rows = spark.createDataFrame([("a", "2")], "queue string, data string")

    save(rows, tmp_path)
    assert data(tmp_path) == {"a": [b"1", b"2"], "b": [b"1"]}
    save(rows, tmp_path, "overwrite")
    assert data(tmp_path) == {"a": [b"2"], "b": [b"1"]}


def test_a_failed_job_leaves_no_trace(spark: SparkSession, tmp_path: Path) -> None:
    """One bad row at the end of one task: the queues are as before, and no part is left."""
    write(tmp_path / "q", adds([b"old"]))
    rows = spark.range(0, 100, 1, 4).selectExpr(
        "case when id = 99 then 'bad/name' else 'q' end queue", "cast(id as string) data"
    )

    with pytest.raises(PySparkException, match="'bad/name' is not allowed"):
        save(rows, tmp_path)

    assert data(tmp_path) == {"q": [b"old"]}
    assert leftovers(tmp_path) == []


def test_a_task_that_is_run_again_writes_once(spark: SparkSession, tmp_path: Path) -> None:
    """The parts of an attempt that failed are dropped."""

    def fail_at_first(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if number == 49 and context.attemptNumber() == 0:
            raise RuntimeError("on purpose")
        return str(number)

    rows = spark.range(0, 100, 1, 2).select(
        f.lit("q").alias("queue"),
        f.udf(fail_at_first, "string", useArrow=False)("id").alias("data"),
    )

    save(rows, tmp_path)

    assert data(tmp_path) == {"q": [b"%d" % number for number in range(100)]}
    assert leftovers(tmp_path) == []


def test_rows_are_counted_as_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Each is made once: a table that changes, or is gone, afterwards makes no difference."""
    made = tmp_path / "made"

    def making(number: int) -> str:
        with made.open("a") as file:
            file.write("x")
        return str(number)

    data = f.udf(making, "string", useArrow=False)("id").alias("data")
    rows = spark.range(0, 20, 1, 2).select(f.lit("q").alias("queue"), data)

    assert write_journals(rows, str(tmp_path / "spool")) == 20
    assert len(made.read_text()) == 20


def test_many_queues_need_few_open_files(spark: SparkSession, tmp_path: Path) -> None:
    """A task with hundreds of queues closes and opens files again, and loses nothing."""
    rows = spark.range(0, 20_000, 1, 1).selectExpr(
        "concat('q', id % 300) queue", "cast(id as string) data"
    )

    save(rows, tmp_path)

    loaded = data(tmp_path)
    assert len(loaded) == 300
    assert loaded["q7"] == [b"%d" % number for number in range(7, 20_000, 300)]


def test_no_rows_are_no_queues(spark: SparkSession, tmp_path: Path) -> None:
    """An empty DataFrame makes an empty queue path."""
    save(spark.createDataFrame([], "queue string, data string"), tmp_path / "new")

    assert data(tmp_path / "new") == {}


def test_a_queue_path_in_use_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """While a server holds the lock, no task runs and nothing is written."""
    spool, ran = tmp_path / "spool", tmp_path / "ran"
    spool.mkdir()
    lock = QueuePathLock(spool)
    lock.acquire()

    def noted(number: int) -> str:
        ran.touch()
        return str(number)

    rows = spark.range(3).select(
        f.lit("a").alias("queue"),
        f.udf(noted, "string", useArrow=False)("id").alias("data"),
    )
    try:
        with pytest.raises(PySparkException, match="is in use by a server, a tool"):
            save(rows, spool)
        with pytest.raises(QueuePathLocked, match="is in use by a server, a tool"):
            write_journals(rows.withColumn("sequence", f.lit(1)), str(spool))
    finally:
        lock.release()

    assert not ran.exists()
    assert data(spool) == {}
    assert leftovers(spool) == []


def test_a_server_start_ends_a_write(spark: SparkSession, tmp_path: Path) -> None:
    """A server that comes and goes while tasks run takes their parts; no queue is changed."""
    write(tmp_path / "a", adds([b"1"]))
    spool = str(tmp_path)

    def served(number: int) -> str:
        if number == 39:
            collection = QueueCollection(ServerConfig(queue_path=Path(spool)), SystemClock())
            collection.open()
            collection.close()
        return str(number)

    rows = spark.range(0, 40, 1, 2).select(
        f.when(f.col("id") < 20, "a").otherwise("b").alias("queue"),
        f.udf(served, "string", useArrow=False)("id").alias("data"),
    )
    with pytest.raises(PySparkException, match="is gone"):
        save(rows, tmp_path)

    assert data(tmp_path) == {"a": [b"1"]}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("schema", "row", "message"),
    [
        ("queue string", ("q",), "column 'data' is missing"),
        ("queue string, data int", ("q", 1), "column 'data' cannot be int"),
        ("queue string, data string, when date", ("q", "x", None), "column 'when' is unknown"),
        ("queue string, data string, Expiry string", ("q", "x", ""), "'Expiry' cannot be string"),
        ("queue string, data string", ("q", None), "column 'data' has a row without a value"),
        ("queue string, data string", (None, "x"), "column 'queue' has a row without a value"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(
    spark: SparkSession, tmp_path: Path, schema: str, row: tuple[object, ...], message: str
) -> None:
    """The error names the column."""
    with pytest.raises(PySparkException, match=message):
        save(spark.createDataFrame([row], schema), tmp_path)

    assert data(tmp_path) == {}
