"""Large items are sent as they are: not copied, in order, and only when they were written."""

import struct
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.journal.records import item_data
from kestrelmq.server.replies import OUTPUT_LIMIT
from kestrelmq.testing.crashing import CrashingDirectory
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


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift", "reserve"])
def test_it_is_not_copied(tmp_path: Path, protocol: str) -> None:
    """What is left to send of it is in the item's own memory."""
    turning = Turning(tmp_path, config(tmp_path))
    data = DATA.replace(b"\n", b"")
    requests = {
        "memcache": b"get work\r\n",
        "text": b"get work\n",
        "thrift": thrift_get(b"work", 1, 0),
        "reserve": b"reserve work 1 lease=60000\r\n",
    }

    ends = dict.fromkeys(requests, b"\r\nEND\r\n")
    ends |= {"text": b"\n", "thrift": struct.pack(">bhqbb", 10, 2, 0, 0, 0)}

    async def scenario() -> None:
        turning.collection.obtain("work").add(data)
        await turning.turn()
        client = turning.connect("memcache" if protocol == "reserve" else protocol)
        await turning.send(client, requests[protocol])
        connection = turning.connections[client.fileno()]
        await turning.until(lambda: isinstance(connection._unsent, memoryview))
        assert data in await turning.receive(client, data + ends[protocol])
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


@pytest.mark.parametrize("kind", ["get", "open", "several"])
def test_a_read_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    """The reply is an error, and the item is still there."""
    disk = CrashingDirectory.within(tmp_path)
    turning = Turning(disk.path, config(disk.path), directory=disk)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(DATA)
        await turning.turn()
        client = turning.connect("memcache")
        disk.break_steps("append")
        await turning.send(client, REPLIES[kind][0])
        assert (await turning.receive(client, b"\r\n")).startswith(b"SERVER_ERROR")
        disk.mend()
        await turning.hang_up(client)
        assert [item_data(record) for record in queue.browse(2)] == [DATA]

    with turning:
        turning.run(scenario())
