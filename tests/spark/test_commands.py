"""`kestrelmq pipeline`: each command as a user types it, on real spools."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from kestrelmq.cli.main import main
from kestrelmq.cli.spark_runs import spark_session
from kestrelmq.errors import KestrelError
from kestrelmq.format.records import Remove, RemoveTentative
from tests.spark.spools import adds, load, random_spool, write


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit status, the words of its table, its errors."""

    status: object
    table: list[list[str]]
    errors: str


class Terminal:
    """Runs commands in this process, so that they share the session of the tests."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: str | Path) -> Ended:
        """Run `kestrelmq pipeline WORDS`."""
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", *map(str, words)])
        printed, errors = self._capsys.readouterr()
        return Ended(ended.value.code, [line.split() for line in printed.splitlines()], errors)


@pytest.fixture
def terminal(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Terminal:  # its session
    """Return a terminal whose commands run in the session of the tests."""
    return Terminal(capsys)


def small_spool(spool: Path) -> Path:
    """Write two queues: one with an item that is gone and one that is open, and one that is not."""
    write(spool / "a.1", [*adds([b"gone", b"open"]), Remove(), RemoveTentative()])
    write(spool / "a", adds([b"waits"]))
    write(spool / "b", adds([b"also waits"]))
    return spool


def test_history_says_what_became_of_items(
    terminal: Terminal, spark: SparkSession, tmp_path: Path
) -> None:
    """A table of fates; every item as Parquet; an output that is there is replaced when asked."""
    spool, output = small_spool(tmp_path / "spool"), tmp_path / "history"

    ended = terminal.run("history", spool, "--output", output, "--with-data")
    again = terminal.run("history", spool, "--output", output)
    replaced = terminal.run("history", spool, "-o", output, "--overwrite")
    restored = terminal.run("restore", output, "-o", tmp_path / "back")

    fates = [["a", "live", "1"], ["a", "open", "1"], ["a", "removed", "1"], ["b", "live", "1"]]
    assert ended == Ended(0, [["queue", "fate", "items"], *fates], "")
    assert again.status == 1
    assert again.errors == (
        f"kestrelmq: error: {output} already exists: give --overwrite to replace it\n"
    )
    assert replaced == ended
    assert spark.read.parquet(str(output)).where("data IS NOT NULL").count() == 0
    assert restored.status == 1
    assert "items without their data" in restored.errors


@pytest.mark.parametrize("command", ["replay", "history", "report"])
def test_no_output_replaces_journals(terminal: Terminal, tmp_path: Path, command: str) -> None:
    """Spark would delete them before it reads them: the queue path, one above it, a journal."""
    spool = small_spool(tmp_path / "spool")
    (tmp_path / "link").symlink_to(spool)
    before = load(spool)

    for output in (spool, tmp_path, spool / "a", tmp_path / "link" / "b"):
        ended = terminal.run(command, spool, "-o", output, "--overwrite")
        assert ended.status == 1
        assert f"it must be apart from the journals in {spool}" in ended.errors
    assert terminal.run(command, f"{spool}/a*", "-o", spool / "out").status == 1
    assert load(spool) == before


def test_report_prints_totals_and_where_the_page_is(terminal: Terminal, tmp_path: Path) -> None:
    """One line a queue, the sums, and the path of a page that is there."""
    output = tmp_path / "report"

    ended = terminal.run("report", small_spool(tmp_path / "spool"), "--output", output)

    assert (ended.status, ended.errors) == (0, "")
    assert ended.table == [
        ["queue", "items", "bytes", "removed", "confirmed", "expired", "open", "live"],
        ["a", "3", "13", "1", "0", "0", "1", "1"],
        ["b", "1", "10", "0", "0", "0", "0", "1"],
        ["4", "23", "1", "0", "0", "1", "2"],
        [],
        [str(output / "report.html")],
    ]
    assert "<!doctype html>" in (output / "report.html").read_text()


def test_replay_and_restore_bring_items_back(terminal: Terminal, tmp_path: Path) -> None:
    """Contents to Parquet and back to journals; only those of a time, when asked."""
    spool, table = small_spool(tmp_path / "spool"), tmp_path / "contents"

    replayed = terminal.run("replay", spool, "--output", table)
    restored = terminal.run("restore", table, "--output", tmp_path / "back")
    none = terminal.run("restore", table, "-o", tmp_path / "none", "--until", "2001-01-01T00:00")

    heads = ["queue", "items", "open_reads", "bytes"]
    assert replayed == Ended(
        0, [heads, ["a", "2", "1", "9"], ["b", "1", "0", "10"], ["3", "1", "19"]], ""
    )
    assert restored == Ended(0, [["restored", "to", "items"], [f"{tmp_path}/back", "3"]], "")
    assert [item.data for item in load(tmp_path / "back")["a"]] == [b"open", b"waits"]
    assert none.table[-1][-1] == "0"
    assert load(tmp_path / "none") == {}


def test_a_table_has_any_format_of_the_session(
    terminal: Terminal, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark writes and reads it."""
    spool, orc = small_spool(tmp_path / "spool"), ("--format", "orc")

    for command in ("replay", "history", "report"):
        output = tmp_path / command
        assert terminal.run(command, spool, "-o", output, *orc).status == 0
    again = terminal.run("replay", spool, "-o", tmp_path / "replay", *orc)
    archived = terminal.run("archive", "--journals", spool, "-o", tmp_path / "archive", *orc)
    restored = terminal.run("restore", tmp_path / "replay", "-o", tmp_path / "back", *orc)

    tables = ("replay", "history", "report/hours", "report/queues", "archive")
    rows = [spark.read.orc(str(tmp_path / name)).count() for name in tables]
    assert rows[:2] + rows[3:] == [3, 4, 2, 4]
    assert again.errors.endswith("already exists: give --overwrite to replace it\n")
    assert archived.table[-1][0] == "4"
    assert restored.table[-1] == [f"{tmp_path}/back", "3"]
    assert [item.data for item in load(tmp_path / "back")["a"]] == [b"open", b"waits"]


