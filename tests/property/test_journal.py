"""The journal against plain models, with any records there can be."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import DamagedJournal
from kestrelmq.format.names import group_files
from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Item,
    NotedItem,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    item_data,
)
from kestrelmq.format.scanning import scan
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.walk import Walk, find_records
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import decode, encode, journal
from tests.support.open_reads import data_by_xid
from tests.support.readings import Reading

pytestmark = pytest.mark.compiled_only

NOW = 1_700_000_000_000
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
data = st.binary(max_size=40)
plausible_times = st.integers(946_684_800_000, 4_133_980_799_999)
# A count that a STATE_DUMP cannot be mistaken for a CONTINUE by.
counts = st.integers(-(2**31), 15)

any_record: st.SearchStrategy[Record] = st.one_of(
    st.builds(Add, i32, data),
    st.just(Remove()),
    st.builds(AddX, i64, i64, data),
    st.just(RemoveTentative()),
    st.builds(SaveXid, i32),
    st.builds(Unremove, i32),
    st.builds(ConfirmRemove, i32),
    st.builds(AddXid, i32, i64, i64, data),
    st.builds(StateDump, i32, counts),
    st.builds(Continue, i32, plausible_times, i64, data),
    st.builds(RemoveTentativeXid, i32),
)

# Few xids and short items, so that records refer to each other.
xids = st.one_of(st.integers(1, 6), st.sampled_from([2**31 - 1, -(2**31), -1]))
texts = st.binary(min_size=1, max_size=3)
related_record: st.SearchStrategy[Record] = st.one_of(
    st.builds(AddX, st.just(NOW), st.just(0), texts),
    st.builds(AddX, st.just(NOW), st.just(0), texts),
    st.builds(Add, st.just(0), texts),
    st.just(Remove()),
    st.just(RemoveTentative()),
    st.just(RemoveTentative()),
    st.builds(SaveXid, xids),
    st.builds(Unremove, xids),
    st.builds(ConfirmRemove, xids),
    st.builds(AddXid, xids, st.just(NOW), st.just(0), texts),
    st.builds(StateDump, xids, st.integers(0, 15)),
    st.builds(Continue, xids, st.just(NOW), st.just(0), texts),
    st.builds(RemoveTentativeXid, xids.filter(bool)),
)


def contents(items: Sequence[Item]) -> list[bytes]:
    """Return the data of items."""
    return [item_data(item) for item in items]


@given(any_record, st.binary(max_size=5), st.binary(max_size=30))
def test_codec_round_trip(record: Record, before: bytes, after: bytes) -> None:
    """What is encoded is decoded, wherever it stands."""
    raw = encode(record)
    buffer = before + raw + after
    assert decode(buffer, len(before), len(buffer)) == (record, len(before) + len(raw))


@given(st.lists(any_record, max_size=30), st.data())
def test_scan_in_chunks_is_scan_whole(records: list[Record], choices: st.DataObject) -> None:
    """Chunks of any size find the records that one scan finds."""
    data = journal(*records)
    whole: list[int] = []
    stop = scan(data, 0, len(data), whole)
    dumps = [at for at, record in enumerate(records) if isinstance(record, StateDump)]
    assert len(whole) == min([*dumps, len(records)])
    assert stop == sum(len(encode(record)) for record in records[: len(whole)])
    found: list[int] = []
    position = 0
    end = 0
    while end < len(data):
        end = min(len(data), end + choices.draw(st.integers(1, 64)))
        position = scan(data, position, end, found, more=end < len(data))
    assert position == stop
    assert found == whole


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes(raw: bytes, step: int) -> None:
    """Bytes of any kind are records, cut or damaged; nothing else comes out, and the scan ends."""
    starts: list[int] = []
    try:
        end = scan(raw, 0, len(raw), starts)
    except DamagedJournal as damage:
        end = damage.position
    assert 0 <= end <= len(raw)
    for start in starts:
        decoded = decode(raw, start, len(raw))
        assert decoded is not None
        record, _ = decoded
        if not isinstance(record, StateDump):
            assert raw.startswith(encode(record), start)


@given(st.lists(related_record, max_size=60))
def test_replay_is_the_model(records: list[Record]) -> None:
    """The fold gives what the plain model gives."""
    model = Reading(keeps_xid=True)
    model.file(journal(*records))
    whole = journal(*records)
    walk = Walk(whole, find_records, last=True)
    state = Replay()
    for batch in walk.batches():
        state.feed_batch(whole, batch, ("q",))
    assert contents(list(state.memory)) == model.contents
    assert data_by_xid(state.open) == model.reads
    assert state.last_xid == model.last
    assert state.items == len(model.queue)
    assert state.size == sum(map(len, model.contents))


@given(st.lists(st.lists(related_record, max_size=25), min_size=1, max_size=4), st.integers(0, 8))
def test_replay_with_little_memory(files: list[list[Record]], limit: int) -> None:
    """Items that are left on disk come back in order, over several files."""
    model = Reading(keeps_xid=True)
    for records in files:
        model.file(journal(*records))
    with TemporaryDirectory() as name:
        path = Path(name)
        for number, records in enumerate(files):
            (path / f"q.{number}").write_bytes(journal(*records))
        directory = DiskDirectory(path)
        spool = group_files(directory.names()).queues["q"]
        state = load_queue(directory, spool, limit, FakeClock(NOW)).state
        found = contents(list(state.memory))
        assert state.items == len(model.queue)
        assert len(found) <= 1 or sum(map(len, found)) <= max(limit, state.memory_bytes)
        if state.behind is not None:
            rest = state.behind.read(spool.files, state.behind_items, 1 << 30)
            found += contents(rest)
            state.behind.close()
        assert found == model.contents
        assert data_by_xid(state.open) == model.reads


@given(st.lists(related_record, min_size=1, max_size=20), st.data())
def test_any_cut_keeps_what_is_whole(records: list[Record], choices: st.DataObject) -> None:
    """A journal that is cut anywhere replays to the state after its whole records."""
    # A CONTINUE that is cut cannot be told from a STATE_DUMP.
    records = [record for record in records if not isinstance(record, Continue)]
    pieces = list(map(encode, records))
    journal = b"".join(pieces)
    cut = choices.draw(st.integers(0, len(journal)))
    model = Reading(keeps_xid=True)
    end, is_ended = 0, False
    for record, piece in zip(records, pieces, strict=True):
        if end + len(piece) > cut:
            break
        if isinstance(record, StateDump):
            is_ended = True
            break
        end += len(piece)
        model.file(piece)
    with TemporaryDirectory() as name:
        path = Path(name)
        (path / "q").write_bytes(journal[:cut])
        directory = DiskDirectory(path)
        spool = group_files(directory.names()).queues["q"]
        state = load_queue(directory, spool, None, FakeClock(NOW)).state
        assert contents(list(state.memory)) == model.contents
        if is_ended:
            assert {file.name: file.read_bytes() for file in path.iterdir()} == {
                f"q.{NOW}": journal[:cut]
            }
            return
        assert (path / ("q" if end == cut else f"q.{NOW}")).read_bytes() == journal[:end]
        aside = [file.read_bytes() for file in path.iterdir() if "~~torn" in file.name]
        assert aside == ([journal[end:cut]] if cut > end else [])


@given(st.lists(any_record, max_size=40), st.integers(1, 200), st.integers(1, 10))
def test_reader_hands_out_every_item(records: list[Record], size: int, count: int) -> None:
    """Reading in small portions gives every item that the records add, in order."""
    added: list[bytes] = []
    half = len(records) // 2
    for file in (records[:half], records[half:]):
        added += [
            record.data
            for record in takewhile(lambda record: not isinstance(record, StateDump), file)
            if isinstance(record, Add | AddX | AddXid | Continue)
        ]
    with TemporaryDirectory() as name:
        path = Path(name)
        (path / "q.1").write_bytes(journal(*records[:half]))
        (path / "q").write_bytes(journal(*records[half:]))
        reader = JournalReader(path, "q.1", 0)
        found: list[bytes] = []
        while items := reader.read(("q.1", "q"), count, size):
            assert len(items) <= count
            assert all(isinstance(item, NotedItem) or type(item) is bytes for item in items)
            found += contents(items)
        reader.close()
    assert found == added
