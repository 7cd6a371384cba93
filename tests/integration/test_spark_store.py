"""Batches staged in a store, with a real server and S3 server, but without Spark.

`Query` does what Spark does: it logs an offset, runs the batch, and runs it again if it failed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow.dataset import dataset

from kestrelmq.client import Client
from kestrelmq.client.cluster import membership_of
from kestrelmq.errors import ConfigError
from kestrelmq.spark.live import staging as staging_module
from kestrelmq.spark.live.batch_plan import BatchPlan, from_offset
from kestrelmq.spark.live.dead_letters import DeadLetter, DeadLetters
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.server_reads import ServerAccess, TaggedReads
from kestrelmq.spark.live.shares import PartitionShare
from kestrelmq.spark.live.staging import Reached, StagingInUse
from kestrelmq.spark.live.stored_batches import StoredBatches
from kestrelmq.spark.live.stream_driver import BatchLimits, StreamDriver
from kestrelmq.spark.storage.locations import Location, located
from tests.support.fake_clock import FakeClock
from tests.support.object_store import BUCKET, ObjectStore, running_store
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server

QUEUE: Final = "work"
LIMITS: Final = BatchLimits(40, 1 << 20)
LEASE: Final = 600.0
STEPS: Final = (
    ("intended", 1),
    ("reserved", 1),
    ("reserved", 3),
    ("stored", 1),
    ("stored", 8),
    ("planned", 1),
    ("planned", 2),
    ("told", 1),
    ("told", 3),
    ("settled", 1),
    ("yielding", 2),
    ("retired", 1),
    ("marked", 1),
    ("deleting", 2),
)


class Crash(BaseException):
    """The process is no more."""


class AbandonedReads(TaggedReads):
    """Reads of a process that may be no more: then nothing gives them back."""

    crashed = False

    def give_back(self, *, but: Collection[str] = ()) -> None:
        """Do nothing after a crash."""
        if not self.crashed:
            super().give_back(but=but)


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server."""
    with running_store() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server."""
    with running_server(tmp_path) as process:
        yield process


@pytest.fixture
def location(store: ObjectStore, request: pytest.FixtureRequest) -> Location:
    """Return a staging location that nothing is in."""
    found = located(f"s3://{BUCKET}/{request.node.name}", store.options)
    assert isinstance(found, Location)
    return found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part have few items."""
    monkeypatch.setattr(staging_module, "PART_BYTES", 100)


@dataclass
class Query:
    """A query: its checkpoint, and its output by batch.

    Attributes:
        location: its staging location.
        server: the server that it reads.
        log: the offsets that were logged.
        output: the rows of each batch: their data, position and time of reading.
    """

    location: Location
    server: ServerProcess
    log: list[Mapping[str, Any]] = field(default_factory=list)
    output: dict[int, list[tuple[bytes, int, int]]] = field(default_factory=dict)

    @contextmanager
    def driver(
        self, reached: Reached | None = None, lease: float = LEASE
    ) -> Iterator[tuple[StreamDriver, StoredBatches]]:
        """Run a driver."""
        probe = ServerProbe(membership_of(self.server.address), QueueChoice.parse(QUEUE))

        def connect(share: PartitionShare, name: str, patience: float) -> AbandonedReads:
            return AbandonedReads(ServerAccess(share.server, patience or None), name, lease)

        batches = StoredBatches(self.location, probe, connect, reached=reached)
        driver = StreamDriver(batches, probe, QueueChoice.parse(QUEUE), wait=0.0)
        try:
            yield driver, batches
        finally:
            driver.close()

    def run(self, reached: Reached | None = None) -> None:
        """Take what is there, in batches."""
        with self.driver(reached) as (driver, batches):
            if self.log and self.log[-1]["epoch"] not in self.output:
                self.run_batch(driver, batches, reached)
            start = self.log[-1] if self.log else driver.initial_offset()
            while (end := driver.latest_offset(start, LIMITS)) != start:
                self.log.append(end)
                if len(self.log) > 1:
                    driver.commit(start)
                self.run_batch(driver, batches, reached)
                start = end

    def run_batch(
        self, driver: StreamDriver, batches: StoredBatches, reached: Reached | None = None
    ) -> None:
        """Run the last batch."""
        plan = driver.plan_of(self.log[-1])
        rows = []
        for parts in batches.to_read(plan):
            at = parts.partition << 22
            for part in parts.read(reached):
                for batch in part.batches:
                    for item in batch.column("data").to_pylist():
                        rows.append((item, at, part.read_time))
                        at += 1
        self.output[plan.epoch] = rows

    def items(self) -> list[bytes]:
        """Return the items of the output in order."""
        return [item for _, rows in sorted(self.output.items()) for item, _, _ in rows]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return items that differ."""
    return [b"item %d" % number for number in range(start, start + count)]


def counts(client: Client) -> tuple[int, int]:
    """Return the queue's items, and its open reads."""
    queue = next(queue for queue in client.queues() if queue.name == QUEUE)
    return queue.items, queue.number("open_transactions")


