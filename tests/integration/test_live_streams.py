"""`kestrel`, read as a stream: real servers, read without Spark, by tasks and sessions that die.

`tests/spark/test_stream.py` and its neighbours have what needs Spark.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.spark.live.batch_plan import BatchPlan
from kestrelmq.spark.live.shares import PartitionShare
from kestrelmq.spark.live.source import KestrelSource
from kestrelmq.spark.live.staging import StagingInUse
from tests.spark.processes import SparkProcess
from tests.support import queries
from tests.support.object_store import BUCKET, ObjectStore, running_store
from tests.support.patience import until
from tests.support.queries import QUEUE, drain, live, rows_in, running
from tests.support.server import ServerProcess, running_server

QUEUES = ("orders_a", "orders_b", "orders_c")
TASK_STEPS = ("opened", "written", "synced", "linked", "durable", "confirmed", "yielding")


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


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server."""
    with running_store() as store:
        yield store


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
    relation = live(address, tmp_path, max_items_per_second="10")
    with running(relation, tmp_path, ends=True) as query:
        batches = [query.take()]
        backlog = query.backlog()
        batches += iter(query.take, None)

    assert batches[0] == 10
    assert sum(filter(None, batches)) == 20
    assert set(backlog) == {address}
    assert backlog[address]["items"] in {10, 20}
    assert {"bytes", "open_reads", "oldest_ms", "age_ms"} < set(backlog[address])
    with pytest.raises(ConfigError, match=r"is for spark\.readStream only"):
        queries.read(relation)


def test_one_server_keeps_its_order(servers: list[ServerProcess], tmp_path: Path) -> None:
    """With one partition, rows by position are the queue's order, over batches and parts."""
    with Client(servers[0].address) as client:
        client.put_many(QUEUE, numbered(1500))
    relation = live(servers[0].address, tmp_path, max_items_per_batch="700")
    drain(relation, tmp_path)

    assert items_in(tmp_path) == numbered(1500)


def test_bytes_limit_a_batch(servers: list[ServerProcess], tmp_path: Path) -> None:
    """A batch ends with the item that reaches the limit."""
    with Client(servers[0].address) as client:
        client.put_many(QUEUE, [b"x" * 10_000] * 30)
    relation = live(servers[0].address, tmp_path, max_bytes_per_batch="100000")

    assert drain(relation, tmp_path) == [10, 10, 10]


def test_servers_may_die_and_come_back_in_mid_query(
    cluster: str, servers: list[ServerProcess], tmp_path: Path
) -> None:
    """The stream goes on with the others, and with the lost one when it is back."""
    first, second = servers

    def put(server: ServerProcess, start: int) -> None:
        with Client(server.address) as client:
            client.put_many(QUEUE, numbered(100, start))

    with running(live(cluster, tmp_path), tmp_path) as query:

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


def test_a_staging_location_is_one_querys(cluster: str, client: Client, tmp_path: Path) -> None:
    """A query with another checkpoint fails before it takes anything, and says why."""
    client.put_many(QUEUE, numbered(5))
    relation = live(cluster, tmp_path)
    drain(relation, tmp_path)
    client.put_many(QUEUE, numbered(5, 5))

    with pytest.raises(StagingInUse, match="items of a query with another checkpoint"):
        drain(relation, tmp_path / "another")
    drain(relation, tmp_path)
    assert len(items_in(tmp_path)) == 10


