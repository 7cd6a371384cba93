"""The archive of what is added to queues, made from their journals."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kestrelmq.cli.spark_runs import handled_by
from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    RemoveTentative,
    SaveXid,
    StateDump,
)
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.pipelines import (
    ArchiveOptions,
    JournalArchiveOptions,
    archive,
    archive_journals,
    archived,
    read_archive,
    restore,
)
from kestrelmq.spark.pipelines.archive import ArchivedQueue
from tests.spark.spools import NOW, load, write
from tests.spark.test_commands import Terminal
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess

CONFIG = """\
[default]
max_memory_size = "20 KiB"
default_journal_size = "1 GiB"
disable_aggressive_rewrites = true
keep_replaced_journals = "1 hour"
"""


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def run(spark: SparkSession, options: JournalArchiveOptions) -> list[ArchivedQueue]:
    """Archive what is there now."""
    assert archive_journals(spark, options).awaitTermination(PATIENCE)
    return archived(spark, options.output)


def items_in(spark: SparkSession, output: Path, queue: str = "work") -> list[bytes]:
    """Return the archived items of a queue, in its order."""
    rows = read_archive(spark, str(output)).where(f"queue = '{queue}'").orderBy("position")
    return [bytes(row.data) for row in rows.select("data").collect()]


def test_what_is_added_is_archived_and_nothing_is_taken(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """In several runs, over packs of the server; the table can be restored."""
    options = JournalArchiveOptions(str(server.queue_path), str(tmp_path / "table"))
    sent = [b"%d " % number + bytes(3000) for number in range(60)]
    client.put_many("work", sent)
    client.put("2", b"a number for a name")
    assert run(spark, options) == [
        ArchivedQueue("2", 1, 19),
        ArchivedQueue("work", 60, sum(map(len, sent))),
    ]
    while not list(server.queue_path.glob("work.*.pack")):
        assert client.get("work") is not None
        sent.append(b"%d " % len(sent) + bytes(3000))
        client.put("work", sent[-1])
    run(spark, options)
    assert items_in(spark, tmp_path / "table") == sent
    times = {name: f.unix_millis(name) for name in ("add_time", "read_time")}
    row = read_archive(spark, options.output).where("queue = '2'").withColumns(times).collect()[0]
    assert (row.server, row.deliveries) == (str(server.queue_path), None)
    assert NOW < row.add_time <= row.read_time
    assert row.date.isoformat() > "2026"

    assert restore(spark, options.output, str(tmp_path / "restored")) == len(sent) + 1
    assert [item.data for item in load(tmp_path / "restored")["work"]] == sent


def test_what_counts_as_an_item(spark: SparkSession, tmp_path: Path) -> None:
    """Not what a CONTINUE or a STATE_DUMP repeats, nor the place of an item that is gone."""
    write(
        tmp_path / "spool" / "work",
        [
            SaveXid(1),
            AddXid(1, NOW, 0, b"an open read of a packed file"),
            RemoveTentative(),
            Add(0, b""),
            AddX(0, 0, b""),
            AddX(NOW, 0, b""),
            Add(0, b"of Starling"),
            Add(1_800_000_000, b""),
            Continue(1, NOW, 0, b"put back"),
            AddX(NOW, 0, b"last"),
        ],
    )
    write(
        tmp_path / "spool" / "dumped.1000",
        [AddX(NOW, 0, b"item"), StateDump(1, 1), AddXid(1, NOW, 0, b"item")],
    )
    write(tmp_path / "spool" / "dumped", [ConfirmRemove(1)])
    run(spark, JournalArchiveOptions(tmp_path / "spool", tmp_path / "table"))
    assert items_in(spark, tmp_path / "table") == [
        b"an open read of a packed file",
        b"",
        b"of Starling",
        b"",
        b"last",
    ]
    assert items_in(spark, tmp_path / "table", "dumped") == [b"item"]


def test_queues_are_chosen_by_name_and_by_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """A pattern without a plus matches no fanout child."""
    for queue in ("other", "orders_1", "orders_2", "orders_2+copy", "work"):
        write(tmp_path / "spool" / queue, [AddX(NOW, 0, queue.encode())])
    path, output = str(tmp_path / "spool"), str(tmp_path / "table")
    archives = run(spark, JournalArchiveOptions(path, output, ["orders_*", "work"]))
    assert [one.queue for one in archives] == ["orders_1", "orders_2", "work"]


def test_an_archive_belongs_to_its_journals(spark: SparkSession, tmp_path: Path) -> None:
    """Other journals, other queues or live ones are refused; the journals are not written to."""
    for queue in ("one", "two"):
        write(tmp_path / "spool" / queue, [AddX(NOW, 0, queue.encode())])
    options = JournalArchiveOptions(str(tmp_path / "spool"), str(tmp_path / "table"), ["two"])
    assert run(spark, options) == [ArchivedQueue("two", 1, 3)]
    assert run(spark, options) == [ArchivedQueue("two", 1, 3)]
    for other in (
        replace(options, queues=["one"]),
        replace(options, path=str(tmp_path / "spool" / "two")),
    ):
        with pytest.raises(ConfigError, match="holds two of the journals in"):
            archive_journals(spark, other)
    live = ArchiveOptions(ClusterOptions("localhost:1"), ["two"], options.output)
    with pytest.raises(ConfigError, match=r"holds two of the journals in .*, not two: "):
        archive(spark, live)
    with pytest.raises(ConfigError, match="must be apart from the journals"):
        archive_journals(spark, replace(options, output=str(tmp_path / "spool" / "table")))
    with pytest.raises(ConfigError, match="'a/b' is not allowed"):
        archive_journals(spark, replace(options, queues=["a/b"]))
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "_source").write_text("two")
    with pytest.raises(ConfigError, match="holds two, not two of the journals in "):
        archive_journals(spark, replace(options, output=str(tmp_path / "live")))


def test_the_command_follows_until_it_is_asked_to_end(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ended, and started again: each item once. `test_live_pipelines.py` ends a process."""
    output = tmp_path / "table"
    words = ["archive", "work", "--journals", str(server.queue_path), "-o", str(output)]
    sent = [b"%d" % number for number in range(40)]
    client.put("other", b"not wanted")
    found: list[list[bytes]] = []

    def put() -> None:
        try:
            for batch in range(2):
                client.put_many("work", sent[batch * 20 : batch * 20 + 20])
                # To ask Spark for the items again and again would slow the command down.
                until((output / "_spark_metadata" / str(batch)).exists)
                found.append(items_in(spark, output))
        finally:
            signal.raise_signal(signal.SIGTERM)

    terminal, putting = Terminal(capsys), Thread(target=put)
    # Should the command have ended by itself, the signal is nobody's.
    with handled_by(lambda *_: None, signal.SIGTERM):
        putting.start()
        followed = terminal.run(*words, "--follow", "--every", "1 second")
        putting.join()
    assert found == [sent[:20], sent]
    assert (followed.status, followed.table[-1]) == (0, ["work", "40", "70"])
    client.put("work", b"more")
    ended = terminal.run(*words)
    assert (ended.status, ended.table[-1]) == (0, ["work", "41", "74"])
    assert items_in(spark, output) == [*sent, b"more"]
    assert client.get("work") == b"0"