def crash_at(step: str, nth: int) -> Callable[[str], None]:
    """Return what raises Crash when a step is reached for the `nth` time, and ever after."""
    left = nth

    def reached(point: str) -> None:
        nonlocal left
        left -= point == step
        if left <= 0:
            AbandonedReads.crashed = True
            raise Crash

    AbandonedReads.crashed = False
    return reached


@pytest.mark.parametrize(("step", "nth"), STEPS)
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(
    server: ServerProcess, client: Client, location: Location, step: str, nth: int
) -> None:
    """Each item comes once, in order; nothing stays reserved, and little stays in the store."""
    client.put_many(QUEUE, numbered(100))
    query = Query(location, server)
    with pytest.raises(Crash):
        query.run(crash_at(step, nth))
    AbandonedReads.crashed = False
    client.put_many(QUEUE, numbered(20, 100))
    query.run()
    assert query.items() == numbered(120)
    assert counts(client) == (0, 0)

    client.put_many(QUEUE, numbered(1, 120))
    query.run()
    assert query.items() == numbered(121)
    (identity,) = [one for one in location.entries() if (location / one.name / "driver").exists()]
    last = f"{query.log[-1]['serial']:016d}"
    names = [one.name for one in (location / identity.name).entries()]
    assert names == [
        f"{last}-00000-00000.arrow",
        f"{last}.batch",
        f"{last}.intent",
        f"{last}.settled",
        "driver",
    ]


