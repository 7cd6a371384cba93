"""What a connection leaves behind when it is closed: nothing, and nothing for a collector to find.

A collection of cycles may come minutes later, and until then it would keep all that a client sent
and all that it did not read.
"""

import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.protocol.text import TextParser
from kestrelmq.protocol.thrift import ThriftParser
from kestrelmq.queue.waiters import Waiter
from kestrelmq.server.connection import Connection
from kestrelmq.server.long_reply import LongReply
from kestrelmq.server.replies import Replies
from kestrelmq.server.requests.put import PendingPut
from kestrelmq.server.requests.reads import PendingRead
from kestrelmq.server.requests.reserving import ConnectionOwners, PendingReserve
from kestrelmq.server.sessions.large_item import ArrivingItem
from kestrelmq.server.sessions.memcache import MemcacheSession
from kestrelmq.server.sessions.memcache_reads import MemcacheGet, MemcacheMonitor
from kestrelmq.server.sessions.memcache_reserving import MemcacheReserving
from kestrelmq.server.sessions.text import TextRead, TextSession
from kestrelmq.server.sessions.thrift import ThriftGet, ThriftSession
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.patience import PATIENCE, until
from tests.support.turning import Turning, alive, no_collector

pytestmark = pytest.mark.compiled

OWNED: Final = (
    Connection,
    MemcacheSession,
    TextSession,
    ThriftSession,
    Replies,
    ArrivingItem,
    PendingRead,
    MemcacheGet,
    MemcacheMonitor,
    MemcacheReserving,
    PendingReserve,
    ConnectionOwners,
    TextRead,
    TextParser,
    ThriftGet,
    ThriftParser,
    PendingPut,
    LongReply,
    Waiter,
)
"""What belongs to one connection."""

State = Callable[[Turning, socket.socket], Awaitable[None]]


def frame(content: bytes) -> bytes:
    """Return a thrift frame."""
    return struct.pack(">i", len(content)) + content


def thrift_get(queue: bytes, most: int, timeout: int, auto_abort: int = 0) -> bytes:
    """Return the frame that asks for items."""
    head = struct.pack(">HHi", 0x8001, 1, 3) + b"get" + struct.pack(">i", 7)
    name = struct.pack(">bhi", 11, 1, len(queue)) + queue
    numbers = ((2, most), (3, timeout), (4, auto_abort))
    fields = b"".join(struct.pack(">bhi", 8, field, number) for field, number in numbers)
    return frame(head + name + fields + b"\0")


def thrift_put(queue: bytes, *items: bytes) -> bytes:
    """Return the frame that adds items."""
    head = struct.pack(">HHi", 0x8001, 1, 3) + b"put" + struct.pack(">i", 8)
    name = struct.pack(">bhi", 11, 1, len(queue)) + queue
    listed = b"".join(struct.pack(">i", len(item)) + item for item in items)
    return frame(head + name + struct.pack(">bhbi", 15, 2, 11, len(items)) + listed + b"\0")


def sent(protocol: str, *requests: bytes) -> tuple[str, State]:
    """Return a state that a connection is in after it sent `requests`, one after the other."""

    async def begin(turning: Turning, client: socket.socket) -> None:
        for request in requests:
            await turning.send(client, request)

    return protocol, begin


def answered(protocol: str, *exchanges: tuple[bytes, bytes]) -> tuple[str, State]:
    """Return a state that a connection is in after it read what it asked for."""

    async def begin(turning: Turning, client: socket.socket) -> None:
        for request, end in exchanges:
            await turning.send(client, request)
            await turning.receive(client, end)

    return protocol, begin


def unread(protocol: str, add: bytes, request: bytes) -> tuple[str, State]:
    """Return a state in which more replies are due than its client reads."""

    async def begin(turning: Turning, client: socket.socket) -> None:
        other = turning.connect("memcache")
        await turning.send(other, add * 3)
        await turning.receive(other, b"STORED\r\n" * 3)
        await turning.hang_up(other)
        await turning.send(client, request)
        await turning.until(lambda: turning.connections[client.fileno()].paused > 0)

    return protocol, begin


SERVED: Final = {"memcache": b"\r\n", "text": b":x\n", "thrift": b"\0"}
"""How a reply with the item `x` ends."""


