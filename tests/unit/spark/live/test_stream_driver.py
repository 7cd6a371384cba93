"""The driver of a stream: which batches it opens, and what its staging location keeps."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kestrelmq.errors import ConfigError, ServerRefused, ServerUnavailable
from kestrelmq.spark.live.batch_plan import WaitingQueue, from_offset
from kestrelmq.spark.live.file_batches import SETTLE_PAUSE, FileBatches
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.live.refusals import QueueCannotBeRead, ask_when_loaded
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.staging import OpenedItems, PartId, StagedPart, Staging, StagingInUse
from kestrelmq.spark.live.stream_driver import BACKLOG_PAUSE, BatchLimits, StreamDriver
from tests.support.fake_clock import FakeClock

LIMITS = BatchLimits(100, 1000)


class Cluster(ServerProbe):
    """Servers with items, by number."""

    def __init__(self, items: Mapping[str, int]) -> None:
        self.items = dict(items)
        self.refusing: str | None = None
        self.away: set[str] = set()
        self.paused: str | None = None
        self.settled: list[PartId] = []
        self.retired: list[tuple[list[str], int]] = []

    def check_readable(self, patience: float) -> None:
        """Refuse while one does not give its queue."""
        if self.refusing is not None:
            raise QueueCannotBeRead(f"{self.refusing} after {patience}")

    def with_items(self, wait: float) -> list[WaitingQueue]:  # noqa: ARG002 # never waits
        """Those that have any."""
        return [WaitingQueue(server, "q") for server, items in self.items.items() if items]

    def counts(self) -> dict[str, dict[str, int]]:
        """All of them, unless one is paused."""
        if self.paused is not None:
            raise QueueCannotBeRead(f"{self.paused} is paused")
        return {server: {"q": items} for server, items in self.items.items()}

    def unavailable(self) -> ServerUnavailable:
        """Say that there is none."""
        return ServerUnavailable("none is known")

    def backlog(self) -> dict[str, dict[str, Any]]:
        """The items."""
        return {server: {"items": items} for server, items in self.items.items()}

    def reserving(self, servers: Iterable[str]) -> dict[str, bool]:
        """All that answer have reserved reads."""
        return {server: True for server in servers if server not in self.away}

    def settle(self, part: StagedPart) -> bool:
        """Take note of it."""
        if part.server in self.away:
            return False
        self.settled.append(part.id)
        return True

    def retire(self, queues: Mapping[str, Collection[str]], name: str, epoch: int) -> None:
        """Take note of it."""
        assert len(name) == 32
        assert all(names == ["q"] for names in queues.values())
        self.retired.append((list(queues), epoch))

    def close(self) -> None:
        """Nothing is open."""


class Reads:
    """Open reads of one server of a `Cluster`."""

    def __init__(self, cluster: Cluster, server: str) -> None:
        self._cluster = cluster
        self._server = server

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:  # noqa: ARG002 # no limit
        """Take as many as there are."""
        taken = min(items, self._cluster.items[self._server])
        self._cluster.items[self._server] -= taken
        return OpenedItems([b"x"] * taken, exhausted=True)

    def confirm(self, part: StagedPart) -> bool:
        """They are gone already, but the server may be away."""
        return self.settle(part)

    def settle(self, part: StagedPart) -> bool:
        """Tell the server, if it is there."""
        return part.server not in self._cluster.away

    def give_back(self, *, but: Collection[str] = ()) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def driver_of(
    location: Path, cluster: Cluster, partitions: int = 1, queue: str = "q"
) -> StreamDriver:
    """Return a driver whose lock waits on a fake clock."""
    clock = FakeClock()
    return StreamDriver(
        FileBatches(Staging(location), cluster, clock, clock.advance),
        cluster,
        QueueChoice.parse(queue),
        partitions=partitions,
        patience=7.0,
        clock=clock,
        pause=clock.advance,
    )


def read_batch(location: Path, cluster: Cluster, offset: Mapping[str, object]) -> int:
    """Read a batch as the tasks would; return its items."""
    plan = from_offset(offset, None)
    total = 0
    for place, share in enumerate(plan.shares):
        connect = partial(Reads, cluster, share.server)
        parts = Staging(location).read(plan.epoch, place, share, connect, FakeClock())
        total += sum(part.items for part in parts)
    return total


def test_an_idle_stream_stays_where_it_is(tmp_path: Path) -> None:
    """No items, no batch."""
    driver = driver_of(tmp_path, Cluster({"a:1": 0}))
    start = driver.initial_offset()

    assert driver.latest_offset(start, LIMITS) == start
    driver.close()


def test_batches_follow_each_other_and_parts_go_with_their_commit(tmp_path: Path) -> None:
    """A part is kept until the commit of its batch."""
    cluster = Cluster({"a:1": 150, "b:1": 10})
    driver = driver_of(tmp_path, cluster)
    first = driver.latest_offset(driver.initial_offset(), LIMITS)
    assert read_batch(tmp_path, cluster, first) == 60
    second = driver.latest_offset(first, LIMITS)
    driver.commit(first)

    assert {part.epoch for part in Staging(tmp_path).parts()} == set()
    assert read_batch(tmp_path, cluster, second) == 100
    assert cluster.items == {"a:1": 0, "b:1": 0}
    driver.close()


def test_available_now_takes_what_was_there_and_ends(tmp_path: Path) -> None:
    """What is added meanwhile is left for the next query; a batch begun earlier does not count."""
    cluster = Cluster({"a:1": 130, "b:1": 20})
    driver = driver_of(tmp_path, cluster)
    begun = driver.latest_offset(driver.initial_offset(), BatchLimits(30, 1000))
    read_batch(tmp_path, cluster, begun)
    driver.limit_to_present_items()
    cluster.items["a:1"] += 1000
    total, offset = 0, begun
    while (following := driver.latest_offset(offset, LIMITS)) != offset:
        total += read_batch(tmp_path, cluster, following)
        offset = following

    assert total == 120
    assert cluster.items == {"a:1": 1000, "b:1": 0}
    driver.close()


def test_available_now_takes_all_after_a_batch_that_had_failed(tmp_path: Path) -> None:
    """What that batch had reserved was not counted as waiting, and is read again first."""
    cluster = Cluster({"a:1": 130})
    driver = driver_of(tmp_path, cluster)
    offset = driver.latest_offset(driver.initial_offset(), BatchLimits(30, 1000))
    cluster.items["a:1"] -= 30
    driver.limit_to_present_items()
    cluster.items["a:1"] += 30
    total = read_batch(tmp_path, cluster, offset)
    while (following := driver.latest_offset(offset, LIMITS)) != offset:
        total += read_batch(tmp_path, cluster, following)
        offset = following

    assert total == 130
    driver.close()


def test_available_now_needs_a_server(tmp_path: Path) -> None:
    """Nothing that can be asked is not the same as nothing there."""
    driver = driver_of(tmp_path, Cluster({}))

    with pytest.raises(ServerUnavailable, match="none is known"):
        driver.limit_to_present_items()
    driver.close()


def test_a_queue_that_is_not_given_is_not_empty(tmp_path: Path) -> None:
    """A query that ends fails then, at its start and at its end; one that goes on waits."""
    cluster = Cluster({"a:1": 5})
    cluster.refusing = "damaged"
    driver = driver_of(tmp_path, cluster)
    start = driver.initial_offset()
    assert driver.latest_offset(start, LIMITS) != start
    with pytest.raises(QueueCannotBeRead, match=r"damaged after 7\.0"):
        driver.limit_to_present_items()
    assert not driver.is_limited

    cluster.refusing = None
    driver.limit_to_present_items()
    cluster.items["a:1"] = 0
    assert driver.latest_offset(start, LIMITS) == start
    cluster.refusing = "loading"
    with pytest.raises(QueueCannotBeRead, match="loading"):
        driver.latest_offset(start, LIMITS)
    driver.close()


def test_a_checkpoint_belongs_to_its_queue(tmp_path: Path) -> None:
    """Another queue's name is refused before a batch is replayed, planned or committed."""
    cluster = Cluster({"a:1": 5})
    first = driver_of(tmp_path, cluster)
    start = first.initial_offset()
    offset = first.latest_offset(start, LIMITS)
    first.close()
    other = driver_of(tmp_path, cluster, queue="other")

    for refused in (
        lambda: other.plan_of(offset),
        lambda: other.latest_offset(offset, LIMITS),
        lambda: other.latest_offset(start, LIMITS),
        lambda: other.commit(offset),
    ):
        with pytest.raises(ConfigError, match="'other' is not allowed: the checkpoint is of queue"):
            refused()
    other.close()
    again = driver_of(tmp_path, cluster)
    assert again.plan_of(offset) == from_offset(offset, None)
    again.close()