def test_a_batch_replays_the_same_rows(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """With the same times; that its tags are retired meanwhile makes no difference."""
    client.put_many(QUEUE, numbered(30))
    query = Query(location, server)
    query.run()
    rows = query.output.pop(1)
    query.run()

    assert [item for item, _, _ in rows] == numbered(30)
    assert query.output == {1: rows}


def test_of_two_drivers_at_once_only_the_logged_one_gives_items(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """What the later one took over is void in the earlier one's batch, and comes in the next."""
    client.put_many(QUEUE, numbered(30))
    query = Query(location, server)
    with query.driver() as (first, one), query.driver() as (second, _):
        start = first.initial_offset()
        planned = first.latest_offset(start, LIMITS)
        assert second.latest_offset(start, LIMITS) != start
        query.log.append(planned)
        query.run_batch(first, one)
        assert query.items() == []
        client.put(QUEUE, b"wakes the first")
        with pytest.raises(StagingInUse, match="another driver of the same query was started"):
            first.latest_offset(planned, LIMITS)

    query.run()
    assert sorted(query.items()) == sorted([*numbered(30), b"wakes the first"])
    assert counts(client) == (0, 0)


def test_a_driver_that_is_superseded_as_it_plans_gives_its_items_back(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """The one that was started meanwhile does not know that they are reserved."""
    client.put_many(QUEUE, numbered(30))
    query = Query(location, server)

    def start_another(point: str) -> None:
        if point == "planned":
            (identity,) = location.entries()
            (location / identity.name / "driver").write(b"another")

    with query.driver(start_another) as (driver, _):
        start = driver.initial_offset()
        with pytest.raises(StagingInUse, match=r"another driver .*\(another\)"):
            driver.latest_offset(start, LIMITS)
    assert counts(client) == (30, 0)


def test_an_offset_that_was_not_logged_gives_its_items_back(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """Spark may ask again, because another source of the query failed."""
    client.put_many(QUEUE, numbered(30))
    query = Query(location, server)
    with query.driver() as (driver, batches):
        start = driver.initial_offset()
        assert driver.latest_offset(start, LIMITS) != start
        query.log.append(driver.latest_offset(start, LIMITS))
        query.run_batch(driver, batches)
        assert driver.latest_offset(query.log[-1], LIMITS) == query.log[-1]

    assert query.items() == numbered(30)
    assert counts(client) == (0, 0)


def test_a_server_that_is_away_is_told_later(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """The rows come nevertheless, once, over a commit and another start of the query too."""
    client.put_many(QUEUE, numbered(30))
    query = Query(location, server)
    with query.driver() as (driver, batches):
        query.log.append(driver.latest_offset(driver.initial_offset(), LIMITS))
        server.kill9()
        query.run_batch(driver, batches)
        driver.commit(query.log[-1])
    assert query.items() == numbered(30)
    server.start()
    assert counts(client) == (0, 30)
    client.put_many(QUEUE, numbered(5, 30))
    query.run()

    assert query.items() == numbered(35)
    assert counts(client) == (0, 0)


def test_items_whose_lease_has_ended_are_no_rows(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """They went back to their queue, and come in a later batch."""
    client.put_many(QUEUE, numbered(9))
    query = Query(location, server)
    with query.driver(lease=1.0) as (driver, batches):
        query.log.append(driver.latest_offset(driver.initial_offset(), LIMITS))
        until(lambda: counts(client) == (9, 0))
        query.run_batch(driver, batches)
    assert query.items() == []
    query.run()

    assert sorted(query.items()) == sorted(numbered(9))


def test_an_old_copy_of_a_checkpoint_is_refused(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """It would leave out what later batches have; so is another staging location."""
    client.put_many(QUEUE, numbered(100))
    query = Query(location, server)
    query.run()
    assert len(query.log) == 3
    for there, old, message in (
        (location, query.log[:2], "old copy|does not have batch"),
        (location / "other", query.log, "does not have batch"),
    ):
        copy = Query(there, server, list(old), dict(query.output))
        with pytest.raises(StagingInUse, match=message):
            copy.run()
    in_files = {name: value for name, value in query.log[-1].items() if name != "serial"}
    with pytest.raises(StagingInUse, match="staged in a directory"):
        Query(location, server, [in_files], dict(query.output)).run()


def test_queries_may_share_a_location(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """Each has a directory of its own."""
    client.put_many(QUEUE, numbered(30))
    first, second = Query(location, server), Query(location, server)
    first.run()
    client.put_many(QUEUE, numbered(30, 30))
    second.run()
    client.put_many(QUEUE, numbered(30, 60))
    first.run()

    assert first.items() == numbered(30) + numbered(30, 60)
    assert second.items() == numbered(30, 30)


def test_a_query_that_ends_takes_what_was_there(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """What is added meanwhile is left."""
    client.put_many(QUEUE, numbered(70))
    query = Query(location, server)
    with query.driver() as (driver, batches):
        start: Mapping[str, Any] = driver.initial_offset()
        driver.limit_to_present_items()
        client.put_many(QUEUE, numbered(70, 70))
        while (end := driver.latest_offset(start, LIMITS)) != start:
            query.log.append(end)
            query.run_batch(driver, batches)
            start = end

    assert query.items() == numbered(70)
    assert counts(client) == (70, 0)


def test_a_query_that_ends_takes_what_a_killed_driver_had_reserved(
    server: ServerProcess, client: Client, location: Location
) -> None:
    """It counts what is there once that went back to the queue."""
    client.put_many(QUEUE, numbered(30))
    query = Query(location, server)
    with query.driver() as (driver, _):
        start: Mapping[str, Any] = driver.initial_offset()
        assert driver.latest_offset(start, LIMITS) != start
    assert counts(client) == (0, 30)
    with query.driver() as (driver, batches):
        start = driver.initial_offset()
        driver.limit_to_present_items()
        query.log.append(driver.latest_offset(start, LIMITS))
        query.run_batch(driver, batches)

    assert query.items() == numbered(30)


def test_a_server_without_reserved_reads_is_refused(location: Location) -> None:
    """Its items would come twice after a crash, and no task could settle which part counts."""
    share = PartitionShare("a:1", 1, 1, reserves=False)
    batches = StoredBatches(location, None, None, clock=FakeClock())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a:1 has no reserved reads: give a directory"):
        batches.make(BatchPlan(0, "x"), QUEUE, (share,), 0.0)


def test_offsets_of_files_are_as_they_were() -> None:
    """Only those of a store have a serial number."""
    assert "serial" not in BatchPlan(3, "x", "q").to_offset()
    assert from_offset(BatchPlan(3, "x", "q", serial=5).to_offset(), None).serial == 5


def test_dead_letters_go_to_a_store(location: Location, store: ObjectStore) -> None:
    """Each file is a whole table; without any there is no file."""
    letters = DeadLetters(location, FakeClock())
    letters.flush()
    assert not location.exists()
    for number in range(3):
        letters.add(DeadLetter("q", b"%d" % number, 0, "too large"))
    letters.flush()
    letters.add(DeadLetter(None, None, 7, "no data"))
    letters.flush()

    found = dataset(f"{BUCKET}/{location.path}", filesystem=store.file_system).to_table()
    assert sorted(found.to_pylist(), key=lambda row: row["data"] or b"") == [
        {"queue": None, "data": None, "expiry": 7, "reason": "no data", "time": FakeClock().now()},
        *(
            {
                "queue": "q",
                "data": b"%d" % number,
                "expiry": 0,
                "reason": "too large",
                "time": FakeClock().now(),
            }
            for number in range(3)
        ),
    ]