def test_pack_in_either_dialect_and_verify(terminal: Terminal, tmp_path: Path) -> None:
    """The queues load as before from smaller journals; damage found later is exit status 1."""
    random_spool(random.Random(4), tmp_path, 5)
    expected = load(tmp_path)

    released = terminal.run("pack", tmp_path, "--dialect", "kestrel-2")
    after_released = load(tmp_path)
    documented = terminal.run("pack", tmp_path)
    after_documented = load(tmp_path)
    good = terminal.run("verify", tmp_path)
    write(tmp_path / "bad", [Remove()], tail=b"\x63")
    bad = terminal.run("verify", tmp_path)

    assert (released.status, documented.status, good.status, bad.status) == (0, 0, 0, 1)
    assert after_released == expected
    assert after_documented == expected
    items = sum(map(len, expected.values()))
    assert [released.table[-1][0], documented.table[-1][0]] == [str(items)] * 2
    assert {line[3] for line in good.table[1:]} == {"good"}
    assert bad.table[1] == [
        f"{tmp_path}/bad",
        "2",
        "1",
        *["damaged", "at", "byte", "1:", "unknown", "opcode", "99"],
    ]
    assert bad.errors == f"kestrelmq: error: 1 of {len(bad.table) - 1} files are damaged\n"


def test_what_fails_within_spark_is_one_line(terminal: Terminal, tmp_path: Path) -> None:
    """The root of the error is told: here a queue's name, escaped, is too long for a directory."""
    write(tmp_path / "spool" / ("%" * 200), adds([b"x"]))

    ended = terminal.run("replay", tmp_path / "spool", "-o", tmp_path / "out")

    assert ended.status == 1
    assert ended.errors.startswith("kestrelmq: error: Mkdirs failed to create")
    assert ended.errors.count("\n") == 1


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError()]
)
def test_a_java_process_that_is_gone_is_said_so(
    spark: SparkSession, error: Exception
) -> None:  # its session
    """py4j raises either, for whatever was called."""
    with (
        pytest.raises(KestrelError, match="Java process does not answer any more"),
        spark_session("local", "test"),
    ):
        raise error


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["verify", "nowhere"], 1, "no file or directory matches 'nowhere'"),
        (["replay", "s3n://bucket/x", "-o", "out"], 1, "'s3n://bucket/x' is not allowed"),
        (["restore", "nowhere", "-o", "out"], 1, "does not exist"),
        (["pack", ".", "--dialect", "klingon"], 2, "'klingon' is not one of"),
        (["report", "."], 2, "Missing option '--output'"),
        (["restore", "t", "--live", "--zookeeper", "z"], 2, "--path-prefix go together"),
        (["restore", "t", "-o", "out", "--queue", "q"], 2, "go with --live"),
        (["verify", ".", "--master", "nope"], 2, "'nope' is not a master of Spark"),
        (["verify", ".", "--conf", "spark.ui.enabled"], 2, "for '--conf': it must be KEY=VALUE"),
        (["verify", ".", "--conf", "=x"], 2, "for '--conf': it must be KEY=VALUE"),
        (["archive", "q", "-o", "out", "--batch-items", "0"], 2, "greater than or equal to 1"),
        (["replay", ".", "-o", "s3://bucket/x"], 1, "S3AFileSystem not found"),
        (["restore", "t", "-o", "out", "--format", "delta"], 1, "data source: delta"),
        (["archive", "bad/name", "-o", "out"], 2, "'bad/name' is not allowed"),
        (["archive", "q", "--copy", "a/b", "-o", "out"], 2, "for '--copy': 'a/b'"),
        (["archive", "q", "a b", "--journals", ".", "-o", "out"], 2, "'q, a b' is not allowed"),
        (["restore", "t", "--live", "--queue", "a b"], 2, "for '--queue': 'a b'"),
        (["archive", "-o", "out"], 2, "give QUEUE..., or --journals PATH"),
        (["archive", "q", "-o", "out", "--accept-loss"], 2, "go with --journals"),
        (["archive", "-o", "o", "--journals", "p", "--copy", "c"], 2, "do not go with --journals"),
        (["archive", "-o", "o", "--journals", ".", "--batch-items", "5"], 2, "does not go with"),
        (["archive", "q", "-o", "o", "--every", "1s"], 2, "--every goes with --follow"),
        (["archive", "-o", "o", "--journals", "nowhere"], 1, "directory matches 'nowhere'"),
        (["archive", "-o", "o", "--journals", ".", "--start", "soon"], 2, "for '--start': 'soon'"),
    ],
)
def test_what_is_wrong_is_one_line(
    terminal: Terminal,
    words: list[str],
    status: int,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong usage is exit status 2, all else 1; no traceback either way, and nothing is made."""
    monkeypatch.chdir(tmp_path)

    ended = terminal.run(*words)

    assert ended.status == status
    assert error in " ".join(ended.errors.replace("│", " ").split())
    assert "Traceback" not in ended.errors
    assert list(tmp_path.iterdir()) == []
    if status == 1:
        assert ended.errors.count("\n") == 1
