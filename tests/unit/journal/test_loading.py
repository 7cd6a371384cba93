"""Bringing a queue up from its files, whatever a crash left of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.errors import DamagedJournal, QueuePathLocked
from kestrelmq.format.names import QueueFiles, group_files
from kestrelmq.format.records import (
    REMOVE_RECORD,
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
    item_data,
)
from kestrelmq.journal.loading import load_queue, remove_left_over
from tests.support.crashing_directory import CrashingDirectory
from tests.support.descriptors import open_below
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode, journal
from tests.support.open_reads import data_by_xid

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
DATA = Path(__file__).parents[2] / "data"


def load(path: Path, limit: int | None = None) -> tuple[list[str], dict[int, str], int]:
    """Load the queue `q`; return its items, its open reads and the size of its journal."""
    found = group_files(DiskDirectory(path).names()).queues.get("q", QueueFiles("q"))
    loaded = load_queue(DiskDirectory(path), found, limit, FakeClock(NOW))
    loaded.journal.open()
    size = loaded.journal.size
    loaded.journal.close()
    state = loaded.state
    return (
        [item_data(item).decode() for item in state.memory],
        {xid: data.decode() for xid, data in data_by_xid(state.open).items()},
        size,
    )


def clear(path: Path) -> None:
    """Remove every file of a directory."""
    for file in path.iterdir():
        file.unlink()


def listing(path: Path) -> dict[str, bytes]:
    """Return every file and what is in it."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_nothing_there(tmp_path: Path) -> None:
    """A queue without files is empty."""
    assert load(tmp_path) == ([], {}, 0)


def test_files_are_one_journal(tmp_path: Path) -> None:
    """Rotated files go first, by timestamp; sizes add up."""
    pieces = {
        "q": journal("e", ConfirmRemove(1)),
        "q.900": journal("a", "b", RemoveTentative()),
        "q.1000": journal("c", "d", Remove()),
        "q~~5": journal("ignored"),
        "q~~torn-5": b"ignored",
        "other": journal("ignored"),
    }
    for name, content in pieces.items():
        (tmp_path / name).write_bytes(content)
    size = sum(len(pieces[name]) for name in ("q", "q.900", "q.1000"))
    assert load(tmp_path) == (["c", "d", "e"], {}, size)
    assert listing(tmp_path) == pieces


