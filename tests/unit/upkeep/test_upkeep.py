"""A queue's journal on a real disk: how large it gets, and what failures do."""

import errno
import gc
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import NoReturn

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import JournalError
from kestrelmq.format.names import parse_name
from kestrelmq.format.records import ADDX_HEADER, item_data
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.upkeep.states import Clearing, Idle, Placing, State, Waiting
from kestrelmq.upkeep.upkeep import RETRY
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker
from tests.support.journal_bytes import decode
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


@contextmanager
def queues(
    path: Path, clock: FakeClock | None = None, directory: CrashingDirectory | None = None
) -> Iterator[QueueCollection]:
    """Queues on a directory, closed in the end."""
    collection = QueueCollection(
        ServerConfig(queue_path=path, default=CONFIG), clock or FakeClock(), directory
    )
    collection.open()
    try:
        yield collection
    finally:
        collection.close()


CONFIG = QueueConfig(
    max_memory_size=20_000,
    default_journal_size=10_000,
    max_journal_size=100_000,
    min_journal_compact_delay=60,
)


def starts_with(beginning: str, point: str) -> bool:
    """Whether a step is of a kind."""
    return point.startswith(beginning)


def commit(collection: QueueCollection) -> None:
    """Commit, which must succeed."""
    assert not collection.commits.commit()


def opcodes(path: Path) -> list[int]:
    """Return the opcodes of the records of a file."""
    data = path.read_bytes()
    found = []
    position = 0
    while position < len(data):
        decoded = decode(data, position, len(data))
        assert decoded is not None
        found.append(data[position])
        position = decoded[1]
    return found


def churn(collection: QueueCollection, queue: Queue, times: int, size: int = 100) -> None:
    """Add and remove an item again and again."""
    for _ in range(times):
        queue.add(b"x" * size)
        queue.line.remove()
        commit(collection)


def test_an_empty_queue_keeps_a_small_journal(tmp_path: Path) -> None:
    """Rotated files are counted too, and go too."""
    with queues(tmp_path) as collection:
        queue = collection.obtain("jobs")
        for _ in range(50):
            churn(collection, queue, 20)
            assert queue.journal.size < 2 * CONFIG.default_journal_size
        assert sum(on_disk(tmp_path).values()) == queue.journal.size
        assert len(DiskDirectory(tmp_path).names()) <= 3


@pytest.mark.parametrize(
    ("dialect", "expected"), [("documented", [4, 7, 3, 4, 7, 3, 4]), ("kestrel-2", [2, 9, 2, 9])]
)
def test_a_new_file_begins_with_the_open_reads(
    tmp_path: Path, dialect: str, expected: list[int]
) -> None:
    """In the documented dialect as the format describes, in the other as Kestrel 2 reads it."""
    config = CONFIG.model_copy(update={"journal_dialect": dialect})
    collection = QueueCollection(ServerConfig(queue_path=tmp_path, default=config), FakeClock())
    collection.open()
    queue = collection.obtain("jobs")
    queue.add(b"first")
    queue.add(b"second")
    assert open_read(queue) is not None
    assert open_read(queue) is not None
    churn(collection, queue, 100)
    (rotated,) = [name for name in DiskDirectory(tmp_path).names() if name.startswith("jobs.")]
    collection.close()
    assert opcodes(tmp_path / rotated) == expected
    with queues(tmp_path) as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == [
            b"first",
            b"second",
        ]


@pytest.mark.parametrize("size", [50, 120])
def test_ten_thousand_open_reads_cause_no_storm_of_rewrites(tmp_path: Path, size: int) -> None:
    """Files stay under the limit; one rewrite a delay; no more is copied than was written."""
    clock = FakeClock()
    config = CONFIG.model_copy(
        update={"default_journal_size": 100_000, "max_journal_size": 3_000_000}
    )
    collection = QueueCollection(ServerConfig(queue_path=tmp_path, default=config), clock)
    collection.open()
    queue = collection.obtain("jobs")
    reads = deque(open_one(queue, size) for _ in range(10_000))
    commit(collection)
    live = queue.journal.size
    written, rewrites, copies = 0, [0.0], 0
    for turn in range(3000):
        before, files = queue.journal.rewrites, set(on_disk(tmp_path)) - {"jobs"}
        # Empty before and after; the oldest reads end, and so all take turns.
        for _ in range(10):
            assert queue.reads.confirm(reads.popleft())
            reads.append(open_one(queue, size))
            written += size + 21 + 1 + 5
        commit(collection)
        clock.advance(0.1)
        assert queue.journal.size < config.max_journal_size
        if turn % 50 == 0:
            assert sum(on_disk(tmp_path).values()) == queue.journal.size
        rewrites += [clock.monotonic()] * (queue.journal.rewrites - before)
        copies += not files <= set(on_disk(tmp_path))
    assert all(later - one >= 60 for one, later in pairwise(rewrites[1:]))
    assert 0 < copies * live <= 2 * written
    collection.close()
    with queues(tmp_path) as again:
        assert len(again.obtain("jobs")) == 10_000


