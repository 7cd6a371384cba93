"""The blocking client against one real server, which also dies meanwhile."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import Client, ClientOptions, commands
from kestrelmq.client.address import parse_address
from kestrelmq.client.blocking import Connection
from kestrelmq.client.options import ItemTimes
from kestrelmq.errors import (
    ClientClosed,
    ConnectionLost,
    InvalidRequest,
    OperationTimeout,
    ServerRefused,
    ServerUnavailable,
)
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    config = "[queues.small]\nmax_items = 2\n"
    with running_server(tmp_path_factory.mktemp("server"), config=config) as process:
        yield process


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
    waiter = threading.Thread(target=lambda: found.append(client.get("work", timeout=PATIENCE)))
    waiter.start()
    until(lambda: any(queue.number("waiters") for queue in client.queues()))
    assert client.put("work", b"x")
    waiter.join(PATIENCE)
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


def test_closing_a_client_ends_what_waits(server: ServerProcess) -> None:
    """An endless consumer in another thread ends with an error, and so does what comes later."""
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            list(shared.consume("never-filled"))
        except ClientClosed as error:
            errors.append(error)

    # Two addresses of one server: a cluster, where no wait at a server is long.
    shared = Client([server.address, server.address.replace("127.0.0.1", "localhost")])
    waiter = threading.Thread(target=consume)
    waiter.start()
    shared.close()
    waiter.join(PATIENCE)
    assert len(errors) == 1
    with pytest.raises(ClientClosed):
        shared.put("work", b"x")


def test_threads_share_a_client(client: Client) -> None:
    """Many threads put and consume over one client; each item is seen once."""

    def produce(who: int) -> None:
        for n in range(100):
            assert client.put("work", b"%d:%d" % (who, n))

    def consume() -> None:
        while not done.is_set():
            seen.extend(client.consume("work", idle_timeout=0.05))

    seen: list[bytes] = []
    done = threading.Event()
    threads = [threading.Thread(target=produce, args=(who,)) for who in range(8)]
    threads += [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(seen) >= 800)
    done.set()
    for thread in threads:
        thread.join(PATIENCE)
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
        with (
            pytest.raises((ConnectionLost, ServerUnavailable)),
            client.reserve("work", lease=1, heartbeat=None),
        ):
            server.kill9()
        server.restart()
        assert client.get("work", timeout=PATIENCE) == b"x"


def test_a_server_that_does_not_answer_is_a_timeout(tmp_path: Path) -> None:
    """A server that hangs costs the operation timeout, and no more."""
    options = ClientOptions(operation_timeout=0.2)
    with running_server(tmp_path) as server, Client(server.address, options=options) as client:
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
        assert server.process.wait(PATIENCE) == 0
        server.restart()
        assert client.get("work") == b"x"


@pytest.mark.parametrize("way", ["reserve", "consume", "monitor"])
def test_a_client_that_is_closed_gives_back_what_it_holds(
    client: Client, server: ServerProcess, way: str
) -> None:
    """At once, though the block goes on; its own error is not replaced by another one."""

    def work(closed: Client) -> None:
        if way == "reserve":
            with closed.reserve("work", timeout=PATIENCE, lease=10_000):
                end(closed)
        elif way == "monitor":
            with closed.monitor("work", PATIENCE, 1):
                end(closed)
        else:
            for _ in closed.consume("work", idle_timeout=PATIENCE):
                end(closed)

    def end(closed: Client) -> None:
        closed.close()
        assert client.get("work", timeout=PATIENCE) == b"x"
        raise RuntimeError("mine")

    client.put("work", b"x")
    with pytest.raises(RuntimeError, match="mine"):
        work(Client(server.address))


def test_a_wait_of_another_thread_ends_when_the_client_is_closed(
    client: Client, server: ServerProcess
) -> None:
    """It does not go on to the end of its request."""
    ended: list[Exception] = []
    closed = Client(server.address)

    def wait() -> None:
        try:
            closed.get("work", timeout=10_000)
        except ClientClosed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: sum(queue.number("waiters") for queue in client.queues()) == 1)
    closed.close()
    until(lambda: sum(queue.number("waiters") for queue in client.queues()) == 0)
    waiting.join(PATIENCE)
    assert len(ended) == 1


def test_a_long_listing_may_take_its_time(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time counts anew from each part that comes; that of any other reply does not."""
    until_when: list[float] = []

    class Watched(Connection):
        def _until(self, deadline: float) -> socket.socket:
            until_when.append(deadline)
            return super()._until(deadline)

    monkeypatch.setattr("kestrelmq.client.blocking._CHUNK", 16)
    connection = Watched(parse_address(server.address), ClientOptions())
    connection.open()
    assert connection.run(commands.stats())
    assert until_when[0] < until_when[-1]
    assert until_when == sorted(until_when)
    until_when.clear()
    assert (
        connection.run(commands.set_items(b"work", [(b"x" * 100, ItemTimes(0, 0), None)], []))
        is None
    )
    assert connection.run(commands.peek(b"work")) == b"x" * 100
    assert len(set(until_when)) == 2
    assert connection.run(commands.flush(b"work"))
    connection.close()
