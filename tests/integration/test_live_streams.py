"""`kestrel`, read as a stream: real servers, read without Spark, by tasks and sessions that die.

`tests/spark/test_stream.py` and its neighbours have what needs Spark.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pytest

from kestrelmq.cli.main import main
from kestrelmq.client import Client
from kestrelmq.client.cluster import membership_of
from kestrelmq.errors import ConfigError
from kestrelmq.spark.sources.live import KestrelSource
from kestrelmq.spark.sources.live_reads import HeldItemsAreGone
from kestrelmq.spark.sources.live_settling import SettledServer, settle
from kestrelmq.spark.sources.live_snapshot import QueueBeganAnew, look_through, stretches
from kestrelmq.spark.sources.live_stream import CheckpointIsOver
from kestrelmq.spark.sources.queue_choice import QueueChoice
from kestrelmq.spark.sources.server_probe import ServerProbe
from tests.spark.processes import SparkProcess
from tests.support import queries
from tests.support.patience import PATIENCE, until
from tests.support.queries import QUEUE, drain, live, rows_in, running
from tests.support.server import ServerProcess, running_server

DAY = 86_400
A_DAY_LATER = f"""
import time
real = time.time_ns
time.time_ns = lambda: real() + {DAY * 10**9}
"""
QUEUES = ("orders_a", "orders_b", "orders_c")
DRIVER_STEPS = (("naming", 1), ("settling", 2), ("settled", 2), ("reserving", 2), ("reserved", 2))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Run a cluster of two."""
    with running_server(tmp_path / "a") as a, running_server(tmp_path / "b") as b:
        yield [a, b]


@pytest.fixture
def cluster(servers: list[ServerProcess]) -> str:
    """Return its addresses."""
    return ",".join(server.address for server in servers)


@pytest.fixture
def client(cluster: str) -> Iterator[Client]:
    """Return a client of it."""
    with Client(cluster) as client:
        yield client


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return items that differ."""
    return [b"%d" % number for number in range(start, start + count)]


def items_in(root: Path) -> list[bytes]:
    """Return the items of the table, in the order in which they were read."""
    return [row["data"] for row in sorted(rows_in(root), key=lambda row: int(row["position"]))]


def items_by_queue(root: Path) -> dict[str, list[int]]:
    """Return the numbers in the table by queue, sorted."""
    found: dict[str, list[int]] = {}
    for row in rows_in(root):
        found.setdefault(row["queue"], []).append(int(row["data"]))
    return {queue: sorted(numbers) for queue, numbers in sorted(found.items())}


def killed_at(step: str, marker: Path) -> type[KestrelSource]:
    """Return a source whose first process to come to a step is killed there."""

    def reached(point: str) -> None:
        if point == step and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class KilledSource(KestrelSource):
        """The source, told where to die."""

    KilledSource.reached = staticmethod(reached)
    return KilledSource


def kill_session(root: Path, servers: str, queue: str, step: str, nth: int, **more: str) -> None:
    """Run a stream, and kill its process when it comes to a step for the n-th time."""
    words = ("plain", servers, queue, step, str(nth), json.dumps(more))
    session = SparkProcess("tests.spark.stream_session", root, *words)
    session.wait_until_reached()
    session.kill9()


def test_a_rate_and_the_backlog_in_the_progress(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    """No batch takes more than the time before it allows; the progress says what waits."""
    address = servers[0].address
    with Client(address) as client:
        client.put_many(QUEUE, numbered(20))
    relation = live(address, maxItemsPerSecond="10")
    with running(relation, tmp_path, ends=True) as query:
        assert query.take() == 0  # it only logs the query's name
        batches = [query.take()]
        backlog = query.backlog()
        batches += iter(query.take, None)

    assert batches[0] == 10
    assert sum(filter(None, batches)) == 20
    assert set(backlog) == {address}
    assert backlog[address]["items"] in {10, 20}
    assert {"bytes", "open_reads", "oldest_ms", "age_ms"} < set(backlog[address])


def test_one_server_keeps_its_order(servers: list[ServerProcess], tmp_path: Path) -> None:
    """With one partition, rows by position are the queue's order, over batches and parts."""
    with Client(servers[0].address) as client:
        client.put_many(QUEUE, numbered(1500))
    relation = live(servers[0].address, maxItemsPerTrigger="700")
    drain(relation, tmp_path)

    assert items_in(tmp_path) == numbered(1500)


