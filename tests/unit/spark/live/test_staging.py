"""The staging protocol, step by step, with a queue in memory in place of a server."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from kestrelmq.client.commands import ReservedRead
from kestrelmq.clock import SystemClock
from kestrelmq.errors import ConnectionLost, ServerRefused, ServerUnavailable
from kestrelmq.spark.live.shares import PartitionShare, QueueRun
from kestrelmq.spark.live.staging import (
    BatchIsOver,
    OpenedItems,
    PartId,
    StagedPart,
    Staging,
    StagingInUse,
)
from tests.support.fake_clock import FakeClock

QUEUES = (("q", None),)
SHARE = PartitionShare("a:1", 100, 1 << 20, queues=QUEUES)
STEPS = ("opened", "written", "synced", "linked", "durable", "confirmed", "yielding")
BEFORE_THE_LINK = STEPS[:3]


class Crash(BaseException):
    """The task is no more."""


class Queue:
    """A server's queue: items wait, are open, or are gone."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self.waiting = list(items)
        self.confirmed: list[bytes] = []

    def connect(self, at_once: int = 10) -> "QueueReads":
        """Return reads of it that open no more than `at_once`."""
        return QueueReads(self, at_once)


class QueueReads:
    """Open reads of a `Queue`."""

    def __init__(self, queue: Queue, at_once: int) -> None:
        self._queue = queue
        self._at_once = at_once
        self._open: list[bytes] = []

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:  # noqa: ARG002 # no tags
        """Open reads until one limit is reached."""
        before = len(self._open)
        taken = 0
        while self._queue.waiting and len(self._open) - before < min(items, self._at_once):
            if taken >= size:
                break
            taken += len(self._queue.waiting[0])
            self._open.append(self._queue.waiting.pop(0))
        return OpenedItems(self._open[before:], exhausted=not self._queue.waiting)

    def confirm(self, part: StagedPart) -> bool:  # noqa: ARG002 # no tags
        """The items are gone."""
        self._queue.confirmed += self._open
        self._open = []
        return True

    def settle(self, part: StagedPart) -> bool:  # noqa: ARG002 # no tags
        """Nothing is to be said."""
        return True

    def give_back(self, *, but: Collection[str] = ()) -> None:  # noqa: ARG002 # no tags
        """The items wait again, at the head."""
        self._queue.waiting[:0] = self._open
        self._open = []

    def close(self) -> None:
        """The items wait again."""
        self.give_back()


class TaggingQueue:
    """A server's queue with reserved reads: they outlive the task, under the tag of their part."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self.waiting = list(items)
        self.reserved: dict[PartId, list[ReservedRead]] = {}
        self.confirmed: list[bytes] = []
        self.is_away = False

    def connect(self) -> "TaggedReads":
        """Return reads of it."""
        return TaggedReads(self)


class TaggedReads:
    """Reads of a `TaggingQueue`, 10 items for each part."""

    def __init__(self, queue: TaggingQueue) -> None:
        self._queue = queue
        self._held: list[ReservedRead] = []

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:  # noqa: ARG002 # always 10
        """Reserve items, or what is reserved already."""
        server = self._queue
        if not server.reserved.get(part):
            taken = [server.waiting.pop(0) for _ in range(min(items, 10, len(server.waiting)))]
            server.reserved[part] = [
                ReservedRead("q", f"{part.name} {item!r}", item, 1, 7, 0) for item in taken
            ]
        self._held = server.reserved[part]
        items_held = [read.data for read in self._held]
        return OpenedItems(items_held, not server.waiting, tuple(self._held))

    def confirm(self, part: StagedPart) -> bool:
        """As settle."""
        self._held = []
        return self.settle(part)

    def settle(self, part: StagedPart) -> bool:
        """Those that are reserved still are gone, unless the server is away."""
        if not self._queue.is_away:
            self._end(part.reads, self._queue.confirmed)
        return not self._queue.is_away

    def give_back(self, *, but: Collection[str] = ()) -> None:
        """The others wait again."""
        self._end([one.read for one in self._held if one.read not in but], self._queue.waiting)

    def close(self) -> None:
        """They stay reserved."""

    def _end(self, names: Collection[str], to: list[bytes]) -> None:
        for part, reads in self._queue.reserved.items():
            to += [one.data for one in reads if one.read in names]
            self._queue.reserved[part] = [one for one in reads if one.read not in names]


class BrokenReads(QueueReads):
    """Reads of a server that fails after some items."""

    error: Exception = ConnectionLost("a:1: gone")

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:
        """Open reads, and fail."""
        super().open(part, queue, items, size)
        raise self.error


def items_of(parts: Iterator[StagedPart] | Sequence[StagedPart]) -> list[bytes]:
    """Return the items of parts."""
    return [
        item for part in parts for batch in part.batches for item in batch.column(0).to_pylist()
    ]


def numbered(count: int) -> list[bytes]:
    """Return items that differ."""
    return [b"item %d" % number for number in range(count)]


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Return a staging location that a driver made."""
    Staging(tmp_path / "staging").identity()
    return tmp_path / "staging"


