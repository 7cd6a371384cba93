"""The parts that the blocking and the asyncio client share: everything that does not wait.

An `Exchange` reads the reply to one command, a `Pool` keeps idle connections, and `carry_out`
turns the steps of a plan into the I/O that each client does in its own way.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from kestrelmq.client.address import Address
from kestrelmq.client.commands import Command, name_client, sign_in
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.plans import HeldReads, HoldStep, PauseStep, Plan, ReleaseStep, RunStep, Step
from kestrelmq.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    ProtocolError,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.protocol.foreign import guessed_server
from kestrelmq.protocol.memcache_client import ReplyParser

T = TypeVar("T")


class Exchange(Generic[T]):
    """A command that was sent, and the part of its reply that has arrived.

    Its errors name the server. If that is perhaps no server of the protocol, they say so.

    Attributes:
        result: the result of the command; it is set when the reply is complete.
    """

    __slots__ = ("_address", "_parser", "_reading", "result")

    def __init__(self, address: Address, parser: ReplyParser, command: Command[T]) -> None:
        self._address = address
        self._parser = parser
        self._reading = command.reading()
        self.result: T
        next(self._reading)

    def receive(self, data: bytes) -> bool:
        """Take the next bytes; return whether the reply is complete.

        Raises:
            ServerRefused: the server answered with an error.
            ProtocolError: the data is not a reply to the command, or there is more after it.
        """
        try:
            return self._receive(data)
        except ProtocolError as error:
            raise ProtocolError(f"{self._address}: {error}; {guessed_server(data)}") from error

    def _receive(self, data: bytes) -> bool:
        replies = self._parser.feed(data)
        for count, reply in enumerate(replies, 1):
            try:
                self._reading.send(reply)
            except StopIteration as done:
                if count < len(replies) or not self._parser.is_idle:
                    raise ProtocolError("more replies than requests") from None
                self.result = done.value
                return True
        return False

    def lose(self, error: ConnectionLost) -> None:
        """Tell the reading that the connection was lost, which completes some replies.

        Raises:
            ConnectionLost: the reply is not complete; this is `error`, perhaps with a guess why.
        """
        if not self._parser.has_replied:
            guess = guessed_server(self._parser.rest)
            error = ConnectionLost(f"{error} before its first reply; {guess}")
        try:
            self._reading.throw(error)
        except StopIteration as done:
            self.result = done.value


class PooledConnection(Protocol):
    """The interface of a connection that a pool uses.

    Attributes:
        address: the server's.
        name: a name that no other connection has.
    """

    address: Address
    name: str

    @property
    def is_open(self) -> bool:
        """Whether neither side is known to have closed the connection."""

    def is_usable(self) -> bool:
        """Whether it is still open, as far as can be found out, and no unexpected data arrived."""

    def close(self) -> None:
        """Close the connection; items of its open reads go back to their queues."""

    def interrupt(self) -> None:
        """End the connection, also while another thread uses it, which finds it broken."""


C = TypeVar("C", bound=PooledConnection)


class Pool(Generic[C]):
    """The connections of one client. Thread-safe.

    `make` returns a new connection that is not open yet. `parents` is the pool of the process that
    this one was forked from: this process's copies of its connections are closed.
    """

    def __init__(
        self,
        options: ClientOptions,
        make: Callable[[Address, ClientOptions], C],
        parents: "Pool[C] | None" = None,
    ) -> None:
        self._options = options
        self._make = make
        self._idle: dict[Address, list[C]] = {}
        # Those that are idle or in use, and some that are closed.
        self._opened: list[C] = []
        self._closed: bool = parents is not None and parents._closed  # noqa: SLF001 # of the same class
        self._lock = Lock()
        for connection in [] if parents is None else parents._opened:  # noqa: SLF001 # likewise
            with suppress(OSError):
                connection.close()

    def acquire(self, address: Address) -> Generator["IoRequest[C]", Any, C]:
        """Return an idle connection to `address`, or a new one after an `OpenConnection` for it.

        Raises:
            ClientClosed: the pool is closed.
            ServerUnavailable: a new connection could not be opened.
        """
        while (connection := self._take(address)) is not None:
            if connection.is_usable():
                return connection
            connection.close()
        connection = self._make(address, self._options)
        yield from set_up(connection, self._options)
        with self._lock:
            self._opened = [one for one in self._opened if one.is_open]
            self._opened.append(connection)
            is_closed = self._closed
        if is_closed:
            connection.close()
            self.check_open()
        return connection

    def release(self, connection: C) -> None:
        """Take a connection back: keep it to be used again, or close it."""
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
        """Close all idle connections, and end those that are in use."""
        with self._lock:
            self._closed = True
            idle = [c for idle in self._idle.values() for c in idle]
            self._idle.clear()
            opened, self._opened = self._opened, []
        for connection in opened:
            connection.interrupt()
        for connection in idle:
            with suppress(OSError):
                connection.close()

    def check_open(self) -> None:
        """Check that the pool is not closed. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed("the client is closed")

    def _take(self, address: Address) -> C | None:
        with self._lock:
            self.check_open()
            idle = self._idle.get(address)
            return idle.pop() if idle else None