def test_a_server_without_reserved_reads_tells_less(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    """Its items come by way of open reads; what it does not tell is null."""
    address = servers[0].address
    with Client(address) as client:
        client.put_many(QUEUE, numbered(150))
    (tmp_path / "staging" / "old").mkdir(parents=True)
    plan = BatchPlan(1, "old", QUEUE, (PartitionShare(address, 150, 1 << 20),))
    (tmp_path / "staging" / "old" / "plan.json").write_text(json.dumps(plan.to_offset()))
    relation = queries.Relation(
        KestrelSource,
        {
            "servers": address,
            "queue": QUEUE,
            "batch": "old",
            "staging_location": str(tmp_path / "staging"),
        },
    )

    rows = queries.read(relation)
    assert sorted(int(row["data"]) for row in rows) == list(range(150))
    told = {(row["add_time"], row["expiry"], row["deliveries"]) for row in rows}
    assert told == {(None, None, None)}


def test_a_batch_that_is_run_again_has_the_same_rows(
    cluster: str, client: Client, tmp_path: Path
) -> None:
    """Also the times at which they were read, though the session died before it was committed."""
    client.put_many(QUEUE, numbered(20))
    drain(live(cluster, tmp_path), tmp_path)
    max((tmp_path / "checkpoint" / "commits").iterdir()).unlink()
    drain(live(cluster, tmp_path), tmp_path)  # which compares them

    assert sorted(map(int, items_in(tmp_path))) == list(range(20))


def fail(_rows: object) -> None:
    """Fail, as a sink may."""
    raise RuntimeError("on purpose")


def test_a_checkpoint_keeps_its_queue(cluster: str, client: Client, tmp_path: Path) -> None:
    """A batch that failed is replayed under its own queue's name, or not at all."""
    client.put_many(QUEUE, numbered(20))
    client.put_many("other", numbered(7, 100))
    with pytest.raises(RuntimeError, match="on purpose"):
        drain(live(cluster, tmp_path), tmp_path, each=fail)

    with pytest.raises(ConfigError, match="checkpoint is of queue 'work'"):
        drain(live(cluster, tmp_path, queue="other"), tmp_path)
    drain(live(cluster, tmp_path), tmp_path)

    assert items_by_queue(tmp_path) == {QUEUE: list(range(20))}
    assert len(list(client.consume("other", idle_timeout=0))) == 7


def test_a_checkpoint_keeps_its_queues(cluster: str, client: Client, tmp_path: Path) -> None:
    """Their order does not matter; others are refused, and a failed batch keeps its names."""
    client.put_many("a", numbered(5))
    client.put_many("b", numbered(5, 100))
    with pytest.raises(RuntimeError, match="on purpose"):
        drain(live(cluster, tmp_path, queue="b,a"), tmp_path, each=fail)
    for other in ("a", "a,c", "[ab]"):
        with pytest.raises(ConfigError, match="the checkpoint is of queue 'a,b'"):
            drain(live(cluster, tmp_path, queue=other), tmp_path)
    drain(live(cluster, tmp_path, queue='["a", "b"]'), tmp_path)

    assert items_by_queue(tmp_path) == {
        "a": list(range(5)),
        "b": list(range(100, 105)),
    }


def test_a_session_that_is_killed_within_the_protocol_loses_nothing(tmp_path: Path) -> None:
    """The whole session dies before a part is linked, and after; each item comes once."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        sent = numbered(1500)
        client.put_many(QUEUE, sent)
        # The first two are at the identity of the staging location, the others at parts.
        for step in ("synced", "linked", "synced", "linked"):
            kill_session(tmp_path, server.address, QUEUE, step, 1)
        drain(live(server.address, tmp_path), tmp_path)
        assert client.get(QUEUE) is None

    assert items_in(tmp_path) == sent


def test_a_stream_of_a_pattern_that_is_killed_reads_each_item_once(
    cluster: str, client: Client, tmp_path: Path
) -> None:
    """Between staging and finish and before; queues that appear meanwhile are found."""
    for place, queue in enumerate(QUEUES):
        client.put_many(queue, numbered(300, 1000 * place))
    client.put_many("other", numbered(5))
    for step, nth in (("synced", 2), ("linked", 3)):
        kill_session(tmp_path, cluster, "orders_*", step, nth)
        client.put_many(f"orders_{step}", numbered(20))
    relation = live(cluster, tmp_path, queue="orders_*", max_items_per_batch="400")
    batches = drain(relation, tmp_path)

    assert max(batches) <= 400
    expected = {queue: list(range(1000 * n, 1000 * n + 300)) for n, queue in enumerate(QUEUES)}
    expected |= {f"orders_{step}": list(range(20)) for step in ("linked", "synced")}
    assert items_by_queue(tmp_path) == dict(sorted(expected.items()))
    left = {one.name: one.items + one.number("open_transactions") for one in client.queues()}
    assert sum(items for name, items in left.items() if name.startswith("orders_")) == 0
    assert len(list(client.consume("other", idle_timeout=0))) == 5


def test_a_session_with_a_store_that_is_killed_loses_nothing(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Its second batch was logged, and the server was told: it is read again, and nothing else."""
    options = {"staging_location": f"s3://{BUCKET}/killed", **store.source_options}
    sent = numbered(1500)
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many(QUEUE, sent)
        kill_session(tmp_path, server.address, QUEUE, "told", 2, **options)
        drain(live(server.address, tmp_path, **options), tmp_path)
        assert client.get(QUEUE) is None
        (queue,) = client.queues()
        assert queue.number("open_transactions") == 0

    assert items_in(tmp_path) == sent


def test_an_unknown_storage_option_is_an_error(
    store: ObjectStore, servers: list[ServerProcess], tmp_path: Path
) -> None:
    """Nothing is read."""
    address = servers[0].address
    options = {"staging_location": f"s3://{BUCKET}/errors", **store.source_options}
    with Client(address) as client:
        client.put_many(QUEUE, numbered(5))
    unknown = {**options, "storage.colour": "x"}
    with pytest.raises(ConfigError, match="storage option 'colour' is unknown"):
        drain(live(address, tmp_path, **unknown), tmp_path)


def test_a_worker_that_is_killed_within_the_protocol_is_replaced(tmp_path: Path) -> None:
    """The task that is run again takes up what the first one staged, or begins anew."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        for place, step in enumerate(TASK_STEPS):
            client.put_many(QUEUE, numbered(100, 100 * place))
            source = killed_at(step, tmp_path / f"killed at {step}")
            drain(live(server.address, tmp_path, source), tmp_path, forked=True)
            assert (tmp_path / f"killed at {step}").exists()
        drain(live(server.address, tmp_path), tmp_path)
        assert client.get(QUEUE) is None

    assert sorted(map(int, items_in(tmp_path))) == list(range(100 * len(TASK_STEPS)))
