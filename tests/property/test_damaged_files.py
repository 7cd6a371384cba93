"""Torn and damaged journals: the server, every tool and Spark say the same of them.

The same is: whether the queue loads, otherwise which byte of which file is wrong and why; where a
torn tail is cut; and what is in the queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import DamagedJournal
from kestrelmq.format.names import QueueFiles, group_files
from kestrelmq.format.records import (
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
    item_add_time,
    item_data,
    item_expiry,
)
from kestrelmq.journal.life import RESTART
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.packing import pack, write_packed
from kestrelmq.spark.pipelines.verify import check
from kestrelmq.spark.replay.read_plans import SummaryTask, replay_in_parallel, summarise
from kestrelmq.spark.replay.segments import SegmentSummary
from kestrelmq.spark.storage.spool import list_files
from kestrelmq.tools.dump import entries
from kestrelmq.tools.import_export import rows
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.repair import repair
from kestrelmq.tools.verify import verify
from tests.support.examples import examples
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode, journal
from tests.support.readings import replayed

pytestmark = pytest.mark.compiled_only

NOW = 1_700_000_000_000
NAME = "q"
T = TypeVar("T")

xids = st.integers(1, 4)
older = encode(AddX(NOW - 99, 0, b"of a journal in an item")) * 3
datas = st.one_of(st.binary(max_size=30), st.sampled_from([older, bytes(40), b"\x08" * 30]))
times = st.integers(NOW, NOW + 50)
records: st.SearchStrategy[Record] = st.one_of(
    *[st.builds(AddX, times, st.sampled_from([0, NOW]), datas)] * 3,
    st.builds(Add, st.integers(0, 2), datas),
    st.builds(AddXid, xids, times, st.just(0), datas),
    *[st.builds(Continue, xids, times, st.just(0), datas)] * 2,
    st.just(Remove()),
    st.just(RemoveTentative()),
    *[st.builds(RemoveTentativeXid, xids)] * 2,
    *[st.builds(kind, xids) for kind in (SaveXid, Unremove, ConfirmRemove)],
)
dumps = st.builds(StateDump, xids, st.one_of(st.integers(0, 40), st.just(1 << 20)))
files_of_records = st.lists(
    st.tuples(st.lists(records, max_size=30), st.lists(st.one_of(dumps, records), max_size=4)).map(
        lambda parts: [*parts[0], *parts[1]]
    ),
    min_size=1,
    max_size=3,
)
harms = st.lists(
    st.tuples(
        st.sampled_from(
            ["cut", "cut", "zeros", "no tail", "append", "insert", "overwrite", "size", "drop"]
        ),
        st.integers(0, 1 << 16),
        st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([bytes(70), b"\xff\xff"])),
    ),
    max_size=2,
)


def harmed(raw: bytes, harm: str, number: int, data: bytes) -> bytes:
    """Return a file that something happened to."""
    at = number % (len(raw) + 1)
    match harm:
        case "cut":
            return raw[:at]
        case "zeros":
            return raw + bytes(number % 300)
        case "no tail":
            return raw[:at] + bytes(len(raw) - at)
        case "append":
            return raw + data
        case "insert":
            return raw[:at] + data + raw[at:]
        case "overwrite":
            return raw[:at] + data + raw[at + len(data) :]
        case "size":
            # The high bytes of a size, of the first record and of what may be one.
            at = (2, 6, at)[number % 3]
            return raw[:at] + bytes([number % 5, number % 7, 0]) + raw[at + 3 :]
        case _:
            return raw[:at] + raw[at + len(data) :]


@dataclass
class Verdict:
    """What is said of a queue: damage as file, position and reason; or where it is torn, if at all.

    `contents` are its items: data, add time, expiry.
    """

    damaged: tuple[str, int, str] | None = None
    torn: int | None = None
    contents: Sequence[tuple[bytes, int, int]] = ()


def tried(action: Callable[[], T]) -> T | Verdict:
    """Return what `action` returns, or that the queue is damaged."""
    try:
        return action()
    except DamagedJournal as damage:
        return Verdict((Path(damage.file or "").name, damage.position, damage.reason))


def by_server(path: Path) -> Verdict:
    """Load the queue as a server does, and see what became of the files."""
    last = group_files(DiskDirectory(path).names()).queues[NAME].files[-1]
    before = (path / last).stat().st_size
    loaded = tried(lambda: load_queue(DiskDirectory(path), queue_files(path), None, FakeClock(NOW)))
    if isinstance(loaded, Verdict):
        return loaded
    state = loaded.state
    for xid in sorted(state.open, reverse=True):
        state.end_read(RESTART, xid)
    aside = [file for file in path.iterdir() if "~~torn" in file.name]
    torn = before - aside[0].stat().st_size if aside else None
    assert torn is None or list(loaded.journal.sizes.values())[-1] == torn
    found = [(item_data(one), item_add_time(one), item_expiry(one)) for one in state.memory]
    return Verdict(torn=torn, contents=found)


def queue_files(path: Path) -> QueueFiles:
    """Return the files of the queue."""
    return group_files(DiskDirectory(path).names()).queues[NAME]


def check_tools(path: Path, server: Verdict) -> None:
    """Compare verify, dump and export."""
    (selected,) = select([path])
    report = verify(selected)
    if server.damaged is None:
        assert report.is_sound
        assert report.items + report.open_reads == len(server.contents)
        assert (None if report.torn is None else report.torn.start) == server.torn
    else:
        first = report.damaged[0]
        assert (first.file, first.start, first.reason) == server.damaged
    listed = tried(lambda: list(entries(selected)))
    if isinstance(listed, Verdict):
        assert listed == server
    else:
        assert sum(report.operations.values()) == sum(one.is_replayed for one in listed)
        assert server.damaged is None
    exported = tried(lambda: [(row.data, row.add_time, row.expiry) for row in rows(selected)])
    assert exported == (server if server.damaged is not None else server.contents)


def check_spark(path: Path, server: Verdict) -> None:
    """Compare the summaries, the check of each file, and the pack."""
    listed = list_files(str(path))
    plan = tried(lambda: replay_in_parallel([listed], summaries))
    checks = [check(file) for file in listed]
    damaged = [one for one in checks if not one.is_good]
    directory, output = DiskDirectory(path), path / "~~packed"
    (selected,) = select([path])
    files = selected.all_files
    packed = tried(lambda: write_packed(directory, files, directory, output.name, "documented"))
    if server.damaged is not None:
        assert plan == packed == server
        first = damaged[0]
        assert (Path(first.file).name, first.damaged_at, first.reason) == server.damaged
        return
    assert not damaged
    assert not isinstance(plan, Verdict)
    assert not isinstance(packed, Verdict)
    assert checks[-1].torn_at == server.torn
    assert (None if packed.torn is None else packed.torn.position) == server.torn
    assert packed.items + packed.open_reads == len(server.contents)
    reading = replayed({NAME: output.read_bytes()}, NAME, keeps_xid=True)
    assert reading.loaded == server.contents
    live = plan[0].end.live()
    assert len(live.given_back) + len(live.head) + live.end - live.first == len(server.contents)
    operations = sum(verify(selected).operations.values())
    assert sum(one.records for one in checks) == operations


def summaries(tasks: Sequence[SummaryTask]) -> list[SegmentSummary]:
    """Summarise in this process."""
    return list(map(summarise, tasks))


def check_pack(path: Path, server: Verdict) -> None:
    """Compare what is left after packing, offline."""
    packed = tried(
        lambda: pack(DiskDirectory(path), queue_files(path), "documented", FakeClock(NOW))
    )
    if server.damaged is not None:
        assert packed == server
        return
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    assert replayed(files, NAME, keeps_xid=True).loaded == server.contents


def check_repair(path: Path, server: Verdict) -> None:
    """A repaired queue loads; one that needs no repair is as it was."""
    (selected,) = select([path])
    repair(DiskDirectory(path), selected, FakeClock(NOW))
    after = by_server(path)
    assert after.damaged is None
    if server.damaged is None:
        assert after.contents == server.contents


@settings(max_examples=examples(100))
@given(files_of_records, harms, st.integers(0, 2))
def test_all_say_the_same(
    files: list[list[Record]], harms: list[tuple[str, int, bytes]], where: int
) -> None:
    """Whatever happened to which file."""
    names = [f"{NAME}.{number}" for number in range(1, len(files))] + [NAME]
    raw = {name: journal(*one) for name, one in zip(names, files, strict=True)}
    harmed_name = names[-1 - min(where, len(names) - 1)]
    for harm in harms:
        raw[harmed_name] = harmed(raw[harmed_name], *harm)
    with TemporaryDirectory() as name:
        paths = [Path(name) / use for use in ("tools", "spark", "pack", "repair", "server")]
        for path in paths:
            path.mkdir()
            for file, content in raw.items():
                (path / file).write_bytes(content)
        tools, spark, packed, repaired, served = paths
        server = by_server(served)
        check_tools(tools, server)
        check_spark(spark, server)
        check_pack(packed, server)
        check_repair(repaired, server)
        if server.damaged is not None:
            assert {file.name: file.read_bytes() for file in served.iterdir()} == raw
