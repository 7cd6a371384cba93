"""`kestrelmq journal`: the tools on real journals."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.format.notes import delayed_notes
from kestrelmq.format.records import (
    AddX,
    ConfirmRemove,
    Continue,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    item,
)
from tests.support.commands import run_command, run_without_room, start_command
from tests.support.journal_bytes import journal
from tests.support.limits import largest_file
from tests.support.local_queues import items_on_disk
from tests.support.patience import PATIENCE

NOW = 1_700_000_000_000


def run(*arguments: str | Path, status: int = 0) -> str:
    """Run a command, check its exit status, and return what it printed."""
    answer = run_command("journal", *map(str, arguments))
    assert answer.returncode == status, answer.stderr
    return (answer.stdout + answer.stderr).decode(errors="surrogateescape")


def added(number: int, size: int = 20) -> AddX:
    """Return the record of an item that is told by its number."""
    return AddX(NOW + number, 0, b"%d " % number + b"x" * size)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A queue path with two queues, one of them in two files with a read open."""
    path = tmp_path / "queues"
    path.mkdir()
    (path / "work.5").write_bytes(journal(*(added(number) for number in range(4)), Remove()))
    (path / "work").write_bytes(journal(RemoveTentative(), added(4)))
    (path / "other").write_bytes(journal(AddX(NOW, 0, b"\xff"), ConfirmRemove(3)))
    return path


def test_dump_describes_each_record_and_sums_up(spool: Path) -> None:
    """In replay order, with positions; the data when asked for."""
    text = run("dump", spool / "work.5", "--data")
    lines = text.splitlines()
    assert lines[0] == "work.5 00000000  ADDX 22 bytes at 2023-11-14T22:13:20.000Z"
    assert lines[1].strip() == "0 " + "x" * 20
    assert lines[8] == "work.5 000000ac  REMOVE"
    assert lines[9].startswith("work: 5 records in ")
    quiet = run("dump", spool, "--queue", "work", "-q")
    assert "7 records" in quiet
    assert "3 items of 66 bytes wait, 1 reads are open" in quiet
    assert run("dump", spool, "-c") == "other\t1\nwork\t3\n"
    assert run("dump", spool / "other", "-A").encode(errors="surrogateescape") == b"\xff"
    first = json.loads(run("dump", spool / "work", "--json").splitlines()[1])
    assert (first["operation"], first["position"], first["data"]) == (
        "AddX",
        1,
        "4 " + "x" * 20,
    )


def test_verify_tells_a_torn_tail_from_damage(spool: Path) -> None:
    """The one is normal after a crash, the other is not."""
    with (spool / "work").open("ab") as file:
        file.write(journal(added(5))[:9])
    assert "cut short, as after a crash: work: bytes 44 to 53" in run("verify", spool)
    damage = bytearray((spool / "work.5").read_bytes())
    damage[43:46] = b"\x63\x63\x63"
    (spool / "work.5").write_bytes(damage)
    text = run("verify", spool, status=1)
    assert "damaged: work.5: bytes 43 to 86 (unknown opcode 99)" in text
    assert "journal repair" in text


def test_repair_saves_what_can_be_read_and_deletes_nothing(spool: Path) -> None:
    """The range that is lost is told, the old bytes stay, and the queue loads again."""
    damage = bytearray((spool / "work.5").read_bytes())
    damage[43:46] = b"\x63\x63\x63"
    (spool / "work.5").write_bytes(damage)
    text = run("repair", spool)
    assert "bytes 43 to 86" in text
    (aside,) = spool.glob("work.5~~damaged-*")
    assert aside.read_bytes() == damage
    assert [data[:1] for data in items_on_disk(spool, "work")] == [b"2", b"3", b"4"]
    assert "damaged" not in run("verify", spool)


def test_a_size_that_points_past_the_end_hides_nothing(spool: Path) -> None:
    """The records after it are saved, although the damaged one looks like a torn tail."""
    with (spool / "work").open("ab") as file:
        file.write(b"\x02\xff\xff\xff\x00" + journal(added(5))[5:] + journal(added(6), added(7)))
    text = run("verify", spool, status=1)
    assert "damaged: work: bytes 44 to 87 (a record reaches beyond the end" in text
    assert "reaches beyond the end" in run("export", spool, status=1)
    run("repair", spool)
    assert [data[:1] for data in items_on_disk(spool, "work")] == [
        b"1",
        b"2",
        b"3",
        b"4",
        b"6",
        b"7",
    ]


def test_a_torn_continue_is_told_as_a_server_does(spool: Path) -> None:
    """What Kestrel 2 leaves when it is killed is no damage, and its bytes are no records."""
    whole = journal(added(5), RemoveTentativeXid(1))
    torn = journal(Continue(1, NOW, 0, b"\x01" * 50))[:-5]
    (spool / "work").write_bytes(whole + torn)
    (spool / "work.5").unlink()
    text = run("verify", "--queue", "work", spool)
    assert f"cut short, as after a crash: work: bytes {len(whole)} to {len(whole + torn)}" in text
    assert "CONTINUE" not in run("dump", spool / "work")
    assert len(run("export", "--queue", "work", spool).splitlines()) == 1
    run("repair", spool)
    assert (spool / "work").read_bytes() == whole


