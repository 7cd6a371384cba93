"""What a client's operations do, step by step, without doing any of it.

A plan is a generator: it yields a step (ask this server, pause), and is sent the answer, or has the
error thrown into it; what it returns is the operation's result. The blocking and the asyncio
client carry the steps out, so that choice, retry and fairness are the same in both, and a test can
play the servers.

`Planner` has a plan for each operation; `Operations`, at the end, makes methods of both clients of
those that are one plan. To add a command, write it in `commands`, and its operation here.

What an error says about the server decides what is retried:

- It was never reached, or it answered SERVER_ERROR: nothing happened there. Another one is tried.
- The connection broke before the answer: unknown. Reads go on at another server: an item of an
  open read goes back to its queue by itself, and one taken without is gone either way. An add may
  have been stored, so it is tried again only where the caller accepts a duplicate.
- It answered CLIENT_ERROR or ERROR: every server would; the caller is told at once.
"""

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import update_wrapper
from random import Random
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

from kestrelmq.client import commands
from kestrelmq.client.address import Address
from kestrelmq.client.cluster import Membership, ServerSet
from kestrelmq.client.commands import Command
from kestrelmq.client.options import ClientOptions, Expiry, protocol_expiry
from kestrelmq.client.statistics import QueueStats, queue_stats
from kestrelmq.errors import (
    ClientError,
    ConnectionLost,
    OperationTimeout,
    ProtocolError,
    ServerRefused,
    ServerUnavailable,
)

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])

LONGEST_WAIT: Final = 10.0
"""Seconds of one wait at the only server; a longer one is made of several."""

LONGEST_STREAK: Final = 64
"""Items in a row that a consumer takes from one server of a cluster before it looks at others."""

BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 1024 * 1024

_log: Final = logging.getLogger("kestrelmq.client")

# The server failed, and the operation did not happen there, or may be repeated elsewhere.
_FAILED: Final = (ServerUnavailable, ConnectionLost, OperationTimeout, ProtocolError)
_PAUSE_WHEN_ALL_FAILED: Final = 0.1


# --- the steps of a plan, and the answers to them ---


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """Run `command` at `server`; the answer is its result."""

    server: Address
    command: Command[T]


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """The result of a `Hold`, and the connection whose open reads it is about.

    `streak` counts how often in a row the connection was held on to.
    """

    server: Address
    connection: Any
    result: T
    streak: int = 0


@dataclass(frozen=True, slots=True)
class Hold(Generic[T]):
    """Run `command` and keep the connection: the answer is a `Held`.

    When the result is None or empty, the answer is None, and the connection is free again. With
    `on` it runs over a connection that is already held, and otherwise over any to `server`.
    """

    server: Address
    command: Command[T]
    on: Held[Any] | None = None