def test_bytes_limit_a_batch(servers: list[ServerProcess], tmp_path: Path) -> None:
    """A batch ends with the item that reaches the limit."""
    with Client(servers[0].address) as client:
        client.put_many(QUEUE, [b"x" * 10_000] * 30)
    relation = live(servers[0].address, maxBytesPerTrigger="100000")

    assert drain(relation, tmp_path) == [10, 10, 10]


def test_servers_may_die_and_come_back_in_mid_query(
    cluster: str, servers: list[ServerProcess], tmp_path: Path
) -> None:
    """The stream goes on with the others, and with the lost one when it is back."""
    first, second = servers

    def put(server: ServerProcess, start: int) -> None:
        with Client(server.address) as client:
            client.put_many(QUEUE, numbered(100, start))

    with running(live(cluster), tmp_path) as query:

        def arrived(count: int) -> bool:
            query.take()
            return len(set(items_in(tmp_path))) == count

        put(first, 0)
        until(lambda: arrived(100))
        first.kill9()
        put(second, 100)
        until(lambda: arrived(200))
        second.kill9()
        first.start()
        put(first, 200)
        until(lambda: arrived(300))
        second.start()
        put(second, 300)
        until(lambda: arrived(400))


def test_a_batch_that_is_run_again_has_the_same_rows(
    cluster: str, client: Client, tmp_path: Path
) -> None:
    """Also the times at which they were read, though the session died before it was committed."""
    client.put_many(QUEUE, numbered(20))
    with running(live(cluster), tmp_path) as query:
        assert [query.take(), query.take()] == [0, 20]
    max((tmp_path / "checkpoint" / "commits").iterdir()).unlink()
    drain(live(cluster), tmp_path)  # which compares them

    assert sorted(map(int, items_in(tmp_path))) == list(range(20))


def fail(rows: pa.Table) -> None:
    """Fail, as a sink may, with the first items."""
    if rows.num_rows:
        raise RuntimeError("on purpose")


def test_a_checkpoint_keeps_its_queue(cluster: str, client: Client, tmp_path: Path) -> None:
    """A batch that failed is replayed under its own queue's name, or not at all."""
    client.put_many(QUEUE, numbered(20))
    client.put_many("other", numbered(7, 100))
    with pytest.raises(RuntimeError, match="on purpose"):
        drain(live(cluster), tmp_path, each=fail)

    with pytest.raises(ConfigError, match="checkpoint is of queue 'work'"):
        drain(live(cluster, queue="other"), tmp_path)
    drain(live(cluster), tmp_path)

    assert items_by_queue(tmp_path) == {QUEUE: list(range(20))}
    assert len(list(client.consume("other", idle_timeout=0))) == 7


def test_a_checkpoint_keeps_its_queues(cluster: str, client: Client, tmp_path: Path) -> None:
    """Their order does not matter; others are refused, and a failed batch keeps its names."""
    client.put_many("a", numbered(5))
    client.put_many("b", numbered(5, 100))
    with pytest.raises(RuntimeError, match="on purpose"):
        drain(live(cluster, queue="b,a"), tmp_path, each=fail)
    for other in ("a", "a,c", "[ab]"):
        with pytest.raises(ConfigError, match="the checkpoint is of queue 'a,b'"):
            drain(live(cluster, queue=other), tmp_path)
    drain(live(cluster, queue='["a", "b"]'), tmp_path)

    assert items_by_queue(tmp_path) == {
        "a": list(range(5)),
        "b": list(range(100, 105)),
    }


