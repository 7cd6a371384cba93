"""The blocking client. `AsyncClient` in `aio` is the same with `await`; both use `plans`.

It is thread-safe. Each operation takes a connection of its own from a pool, and an open read keeps
its connection until it ends. A `reserve`, `consume` or `monitor` belongs to the thread that began
it.
"""

import secrets
import select
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Self, TypeVar, cast

from kestrelmq.client.address import Address, open_socket
from kestrelmq.client.base import AsyncBlocks, BaseClient, Begun
from kestrelmq.client.commands import Command
from kestrelmq.client.core import (
    Exchange,
    IoRequest,
    OpenConnection,
    RunCommand,
    answered,
    set_up,
)
from kestrelmq.client.heartbeats import Heartbeats
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.plans import PauseStep, Plan
from kestrelmq.client.reserved import (
    ItemData,
    ItemOperations,
)
from kestrelmq.errors import (
    ConnectionLost,
    OperationTimeout,
    ServerUnavailable,
)
from kestrelmq.protocol.memcache_client import ReplyParser
from kestrelmq.unsuspended import entered, iterated, run

T = TypeVar("T")

_CHUNK: Final = 256 * 1024


class Connection:
    """A connection to one server; `open` connects it.

    It runs one command at a time, for one thread at a time. It is closed after any error, so that
    no reply can be mistaken for the reply to another request; items of its open reads then go back
    to their queues.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self.address = address
        self.name = secrets.token_hex(8)
        self._options = options
        self._parser = ReplyParser(options.max_item_bytes)
        self._socket: socket.socket | None = None
        self._in_use = Lock()

    def open(self) -> None:
        """Connect. Raises ServerUnavailable: the server cannot be reached, or not in time."""
        self._parser = ReplyParser(self._options.max_item_bytes)
        try:
            self._socket = open_socket(
                self.address, self._options.connect_timeout, self._options.tls_context
            )
        except OSError as error:
            raise ServerUnavailable(f"{self.address}: {_reason(error)}") from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def close(self) -> None:
        """Close the connection; items of its open reads go back to their queues."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def interrupt(self) -> None:
        """End the connection, also while another thread uses it, which finds it broken.

        That thread closes it: if this one did, another connection might get its descriptor.
        """
        opened = self._socket
        if self._in_use.acquire(blocking=False):
            self.close()
            self._in_use.release()
        elif opened is not None:
            with suppress(OSError):
                # That of TLS would forget its keys, while the other thread uses them.
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    @property
    def is_open(self) -> bool:
        """Whether neither side is known to have closed the connection."""
        return self._socket is not None

    def is_usable(self) -> bool:
        """Whether the connection is open and the server has not closed it meanwhile."""
        if self._socket is None or not self._parser.is_idle:
            return False
        # No request is in progress, so anything to read is the end of the connection or a stray
        # reply.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def run(self, command: Command[T]) -> T:
        """Send `command` and return the result of its reply.

        Raises:
            ServerUnavailable: the request was not sent completely, so it had no effect.
            ConnectionLost: the connection ended before the reply did.
            OperationTimeout: the reply took too long.
            ServerRefused: the server answered with an error.
            ProtocolError: the server sent something that is not a reply to the command.
        """
        deadline = time.monotonic() + self._options.operation_timeout + command.wait
        with self._in_use:
            try:
                unsent = self._send(command, deadline)
                return self._receive(command, deadline, unsent)
            except BaseException:
                self.close()
                raise

    def _send(self, command: Command[T], deadline: float) -> Exception | None:
        """Send the request; return the error that prevented it from being sent completely."""
        rest = memoryview(command.request)
        try:
            while rest:
                rest = rest[self._until(deadline).send(rest) :]
        except OSError as error:
            if command.parts > 1 and len(rest) < len(command.request):
                return ConnectionLost(f"{self.address}: {_reason(error)}")
            return ServerUnavailable(f"{self.address}: {_reason(error)}")
        return None

    def _receive(self, command: Command[T], deadline: float, unsent: Exception | None) -> T:
        exchange = Exchange(self.address, self._parser, command)
        try:
            while not exchange.receive(self._read(deadline, unsent)):
                if command.is_listing:
                    deadline = time.monotonic() + self._options.operation_timeout
        except ConnectionLost as error:
            self.close()
            exchange.lose(error)
        return exchange.result

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


async def _answer(io_request: IoRequest[Connection]) -> Any:
    """Return the result of a request, or the error that it raises."""
    try:
        match io_request:
            case OpenConnection(connection):
                return connection.open()
            case RunCommand(connection, command):
                return connection.run(command)
            case PauseStep(seconds):
                return time.sleep(seconds)  # noqa: ASYNC251 # it is to block the thread
    except BaseException as error:  # noqa: BLE001 # its caller raises it
        return error


class ReservedItem(ItemData, ItemOperations):
    """An item that `Client.reserve` holds: its data, with what can be done with it.

    Attributes:
        client: the client that holds it.
    """

    client: "Client"

    def _carry_out(self, plan: Plan[T]) -> T:
        return self.client._carry_out(plan)  # noqa: SLF001 # a part of the client