def read(
    location: Path,
    queue: Queue | TaggingQueue,
    share: PartitionShare = SHARE,
    *,
    epoch: int = 1,
    reached: Callable[[str], None] | None = None,
) -> list[bytes]:
    """Run one task, and return the items it yields."""
    staging = Staging(location, reached)
    return items_of(staging.read(epoch, 0, share, queue.connect, SystemClock()))


def test_a_partition_is_read_in_order_and_confirmed(location: Path) -> None:
    """All items come, over several parts, and none waits on the server afterwards."""
    queue = Queue(numbered(35))

    assert read(location, queue) == numbered(35)
    assert queue.confirmed == numbered(35)
    assert Staging(location).parts() == [PartId(1, 0, number) for number in range(4)]


def test_a_batch_replays_the_same_rows_whatever_the_queue_has(location: Path) -> None:
    """A second read of a batch takes nothing from the server, and gives what the first gave."""
    queue = Queue(numbered(35))
    first = read(location, queue)
    queue.waiting = [b"later"]

    assert read(location, queue) == first
    assert queue.waiting == [b"later"]


def test_an_empty_batch_replays_as_empty(location: Path) -> None:
    """That there was nothing is staged as well."""
    queue = Queue([])
    assert read(location, queue) == []
    queue.waiting = [b"later"]

    assert read(location, queue) == []
    assert queue.waiting == [b"later"]


def test_limits_of_items_and_bytes(location: Path) -> None:
    """A partition ends at its limit of items, or with the item that reaches its bytes."""
    queue = Queue(numbered(50))

    assert read(location, queue, PartitionShare("a:1", 12, 1000, queues=QUEUES)) == numbered(12)
    assert len(read(location, queue, PartitionShare("a:1", 100, 70, queues=QUEUES), epoch=2)) == 10
    assert len(queue.waiting) == 50 - 12 - 10


def crash_at(step: str, nth: int) -> Callable[[str], None]:
    """Return what raises Crash when a step is reached for the `nth` time."""
    left = nth

    def reached(point: str) -> None:
        nonlocal left
        left -= point == step
        if point == step and left == 0:
            raise Crash

    return reached


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_crash_at_any_step_loses_nothing(location: Path, step: str, nth: int) -> None:
    """What a task that died had not staged is read again; only what it had not confirmed twice."""
    queue = Queue(numbered(35))
    with suppress(Crash):
        read(location, queue, reached=crash_at(step, nth))
    got = read(location, queue) + read(location, queue, epoch=2)

    assert set(got) == set(numbered(35))
    twice = {item for item in got if got.count(item) > 1}
    may_be_twice = step in {"linked", "durable"}
    assert len(twice) == (10 if may_be_twice else 0)
    assert queue.waiting == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_crash_at_any_step_repeats_nothing_that_is_reserved(
    location: Path, step: str, nth: int
) -> None:
    """What a task that died had reserved is the next one's, and each item comes once, in order."""
    queue = TaggingQueue(numbered(35))
    with suppress(Crash):
        read(location, queue, reached=crash_at(step, nth))

    assert read(location, queue) + read(location, queue, epoch=2) == numbered(35)
    assert queue.confirmed == numbered(35)


def test_a_server_that_is_away_is_told_later(location: Path) -> None:
    """The rows are yielded; what was read is kept until the server was told, over a commit too."""
    queue, staging = TaggingQueue(numbered(15)), Staging(location)
    queue.is_away = True
    assert read(location, queue) == numbered(15)
    assert len(staging.unsettled(0)) == 0
    assert len(staging.unsettled(1)) == 2
    staging.commit(1)
    staging.collect_garbage()

    assert staging.parts() == []
    queue.is_away = False
    for name, part in staging.unsettled(1):
        assert queue.connect().settle(part)
        staging.mark_settled(name)

    assert queue.confirmed == numbered(15)
    assert staging.unsettled(1) == []
    assert sorted(file.name for file in location.iterdir()) == ["committed", "identity"]