def test_only_a_queue_that_is_loading_is_waited_for() -> None:
    """Until it is there, or patience ends; anything else fails at once and names both."""
    clock = FakeClock()
    answers: list[str | ServerRefused] = [ServerRefused("queue q is still loading")] * 3

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, ServerRefused):
            raise answer
        return answer

    def outcome(patience: float) -> str:
        return ask_when_loaded("q", "a:1", ask, patience, clock=clock, pause=clock.advance)

    answers.append("item")
    assert outcome(10.0) == "item"
    answers += [ServerRefused("queue q is still loading")] * 1000
    with pytest.raises(QueueCannotBeRead, match=r"queue 'q' on a:1 cannot be read: .*loading"):
        outcome(10.0)
    answers[:] = [ServerRefused("q is damaged")]
    with pytest.raises(QueueCannotBeRead, match="damaged"):
        outcome(10.0)
    answers[:] = [ServerRefused("unknown", "ERROR")]
    with pytest.raises(ServerRefused, match="unknown"):
        outcome(10.0)


def test_read_all_takes_what_the_servers_have(tmp_path: Path) -> None:
    """Without a limit of items, the counts are the limit: a batch must end."""
    driver = driver_of(tmp_path, Cluster({"a:1": 12, "b:1": 0}))
    offset = driver.latest_offset(driver.initial_offset(), BatchLimits(None, 1 << 40))

    assert [(share.server, share.items) for share in from_offset(offset, None).shares] == [
        ("a:1", 12)
    ]
    driver.close()


