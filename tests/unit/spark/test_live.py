"""The parts of live streams that need no Spark: plans, the driver, the sink's sender, options."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from kestrelmq.client.options import Expiry
from kestrelmq.errors import (
    ConfigError,
    ConnectionLost,
    InvalidQueueName,
    InvalidRequest,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.spark.batch_plan import BatchPlan, batch_of, first_position, from_offset, share_out
from kestrelmq.spark.kestrel_options import (
    ClusterOptions,
    KestrelReadOptions,
    KestrelWriteOptions,
    kestrel_read_options,
    kestrel_write_options,
)
from kestrelmq.spark.kestrel_writer import ItemSender, QueueStaysFull, grouped
from kestrelmq.spark.refusals import QueueCannotBeRead, ask_when_loaded
from kestrelmq.spark.staging import OpenedItems, PartitionShare, Staging, StagingInUse
from kestrelmq.spark.stream_driver import BatchLimits, StreamDriver
from kestrelmq.testing.clock import FakeClock

READ = {"servers": "a:1", "queue": "q", "staging_location": "/s"}
LIMITS = BatchLimits(100, 1000)


# --- Plans ----------------------------------------------------------------------------------------


def test_an_offset_says_all_that_reading_needs() -> None:
    """What Spark logs comes back as the same batch."""
    plan = BatchPlan(7, "abc", "q", (PartitionShare("a:1", 5, 6), PartitionShare("[::1]:2", 7, 8)))

    assert from_offset(plan.to_offset()) == plan


@pytest.mark.parametrize(
    ("servers", "items", "partitions", "expected"),
    [
        ({"a": None}, 10, 1, [("a", 10)]),
        ({"a": None, "b": None}, 5, 1, [("a", 3), ("b", 2)]),
        ({"a": None, "b": None}, 9, 3, [("a", 3), ("b", 2), ("a", 2), ("b", 2)]),
        ({"a": None, "b": None, "c": None}, 2, 1, [("a", 1), ("b", 1)]),
        ({"a": 3, "b": 100}, 20, 1, [("a", 3), ("b", 10)]),
        ({"a": 3}, None, 2, [("a", 2), ("a", 1)]),
        ({}, 10, 4, []),
    ],
)
def test_shares_of_a_batch(
    servers: dict[str, int | None],
    items: int | None,
    partitions: int,
    expected: list[tuple[str, int]],
) -> None:
    """Items are divided evenly, never above a limit, and a partition has one at least."""
    shares = share_out(servers, items, 1000, partitions)

    assert [(share.server, share.items) for share in shares] == expected
    assert sum(share.bytes for share in shares) <= 1000


def test_positions_order_the_rows_of_a_query() -> None:
    """By batch, then by partition, and they tell both."""
    positions = [first_position(epoch, part) for epoch in (1, 2, 2**31 - 1) for part in (0, 1023)]

    assert sorted(positions) == positions
    assert positions[-1] < 2**63
    assert [batch_of(position + 5) for position in positions[:2]] == [(1, 0), (1, 1023)]


# --- The driver -----------------------------------------------------------------------------------


class Cluster:
    """Servers with items, by number."""

    def __init__(self, items: Mapping[str, int]) -> None:
        self.items = dict(items)
        self.refusing: str | None = None

    def check_readable(self, patience: float) -> None:
        """Refuse while one does not give its queue."""
        if self.refusing is not None:
            raise QueueCannotBeRead(f"{self.refusing} after {patience}")

    def with_items(self, wait: float) -> list[str]:  # noqa: ARG002 # never waits
        """Those that have any."""
        return [server for server, items in self.items.items() if items]

    def counts(self) -> dict[str, int]:
        """All of them."""
        return dict(self.items)

    def close(self) -> None:
        """Nothing is open."""


class Reads:
    """Open reads of one server of a `Cluster`."""

    def __init__(self, cluster: Cluster, server: str) -> None:
        self._cluster = cluster
        self._server = server

    def open(self, items: int, size: int) -> OpenedItems:  # noqa: ARG002 # no limit
        """Take as many as there are."""
        taken = min(items, self._cluster.items[self._server])
        self._cluster.items[self._server] -= taken
        return OpenedItems([b"x"] * taken, exhausted=True)

    def confirm(self) -> None:
        """They are gone already."""

    def give_back(self) -> None:
        """Nothing is open."""


def driver_of(
    location: Path, cluster: Cluster, partitions: int = 1, queue: str = "q"
) -> StreamDriver:
    """Return a driver whose lock waits on a fake clock."""
    clock = FakeClock()
    return StreamDriver(
        Staging(location),
        cluster,
        queue,
        partitions=partitions,
        patience=7.0,
        clock=clock,
        pause=clock.advance,
    )


def read_batch(location: Path, cluster: Cluster, offset: Mapping[str, object]) -> int:
    """Read a batch as the tasks would; return its items."""
    plan = from_offset(offset)
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


def test_available_now_needs_a_server(tmp_path: Path) -> None:
    """Nothing that can be asked is not the same as nothing there."""
    driver = driver_of(tmp_path, Cluster({}))

    with pytest.raises(ServerUnavailable):
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
    assert again.plan_of(offset) == from_offset(offset)
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

    assert [(share.server, share.items) for share in from_offset(offset).shares] == [("a:1", 12)]
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


# --- The sink -------------------------------------------------------------------------------------


class Store:
    """A client of a server whose queue is full now and then."""

    def __init__(self, room: Sequence[int | Exception]) -> None:
        self.items: list[bytes] = []
        self._room = list(room)

    def put_many(
        self,
        queue: str,  # noqa: ARG002 # there is one
        items: Sequence[bytes],
        expiry: Expiry = None,  # noqa: ARG002 # nothing expires
        *,
        retry_unknown: bool | None = None,  # noqa: ARG002 # nothing is unknown
    ) -> list[bool]:
        """Store as many as there is room for."""
        room = self._room.pop(0) if self._room else 0
        if isinstance(room, Exception):
            raise room
        self.items += items[:room]
        return [place < room for place in range(len(items))]


def test_a_full_queue_holds_the_sender_back() -> None:
    """It waits for room and loses nothing, in order; servers that are away are waited for too."""
    clock = FakeClock()
    store = Store([2, 0, 0, ServerUnavailable("away"), 1, 7])
    items = [b"%d" % number for number in range(6)]

    ItemSender(store, 10.0, clock, clock.advance).send("q", items)

    assert store.items == items
    assert 0.0 < clock.monotonic() < 10.0


def test_what_was_stored_before_an_error_is_not_sent_again() -> None:
    """A reply that was lost says which items had theirs."""
    clock = FakeClock()
    lost = ConnectionLost("gone")
    lost.stored = (True, None, False)
    store = Store([lost, 5])

    ItemSender(store, 10.0, clock, clock.advance).send("q", [b"0", b"1", b"2"])

    assert store.items == [b"1", b"2"]


def test_the_sender_gives_up_after_its_patience() -> None:
    """Progress renews it; the error says what is the matter."""
    clock = FakeClock()
    store = Store([0] * 5 + [1])

    with pytest.raises(QueueStaysFull, match=r"1 items of queue 'q' .* 3 seconds: .*full"):
        ItemSender(store, 3.0, clock, clock.advance).send("q", [b"0", b"1"])

    assert store.items == [b"0"]
    assert clock.monotonic() > 3.0


def test_what_no_server_would_take_fails_at_once() -> None:
    """Waiting would not help."""
    clock = FakeClock()

    with pytest.raises(InvalidRequest):
        ItemSender(Store([InvalidRequest("bad")]), 3.0, clock, clock.advance).send("q", [b"0"])

    assert clock.monotonic() == 0.0


def test_rows_are_grouped_by_queue_and_expiry_in_order() -> None:
    """Text is UTF-8; an expiry of 0 or null is never."""
    batch = pa.RecordBatch.from_pydict(
        {
            "queue": ["a", "b", "a", "a"],
            "data": ["1", "2", "3", "4"],
            "expiry": [0, 1000, None, 2000],
        }
    )

    assert list(grouped(batch, None)) == [
        ("a", None, [b"1", b"3"]),
        ("a", datetime.fromtimestamp(2, UTC), [b"4"]),
        ("b", datetime.fromtimestamp(1, UTC), [b"2"]),
    ]
    upper = pa.RecordBatch.from_pydict({"DATA": ["1"], "Queue": pa.array([7])})
    assert list(grouped(upper, None)) == [("7", None, [b"1"])]
    with pytest.raises(InvalidQueueName):
        list(grouped(pa.RecordBatch.from_pydict({"queue": ["a/b"], "data": [b""]}), None))
    with pytest.raises(ValueError, match="'data' must not be null"):
        list(grouped(pa.RecordBatch.from_pydict({"data": pa.array([None], pa.binary())}), "q"))


# --- Options --------------------------------------------------------------------------------------


def test_options_are_parsed() -> None:
    """Names in any case; sizes and times have units."""
    given = {
        "Servers": "a, b:2",
        "queue": "work+copy",
        "staging_location": "file:///s",
        "MAX_BYTES_PER_BATCH": "1 MiB",
        "max_items_per_batch": "5",
        "min_partitions": "3",
        "wait": "500ms",
    }
    cluster = ClusterOptions("a:22133,b:2")

    assert kestrel_read_options(given) == KestrelReadOptions(
        cluster, "work+copy", "/s", 5, 1 << 20, 3, 0.5
    )
    assert kestrel_read_options(READ) == KestrelReadOptions(ClusterOptions("a:1"), "q", "/s")
    assert kestrel_write_options(
        {"servers": "a:1", "checkpointLocation": "/c"}
    ) == KestrelWriteOptions(ClusterOptions("a:1"))
    found = kestrel_write_options({"zookeeper": "z:1", "path_prefix": "/p", "patience": "5"})
    assert found == KestrelWriteOptions(ClusterOptions(None, "z:1", "/p"), None, 5.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue": None}, "option 'queue' of reading kestrel is missing"),
        ({"staging_location": None}, "'staging_location' of reading kestrel is missing"),
        ({"staging_location": "s3a://b/x"}, "option 'staging_location': 's3a://b/x'"),
        ({"servers": None}, "give either 'servers'"),
        ({"zookeeper": "z", "path_prefix": "p"}, "give either 'servers'"),
        ({"zookeeper": "z"}, "'zookeeper' and 'path_prefix' of reading kestrel go together"),
        ({"servers": "a:0"}, "'a:0' is not allowed: it must be servers such as"),
        ({"queue": "a/b"}, "it must be a queue's name: a queue name must not contain '/'"),
        ({"max_items_per_batch": "0"}, "a whole number from 1 to 4194304"),
        ({"min_partitions": "2000"}, "a whole number from 1 to 1024"),
        ({"max_bytes_per_batch": "much"}, "a size above 0"),
        ({"wait": "long"}, "a time such as '1s'"),
        ({"queues": "q"}, "option 'queues' = 'q' of reading kestrel is unknown"),
    ],
)
def test_errors_name_option_value_and_what_is_allowed(
    given: dict[str, str | None], message: str
) -> None:
    """A user can mend the option from the message alone."""
    options = {name: value for name, value in (READ | given).items() if value is not None}

    with pytest.raises(ConfigError) as error:
        kestrel_read_options(options)

    assert message in str(error.value)
