"""The clients against a cluster of real servers that die and come back."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import InvalidRequest, ServerUnavailable
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Run three servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_server(tmp_path / str(n))) for n in range(3)]


def addresses(cluster: list[ServerProcess]) -> list[str]:
    """Return where the servers of a cluster listen."""
    return [server.address for server in cluster]


def test_a_cluster_is_used_evenly_and_as_one(cluster: list[ServerProcess]) -> None:
    """Puts reach every server, and a get finds an item wherever it is."""
    with Client(addresses(cluster)) as client:
        for n in range(120):
            assert client.put("work", b"%d" % n)
        counts = {queue.server: queue.items for queue in client.queues()}
        assert sum(counts.values()) == 120
        assert min(counts.values()) > 15
        assert {client.get("work") for _ in range(120)} == {b"%d" % n for n in range(120)}
        assert client.get("work") is None
        with Client(cluster[1].address) as direct:
            direct.put("late", b"x")
        assert client.get("late", timeout=PATIENCE) == b"x"


class Load:
    """Producers and consumers of one queue, and what became of them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.produced: list[bytes] = []
        self.seen: list[bytes] = []
        self.errors: list[BaseException] = []
        self.done = threading.Event()
        self.producers = [
            threading.Thread(target=self._run, args=(self._produce, w)) for w in "abcd"
        ]
        self.consumers = [
            threading.Thread(target=self._run, args=(self._consume, w)) for w in "efgh"
        ]
        for thread in self.producers + self.consumers:
            thread.start()

    def wait_for(self, count: int) -> None:
        """Wait until so many items are produced, or something went wrong."""
        while len(self.produced) < count and not self.errors:
            time.sleep(0.005)

    def finish(self) -> None:
        """Let the producers end, and the consumers once they have seen everything."""
        for thread in self.producers:
            thread.join(PATIENCE)
        until(lambda: set(self.seen) >= set(self.produced))
        self.done.set()
        for thread in self.consumers:
            thread.join(PATIENCE)

    def _run(self, work: Callable[[str], None], who: str) -> None:
        try:
            work(who)
        except BaseException as error:  # noqa: BLE001 # whatever it is, the test must see it
            self.errors.append(error)

    def _produce(self, who: str) -> None:
        for n in range(400):
            item = f"{who}{n}".encode()
            assert self.client.put("work", item, retry_unknown=True)
            self.produced.append(item)

    def _consume(self, _: str) -> None:
        while not self.done.is_set():
            for item in self.client.consume("work", idle_timeout=0.3):
                self.seen.append(item)


def test_a_cluster_that_loses_a_server_loses_no_item(cluster: list[ServerProcess]) -> None:
    """One of three is killed and comes back, under load.

    With retry_unknown no error reaches put, and none ever reaches consume; every item arrives.
    """
    with Client(addresses(cluster)) as client:
        load = Load(client)
        load.wait_for(300)
        cluster[0].kill9()
        load.wait_for(900)
        cluster[0].restart()
        load.finish()
    assert load.errors == []
    assert len(load.produced) == 1600
    assert set(load.seen) == set(load.produced)
    # At most one item of each producer and of each consumer was in flight at the kill.
    assert len(load.seen) - len(load.produced) <= 8


def test_a_cluster_with_a_read_only_server_takes_items_elsewhere(
    cluster: list[ServerProcess],
) -> None:
    """No error reaches the caller, and the read-only server gets nothing."""
    with Client(addresses(cluster)) as client, Client(cluster[0].address) as direct:
        direct.set_status("readonly")
        assert all(client.put("work", b"x") for _ in range(30))
        assert client.put_many("work", [b"y"] * 1000) == [True] * 1000
        counts = {queue.server: queue.items for queue in client.queues() if queue.name == "work"}
        assert counts.get(cluster[0].address, 0) == 0
        assert sum(counts.values()) == 1030


def test_an_order_to_a_cluster_fails_when_a_server_is_down(cluster: list[ServerProcess]) -> None:
    """The others have carried it out all the same."""
    with Client(addresses(cluster)) as client:
        client.put_many("work", [b"x"] * 10)
        cluster[2].kill9()
        with pytest.raises(ServerUnavailable, match=cluster[2].address):
            client.flush("work")
        assert client.get("work") is None


