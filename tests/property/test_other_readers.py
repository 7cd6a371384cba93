"""Journals that any Kestrel may have written, or may read after us: random files and queues.

Kestrels of the documented dialect disagree about the xid of an item that was added with ADD_XID.
What others wrote is read as the format says; what we write means the same to all of them.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import TagRefused
from kestrelmq.format.names import group_files
from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Item,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    item_data,
)
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.journal.packing import pack, write_packed
from kestrelmq.journal.writer import Dialect
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.spark.replay.read_plans import replay_in_parallel, summarise
from kestrelmq.spark.storage.spool import list_files
from kestrelmq.tools.export_rows import ExportRow
from kestrelmq.tools.import_export import import_rows, rows
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.verify import verify
from kestrelmq.upkeep import upkeep
from tests.support.examples import examples
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker
from tests.support.journal_bytes import encode, journal
from tests.support.open_reads import data_by_xid, open_read
from tests.support.readings import Reading, replayed

pytestmark = pytest.mark.compiled_only

NOW = 1_700_000_000_000
NAME = "q"
DIALECTS: tuple[Dialect, ...] = ("documented", "kestrel-2")
xids = st.one_of(st.integers(1, 6), st.sampled_from([2**31 - 1, 2**31 - 2, -(2**31), -1, -2]))
texts = st.binary(min_size=1, max_size=3)
adds: list[st.SearchStrategy[Record]] = [
    st.builds(AddX, st.integers(NOW, NOW + 9), st.sampled_from([0, NOW]), texts),
    st.builds(AddX, st.just(NOW), st.just(0), texts),
    st.builds(Add, st.integers(0, 2), texts),
]
either: list[st.SearchStrategy[Record]] = [
    *adds,
    st.just(Remove()),
    st.builds(SaveXid, xids),
    st.builds(Unremove, xids),
    st.builds(ConfirmRemove, xids),
    st.builds(AddXid, xids, st.just(NOW), st.just(0), texts),
]
documented = st.one_of(*either, *[st.just(RemoveTentative())] * 3)
released = st.one_of(
    *either,
    st.builds(Continue, xids, st.just(NOW), st.just(0), texts),
    *[st.builds(RemoveTentativeXid, xids)] * 3,
)
# A count that no CONTINUE has, or one and enough behind it to see that there is none.
ends = st.one_of(
    st.just([]),
    st.builds(StateDump, xids, st.integers(0, 15)).flatmap(
        lambda dump: st.lists(st.one_of(documented, released), max_size=6).map(
            lambda behind: [dump, *behind]
        )
    ),
    st.just([StateDump(3, 1000), AddX(NOW, 0, b"left out"), Remove()]),
)
files_of_records = st.lists(
    st.tuples(
        st.one_of(st.lists(documented, max_size=25), st.lists(released, max_size=25)), ends
    ).map(lambda parts: [*parts[0], *parts[1]]),
    min_size=1,
    max_size=4,
)


follow_up = st.lists(
    st.one_of(
        *adds,
        st.just(Remove()),
        *[st.just(RemoveTentative())] * 2,
        *[st.builds(kind, st.integers(0, 9)) for kind in (Unremove, Unremove, ConfirmRemove)],
    ),
    max_size=20,
)


def aimed(record: Record, reading: Reading) -> Record | None:
    """Return the record; one that ends a read ends one that is open, or is left out."""
    if not isinstance(record, Unremove | ConfirmRemove):
        return record
    xids = sorted(reading.open)
    return type(record)(xids[record.xid % len(xids)]) if xids else None


def write(path: Path, files: Sequence[Sequence[Record]]) -> dict[str, bytes]:
    """Write the files of a queue; return them by name."""
    names = [f"{NAME}.{number}" for number in range(1, len(files))] + [NAME]
    written = {name: journal(*records) for name, records in zip(names, files, strict=True)}
    for name, raw in written.items():
        (path / name).write_bytes(raw)
    return written


def contents(path: Path) -> dict[str, bytes]:
    """Return the files in a directory, by name."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def exported(path: Path) -> list[tuple[bytes, int, int]]:
    """Return what an export of the queue has."""
    (selected,) = select([path])
    return [(row.data, row.add_time, row.expiry) for row in rows(selected)]


