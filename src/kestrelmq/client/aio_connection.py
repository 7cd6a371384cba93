"""One connection of the asyncio client, and the pool that keeps those that are not in use.

The same rules as in `connection`: one command at a time, and closed after any error, which includes
the cancelling of the task that waits for the reply.
"""

import asyncio
from collections import deque
from typing import Any, TypeVar

from kestrelmq.client.address import Address
from kestrelmq.client.commands import Command, Reading
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import (
    ClientClosed,
    ConnectionLost,
    KestrelError,
    OperationTimeout,
    ProtocolError,
    ServerUnavailable,
)
from kestrelmq.protocol.memcache_client import Reply, ReplyParser

T = TypeVar("T")


class AsyncConnection(asyncio.Protocol):
    """A connection to one server; `open` makes it."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self.address = address
        self._options = options
        self._parser = ReplyParser(options.max_item_bytes)
        self._transport: asyncio.Transport | None = None
        self._reading: Reading[Any] | None = None
        self._result: asyncio.Future[Any] | None = None
        # Whether some of the request still waits on our side.
        self._unsent = False

    async def open(self) -> None:
        """Connect.

        Raises:
            ServerUnavailable: it cannot be done in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                await loop.create_connection(lambda: self, self.address.host, self.address.port)
        except TimeoutError as error:
            raise ServerUnavailable(f"{self.address}: timed out") from error
        except OSError as error:
            raise ServerUnavailable(f"{self.address}: {_reason(error)}") from error

    def close(self) -> None:
        """Close the connection; the server takes its open reads back."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    @property
    def is_usable(self) -> bool:
        """Whether neither side has closed it, and nothing came that was not asked for."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._parser.is_idle
        )

    async def run(self, command: Command[T]) -> T:
        """Send `command` and return the result of its reply; the errors are `Connection.run`'s."""
        if self._transport is None or self._transport.is_closing():
            raise ServerUnavailable(f"{self.address}: the connection is closed")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        reading = command.reading()
        next(reading)
        self._reading, self._result = reading, result
        try:
            async with asyncio.timeout(self._options.operation_timeout + command.wait):
                self._transport.write(command.request)
                return await result
        except TimeoutError as error:
            never_sent = self._unsent and command.parts == 1
            self.close()
            kind = ServerUnavailable if never_sent else OperationTimeout
            raise kind(f"{self.address}: no reply in time") from error
        except ConnectionLost as error:
            never_sent = self._unsent and command.parts == 1
            self.close()
            if never_sent:
                raise ServerUnavailable(str(error)) from error
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._reading = self._result = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a client needs a stream transport")
        # No room on our side, so that we are told whether all was sent.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport

    def pause_writing(self) -> None:
        """Note that a part of the request waits."""
        self._unsent = True

    def resume_writing(self) -> None:
        """Note that all was sent."""
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        """Read replies."""
        replies: deque[Reply] = deque()
        try:
            replies.extend(self._parser.feed(data))
            if replies and (self._reading is None or self._result is None):
                raise ProtocolError(f"{self.address}: a reply to no request")
            while replies and self._reading is not None:
                self._reading.send(replies.popleft())
        except StopIteration as done:
            if replies or not self._parser.is_idle:
                self._fail(ProtocolError(f"{self.address}: more replies than requests"))
            else:
                self._finish(done.value)
        except KestrelError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the reading that waits, if any."""
        self._transport = None
        if self._reading is None:
            return
        reason = _reason(exc) if exc is not None else "the server closed the connection"
        try:
            self._reading.throw(ConnectionLost(f"{self.address}: {reason}"))
        except StopIteration as done:
            self._finish(done.value)
        except KestrelError as error:
            self._fail(error)

    def _finish(self, value: object) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_result(value)
        self._reading = None

    def _fail(self, error: KestrelError) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_exception(error)
        self._reading = None
        self.close()


class AsyncPool:
    """The connections of one asyncio client that are not in use; for one event loop."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._idle: dict[Address, list[AsyncConnection]] = {}
        self._closed = False

    async def acquire(self, address: Address) -> AsyncConnection:
        """Return a connection that nobody else uses, made now if need be.

        Raises:
            ClientClosed: the pool is closed.
            ServerUnavailable: it cannot be made.
        """
        self.check_open()
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        connection = AsyncConnection(address, self._options)
        await connection.open()
        return connection

    def check_open(self) -> None:
        """Raise `ClientClosed` when the pool is closed."""
        if self._closed:
            raise ClientClosed("the client is closed")

    def release(self, connection: AsyncConnection) -> None:
        """Take a connection back, to be used again or closed."""
        idle = self._idle.setdefault(connection.address, [])
        room = len(idle) < self._options.max_idle_connections
        if connection.is_usable and room and not self._closed:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close every connection that is here, and those that come back later."""
        self._closed = True
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).lower()