@dataclass(frozen=True, slots=True)
class Free(Generic[T]):
    """Run `command` over a held connection, which is free afterwards; the answer is its result."""

    held: Held[Any]
    command: Command[T]


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for `seconds`."""

    seconds: float


Step: TypeAlias = Run[Any] | Hold[Any] | Free[Any] | Pause
Plan: TypeAlias = Generator[Step, Any, T]


# --- what a plan remembers on its way from server to server ---


class Round:
    """One round of servers: the ready ones, then, only if none answered, those set aside."""

    def __init__(self, servers: ServerSet) -> None:
        self._servers = servers
        choice = servers.choose()
        self._ready = deque(choice.ready)
        self._aside = deque(choice.aside)
        self._again: set[Address] = set()
        self._errors: list[ClientError] = []
        self.is_cluster = len(choice.ready) + len(choice.aside) > 1
        self.any_answered = False

    def next_server(self) -> Address | None:
        """Return the next server to try, None when the round is over."""
        if self._ready:
            return self._ready.popleft()
        if self._aside and not self.any_answered:
            return self._aside.popleft()
        return None

    def answered(self, server: Address) -> None:
        """Note that the server did as it was asked, be it with nothing to give."""
        self.any_answered = True
        self._servers.succeeded(server)

    def refused(self, error: ServerRefused) -> None:
        """Note a refusal; raise it when another server would refuse as well."""
        if error.kind != "SERVER_ERROR":
            raise error
        self._errors.append(error)

    def failed(self, server: Address, error: ClientError, *, again: bool) -> None:
        """Note a failure. With `again`, one broken connection does not give the server up."""
        self._errors.append(error)
        if again and isinstance(error, ConnectionLost) and server not in self._again:
            # It may have been restarted since the connection was made.
            self._again.add(server)
            self._ready.append(server)
            return
        if self._servers.failed(server):
            _log.warning("%s is set aside: %s", server, error)

    def error(self) -> ClientError:
        """Return why no server of this round did it."""
        return joined(self._errors) if self._errors else ServerUnavailable("no server is known")


class Batch:
    """The items of one batch that are not stored yet, by their index."""

    def __init__(
        self, items: Sequence[bytes], indexes: Sequence[int], outcomes: list[bool | None]
    ) -> None:
        self.pending = list(indexes)
        self._items = items
        self._outcomes = outcomes

    def left(self) -> list[bytes]:
        """Return the items that are not stored yet."""
        return [self._items[index] for index in self.pending]

    def record(self, answers: list[bool], *, others_unknown: bool = False) -> None:
        """Take the answers for the first of the pending items."""
        for index, stored in zip(self.pending, answers, strict=False):
            self._outcomes[index] = stored
        if others_unknown:
            for index in self.pending[len(answers) :]:
                self._outcomes[index] = None
        self.pending = [i for i in self.pending if self._outcomes[i] is not True]

    def all_refused(self) -> bool:
        """Whether each item that is left was refused by a server that answered."""
        return all(self._outcomes[index] is False for index in self.pending)


def batches(items: Sequence[bytes]) -> Iterator[range]:
    """Cut `items` into ranges, small enough that replies never fill up unread while we send."""
    start, size = 0, 0
    for index, item in enumerate(items):
        if index > start and (index - start == BATCH_ITEMS or size + len(item) > BATCH_BYTES):
            yield range(start, index)
            start, size = index, 0
        size += len(item)
    if start < len(items):
        yield range(start, len(items))


def joined(errors: list[ClientError]) -> ClientError:
    """Return the errors as one of the last one's kind, with what each said."""
    last = errors[-1]
    messages = "; ".join(dict.fromkeys(str(error) for error in errors))
    if messages == str(last):
        return last
    if isinstance(last, ServerRefused):
        return ServerRefused(messages, last.kind)
    return type(last)(messages)


# --- the plans ---


