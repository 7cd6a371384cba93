"""The pipelines over live servers, as functions and as commands."""

import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.pipelines import (
    ArchiveOptions,
    archive,
    archived,
    read_archive,
    restore,
    restore_live,
)
from kestrelmq.spark.pipelines.archive import ArchivedQueue
from kestrelmq.spark.pipelines.restore import in_time_range
from tests.spark.processes import PIPELINE
from tests.spark.spools import load
from tests.spark.test_commands import Terminal
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def read_screen(screen: int, shown: list[bytes]) -> None:
    """Read what a process writes to its terminal, until it closes it."""
    with contextlib.suppress(OSError), open(screen, "rb", buffering=0) as file:
        while piece := file.read(4096):
            shown.append(piece)


def run(spark: SparkSession, options: ArchiveOptions) -> list[ArchivedQueue]:
    """Archive what is there now."""
    assert archive(spark, options).awaitTermination(60)
    return archived(spark, options.output)


def test_archive_drains_queues_and_restore_brings_them_back(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Queues to a table, in two runs, and back to journals and to live queues, in order."""
    numbers = [b"%d" % number for number in range(120)]
    client.put_many("one", numbers[:60])
    client.put_many("2", [b"a number for a name"])
    cluster = ClusterOptions(server.address)
    options = ArchiveOptions(cluster, ["one", "2"], str(tmp_path / "table"))
    assert archived(spark, options.output) == []
    run(spark, options)
    client.put_many("one", numbers[60:])

    assert run(spark, replace(options, queues=["2", "one"])) == [
        ArchivedQueue("2", 1, 19),
        ArchivedQueue("one", 120, 250),
    ]
    assert client.get("one") is None

    assert restore(spark, options.output, str(tmp_path / "spool")) == 121
    assert [item.data for item in load(tmp_path / "spool")["one"]] == numbers
    assert restore_live(spark, options.output, cluster) == 121
    assert list(client.consume("one", idle_timeout=0)) == numbers
    assert client.get("2") == b"a number for a name"


def test_an_archive_without_rows_restores_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Of a queue that was empty, or ended before the first batch was committed."""
    table, cluster = tmp_path / "table", ClusterOptions(server.address)
    assert not client.exists("one")
    assert run(spark, ArchiveOptions(cluster, ["one"], str(table))) == []
    (table / "_spark_metadata").mkdir(exist_ok=True)
    assert read_archive(spark, str(table)).isEmpty()
    assert restore(spark, str(table), str(tmp_path / "spool"), since="2026-01-31") == 0
    assert restore_live(spark, str(table), cluster) == 0


def test_restore_of_a_time_range_to_another_queue(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The time at which an item was added counts, or, if that is not known, read."""
    cluster = ClusterOptions(server.address)
    options = ArchiveOptions(cluster, ["work"], str(tmp_path / "table"))
    client.put("work", b"early")
    run(spark, options)
    times = read_archive(spark, options.output).select(f.unix_millis("read_time")).collect()
    between = datetime.fromtimestamp(times[0][0] / 1000, UTC) + timedelta(milliseconds=1)
    client.put("work", b"late")
    run(spark, options)

    assert restore_live(spark, options.output, cluster, queue="back", since=between) == 1
    assert list(client.consume("back", idle_timeout=0)) == [b"late"]
    until = between.isoformat()
    assert restore_live(spark, options.output, cluster, queue="back", until=until) == 1
    assert list(client.consume("back", idle_timeout=0)) == [b"early"]
    untold = read_archive(spark, options.output).withColumn(
        "add_time", f.lit(None).cast("timestamp")
    )
    assert in_time_range(untold, between, None).count() == 1


def test_archive_copies_through_a_fanout_child(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The queue's own readers see everything; what was there before the child is not copied."""
    client.put("work", b"before")
    cluster = ClusterOptions(server.address)
    options = ArchiveOptions(cluster, ["work"], tmp_path / "table", child="copy")
    assert run(spark, options) == []
    client.put_many("work", [b"1", b"22"])

    assert run(spark, options) == [ArchivedQueue("work+copy", 2, 3)]
    assert list(client.consume("work", idle_timeout=0)) == [b"before", b"1", b"22"]


def test_an_archive_keeps_to_its_queues(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's checkpoint knows sources by number: other queues need an output of their own."""
    cluster = ClusterOptions("127.0.0.1:1")
    for queues, child, message in (
        ([], None, "no queue"),
        (["a", "a"], None, "twice"),
        (["a+b"], "c", "fanout child already"),
        (["a/b"], None, "archive: 'a/b' is not allowed: it must be a queue's name: "),
    ):
        with pytest.raises(ConfigError, match=message):
            archive(spark, ArchiveOptions(cluster, queues, str(tmp_path / "t"), child))
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "_source").write_text("a")
    with pytest.raises(ConfigError, match="holds a, not b"):
        archive(spark, ArchiveOptions(cluster, ["b"], str(tmp_path / "table")))


def test_the_command_archive_follows_until_it_is_asked_to_end(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """SIGTERM ends `archive --follow`; progress is for the terminal, the table for a pipe.

    Settings reach Spark, and override those of the command.
    """
    output, where = str(tmp_path / "table"), ["--servers", server.address]
    client.put_many("work", [b"%d" % number for number in range(100)])
    often = ["--follow", "--every", "100 milliseconds", "--master", "local[1]"]
    logs = tmp_path / "logs"
    logs.mkdir()
    settings = [
        "spark.app.name=a=b",
        "spark.eventLog.enabled=true",
        "spark.eventLog.compress=false",
        f"spark.eventLog.dir={logs}",
    ]
    often += [word for one in settings for word in ("--conf", one)]
    screen, terminal = pty.openpty()
    following = subprocess.Popen(
        [*PIPELINE, "archive", "work", "-o", output, *where, *often],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    )
    os.close(terminal)
    shown: list[bytes] = []
    reader = Thread(target=read_screen, args=(screen, shown))
    reader.start()
    until(lambda: bool(list(Path(output).glob("_checkpoint/commits/1"))))
    following.send_signal(signal.SIGTERM)
    table, _ = following.communicate(timeout=PATIENCE)
    reader.join(PATIENCE)

    assert b"archive" in b"".join(shown)
    assert (following.returncode, table.split()) == (
        0,
        ["queue", "items", "bytes", "work", "100", "190"],
    )
    logged = "".join(log.read_text() for log in logs.rglob("events_*"))
    assert '"App Name":"a=b"' in logged
    assert '"spark.driver.host":"127.0.0.1"' in logged


def test_a_missing_java_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit status 1, and no stack trace."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    ended = Terminal(capsys).run("verify", tmp_path)

    assert (ended.status, ended.table) == (1, [])
    (line,) = ended.errors.splitlines()
    assert line.startswith("kestrelmq: error: pipelines need a Java runtime, 17 or newer")


@pytest.mark.parametrize(
    "words",
    [
        ["restore", "t"],
        ["restore", "t", "--live", "--since", "noon"],
        ["restore", "t", "--live", "--since", "2026-01-02", "--until", "2026-01-02T00:00Z"],
        ["archive"],
        ["archive", "work", "-o", "t", "--user", "spark"],
    ],
)
def test_a_wrong_use_is_exit_status_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags that contradict each other start no Spark."""
    monkeypatch.setenv("JAVA_HOME", "nowhere")  # to start it would be exit status 1

    assert Terminal(capsys).run(*words).status == 2