def served(protocol: str, request: bytes) -> tuple[str, State]:
    """Return a state that a connection is in after another one served its waiting read."""

    async def begin(turning: Turning, client: socket.socket) -> None:
        await turning.send(client, request)
        other = turning.connect("memcache")
        await turning.send(other, b"set work 0 0 1\r\nx\r\n")
        assert await turning.receive(other, b"STORED\r\n")
        await turning.receive(client, SERVED[protocol])
        await turning.hang_up(other)

    return protocol, begin


BIG: Final = b"set work 0 0 3000000\r\n%b\r\n" % bytes(3_000_000)
LINE: Final = b"set work 0 0 3000000\r\n%b\r\n" % (b"x" * 3_000_000)

STATES: Final = {
    "idle memcache": sent("memcache"),
    "idle text": sent("text"),
    "idle thrift": sent("thrift"),
    "unfinished line": sent("memcache", b"get wo"),
    "unfinished small set": sent("memcache", b"set work 0 0 60000\r\n", bytes(30_000)),
    "unfinished large set": sent("memcache", b"set work 0 0 9000000\r\n", bytes(2_000_000)),
    "unwanted item": sent("memcache", b"set small 0 0 9000000\r\n", bytes(2_000_000)),
    "bad line": answered("memcache", (b"get work/strange\r\n", b"\r\n")),
    "bad data": sent("memcache", b"set work 0 0 2\r\nabcd\r\n"),
    "refused get": answered("memcache", (b"get alias\r\n", b"END\r\n")),
    "finished get": answered("memcache", (b"get work/peek other\r\n", b"END\r\n")),
    "open read": answered("memcache", (BIG + b"get work/open\r\n", b"END\r\n")),
    "waiting get": sent("memcache", b"get work/t=60000\r\n"),
    "waiting get of several": sent("memcache", b"get other/t=60000 work/t=60000\r\n"),
    "served get": served("memcache", b"get work/t=60000\r\n"),
    "timed out get": answered("memcache", (b"get work/t=1\r\n", b"END\r\n")),
    "waiting monitor": sent("memcache", b"monitor work 60\r\n"),
    "served monitor": served("memcache", b"monitor work 60\r\n"),
    "ended monitor": answered("memcache", (b"monitor work 0\r\n", b"END\r\n")),
    "unread get": unread("memcache", BIG, b"get work\r\n"),
    "unread gets": unread("memcache", BIG, b"get work/peek\r\n" * 9),
    "reserved": answered("memcache", (BIG + b"reserve work 9 lease=9999 owner=w\r\n", b"END\r\n")),
    "waiting reserve": sent("memcache", b"reserve other,work 9 lease=9999 t=60000 owner=w\r\n"),
    "served reserve": served("memcache", b"reserve other,work 9 lease=9999 t=60000\r\n"),
    "unread reserve": unread("memcache", BIG, b"reserve work 9 lease=9999\r\n"),
    "unread monitor": unread("memcache", BIG, b"monitor work 60\r\n"),
    "unread get of several": unread("memcache", BIG, b"get work work work\r\n"),
    "unfinished put": sent("text", b"put work:\n" + b"x" * 2_000_000),
    "malformed put": sent("text", b"put work 1 2 3:\nitem\n"),
    "malformed command": answered("text", (b"get\n", b"\n")),
    "waiting text get": sent("text", b"get work 60000\n"),
    "served text get": served("text", b"get work 60000\n"),
    "text peek": answered("text", (b"peek work\n", b"*\n")),
    "timed out text get": answered("text", (b"get work 1\n", b"*\n")),
    "waiting text monitor": sent("text", b"monitor work 60000\n"),
    "unread text get": unread("text", LINE, b"get work\n"),
    "unread text monitor": unread("text", LINE, b"monitor work 60000\n"),
    "unfinished frame": sent("thrift", struct.pack(">i", 9_000_000), bytes(2_000_000)),
    "nonsense": sent("thrift", frame(b"\x80\x01\x00\x01nonsense")),
    "thrift get": sent("thrift", thrift_get(b"work", 10, 0)),
    "refused thrift get": sent("thrift", thrift_get(b"a/b", 10, 0)),
    "waiting thrift get": sent("thrift", thrift_get(b"work", 10, 60_000, 1000)),
    "served thrift get": served("thrift", thrift_get(b"work", 1, 60_000, 1000)),
    "unread thrift get": unread("thrift", BIG, thrift_get(b"work", 10, 0)),
}