def test_what_one_queue_has_does_not_keep_others_from_their_turn(spool: Path) -> None:
    """Damage is told and counted, and the exit status shows it; an error is one line."""
    (spool / "bad").write_bytes(b"no journal")
    (spool / "huge").write_bytes(
        journal(added(0)) + b"\x02\xff\xff\xff\x7f" + journal(added(1))[5:]
    )
    with (spool / "huge").open("ab") as file:
        file.write(journal(added(2)))
    text = run("dump", "--json", spool, status=1)
    assert len([line for line in text.splitlines() if line.startswith("{")]) == 1 + 2 + 5 + 2
    for flags in ("-qA", "-cA", "-q --json"):
        assert "2 damaged; `kestrelmq journal repair`" in run(
            "dump", *flags.split(), spool, status=1
        )
    assert "huge: damaged at byte" in text
    assert "2 damaged; `kestrelmq journal repair`" in text
    assert "work: 3 items, 1 open reads" in run("pack", spool, status=1)
    (spool / "huge").unlink()
    run("repair", spool)
    assert "0 items" in run("verify", spool)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("import", "SPOOL", "missing.jsonl"), "missing.jsonl: No such file"),
        (("import", "SPOOL", "text.parquet"), "text.parquet: "),
        (("import", "SPOOL", "bytes.jsonl"), "line 1: not a row"),
        (("export", "SPOOL", "-o", "no/such.jsonl"), "no/such.jsonl: No such file"),
        (("dump", "missing"), "missing: there is no such file"),
        (("import", "text.parquet", "text.parquet"), "text.parquet: File exists"),
    ],
)
def test_an_error_is_one_line(
    spool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    reason: str,
) -> None:
    """It says what is wrong with which file."""
    if reason.startswith("text.parquet: ") and command[1] == "SPOOL":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    Path("text.parquet").write_text("no Parquet")
    Path("bytes.jsonl").write_bytes(b"\x80\n")
    words = [str(spool) if word == "SPOOL" else word for word in command]
    (line,) = run(*words, status=1).splitlines()
    assert line.startswith("kestrelmq: error: ")
    assert reason in line


def test_a_journal_in_a_torn_item_is_no_part_of_the_queue(spool: Path) -> None:
    """An item that is cut short is a torn tail, whatever it holds; nothing of it is saved."""
    inner = journal(*(added(number) for number in range(100)))
    with (spool / "work").open("ab") as file:
        file.write(journal(AddX(NOW + 200, 0, inner + b"x"))[:-1])
    assert "cut short, as after a crash: work: bytes 44 to " in run("verify", spool)
    run("repair", spool)
    assert [data[:1] for data in items_on_disk(spool, "work")] == [b"1", b"2", b"3", b"4"]


def test_delayed_items_are_counted(tmp_path: Path) -> None:
    """Beside the items that wait: of a queue whose items are all delayed, none waits."""
    (tmp_path / "later").write_bytes(delayed_notes(1, item(NOW, 0, b"x"), 0))
    assert "wait, 0 reads are open, 1 items are delayed\n" in run("verify", tmp_path)
    assert json.loads(run("verify", "--json", tmp_path))["delayed"] == 1
    assert "0 items, 0 open reads, 1 delayed; " in run("pack", tmp_path)
    assert json.loads(run("pack", "--json", tmp_path))["delayed"] == 1


def test_pack_keeps_items_and_open_reads_in_either_dialect(spool: Path) -> None:
    """What a server loads is the same before and after."""
    expected = [b"%d " % number + b"x" * 20 for number in range(1, 5)]
    for dialect, operations in (
        ("kestrel-2", ["ADDX", "REMOVE_TENTATIVE_XID", "ADDX", "ADDX", "ADDX"]),
        (
            "documented",
            ["SAVE_XID", "ADD_XID", "REMOVE_TENTATIVE", "SAVE_XID", "ADDX", "ADDX", "ADDX"],
        ),
    ):
        assert "3 items, 1 open reads" in run("pack", spool, "--dialect", dialect)
        assert not list(spool.glob("work.*"))
        lines = run("dump", spool / "work").splitlines()[:-1]
        assert [line.split()[2] for line in lines] == operations
    assert items_on_disk(spool, "work") == expected