@settings(max_examples=examples(150))
@given(files_of_records, st.sampled_from([1, 4, None]))
def test_what_others_wrote(files: list[list[Record]], limit: int | None) -> None:
    """Both dialects, and files that a STATE_DUMP ends, are read as the format says."""
    check_every_reader(files, limit)


def named(xid: int, text: bytes) -> list[Record]:
    """Return what opens a read as it was before the journal was rewritten."""
    return [AddXid(xid, NOW, 0, text), RemoveTentative()]


B, C = AddX(NOW, 0, b"b"), AddX(NOW, 0, b"c")
OPEN = RemoveTentative()


@pytest.mark.parametrize(
    ("records", "left"),
    [
        # The xid of ADD_XID is used once, and gone when the item is given back.
        ([*named(3, b"a"), ConfirmRemove(3)], []),
        (
            [
                *named(3, b"a"),
                SaveXid(9),
                Unremove(3),
                B,
                OPEN,
                OPEN,
                ConfirmRemove(10),
                Unremove(11),
            ],
            [b"b"],
        ),
        (
            [
                *named(3, b"a"),
                B,
                RemoveTentativeXid(7),
                Unremove(3),
                Unremove(7),
                OPEN,
                OPEN,
                ConfirmRemove(8),
            ],
            [b"a"],
        ),
        # A server that was restarted numbers such reads anew, and goes on from there.
        ([SaveXid(9), *named(3, b"a"), B, ConfirmRemove(10)], [b"b"]),
        ([SaveXid(9), *named(3, b"a"), Continue(10, NOW, 0, b"b")], [b"b"]),
        ([*named(3, b"a"), SaveXid(9), B, OPEN, ConfirmRemove(1)], [b"b"]),
        ([SaveXid(2**31 - 1), *named(3, b"a"), ConfirmRemove(-(2**31))], []),
        (
            [
                SaveXid(9),
                *named(3, b"a"),
                *named(5, b"b"),
                C,
                Unremove(10),
                Unremove(11),
                OPEN,
                ConfirmRemove(12),
            ],
            [b"a", b"c"],
        ),
        # But what is open under the xid itself comes first.
        ([SaveXid(9), *named(3, b"a"), B, OPEN, ConfirmRemove(10)], [b"a"]),
        ([SaveXid(9), *named(3, b"a"), ConfirmRemove(3), B, OPEN, ConfirmRemove(11)], [b"b"]),
    ],
)
@pytest.mark.parametrize("has_many_files", [False, True])
def test_xids_of_add_xid(
    records: list[Record],
    left: list[bytes],
    has_many_files: bool,  # noqa: FBT001
) -> None:
    """What they mean to every reader, without chance; also if each file has one record."""
    files = [[record] for record in records] if has_many_files else [records]
    assert [data for data, *_ in check_every_reader(files, None).loaded] == left


def check_every_reader(files: list[list[Record]], limit: int | None) -> Reading:
    """Check that all that read journals agree with the model, which is returned."""
    with TemporaryDirectory() as name:
        path = Path(name)
        expected = replayed(write(path, files), NAME, keeps_xid=True)
        assert exported(path) == expected.loaded
        (selected,) = select([path])
        report = verify(selected)
        assert (report.items, report.open_reads) == (len(expected.queue), len(expected.reads))
        listed = list_files(name)
        (parallel,) = replay_in_parallel([listed], lambda tasks: list(map(summarise, tasks)))
        assert dict(parallel.end.open).keys() == expected.reads.keys()
        assert parallel.end.last_xid == expected.last
        directory = DiskDirectory(path)
        for dialect in DIALECTS:
            output = path / "~~packed"
            write_packed(directory, selected.all_files, directory, output.name, dialect)
            check_all_agree({NAME: output.read_bytes()}, expected)
            output.unlink()
        state = load_queue(
            directory, group_files(directory.names()).queues[NAME], limit, FakeClock()
        ).state
        if state.behind is not None:
            state.behind.close()
        assert state.items == len(expected.queue)
        assert data_by_xid(state.open) == expected.reads
        assert state.last_xid == expected.last
        served = Served(path, QueueConfig())
        items = served.queue.backlog.browse(1_000_000)
        served.collection.close()
        assert [item_data(one) for one in items] == [data for data, *_ in expected.loaded]
        return expected