async def test_many_tasks_share_an_asyncio_client_of_a_cluster(
    cluster: list[ServerProcess],
) -> None:
    """A server dies; producers that accept duplicates and consumers see no error."""
    seen: list[bytes] = []

    async def produce(client: AsyncClient, who: int) -> None:
        for n in range(200):
            assert await client.put("work", b"%d:%d" % (who, n), retry_unknown=True)
            if who == 0 and n == 100:
                cluster[0].kill9()

    async def consume(client: AsyncClient) -> None:
        async for item in client.consume("work", idle_timeout=1.0):
            seen.append(item)

    async with AsyncClient(addresses(cluster)) as client:
        consumers = [asyncio.create_task(consume(client)) for _ in range(5)]
        await asyncio.gather(*(produce(client, who) for who in range(5)))
        await asyncio.to_thread(cluster[0].restart)
        await asyncio.gather(*consumers)
        produced = {b"%d:%d" % (who, n) for who in range(5) for n in range(200)}
        while not produced <= set(seen):
            seen += [item async for item in client.consume("work", idle_timeout=0.1)]
    assert set(seen) == produced


async def test_with_affinity_queues_keep_their_order(cluster: list[ServerProcess]) -> None:
    """Each lives on one server; whoever adds to it or reads it finds it there."""
    names = [f"queue{number}" for number in range(12)]
    expected = {name: [b"%d" % number for number in range(30)] for name in names}
    found: dict[str, list[bytes]] = {}
    with Client(addresses(cluster), affinity="queue") as client:
        async with AsyncClient(addresses(cluster)[::-1], affinity="queue") as other:
            for number in range(0, 30, 3):
                for name in names:
                    client.put(name, b"%d" % number)
                    await other.put(name, b"%d" % (number + 1))
                    client.put_many(name, [b"%d" % (number + 2)])
            homes = {queue.name: queue.server for queue in client.queues() if queue.items}
            assert len({queue.server for queue in client.queues()}) > 1
            assert sum(queue.items for queue in client.queues()) == 12 * 30
            assert len([queue for queue in client.queues() if queue.items]) == len(names)
            for name in names:
                (start,) = await other.reserve_many(name, 1, 60) or []
                assert start.server == homes[name]
                await other.finish(name, start)
                found[name] = [start.data, *client.consume(name, idle_timeout=0)]
    assert found == expected


def test_with_affinity_items_elsewhere_are_found(cluster: list[ServerProcess]) -> None:
    """They are from a time when another server was the home of the queue."""
    for server in cluster:
        with Client(server.address) as direct:
            direct.put("work", server.address.encode())
    with Client(addresses(cluster), affinity="queue") as client:
        (home,) = [one.server for one in client.reserve_many("work", 1, 60) or []]
        items = [client.get("work") for _ in range(2)]
        assert sorted([home.encode(), *filter(None, items)]) == sorted(
            server.address.encode() for server in cluster
        )
        threading.Timer(0.1, _put_at, (cluster, home)).start()
        assert client.get("work", timeout=PATIENCE) == b"late"


def _put_at(cluster: list[ServerProcess], home: str) -> None:
    elsewhere = next(server.address for server in cluster if server.address != home)
    with Client(elsewhere) as direct:
        direct.put("work", b"late")


def test_with_affinity_a_home_that_is_away_is_waited_for(cluster: list[ServerProcess]) -> None:
    """Its queues take nothing meanwhile, so their order holds; those of others do."""
    options = ClientOptions(affinity="queue", restart_patience=0, connect_timeout=PATIENCE)
    with Client(addresses(cluster), options=options) as client:
        for number in range(20):
            client.put(f"queue{number}", b"1")
        homes = {queue.name: queue.server for queue in client.queues()}
        away = next(server for server in cluster if server.address == homes["queue0"])
        away.kill9()
        stored = []
        for name, home in homes.items():
            if home == away.address:
                with pytest.raises(ServerUnavailable):
                    client.put(name, b"2")
            else:
                stored.append(client.put(name, b"2"))
        assert stored
        assert all(stored)
        assert client.get("queue0") is None
        away.restart()
        client.put("queue0", b"2")
        until(lambda: client.get("queue0") == b"1")  # it is not asked again at once
        assert client.get("queue0") == b"2"


def test_with_affinity_producers_and_tags_need_no_server(cluster: list[ServerProcess]) -> None:
    """The home is the only server that matters to them."""
    with Client(addresses(cluster), affinity="queue") as client:
        for number in (1, 2, 2, 1):
            assert client.put("work", b"%d" % number, producer="p", sequence=number)
        reserved = client.reserve_many("work", 9, 60, tag="t:1:a")
        assert reserved is not None
        assert [item.data for item in reserved] == [b"1", b"2"]
        again = client.reserve_many("work", 9, 60, tag="t:1:a")
        assert again is not None
        assert [item.data for item in again] == [b"1", b"2"]
        assert client.finish("work", tag="t:1:a") == 2
    with pytest.raises(InvalidRequest, match="affinity"):
        Client(affinity="server")  # type: ignore[arg-type] # refused for that
