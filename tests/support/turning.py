"""The server's loop in the process of a test, which sends and then looks at what is left."""

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from kestrelmq.clock import TurnClock
from kestrelmq.config import ServerConfig
from kestrelmq.disk.directories import Directory
from kestrelmq.names import queue_name_error
from kestrelmq.protocol.memcache import Parser
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.counters import Counters
from kestrelmq.scheduling.worker import ThreadWorker, Worker
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.context import ServerContext
from kestrelmq.server.loop.event_loop import ServerEventLoop
from kestrelmq.server.loop.turns import TurnLoop
from kestrelmq.server.sessions.memcache import MemcacheSession
from kestrelmq.server.sessions.text import TextSession
from kestrelmq.server.sessions.thrift import ThriftSession
from kestrelmq.server.sessions.thrift_reads import ThriftOpenReads
from kestrelmq.server.status import ServerStatus, Status
from kestrelmq.server.tls import TlsTransport
from tests.support.patience import PATIENCE

_SENT_AT_ONCE: Final = 1 << 16


class Turning:
    """A server's loop, with its queues and its sessions, but without listeners.

    Attributes:
        collection: the queues.
        turns: serves the connections.
        context: what the sessions share.
        connections: those that are not closed yet, by their client's descriptor.
        parser: reads the lines of the memcache clients.
    """

    def __init__(
        self,
        path: Path,
        config: ServerConfig | None = None,
        *,
        directory: Directory | None = None,
        writer: Worker | None = None,
    ) -> None:
        self._config = config or ServerConfig(queue_path=path)
        clock = TurnClock()
        self.collection = QueueCollection(self._config, clock, directory)
        self.turns = TurnLoop(clock, self.collection.commits)
        self.connections: dict[int, Connection] = {}
        self._loop = ServerEventLoop(self.turns.selector)
        self._counters = Counters()
        if writer is None:
            writer = ThreadWorker(self._loop.call_soon_threadsafe)
        self._writer = self.collection.deletions.worker = self.collection.commits.writer = writer
        self.parser = Parser(self._config.memcache_dialect, queue_name_error)
        self._thrift_reads = ThriftOpenReads()

    def __enter__(self) -> Self:
        self.collection.open()
        config = self._config
        status = ServerStatus(
            None, Status.UP, config.status_change_grace_period, TurnClock(), self._loop.call_later
        )
        self.context = ServerContext(
            config,
            self.collection,
            status,
            self._counters,
            self.turns,
            self._writer,
            self._loop,
            no_reload,
            lambda: None,
            self.connections,
        )
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self.connections.values()):
            connection.close()
        self._writer.close()
        self.turns.close()
        self.collection.close()
        self._loop.close()

    def run(self, scenario: Awaitable[None]) -> None:
        """Run the loop until `scenario` is over."""

        async def limited() -> None:
            await asyncio.wait_for(scenario, PATIENCE)

        self._loop.run_until_complete(limited())

    def connect(self, protocol: str) -> socket.socket:
        """Return a client's end of a new connection; it does not block."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.serve(theirs, ours.fileno(), protocol)
        return ours

    def serve(self, client: socket.socket | TlsTransport, number: int, protocol: str) -> Connection:
        """Serve a client; `number` is that of the connection."""
        self._counters.curr_connections += 1
        connection = Connection(
            client, number, protocol, str(number), self.turns, self._counters, self._closed
        )
        self.connections[number] = connection
        connection.start(self._new_session(protocol, connection))
        return connection

    def _closed(self, connection: Connection) -> None:
        self._counters.curr_connections -= 1
        del self.connections[connection.id]

    def _new_session(self, protocol: str, connection: Connection) -> Session:
        match protocol:
            case "memcache":
                return MemcacheSession(connection, self.context, self.parser)
            case "text":
                return TextSession(connection, self.context)
            case _:
                return ThriftSession(connection, self.context, self._thrift_reads)

    async def turn(self) -> None:
        """Let the loop serve who is ready, once at least."""
        await self.turns.committed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop serve until something is so."""
        while not condition():
            await self.turn()
            await asyncio.sleep(0)

    async def send(self, client: socket.socket, data: bytes) -> None:
        """Send all of `data`, and return when the server has received it."""
        before = self._counters.bytes_read
        left = memoryview(data)
        while left:
            try:
                left = left[client.send(left[:_SENT_AT_ONCE]) :]
            except BlockingIOError:
                await self.turn()
        await self.until(lambda: self._counters.bytes_read - before >= len(data))

    async def receive(self, client: socket.socket, end: bytes) -> bytes:
        """Return what comes, up to and with `end`, after which nothing comes."""
        received = bytearray()
        while not received.endswith(end):
            received += await self.receive_some(client)
        return bytes(received)

    async def receive_some(self, client: socket.socket) -> bytes:
        """Return what has come; if that is nothing, let the loop serve first.

        At the end of the connection this fails: what a test waits for cannot come any more.
        """
        try:
            some = client.recv(1 << 20)
        except BlockingIOError:
            await self.turn()
            return b""
        assert some, "the server has ended the connection"
        return some

    async def hang_up(self, client: socket.socket) -> None:
        """Close the client's end, and return when the server has closed its own."""
        number = client.fileno()
        client.close()
        await self.until(lambda: number not in self.connections)
        await self.turn()


@contextmanager
def no_collector() -> Iterator[None]:
    """Let nothing free memory but the last reference to it, for the length of a `with` block.

    `alive` finds only what was made in the block.
    """
    gc.collect()
    gc.disable()
    gc.freeze()  # and no `unfreeze`: the next block would have to look at it all again
    try:
        yield
    finally:
        gc.enable()


def alive(*kinds: type) -> list[str]:
    """Return the type of each object that is an instance of one of `kinds`.

    The objects that were there before `no_collector` are not looked at: there may be millions.
    """
    return [type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds)]


async def no_reload() -> list[str]:
    """Reload nothing: there is no configuration file."""
    return []