def open_one(queue: Queue, size: int) -> int:
    """Add an item and open a read of it; return the xid."""
    queue.add(b"x" * size)
    opened = open_read(queue)
    assert opened is not None
    return opened[0]


def on_disk(path: Path) -> dict[str, int]:
    """Return the size of each journal file."""
    return {one.name: one.stat().st_size for one in path.iterdir() if parse_name(one.name)}


def test_a_rewrite_goes_on_beside_the_queue(tmp_path: Path) -> None:
    """What happens while the worker writes is in the new file, after what it wrote."""
    with queues(tmp_path) as collection:
        worker = HeldWorker()
        collection.commits.worker = worker
        queue = collection.obtain("jobs")
        for number in range(5):
            queue.add(b"%d" % number)
        churn(collection, queue, 0)
        while not worker:
            queue.add(b"more")
            queue.line.remove()
            commit(collection)
        queue.add(b"meanwhile")
        commit(collection)
        while worker.step():
            pass
        expected = [item_data(one) for one in queue.backlog.browse(100)]
        commit(collection)
    with queues(tmp_path) as collection:
        assert [item_data(one) for one in collection.obtain("jobs").backlog.browse(100)] == expected


def test_file_timestamps_increase_though_the_clock_steps_back(tmp_path: Path) -> None:
    """A rotated file sorts after those before it, whatever the clock says."""
    clock = FakeClock()
    with queues(tmp_path, clock) as collection:
        queue = collection.obtain("jobs")
        stamps = []
        for _ in range(5):
            rotations = queue.journal.rotations
            while queue.journal.rotations == rotations:
                churn(collection, queue, 1)
            (name,) = [one for one in DiskDirectory(tmp_path).names() if one.startswith("jobs.")]
            parsed = parse_name(name)
            assert parsed is not None
            assert parsed.timestamp is not None
            stamps.append(parsed.timestamp)
            clock.step(-5000)
        assert stamps == sorted(set(stamps))


def test_a_write_that_fails_fails_the_operation_and_heals(tmp_path: Path) -> None:
    """The operation is taken back, the failure shows, and goes with the next success."""
    directory = CrashingDirectory.within(tmp_path)
    with queues(tmp_path, directory=directory) as collection:
        queue = collection.obtain("jobs")
        queue.add(b"kept")
        commit(collection)
        directory.break_steps("append")
        queue.add(b"refused")
        assert queue in collection.commits.commit()
        assert len(queue) == 1
        assert "No space" in str(queue.core.failure)
        directory.mend()
        queue.add(b"accepted")
        commit(collection)
        assert str(queue.core.failure) == "None"
        assert [item_data(one) for one in queue.backlog.browse(9)] == [b"kept", b"accepted"]


def test_a_failure_goes_when_the_disk_works_again_though_nobody_writes(tmp_path: Path) -> None:
    """Health must not wait for the traffic that it keeps away."""
    directory = CrashingDirectory.within(tmp_path)
    with queues(tmp_path, directory=directory) as collection:
        queue = collection.obtain("jobs")
        directory.break_steps("append")
        queue.add(b"refused")
        assert queue in collection.commits.commit()
        collection.tick()
        assert "No space" in str(queue.core.failure)
        directory.mend()
        collection.tick()
        assert str(queue.core.failure) == "None"
        assert [name for name in directory.names() if "~~next" in name] == []


