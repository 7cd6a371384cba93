"""The asyncio client: the same as `Client` in `blocking`, with `await`. Both use `plans`.

A client belongs to one event loop; any number of its tasks may use it at the same time. If a task
is cancelled during an operation, the connection of the operation is closed, so that an item that
the server was sending for an open read goes back to its queue.
"""

# these timeouts are sent to the server: how long it waits for an item

import asyncio
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from kestrelmq.client.address import CONNECT_PAUSE, Address, try_unix_socket
from kestrelmq.client.base import AsyncBlocks, Begun
from kestrelmq.client.commands import Command
from kestrelmq.client.core import (
    Exchange,
    IoRequest,
    OpenConnection,
    RunCommand,
)
from kestrelmq.client.heartbeats import LEASE_ENDED
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.plans import PauseStep, Plan
from kestrelmq.client.reserved import (
    ItemData,
    ItemOperations,
)
from kestrelmq.errors import (
    ConnectionLost,
    InvalidRequest,
    KestrelError,
    OperationTimeout,
    ProtocolError,
    ServerUnavailable,
)
from kestrelmq.forks import UserProcess
from kestrelmq.protocol.memcache_client import ReplyParser

T = TypeVar("T")

_log: Final = logging.getLogger("kestrelmq.client")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class AsyncConnection(asyncio.Protocol):
    """A connection to one server; `open` connects it.

    As in `Connection`, it runs one command at a time and is closed after any error. It is also
    closed when the task that waits for the reply is cancelled.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self.address = address
        self.name = secrets.token_hex(8)
        self._process = UserProcess().begin()
        self._options = options
        self._parser = ReplyParser(options.max_item_bytes)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange[Any] | None = None
        self._result: asyncio.Future[Any] | None = None
        # The end of the time for a reply, if that counts anew from each part.
        self._limit: asyncio.Timeout | None = None
        # Whether a part of the request is still in our send buffer.
        self._unsent = False

    async def open(self) -> None:
        """Connect. Raises as `Connection.open` does."""
        self._parser = ReplyParser(self._options.max_item_bytes)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                if self.address.path:
                    opened = await _unix_socket(self.address.path)
                    await loop.create_connection(lambda: self, sock=opened)
                else:
                    host, port = self.address.host, self.address.port
                    tls = self._options.tls_context
                    await loop.create_connection(lambda: self, host, port, ssl=tls)
        except TimeoutError as error:
            raise ServerUnavailable(f"{self.address}: timed out") from error
        except OSError as error:
            raise ServerUnavailable(f"{self.address}: {_reason(error)}") from error

    def close(self) -> None:
        """Close the connection; items of its open reads go back to their queues."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if self._process.is_another:
            _close_copy(transport)
        else:
            transport.abort()

    def interrupt(self) -> None:
        """End the connection; a task that uses it finds it broken."""
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed the connection."""
        return self._transport is not None and not self._transport.is_closing()

    def is_usable(self) -> bool:
        """Whether it is open and no unexpected data has arrived."""
        return self.is_open and self._parser.is_idle

    async def run(self, command: Command[T]) -> T:
        """Send `command` and return the result of its reply. Raises as `Connection.run` does."""
        if self._transport is None or self._transport.is_closing():
            raise ServerUnavailable(f"{self.address}: the connection is closed")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._exchange, self._result = Exchange(self.address, self._parser, command), result
        try:
            async with asyncio.timeout(self._options.operation_timeout + command.wait) as limit:
                self._limit = limit if command.is_listing else None
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
            self._exchange = self._result = self._limit = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a client needs a stream transport")
        # With a limit of 0, asyncio calls `pause_writing` whenever anything is still unsent; with
        # TLS, when nothing is, too, so that has a limit of 1.
        has_tls = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=1 if has_tls else 0)
        self._transport = transport

    def pause_writing(self) -> None:
        """Note that a part of the request is unsent."""
        self._unsent = True

    def resume_writing(self) -> None:
        """Note that the whole request is sent."""
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        """Give the data to the exchange; it is an error if none is in progress."""
        try:
            if self._exchange is None:
                raise ProtocolError(f"{self.address}: a reply without a request")
            if self._exchange.receive(data):
                self._finish(self._exchange.result)
            elif self._limit is not None and not self._limit.expired():
                self._limit.reschedule(_loop_time() + self._options.operation_timeout)
        except KestrelError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange that is in progress, if any."""
        self._transport = None
        if self._exchange is None:
            return
        reason = _reason(exc) if exc is not None else "the server closed the connection"
        try:
            self._exchange.lose(ConnectionLost(f"{self.address}: {reason}"))
            self._finish(self._exchange.result)
        except KestrelError as error:
            self._fail(error)

    def _finish(self, value: object) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_result(value)
        self._exchange = None

    def _fail(self, error: KestrelError) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_exception(error)
        self._exchange = None
        self.close()


