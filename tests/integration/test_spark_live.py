"""The driver's side of `kestrel`, and what its tasks read, with real servers but without Spark."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from kestrelmq.client import Client
from kestrelmq.client.cluster import membership_of
from kestrelmq.errors import ConfigError, KestrelError, ServerRefused
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.sources.live_offsets import Held, chunks_of, parse_offset
from kestrelmq.spark.sources.live_options import KestrelReadOptions
from kestrelmq.spark.sources.live_reads import HeldItems, HeldItemsAreGone
from kestrelmq.spark.sources.live_stream import (
    BACKLOG_PAUSE,
    BatchLimits,
    CheckpointIsOver,
    StreamDriver,
)
from kestrelmq.spark.sources.queue_choice import QueueChoice
from kestrelmq.spark.sources.refusals import QueueCannotBeRead
from kestrelmq.spark.sources.server_probe import ServerProbe
from tests.spark.spools import adds, write
from tests.support.fake_clock import FakeClock
from tests.support.server import ServerProcess, running_server

QUEUE = "work"
LIMITS = BatchLimits(1000, 1 << 30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server."""
    with running_server(tmp_path) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def numbered(count: int) -> list[bytes]:
    """Return items that differ."""
    return [b"item %d" % number for number in range(count)]


def driver_of(servers: str, queue: str = QUEUE, **how: Any) -> StreamDriver:
    """Return a driver that does not wait for items."""
    clock = how.pop("clock", FakeClock())
    options = options_of(queue, **how)
    probe = ServerProbe(membership_of(servers), options.queue)
    return StreamDriver(probe, options, clock=clock, pause=clock.advance)


def options_of(queue: str = QUEUE, **how: Any) -> KestrelReadOptions:
    """Return options that do not wait."""
    given = {"wait": 0.0, "patience": 0.0, **how}
    return KestrelReadOptions(ClusterOptions(), QueueChoice.parse(queue), **given)


def named(driver: StreamDriver) -> dict[str, Any]:
    """Return the offset of the first batch, which only has the query's name."""
    return driver.latest_offset(driver.initial_offset(), LIMITS)


def planned(
    servers: str, before: dict[str, Any] | None = None, limits: BatchLimits = LIMITS, **how: Any
) -> dict[str, Any]:
    """Return the offset behind another one, or the first one, as another driver makes it."""
    driver = driver_of(servers, **how)
    with closing(driver):
        return named(driver) if before is None else driver.latest_offset(before, limits)


def items_of(offset: dict[str, Any], *, fails_on_loss: bool = True) -> list[bytes]:
    """Read a batch as tasks do."""
    chunks = chunks_of(parse_offset(offset))
    with closing(HeldItems(options_of(fails_on_loss=fails_on_loss))) as held:
        return [one.data for chunk in chunks for one in held.read(chunk)]


def waiting(client: Client, name: str = QUEUE) -> tuple[int, int]:
    """Return a queue's items, and its open reads."""
    queue = next(queue for queue in client.queues() if queue.name == name)
    return queue.items, queue.number("open_transactions")


def found(probe: ServerProbe) -> set[tuple[str, str]]:
    """Return the queues of which there is an item, on which servers; the items are held then."""
    requests = {
        place: (f"looking-{number}:1:0", 1) for number, place in enumerate(probe.queues(()))
    }
    answers = probe.reserve(requests)
    held = {place for place, answer in answers.items() if not isinstance(answer, ServerRefused)}
    for server, queue in held:
        with Client(server) as client:
            client.release(queue, tag=requests[server, queue][0], counted=False)
    return held