def test_after_a_failed_sync_nothing_is_called_safe_until_it_was_written_anew(
    tmp_path: Path,
) -> None:
    """The journal is rewritten to a new file; only that makes a sync succeed again."""
    clock = FakeClock()
    directory = CrashingDirectory.within(tmp_path)
    with queues(tmp_path, clock, directory) as collection:
        queue = collection.obtain("jobs")
        queue.add(b"precious")
        commit(collection)
        directory.fail = lambda point: point == "sync jobs"
        with pytest.raises(OSError, match="No space"):
            queue.sync()
        directory.break_steps("create")
        with pytest.raises(OSError, match="earlier sync"):
            queue.sync()
        collection.tick()
        with pytest.raises(OSError, match="earlier sync"):
            queue.sync()
        directory.mend()
        clock.advance(5)
        collection.tick()
        queue.sync()
        assert queue.journal.rewrites >= 1
        assert [item_data(one) for one in queue.backlog.browse(9)] == [b"precious"]


def test_what_cannot_be_rotated_is_served_on_and_tried_again(tmp_path: Path) -> None:
    """Too many open files, or a directory that cannot be written, harm no operation."""
    clock = FakeClock()
    directory = CrashingDirectory.within(tmp_path)
    with queues(tmp_path, clock, directory) as collection:
        queue = collection.obtain("jobs")
        for what in ("open", "rename", "create", "remove", "sync"):
            directory.fail = partial(starts_with, what)
            churn(collection, queue, 200)
            directory.mend()
            clock.advance(100)
            collection.tick()
            churn(collection, queue, 20)
            assert queue.journal.size < 2 * CONFIG.default_journal_size, what


def state_of(queue: Queue) -> State:
    """Return what the upkeep of a queue is doing."""
    assert queue._upkeep is not None
    return queue._upkeep.state


def test_a_disk_that_fills_up_while_a_journal_is_rewritten(tmp_path: Path) -> None:
    """No file is left of the attempt, the queue serves on, and each step is taken again later."""
    clock, directory = FakeClock(), CrashingDirectory.within(tmp_path)
    with queues(tmp_path, clock, directory) as collection:
        worker = collection.commits.worker = HeldWorker()
        queue = collection.obtain("jobs")
        queue.add(b"kept")
        commit(collection)
        while not worker:
            churn(collection, queue, 1)
        assert isinstance(state_of(queue), Placing)
        before = set(directory.names())
        directory.break_steps("append to jobs~~pack")
        worker.step()
        failed = state_of(queue)
        assert isinstance(failed, Waiting)
        assert isinstance(failed.then, Idle)
        assert set(directory.names()) == before
        churn(collection, queue, 1)
        directory.break_steps("remove")
        clock.advance(CONFIG.min_journal_compact_delay or 0)
        collection.tick()
        assert isinstance(state_of(queue), Placing)
        worker.step()
        clearing = state_of(queue)
        assert isinstance(clearing, Clearing)
        worker.step()
        failed = state_of(queue)
        assert isinstance(failed, Waiting)
        assert failed.then is clearing
        directory.mend()
        clock.advance(RETRY)
        collection.tick()
        worker.step()
        assert isinstance(state_of(queue), Idle)
        assert queue.journal.size == sum(on_disk(tmp_path / "queues").values())
        expected = [item_data(one) for one in queue.backlog.browse(9)]
    with queues(tmp_path / "queues") as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == expected


def test_a_read_that_was_open_in_a_rewrite_does_not_come_back(tmp_path: Path) -> None:
    """For the new file, its item has that xid for good: it is opened with the same one again."""
    with queues(tmp_path) as collection:
        queue = collection.obtain("jobs")
        for data in (b"a", b"b"):
            queue.add(data)
        opened = open_read(queue)
        commit(collection)
        assert queue._upkeep is not None
        queue._upkeep._rewrite()
        assert opened is not None
        queue.returns.give_back([opened[0]])
        commit(collection)
        again = open_read(queue)
        assert again is not None
        assert queue.reads.confirm(again[0])
        commit(collection)
    with queues(tmp_path) as collection:
        assert [item_data(one) for one in collection.obtain("jobs").backlog.browse(9)] == [b"b"]