def test_a_driver_that_is_killed_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """The next one comes to the same; each item comes once, in order."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        sent = numbered(2500)
        client.put_many(QUEUE, sent)
        for step, nth in DRIVER_STEPS:
            kill_session(tmp_path, server.address, QUEUE, step, nth)
        drain(live(server.address), tmp_path)
        assert client.get(QUEUE) is None
        assert client.owners() == []

    assert items_in(tmp_path) == sent


def test_a_stream_of_a_pattern_that_is_killed_reads_each_item_once(
    cluster: str, client: Client, tmp_path: Path
) -> None:
    """Between staging and finish and before; queues that appear meanwhile are found."""
    for place, queue in enumerate(QUEUES):
        client.put_many(queue, numbered(300, 1000 * place))
    client.put_many("other", numbered(5))
    for step, nth in (("reserving", 2), ("yielding", 3)):
        kill_session(tmp_path, cluster, "orders_*", step, nth)
        client.put_many(f"orders_{step}", numbered(20))
    relation = live(cluster, queue="orders_*", maxItemsPerTrigger="400")
    batches = drain(relation, tmp_path)

    # What a killed driver has reserved is in the batch as it is, and new queues come besides.
    assert max(batches) <= 400 + 2 * 20
    expected = {queue: list(range(1000 * n, 1000 * n + 300)) for n, queue in enumerate(QUEUES)}
    expected |= {f"orders_{step}": list(range(20)) for step in ("reserving", "yielding")}
    assert items_by_queue(tmp_path) == dict(sorted(expected.items()))
    left = {one.name: one.items + one.number("open_transactions") for one in client.queues()}
    assert sum(items for name, items in left.items() if name.startswith("orders_")) == 0
    assert len(list(client.consume("other", idle_timeout=0))) == 5


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """The task that is run again reads the same."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many(QUEUE, numbered(100))
        source = killed_at("yielding", tmp_path / "killed")
        drain(live(server.address, source), tmp_path, forked=True)
        assert (tmp_path / "killed").exists()
        assert client.get(QUEUE) is None

    assert items_in(tmp_path) == numbered(100)


def test_a_server_that_is_killed_has_the_batch_again(tmp_path: Path) -> None:
    """While its tasks read, and before it was told that they have."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many(QUEUE, numbered(50))

        def kill(_rows: object) -> None:
            server.kill9()
            server.start()

        relation = live(server.address, maxItemsPerTrigger="20")
        with running(relation, tmp_path, each=kill) as query:
            until(lambda: query.take() is None)
        assert client.get(QUEUE) is None

    assert items_in(tmp_path) == numbered(50)


def test_a_query_may_be_stopped_for_a_day(tmp_path: Path) -> None:
    """What its batch holds nobody else gets, over a restart by a clock that is a day later."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many(QUEUE, numbered(50), expiry=7 * DAY)
        kill_session(tmp_path, server.address, QUEUE, "yielding", 1)
        server.stop()
        server.command = f"{A_DAY_LATER}{server.command}"
        server.start()
        client.put("later", b"item")
        with client.reserve("later") as late:
            assert late is not None
            assert (late.add_time or 0) > (time.time() + DAY - PATIENCE) * 1000
        assert client.get(QUEUE) is None
        drain(live(server.address), tmp_path)
        assert not any(one.reads for one in client.owners())

    assert items_in(tmp_path) == numbered(50)


def test_of_two_drivers_one_goes_on(cluster: str, client: Client, tmp_path: Path) -> None:
    """Both may reserve; what Spark has logged counts, and each item comes once."""
    client.put_many(QUEUE, numbered(400))
    relation = live(cluster, maxItemsPerTrigger="100")
    with running(relation, tmp_path) as first, running(relation, tmp_path) as second:
        for _ in range(4):
            first.take()
            second.take()
    drain(relation, tmp_path)
    assert sorted(map(int, items_in(tmp_path))) == list(range(400))
    assert client.owners() == []


def test_an_old_checkpoint_is_refused(cluster: str, client: Client, tmp_path: Path) -> None:
    """A restored copy would miss what came later; with failOnDataLoss=false that is accepted."""
    client.put_many(QUEUE, numbered(10))
    drain(live(cluster), tmp_path)
    copytree(tmp_path / "checkpoint", tmp_path / "old" / "checkpoint")
    client.put_many(QUEUE, numbered(10, 10))
    drain(live(cluster), tmp_path)
    client.put_many(QUEUE, numbered(10, 20))
    with pytest.raises(CheckpointIsOver, match="with failOnDataLoss=false"):
        drain(live(cluster), tmp_path / "old")
    drain(live(cluster, failOnDataLoss="false"), tmp_path / "old")
    assert sorted(map(int, items_in(tmp_path / "old"))) == list(range(20, 30))


