"""The clients against a cluster of real servers that die and come back."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import (
    ServerUnavailable,
)
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