def configured(path: Path) -> ServerConfig:
    """Return settings with a queue of small items."""
    return ServerConfig(queue_path=path, queues={"small": QueueConfig(max_item_size=1000)})


@pytest.mark.parametrize("state", STATES)
def test_memory_of_a_closed_connection(tmp_path: Path, state: str) -> None:
    """Its last reference goes with it, whatever the connection was in the middle of."""
    protocol, begin = STATES[state]

    async def scenario() -> None:
        client = turning.connect(protocol)
        await begin(turning, client)
        await turning.hang_up(client)
        await turning.until(lambda: not turning.connections)
        await turning.until(lambda: turning.collection.commits.writing is None)

    with Turning(tmp_path, configured(tmp_path)) as turning, no_collector():
        turning.run(scenario())
        until(lambda: not alive(*OWNED))  # a thread that wrote for one may still be ending


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_memory_of_a_connection_whose_item_was_being_written(tmp_path: Path, protocol: str) -> None:
    """It is held until the item is written, and no longer."""
    request = {
        "memcache": BIG,
        "text": b"put work:\n" + b"x" * 3_000_000 + b"\n\n",
        "thrift": thrift_put(b"work", bytes(3_000_000)),
    }[protocol]

    async def scenario() -> None:
        other, client = turning.connect("memcache"), turning.connect(protocol)
        await turning.send(other, b"set work 0 0 1\r\nx\r\n")
        await turning.send(client, request)
        await turning.until(lambda: len(worker) > 0)
        await turning.hang_up(other)
        for connection in list(turning.connections.values()):
            connection.close()
        client.close()
        assert worker.step()
        await turning.turn()

    worker = HeldWorker()
    with Turning(tmp_path, writer=worker) as turning, no_collector():
        turning.run(scenario())
        until(lambda: not alive(*OWNED))  # a thread that wrote for one may still be ending


def test_memory_of_a_connection_whose_replies_waited_for_a_sync(tmp_path: Path) -> None:
    """It is free when the sync is done."""
    directory = CrashingDirectory.within(tmp_path)
    config = ServerConfig(queue_path=directory.path, default=QueueConfig(sync_journal=0))
    disk_works = threading.Event()

    def waits(point: str) -> bool:
        """Let the sync of the queue's file take until the test lets it end."""
        assert point != "sync work" or disk_works.wait(PATIENCE)
        return False

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"set work 0 0 1\r\nx\r\nget work\r\n")
        await turning.until(lambda: any(one.is_held for one in turning.connections.values()))
        await turning.hang_up(client)
        disk_works.set()
        await turning.until(lambda: not alive(Connection))

    directory.fail = waits
    with Turning(directory.path, config, directory=directory) as turning, no_collector():
        turning.run(scenario())
        until(lambda: not alive(*OWNED))  # a thread that wrote for one may still be ending


def test_memory_of_connections_whose_requests_failed(tmp_path: Path) -> None:
    """A queue that remembers why its disk failed does not remember who asked."""
    directory = CrashingDirectory.within(tmp_path)
    directory.break_steps("append")

    async def scenario() -> None:
        for protocol, request in (
            ("memcache", b"set work 0 0 1\r\nx\r\nflush work\r\nget work/open work\r\n"),
            ("memcache", b"set work 0 0 1\r\nx\r\nflush work\r\nset work 0 0 1\r\ny\r\n"),
            ("text", b"put work:\nx\n\nflush work\nget work\n"),
            ("thrift", thrift_put(b"work", b"x") + thrift_get(b"work", 1, 0)),
        ):
            client = turning.connect(protocol)
            await turning.send(client, request)
            await turning.turn()
            await turning.hang_up(client)

    with Turning(directory.path, directory=directory) as turning, no_collector():
        turning.run(scenario())
        assert turning.collection.queues["work"].core.failure is not None
        until(lambda: not alive(*OWNED))  # a thread that wrote for one may still be ending