@contextmanager
def foreign_server(*answers: bytes) -> Iterator[str]:
    """Give each connection one answer and close it, as Kestrel does at an unknown command."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers or (b"CLIENT_ERROR\r\n",):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("operations", ["reads", "all"])
def test_a_paused_queue_is_not_empty(
    server: ServerProcess, client: Client, operations: Literal["reads", "all"]
) -> None:
    """A server answers its readers as if it were; but it has items."""
    client.put(QUEUE, b"an item")
    probe = ServerProbe(membership_of(server.address), QueueChoice.parse(QUEUE))
    client.pause(QUEUE, operations)
    assert found(probe) == set()

    with pytest.raises(QueueCannotBeRead, match=r"'work' on .* cannot be read: it is paused"):
        probe.counts()
    client.resume(QUEUE)
    assert probe.counts() == {server.address: {QUEUE: 1}}
    client.get(QUEUE)
    client.pause(QUEUE, operations)
    assert probe.counts() == {server.address: {QUEUE: 0}}
    probe.close()


def test_queues_of_a_pattern_are_found_where_they_are(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """New ones too; deleted ones do not come back, and children need a pattern of their own."""
    with running_server(tmp_path / "other") as other, Client(other.address) as elsewhere:
        probe = ServerProbe(
            membership_of(f"{server.address},{other.address}"), QueueChoice.parse("orders_*,work")
        )
        assert found(probe) == set()
        client.put("orders_a+copy", b"a child's")
        client.put("others", b"another's")
        client.put_many("orders_a", numbered(2))
        elsewhere.put_many("orders_b", numbered(3))
        client.put(QUEUE, b"named")

        assert found(probe) == {
            (server.address, "orders_a"),
            (server.address, QUEUE),
            (other.address, "orders_b"),
        }
        assert probe.counts()[other.address] == {"orders_b": 3}
        assert probe.backlog()[server.address]["items"] == 3
        assert set(probe.backlog()[server.address]["queues"]) == {"orders_a", QUEUE}
        client.delete("orders_a")
        assert probe.settle(server.address, Held("name", 1), 1)
        assert found(probe) == {(server.address, QUEUE), (other.address, "orders_b")}
        probe.check_readable(0.0)
        assert not client.exists("orders_a")
        elsewhere.put("orders_new", b"an item")
        assert (other.address, "orders_new") in found(probe)
        probe.close()


def test_children_are_made_for_queues_that_come_later(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """A copy of queues by a pattern needs them, on every server."""
    with running_server(tmp_path / "other") as other, Client(other.address) as elsewhere:
        servers = membership_of(f"{server.address},{other.address}")
        client.put("orders_a", b"before")
        probe = ServerProbe(servers, QueueChoice.parse("orders_*+copy"), create_children=True)
        probe.check_readable(0.0)
        client.put("orders_b", b"before")
        assert found(probe) == set()
        elsewhere.put("orders_a", b"1")
        client.put("orders_b", b"2")

        assert found(probe) == {
            (other.address, "orders_a+copy"),
            (server.address, "orders_b+copy"),
        }
        probe.close()


@pytest.mark.parametrize("queues", ["good,bad", "*"])
def test_a_damaged_queue_of_several_is_not_empty(tmp_path: Path, queues: str) -> None:
    """A query that ends fails; any other goes on with the others, and keeps asking."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "bad").write_bytes(b"\x63" * 30)
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("good", b"an item")
        probe = ServerProbe(membership_of(server.address), QueueChoice.parse(queues))
        with pytest.raises(QueueCannotBeRead, match=r"'bad' on .* cannot be read: .*damaged"):
            probe.check_readable(0.0)
        assert found(probe) == {(server.address, "good")}
        assert probe.counts() == {server.address: {"bad": 0, "good": 1}}
        client.pause("good", "reads")
        with pytest.raises(QueueCannotBeRead, match=r"'good' on .* it is paused"):
            probe.counts()
        assert found(probe) == set()
        client.resume("good")
        client.set_status("quiescent")
        with pytest.raises(QueueCannotBeRead, match="quiescent"):
            probe.check_readable(0.0)
        assert found(probe) == set()
        probe.close()


def test_queues_of_a_pattern_may_still_be_loading() -> None:
    """What the server has not loaded may match; so nothing counts as empty until it has."""
    loading = b"STAT queues_loading 3\r\nEND\r\n"
    with foreign_server(loading) as foreign:
        probe = ServerProbe(membership_of(foreign), QueueChoice.parse("orders_*"))
        with pytest.raises(QueueCannotBeRead, match=r"'orders_\*' on .* one of 3 queues is still"):
            probe.check_readable(0.0)
        probe.close()


def test_the_oldest_item_is_the_one_that_waits(tmp_path: Path) -> None:
    """Its age is that of the head, whatever was read last."""
    queues = tmp_path / "queues"
    clock = FakeClock()
    for name, age in (("a", 5000), ("b", 90_000), ("c", 10)):
        write(queues / name, adds([b"x", b"y"], at=clock.now() - age))
    with running_server(tmp_path) as server, Client(server.address) as client:
        both = ServerProbe(
            membership_of(server.address), QueueChoice.parse("a,b,none"), clock=clock
        )
        backlog = both.backlog()[server.address]
        assert (backlog["items"], backlog["bytes"], backlog["oldest_ms"]) == (4, 4, 90_000)
        assert {name: one["oldest_ms"] for name, one in backlog["queues"].items()} == {
            "a": 5000,
            "b": 90_000,
        }
        both.close()
        single = ServerProbe(membership_of(server.address), QueueChoice.parse("a"), clock=clock)
        assert single.backlog()[server.address]["oldest_ms"] == 5000
        client.flush("a")
        assert single.backlog()[server.address]["oldest_ms"] == 0
        single.close()