@dataclass(frozen=True, slots=True)
class OpenConnection(Generic[C]):
    """Open a new connection."""

    connection: C


@dataclass(frozen=True, slots=True)
class RunCommand(Generic[C]):
    """Run `command` over an open connection; the result of the command is sent back."""

    connection: C
    command: Command[Any]


IoRequest: TypeAlias = OpenConnection[C] | RunCommand[C] | PauseStep


async def answered(
    io_requests: Generator[IoRequest[C], Any, T], answer: Callable[[IoRequest[C]], Awaitable[Any]]
) -> T:
    """Have `answer` do each I/O request; return what the generator of the requests returns."""
    given: Any = None
    try:
        while True:
            given = await answer(io_requests.send(given))
    except StopIteration as done:
        result: T = done.value
        return result


def carry_out(
    plan: Plan[T], pool: Pool[C], reads: Iterable[HeldReads[Any]] = ()
) -> Generator[IoRequest[C], Any, T]:
    """Carry out `plan`: yield each I/O request, be sent its answer, return the plan's result.

    If a request fails, its error is sent as the answer. If the plan does not come to its end, the
    reads that it has opened, and those of `reads` that it has not ended, go back.
    """
    held: list[C] = [one.connection for one in reads]
    answer: Any = None
    resume: Callable[[Any], Step] = plan.send
    try:
        while True:
            step = resume(answer)
            try:
                answer, resume = (yield from _perform(step, pool, held)), plan.send
            except ClientError as error:
                answer, resume = error, plan.throw
    except StopIteration as done:
        result: T = done.value
        return result
    except BaseException:
        # The caller gets no result, so give back the items of all reads that are open.
        for connection in held:
            connection.close()
        raise


def _perform(step: Step, pool: Pool[C], held: list[C]) -> Generator[IoRequest[C], Any, Any]:
    """Yield the I/O requests of one step; return the answer to the step."""
    match step:
        case RunStep(server, command):
            connection = yield from pool.acquire(server)
            result = yield from _do(RunCommand(connection, command))
            pool.release(connection)
            return result
        case HoldStep(server, command, on):
            if on is None:
                connection = yield from pool.acquire(server)
            else:
                on.check_process()
                connection = on.connection
            if not isinstance(command, Command):
                command = command(connection.name)
            result = yield from _do(RunCommand(connection, command))
            if has_open_read(result):
                held.append(connection)
                pool.check_open()  # if it was closed meanwhile, nobody else closes this connection
                return HeldReads(server, connection, result, on.streak + 1 if on else 0)
            pool.release(connection)
            return None
        case ReleaseStep(before, command):
            before.check_process()
            result = yield from _do(RunCommand(before.connection, command))
            if before.connection in held:
                held.remove(before.connection)
            pool.release(before.connection)
            return result
        case PauseStep():
            return (yield from _do(step))


def _do(io_request: IoRequest[C]) -> Generator[IoRequest[C], Any, Any]:
    """Yield one I/O request; return its answer, or raise it if it is an error."""
    answer = yield io_request
    if isinstance(answer, BaseException):
        raise answer
    return answer


def is_ours(reads: Iterable[HeldReads[Any]]) -> bool:
    """Whether no process that this one was forked from holds the reads."""
    return not any(held.process.is_another for held in reads)


def set_up(connection: C, options: ClientOptions) -> Generator[IoRequest[C], Any, None]:
    """Connect, sign in, and say the client's name, as far as there are a user and a name.

    Raises:
        ServerUnavailable: the server refused the connection or did not answer in time.
        AuthenticationFailed: the user or the password is wrong.
    """
    yield from _connect_and_sign_in(connection, options)
    if options.name is None:
        return
    try:
        yield from _do(RunCommand(connection, name_client(options.name)))
    except ConnectionLost:
        # An older server may close the connection: it goes without the name.
        yield from _connect_and_sign_in(connection, options)
    except ClientError as error:
        raise ServerUnavailable(str(error)) from error


def _connect_and_sign_in(
    connection: C, options: ClientOptions
) -> Generator[IoRequest[C], Any, None]:
    yield from _do(OpenConnection(connection))
    if options.user is None or options.password is None:
        return
    try:
        yield from _do(RunCommand(connection, sign_in(options.user, options.password)))
    except ServerRefused as error:
        raise type(error)(f"{connection.address}: {error}", error.kind) from None
    except ClientError as error:
        raise ServerUnavailable(str(error)) from error


def has_open_read(result: object) -> bool:
    """Whether a result stands for an open read: an empty item does, None or an empty list not."""
    return result is not None and result != []