def test_a_task_that_finds_a_part_tells_the_server(location: Path) -> None:
    """It does so once: what is settled needs no server."""
    queue = TaggingQueue(numbered(5))
    queue.is_away = True
    read(location, queue)
    queue.is_away = False

    assert read(location, queue) == numbered(5)
    assert queue.confirmed == numbered(5)
    queue.is_away = True
    assert read(location, queue) == numbered(5)
    assert Staging(location).unsettled(1) == []


def test_the_loser_of_a_race_releases_only_what_the_winner_has_not(location: Path) -> None:
    """Both have the reads of the same tag; those of the winner's part are confirmed."""
    queue = TaggingQueue(numbered(20))

    def race(point: str) -> None:
        if point == "synced" and not Staging(location).parts():
            assert read(location, queue) == numbered(20)

    assert read(location, queue, reached=race) == numbered(20)
    assert queue.confirmed == numbered(20)
    assert queue.waiting == []


def test_a_tagged_task_whose_batch_is_over_confirms_nothing(location: Path) -> None:
    """It releases what it has: nobody would read its part."""
    queue = TaggingQueue(numbered(5))

    def sleep(point: str) -> None:
        if point == "written":
            read(location, Queue([b"other"]))
            Staging(location).commit(1)

    with pytest.raises(BatchIsOver):
        read(location, queue, reached=sleep)

    assert queue.waiting == numbered(5)
    assert Staging(location).unsettled(1) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_process_leaves_garbage_that_the_driver_collects(
    location: Path, step: str
) -> None:
    """SIGKILL at any step: parts are whole or not there, and temporaries are deleted at a start."""

    def kill(point: str) -> None:
        if point == step:
            os.kill(os.getpid(), signal.SIGKILL)

    task = multiprocessing.get_context("fork").Process(
        target=lambda: read(location, Queue(numbered(5)), reached=kill)
    )
    task.start()
    task.join()

    assert task.exitcode == -signal.SIGKILL
    left = [file for file in location.iterdir() if file.name.startswith("~~")]
    assert len(left) == (step in {"written", "synced", "linked"})
    Staging(location).collect_garbage()
    assert not [file for file in location.iterdir() if file.name.startswith("~~")]
    expected = numbered(5) if step not in BEFORE_THE_LINK else []
    part = Staging(location).find(PartId(1, 0, 0))
    assert items_of([part] if part is not None else []) == expected


def test_the_loser_of_a_race_gives_back_and_reads_the_winners_part(location: Path) -> None:
    """Two tasks for one partition yield the same rows, and the server keeps the loser's items."""
    queue = Queue(numbered(20))

    def race(point: str) -> None:
        if point == "synced" and not Staging(location).parts():
            assert (
                read(location, queue, PartitionShare("a:1", 10, 1000, queues=QUEUES))
                == numbered(20)[10:]
            )

    slow = read(location, queue, PartitionShare("a:1", 10, 1000, queues=QUEUES), reached=race)

    assert slow == numbered(20)[10:]
    assert queue.waiting == numbered(10)
    assert queue.confirmed == numbered(20)[10:]


def test_a_task_whose_batch_is_over_confirms_nothing(location: Path) -> None:
    """A task that slept while its batch was processed and deleted must not take items away."""
    queue = Queue(numbered(5))
    other = Queue([b"other"])

    def sleep(point: str) -> None:
        if point == "written":
            read(location, other)
            Staging(location).commit(1)

    with pytest.raises(BatchIsOver):
        read(location, queue, reached=sleep)

    assert queue.waiting == numbered(5)
    assert Staging(location).parts() == []
    with pytest.raises(BatchIsOver):
        read(location, queue)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), ServerUnavailable("a:1: refused")])
def test_a_server_that_fails_gives_an_empty_partition(location: Path, error: Exception) -> None:
    """The batch goes on without it; its items wait on it, or go back."""
    queue = Queue(numbered(5))
    reads = BrokenReads(queue, 3)
    reads.error = error

    parts = list(Staging(location).read(1, 0, SHARE, lambda: reads, SystemClock()))

    assert items_of(parts) == []
    assert queue.waiting == numbered(5)