def test_files_that_do_not_hold_what_the_queue_has_are_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If an item is missing there, something is wrong with them: nobody may lose what is left."""
    with queues(tmp_path) as collection:
        queue = collection.obtain("jobs")
        for number in range(30):
            queue.add(b"%04d" % number * 250)
            commit(collection)
        assert queue.backlog.read_behind
        oldest = tmp_path / queue.journal.files[0]  # type: ignore[union-attr]
        os.truncate(oldest, oldest.stat().st_size - ADDX_HEADER - 1000)
        before = sorted(on_disk(tmp_path).values())
        assert queue._upkeep is not None
        queue._upkeep._rewrite()
        assert isinstance(state_of(queue), Waiting)
        assert "the files hold 29 items" in caplog.text
        assert sorted(filter(None, on_disk(tmp_path).values())) == before


@pytest.mark.parametrize("steps", [0, 1])
def test_a_deletion_that_fails_while_a_journal_is_rewritten(tmp_path: Path, steps: int) -> None:
    """The rewrite is given up, whichever step it is at; the next one comes in its time."""
    clock, directory = FakeClock(), CrashingDirectory.within(tmp_path)
    with queues(tmp_path, clock, directory) as collection:
        worker = collection.commits.worker = HeldWorker()
        queue = collection.obtain("jobs")
        queue.add(b"kept")
        commit(collection)
        while not worker:
            churn(collection, queue, 1)
        for _ in range(steps):
            worker.step()
        directory.break_steps("create")
        with pytest.raises(JournalError):
            collection.delete("jobs")
        directory.mend()
        rewrites = queue.journal.rewrites
        clock.advance(100)
        collection.tick()
        while queue.journal.rewrites == rewrites:
            churn(collection, queue, 1)
            worker.step()
        while worker.step():
            pass
        expected = [item_data(one) for one in queue.backlog.browse(9)]
        assert len(expected) == 1
    with queues(tmp_path / "queues") as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == expected


def test_many_journals_share_few_descriptors(tmp_path: Path) -> None:
    """A file whose descriptor was taken away goes on where it was."""
    directory = DiskDirectory(tmp_path, max_open=4)
    directory.sync()  # it holds a descriptor itself from now on
    at_first = len(list(Path("/proc/self/fd").iterdir()))
    files = [directory.append_to(f"q{number}") for number in range(20)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for round_ in range(3):
        for file in files:
            file.append(b"%d" % round_)
            file.sync()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert before <= at_first + 4
    for file in files:
        file.close()
    assert {(tmp_path / f"q{number}").read_bytes() for number in range(20)} == {b"012"}


def test_an_append_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that was written is cut off again, and nothing takes its place."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    file.append(b"whole")
    write = os.write
    calls = 0

    def torn(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        return write(descriptor, data[:2]) if calls == 1 else full()

    def full() -> NoReturn:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", torn)
        with pytest.raises(OSError, match="full"):
            file.append(b"refused")
    with pytest.raises(OSError, match="nothing may follow"):
        file.append(b"!")
    file.close()
    assert (tmp_path / "jobs").read_bytes() == b"whole"


def test_a_drained_queue_gives_up_its_journal(tmp_path: Path) -> None:
    """However long a queue was, its journal is begun anew once the last item is taken."""
    with queues(tmp_path) as collection:
        queue = collection.obtain("work")
        for _ in range(3):
            for _ in range(150):
                queue.add(bytes(100))
                commit(collection)
            while queue.line.remove() is not None:
                commit(collection)
            assert queue.journal.size <= CONFIG.default_journal_size


def test_a_long_queue_is_deleted_at_once_and_freed_later(tmp_path: Path) -> None:
    """Its files have no name from then on; the worker lets them go."""
    with queues(tmp_path) as collection:
        worker = HeldWorker()
        collection.commits.worker = worker
        queue = collection.obtain("jobs")
        queue.add(bytes(2 << 20))
        commit(collection)
        while worker.step():
            pass
        gc.collect()  # what other tests left must not be closed meanwhile
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        collection.delete("jobs")
        assert on_disk(tmp_path) == {}
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
        collection.obtain("jobs").add(b"new")
        commit(collection)
        while worker.step():
            pass
        assert [item_data(one) for one in collection.obtain("jobs").backlog.browse(9)] == [b"new"]
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_the_current_file_is_rotated_though_all_is_in_memory(tmp_path: Path) -> None:
    """Spark reads such files in parallel, and a backup need not copy them again."""
    config = CONFIG.model_copy(update={"default_journal_size": 90_000, "max_memory_size": 5000})
    collection = QueueCollection(ServerConfig(queue_path=tmp_path, default=config), FakeClock())
    collection.open()
    queue = collection.obtain("jobs")
    queue.add(b"kept")
    commit(collection)
    churn(collection, queue, 300)
    assert not queue.backlog.read_behind
    sizes = on_disk(tmp_path)
    current = sizes.pop("jobs")
    assert len(sizes) >= 5
    assert all(5000 < size < 6000 for size in sizes.values())
    assert current < 6000
    collection.close()
    with queues(tmp_path) as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == [b"x" * 100]


@pytest.mark.parametrize("waiting", [0, 5, 100])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_steady_load_keeps_few_files(tmp_path: Path, waiting: int, lazy: bool) -> None:  # noqa: FBT001 # drawn
    """As many as come in go out, for long; in memory and in read-behind, drained or not."""
    config = CONFIG.model_copy(
        update={
            "max_memory_size": 5000,
            "disable_aggressive_rewrites": lazy,
            "min_journal_compact_delay": 0,
        }
    )
    collection = QueueCollection(ServerConfig(queue_path=tmp_path, default=config), FakeClock())
    collection.open()
    queue = collection.obtain("jobs")
    for _ in range(waiting):
        queue.add(b"x" * 100)
    commit(collection)
    most = 0
    for _ in range(40):
        churn(collection, queue, 10, size=1000)
        most = max(most, len(on_disk(tmp_path)))
    assert queue.journal.rotations > 30
    assert most <= 1.2 * config.max_journal_size / config.max_memory_size + 3
    assert sum(on_disk(tmp_path).values()) == queue.journal.size < 1.2 * config.max_journal_size
    collection.close()
    with queues(tmp_path) as again:
        assert len(again.obtain("jobs")) == waiting


def test_a_queue_that_leaves_read_behind_is_rotated_and_packed_on(tmp_path: Path) -> None:
    """The checkpoints of read-behind stay good for what is rotated in memory later."""
    with queues(tmp_path) as collection:
        queue = collection.obtain("jobs")
        expected = deque[bytes]()
        for number in range(4000):
            if number % 1000 < 600:
                expected.append(b"%d:" % number + b"x" * 90)
                queue.add(expected[-1])
            elif expected:
                record = queue.line.remove()
                assert record is not None
                assert item_data(record) == expected.popleft()
            commit(collection)
        assert queue.journal.rotations > 10
        assert len(on_disk(tmp_path)) < 20
    with queues(tmp_path) as again:
        queue = again.obtain("jobs")
        found = []
        while (record := queue.line.remove()) is not None:
            found.append(item_data(record))
        assert found == list(expected)


@contextmanager
def keeping_queues(
    path: Path, directory: CrashingDirectory | None = None
) -> Iterator[tuple[QueueCollection, FakeClock]]:
    """Queues whose replaced files stay for 10 s; rewrites never wait."""
    kept = {"keep_replaced_journals": 10.0, "min_journal_compact_delay": 0}
    clock = FakeClock()
    collection = QueueCollection(
        ServerConfig(queue_path=path, default=CONFIG.model_copy(update=kept)), clock, directory
    )
    collection.open()
    try:
        yield collection, clock
    finally:
        collection.close()


def packs(path: Path) -> list[str]:
    """Return the names of the packs on disk, the oldest first."""
    return sorted(one.name for one in path.iterdir() if "pack" in one.name)


def churn_up_to(collection: QueueCollection, queue: Queue, count: int) -> None:
    """Pass items through a queue until its journal has so many packs, all but one old files."""
    while len(packs(collection.config.queue_path)) < count:
        churn(collection, queue, 1)


def test_replaced_files_stay_for_those_who_follow_them(tmp_path: Path) -> None:
    """For as long as the settings say, beside the packs; a start without that removes them."""
    path = tmp_path / "queues"
    with keeping_queues(path) as (collection, clock):
        queue = collection.obtain("jobs")
        churn_up_to(collection, queue, 1)
        (pack,) = packs(path)
        first = on_disk(path).keys() - {pack, "jobs"}
        clock.advance(9.9)
        collection.tick()
        churn(collection, queue, 300)
        # Nobody waits for that: the journal is rotated, and packed when its pack is long enough.
        assert queue.journal.size < 2 * CONFIG.default_journal_size
        assert len(packs(path)) > 2
        assert first < on_disk(path).keys()
        assert not queue.rests_until
        clock.advance(0.1)
        collection.tick()
        assert not first & on_disk(path).keys()
        # This was replaced later.
        assert pack in packs(path)
        queue.add(b"waits")
        commit(collection)
    with queues(path) as again:
        assert not packs(path)
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == [b"waits"]


def test_an_empty_queue_gives_its_files_back_on_demand(tmp_path: Path) -> None:
    """When it was flushed, and soon after the disk became short; it is counted as a rewrite."""
    with queues(tmp_path) as collection:
        collection.reload(ServerConfig(queue_path=tmp_path))
        queue = collection.obtain("jobs")
        for number, short in enumerate((False, True)):
            queue.add(bytes(8000))
            commit(collection)
            if short:
                queue.line.remove()
                commit(collection)
                collection.tick()
                assert queue.journal.size > 8000
                collection.disk_space.total, collection.disk_space.free = 1 << 30, 0
                collection.look_at_disk()
                collection.tick()
            else:
                queue.flush()
                commit(collection)
            assert sum(on_disk(tmp_path).values()) < 100
            assert queue.journal.rewrites == number + 1
            assert queue.journal.size == sum(on_disk(tmp_path).values())


@pytest.mark.parametrize(("written", "left"), [(4, 6), (-5, 10), (9.5, 0.5), (10, 0)])
def test_replaced_files_stay_over_a_start(tmp_path: Path, written: float, left: float) -> None:
    """For the rest of their time, as far as the files tell it; what a crash left does not."""
    with keeping_queues(tmp_path) as (collection, clock):
        queue = collection.obtain("jobs")
        queue.add(b"waits")
        churn_up_to(collection, queue, 2)
        kept = on_disk(tmp_path)
    newest = packs(tmp_path)[-1]
    for name, at in ((newest, 1000.0), ("jobs", 1000.0 + written)):
        os.utime(tmp_path / name, (at, at))
    (tmp_path / "jobs~~next-5").touch()
    with keeping_queues(tmp_path) as (collection, clock):
        queue = collection.obtain("jobs")
        collection.tick()
        if left:
            assert on_disk(tmp_path) == kept
            clock.advance(left - 0.1)
            collection.tick()
            assert on_disk(tmp_path) == kept
            clock.advance(0.2)
            collection.tick()
        journal = queue.journal
        assert isinstance(journal, FileJournal)
        assert not packs(tmp_path)
        assert sorted(on_disk(tmp_path)) == sorted(journal.files)
        assert journal.size == sum(on_disk(tmp_path).values())
        churn_up_to(collection, queue, 1)
        found = [item_data(one) for one in queue.backlog.browse(9)]
    with queues(tmp_path) as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == found
        assert len(found) == 1


def test_the_newest_pack_drops_its_name_when_all_is_gone_that_it_replaces(tmp_path: Path) -> None:
    """Not before: those files would come back at a start."""
    with keeping_queues(tmp_path) as (collection, clock):
        queue = collection.obtain("jobs")
        queue.add(b"waits")
        for number in range(3):
            churn_up_to(collection, queue, number + 1)
            clock.advance(3)
            collection.tick()
        assert len(packs(tmp_path)) == 3
        clock.advance(9.9 - 6)
        collection.tick()
        journal = queue.journal
        assert isinstance(journal, FileJournal)
        assert journal.files[0] == packs(tmp_path)[-1]
        clock.advance(9.9)
        collection.tick()
        assert not packs(tmp_path)
        assert queue.rests_until == inf
        assert sorted(on_disk(tmp_path)) == sorted(journal.files)
        assert journal.size == sum(on_disk(tmp_path).values())


def test_a_kept_journal_is_rewritten_at_once_to_trim_memory(tmp_path: Path) -> None:
    """Though its current file is empty, and all before that is a pack already."""
    with keeping_queues(tmp_path) as (collection, clock):
        queue = collection.obtain("jobs")
        for number in range(50):
            queue.add(b"%04d" % number * 25)
        churn_up_to(collection, queue, 1)
        assert on_disk(tmp_path)["jobs"] == 0
        expected = [item_data(one) for one in queue.backlog.browse(99)]
        assert len(expected) == 50
        queue.configure(collection.config.default.model_copy(update={"max_memory_size": 2000}))
        collection.tick()
        assert queue.backlog.read_behind
        assert queue.backlog.memory_bytes <= 2000
        clock.advance(10)
        collection.tick()
        assert not packs(tmp_path)
    with queues(tmp_path) as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(99)] == expected


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("reads", [0, 1, 2])
def test_a_rewrite_that_is_under_way_trims_memory(tmp_path: Path, reads: int, steps: int) -> None:
    """It wrote what was in memory; the next item is found in the file that it wrote."""
    settings: dict[str, object] = {
        "default_journal_size": 1000,
        "max_journal_size": 1000,
        "max_memory_size": 1000,
        "min_journal_compact_delay": 0,
        "disable_aggressive_rewrites": True,
    }
    worker = HeldWorker()
    spool = LocalQueues(queue_settings(tmp_path, **settings), worker=worker)
    spool.churn(7)
    spool.add(*(b"%d" % number * 100 for number in range(5)))
    assert isinstance(state_of(spool.queue()), Placing)
    assert spool.reload(queue_settings(tmp_path, **settings | {"max_memory_size": 100})) == []
    for _ in range(reads):
        spool.take()
    for _ in range(steps):
        worker.step()
    assert spool.queue().backlog.memory_bytes == 100
    assert [data[:1] for data in spool.drain()] == [b"%d" % number for number in range(reads, 5)]
    spool.close()


def test_files_are_kept_no_longer_than_new_settings_say(tmp_path: Path) -> None:
    """At the next tick."""
    with keeping_queues(tmp_path) as (collection, clock):
        queue = collection.obtain("jobs")
        churn_up_to(collection, queue, 2)
        clock.advance(1)
        collection.tick()
        assert len(packs(tmp_path)) == 2
        queue.configure(CONFIG)
        collection.tick()
        assert not packs(tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_a_deletion_removes_what_is_kept(tmp_path: Path, fails: bool) -> None:  # noqa: FBT001
    """If it fails, that stays for its time."""
    directory = CrashingDirectory.within(tmp_path)
    with keeping_queues(directory.path, directory) as (collection, clock):
        queue = collection.obtain("jobs")
        churn_up_to(collection, queue, 3)
        if not fails:
            collection.delete("jobs")
            assert [name for name in directory.names() if "jobs" in name] == []
            return
        directory.break_steps("create")
        with pytest.raises(JournalError):
            collection.delete("jobs")
        directory.mend()
        assert len(packs(directory.path)) == 3
        clock.advance(10)
        collection.tick()
        assert not packs(directory.path)


@pytest.mark.parametrize("packed", [0, 2])
def test_a_failed_sync_is_cured_at_once(tmp_path: Path, packed: int) -> None:
    """Files whose sync failed are removed, and adds are taken again, however long others stay."""
    with keeping_queues(tmp_path) as (collection, _clock):
        queue = collection.obtain("jobs")
        queue.add(b"kept")
        commit(collection)
        churn_up_to(collection, queue, packed)
        journal = queue.journal
        assert isinstance(journal, FileJournal)
        journal.suspect = True
        collection.tick()
        assert not journal.suspect
        assert not packs(tmp_path)
        assert sorted(on_disk(tmp_path)) == sorted(journal.files)
        (left,) = queue.backlog.browse(9)
    with queues(tmp_path) as again:
        assert [item_data(one) for one in again.obtain("jobs").backlog.browse(9)] == [
            item_data(left)
        ]


def test_a_rewrite_ends_the_checkpoints_of_its_files(tmp_path: Path) -> None:
    """A pack up to one of them would look for a file that is gone, or that holds other items."""
    expected = deque[bytes]()

    def add(number: int) -> None:
        expected.append(b"%03d" % number * 333)
        queue.add(expected[-1])
        commit(collection)

    with queues(tmp_path) as collection:
        queue = collection.obtain("jobs")
        for number in range(60):
            add(number)
        assert queue.changes.places is not None
        assert len(queue.changes.places.checkpoints) > 1
        assert queue._upkeep is not None
        queue._upkeep._rewrite()
        for number in range(60, 200):
            record = queue.line.remove()
            assert record is not None
            assert item_data(record) == expected.popleft()
            add(number)
        assert queue.journal.rewrites > 1
    with queues(tmp_path) as again:
        queue = again.obtain("jobs")
        found = []
        while (record := queue.line.remove()) is not None:
            found.append(item_data(record))
        assert found == list(expected)
