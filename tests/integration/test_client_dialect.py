"""The clients against a server in the dialect that ordinary memcached clients need."""

import socket
from collections.abc import Iterator

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import ServerRefused
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server that echoes keys with their options, and answers `OK`."""
    config = 'memcache_dialect = "memcached"\n'
    with running_server(tmp_path_factory.mktemp("dialect"), config=config) as process:
        yield process


def test_the_server_speaks_the_other_dialect(server: ServerProcess) -> None:
    """Otherwise this module would prove nothing."""
    port = server.ports["memcache"]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw:
        raw.sendall(b"set q 0 0 1\r\nx\r\nget q/open\r\nflush_all\r\nincr q 1\r\nquit\r\n")
        assert b"".join(iter(lambda: raw.recv(4096), b"")) == (
            b"STORED\r\nVALUE q/open 0 1\r\nx\r\nEND\r\nOK\r\nERROR\r\n"
        )


def test_items_come_and_go(client: Client) -> None:
    """By every way to put and to read."""
    assert client.put("work", b"0")
    assert client.put_many("work", [b"%d" % n for n in range(1, 10)]) == [True] * 9
    assert client.peek("work") == b"0"
    assert client.get("work") == b"0"
    with client.reserve("work") as item:
        assert item == b"1"
    with pytest.raises(KeyError), client.reserve("work") as item:
        raise KeyError(item)
    assert list(client.consume("work", max_items=3)) == [b"2", b"3", b"4"]
    with client.monitor("work", 5, 2) as items:
        assert items == [b"5", b"6"]
    assert list(client.consume("work", idle_timeout=0.05)) == [b"7", b"8", b"9"]
    assert client.get("work", timeout=0.05) is None


def test_orders_and_questions_are_answered(client: Client, server: ServerProcess) -> None:
    """The rest of what a client does."""
    client.put("work", b"12345")
    assert client.stats()[server.address]["queue_work_bytes"] == "5"
    assert {queue.name: queue.items for queue in client.queues()}["work"] == 1
    client.flush("work")
    client.put("other", b"x")
    client.flush_all()
    assert (client.get("work"), client.get("other")) == (None, None)
    client.delete("work")
    assert "work" not in {queue.name for queue in client.queues()}
    assert client.status()[server.address].upper() == "UP"
    client.set_status("readonly")
    with pytest.raises(ServerRefused):
        client.put("work", b"x")
    client.set_status("up")
    client.reload()
    assert client.version()[server.address]


async def test_the_asyncio_client_as_well(server: ServerProcess) -> None:
    """It shares the commands, not the connection."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()
        assert await client.put_many("work", [b"1", b"2", b"3", b"4"]) == [True] * 4
        assert await client.get("work") == b"1"
        async with client.reserve("work") as item:
            assert item == b"2"
        async with client.monitor("work", 5, 1) as items:
            assert items == [b"3"]
        assert [item async for item in client.consume("work", idle_timeout=0)] == [b"4"]
        await client.delete("work")