def test_a_second_query_is_refused(tmp_path: Path) -> None:
    """While one runs, and afterwards one with another checkpoint: its items would be lost."""
    cluster = Cluster({"a:1": 5})
    first = driver_of(tmp_path, cluster)
    offset = first.latest_offset(first.initial_offset(), LIMITS)
    second = driver_of(tmp_path, cluster)
    with pytest.raises(StagingInUse, match="in use by another query"):
        second.initial_offset()
    read_batch(tmp_path, cluster, offset)
    first.close()

    fresh = second.initial_offset()
    with pytest.raises(StagingInUse, match="another checkpoint"):
        second.latest_offset(fresh, LIMITS)
    with pytest.raises(StagingInUse, match="another query than the checkpoint"):
        second.latest_offset({**offset, "staging": "other"}, LIMITS)
    assert second.latest_offset(offset, LIMITS) == offset
    second.close()


def test_a_server_that_went_away_meanwhile_is_not_in_the_batch(tmp_path: Path) -> None:
    """Whether it has reserved reads is not known; the others' offset says that they do."""
    cluster = Cluster({"a:1": 5, "b:1": 5})
    cluster.away.add("b:1")
    driver = driver_of(tmp_path / "staging", cluster)
    plan = from_offset(driver.latest_offset(driver.initial_offset(), LIMITS), None)
    driver.close()

    assert [(share.server, share.reserves) for share in plan.shares] == [("a:1", True)]


def test_a_server_is_told_of_its_parts_when_it_is_back(tmp_path: Path) -> None:
    """The driver tries again after a pause, and tells it once."""
    location, cluster, clock = tmp_path / "staging", Cluster({"a:1": 5}), FakeClock()
    driver = StreamDriver(
        FileBatches(Staging(location), cluster, clock),
        cluster,
        QueueChoice.parse("q"),
        clock=clock,
        pause=clock.advance,
    )
    end = driver.latest_offset(driver.initial_offset(), LIMITS)
    cluster.away.add("a:1")
    read_batch(location, cluster, end)

    assert driver.latest_offset(end, LIMITS) == end
    cluster.away.clear()
    assert driver.latest_offset(end, LIMITS) == end
    assert (cluster.settled, cluster.retired) == ([], [])
    clock.advance(SETTLE_PAUSE)
    for _ in range(2):
        assert driver.latest_offset(end, LIMITS) == end
        assert cluster.retired == [(["a:1"], 1)]
    driver.close()
    assert cluster.settled == [PartId(1, 0, 0)]


def test_a_queue_that_is_paused_midway_does_not_end_a_limited_query(tmp_path: Path) -> None:
    """It looks empty, but not all that was there has come; items that others took are no error."""
    cluster = Cluster({"a:1": 9})
    driver = driver_of(tmp_path / "staging", cluster)
    start = driver.initial_offset()
    driver.limit_to_present_items()
    cluster.items["a:1"] = 0

    assert driver.latest_offset(start, LIMITS) == start
    cluster.paused = "a:1"
    with pytest.raises(QueueCannotBeRead, match="a:1 is paused"):
        driver.latest_offset(start, LIMITS)
    driver.close()


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_rate_limits_batches(tmp_path: Path, limit: int | None) -> None:
    """A batch has what the time since the last one allows; no credit is saved up while idle."""
    location, cluster, clock = tmp_path / "staging", Cluster({"a:1": 10_000}), FakeClock()
    driver = StreamDriver(
        FileBatches(Staging(location), cluster),
        cluster,
        QueueChoice.parse("q"),
        rate=5,
        clock=clock,
        pause=clock.advance,
    )
    limits = BatchLimits(limit, 1000)

    def planned(offset: dict[str, Any]) -> int:
        return sum(share.items for share in from_offset(offset, None).shares)

    first = driver.latest_offset(driver.initial_offset(), limits)
    clock.advance(10.1)
    second = driver.latest_offset(first, limits)
    clock.advance(0.3)
    third = driver.latest_offset(second, limits)
    begun = clock.monotonic()
    fourth = driver.latest_offset(third, limits)
    driver.close()

    assert [planned(one) for one in (first, second, third, fourth)] == [5, 50, 2, 1]
    assert clock.monotonic() - begun == pytest.approx(0.2)


def test_the_backlog_is_asked_for_now_and_then(tmp_path: Path) -> None:
    """It is what waits on each server; if none can be asked, nothing is known."""
    cluster, clock = Cluster({"a:1": 7}), FakeClock()
    driver = StreamDriver(
        FileBatches(Staging(tmp_path), cluster),
        cluster,
        QueueChoice.parse("q"),
        clock=clock,
        pause=clock.advance,
    )

    assert driver.backlog() == {"a:1": {"items": 7}}
    cluster.items["a:1"] = 9
    assert driver.backlog() == {"a:1": {"items": 7}}
    clock.advance(BACKLOG_PAUSE)
    assert driver.backlog() == {"a:1": {"items": 9}}
    cluster.items.clear()
    clock.advance(BACKLOG_PAUSE)
    assert driver.backlog() is None