@dataclass(slots=True)
class Planner:
    """Makes the plans of one client.

    `poll_interval` is how long, in seconds, a blocking read of a cluster waits at one server before
    it looks at the next.
    """

    reads: ServerSet
    writes: ServerSet
    clock: Callable[[], float]
    poll_interval: float = 0.05
    retry_unknown: bool = False

    @classmethod
    def of(
        cls,
        membership: Membership,
        options: ClientOptions,
        clock: Callable[[], float],
        random: Random | None,
    ) -> "Planner":
        """Return the planner of a new client."""
        chance = random or Random()  # noqa: S311 # spreads load, keeps no secret
        return cls(
            reads=ServerSet(membership.reads, clock, chance),
            writes=ServerSet(membership.writes, clock, chance),
            clock=clock,
            poll_interval=options.poll_interval,
            retry_unknown=options.retry_unknown,
        )

    # Adding

    def put(
        self, queue: str, data: bytes, expiry: Expiry = None, *, retry_unknown: bool | None = None
    ) -> Plan[bool]:
        """Add an item; False when every server that answered refused it (full, or too large).

        Raises:
            ConnectionLost, OperationTimeout: it may or may not be stored. Not raised while another
                server takes it with `retry_unknown`, at the risk of a duplicate.
        """
        stored = yield from self.put_many(queue, [data], expiry, retry_unknown=retry_unknown)
        return stored[0]

    def put_many(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry = None,
        *,
        retry_unknown: bool | None = None,
    ) -> Plan[list[bool]]:
        """Add items in order, many to a round trip; say for each what `put` says.

        An error's `stored` says for each item whether it is stored, None where that is unknown.
        """
        name = commands.checked_queue(queue)
        ends = protocol_expiry(expiry)
        retry = self.retry_unknown if retry_unknown is None else retry_unknown
        outcomes: list[bool | None] = [None] * len(items)
        for batch in batches(items):
            try:
                yield from self._put_batch(name, ends, Batch(items, batch, outcomes), retry=retry)
            except ClientError as error:
                error.stored = tuple(outcomes)
                raise
        return [outcome is True for outcome in outcomes]

    def _put_batch(self, queue: bytes, expiry: int, batch: Batch, *, retry: bool) -> Plan[None]:
        turns = Round(self.writes)
        while (server := turns.next_server()) is not None:
            answers: list[bool] = []
            command = commands.set_items(queue, batch.left(), expiry, answers)
            try:
                yield Run(server, command)
            except ServerRefused as error:
                batch.record(answers)
                turns.refused(error)
            except ServerUnavailable as error:
                turns.failed(server, error, again=False)
            except _FAILED as error:
                batch.record(answers, others_unknown=True)
                turns.failed(server, error, again=retry)
                if not retry:
                    raise
            else:
                batch.record(answers)
                turns.answered(server)
            if not batch.pending:
                return
        # Full wherever an answer came from is an answer; otherwise the caller must know why.
        if not batch.all_refused():
            raise turns.error()

    # Reading

    def get(self, queue: str, timeout: float | None = None) -> Plan[bytes | None]:
        """Take an item, waiting up to `timeout` seconds for one; None when there is none.

        The item is lost when the connection breaks on its way here; `reserve` has no such gap.
        """
        return (yield from self._take(queue, timeout, commands.get))

    def peek(self, queue: str, timeout: float | None = None) -> Plan[bytes | None]:
        """Return the head item of the first server that has one, and leave it there."""
        return (yield from self._take(queue, timeout, commands.peek))

    def _take(
        self,
        queue: str,
        timeout: float | None,
        command: Callable[[bytes, float], Command[bytes | None]],
    ) -> Plan[bytes | None]:
        name = commands.checked_queue(queue)
        found: bytes | None = yield from self._search(
            timeout, lambda server, wait: Run(server, command(name, wait))
        )
        return found

    def hold(self, queue: str, timeout: float | None) -> Plan[Held[bytes] | None]:
        """Open a read at any server, waiting up to `timeout` seconds for an item."""
        name = commands.checked_queue(queue)
        found: Held[bytes] | None = yield from self._search(
            timeout,
            lambda server, wait: Hold(server, commands.open_read(name, wait)),
        )
        return found

    def _search(self, timeout: float | None, step: Callable[[Address, float], Step]) -> Plan[Any]:
        deadline = self.clock() + (timeout or 0.0)
        first = True
        while True:
            turns = Round(self.reads)
            waits = not (first and turns.is_cluster)
            while (server := turns.next_server()) is not None:
                remaining = deadline - self.clock()
                longest = self.poll_interval if turns.is_cluster else LONGEST_WAIT
                wait = max(0.0, min(remaining, longest)) if waits else 0.0
                try:
                    found = yield step(server, wait)
                except ServerRefused as error:
                    turns.refused(error)
                except _FAILED as error:
                    turns.failed(server, error, again=True)
                else:
                    turns.answered(server)
                    if found is not None:
                        return found
            first = False
            remaining = deadline - self.clock()
            if remaining <= 0:
                if not turns.any_answered:
                    raise turns.error()
                return None
            if not turns.any_answered:
                yield Pause(min(_PAUSE_WHEN_ALL_FAILED, remaining))

    def monitor(
        self, queue: str, seconds: float, max_items: int | None
    ) -> Plan[list[Held[list[bytes]]]]:
        """Open the reads of all items that arrive within `seconds`, up to `max_items`.

        At the only server that is one command. In a cluster the servers are watched in turn, a
        second each, because the protocol counts in whole seconds.
        """
        name = commands.checked_queue(queue)
        deadline = self.clock() + seconds
        batch: list[Held[list[bytes]]] = []
        left = max_items
        while left is None or left > 0:
            turns = Round(self.reads)
            turn = 1.0 if turns.is_cluster else LONGEST_WAIT
            while (server := turns.next_server()) is not None and (left is None or left > 0):
                wait = math.ceil(min(turn, max(0.0, deadline - self.clock())))
                try:
                    held = yield Hold(server, commands.monitor(name, wait, left))
                except ServerRefused as error:
                    turns.refused(error)
                except _FAILED as error:
                    turns.failed(server, error, again=True)
                else:
                    turns.answered(server)
                    if held is not None:
                        batch.append(held)
                        left = None if left is None else left - len(held.result)
            if deadline - self.clock() <= 0:
                if not batch and not turns.any_answered:
                    raise turns.error()
                break
            if not turns.any_answered:
                yield Pause(_PAUSE_WHEN_ALL_FAILED)
        return batch

    # Ending reads

    def confirm(self, queue: str, batch: Sequence[Held[Any]]) -> Plan[None]:
        """Confirm every open read of `batch`; those that cannot be are in the error raised."""
        name = commands.checked_queue(queue)
        errors: list[ClientError] = []
        for held in batch:
            one = not isinstance(held.result, list)
            command: Command[Any] = (
                commands.close_read(name) if one else commands.confirm(name, len(held.result))
            )
            try:
                yield Free(held, command)
            except ClientError as error:
                errors.append(error)
        if errors:
            raise joined(errors)

    def abort(self, queue: str, held: Held[bytes]) -> Plan[None]:
        """Give the item back. A connection that breaks gives it back as well."""
        with suppress(ClientError):
            yield Free(held, commands.abort_read(commands.checked_queue(queue)))

    def advance(
        self, queue: str, held: Held[bytes] | None, timeout: float
    ) -> Plan[Held[bytes] | None]:
        """Confirm the read that is open and open the next, in one step while a server has items.

        When the confirmation fails the item comes again, to this reader or another.
        """
        if held is not None:
            name = commands.checked_queue(queue)
            stay = held.streak < LONGEST_STREAK
            try:
                if stay:
                    found: Held[bytes] | None = yield Hold(
                        held.server, commands.open_read(name, close=True), on=held
                    )
                    if found is not None:
                        return found
                else:
                    yield Free(held, commands.close_read(name))
            except (ServerRefused, *_FAILED) as error:
                _log.warning("%s: an item of %r may come again: %s", held.server, queue, error)
        return (yield from self.hold(queue, timeout))

    def finish(self, queue: str, held: Held[bytes]) -> Plan[None]:
        """Confirm the last read of a consumer, as `advance` does."""
        try:
            yield Free(held, commands.close_read(commands.checked_queue(queue)))
        except ClientError as error:
            _log.warning("%s: an item of %r may come again: %s", held.server, queue, error)

    # Queues and servers. But for `exists`, these ask every server, and fail when one of them does.

    def flush(self, queue: str) -> Plan[None]:
        """Discard the items of a queue on every server."""
        yield from self._everywhere(commands.flush(commands.checked_queue(queue)))

    def flush_all(self) -> Plan[None]:
        """Discard the items of every queue on every server."""
        yield from self._everywhere(commands.flush_all())

    def delete(self, queue: str) -> Plan[None]:
        """Drop a queue on every server; one that does not exist is no error."""
        yield from self._everywhere(commands.delete(commands.checked_queue(queue)))

    def stats(self) -> Plan[dict[str, dict[str, str]]]:
        """Return every statistic by its name, for each server."""
        answers = yield from self._everywhere(commands.stats())
        return {server: dict(pairs) for server, pairs in answers.items()}

    def queues(self) -> Plan[list[QueueStats]]:
        """Return the queues of every server, with their statistics."""
        answers = yield from self._everywhere(commands.stats())
        return [queue for server, pairs in answers.items() for queue in queue_stats(server, pairs)]

    def status(self) -> Plan[dict[str, str]]:
        """Return the status of each server, such as `UP`."""
        return (yield from self._everywhere(commands.status()))

    def set_status(self, status: str) -> Plan[None]:
        """Change the status of every server: up, readonly, quiescent, or what else they know."""
        yield from self._everywhere(commands.set_status(status))

    def version(self) -> Plan[dict[str, str]]:
        """Return the version of each server."""
        return (yield from self._everywhere(commands.version()))

    def reload(self) -> Plan[None]:
        """Let every server read its configuration again."""
        yield from self._everywhere(commands.reload())

    def shutdown(self) -> Plan[None]:
        """Stop every server."""
        yield from self._everywhere(commands.shutdown())

    def exists(self, queue: str) -> Plan[bool]:
        """Say whether a server has the queue. Unlike a read, this does not create it.

        Raises:
            ServerUnavailable, ...: the servers that answered do not have it, others did not answer.
        """
        name = commands.checked_queue(queue)
        errors: list[ClientError] = []
        for server in self._all_servers():
            try:
                if (yield Run(server, commands.exists(name))):
                    return True
            except ClientError as error:
                errors.append(error)
        if errors:
            raise joined(errors)
        return False

    def _all_servers(self) -> list[Address]:
        """Return every server, sorted. Raises ServerUnavailable: none is known."""
        choice = self.reads.choose()
        others = self.writes.choose()
        servers = sorted({*choice.ready, *choice.aside, *others.ready, *others.aside})
        if not servers:
            raise ServerUnavailable("no server is known")
        return servers

    def _everywhere(self, command: Command[T]) -> Plan[dict[str, T]]:
        """Run `command` at every server; when some fail, the others are still asked."""
        results: dict[str, T] = {}
        errors: list[ClientError] = []
        for server in self._all_servers():
            try:
                results[str(server)] = yield Run(server, command)
            except ClientError as error:
                errors.append(error)
        if errors:
            raise joined(errors)
        return results