@pytest.mark.parametrize("name", ["items.jsonl", "items.parquet"])
def test_an_export_can_be_imported(spool: Path, tmp_path: Path, name: str) -> None:
    """Bytes, times and order survive; an import into a queue that is there must be asked for."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    export = tmp_path / name
    run("export", spool, "-o", export)
    copy = tmp_path / "copy"
    assert run("import", copy, export) == "other: 1 items\nwork: 4 items\n"
    assert run("export", copy) == run("export", spool)
    assert "work is there already" in run("import", copy, export, status=1).replace(
        "queue other", "queue work"
    )
    with (copy / "work").open("ab") as file:
        file.write(b"\x02\x10")  # what a crash left must not end up between two files
    run("import", copy, export, "--append")
    assert len(items_on_disk(copy, "work")) == 8
    assert items_on_disk(copy, "other") == [b"\xff", b"\xff"]


@pytest.mark.parametrize("name", ["items.jsonl", "items.parquet"])
def test_a_full_disk_leaves_the_export_that_was_there(
    spool: Path, tmp_path: Path, name: str
) -> None:
    """The file is named, and half an export is neither at its place nor beside it."""
    folder = tmp_path / "exports"
    folder.mkdir()
    (folder / name).write_text("of yesterday")
    command: list[str | Path] = [sys.executable, "-m", "kestrelmq", "journal", "export"]
    command += [spool, "-o", folder / name]
    with largest_file(100):
        ended = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr.count(b"\n")) == (1, 1)
    assert f"{folder / name}: ".encode() in ended.stderr
    assert [file.name for file in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "of yesterday"


def test_an_export_to_a_pipe_or_through_a_link(spool: Path, tmp_path: Path) -> None:
    """A link stays one, and a pipe is written: neither is replaced by a file."""
    whole = run("export", spool)
    (tmp_path / "link").symlink_to("file")
    run("export", spool, "-o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == whole
    assert run("export", spool, "-o", "/dev/stdout") == whole
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        got = reader.submit(pipe.read_text)
        run("export", spool, "-o", pipe)
        assert got.result(PATIENCE) == whole


@pytest.mark.parametrize("command", ["export", "verify"])
def test_progress_does_not_change_standard_output(spool: Path, command: str) -> None:
    """Standard output gets the same whether or not standard error is a terminal."""
    terminal, stderr = os.openpty()
    with TemporaryFile() as out:
        process = start_command(
            *("journal", command, str(spool)),
            streams=(None, out.fileno(), stderr),
            environment=os.environ | {"TERM": "xterm"},
        )
        assert process.wait(PATIENCE) == 0
        os.close(stderr)
        assert b"ing" in os.read(terminal, 1 << 16)
        os.close(terminal)
        out.seek(0)
        assert out.read().decode() == run(command, spool)


def test_a_bad_row_is_named_and_nothing_is_imported(tmp_path: Path) -> None:
    """All or nothing, and no temporary stays."""
    export = tmp_path / "items.jsonl"
    export.write_text('{"queue": "work", "data": "fine"}\n{"queue": "../evil", "data": "x"}\n')
    assert "line 2" in run("import", tmp_path / "queues", export, status=1)
    assert [file.name for file in (tmp_path / "queues").iterdir()] == ["~~lock"]


def test_an_import_into_a_damaged_queue_leaves_everything_as_it_was(
    spool: Path, tmp_path: Path
) -> None:
    """The sound queue that comes first gets nothing either, and no temporary stays."""
    with (spool / "work").open("ab") as file:
        file.write(b"\xff" * 9)
    before = {file.name: file.read_bytes() for file in spool.iterdir()}
    export = tmp_path / "items.jsonl"
    export.write_text('{"queue": "other", "data": "x"}\n{"queue": "work", "data": "y"}\n')
    assert "work" in run("import", spool, export, "--append", status=1)
    after = {file.name: file.read_bytes() for file in spool.iterdir() if file.name != "~~lock"}
    assert after == before


def test_beside_a_server_the_tools_read_and_do_not_write(spool: Path) -> None:
    """Reading warns; writing is refused."""
    lock = QueuePathLock(spool)
    lock.acquire()
    try:
        assert f"warning: queue path {spool} is in use by" in run("verify", spool)
        for command in ("pack", "repair"):
            assert "in use by a server, a tool or the library" in run(command, spool, status=1)
    finally:
        lock.release()


def test_an_export_can_be_imported_from_a_pipe(spool: Path, tmp_path: Path) -> None:
    """As `kestrelmq import` does, - reads standard input."""
    exported = run("export", spool).encode()
    answer = run_command("journal", "import", str(tmp_path / "copy"), "-", data=exported)
    assert (answer.returncode, answer.stdout) == (0, b"other: 1 items\nwork: 4 items\n")
    assert run("export", tmp_path / "copy").encode() == exported


def test_a_path_without_journals_is_said(tmp_path: Path) -> None:
    """It may be misspelled, and nothing was checked."""
    assert f"there are no journals in {tmp_path}" in run("verify", tmp_path)


def test_verify_names_files_that_are_left_alone(spool: Path) -> None:
    """No queue may have their names, so what they hold is not served; side files are no news."""
    (spool / "a name").touch()
    (spool / "work~~torn-5").touch()
    left_alone = [line for line in run("verify", spool).splitlines() if "warning" in line]
    assert left_alone == [f"kestrelmq: warning: {spool}/a name is not a journal"]


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_no_queue_is_blamed_for_output_that_cannot_be_written(spool: Path, command: str) -> None:
    """It is standard output that is full, and no journal is damaged."""
    ended = run_without_room("journal", command, spool)
    why = b"kestrelmq: error: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, why)