def test_a_batch_is_held_until_the_next_one(server: ServerProcess, client: Client) -> None:
    """Its items are the same for whoever asks; then they are gone, and an idle query stays."""
    client.put_many(QUEUE, numbered(1500))
    driver = driver_of(server.address, query_name="my query")
    start = named(driver)
    assert driver.latest_offset(driver.initial_offset(), LIMITS)["name"] != start["name"]
    first = driver.latest_offset(start, LIMITS)
    assert items_of(first) == items_of(first) == numbered(1000)
    (owner,) = client.owners("my_query-*")
    assert (owner.owner, owner.reads, owner.tags) == (start["name"], 1000, 1)
    driver.commit(start)
    second = driver.latest_offset(first, LIMITS)
    assert items_of(second) == numbered(1500)[1000:]
    assert waiting(client) == (0, 500)
    driver.commit(first)
    assert driver.latest_offset(second, LIMITS) == second
    assert waiting(client) == (0, 0)
    with pytest.raises(HeldItemsAreGone, match=r"queue 'work' on .*is retired"):
        items_of(first)
    driver.close()


def test_an_attempt_that_was_not_logged_is_made_again(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """By another driver too; what it does not ask for again goes back when the batch is over."""
    with running_server(tmp_path / "other") as other, Client(other.address) as elsewhere:
        cluster = f"{server.address},{other.address}"
        client.put_many(QUEUE, numbered(20))
        elsewhere.put_many(QUEUE, numbered(20))
        start = planned(cluster)
        lost = planned(cluster, start, LIMITS)
        again = planned(cluster, start, LIMITS)
        assert again["held"] == lost["held"]
        logged = planned(server.address, start, LIMITS)
        assert items_of(logged) == numbered(20)
        assert (waiting(client), waiting(elsewhere)) == ((0, 20), (0, 20))
        later = planned(cluster, logged, LIMITS)
        assert list(later["held"]) == [other.address]
        assert waiting(client) == (0, 0)
        assert items_of(later) == numbered(20)


def test_a_server_that_is_away_is_told_later(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The next offsets have what it holds; nothing more is reserved there before."""
    with running_server(tmp_path / "other") as other:
        client.put_many(QUEUE, numbered(5))
        with Client(other.address) as elsewhere:
            elsewhere.put_many(QUEUE, numbered(5))
        cluster = f"{server.address},{other.address}"
        first = planned(cluster, planned(cluster), LIMITS)
        assert len(items_of(first)) == 10
        other.kill9()
        client.put_many(QUEUE, numbered(3))
        second = planned(cluster, first, LIMITS)
        assert items_of(second) == numbered(3)
        assert second["held"][other.address] == first["held"][other.address]
        other.start()
        with Client(other.address) as elsewhere:
            elsewhere.put_many(QUEUE, numbered(2))
            third = planned(cluster, second, LIMITS)
            assert items_of(third) == numbered(2)
            assert waiting(elsewhere) == (0, 2)


def test_an_old_checkpoint_is_refused(server: ServerProcess, client: Client) -> None:
    """It would leave out what later batches have; unless it is told to go on as a new query."""
    client.put_many(QUEUE, numbered(30))
    limits = BatchLimits(10, 1 << 30)
    old = planned(server.address, planned(server.address), limits)
    later = planned(server.address, old, limits)
    planned(server.address, later, limits)
    with pytest.raises(CheckpointIsOver, match="it is an old copy, or another query uses it"):
        planned(server.address, old, limits)
    assert items_of(old, fails_on_loss=False) == []
    lenient = driver_of(server.address, fails_on_loss=False)
    assert lenient.latest_offset(old, limits) == old  # the last ten are held under the old name
    client.put_many(QUEUE, numbered(3))
    new = lenient.latest_offset(old, limits)
    assert new["name"] != old["name"]
    assert items_of(new) == numbered(3)
    lenient.close()


def test_items_that_were_released_are_missed(server: ServerProcess, client: Client) -> None:
    """Nothing else is read in their place."""
    client.put_many(QUEUE, numbered(5))
    offset = planned(server.address, planned(server.address), LIMITS)
    assert client.release_owner(offset["name"]) == 5
    with pytest.raises(HeldItemsAreGone, match="0 of 5 items are there"):
        items_of(offset)
    assert items_of(offset, fails_on_loss=False) == []
    assert waiting(client) == (5, 0)


def test_offsets_that_spark_does_not_log_are_an_error(
    server: ServerProcess, client: Client
) -> None:
    """With asyncProgressTrackingEnabled a query would begin anew with what is finished."""
    client.put_many(QUEUE, numbered(30))
    driver = driver_of(server.address)
    offset = named(driver)
    first = driver.latest_offset(offset, BatchLimits(10, 1 << 30))
    with pytest.raises(ConfigError, match="asyncProgressTrackingEnabled is not allowed"):
        driver.latest_offset(first, LIMITS)
    driver.close()


def test_a_checkpoint_belongs_to_its_queues(server: ServerProcess) -> None:
    """Others are refused before anything is done; so is one of an earlier version."""
    offset = planned(server.address, queue="a,b")
    assert planned(server.address, offset, LIMITS, queue="b,a") == offset
    for other in ("a", "a,c", "[ab]"):
        with pytest.raises(ConfigError, match="the checkpoint is of queue 'a,b'"):
            planned(server.address, offset, LIMITS, queue=other)
    with pytest.raises(ConfigError, match="the checkpoint is of an earlier version"):
        planned(server.address, {"epoch": 1, "staging": "x"}, LIMITS)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_rate_limits_batches(server: ServerProcess, client: Client, limit: int | None) -> None:
    """A batch has what the time since the last one allows; no credit is saved up while idle."""
    client.put_many(QUEUE, numbered(100))
    clock = FakeClock()
    driver = driver_of(server.address, max_items_per_second=5, clock=clock)
    offset, limits, sizes = named(driver), BatchLimits(limit, 1 << 30), []
    for pause in (0.0, 10.1, 0.3):
        clock.advance(pause)
        before, offset = offset, driver.latest_offset(offset, limits)
        driver.commit(before)
        sizes.append(len(items_of(offset)))
    begun = clock.monotonic()
    sizes.append(len(items_of(driver.latest_offset(offset, limits))))
    driver.close()

    assert sizes == [5, 50, 2, 1]
    assert clock.monotonic() - begun == pytest.approx(0.2)


def test_the_backlog_is_asked_for_now_and_then(server: ServerProcess, client: Client) -> None:
    """It is what waits on each server; if none can be asked, nothing is known."""
    clock = FakeClock()
    driver = driver_of(server.address, clock=clock)
    client.put_many(QUEUE, numbered(7))

    def items() -> Any:
        backlog = driver.backlog()
        return backlog and backlog[server.address]["items"]

    assert items() == 7
    client.put_many(QUEUE, numbered(2))
    assert items() == 7
    clock.advance(BACKLOG_PAUSE)
    assert items() == 9
    server.kill9()
    clock.advance(BACKLOG_PAUSE)
    assert items() is None
    driver.close()


def test_half_of_the_memory_is_left_to_others(tmp_path: Path) -> None:
    """A batch ends where a queue holds no more for it."""
    items = [b"%d" % number * (1 << 20) for number in range(9)]
    config = f'[queues.{QUEUE}]\nmax_memory_size = "4 MiB"\n'
    with running_server(tmp_path, config=config) as server, Client(server.address) as client:
        client.put_many(QUEUE, items)
        driver = driver_of(server.address)
        offset = driver.latest_offset(named(driver), LIMITS)
        assert items_of(offset) == items[:2]
        other = client.reserve_many(QUEUE, 1, 600.0)
        assert other is not None
        assert [one.data for one in other] == items[2:3]
        driver.close()


def test_no_queue_is_left_out(server: ServerProcess, client: Client) -> None:
    """With room for two items in a batch, long queues leave some for the others."""
    queues = [f"q{number}" for number in range(5)]
    for name in queues:
        client.put_many(name, numbered(50))
    driver = driver_of(server.address, "q*")
    offset, got = named(driver), dict.fromkeys(queues, 0)
    for _ in range(40):
        before, offset = offset, driver.latest_offset(offset, BatchLimits(2, 1 << 20))
        driver.commit(before)
        chunks = chunks_of(parse_offset(offset))
        assert sum(chunk.count for chunk in chunks) <= 2
        for chunk in chunks:
            got[chunk.queue] += chunk.count
    driver.close()

    assert sum(got.values()) == 80
    assert min(got.values()) >= 2


def test_a_server_that_cannot_hold_items_is_refused() -> None:
    """The error says what it must be."""
    with foreign_server(b"CLIENT_ERROR reserve takes a lease= after the count\r\n") as foreign:
        probe = ServerProbe(membership_of(foreign), QueueChoice.parse(QUEUE))
        driver = StreamDriver(probe, options_of())
        with pytest.raises(KestrelError, match="it must be a server of kestrelmq"):
            driver._reserve("name", 1, (), LIMITS)
        driver.close()