def check_all_agree(files: dict[str, bytes], expected: Reading) -> None:
    """Check that both kinds of readers find the items and open reads of `expected`."""
    for keeps_xid in (True, False):
        reading = replayed(files, NAME, keeps_xid=keeps_xid)
        assert reading.loaded == expected.loaded
        assert reading.reads == expected.reads


@settings(max_examples=examples(150))
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True),
    st.integers(0, 2),
    follow_up,
    st.sets(st.integers(1, 30), max_size=4),
)
def test_what_a_server_wrote_that_numbers_reads_anew(
    xids: list[int], unused: int, later: list[Record], cuts: set[int]
) -> None:
    """A Kestrel 1.x that was restarted on a rewritten journal, which may have rotated files since.

    Its readers had reads open under `xids`, and others under later ones.
    """
    records: list[Record] = [SaveXid(max(xids) + unused)]
    for xid in xids:
        records += named(xid, b"%d" % xid)
    server = Reading(keeps_xid=False)
    server.file(journal(*records))
    given_back = list(map(Unremove, sorted(server.open)))
    server.file(journal(*given_back))
    records += given_back
    for drawn in later:
        record = aimed(drawn, server)
        if record is not None:
            server.file(encode(record))
            records.append(record)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(records)), len(records)})
    found = check_every_reader([records[begin:end] for begin, end in pairwise(bounds)], None)
    assert (found.reads, found.loaded) == (server.reads, server.loaded)


@settings(max_examples=examples(150))
@given(files_of_records, follow_up)
def test_packed_files_and_what_follows(files: list[list[Record]], later: list[Record]) -> None:
    """A packed queue, and one that was imported to, mean the same to all; so does what follows."""
    with TemporaryDirectory() as name:
        path = Path(name)
        write(path, files)
        directory = DiskDirectory(path)
        for dialect in ("kestrel-2", *DIALECTS[:1]):
            pack(directory, group_files(directory.names()).queues[NAME], dialect, FakeClock(NOW))
            written = contents(path)
            check_all_agree(written, replayed(written, NAME, keeps_xid=True))
        import_rows(directory, [ExportRow(NAME, 0, b"more", NOW, 0)], FakeClock(NOW), append=True)
        written = contents(path)
        check_all_agree(written, replayed(written, NAME, keeps_xid=True))
        for drawn in later:
            record = aimed(drawn, replayed(written, NAME, keeps_xid=True))
            if record is not None:
                written[NAME] += encode(record)
                check_all_agree(written, replayed(written, NAME, keeps_xid=True))