# --- the operations as methods of both clients ---


class _Blocking(Protocol):
    def _carry_out(self, plan: Plan[T]) -> T: ...


class _Awaiting(Protocol):
    async def _carry_out(self, plan: Plan[T]) -> T: ...


class Operation(Generic[P, T]):
    """A method of both clients, which carries out a plan: `Client` blocks, `AsyncClient` awaits."""

    def __init__(self, plan: Callable[Concatenate[Planner, P], Plan[T]]) -> None:
        self._plan = plan
        self._methods: dict[type, Any] = {}

    @overload
    def __get__(self, client: _Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: _Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """Return the method of a client, or the function of its class."""
        method = self._methods.get(owner)
        if method is None:
            awaits = inspect.iscoroutinefunction(owner._carry_out)  # noqa: SLF001 # as a friend
            method = self._methods[owner] = (
                _awaiting(self._plan) if awaits else _blocking(self._plan)
            )
        return method.__get__(client, owner)


def _blocking(plan: Callable[..., Plan[T]]) -> Callable[..., T]:
    def method(self: Any, *args: Any, **kwargs: Any) -> T:
        result: T = self._carry_out(plan(self._plans, *args, **kwargs))
        return result

    return _described(method, plan)


def _awaiting(plan: Callable[..., Plan[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    async def method(self: Any, *args: Any, **kwargs: Any) -> T:
        result: T = await self._carry_out(plan(self._plans, *args, **kwargs))
        return result

    return _described(method, plan)


def _described(method: M, plan: Callable[..., Plan[Any]]) -> M:
    """Give `method` the name, help and parameters of `plan`; it returns the plan's result."""
    update_wrapper(method, plan)
    signature = inspect.signature(plan)
    result = get_args(signature.return_annotation)[2]
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return method


class Operations:
    """The operations of both clients that are one plan each."""

    put = Operation(Planner.put)
    put_many = Operation(Planner.put_many)
    get = Operation(Planner.get)
    peek = Operation(Planner.peek)
    flush = Operation(Planner.flush)
    flush_all = Operation(Planner.flush_all)
    delete = Operation(Planner.delete)
    exists = Operation(Planner.exists)
    stats = Operation(Planner.stats)
    queues = Operation(Planner.queues)
    status = Operation(Planner.status)
    set_status = Operation(Planner.set_status)
    version = Operation(Planner.version)
    reload = Operation(Planner.reload)
    shutdown = Operation(Planner.shutdown)
