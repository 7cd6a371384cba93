"""The client against real servers: one, a cluster, and servers that die meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client, ClientOptions
from kestrelmq.errors import (
    ConnectionLost,
    InvalidRequest,
    OperationTimeout,
    ServerRefused,
    ServerUnavailable,
)
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    config = "[queues.small]\nmax_items = 2\n"
    with running_server(tmp_path_factory.mktemp("server"), config=config) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Connect to the one server, with all its queues empty."""
    with Client(server.address) as connected:
        connected.flush_all()
        yield connected


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Run three servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_server(tmp_path / str(n))) for n in range(3)]


def addresses(cluster: list[ServerProcess]) -> list[str]:
    """Return where the servers of a cluster listen."""
    return [server.address for server in cluster]


# One server


@pytest.mark.parametrize("data", [b"hello", b"", b"\r\nEND\r\n\0\xff", b"x" * 3_000_000])
def test_an_item_comes_back_as_it_was_put(client: Client, data: bytes) -> None:
    """Any bytes go through a queue unchanged, by get, peek and reserve."""
    for _ in range(2):
        assert client.put("work", data)
    assert client.peek("work") == data
    assert client.get("work") == data
    with client.reserve("work") as item:
        assert item == data
    assert client.get("work") is None


def test_many_items_keep_their_order(client: Client) -> None:
    """A batch is stored in order, across its internal limits."""
    items = [b"%d" % n for n in range(2000)]
    assert client.put_many("work", items) == [True] * 2000
    assert list(client.consume("work", idle_timeout=0)) == items
    assert client.get("work") is None


def test_a_full_queue_answers_false(client: Client) -> None:
    """A refused item is not stored, and is told apart in a batch."""
    assert client.put_many("small", [b"1", b"2", b"3"]) == [True, True, False]
    assert not client.put("small", b"4")


def test_a_blocking_get_waits_for_an_item(client: Client) -> None:
    """The wait ends with the item, long before the timeout."""
    found: list[bytes | None] = []
    waiter = threading.Thread(target=lambda: found.append(client.get("work", timeout=30)))
    waiter.start()
    while not any(queue.number("waiters") for queue in client.queues()):
        time.sleep(0.01)
    assert client.put("work", b"x")
    waiter.join(10)
    assert found == [b"x"]
    assert client.get("work", timeout=0.05) is None


def test_an_expired_item_is_gone(client: Client) -> None:
    """A time that has passed already expires the item at once."""
    assert client.put("work", b"old", expiry=-1)
    assert client.put("work", b"new", expiry=2_000_000)
    assert client.get("work") == b"new"


def test_a_reserved_item_goes_back_when_the_block_raises(client: Client) -> None:
    """An error in the block returns the item to the head, and reaches the caller."""
    client.put_many("work", [b"1", b"2"])
    with pytest.raises(KeyError), client.reserve("work") as item:
        raise KeyError(item)
    assert client.get("work") == b"1"


def test_reservations_of_one_queue_may_be_nested(client: Client) -> None:
    """Each open read has a connection to itself."""
    client.put_many("work", [b"1", b"2"])
    with client.reserve("work") as first, client.reserve("work") as second:
        assert (first, second) == (b"1", b"2")
    assert client.get("work") is None


def test_a_consumer_that_stops_early_gives_its_item_back(client: Client) -> None:
    """A break and an error leave the item in the queue; max_items confirms the last."""
    client.put_many("work", [b"1", b"2", b"3", b"4"])
    assert list(client.consume("work", max_items=2)) == [b"1", b"2"]
    for item in client.consume("work"):
        assert item == b"3"
        break
    consumer = client.consume("work")
    assert next(consumer) == b"3"
    with pytest.raises(KeyError):
        consumer.throw(KeyError())
    assert list(client.consume("work", idle_timeout=0)) == [b"3", b"4"]


def test_a_monitor_confirms_all_or_none(client: Client) -> None:
    """What was collected goes back together when the block raises."""
    client.put_many("work", [b"1", b"2", b"3"])
    with pytest.raises(KeyError), client.monitor("work", 5, 3) as items:
        raise KeyError(items)
    with client.monitor("work", 5, 3) as items:
        assert sorted(items) == [b"1", b"2", b"3"]
    assert client.get("work") is None


def test_queues_are_flushed_deleted_and_listed(client: Client, server: ServerProcess) -> None:
    """The statistics show what is in the queues, by server and by queue."""
    client.put_many("work", [b"12345"] * 3)
    client.put("other", b"x")
    assert client.stats()[server.address]["queue_work_items"] == "3"
    queues = {queue.name: queue for queue in client.queues()}
    assert (queues["work"].items, queues["work"].bytes) == (3, 15)
    client.flush("work")
    assert client.get("work") is None
    client.delete("other")
    client.delete("never-there")
    assert "other" not in {queue.name for queue in client.queues()}


def test_a_server_tells_its_version_and_status_and_reloads(
    client: Client, server: ServerProcess
) -> None:
    """The rest of the protocol answers as the client expects."""
    assert client.version()[server.address]
    assert client.status()[server.address].upper() == "UP"
    client.reload()


def test_a_read_only_server_refuses_writes_with_a_typed_error(
    client: Client, server: ServerProcess
) -> None:
    """The only server's refusal reaches the caller; reads go on."""
    client.put("work", b"x")
    client.set_status("readonly")
    try:
        with pytest.raises(ServerRefused):
            client.put("work", b"y")
    finally:
        client.set_status("up")
    assert client.put("work", b"y")
    with pytest.raises(ServerRefused):
        client.set_status("nonsense")


