"""Large items are sent as they are: not copied, in order, and only when they were written."""

import struct
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data
from kestrelmq.server.loop.turns import LARGE_SHARE
from kestrelmq.server.replies import OUTPUT_LIMIT
from tests.support.crashing_directory import CrashingDirectory
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import thrift_get

pytestmark = pytest.mark.compiled

DATA = bytes(range(11, 250)) * (3 * OUTPUT_LIMIT // 239)
VALUE = b"VALUE work 0 %d\r\n%b\r\n" % (len(DATA), DATA)
SMALL = b"VALUE small 0 1\r\nx\r\n"

REPLIES = {
    "get": (b"get work\r\n", VALUE + b"END\r\n"),
    "open": (b"get work/open\r\n", VALUE + b"END\r\n"),
    "peek": (b"get work/peek\r\n", VALUE + b"END\r\n"),
    "several": (b"get work small\r\n", VALUE + SMALL + b"END\r\n"),
    "monitor": (b"monitor work 0 1\r\n", VALUE + b"END\r\n" + b"END\r\n"),
}


def config(path: Path, sync: float | None = None) -> ServerConfig:
    """Return settings that let the item in."""
    return ServerConfig(queue_path=path, default=QueueConfig(sync_journal=sync))


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("sync", [None, 0.0], ids=["unsynced", "synced"])
def test_what_memcache_clients_get(tmp_path: Path, kind: str, sync: float | None) -> None:
    """The item, whole, and then the replies to the requests behind."""
    request, reply = REPLIES[kind]
    turning = Turning(tmp_path, config(tmp_path, sync))

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(DATA)
        turning.collection.obtain("small").add(b"x")
        await turning.turn()
        client = turning.connect("memcache")
        await turning.send(client, request + b"get none\r\nget small/open\r\n")
        behind = b"END\r\n" + (b"" if kind == "several" else SMALL) + b"END\r\n"
        assert await turning.receive(client, behind) == reply + behind
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


def thrift_call(method: bytes, arguments: bytes) -> bytes:
    """Return the frame of a call."""
    name = struct.pack(">HBBi", 0x8001, 0, 1, len(method)) + method
    message = name + struct.pack(">i", 1) + arguments + b"\0"
    return struct.pack(">i", len(message)) + message


NAME = struct.pack(">bhi", 11, 1, 4) + b"work"
REQUESTS = {
    "memcache get": (b"get work\r\n", b"\r\nEND\r\n"),
    "memcache reserve": (b"reserve work 1 lease=60000\r\n", b"\r\nEND\r\n"),
    "memcache browse": (b"browse work 0 1\r\n", b"\r\nEND\r\n"),
    "text get": (b"get work\n", b"\n"),
    "thrift get": (thrift_get(b"work", 1, 0), struct.pack(">bhqbb", 10, 2, 0, 0, 0)),
    "thrift peek": (
        thrift_call(b"peek", NAME),
        struct.pack(">bhibhib", 8, 6, 0, 8, 7, 0, 0) + b"\0",
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_large_item_is_not_copied(tmp_path: Path, kind: str) -> None:
    """What is left to send of it is in the item's own memory."""
    turning = Turning(tmp_path, config(tmp_path))
    data = DATA.replace(b"\n", b"")
    request, end = REQUESTS[kind]

    async def scenario() -> None:
        turning.collection.obtain("work").add(data)
        await turning.turn()
        client = turning.connect(kind.split(maxsplit=1)[0])
        await turning.send(client, request)
        connection = turning.connections[client.fileno()]
        await turning.until(lambda: isinstance(connection._unsent, memoryview))
        assert data in await turning.receive(client, end)
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


@pytest.mark.parametrize(
    "request_",
    [*(REPLIES[name][0] for name in ("get", "open", "several")), b"reserve work 1 lease=60000\r\n"],
)
def test_a_read_that_cannot_be_written(tmp_path: Path, request_: bytes) -> None:
    """The reply is an error, and the item is still there."""
    disk = CrashingDirectory.within(tmp_path)
    turning = Turning(disk.path, config(disk.path), directory=disk)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(DATA)
        await turning.turn()
        await turning.until(lambda: not queue.core.is_writing)
        client = turning.connect("memcache")
        disk.break_steps("append")
        await turning.send(client, request_)
        assert (await turning.receive(client, b"\r\n")).startswith(b"SERVER_ERROR")
        disk.mend()
        await turning.hang_up(client)
        assert [item_data(record) for record in queue.backlog.browse(2)] == [DATA]

    with turning:
        turning.run(scenario())


@pytest.mark.parametrize("kind", ["memcache get", "memcache peek", "text get", "thrift get"])
def test_of_many_clients_only_some_are_served_large_items_in_a_turn(
    tmp_path: Path, kind: str
) -> None:
    """Whoever asks for something else is served after those, not after all."""
    item = b"x" * (1 << 19)
    count = 3 * LARGE_SHARE // len(item)
    protocol = kind.split(maxsplit=1)[0]
    request, end = {**REQUESTS, "memcache peek": (b"get work/peek\r\n", b"\r\nEND\r\n")}[kind]
    turning = Turning(tmp_path)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        for _ in range(count):
            queue.add(item)
        await turning.turn()
        clients = [turning.connect(protocol) for _ in range(count)]
        for client in clients:
            client.send(request)
        in_turns = []
        for client in clients:
            received = bytearray()
            while not received.endswith(end):
                received += await turning.receive_some(client)
                in_turns.append(turning.turns.large_output)
            client.close()
        assert LARGE_SHARE < max(in_turns) <= LARGE_SHARE + 2 * len(item)

    with turning:
        turning.run(scenario())
