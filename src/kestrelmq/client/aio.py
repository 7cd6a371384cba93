"""The asyncio client: the same as `Client` in `blocking`, with `await`. Both use `plans`.

A client belongs to one event loop; any number of its tasks may use it at the same time. If a task
is cancelled during an operation, the connection of the operation is closed, so that an item that
the server was sending for an open read goes back to its queue.
"""

# ruff: noqa: ASYNC109 # these timeouts are sent to the server: how long it waits for an item

import asyncio
import logging
import math
import os
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Final, Literal, Self, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import CONNECT_PAUSE, Address, try_unix_socket, user_of
from kestrelmq.client.cluster import Membership, membership_of
from kestrelmq.client.commands import Command
from kestrelmq.client.core import (
    Exchange,
    IoRequest,
    OpenConnection,
    Pool,
    RunCommand,
    carry_out,
    is_ours,
)
from kestrelmq.client.heartbeats import LEASE_ENDED
from kestrelmq.client.options import ClientOptions, checked_count, options_of
from kestrelmq.client.plans import ClientOperations, HeldReads, PauseStep, Plan, Planner
from kestrelmq.client.reserved import (
    ItemData,
    ItemOperations,
    beat_period,
    begin_block,
)
from kestrelmq.client.tls import tls_of
from kestrelmq.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    InvalidRequest,
    KestrelError,
    OperationTimeout,
    ProtocolError,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.forks import PerProcess, UserProcess
from kestrelmq.protocol.memcache_client import ReplyParser

T = TypeVar("T")

_log: Final = logging.getLogger("kestrelmq.client")


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
        """Connect, sign in and say the client's name. Raises as `Connection.open` does."""
        await self._connect_and_sign_in()
        if self._options.name is not None:
            try:
                await self.run(commands.name_client(self._options.name))
            except ConnectionLost:
                self._parser = ReplyParser(self._options.max_item_bytes)
                # An older server may close the connection: it goes without the name.
                await self._connect_and_sign_in()
            except ClientError as error:
                raise ServerUnavailable(str(error)) from error

    async def _connect_and_sign_in(self) -> None:
        await self._connect()
        user, password = self._options.user, self._options.password
        if user is None or password is None:
            return
        try:
            await self.run(commands.sign_in(user, password))
        except ServerRefused as error:
            raise type(error)(f"{self.address}: {error}", error.kind) from None
        except ClientError as error:
            raise ServerUnavailable(str(error)) from error

    async def _connect(self) -> None:
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


@contextmanager
def _kept_up(item: AsyncReservedItem, period: float | None) -> Iterator[None]:
    """Extend the lease of an item every `period` seconds during a `with` block; None: never."""
    if period is None:
        yield
        return
    beats = asyncio.create_task(_keep_up(item, period))
    try:
        yield
    finally:
        beats.cancel()


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
class _Begun:
    """What a client has in one process.

    Attributes:
        pool: its connections.
        plans: makes its plans.
        loop: the event loop that it belongs to.
        starts: whether the membership was begun to be started.
        started: whether it is started.
    """

    pool: Pool[AsyncConnection]
    plans: Planner
    loop: asyncio.AbstractEventLoop | None = None
    starts: bool = False
    started: bool = False