def test_a_bad_name_sends_nothing(client: Client) -> None:
    """Names are checked on this side, and the connection is not harmed."""
    for name in ("", "a b", "a/open", "a\r\nflush_all", "~~lock", "a.b"):
        with pytest.raises(InvalidRequest):
            client.put(name, b"x")
    assert client.put("work", b"x")


def test_threads_share_a_client(client: Client) -> None:
    """Many threads put and consume over one client; each item is seen once."""

    def produce(who: int) -> None:
        for n in range(100):
            assert client.put("work", b"%d:%d" % (who, n))

    def consume() -> None:
        seen.extend(client.consume("work", idle_timeout=1.0))

    seen: list[bytes] = []
    threads = [threading.Thread(target=produce, args=(who,)) for who in range(8)]
    threads += [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == sorted(b"%d:%d" % (who, n) for who in range(8) for n in range(100))


def test_a_restart_of_the_server_is_not_noticed_between_operations(tmp_path: Path) -> None:
    """Connections that died while they were idle are made again, and the items are there."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        assert client.put("work", b"1")
        server.kill9()
        with pytest.raises(ServerUnavailable):
            client.put("work", b"lost")
        server.restart()
        assert client.put("work", b"2")
        assert [client.get("work"), client.get("work"), client.get("work")] == [b"1", b"2", None]


def test_a_confirmation_that_did_not_arrive_is_an_error(tmp_path: Path) -> None:
    """The caller of reserve learns that the item comes again, and it does."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("work", b"x")
        with pytest.raises((ConnectionLost, ServerUnavailable)), client.reserve("work"):
            server.kill9()
        server.restart()
        assert client.get("work", timeout=5) == b"x"


def test_a_server_that_does_not_answer_is_a_timeout(tmp_path: Path) -> None:
    """A server that hangs costs the operation timeout, and no more."""
    options = ClientOptions(operation_timeout=0.2)
    with running_server(tmp_path) as server, Client(server.address, options=options) as client:
        assert client.put("work", b"x")
        server.process.send_signal(19)  # SIGSTOP
        try:
            with pytest.raises(OperationTimeout):
                client.put("work", b"y")
        finally:
            server.process.send_signal(18)  # SIGCONT


def test_shutdown_stops_the_server(tmp_path: Path) -> None:
    """The order is carried out, and its reply is the end of the connection."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("work", b"x")
        client.shutdown()
        assert server.process.wait(15) == 0
        server.restart()
        assert client.get("work") == b"x"


# A cluster


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
        assert client.get("late", timeout=10) == b"x"


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
            thread.join(30)
        deadline = time.monotonic() + 20
        while not set(self.seen) >= set(self.produced) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.done.set()
        for thread in self.consumers:
            thread.join(30)

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


# asyncio


async def waiters(client: AsyncClient, count: int) -> None:
    """Wait until the server says that so many readers wait."""
    while sum(queue.number("waiters") for queue in await client.queues()) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_the_asyncio_client_does_the_same(server: ServerProcess) -> None:
    """Every operation of AsyncClient works on a real server."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()
        assert await client.put("work", b"1")
        assert await client.put_many("work", [b"2", b"3", b""]) == [True] * 3
        assert await client.peek("work") == b"1"
        assert await client.get("work") == b"1"
        with pytest.raises(KeyError):
            async with client.reserve("work") as item:
                raise KeyError(item)
        async with client.reserve("work") as item:
            assert item == b"2"
        assert [item async for item in client.consume("work", idle_timeout=0)] == [b"3", b""]
        await client.put_many("work", [b"4", b"5"])
        async with client.monitor("work", 5, 2) as items:
            assert items == [b"4", b"5"]
        assert await client.get("work", timeout=0.05) is None
        assert {queue.name for queue in await client.queues()} >= {"work"}
        assert (await client.stats())[server.address]["version"] == (await client.version())[
            server.address
        ]
        assert (await client.status())[server.address].upper() == "UP"
        await client.reload()
        await client.flush("work")
        await client.delete("work")


async def test_a_cancelled_read_loses_nothing(server: ServerProcess) -> None:
    """A task that is cancelled while it waits, or holds an item, gives the item back."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()

        async def hold() -> None:
            async with client.reserve("work", timeout=30):
                holding.set()
                await asyncio.sleep(30)

        holding = asyncio.Event()
        waiting = asyncio.create_task(client.get("work", timeout=30))
        await waiters(client, 1)
        waiting.cancel()
        await waiters(client, 0)
        await client.put("work", b"x")
        holder = asyncio.create_task(hold())
        await holding.wait()
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        assert await client.get("work", timeout=5) == b"x"


async def test_an_asyncio_consumer_that_is_closed_gives_its_item_back(
    server: ServerProcess,
) -> None:
    """With aclosing, an early end returns the item at once."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()
        await client.put_many("work", [b"1", b"2"])
        async with aclosing(client.consume("work")) as items:
            async for item in items:
                assert item == b"1"
                break
        assert await client.get("work") == b"1"


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
        seen += [item async for item in client.consume("work", idle_timeout=2.0)]
        await asyncio.gather(*consumers)
    assert set(seen) == {b"%d:%d" % (who, n) for who in range(5) for n in range(200)}
