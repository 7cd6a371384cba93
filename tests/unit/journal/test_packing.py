"""Packing files that no server has, or that one has: what is written, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.clock import no_pause
from kestrelmq.disk.directories import Directory, DiskDirectory
from kestrelmq.errors import JournalError
from kestrelmq.format.names import QueueFiles, group_files
from kestrelmq.format.notes import delayed_notes, joined_note
from kestrelmq.format.records import (
    AddX,
    Record,
    Remove,
    RemoveTentative,
    Unremove,
    item,
    item_data,
)
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.loading import replay_whole
from kestrelmq.journal.open_read import OpenRead, ReserveTerms
from kestrelmq.journal.packing import PackedFile, PackResult, pack, write_packed
from kestrelmq.journal.producers import LastMark, Producers, marks_notes
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replacement import (
    PIECE,
    ExpectedContents,
    FilesSource,
    LiveContents,
    MemorySource,
    Replacement,
    in_pieces,
)
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.reserved_reads import done_note, reserved_note, retired_note
from kestrelmq.journal.writer import Dialect
from tests.support.crashing_directory import CrashingDirectory
from tests.support.descriptors import open_below
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import journal
from tests.support.local_queues import items_on_disk
from tests.support.open_reads import reservations
from tests.support.readings import replayed

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
LONG = 90_000
"""Bytes of an item of which memory holds none beside another while files are packed."""


def added(*numbers: int, size: int = LONG) -> list[Record]:
    """Return the records that add long items which begin with their numbers."""
    return [AddX(NOW, 0, b"%d " % number + bytes(size)) for number in numbers]


# --- of queues that no server has ---


def test_a_queue_that_is_longer_than_memory_is_packed(tmp_path: Path) -> None:
    """All that is live is in one file then, and no other file is open any more."""
    (tmp_path / "jobs.5").write_bytes(journal(*added(*range(5), size=5 << 20)))
    (tmp_path / "jobs").write_bytes(journal(Remove(), Remove(), RemoveTentative()))
    directory = DiskDirectory(tmp_path)
    files = group_files(directory.names()).queues["jobs"]
    found = pack(directory, files, "documented", FakeClock(NOW))
    before = 5 * ((5 << 20) + 2 + 21) + 3
    after = (tmp_path / "jobs").stat().st_size
    assert found == PackResult("jobs", items=2, open_reads=1, before=before, after=after)
    assert directory.names() == ["jobs"]
    assert open_below(tmp_path) == []
    assert [data[:2] for data in items_on_disk(tmp_path)] == [b"2 ", b"3 ", b"4 "]


def files_of(directory: Directory) -> QueueFiles:
    """Return the files of the queue `jobs`."""
    return group_files(directory.names()).queues["jobs"]


def test_what_a_failed_pack_leaves_goes_with_the_next(tmp_path: Path) -> None:
    """The temporary file is known as the queue's by its name."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "jobs").write_bytes(journal("a"))
    directory = CrashingDirectory.within(tmp_path)
    directory.break_steps("rename")
    for now in (NOW, NOW + 1):
        with pytest.raises(OSError, match="No space"):
            pack(directory, files_of(directory), "documented", FakeClock(now))
        assert len(directory.names()) == 2
    directory.mend()
    pack(directory, files_of(directory), "documented", FakeClock(NOW + 2))
    assert directory.names() == ["jobs"]