class AsyncClient(ClientOperations):
    """A client of one server or of a cluster, for asyncio. It has the parameters of `Client`."""

    def __init__(
        self,
        servers: str | Iterable[str] | Membership = "127.0.0.1:22133",
        *,
        options: ClientOptions | None = None,
        affinity: Literal["queue"] | None = None,
        name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: bool | ssl.SSLContext | None = None,
        random: Random | None = None,
    ) -> None:
        user = user if user is not None else user_of(servers)
        tls = tls if tls is not None else tls_of(servers)
        chosen = options_of(options, affinity, name, user, password, tls=tls)
        self._membership = membership = membership_of(servers)
        self._begun = PerProcess[_Begun](
            lambda parents: _Begun(
                Pool(chosen, AsyncConnection, None if parents is None else parents.pool),
                Planner.of(membership, chosen, _loop_time, random),
            )
        )

    @classmethod
    def discover(
        cls, zookeeper_hosts: str, path_prefix: str, *, options: ClientOptions | None = None
    ) -> Self:
        """Return a client of the servers that are registered in ZooKeeper under `path_prefix`."""
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return cls(ZooKeeperMembership(zookeeper_hosts, path_prefix), options=options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _plans(self) -> Planner:
        return self._begun.get().plans

    async def close(self) -> None:
        """Close every connection; items of open reads go back to their queues.

        What other tasks wait for ends with an error. A fork is treated as by `Client.close`.
        """
        begun = self._begun.get()
        begun.pool.close()
        if begun.starts:
            await asyncio.to_thread(self._membership.close)

    # Operations that hold reads open; the others are inherited from `ClientOperations`.

    @asynccontextmanager
    async def reserve(
        self,
        queue: str,
        timeout: float | None = None,
        *,
        lease: float = 60.0,
        grace: float = 0.0,
        heartbeat: float | bool | None = True,
    ) -> AsyncIterator[AsyncReservedItem | None]:
        """Hold an item during an `async with` block, as `Client.reserve` does."""
        period = beat_period(lease, heartbeat=heartbeat)
        plans = await self._carry_out(begin_block(self._plans, queue, timeout, lease, grace))
        if plans is None:
            yield None
            return
        item = AsyncReservedItem.of(plans)
        item.client = self
        try:
            with _kept_up(item, period):
                yield item
        except BaseException:
            with suppress(ClientClosed):  # then the item goes back with its connection
                await self._leave(plans.abort(), [plans.held])
            raise
        await self._leave(plans.end(), [plans.held])

    async def consume(
        self, queue: str, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Iterate over items; each is confirmed when the next is requested, as in `Client.consume`.

        When a loop ends early, Python closes an asynchronous iterator late. Use
        `async with contextlib.aclosing(...)`, so that an unconfirmed item goes back at once.
        """
        wait = math.inf if idle_timeout is None else idle_timeout
        held: HeldReads[bytes] | None = None
        turns = count() if max_items is None else range(checked_count(max_items, "max_items"))
        for _ in turns:
            held = await self._carry_out(self._plans.advance(queue, held, wait))
            if held is None:
                return
            try:
                yield held.result
            except BaseException:
                with suppress(ClientClosed):
                    await self._leave(self._plans.abort(queue, held), [held])
                raise
        if held is not None:
            await self._carry_out(self._plans.confirm_last(queue, held))

    @asynccontextmanager
    async def monitor(
        self, queue: str, seconds: float, max_items: int | None = None
    ) -> AsyncIterator[list[bytes]]:
        """Collect the items that arrive within `seconds`, as `Client.monitor` does."""
        batch = await self._carry_out(self._plans.monitor(queue, seconds, max_items))
        try:
            yield [item for held in batch for item in held.result]
        except BaseException:
            for held in batch:
                held.connection.close()
            raise
        await self._leave(self._plans.confirm(queue, batch), batch)

    async def export(self, queue: str) -> AsyncGenerator[str, None]:
        """Iterate over the items of a queue as lines of JSON, as `Client.export` does."""
        place = None
        while True:
            page = await self._carry_out(self._plans.export_page(queue, place))
            for line in page.lines:
                yield line
            place = page.following
            if place is None:
                return

    async def _leave(self, plan: Plan[None], reads: Sequence[HeldReads[Any]]) -> None:
        """End a block as `Client` does."""
        if is_ours(reads):
            await self._carry_out(plan, reads)

    async def _carry_out(self, plan: Plan[T], reads: Iterable[HeldReads[Any]] = ()) -> T:
        begun = self._begun.get()
        begun.pool.check_open()
        begun.loop = begun.loop or asyncio.get_running_loop()
        if begun.loop is not asyncio.get_running_loop():
            raise InvalidRequest("an AsyncClient belongs to one event loop; this is another")
        if not begun.started:
            begun.starts = True  # that goes on in its thread if this task is cancelled
            await asyncio.to_thread(self._membership.start)
            begun.started = True
        io_requests = carry_out(plan, begun.pool, reads)
        answer: Any = None
        try:
            while True:
                answer = await self._answer(io_requests.send(answer))
        except StopIteration as done:
            result: T = done.value
            return result

    @staticmethod
    async def _answer(io_request: IoRequest[AsyncConnection]) -> Any:
        """Do the I/O; return its result, or its error: the plan decides what to do about that."""
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


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


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
