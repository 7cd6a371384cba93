"""One connection of the blocking client, and the pool that keeps those that are not in use.

A connection runs one command at a time, for one thread at a time. After any error it is closed, so
that no reply can be taken for another request's; the server then takes its open reads back.
"""

import select
import socket
import time
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from kestrelmq.client.address import Address
from kestrelmq.client.commands import Command, Reading
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import (
    ClientClosed,
    ConnectionLost,
    OperationTimeout,
    ProtocolError,
    ServerUnavailable,
)
from kestrelmq.protocol.memcache_client import Reply, ReplyParser

T = TypeVar("T")

_CHUNK = 256 * 1024


class Connection:
    """A connection to one server; `open` makes it."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self.address = address
        self._options = options
        self._parser = ReplyParser(options.max_item_bytes)
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Connect.

        Raises:
            ServerUnavailable: it cannot be done in time.
        """
        target = (self.address.host, self.address.port)
        try:
            self._socket = socket.create_connection(target, self._options.connect_timeout)
        except OSError as error:
            raise ServerUnavailable(f"{self.address}: {_reason(error)}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def close(self) -> None:
        """Close the connection; the server takes its open reads back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def is_open(self) -> bool:
        """Whether neither side is known to have closed it."""
        return self._socket is not None

    def is_usable(self) -> bool:
        """Whether the connection is open and the server has not closed it meanwhile."""
        if self._socket is None or not self._parser.is_idle:
            return False
        # Nothing is asked, so anything to read is the end of the connection, or a stray reply.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def run(self, command: Command[T]) -> T:
        """Send `command` and return the result of its reply.

        Raises:
            ServerUnavailable: it was not sent as a whole, so nothing happened.
            ConnectionLost: the connection ended before the reply did.
            OperationTimeout: the reply took too long.
            ServerRefused: the server answered with an error.
            ProtocolError: the server sent something else.
        """
        deadline = time.monotonic() + self._options.operation_timeout + command.wait
        try:
            unsent = self._send(command, deadline)
            return self._receive(command.reading(), deadline, unsent)
        except BaseException:
            self.close()
            raise

    def _send(self, command: Command[T], deadline: float) -> Exception | None:
        """Send the request; return what kept it from being sent as a whole."""
        rest = memoryview(command.request)
        try:
            while rest:
                rest = rest[self._until(deadline).send(rest) :]
        except OSError as error:
            if command.parts > 1 and len(rest) < len(command.request):
                return ConnectionLost(f"{self.address}: {_reason(error)}")
            return ServerUnavailable(f"{self.address}: {_reason(error)}")
        return None

    def _receive(self, reading: Reading[T], deadline: float, unsent: Exception | None) -> T:
        next(reading)
        replies: deque[Reply] = deque()
        try:
            while True:
                try:
                    replies.extend(self._parser.feed(self._read(deadline, unsent)))
                except ConnectionLost as error:
                    # Some replies are complete only when the connection ends.
                    self.close()
                    reading.throw(error)
                while replies:
                    reading.send(replies.popleft())
        except StopIteration as done:
            if replies or not self._parser.is_idle:
                raise ProtocolError(f"{self.address}: more replies than requests") from None
            result: T = done.value
            return result

    def _read(self, deadline: float, unsent: Exception | None) -> bytes:
        try:
            data = self._until(deadline).recv(_CHUNK)
        except TimeoutError as error:
            raise unsent or OperationTimeout(f"{self.address}: no reply in time") from error
        except OSError as error:
            raise unsent or ConnectionLost(f"{self.address}: {_reason(error)}") from error
        if not data:
            raise unsent or ConnectionLost(f"{self.address}: the server closed the connection")
        return data

    def _until(self, deadline: float) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("the connection is closed")
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        return self._socket


class Pool:
    """The connections of one client that are not in use. Thread-safe."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._idle: dict[Address, list[Connection]] = {}
        self._closed = False
        self._lock = Lock()

    def acquire(self, address: Address) -> Connection:
        """Return a connection that nobody else uses, made now if need be.

        Raises:
            ClientClosed: the pool is closed.
            ServerUnavailable: it cannot be made.
        """
        while (connection := self._take(address)) is not None:
            if connection.is_usable():
                return connection
            connection.close()
        connection = Connection(address, self._options)
        connection.open()
        return connection

    def release(self, connection: Connection) -> None:
        """Take a connection back, to be used again or closed."""
        with self._lock:
            idle = self._idle.setdefault(connection.address, [])
            keep = (
                connection.is_open
                and not self._closed
                and len(idle) < self._options.max_idle_connections
            )
            if keep:
                idle.append(connection)
        if not keep:
            connection.close()

    def close(self) -> None:
        """Close every connection that is here, and those that come back later."""
        with self._lock:
            self._closed = True
            connections = [c for idle in self._idle.values() for c in idle]
            self._idle.clear()
        for connection in connections:
            with suppress(OSError):
                connection.close()

    def check_open(self) -> None:
        """Raise `ClientClosed` when the pool is closed."""
        if self._closed:
            raise ClientClosed("the client is closed")

    def _take(self, address: Address) -> Connection | None:
        with self._lock:
            self.check_open()
            idle = self._idle.get(address)
            return idle.pop() if idle else None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