class AsyncReservedItem(ItemData, ItemOperations):
    """An item that `AsyncClient.reserve` holds: its data, with what can be done with it.

    Attributes:
        client: the client that holds it.
    """

    client: "AsyncClient"

    async def _carry_out(self, plan: Plan[T]) -> T:
        return await self.client._carry_out(plan)  # noqa: SLF001 # a part of the client


async def _keep_up(item: AsyncReservedItem, period: float) -> None:
    """Extend the lease of an item every `period` seconds, until it has ended."""
    while True:
        await asyncio.sleep(period)
        try:
            if not await item.extend():
                if not item.is_over:
                    _log.warning(LEASE_ENDED)
                return
        except Exception as error:  # noqa: BLE001 # the next try may succeed
            _log.warning("a lease could not be extended: %s", error)


@dataclass(slots=True)
class _Begun(Begun):
    """What a client has in one process.

    Attributes:
        loop: the event loop that it belongs to.
        starts: whether the membership was begun to be started.
        started: whether it is started.
    """

    loop: asyncio.AbstractEventLoop | None = None
    starts: bool = False
    started: bool = False


class AsyncClient(AsyncBlocks[_Begun, AsyncReservedItem]):
    """A client of one server or of a cluster, for asyncio. It has the parameters of `Client`."""

    _kinds = (_Begun, AsyncConnection, AsyncReservedItem)
    _clock = staticmethod(_loop_time)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; items of open reads go back to their queues.

        What other tasks wait for ends with an error. A fork is treated as by `Client.close`.
        """
        begun = self._begun.get()
        begun.pool.close()
        if begun.starts:
            await asyncio.to_thread(self._membership.close)

    async def _carry_out(self, plan: Plan[T]) -> T:
        return await self._do(plan)

    async def _start(self, begun: _Begun) -> None:
        begun.loop = begun.loop or asyncio.get_running_loop()
        if begun.loop is not asyncio.get_running_loop():
            raise InvalidRequest("an AsyncClient belongs to one event loop; this is another")
        if not begun.started:
            begun.starts = True  # that goes on in its thread if this task is cancelled
            await asyncio.to_thread(self._membership.start)
            begun.started = True

    @contextmanager
    def _kept_up(self, item: AsyncReservedItem, period: float | None) -> Iterator[None]:
        if period is None:
            yield
            return
        beats = asyncio.create_task(_keep_up(item, period))
        try:
            yield
        finally:
            beats.cancel()

    async def _answer(self, io_request: IoRequest[AsyncConnection]) -> Any:
        try:
            match io_request:
                case OpenConnection(connection):
                    return await connection.open()
                case RunCommand(connection, command):
                    return await connection.run(command)
                case PauseStep(seconds):
                    return await asyncio.sleep(seconds)
        except BaseException as error:  # noqa: BLE001 # see above
            return error


def _close_copy(transport: asyncio.Transport) -> None:
    """Close this process's copy of a connection of the process that it was forked from.

    The transport cannot: it would take the connection from the selector, which both processes use.
    """
    copy = transport.get_extra_info("socket").fileno()
    if copy < 0:  # the connection has ended
        return
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 # the transport keeps the number
        os.dup2(nothing.fileno(), copy, inheritable=False)


async def _unix_socket(path: str) -> socket.socket:
    """Connect to a Unix socket; wait while the server's backlog is full. Raises OSError."""
    while (connected := try_unix_socket(path)) is None:  # noqa: ASYNC110 # only an attempt tells
        await asyncio.sleep(CONNECT_PAUSE)
    return connected


def _reason(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, socket.gaierror | ssl.SSLError):
        text = error.strerror or text
    elif isinstance(error, OSError) and error.errno is not None:
        text = os.strerror(error.errno)  # asyncio's own text is another one
    return (text or type(error).__name__).lower()