def contents(path: Path) -> dict[str, bytes]:
    """Return the files in a directory, by name."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def packed_elsewhere(path: Path, queue: str, dialect: Dialect) -> tuple[PackedFile, Replay]:
    """Write the pack of a queue to another directory; return what it holds, replayed."""
    directory, output = DiskDirectory(path), DiskDirectory(path / "output")
    output.path.mkdir(exist_ok=True)
    files = group_files(directory.names()).queues[queue]
    packed = write_packed(directory, files, output, "packed", dialect)
    state = Replay()
    replay_whole(output, state, ["packed"], no_pause)
    state.end()
    return packed, state


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_a_pack_has_all_that_the_files_say(tmp_path: Path, dialect: Dialect) -> None:
    """Deliveries, reserved reads, tags, marks and delayed items; the files are only read."""
    joined, later = item(NOW, 0, b"joined"), item(NOW + 9, 0, b"later")
    terms = ReserveTerms(30_000, 5000, "owner", "sink:7:1")
    first = journal(
        *added(1, 2, 3, size=1), RemoveTentative(), Unremove(1), *[RemoveTentative()] * 2
    )
    notes = [
        reserved_note(99, terms, [2], 3),
        done_note("sink:7:0", 5, 3),
        retired_note("old", 4, 3),
        *marks_notes([(b"p", LastMark(8, 1_700_000_000))], 3),
        delayed_notes(1, joined, 3),
        delayed_notes(2, later, 3),
        joined_note(1, 3) + joined,
    ]
    (tmp_path / "jobs.5").write_bytes(first + b"".join(notes))
    (tmp_path / "jobs").write_bytes(journal(*added(4, size=1)) + journal(*added(5))[:-1])
    before = contents(tmp_path)

    packed, state = packed_elsewhere(tmp_path, "jobs", dialect)

    assert (packed.items, packed.open_reads, packed.delayed) == (3, 2, 1)
    assert packed.torn is not None
    assert packed.torn.position == 24
    assert contents(tmp_path) == before
    assert packed.size == (tmp_path / "output" / "packed").stat().st_size
    assert [item_data(one)[:2] for one in state.memory] == [b"3 ", b"jo", b"4 "]
    assert {xid: one.deliveries for xid, one in state.open.items()} == {2: 1, 3: 0}
    assert state.last_xid == 3
    reservation = reservations(state.open)[2]
    assert (reservation.nonce, reservation.terms, reservation.xids) == (99, terms, (2,))
    assert (state.reserved.done, state.reserved.retired) == ({"sink:7:0": 5}, {"old": 4})
    assert list(state.producers.snapshot()) == [(b"p", LastMark(8, 1_700_000_000))]
    assert state.delayed is not None
    assert (state.delayed.in_order(), state.delayed.last_number) == ([later], 2)


def test_marks_of_producers_that_are_forgotten_are_left_out(tmp_path: Path) -> None:
    """However many; between some of them others may run."""
    marks = [(b"p%d" % number, LastMark(8, 1_700_000_000 + number)) for number in range(1200)]
    (tmp_path / "jobs.1").write_bytes(b"".join(marks_notes(marks, 3)) + journal(*added(1)))
    since = 1_700_001_150_000
    producers = Producers()
    producers.ttl = 60_000
    producers.set(PutMark(b"new", 1), since // 1000 + 59)
    producers.start_clock(FakeClock())
    source = FilesSource(DiskDirectory(tmp_path), ["jobs.1"], "documented", producers=producers)
    pauses: list[None] = []
    pieces = b"".join(source.pieces(lambda: pauses.append(None)))
    assert len(pauses) > 2
    (tmp_path / "jobs.1").write_bytes(pieces)
    state = Replay()
    replay_whole(DiskDirectory(tmp_path), state, ["jobs.1"], no_pause)
    assert list(state.producers.snapshot()) == marks[1150:]
    state.producers.ttl = 60_000
    state.producers.start_clock(FakeClock())
    assert state.producers.now() == producers.now() + 1000


# --- of files that a queue goes on behind ---


def write(tmp_path: Path, *records: Record | str) -> FilesSource:
    """Write a rotated file; return what packs it."""
    (tmp_path / "jobs.1").write_bytes(journal(*records))
    return FilesSource(DiskDirectory(tmp_path), ["jobs.1"], "documented")


def waiting(pieces: Iterator[bytes]) -> list[bytes]:
    """Return the beginnings of the items that wait when the records of `pieces` are replayed."""
    reading = replayed({"jobs": b"".join(pieces)}, "jobs", keeps_xid=False)
    return [data.partition(b" ")[0] for data, *_ in reading.queue]


def test_items_that_memory_does_not_hold_are_packed(tmp_path: Path) -> None:
    """They are read again, after those of open reads."""
    source = write(tmp_path, *added(*range(8)), Remove(), RemoveTentative())
    assert waiting(source.pieces(no_pause)) == [b"%d" % number for number in range(2, 8)]
    assert source.written == 6
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("count", [499, 500, 501, 1000])
def test_records_are_packed_however_many_there_are(tmp_path: Path, count: int) -> None:
    """They are replayed 500 at a time; removes of no item do nothing."""
    source = write(tmp_path, "dead ", *[Remove()] * (count - 2), "live ")
    assert waiting(source.pieces(no_pause)) == [b"live"]


@pytest.mark.parametrize("count", [6, 20_000])
def test_dead_items_keep_their_place(tmp_path: Path, count: int) -> None:
    """Later files say that they are removed; their data is not kept."""
    small = [f"{number} " for number in range(count)]
    live = LiveContents(count - 3, lambda place: place != count - 2, lambda _xid: False)
    source = FilesSource(
        DiskDirectory(tmp_path), ["jobs.1"], "documented", live=lambda _pause: live
    )
    write(tmp_path, *small[:-2], *added(count - 2, count - 1))
    found = waiting(source.pieces(no_pause))
    assert found == [*[b""] * (count - 3), b"%d" % (count - 3), b"", b"%d" % (count - 1)]


def expected(tmp_path: Path, **changed: int) -> FilesSource:
    """Return what packs two items of two bytes, one open read, and expects something else."""
    write(tmp_path, "a ", "b ", "c ", RemoveTentative())
    values = {"items": 2, "size": 4, "last_xid": 1, "read": 1} | changed
    reads = ReadTable([(values["read"], OpenRead(values["read"], b""))])
    wanted = ExpectedContents(values["items"], values["size"], reads, values["last_xid"])
    return FilesSource(DiskDirectory(tmp_path), ["jobs.1"], "documented", expected=wanted)


def test_files_that_hold_what_the_queue_does_are_packed(tmp_path: Path) -> None:
    """The check is of items, bytes, open reads and the counter."""
    assert waiting(expected(tmp_path).pieces(no_pause)) == [b"b", b"c"]


@pytest.mark.parametrize("changed", [{"items": 3}, {"size": 5}, {"last_xid": 2}, {"read": 2}])
def test_files_that_hold_something_else_are_not_replaced(
    tmp_path: Path, changed: dict[str, int]
) -> None:
    """The queue in memory may be right where they are wrong; the error says what differs."""
    source = expected(tmp_path, **changed)
    told = r"jobs\.1: the files hold 2 items, 4 bytes and 1 open reads, and the queue "
    with pytest.raises(JournalError, match=told):
        list(source.pieces(no_pause))


@pytest.mark.parametrize("first", [0, 7, 8])
def test_a_file_that_is_cut_short_meanwhile_is_not_replaced(tmp_path: Path, first: int) -> None:
    """What was counted in it is not there any more: an error, and not a shorter queue."""
    write(tmp_path, *added(*range(8)))
    live = LiveContents(first, lambda _place: True, lambda _xid: False)
    source = FilesSource(
        DiskDirectory(tmp_path), ["jobs.1"], "documented", live=lambda _pause: live
    )
    pieces = source.pieces(no_pause)
    next(pieces)  # the open reads; the items are still to be read
    (tmp_path / "jobs.1").write_bytes(journal(*added(0)))
    with pytest.raises(JournalError, match=r"jobs\.1: fewer items on disk than were counted"):
        list(pieces)
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("sizes", [[0] * 9000, [100] * 9000, [9_000] * 500, [300_000] * 100])
def test_records_are_joined_to_pieces_of_about_one_size(sizes: list[int]) -> None:
    """However long each is; all are there, in order. Other threads wait for a long piece."""
    records = [item(NOW, 0, b"%05d" % n + bytes(size)) for n, size in enumerate([*sizes, 1 << 20])]
    pieces = list(in_pieces(records))
    assert b"".join(pieces) == b"".join(records)
    assert all(len(piece) <= 2 * PIECE or piece in records for piece in pieces)
    assert len(pieces) < len(records) or len(records[0]) > PIECE


@pytest.mark.parametrize("size", [0, 100, 9_000, 300_000])
def test_the_source_counts_the_items_of_its_pieces(size: int) -> None:
    """So that the place of an item in the new file can be found, by the marks."""
    items = [item(NOW, 0, b"%05d" % number + bytes(size)) for number in range(200)]
    source = MemorySource("documented", 7, ReadTable([(3, OpenRead(3, items[0]))]), items[1:])
    written = 0
    for piece in source.pieces(no_pause):
        written += piece.count(b"\x02" + items[0][1:5])
        assert source.written == written
    assert written == 199


# --- putting the file in place ---


def test_a_long_file_is_synced_while_it_is_written(tmp_path: Path) -> None:
    """So that the last sync, for which others wait, has little left to do."""
    directory = CrashingDirectory.within(tmp_path)
    (directory.path / "jobs.1").write_bytes(b"")
    points: list[str] = []

    def note(point: str) -> bool:
        points.append(point)
        return False

    directory.fail = note
    source = MemorySource("documented", 0, ReadTable(), [item(NOW, 0, bytes(1 << 20))] * 40)
    replacement = Replacement(directory, "jobs", ["jobs.1"], source)
    replacement.place(no_pause)
    syncs = [at for at, point in enumerate(points) if point == "sync jobs~~pack-1"]
    appends = [at for at, point in enumerate(points) if point == "append to jobs~~pack-1"]
    assert len(syncs) == 3
    assert appends[0] < syncs[0] < syncs[1] < appends[-1] < syncs[2]
    assert replacement.size == (directory.path / "jobs.1.pack").stat().st_size


def test_a_named_file_is_not_written_again(tmp_path: Path) -> None:
    """When only the last sync of the directory failed, that alone is tried again."""
    directory = CrashingDirectory.within(tmp_path)
    (directory.path / "jobs.1").write_bytes(journal("old"))
    source = MemorySource("documented", 0, ReadTable(), [item(NOW, 0, b"live")])
    replacement = Replacement(directory, "jobs", ["jobs.1"], source)
    directory.fail = lambda point: replacement.is_placed and point == "sync the directory"
    with pytest.raises(OSError, match="No space left"):
        replacement.place(no_pause)
    assert replacement.is_placed
    points: list[str] = []

    def note(point: str) -> bool:
        points.append(point)
        return False

    directory.fail = note
    replacement.place(no_pause)
    assert points == ["sync the directory"]
    replacement.clear(no_pause)
    assert items_on_disk(directory.path) == [b"live"]


@pytest.mark.parametrize("last", ["jobs", "jobs~~next-5", "no journal"])
def test_only_rotated_files_are_replaced(tmp_path: Path, last: str) -> None:
    """The current file changes, and the pack of a file without a time would have no name."""
    source = MemorySource("documented", 0, ReadTable(), [])
    with pytest.raises(ValueError, match=f"{last} is not a rotated file"):
        Replacement(DiskDirectory(tmp_path), "jobs", ["jobs.1", last], source)


# --- reading back while a journal is replayed ---


def test_a_replay_finds_out_that_a_file_was_cut_short(tmp_path: Path) -> None:
    """The items that it counted and left on disk are not there any more."""
    content = journal("a", "b", "c")
    (tmp_path / "jobs").write_bytes(content)
    state = Replay(1, lambda file, at: JournalReader(tmp_path, file, at))
    state.feed(content, [0, 22, 44], len(content), ["jobs"])
    (tmp_path / "jobs").write_bytes(content[:22])
    head = state.take()
    assert head is not None
    assert item_data(head) == b"a"
    with pytest.raises(JournalError, match="jobs: fewer items on disk than were counted"):
        state.take()