def test_a_server_that_knows_no_such_command_fails_the_task(location: Path) -> None:
    """Otherwise a query would run for ever on nothing."""
    reads = BrokenReads(Queue(numbered(5)), 3)
    reads.error = ServerRefused("what?", "CLIENT_ERROR")

    with pytest.raises(ServerRefused):
        list(Staging(location).read(1, 0, SHARE, lambda: reads, SystemClock()))

    assert Staging(location).parts() == []


def test_commit_deletes_up_to_an_epoch_and_survives_a_crash(location: Path) -> None:
    """A commit that died between two deletions is finished by the next start."""
    for epoch in (1, 2, 3):
        read(location, Queue(numbered(25)), epoch=epoch)

    def crash(point: str) -> None:
        if point == "deleting":
            raise Crash

    with pytest.raises(Crash):
        Staging(location, crash).commit(2)
    assert len(Staging(location).parts()) == 8
    Staging(location).collect_garbage()

    assert {part.epoch for part in Staging(location).parts()} == {3}
    assert Staging(location).committed() == 2


def test_items_of_any_size_keep_their_bytes(location: Path) -> None:
    """Empty items, large ones and all byte values come back as they were."""
    items = [b"", bytes(range(256)), b"x" * (3 << 20), b"\r\n"]

    assert read(location, Queue(items), PartitionShare("a:1", 10, 1 << 30, queues=QUEUES)) == items


def test_parts_of_earlier_versions_are_of_the_only_queue(location: Path) -> None:
    """They do not name it; a task goes on where they end."""
    schema = pa.schema(
        [pa.field("data", pa.binary(), nullable=False)],
        metadata={"server": "a:1", "read_time": "5", "is_last": "0", "unsure": ""},
    )
    with pa.ipc.new_file(str(location / PartId(1, 0, 0).name), schema) as writer:
        writer.write_batch(pa.record_batch([numbered(3)], schema=schema))
    share = PartitionShare("a:1", 5, 1 << 20, queues=QUEUES)
    queue = Queue(numbered(9))
    staging = Staging(location, only="q")
    parts = list(staging.read(1, 0, share, queue.connect, SystemClock()))

    assert [part.queues().to_pylist() for part in parts] == [["q"] * 3, ["q"] * 2]
    assert parts[0].runs == (QueueRun("q", 3, 18, is_done=False),)
    assert items_of(parts) == [*numbered(3), *numbered(2)]


def test_the_identity_is_made_once(location: Path) -> None:
    """Two drivers that start at the same time agree on it."""
    assert Staging(location).identity() == Staging(location).identity()
    assert len(Staging(location).identity()) == 32


def test_a_second_query_is_refused_until_the_first_ends(location: Path) -> None:
    """The lock waits for its patience, names the holder, and is free again after a release."""
    clock = FakeClock()
    first = Staging(location).lock(0.0, clock, clock.advance)

    with pytest.raises(StagingInUse, match=f"process {os.getpid()}"):
        Staging(location).lock(5.0, clock, clock.advance)
    assert clock.monotonic() >= 5.0
    first.release()
    Staging(location).lock(0.0, clock, clock.advance).release()


def test_the_lock_of_a_killed_process_is_free(location: Path) -> None:
    """Nobody has to remove a lock by hand."""
    context = multiprocessing.get_context("fork")
    held = context.Event()

    def hold() -> None:
        lock = Staging(location).lock(0.0, SystemClock(), lambda _: None)
        held.set()
        signal.pause()
        lock.release()

    holder = context.Process(target=hold)
    holder.start()
    assert held.wait(10)
    holder.kill()
    holder.join()

    Staging(location).lock(0.0, SystemClock(), lambda _: None).release()


def test_links_in_a_staging_location_are_not_followed(tmp_path: Path) -> None:
    """Neither its lock nor its identity is written to where a link leads."""
    precious = tmp_path / "precious"
    location = tmp_path / "staging"
    location.mkdir()
    for name in ("lock", "identity"):
        (location / name).symlink_to(precious)
    clock = FakeClock()

    with pytest.raises(OSError, match="symbolic link"):
        Staging(location).lock(0.0, clock, clock.advance)
    with pytest.raises(FileNotFoundError):
        Staging(location).identity()

    assert not precious.exists()
