"""A client that closes its side while a request of it waits: it gets a reply, but no item.

It may be `printf ... | nc`, which reads on, or a client that is gone; the server cannot tell.
"""

import socket
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import frame, thrift_get

pytestmark = pytest.mark.compiled

NO_ITEMS = frame(
    b"\x80\x01\x00\x02\0\0\0\x03get\0\0\0\x07" + b"\x0f\0\0\x0c\0\0\0\0" + b"\0",
)
"""The answer of a thrift `get` that found nothing."""

WAITING = {
    "get": ("memcache", b"get work/t=60000\r\n", b"END\r\n"),
    "get, open": ("memcache", b"get work/t=60000/open\r\n", b"END\r\n"),
    "get, peek": ("memcache", b"get work/t=60000/peek\r\n", b"END\r\n"),
    "get of an alias": ("memcache", b"get alias/t=60000\r\n", b"END\r\n"),
    "get of several": ("memcache", b"get full work/t=60000 full\r\n", b"END\r\n"),
    "get of several, open": ("memcache", b"get full/open work/t=60000\r\n", b"END\r\n"),
    "monitor": ("memcache", b"monitor work 60\r\n", b"END\r\n"),
    "reserve": ("memcache", b"reserve work 9 lease=9999 t=60000 tag=a:1:x\r\n", b"END\r\n"),
    "pipelined": ("memcache", b"get work/t=60000\r\nget full\r\n", b"END\r\n"),
    "behind a reply that waits for a sync": (
        "memcache",
        b"set more 0 0 1\r\nx\r\nget work/t=60000\r\n",
        b"STORED\r\nEND\r\n",
    ),
    "text get": ("text", b"get work 60000\n", b"*\n"),
    "text peek": ("text", b"peek work 60000\n", b"*\n"),
    "text monitor": ("text", b"monitor work 60000\n", b"*\n"),
    "text monitor with an item": ("text", b"monitor full 60000 9\n", b":x\n*\n"),
    "thrift get": ("thrift", thrift_get(b"work", 9, 60_000), NO_ITEMS),
    "thrift get with an item": ("thrift", thrift_get(b"full", 9, 60_000), NO_ITEMS),
    "thrift get of open reads": ("thrift", thrift_get(b"full", 9, 60_000, 9999), NO_ITEMS),
}
"""For each request that waits: its protocol, and all that the client gets. `full` has one item."""


@pytest.mark.parametrize("kind", WAITING)
def test_a_waiting_request_is_answered_without_an_item(tmp_path: Path, kind: str) -> None:
    """The connection closes then, and every item is in its queue."""
    protocol, request, answer = WAITING[kind]
    config = ServerConfig(
        queue_path=tmp_path,
        queues={"more": QueueConfig(sync_journal=0.0)},
        aliases={"alias": {"destination_queues": ["elsewhere"]}},
    )

    async def scenario() -> None:
        full = turning.collection.obtain("full")
        full.add(b"x")
        client = turning.connect(protocol)
        await turning.send(client, request)
        connection = turning.connections[client.fileno()]
        await turning.until(lambda: connection.state == "waiting")
        client.shutdown(socket.SHUT_WR)
        assert await turning.receive(client, answer) == answer
        await turning.until(lambda: not turning.connections)
        assert client.recv(1) == b""
        client.close()
        turning.collection.obtain("work").add(b"y")
        await turning.turn()
        for name, item in (("full", b"x"), ("work", b"y")):
            queue = turning.collection.obtain(name)
            assert [item_data(one) for one in queue.backlog.browse(9)] == [item]
            assert (queue.reads.held, queue.waiters.readers) == (0, 0)

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())


LATE = {
    "behind a request that took several turns": b"stats\r\n" + b"get work/t=60000\r\n",
    "before more input than is buffered": b"get work/t=60000\r\n" + b"version\r\n" * 9000,
}


@pytest.mark.parametrize("kind", LATE)
def test_the_end_of_input_that_is_not_read_ends_a_wait(tmp_path: Path, kind: str) -> None:
    """The server reads no input while the request waits, but does not give it an item."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        client.sendall(LATE[kind])
        client.shutdown(socket.SHUT_WR)
        await turning.receive(client, b"END\r\n")
        await turning.until(lambda: not turning.connections)
        assert turning.collection.obtain("work").waiters.readers == 0
        client.close()

    with Turning(tmp_path) as turning:
        turning.run(scenario())
