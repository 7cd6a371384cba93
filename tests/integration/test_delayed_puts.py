"""Delayed items over each protocol and interface, on a real server, and over kill -9."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import InvalidRequest
from kestrelmq.library import AsyncPersistentQueue, PersistentQueue, QueueCollection
from tests.admin.conftest import Admin
from tests.support.commands import run_command
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

pytestmark = pytest.mark.compiled_only

HOUR = 3600
DELAY = 0.2
"""Seconds; an item that is delayed by it is soon there, but not at once."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


def delayed(server: ServerProcess, queue: str) -> int:
    """Return how many items of a queue are delayed, as the server's statistics say."""
    with Wire(server) as wire:
        return int(stats(wire, queue)["delayed"])


def test_a_set_with_a_delay(server: ServerProcess) -> None:
    """A reader that waits gets the item, and not before it is due."""
    with Wire(server) as wire:
        begun = time.time()
        wire.ask(b"set one/delay=200 0 0 1\r\na\r\n", b"STORED\r\n")
        wire.ask(b"get one\r\n", b"END\r\n")
        wire.ask(b"get one/t=%d\r\n" % (PATIENCE * 1000), b"VALUE one 0 1\r\na\r\nEND\r\n")
        assert time.time() - begun >= DELAY
        wire.ask(b"set one/delay=3600000 0 0 1 noreply\r\nb\r\n", b"")
        wire.ask(b"get one\r\n", b"END\r\n")
    assert delayed(server, "one") == 1


def test_bad_options_cost_neither_the_data_nor_the_connection(server: ServerProcess) -> None:
    """The next request is served."""
    with Wire(server) as wire:
        for option in (b"delay=x", b"delay=-1", b"delay", b"dealy=1", b"", b"delay=1/delay=2"):
            reply = wire.ask_until(b"set two/%b 0 0 5\r\nflush\r\n" % option, b"\r\n")
            assert reply.startswith(b"CLIENT_ERROR "), reply
        wire.ask(b"set two/delay=0 0 0 1\r\na\r\n", b"STORED\r\n")
        wire.ask(b"get two\r\n", b"VALUE two 0 1\r\na\r\nEND\r\n")


def test_large_items_can_be_delayed(server: ServerProcess) -> None:
    """Also those that are otherwise written by a thread."""
    item = os.urandom(3 << 20)
    with Client(server.address) as client:
        assert client.put("large", item, delay=DELAY)
        assert client.get("large", timeout=PATIENCE) == item


async def test_both_clients(server: ServerProcess) -> None:
    """A relative expiry counts from when the item is due."""
    with Client(server.address) as client:
        assert client.put("client", b"a", DELAY / 4, delay=DELAY) is True
        assert client.put("client", b"later", delay=HOUR)
        with pytest.raises(InvalidRequest):
            client.put("client", b"x", delay=-1)
        assert client.get("client", timeout=PATIENCE) == b"a"
    async with AsyncClient(server.address) as client_2:
        assert await client_2.put("client", b"b", delay=DELAY)
        assert await client_2.put_many("client", [b"c"], delay=2 * DELAY) == [True]
        assert await client_2.get("client", timeout=PATIENCE) == b"b"
        assert await client_2.get("client", timeout=PATIENCE) == b"c"
    assert delayed(server, "client") == 1


def test_the_command_line(server: ServerProcess) -> None:
    """One item, or one for each line."""
    for arguments in (("a",), ("--lines",)):
        done = run_command(
            *("put", "line", *arguments, "--delay", "1h"),
            data=b"b\nc\n",
            environment={"KESTRELMQ_SERVERS": server.address},
        )
        assert done.returncode == 0
    assert delayed(server, "line") == 3


def test_the_api(server: ServerProcess) -> None:
    """The body of a put has a `delay` in seconds."""
    admin = Admin(server)
    body = {"text": "a", "delay": DELAY, "expires_in": 600}
    assert admin.ask("POST", "/api/v1/queues/api/items", body).status == 201
    with Client(server.address) as client:
        assert client.get("api", timeout=PATIENCE) == b"a"
    assert admin.ask("POST", "/api/v1/queues/api/items", {"text": "a", "delay": -1}).status == 400


def test_delayed_items_survive_a_kill(tmp_path: Path) -> None:
    """Each comes once, with its due time, whenever the kill is."""
    with running_server(tmp_path) as server:
        begun = time.time()
        expected = []
        for number in range(6):
            with Client(server.address) as client:
                for place in range(20):
                    item = b"%d %d" % (number, place)
                    assert client.put("jobs", item, delay=place * 0.05)
                    expected.append(item)
                assert client.put("jobs", b"late", delay=HOUR)
            server.kill9()
            server.restart()
        found = []
        with Client(server.address) as client:
            until(lambda: delayed(server, "jobs") == 6)
            while (item := client.get("jobs")) is not None:  # type: ignore[assignment]
                found.append(item)
            server.kill9()
            server.restart()
            assert client.get("jobs") is None
        assert sorted(found) == sorted(expected)
        assert delayed(server, "jobs") == 6
        assert time.time() - begun < HOUR


def test_a_sync_covers_a_delayed_item(tmp_path: Path) -> None:
    """With `sync_journal` at 0 the reply waits for it, and comes."""
    config = '[default]\nsync_journal = "0ms"\n'
    with running_server(tmp_path, config=config) as server, Client(server.address) as client:
        assert client.put_many("jobs", [b"a", b"b"], delay=DELAY) == [True, True]
        assert client.get("jobs", timeout=PATIENCE) == b"a"
        assert client.get("jobs", timeout=PATIENCE) == b"b"


def test_the_library_blocks(tmp_path: Path) -> None:
    """A thread that waits is woken, and the item is there after a restart."""
    with PersistentQueue("jobs", tmp_path) as queue:
        assert queue.add(b"soon", delay=DELAY)
        assert queue.add(b"late", delay=HOUR)
        assert queue.remove() is None
        item = queue.wait_remove(PATIENCE)
        assert item is not None
        assert item.data == b"soon"
        assert queue.add(b"later", delay=2 * DELAY)
    with PersistentQueue("jobs", tmp_path) as queue:
        item = queue.wait_remove(PATIENCE)
        assert item is not None
        assert item.data == b"later"


async def test_the_library_with_asyncio(tmp_path: Path) -> None:
    """A short delay is not held up by a long one, also of before."""
    async with AsyncPersistentQueue("jobs", tmp_path) as queue:
        assert await queue.add(b"late", delay=HOUR)
        assert await queue.add(b"soon", delay=DELAY)
        item = await queue.wait_remove(PATIENCE)
        assert item is not None
        assert item.data == b"soon"
        assert await queue.add(b"later", delay=2 * DELAY)
    async with AsyncPersistentQueue("jobs", tmp_path) as queue:
        item = await queue.wait_remove(PATIENCE)
        assert item is not None
        assert item.data == b"later"


def test_a_collection_of_the_library(tmp_path: Path) -> None:
    """Also without a sweep."""
    for period in (None, 0.05):
        with QueueCollection(tmp_path, sweep_period=period) as queues:
            assert queues.add("jobs", b"soon", delay=DELAY)
            item = queues.queue("jobs").wait_remove(PATIENCE)
            assert item is not None
            assert item.data == b"soon"
