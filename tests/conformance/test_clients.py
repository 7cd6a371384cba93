"""Unmodified memcached clients on the memcached dialect: every option of `get`, nothing lost."""

import contextlib
from collections.abc import Callable, Iterator
from threading import Timer

import pytest

from kestrelmq.version import VERSION
from tests.conformance.clients import CLIENTS, Client
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = """
memcache_dialect = "memcached"
[queues.full]
max_items = 1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share."""
    with running_server(tmp_path_factory.mktemp("clients"), config=CONFIG) as running:
        yield running


@pytest.fixture(params=CLIENTS.values(), ids=list(CLIENTS))
def connect(
    request: pytest.FixtureRequest, server: ServerProcess
) -> Iterator[Callable[[], Client]]:
    """Return what makes a connection; each client begins with an empty server."""
    made: list[Client] = []

    def connect() -> Client:
        client: Client = request.param(server.ports["memcache"])
        made.append(client)
        return client

    with Wire(server) as wire:
        wire.ask(b"flush_all\r\n", b"OK\r\n")
    yield connect
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[[], Client]) -> Client:
    """Return a connection."""
    return connect()


def test_put_and_get(client: Client) -> None:
    """Items come out in the order in which they went in, each once."""
    texts = [f"item {number}".encode() for number in range(50)]
    assert all(client.set("work", text) for text in texts)
    assert [client.get("work") for _ in texts] == texts
    assert client.get("work") is None


def test_values(client: Client) -> None:
    """Line ends, replies in disguise, nothing at all and much come back as they were."""
    values = [b"a\r\nEND\r\n", b"STORED\r\n", b" ", "caf\u00e9 \u4e2d".encode(), b"x" * 300_000]
    for value in values:
        assert client.set("values", value)
        assert client.get("values") == value


def test_peek(client: Client) -> None:
    """`/peek` leaves the item."""
    assert client.get("work/peek") is None
    client.set("work", b"a")
    assert client.get("work/peek") == b"a"
    assert client.get("work/peek") == b"a"
    assert client.get("work") == b"a"


def test_timeout_without_item(client: Client) -> None:
    """`/t=` answers in the end."""
    assert client.get("work/t=20") is None
    assert client.get("work/t=20/open") is None


def test_timeout_with_item(client: Client, server: ServerProcess) -> None:
    """`/t=` answers as soon as there is an item."""

    def put() -> None:
        with Wire(server) as wire:
            wait_for(wire, "late", "waiters", 1)
            wire.ask(b"set late 0 0 1\r\nx\r\n", b"STORED\r\n")

    timer = Timer(0, put)
    timer.start()
    assert client.get("late/t=20000") == b"x"
    timer.join()


def test_open_and_close(client: Client) -> None:
    """`/open` holds the item for this client, `/close` finishes it, `/close/open` does both."""
    for text in (b"a", b"b"):
        client.set("work", text)
    assert client.get("work/open") == b"a"
    assert client.get("work/peek") == b"b"
    assert client.get("work/close/open") == b"b"
    assert client.get("work/close/t=10/open") is None
    assert client.get("work/close") is None
    assert client.get("work") is None


def test_abort(client: Client) -> None:
    """`/abort` puts the item back on the head."""
    for text in (b"a", b"b"):
        client.set("work", text)
    assert client.get("work/open") == b"a"
    assert client.get("work/abort") is None
    assert client.get("work/t=100/open") == b"a"
    assert client.get("work/close") is None
    assert client.get("work") == b"b"


def test_nothing_is_lost_when_a_client_goes(
    connect: Callable[[], Client], server: ServerProcess
) -> None:
    """What a client had open when it hung up goes to the next one."""
    texts = [str(number).encode() for number in range(20)]
    first = connect()
    for text in texts:
        assert first.set("relay", text)
    taken = []
    with Wire(server) as wire:
        for held in range(0, 20, 4):
            client = connect()
            for index in range(3):
                assert client.get("relay/close/open") == texts[held + index]
                taken.append(texts[held + index])
            assert client.get("relay/close/open") == texts[held + 3]
            client.close()
            wait_for(wire, "relay", "open_transactions", 0)
            client = connect()
            assert client.get("relay") == texts[held + 3]
            taken.append(texts[held + 3])
        assert stats(wire, "relay")["items"] == "0"
    assert taken == texts


def test_full_queue(client: Client) -> None:
    """What is refused is reported, and the connection lives."""
    assert client.set("full", b"a")
    assert not client.set("full", b"b")
    assert client.get("full") == b"a"
    assert client.get("full") is None


def test_several_keys(client: Client) -> None:
    """Items of several queues come in one reply, under the keys that were asked for."""
    client.set("first", b"1")
    client.set("second", b"2")
    assert client.get_many(["first/peek", "nothing", "second"]) == {
        "first/peek": b"1",
        "second": b"2",
    }
    assert client.get_many(["first", "second"]) == {"first": b"1"}


def test_rest(client: Client) -> None:
    """Delete, flush, version and statistics are understood."""
    client.set("work", b"a")
    assert client.stats()["curr_items"] == "1"
    client.delete("work")
    assert client.get("work") is None
    client.set("work", b"b")
    client.flush_all()
    assert client.get("work") is None
    assert client.version() == VERSION


def test_unknown_command_is_survived(client: Client) -> None:
    """A command that a queue does not know is an error to the client, and no more."""
    client.set("work", b"a")
    assert client.get("work/open") == b"a"
    with contextlib.suppress(Exception):
        client.increment("work")
    assert client.get("work/abort") is None
    assert client.get("work") == b"a"