class Served:
    """A queue of a server with limits so small that it is rewritten all the time."""

    def __init__(self, path: Path, config: QueueConfig) -> None:
        self.path = path
        self.config = config
        self.clock = FakeClock(NOW)
        self.number = 0
        self.come_up()

    def come_up(self) -> None:
        """Start the server."""
        self.worker = HeldWorker()
        server = ServerConfig(queue_path=self.path, default=self.config)
        self.collection = QueueCollection(server, self.clock)
        self.collection.commits.worker = self.worker
        self.collection.open()
        assert not self.collection.damaged

    @property
    def queue(self) -> Queue:
        """The queue."""
        return self.collection.obtain(NAME)

    def do(self, step: str, number: int) -> None:
        """Do something, as a turn of its own."""
        reads = sorted(self.queue.reads.open)
        match step:
            case "add":
                for _ in range(1 + number % 3):
                    self.number += 1
                    self.queue.add(b"%d" % self.number + b"x" * (number % 50))
            case "remove":
                self.queue.line.remove()
            case "open":
                open_read(self.queue)
            case "reserve" | "finish" | "retire":
                self.do_reserved(step, number)
            case "confirm" if reads:
                self.queue.reads.confirm(reads[number % len(reads)])
            case "unremove" if reads:
                self.queue.returns.give_back([reads[number % len(reads)]])
            case "work":
                self.clock.advance(2.0)
                self.collection.tick()
                self.worker.step()
            case "dialect":
                dialect = DIALECTS[number % 2]
                self.config = self.config.model_copy(update={"journal_dialect": dialect})
                self.collection.close()
                self.come_up()
            case "restart":
                self.collection.close()
                self.come_up()
        assert not self.collection.commits.commit()

    def do_reserved(self, step: str, number: int) -> None:
        """Reserve items, perhaps under a tag; finish it; retire an epoch."""
        tag = f"sink:{number % 5}:x"
        terms = ReserveTerms(1000, owner="w" * (number % 2), tag=tag if number % 3 else "")
        with suppress(TagRefused):
            match step:
                case "reserve":
                    if self.queue.reserved.again(terms) is None and not self.queue.reserved.is_done(
                        tag
                    ):
                        self.queue.reserved.reserve(terms, self.number, 1 + number % 3, 1000)
                case "finish":
                    self.queue.reserved.finish(tag)
                case _:
                    self.queue.reserved.retire("sink", number % 3)

    def check(self) -> None:
        """Compare what others find in the files with the queue."""
        queue = self.queue
        given_back = [queue.reads.open[xid].item for xid in sorted(queue.reads.open)]
        expected = [item_data(one) for one in (*given_back, *self.waiting())]
        readings = [
            replayed(contents(self.path), NAME, keeps_xid=keeps_xid) for keeps_xid in (True, False)
        ]
        for reading in readings:
            assert [data for data, _, _ in reading.loaded] == expected
        assert readings[0].reads == readings[1].reads

    def waiting(self) -> list[Item]:
        """Return the items that wait, those on disk too."""
        copy = self.path / "copy"
        copy.mkdir(exist_ok=True)
        for file in copy.iterdir():
            file.unlink()
        for name, raw in contents(self.path).items():
            (copy / name).write_bytes(raw)
        whole = self.config.model_copy(update={"max_memory_size": 1 << 30})
        collection = QueueCollection(ServerConfig(queue_path=copy, default=whole), self.clock)
        collection.open()
        try:
            copied = collection.obtain(NAME)
            # Reserved reads are still open there.
            given_back = len(self.queue.reads.open) - len(copied.reads.open)
            return copied.backlog.browse(1_000_000)[given_back:]
        finally:
            collection.close()


weighted = ["add", "add", "open", "open", "unremove", "unremove", "confirm", "remove"]
weighted += ["reserve", "reserve", "finish", "retire"]
steps = st.lists(
    st.tuples(
        st.sampled_from([*weighted, "work", "work", "restart", "dialect"]), st.integers(0, 99)
    ),
    max_size=60,
)


@settings(max_examples=examples(60))
@given(steps, st.sampled_from([1, 60, 10_000]), st.sampled_from([0, 50_000]))
def test_what_a_server_writes(steps: list[tuple[str, int]], memory: int, at_hand: int) -> None:
    """After every step, every reader finds the queue that the server has."""
    config = QueueConfig(
        max_memory_size=memory,
        default_journal_size=60,
        max_journal_size=150,
        min_journal_compact_delay=0,
    )
    before = upkeep.COPIED_ITEMS_LIMIT
    upkeep.COPIED_ITEMS_LIMIT = at_hand  # type: ignore[misc] # put back below
    try:
        with TemporaryDirectory() as name:
            served = Served(Path(name), config)
            for step, number in steps:
                served.do(step, number)
                served.check()
            served.collection.close()
    finally:
        upkeep.COPIED_ITEMS_LIMIT = before  # type: ignore[misc] # as above


def test_reads_of_a_rewritten_journal_are_opened_again() -> None:
    """What the test above is about, without chance: the journal is rewritten with reads open."""
    config = QueueConfig(default_journal_size=60, max_journal_size=150, min_journal_compact_delay=0)
    with TemporaryDirectory() as name:
        served = Served(Path(name), config)
        for step in ["add"] * 8 + ["open"] * 3 + ["remove"] * 30 + ["work"] * 4:
            served.do(step, 30)
            served.check()
        assert encode(AddXid(1, NOW, 0, b""))[:1] == contents(served.path)[f"{NAME}.{NOW}"][5:6]
        for step in ("unremove", "unremove", "open", "open", "confirm", "restart", "open"):
            served.do(step, 0)
            served.check()
        served.collection.close()
