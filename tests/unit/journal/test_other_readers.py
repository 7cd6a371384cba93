"""Journals that readers of the format may understand in several ways, byte for byte."""

import shutil
from pathlib import Path

import pytest

from kestrelmq import PersistentQueue
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.names import group_files
from kestrelmq.format.records import MAX_XID, MIN_XID, item, item_data
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.packing import pack, write_packed
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replacement import open_read_records
from kestrelmq.journal.writer import Dialect
from kestrelmq.tools.dump import describe, entries
from kestrelmq.tools.import_export import rows
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.verify import verify
from tests.support.fake_clock import FakeClock
from tests.support.readings import Reading

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
DATA = Path(__file__).parents[2] / "data"


def golden(name: str) -> bytes:
    """Return a golden journal."""
    return bytes.fromhex((DATA / name).read_text())


def loaded(path: Path, queue: str) -> list[bytes]:
    """Return what is in a queue when it is opened."""
    with PersistentQueue(queue, path) as opened:
        return [one.data for one in iter(opened.remove, None)]


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    """A queue path whose rotated file ends with a STATE_DUMP, and the read is confirmed later."""
    (tmp_path / "cars.1700000000900").write_bytes(golden("state-dump.hex"))
    (tmp_path / "cars").write_bytes(golden("state-dump-after.hex"))
    return tmp_path


def test_a_state_dump_ends_its_file(cars: Path) -> None:
    """What is confirmed in the next file does not come back; no tool sees it otherwise."""
    (selected,) = select([cars])
    report = verify(selected)
    assert (report.items, report.open_reads, report.is_sound) == (1, 0, True)
    assert [str(one) for one in report.left_out] == [
        "cars.1700000000900: bytes 54 to 81 (behind a STATE_DUMP, which ends its file in replay)"
    ]
    assert [row.data for row in rows(selected)] == [b"B"]
    directory, output = DiskDirectory(cars), cars / "~~packed"
    written = write_packed(directory, selected.all_files, directory, output.name, "documented")
    assert (written.items, written.open_reads) == (1, 0)
    reading = Reading(keeps_xid=True)
    reading.file(output.read_bytes())
    assert [data for data, _, _ in reading.loaded] == [b"B"]
    output.unlink()
    packed = cars / "packed"
    packed.mkdir()
    for file in selected.files:
        shutil.copy(cars / file, packed)
    done = pack(DiskDirectory(packed), select([packed])[0].all_files, "documented", FakeClock(NOW))
    assert (done.items, done.open_reads) == (1, 0)
    assert loaded(packed, "cars") == [b"B"]
    assert loaded(cars, "cars") == [b"B"]


def test_a_dump_says_what_is_not_replayed(cars: Path) -> None:
    """It lists all records."""
    (selected,) = select([cars])
    told = [(one.position, describe(one)) for one in entries(selected, with_data=False)]
    assert told[3:] == [
        (45, "STATE_DUMP 1, 1 open reads"),
        (54, "ADD_XID 1, 1 bytes at 2023-11-14T22:13:20.000Z (not replayed)"),
        (80, "REMOVE_TENTATIVE (not replayed)"),
        (0, "CONFIRM_REMOVE 1"),
    ]


def test_a_current_file_that_ends_so_is_not_appended_to(tmp_path: Path) -> None:
    """What is added later is found again."""
    (tmp_path / "cars").write_bytes(golden("state-dump.hex"))
    with PersistentQueue("cars", tmp_path) as queue:
        queue.add(b"C")
    assert loaded(tmp_path, "cars") == [b"A", b"B", b"C"]


@pytest.mark.parametrize("limit", [1, 2, None])
def test_items_behind_a_state_dump_are_not_read(cars: Path, limit: int | None) -> None:
    """Not by read-behind either."""
    (cars / "cars").write_bytes(golden("state-dump-after.hex") + item(NOW, 0, b"C"))
    reader = JournalReader(cars, "cars.1700000000900", 0)
    assert [item_data(one)[-1:] for one in reader.read(["cars.1700000000900", "cars"], 9, 999)] == [
        b"A",
        b"B",
        b"C",
    ]
    reader.close()
    directory = DiskDirectory(cars)
    state = load_queue(
        directory, group_files(directory.names()).queues["cars"], limit, FakeClock()
    ).state
    found = list(state.memory)
    if state.behind is not None:
        found += state.behind.read(["cars.1700000000900", "cars"], state.behind_items, 999)
        state.behind.close()
    assert [item_data(one)[-1:] for one in found] == [b"B", b"C"]


def test_an_open_read_is_ours_under_its_xid(tmp_path: Path) -> None:
    """The journal that the two kinds of readers disagree about is read as the format says."""
    raw = golden("open-read.hex")
    (tmp_path / "q").write_bytes(raw)
    assert loaded(tmp_path, "q") == [b"B"]
    readings = [Reading(keeps_xid=True), Reading(keeps_xid=False)]
    for reading in readings:
        reading.file(raw)
    assert [[data for data, _, _ in one.loaded] for one in readings] == [[b"B"], [b"A"]]


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize(
    "xids", [(7,), (1,), (-1,), (MIN_XID,), (MAX_XID,), (9, 3, MIN_XID, 1, -1, MAX_XID, 2), ()]
)
def test_open_reads_that_we_write(xids: tuple[int, ...], dialect: Dialect) -> None:
    """Every reader opens them under their xids, and counts on from the last one."""
    reads = ReadTable((xid, OpenRead(xid, item(NOW, 0, b"%d" % xid))) for xid in xids)
    raw = b"".join(open_read_records(dialect, 40, reads))
    for keeps_xid in (True, False):
        reading = Reading(keeps_xid)
        reading.file(raw)
        assert reading.reads == {xid: b"%d" % xid for xid in xids}
        assert dialect == "kestrel-2" or reading.last == 40


def test_an_open_read_without_a_number(tmp_path: Path) -> None:
    """No counter gives 0: it is kept, but readers that always count open it under a free one."""
    reads = ReadTable((xid, OpenRead(xid, item(NOW, 0, b"%d" % xid))) for xid in (0, 1))
    raw = b"".join(open_read_records("documented", 40, reads))
    for keeps_xid in (True, False):
        reading = Reading(keeps_xid)
        reading.file(raw)
        assert reading.reads == {0 if keeps_xid else 2: b"0", 1: b"1"}
    (tmp_path / "q").write_bytes(raw)
    assert loaded(tmp_path, "q") == [b"0", b"1"]