def test_a_deleted_checkpoint_leaves_its_items_held(
    cluster: str, client: Client, tmp_path: Path
) -> None:
    """Under the name of its query; another query gets what is released."""
    client.put_many(QUEUE, numbered(10))
    with pytest.raises(RuntimeError, match="on purpose"):
        drain(live(cluster, queryName="gone"), tmp_path, each=fail)
    assert drain(live(cluster), tmp_path / "another") == []
    (name,) = {one.owner for one in client.owners("gone-*")}
    assert client.release_owner(name, counted=False) == 10
    assert drain(live(cluster), tmp_path / "another") == [10]
    with pytest.raises(HeldItemsAreGone):
        drain(live(cluster), tmp_path)
    assert drain(live(cluster, failOnDataLoss="false"), tmp_path) == []


def test_a_table_is_a_snapshot(cluster: str, client: Client, tmp_path: Path) -> None:
    """Of what waits, in order, on every server, however many tasks read it; nothing is taken."""
    client.put_many("a", numbered(2500))
    client.put_many("b", numbered(3))
    held = client.reserve_many("b", 1, 600)
    assert held is not None
    for partitions in ("1", "7"):
        rows = queries.read(live(cluster, queue="[ab],c", minPartitions=partitions))
        rows.sort(key=lambda row: int(row["position"]))
        assert [row["position"] for row in rows] == list(range(2502))
        assert sorted(int(row["data"]) for row in rows if row["queue"] == "a") == list(range(2500))
        by_server: dict[str, list[int]] = {}
        for row in rows:
            if row["queue"] == "a":
                by_server.setdefault(row["server"], []).append(int(row["data"]))
        assert all(numbers == sorted(numbers) for numbers in by_server.values())
    assert sum(one.items for one in client.queues()) == 2502
    assert queries.read(live(cluster, queue="c")) == []


def test_a_snapshot_is_of_one_moment(servers: list[ServerProcess]) -> None:
    """What others took is missing, what came later is not there; a restart is an error."""
    with Client(servers[0].address) as client, closing(probe_of(servers[0])) as probe:
        client.put_many(QUEUE, numbered(30))
        first, second = stretches(probe, 0.0, 2)
        assert [client.get(QUEUE) for _ in range(3)] == numbered(3)
        client.put_many(QUEUE, numbered(30, 30))
        found = {
            position + place: item.data
            for one in (first, second)
            for position, items in look_through(one)
            for place, item in enumerate(items)
        }
        assert found == {number: b"%d" % number for number in range(3, 30)}
        servers[0].restart()
        with pytest.raises(QueueBeganAnew, match=r"queue 'work' on .* was loaded anew or deleted"):
            list(look_through(first))


def probe_of(server: ServerProcess) -> ServerProbe:
    """Return a probe of a queue of a server."""
    return ServerProbe(membership_of(server.address), QueueChoice.parse(QUEUE))


def test_a_query_that_will_not_go_on_is_settled(
    servers: list[ServerProcess],
    client: Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What it has committed is finished, and the rest goes back."""
    address = servers[0].address
    with Client(address) as one:
        one.put_many(QUEUE, numbered(30))
    relation = live(address, maxItemsPerTrigger="20")
    with running(relation, tmp_path) as query:
        query.take()
        assert query.take() == 20
    checkpoint = str(tmp_path / "checkpoint")
    assert list(settle(checkpoint)) == [SettledServer(address, 20, 0)]
    with running(relation, tmp_path, each=fail) as query, pytest.raises(RuntimeError):
        query.take()
    assert list(settle(checkpoint)) == [SettledServer(address, 0, 10)]
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "settle", checkpoint])
    assert ended.value.code == 0
    words = ["server", "finished", "released", address, "0", "0"]
    assert capsys.readouterr().out.split() == words
    assert client.owners() == []
    assert sorted(map(int, client.consume(QUEUE, idle_timeout=0))) == list(range(20, 30))
    with pytest.raises(ConfigError, match="is not a checkpoint of a query that reads kestrel"):
        list(settle(str(tmp_path / "nothing")))