def test_directories_are_ignored(tmp_path: Path) -> None:
    """A directory with a journal's name is none."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "q").write_bytes(journal("no"))
    (tmp_path / "q.5").write_bytes(journal("a"))
    assert group_files(DiskDirectory(tmp_path).names()).queues["q"].files == ("q.5",)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To open it would wait for ever."""
    os.mkfifo(tmp_path / "q")
    with pytest.raises(OSError, match="No such device"):
        DiskDirectory(tmp_path).append_to("q")
    reader = os.open(tmp_path / "q", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        DiskDirectory(tmp_path).append_to("q")
    os.close(reader)


def test_pack_that_was_not_finished_off(tmp_path: Path) -> None:
    """The files that a pack stands for are removed, and it takes its name without `.pack`."""
    (tmp_path / "q.904").write_bytes(journal("dead"))
    (tmp_path / "q.950").write_bytes(journal("dead"))
    (tmp_path / "q.950.pack").write_bytes(journal(SaveXid(3), "packed"))
    (tmp_path / "q.951").write_bytes(journal("later"))
    (tmp_path / "q").write_bytes(journal("last"))
    items, _, _ = load(tmp_path)
    assert items == ["packed", "later", "last"]
    assert sorted(listing(tmp_path)) == ["q", "q.950", "q.951"]
    assert load(tmp_path)[0] == items


@pytest.mark.parametrize(
    "last",
    [
        AddX(NOW, 0, b"torn"),
        Add(0, b"torn"),
        AddXid(4, NOW, 0, b"torn"),
        SaveXid(7),
        ConfirmRemove(7),
        Unremove(7),
        RemoveTentativeXid(9),
        StateDump(7, 7),
    ],
)
def test_torn_tail(tmp_path: Path, last: Record) -> None:
    """A record cut short at any byte is set aside; all before it stays."""
    whole = journal("a", "b", Remove(), "c")
    raw = encode(last)
    for cut in range(1, len(raw)):
        (tmp_path / "q").write_bytes(whole + raw[:cut])
        assert load(tmp_path) == (["b", "c"], {}, len(whole))
        assert listing(tmp_path) == {f"q.{NOW}": whole, "q": b"", f"q~~torn-{NOW}": raw[:cut]}
        assert load(tmp_path) == (["b", "c"], {}, len(whole))
        clear(tmp_path)


def test_torn_continue(tmp_path: Path) -> None:
    """A CONTINUE cut short, which may look like a STATE_DUMP and more, is set aside as well."""
    whole = journal("a", RemoveTentativeXid(1))
    raw = encode(Continue(1, NOW, 0, b"torn" * 5))
    for cut in range(1, len(raw)):
        if cut == 9:
            continue  # to the byte a STATE_DUMP, which changes nothing
        (tmp_path / "q").write_bytes(whole + raw[:cut])
        assert load(tmp_path) == ([], {1: "a"}, len(whole))
        assert (tmp_path / f"q~~torn-{NOW}").read_bytes() == raw[:cut]
        clear(tmp_path)


@pytest.mark.parametrize("size", [40, 3 << 20])
def test_torn_continue_and_nothing_else(tmp_path: Path, size: int) -> None:
    """The same where it is the only record, and longer than what is looked at together."""
    raw = encode(Continue(1, NOW, 0, b"\x00" + b"\x01" * size))
    (tmp_path / "q").write_bytes(raw[:-3])
    assert load(tmp_path) == ([], {}, 0)
    assert (tmp_path / f"q~~torn-{NOW}").read_bytes() == raw[:-3]


def test_state_dump_near_the_end(tmp_path: Path) -> None:
    """A STATE_DUMP of many open reads is no CONTINUE that was cut short; it ends its file."""
    whole = journal("a", "b", StateDump(7, 1000), Remove())
    (tmp_path / "q").write_bytes(whole)
    assert load(tmp_path) == (["a", "b"], {}, len(whole))
    assert listing(tmp_path) == {f"q.{NOW}": whole, "q": b""}


@pytest.mark.parametrize("cut", [10, 16])
def test_an_opcode_8_and_nothing_else(tmp_path: Path, cut: int) -> None:
    """Too little is left to see what it is, and no record before it tells."""
    raw = encode(Continue(1, NOW, 0, b"torn"))[:cut]
    (tmp_path / "q").write_bytes(raw)
    assert load(tmp_path) == ([], {}, cut)
    assert listing(tmp_path) == {f"q.{NOW}": raw, "q": b""}


def test_torn_tail_of_a_rotated_file(tmp_path: Path) -> None:
    """When the last file is a rotated one, its tail may be torn as well."""
    (tmp_path / "q.7").write_bytes(journal("a") + b"\x02\x15")
    assert load(tmp_path)[0] == ["a"]
    assert (tmp_path / f"q.7~~torn-{NOW}").read_bytes() == b"\x02\x15"


def test_cut_in_an_earlier_file(tmp_path: Path) -> None:
    """A record that is cut although another file follows is damage."""
    (tmp_path / "q.7").write_bytes(journal("a") + b"\x02\x15")
    (tmp_path / "q").write_bytes(journal("b"))
    before = listing(tmp_path)
    with pytest.raises(DamagedJournal, match=r"q\.7: damaged at byte 22: .*cut short") as caught:
        load(tmp_path)
    assert caught.value.file == str(tmp_path / "q.7")
    assert listing(tmp_path) == before


@pytest.mark.parametrize("zeros", [1, 4, 8, 9, 10, 4096, 3_000_000])
def test_zeros_at_the_end(tmp_path: Path, zeros: int) -> None:
    """What a file system may leave after the machine lost power is a torn tail."""
    whole = journal("a", "b")
    (tmp_path / "q").write_bytes(whole + bytes(zeros))
    assert load(tmp_path)[0] == ["a", "b"]
    assert listing(tmp_path) == {f"q.{NOW}": whole, "q": b"", f"q~~torn-{NOW}": bytes(zeros)}


@pytest.mark.parametrize(
    "garbage", [b"\xff", b"\x02\x00\x00\x00\x00", b"\x00\x03\x00\x00\x00" + b"\x00" * 9, b"\n"]
)
@pytest.mark.parametrize("after", [b"", journal("later")])
def test_damage(tmp_path: Path, garbage: bytes, after: bytes) -> None:
    """Bytes that are no record are never guessed at: the place is named, no file changes."""
    whole = journal("a")
    (tmp_path / "q").write_bytes(whole + garbage + b"\xfe" + after)
    before = listing(tmp_path)
    with pytest.raises(DamagedJournal) as caught:
        load(tmp_path)
    assert (caught.value.position, caught.value.file) == (len(whole), str(tmp_path / "q"))
    assert listing(tmp_path) == before


def damaged_size(record: bytes, size: int, field: int = 1) -> bytes:
    """Return a record whose size field, at byte `field`, says `size`."""
    return record[:field] + size.to_bytes(4, "little") + record[field + 4 :]


@pytest.mark.parametrize(
    "damaged",
    [
        damaged_size(encode(AddX(NOW, 0, b"lost")), 1 << 30),
        damaged_size(encode(AddX(NOW, 0, b"lost")), 5000),
        damaged_size(encode(AddXid(4, NOW, 0, b"lost")), 1 << 20, 5),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\x02\x15"])
def test_damaged_size_that_points_past_the_end(tmp_path: Path, damaged: bytes, end: bytes) -> None:
    """A record that is only seemingly cut short is damage: what follows it is not set aside."""
    whole = journal("a")
    after = journal("b", Remove(), "c", *"defgh" * 10)
    (tmp_path / "q").write_bytes(whole + damaged + after + end)
    before = listing(tmp_path)
    with pytest.raises(DamagedJournal, match="beyond the end, yet others follow it") as caught:
        load(tmp_path)
    assert caught.value.position == len(whole)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("cut", [30, 1000, 2_999_999, 3_000_020])
def test_torn_item_with_a_journal_in_it(tmp_path: Path, cut: int) -> None:
    """Journals may be kept in a queue: their records are older than the item, and no damage."""
    older = encode(AddX(NOW - 1, 0, b"an item of another journal"))
    whole = journal("a")
    torn = encode(AddX(NOW, 0, older * (3_000_000 // len(older)) + b"x" * 100))[:cut]
    (tmp_path / "q").write_bytes(whole + torn)
    assert load(tmp_path) == (["a"], {}, len(whole))
    assert (tmp_path / f"q~~torn-{NOW}").read_bytes() == torn


def test_what_was_set_aside_before_is_kept(tmp_path: Path) -> None:
    """Two tails that are cut off in the same millisecond have files of their own."""
    for tail in (b"\x02\x15", b"\x02\x16"):
        (tmp_path / "q").write_bytes(journal("a") + tail)
        assert load(tmp_path)[0] == ["a"]
        (tmp_path / f"q.{NOW}").unlink()
    assert (tmp_path / f"q~~torn-{NOW}").read_bytes() == b"\x02\x15"
    assert (tmp_path / f"q~~torn-{NOW + 1}").read_bytes() == b"\x02\x16"


def test_a_temporary_that_cannot_be_removed_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It means nothing: the log says so, the others go, and the server starts."""
    directory = CrashingDirectory.within(tmp_path)
    for name in ("gone~~next-1", "stays~~pack-2", "too~~delete-3"):
        (directory.path / name).touch()
    directory.fail = lambda point: point == "remove stays~~pack-2"
    remove_left_over(directory, group_files(directory.names()).dead)
    assert directory.names() == ["stays~~pack-2"]
    assert "stays~~pack-2 cannot be removed: [Errno 28] No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("files", "created"),
    [
        ({"q": b""}, NOW),
        ({"q": encode(AddX(NOW - 500, 0, b"first"))}, NOW - 500),
        ({f"q.{NOW - 700}": b"", "q": encode(AddX(NOW - 900, 0, b"later"))}, NOW - 700),
        ({f"q.{NOW - 700}.pack": encode(AddX(NOW - 900, 0, b"old"))}, NOW - 900),
        ({"q.5": encode(AddX(5, 0, b"no clock was set"))}, NOW),
        ({"q.9999999999999": b"", "q": b""}, NOW),
    ],
)
def test_when_a_queue_came_into_being(
    tmp_path: Path, files: dict[str, bytes], created: int
) -> None:
    """The earliest of what its files tell, as far as that may be; at the latest now."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    directory = DiskDirectory(tmp_path)
    found = group_files(directory.names()).queues["q"]
    assert load_queue(directory, found, None, FakeClock(NOW)).created == created


# --- beside queues that serve ---


class Stopped(Exception):  # noqa: N818 # says what it is
    """The loading is not to go on."""


def test_loading_pauses_and_can_be_stopped(tmp_path: Path) -> None:
    """Others may run after every short piece; an error there ends it, with no file changed."""
    sizes = [*[100] * 2000, *range(1000, 1500), 5_000_000, *[7] * 20_000, *range(300)]
    (tmp_path / "q.5").write_bytes(journal(*("z" * size for size in sizes)))
    (tmp_path / "q").write_bytes(journal("last") + b"\x02")
    before = listing(tmp_path)
    found = group_files(DiskDirectory(tmp_path).names()).queues["q"]
    pauses = 0

    def pace() -> bool:
        nonlocal pauses
        pauses += 1
        if pauses == stop_at:
            raise Stopped
        return True

    stop_at = 0
    directory = DiskDirectory(tmp_path)
    loaded = load_queue(directory, found, None, FakeClock(NOW), pace)
    assert [len(item_data(item)) for item in loaded.state.memory] == [*sizes, 4]
    assert pauses > 10
    for name in (f"q~~torn-{NOW}", f"q.{NOW}"):
        (tmp_path / name).unlink()
    (tmp_path / "q").write_bytes(before["q"])
    most = pauses
    for number in range(1, most):
        stop_at, pauses = number, 0
        with pytest.raises(Stopped):
            load_queue(directory, found, None, FakeClock(NOW), pace)
    assert listing(tmp_path) == before


def test_a_queue_that_cannot_be_loaded_keeps_no_file_open(tmp_path: Path) -> None:
    """Though items that memory has no room for were being read back when the damage was found."""
    (tmp_path / "q").write_bytes(journal(*"abcdef") + REMOVE_RECORD * 3 + b"\xff" * 9)
    found = group_files(DiskDirectory(tmp_path).names()).queues["q"]
    with pytest.raises(DamagedJournal):
        load_queue(DiskDirectory(tmp_path), found, 2, FakeClock(NOW))
    assert open_below(tmp_path) == []


def test_progress_of_a_long_load_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every few seconds the log says how many of the queue's bytes are loaded."""
    clock = FakeClock(NOW)
    (tmp_path / "q.5").write_bytes(journal("z" * (3 << 20)))
    (tmp_path / "q").write_bytes(journal(*["y" * (1 << 20)] * 4))
    found = group_files(DiskDirectory(tmp_path).names()).queues["q"]

    def pace() -> bool:
        clock.advance(3.0)
        return True

    with caplog.at_level("INFO"):
        load_queue(DiskDirectory(tmp_path), found, None, clock, pace)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"loading {tmp_path / 'q'}: 4 of 7 MiB",
        f"loading {tmp_path / 'q'}: 6 of 7 MiB",
    ]


def test_damage_far_into_a_file(tmp_path: Path) -> None:
    """The place is counted from the start of the file, not of a chunk."""
    whole = journal("x" * 3_000_000, *["y" * 1000] * 500)
    (tmp_path / "q").write_bytes(whole + b"\xff\x01")
    with pytest.raises(DamagedJournal) as caught:
        load(tmp_path)
    assert caught.value.position == len(whole)


def test_records_around_the_chunks(tmp_path: Path) -> None:
    """Records longer than a chunk, and records that lie across two, are whole."""
    sizes = [1_048_555, 0, 5_000_000, 1, 1_048_576, 3, 700_000, 700_000]
    (tmp_path / "q").write_bytes(journal(*("z" * size for size in sizes)))
    assert [len(item) for item in load(tmp_path)[0]] == sizes


def test_continue_across_a_chunk(tmp_path: Path) -> None:
    """A CONTINUE that a chunk cuts is not mistaken for a STATE_DUMP."""
    for size in range((1 << 20) - 60, (1 << 20) - 20, 3):
        last = Continue(1, NOW, 0, b"next")
        (tmp_path / "q").write_bytes(
            journal("z" * (size - 22), RemoveTentativeXid(1)) + encode(last) + journal("end")
        )
        items, open_reads, _ = load(tmp_path)
        assert items == ["next", "end"]
        assert open_reads == {}


def test_memory_limit(tmp_path: Path) -> None:
    """Only the head is held; what is behind is counted."""
    (tmp_path / "q").write_bytes(journal(*"abcdef"))
    items, _, _ = load(tmp_path, limit=2)
    assert items == ["a", "b"]


def test_golden_documented(tmp_path: Path) -> None:
    """A journal of the documented dialect, kept as bytes; its STATE_DUMP ends the file."""
    (tmp_path / "q").write_bytes(bytes.fromhex((DATA / "documented.hex").read_text()))
    items, open_reads, _ = load(tmp_path)
    assert (items, open_reads) == (["first", "second"], {41: "named"})


def test_golden_kestrel_2(tmp_path: Path) -> None:
    """A journal of Kestrel 2.x, kept as bytes, loads to what it always did."""
    (tmp_path / "q").write_bytes(bytes.fromhex((DATA / "kestrel-2.hex").read_text()))
    items, open_reads, _ = load(tmp_path)
    assert (items, open_reads) == (["third", "moved"], {102: "second"})


# --- the lock ---


def test_lock_is_exclusive(tmp_path: Path) -> None:
    """A path has one holder, who is named; after its release the next one may come."""
    first, second = QueuePathLock(tmp_path), QueuePathLock(tmp_path)
    first.acquire()
    with pytest.raises(QueuePathLocked, match=rf"in use .*\(process {os.getpid()}\)"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A lock file that a dead process left holds nobody up."""
    program = (
        "import sys, os; from pathlib import Path\n"
        "from kestrelmq.disk.locks import QueuePathLock\n"
        "QueuePathLock(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert (tmp_path / "~~lock").read_text().strip().isdigit()
    lock = QueuePathLock(tmp_path)
    lock.acquire()
    assert (tmp_path / "~~lock").read_text() == f"{os.getpid()}\n"
    lock.release()