@dataclass(slots=True)
class _Begun(Begun):
    """What a client has in one process; `heartbeats` are by server."""

    heartbeats: dict[str, Heartbeats] = field(default_factory=dict)


class Client(BaseClient[_Begun, ReservedItem]):
    """A client of one server or of a cluster of servers that speak the memcache protocol.

    `servers` is one or several `"host:port"`, or a `Membership`. With `affinity="queue"` each queue
    lives on one of them, and `name` is what servers list the client by: see `ClientOptions`. Where
    servers have users, give `user` (or `"kestrel://USER@host:port"`) and `password`; where they
    speak TLS, `tls` (or `"kestrel://host:port?tls=1&ca=FILE"`). Connections are made by the first
    operations. Every operation raises subclasses of `kestrelmq.errors.ClientError`.
    """

    _kinds = (_Begun, Connection, ReservedItem)
    _clock = staticmethod(time.monotonic)
    _answer = staticmethod(_answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; items of open reads go back to their queues.

        What other threads wait for ends with an error. In a fork of the process that uses the
        client, this closes only what the fork has.
        """
        self._begun.get().pool.close()
        self._membership.close()

    # Operations that hold reads open; the others are inherited from `ClientOperations`.

    @contextmanager
    def reserve(
        self,
        queue: str,
        timeout: float | None = None,
        *,
        lease: float = 60.0,
        grace: float = 0.0,
        heartbeat: float | bool | None = True,
    ) -> Iterator[ReservedItem | None]:
        """Hold an item during a `with` block; it is None if there is none.

        The item is confirmed when the block ends. It goes back to the head of its queue when the
        block raises, when this process dies, or when its lease ends. A restart of the server does
        not give it back.

        Args:
            queue: the queue's name.
            timeout: seconds to wait for an item.
            lease: seconds for which the item is reserved, unless the lease is extended.
            grace: seconds for which it stays reserved at most, after its connection broke.
            heartbeat: extend the lease every so many seconds during the block. True is often
                enough; with None or False, only `item.extend` extends it.

        Raises:
            LeaseEnded: at the end of the block. The item is delivered again.
            ConnectionLost, OperationTimeout: at the end of the block. The confirmation may not have
                arrived; in that case the item is delivered again.
            ClientError: the system has no room for the thread of the heartbeats; the item goes
                back.
        """
        block = AsyncBlocks.reserve(
            self._awaiting, queue, timeout, lease=lease, grace=grace, heartbeat=heartbeat
        )
        with entered(block) as item:
            yield item

    def consume(
        self, queue: str, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> Generator[bytes, None, None]:
        """Iterate over items; each is confirmed when the next is requested.

        An item goes back to its queue if the loop ends before it requests the next one: by an
        error, a `break`, or the end of the process. To have the last item confirmed, end the loop
        by `max_items`, or by `idle_timeout`: no item came for that many seconds. Without either,
        the loop never ends, even while no server can be reached.

        Raises:
            ServerUnavailable: no server could be reached during a whole `idle_timeout`.
        """
        return iterated(
            AsyncBlocks.consume(
                self._awaiting, queue, idle_timeout=idle_timeout, max_items=max_items
            )
        )

    @contextmanager
    def monitor(
        self, queue: str, seconds: float, max_items: int | None = None
    ) -> Iterator[list[bytes]]:
        """Collect the items that arrive within `seconds`, and hold them during a `with` block.

        As in `reserve`, they are confirmed when the block ends and go back when it raises, all of
        them together.
        """
        with entered(AsyncBlocks.monitor(self._awaiting, queue, seconds, max_items)) as items:
            yield items

    def export(self, queue: str) -> Iterator[str]:
        """Iterate over the items of a queue as lines of JSON, and leave them there; on each server.

        The lines are those of `kestrelmq export`, and `import_items` takes them. Items of open
        reads are not included. What is read from the queue meanwhile may make it leave out or
        repeat some.
        """
        return iterated(AsyncBlocks.export(self._awaiting, queue))

    @property
    def _awaiting(self) -> AsyncBlocks[_Begun, ReservedItem]:
        """This client, as the coroutines that do its work take it."""
        return cast(AsyncBlocks[_Begun, ReservedItem], self)

    def _carry_out(self, plan: Plan[T]) -> T:
        return run(self._do(plan))

    async def _start(self, _: _Begun) -> None:
        self._membership.start()

    def _kept_up(self, item: ReservedItem, period: float | None) -> AbstractContextManager[None]:
        """Extend the lease of an item, as a block asks for it.

        Raises ClientError: the system has no room for a thread.
        """
        heartbeats = self._begun.get().heartbeats.setdefault(item.server, Heartbeats())
        return heartbeats.kept_up(item, period)


def connected(address: Address, options: ClientOptions) -> Connection:
    """Return a connection on which the user of the options is signed in.

    Raises:
        ServerUnavailable: the server refused the connection or did not answer in time.
        AuthenticationFailed: the user or the password is wrong.
    """
    connection = Connection(address, options)
    run(answered(set_up(connection, options), _answer))
    return connection


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
