"""The operations of a client as plans, which do no I/O themselves.

A plan is a generator. It yields a step (run a command at this server, pause), and is sent the
answer or has the error thrown into it. It returns the result of the operation. The blocking and
the asyncio client carry out the steps, so that choice of servers, retries and fairness are the
same in both, and a test can play the servers.

`Planner` has a plan for each operation. `ClientOperations`, at the end, turns the operations that
consist of a single plan into methods of both clients. To add a command, write it in `commands`, and
its operation here.

The kind of error decides what is retried:

- The server was never reached, or it answered SERVER_ERROR: the operation had no effect there.
  Another server is tried.
- The connection broke before the answer: the effect is unknown. A read continues at another server:
  the item of an open read goes back to its queue by itself, and an item that was read without one
  is lost in any case. An add may have been stored, so it is repeated only if the caller accepts a
  duplicate.
- The server answered CLIENT_ERROR or ERROR: every server would. The error is raised at once.
"""

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from random import Random
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

from kestrelmq.arguments import given_list
from kestrelmq.client import commands
from kestrelmq.client.address import Address
from kestrelmq.client.cluster import Membership, ServerChoice, ServerSet
from kestrelmq.client.commands import (
    BrowsedPage,
    Command,
    ConnectedClient,
    HeldItem,
    Moved,
    ReadsOwner,
    ReservedCount,
    ReservedRead,
)
from kestrelmq.client.exporting import (
    EXPORTED_AT_ONCE,
    ExportPage,
    ExportPlace,
    import_batches,
)
from kestrelmq.client.options import (
    ClientOptions,
    Expiry,
    ItemTimes,
    check_delay,
    check_grace,
    checked_count,
    checked_lease,
    checked_long_lease,
    declared_time,
    end_of_wait,
    item_times,
    mark_of,
    times_of_row,
)
from kestrelmq.client.statistics import QueueStats, queue_stats, stats_of_queue
from kestrelmq.clock import SystemClock
from kestrelmq.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    ImportStopped,
    InvalidRequest,
    JournalError,
    OperationTimeout,
    ProtocolError,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.forks import UserProcess
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.protocol.memcache_client import ReserveTerms

P = ParamSpec("P")
T = TypeVar("T")
PlannerT = TypeVar("PlannerT")
M = TypeVar("M", bound=Callable[..., Any])

LONGEST_WAIT: Final = 10.0
"""Longest wait in one request to a single server (seconds); a longer wait takes several requests.
"""

LONGEST_STREAK: Final = 64
"""Items in a row that a consumer reads from one server before it tries the others."""

BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 1024 * 1024
"""Most bytes, and `BATCH_ITEMS` items, of a batch: the replies fit in the buffers while we send."""

_log: Final = logging.getLogger("kestrelmq.client")

_UNCERTAIN: Final = (ConnectionLost, OperationTimeout, ProtocolError)
"""Errors after which the operation may have happened."""
_FAILED: Final = (ServerUnavailable, *_UNCERTAIN)
"""Errors after which an operation may be tried at another server."""
_PAUSE_WHEN_ALL_FAILED: Final = 0.1
_WAIT_AT_HOME: Final = 1.0
"""Longest wait at the home of a queue before the other servers are asked (seconds)."""


# --- the steps of a plan, and the answers to them ---


@dataclass(frozen=True, slots=True)
class RunStep(Generic[T]):
    """Run `command` at `server`; the answer is its result."""

    server: Address
    command: Command[T]


@dataclass(frozen=True, slots=True)
class HeldReads(Generic[T]):
    """The result of a `HoldStep`, and the connection that the open reads belong to.

    `streak` counts how many times in a row a `HoldStep` was run over this connection. `process` is
    the one that holds the reads.
    """

    server: Address
    connection: Any
    result: T
    streak: int = 0
    process: UserProcess = field(
        default_factory=lambda: UserProcess().begin(), compare=False, repr=False
    )

    def check_process(self) -> None:
        """Raise InvalidRequest: a process that this one was forked from holds the reads."""
        if self.process.is_another:
            raise InvalidRequest("the process that this one was forked from holds the item")


@dataclass(frozen=True, slots=True)
class HoldStep(Generic[T]):
    """Run `command` and keep the connection; the answer is a `HeldReads`.

    If the result is None or empty, the answer is None and the connection is free again. With `on`,
    the command runs over that connection, which is already held; otherwise over any connection to
    `server`. The command may depend on the connection: then it is a function of its name.
    """

    server: Address
    command: Command[T] | Callable[[str], Command[T]]
    on: HeldReads[Any] | None = None


@dataclass(frozen=True, slots=True)
class ReleaseStep(Generic[T]):
    """Run `command` over a held connection and free that; the answer is the command's result."""

    held: HeldReads[Any]
    command: Command[T]


@dataclass(frozen=True, slots=True)
class PauseStep:
    """Do nothing for `seconds`."""

    seconds: float


Step: TypeAlias = RunStep[Any] | HoldStep[Any] | ReleaseStep[Any] | PauseStep
Plan: TypeAlias = Generator[Step, Any, T]


# --- the state of a plan while it tries servers ---


class ServerRound:
    """One round over the servers: first the ready ones, then, if none answered, those set aside."""

    def __init__(self, servers: ServerSet, choice: ServerChoice) -> None:
        """Begin to try the chosen ones of `servers`."""
        self._servers = servers
        self._ready = deque(choice.ready)
        self._aside = deque(choice.aside)
        self._again: set[Address] = set()
        self._errors: list[ClientError] = []
        self.home = choice.home
        self.is_cluster = len(choice.ready) + len(choice.aside) > 1
        self.any_answered = False

    @property
    def found_no_server(self) -> bool:
        """Whether there is one server, and it could not be reached."""
        return (
            not self.is_cluster
            and bool(self._errors)
            and all(isinstance(error, ServerUnavailable) for error in self._errors)
        )

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing that was sent was answered, because of connections or time."""
        return bool(self._errors) and all(
            isinstance(error, ServerUnavailable | ConnectionLost | OperationTimeout)
            for error in self._errors
        )

    def next_server(self) -> Address | None:
        """Return the next server to try; None when the round is over."""
        if self._ready:
            return self._ready.popleft()
        if self._aside and not self.any_answered:
            return self._aside.popleft()
        return None

    def answered(self, server: Address) -> None:
        """Note that the server carried out the command, even if it had no item to return."""
        self.any_answered = True
        self._servers.succeeded(server)

    def refused(self, error: ServerRefused) -> None:
        """Note a refusal; raise it if every other server would refuse, too."""
        if error.kind != "SERVER_ERROR":
            raise error
        self._errors.append(error)

    def failed(self, server: Address, error: ClientError, *, again: bool) -> None:
        """Note a failure and set the server aside.

        With `again`, a server whose connection broke is first tried once more in this round.
        """
        self._errors.append(error)
        if again and isinstance(error, ConnectionLost) and server not in self._again:
            # The server may have been restarted since the connection was made.
            self._again.add(server)
            self._ready.append(server)
            return
        if self._servers.failed(server):
            _log.warning("%s is set aside: %s", server, error)

    def error(self) -> ClientError:
        """Return the reason why every server of this round failed."""
        return (
            join_errors(self._errors) if self._errors else ServerUnavailable("no server is known")
        )


class PutBatch:
    """The items of one batch that are not stored yet.

    Attributes:
        pending: their indexes, in order.
        mark: that of the first item of the call, if its producer has a name.
    """

    def __init__(
        self,
        items: Sequence[bytes],
        times: Sequence[ItemTimes],
        indexes: Sequence[int],
        outcomes: list[bool | None],
        mark: PutMark | None = None,
    ) -> None:
        """Start with the items at `indexes`, of all `items`, whose first one has `mark`."""
        self.mark = mark
        self.pending = list(indexes)
        self._items = items
        self._times = times
        self._outcomes = outcomes
        self._refused: set[int] = set()

    def left(self) -> list[tuple[bytes, ItemTimes, PutMark | None]]:
        """Return the items that are not stored yet, with their times and marks."""
        mark = self.mark
        return [
            (self._items[index], self._times[index], None if mark is None else mark.of_next(index))
            for index in self.pending
        ]

    def record(self, answers: list[bool | None], *, others_unknown: bool = False) -> None:
        """Note the answers for the first pending items, as `commands.set_items` has them.

        With `others_unknown`, it is unknown whether the other pending items are stored.
        """
        for index, stored in zip(self.pending, answers, strict=False):
            if stored is not None:
                self._outcomes[index] = stored
                self._refused.add(index)
        if others_unknown:
            for index in self.pending[len(answers) :]:
                self._outcomes[index] = None
                self._refused.discard(index)
        self.pending = [i for i in self.pending if self._outcomes[i] is not True]

    def all_refused(self) -> bool:
        """Whether a server has answered for every pending item, and refused it."""
        return self._refused.issuperset(self.pending)


def batch_ranges(items: Sequence[bytes], most: int, most_bytes: int) -> Iterator[range]:
    """Cut `items` into ranges of at most so many items and bytes, or of one larger item."""
    start, size = 0, 0
    for index, item in enumerate(items):
        if index > start and (index - start == most or size + len(item) > most_bytes):
            yield range(start, index)
            start, size = index, 0
        size += len(item)
    if start < len(items):
        yield range(start, len(items))


def join_errors(errors: list[ClientError]) -> ClientError:
    """Join errors: return one with the messages of all.

    Its class is that of the last that says that the operation may have happened, if there is one,
    and otherwise that of the last.
    """
    last = next((error for error in reversed(errors) if isinstance(error, _UNCERTAIN)), errors[-1])
    messages = "; ".join(dict.fromkeys(str(error) for error in errors))
    if messages == str(last):
        return last
    if isinstance(last, ServerRefused):
        return type(last)(messages, last.kind)
    return type(last)(messages)


def _one(step: Step) -> Plan[Any]:
    """Do one step; return the answer."""
    return (yield step)


def _or_none(plan: Plan[list[T] | None]) -> Plan[list[T] | None]:
    """Do a plan; return None in place of an empty list."""
    return (yield from plan) or None


def _reserve_at(server: Address, command: Command[Any]) -> Plan[list[Any] | None]:
    """Reserve at a server; return what that says, with its name, or None if the tag is done."""
    found = yield RunStep(server, command)
    return None if found is None else [replace(one, server=str(server)) for one in found]


def _read(server_round: ServerRound, server: Address, plan: Plan[Any]) -> Plan[Any]:
    """Read from a server, and note how that ended; return what it found, None if it failed."""
    found = None
    try:
        found = yield from plan
    except ServerRefused as error:
        server_round.refused(error)
    except _FAILED as error:
        server_round.failed(server, error, again=True)
    else:
        server_round.answered(server)
    return found


SomeReads: TypeAlias = ReservedRead | str | Sequence[ReservedRead | str]
"""Items that `reserve_many` returned, or what their `read` says; one, or several."""


def read_names(reads: SomeReads) -> list[str]:
    """Return the names of reads. Raises InvalidRequest: something else was given."""
    names: list[str] = []
    for one in given_list(reads, ReservedRead, str):
        if not isinstance(one, ReservedRead | str):
            raise InvalidRequest(f"a read is a ReservedRead or text, not {type(one).__name__}")
        names.append(one if isinstance(one, str) else one.read)
    return names


def _chosen(reads: SomeReads | None, tag: str, owner: str = "") -> commands.Reads | None:
    """Return which reads are meant; None if they are those of an empty list."""
    for given, what in ((tag, "a tag"), (owner, "an owner")):
        if not isinstance(given, str):
            raise InvalidRequest(f"{what} is text, not {type(given).__name__}")
    names = [] if reads is None else read_names(reads)
    if reads is not None and not names and not tag and not owner:
        return None
    return commands.Reads(names, tag, owner)


# --- the plans ---


@dataclass(slots=True)
class Planner:
    """Makes the plans of one client.

    Attributes:
        reads, writes: the servers that items are read from, and that they are added to.
        clock: returns the time in seconds.
        poll_interval: how long a blocking read of a cluster waits at one server before it asks the
            next, in seconds.
        retry_unknown: whether an add whose reply was lost is sent again.
        restart_patience: how long an add is tried again while the only server cannot be reached, in
            seconds; likewise ending a reserved read.
        has_affinity: whether each queue lives on one of the servers.
        without_reserve: servers that have no reserved reads.
    """

    reads: ServerSet
    writes: ServerSet
    clock: Callable[[], float]
    poll_interval: float = 0.05
    retry_unknown: bool = False
    restart_patience: float = 0.0
    has_affinity: bool = False
    without_reserve: set[Address] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        membership: Membership,
        options: ClientOptions,
        clock: Callable[[], float],
        random: Random | None,
    ) -> "Planner":
        """Make the planner of a new client."""
        chance = random or Random()  # noqa: S311 # spreads load, keeps no secret
        return cls(
            reads=ServerSet(membership.reads, clock, chance),
            writes=ServerSet(membership.writes, clock, chance),
            clock=clock,
            poll_interval=options.poll_interval,
            retry_unknown=options.retry_unknown,
            restart_patience=options.restart_patience,
            has_affinity=options.affinity == "queue",
        )

    def _round(self, queue: str | None) -> ServerRound:
        """Begin a round of reads: with affinity, the home of the queue comes first."""
        return ServerRound(self.reads, self.reads.choose(queue if self.has_affinity else None))

    def _longest_wait(self, server_round: ServerRound, at: Address) -> float:
        """Return how long a blocking read may wait at one server, in seconds.

        What comes to one server of a cluster while another is asked has to wait. With affinity, new
        items come to the home only; the others may have some from a time when they were that.
        """
        if not server_round.is_cluster:
            return LONGEST_WAIT
        if server_round.home is None:
            return self.poll_interval
        return _WAIT_AT_HOME if at == server_round.home else 0.0

    # Adding

    def put(
        self,
        queue: str,
        data: bytes | str,
        expiry: Expiry = None,
        *,
        delay: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        retry_unknown: bool | None = None,
    ) -> Plan[bool]:
        """Add an item; False if every server that answered refused it (full, or item too large).

        Text is encoded as UTF-8. While the only server restarts, the item is tried again for the
        `restart_patience` of the options. With a `delay` in seconds, the item waits in the queue
        only after that time, from which its expiry counts, too.

        A `producer` that numbers its items may repeat an add: the queue stores an item only if its
        `sequence` number is above that of the producer's last item, and returns True in any case.
        So an item whose reply was lost is sent again, for the `restart_patience`, and stored once.
        If all fails, put it again later, with the same number. The client must have one server, or
        an affinity.

        Raises:
            InvalidRequest: the item is neither bytes nor text that can be encoded; or there are
                several servers without affinity, and a producer.
            ConnectionLost, OperationTimeout: the item may or may not be stored. With
                `retry_unknown` the item is sent again, at the risk of a duplicate, and this is
                raised only if no server stores it.
        """
        stored = yield from self.put_many(
            queue,
            [data],
            expiry,
            delay=delay,
            producer=producer,
            sequence=sequence,
            retry_unknown=retry_unknown,
        )
        return stored[0]

    def put_many(
        self,
        queue: str,
        items: Sequence[bytes | str],
        expiry: Expiry = None,
        *,
        delay: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        retry_unknown: bool | None = None,
    ) -> Plan[list[bool]]:
        """Add items in order, many per round trip; return for each what `put` returns.

        The items of a `producer` are numbered from `sequence` on. When one is refused, those behind
        it are refused, too, and can be put again with the same numbers.

        The attribute `stored` of an error tells for each item whether it is stored; None if that is
        unknown.
        """
        if isinstance(items, str | bytes | bytearray) or not isinstance(items, Iterable):
            raise InvalidRequest("put_many takes a list of items; put takes one")
        encoded = [commands.checked_bytes(item, "an item") for item in items]
        return (
            yield from self._put_all(
                queue,
                encoded,
                [item_times(expiry, delay)] * len(encoded),
                mark_of(producer, sequence),
                retry_unknown=retry_unknown,
            )
        )

    def _put_all(
        self,
        queue: str,
        items: Sequence[bytes],
        times: Sequence[ItemTimes],
        mark: PutMark | None = None,
        *,
        retry_unknown: bool | None = None,
    ) -> Plan[list[bool]]:
        """Put items, as `put_many`; each has its times, and the first one `mark`."""
        name = commands.checked_queue(queue)
        retry = self.retry_unknown if retry_unknown is None else retry_unknown
        outcomes: list[bool | None] = [False] * len(items)
        deadline = self.clock() + self.restart_patience
        for batch in batch_ranges(items, BATCH_ITEMS, BATCH_BYTES):
            try:
                yield from self._put_patiently(
                    name, PutBatch(items, times, batch, outcomes, mark), deadline, retry=retry
                )
            except ClientError as error:
                error.stored = tuple(outcomes)
                raise
        return [outcome is True for outcome in outcomes]

    def _put_patiently(
        self, queue: bytes, batch: PutBatch, deadline: float, *, retry: bool
    ) -> Plan[None]:
        """Add the items; until `deadline`, wait for the only server if it cannot be reached.

        Items of a producer are also sent again if it did not answer.
        """
        is_marked = batch.mark is not None
        errors: list[ClientError] = []
        while True:
            writes = self.writes
            choice = writes.home(queue.decode()) if self.has_affinity else writes.choose()
            server_round = ServerRound(writes, choice)
            if is_marked and server_round.is_cluster:
                raise InvalidRequest(
                    "the items of a producer need a client of one server, or with affinity"
                )
            try:
                yield from self._put_batch(queue, batch, server_round, retry=retry or is_marked)
            except ClientError as error:
                errors.append(error)
            else:
                return
            again = server_round.is_unanswered if is_marked else server_round.found_no_server
            if not again or self.clock() >= deadline:
                raise join_errors(errors)
            yield PauseStep(_PAUSE_WHEN_ALL_FAILED)

    def _put_batch(
        self,
        queue: bytes,
        batch: PutBatch,
        server_round: ServerRound,
        *,
        retry: bool,
    ) -> Plan[None]:
        while (server := server_round.next_server()) is not None:
            answers: list[bool | None] = []
            command = commands.set_items(queue, batch.left(), answers)
            try:
                yield RunStep(server, command)
            except ServerRefused as error:
                if is_final := error.kind != "SERVER_ERROR":
                    answers.append(False)  # the answers for the items behind it were not read
                batch.record(answers, others_unknown=is_final)
                server_round.refused(error)
            except ServerUnavailable as error:
                server_round.failed(server, error, again=False)
            except _FAILED as error:
                batch.record(answers, others_unknown=True)
                server_round.failed(server, error, again=retry)
                if not retry:
                    raise
            else:
                batch.record(answers)
                server_round.answered(server)
            if not batch.pending:
                return
        # A refusal of every server that answered is a result; anything else is an error.
        if not batch.all_refused():
            raise server_round.error()

    # Reading

    def get(self, queue: str, timeout: float | None = None) -> Plan[bytes | None]:
        """Remove an item, waiting up to `timeout` seconds for one; None if there is none.

        The item is lost if the connection breaks while the server sends it. `reserve` avoids this.
        """
        return (yield from self._take(queue, timeout, commands.get))

    def peek(self, queue: str, timeout: float | None = None) -> Plan[bytes | None]:
        """Return the head item of the first server that has one, without removing it."""
        return (yield from self._take(queue, timeout, commands.peek))

    def _take(
        self,
        queue: str,
        timeout: float | None,
        command: Callable[[bytes, float], Command[bytes | None]],
    ) -> Plan[bytes | None]:
        name = commands.checked_queue(queue)
        found: bytes | None = yield from self._search(
            timeout, lambda server, wait: _one(RunStep(server, command(name, wait))), queue
        )
        return found

    def hold(self, queue: str, timeout: float | None) -> Plan[HeldReads[bytes] | None]:
        """Open a read at any server, waiting up to `timeout` seconds for an item."""
        name = commands.checked_queue(queue)
        found: HeldReads[bytes] | None = yield from self._search(
            timeout,
            lambda server, wait: _one(HoldStep(server, commands.open_read(name, wait))),
            queue,
        )
        return found

    def reserve(
        self, queue: str, timeout: float | None, lease: float, grace: float
    ) -> Plan[HeldReads[HeldItem] | None]:
        """Hold an item of any server, waiting up to `timeout` seconds for one.

        It is reserved for `lease` seconds, and at most `grace` after its connection ends. At a
        server that has no reserved reads, a read is opened.
        """
        name = commands.checked_queue(queue)
        held: HeldReads[HeldItem] | None = yield from self._search(
            timeout, lambda server, wait: self._hold_at(server, name, lease, grace, wait), queue
        )
        return held

    def _hold_at(
        self, server: Address, queue: bytes, lease: float, grace: float, wait: float
    ) -> Plan[HeldReads[HeldItem] | None]:
        """Hold an item of a server, as `reserve` does."""
        if server not in self.without_reserve:
            try:
                found: HeldReads[HeldItem] | None = yield HoldStep(
                    server,
                    lambda owner: commands.reserve_one(
                        queue, commands.reserve_terms(lease, owner=owner, grace=grace), wait
                    ),
                )
            except ServerRefused as error:
                if error.kind == "SERVER_ERROR" or isinstance(error, AuthenticationFailed):
                    raise
            else:
                return found
        found = yield HoldStep(server, commands.hold(queue, wait))
        self.without_reserve.add(server)
        return found

    def _search(
        self,
        timeout: float | None,
        read: Callable[[Address, float], Plan[Any]],
        queue: str | None,
    ) -> Plan[Any]:
        """Read at one server after the other until one has something; None if none has it in time.

        `queue` is the queue that is read; None if there are several.
        """
        deadline = end_of_wait(timeout, self.clock())
        first = True
        while True:
            server_round = self._round(queue)
            waits = not (first and server_round.is_cluster)
            while (server := server_round.next_server()) is not None:
                remaining = deadline - self.clock()
                longest = self._longest_wait(server_round, server)
                wait = max(0.0, min(remaining, longest)) if waits else 0.0
                found = yield from _read(server_round, server, read(server, wait))
                if found is not None:
                    return found
            first = False
            remaining = deadline - self.clock()
            if remaining <= 0:
                if not server_round.any_answered:
                    raise server_round.error()
                return None
            if not server_round.any_answered:
                yield PauseStep(min(_PAUSE_WHEN_ALL_FAILED, remaining))

    def monitor(
        self, queue: str, seconds: float, max_items: int | None
    ) -> Plan[list[HeldReads[list[bytes]]]]:
        """Open the reads of all items that arrive within `seconds`, up to `max_items`.

        A single server is asked for up to `LONGEST_WAIT` at a time. The servers of a cluster are
        asked in turn, for a second each, because the protocol counts in whole seconds.
        """
        name = commands.checked_queue(queue)
        deadline = end_of_wait(seconds, self.clock())
        batch: list[HeldReads[list[bytes]]] = []
        left = None if max_items is None else checked_count(max_items, "max_items")
        while left is None or left > 0:
            server_round = self._round(queue)
            while (server := server_round.next_server()) is not None and (left is None or left > 0):
                longest = self._longest_wait(server_round, server)
                turn = longest and max(1.0, longest)
                wait = math.ceil(min(turn, max(0.0, deadline - self.clock())))
                step = HoldStep(server, commands.monitor(name, wait, left))
                held = yield from _read(server_round, server, _one(step))
                if held is not None:
                    batch.append(held)
                    left = None if left is None else left - len(held.result)
            if deadline - self.clock() <= 0:
                if not batch and not server_round.any_answered:
                    raise server_round.error()
                break
            if not server_round.any_answered:
                yield PauseStep(_PAUSE_WHEN_ALL_FAILED)
        return batch

    def reserve_many(  # noqa: PLR0913 # one parameter an option of the request
        self,
        queues: str | Sequence[str],
        count: int,
        lease: float,
        timeout: float | None = None,
        *,
        tag: str = "",
        owner: str = "",
        grace: float = 5.0,
        again: bool = False,
        server: str | None = None,
    ) -> Plan[list[ReservedRead] | None]:
        """Reserve up to `count` items of one server, until they are finished or released.

        Unlike those of `reserve`, they belong to no connection, unless `owner` says so, and nothing
        extends their leases. One wait is for all queues.

        Args:
            queues: the queue, or several, which are asked in this order.
            count: the most items, up to 1000.
            lease: seconds for which they are reserved; 0 is without end, whatever becomes of the
                owner.
            timeout: seconds to wait for an item.
            tag: `NAME:EPOCH:PART`: the same items are returned again until they are finished.
            owner: a name for this process, or any other.
            grace: seconds for which the items of an owner stay reserved at most, after the last
                connection has ended that named it.
            again: whether only what the tag has already is wanted: nothing is taken.
            server: the server to ask; by default any. If there are several, a tag needs one.

        Returns:
            The items, perhaps none; None if the tag is done: its items were finished.

        Raises:
            InvalidRequest: the server is not one of this client's, or must be given.
        """
        check_grace(grace)
        terms = commands.reserve_terms(checked_long_lease(lease), tag, owner, grace, again=again)
        return (yield from self._reserve(queues, count, timeout, terms, server, commands.reserve))

    def hold_many(  # noqa: PLR0913 # one parameter an option of the request
        self,
        queues: str | Sequence[str],
        count: int,
        lease: float,
        timeout: float | None = None,
        *,
        tag: str = "",
        owner: str = "",
        grace: float = 5.0,
        again: bool = False,
        server: str | None = None,
    ) -> Plan[list[ReservedCount] | None]:
        """Reserve items, as `reserve_many`; return only how many of each queue.

        The items stay at the server, until somebody asks for them by the tag.
        """
        check_grace(grace)
        terms = commands.reserve_terms(
            checked_long_lease(lease), tag, owner, grace, again=again, nodata=True
        )
        ask = commands.reserve_held
        return (yield from self._reserve(queues, count, timeout, terms, server, ask))

    def _reserve(
        self,
        queues: str | Sequence[str],
        count: int,
        timeout: float | None,
        terms: ReserveTerms,
        server: str | None,
        ask: Callable[[Sequence[bytes], int, ReserveTerms, float], Command[list[T] | None]],
    ) -> Plan[list[T] | None]:
        names = given_list(queues, str)
        checked = [commands.checked_queue(name) for name in names]
        if not checked:
            raise InvalidRequest("no queue was given")

        if server is None and not terms.tag:
            some: list[T] | None = yield from self._search(
                timeout,
                lambda at, wait: _or_none(_reserve_at(at, ask(checked, count, terms, wait))),
                names[0] if len(names) == 1 else None,
            )
            return some or []
        home = None
        if server is None and self.has_affinity and len(names) == 1:
            home = self.reads.home(names[0]).home
        only, deadline = home or self._server(server), end_of_wait(timeout, self.clock())
        while True:
            wait = min(LONGEST_WAIT, max(0.0, deadline - self.clock()))
            found = yield from _reserve_at(only, ask(checked, count, terms, wait))
            if found != [] or self.clock() >= deadline:
                return found

    # Ending reads

    def finish(
        self,
        queue: str,
        reads: SomeReads | None = None,
        *,
        tag: str = "",
        server: str | None = None,
    ) -> Plan[int]:
        """Confirm items that `reserve_many` returned, or those of a tag.

        Args:
            queue: their queue.
            reads: the items, or what their `read` says; perhaps none.
            tag: the tag instead.
            server: their server; by default, all are asked.

        Returns:
            How many were reserved still; for a tag that is done, how many there were.
        """
        name = commands.checked_queue(queue)
        which = _chosen(reads, tag)
        if which is None:
            return 0
        command = commands.finish(name, which)
        return (yield from self._count_at(server, command))

    def release(
        self,
        queue: str,
        reads: SomeReads | None = None,
        *,
        tag: str = "",
        owner: str = "",
        delay: float | None = None,
        counted: bool = True,
        dead: bool = False,
        server: str | None = None,
    ) -> Plan[int]:
        """Give items that `reserve_many` returned back, or those of a tag or an owner.

        Args:
            queue: their queue.
            reads: the items, or what their `read` says; perhaps none.
            tag: the tag instead.
            owner: the owner instead.
            delay: seconds until they may be read again; None for the queue's `retry_delay`.
            counted: whether this was a delivery, of those that `max_deliveries` counts.
            dead: whether they go to the dead-letter queue at once.
            server: their server; by default, all are asked.

        Returns:
            How many were reserved still.
        """
        check_delay(delay)
        name = commands.checked_queue(queue)
        which = _chosen(reads, tag, owner)
        if which is None:
            return 0
        command = commands.release(name, which, delay, counted=counted, dead=dead)
        return (yield from self._count_at(server, command))

    def release_owner(
        self,
        owner: str,
        *,
        delay: float | None = None,
        counted: bool = True,
        dead: bool = False,
        server: str | None = None,
    ) -> Plan[int]:
        """Give all items of an owner back, in all queues; as `release`."""
        check_delay(delay)
        command = commands.release_owner(owner, delay, counted=counted, dead=dead)
        return (yield from self._count_at(server, command))

    def owners(self, pattern: str = "*") -> Plan[list[ReadsOwner]]:
        """Return the owners of reserved reads of every server whose names are of a pattern."""
        answers = yield from self._on_every_server(commands.owners(pattern))
        return [replace(one, server=s) for s, found in answers.items() for one in found]

    def extend(
        self,
        queue: str,
        seconds: float,
        reads: SomeReads | None = None,
        *,
        tag: str = "",
        server: str | None = None,
    ) -> Plan[int]:
        """Let the leases of items, or of those of a tag, end `seconds` from now; as `finish`."""
        name, lease = commands.checked_queue(queue), checked_lease(seconds)
        which = _chosen(reads, tag)
        if which is None:
            return 0
        command = commands.extend(name, which, lease)
        return (yield from self._count_at(server, command))

    def extend_owner(self, owner: str, seconds: float) -> Plan[int]:
        """Let the leases of all items of an owner end `seconds` from now; return how many."""
        return (
            yield from self._count_at(None, commands.extend_owner(owner, checked_lease(seconds)))
        )

    def retire(self, queue: str, name: str, epoch: int, *, server: str | None = None) -> Plan[int]:
        """Refuse the tags of `name` up to `epoch` from now on, and forget those that are done.

        Items that are reserved under them go back, and that was no delivery. A name is forgotten 30
        days after the last time.

        Returns:
            How many tags were open or done.
        """
        last = checked_count(epoch, "an epoch")
        command = commands.retire(commands.checked_queue(queue), name, last)
        return (yield from self._count_at(server, command))

    def _count_at(self, server: str | None, command: Command[int]) -> Plan[int]:
        """Run a command at a server, or at all; return the sum of its results."""
        if server is not None:
            count: int = yield RunStep(self._server(server), command)
            return count
        answers = yield from self._on_every_server(command)
        return sum(answers.values())

    def confirm(self, queue: str, batch: Sequence[HeldReads[Any]]) -> Plan[None]:
        """Confirm every open read of `batch`; raise one error for all that cannot be confirmed."""
        name = commands.checked_queue(queue)
        errors: list[ClientError] = []
        for held in batch:
            one = not isinstance(held.result, list)
            command: Command[Any] = (
                commands.close_read(name) if one else commands.confirm(name, len(held.result))
            )
            try:
                yield ReleaseStep(held, command)
            except ClientError as error:
                errors.append(error)
        if errors:
            raise join_errors(errors)

    def abort(self, queue: str, held: HeldReads[bytes]) -> Plan[None]:
        """Give the item back. If the connection breaks, the server gives it back."""
        with suppress(ClientError):
            yield ReleaseStep(held, commands.abort_read(commands.checked_queue(queue)))

    def end_read(self, held: HeldReads[HeldItem], command: Command[T], *, again: bool) -> Plan[T]:
        """Run a command that ends a read; return its result.

        With `again`, it is tried over other connections to the server if the read's own one broke.
        """
        try:
            ended: T = yield ReleaseStep(held, command)
        except (ServerUnavailable, ConnectionLost, OperationTimeout) as error:
            if not again:
                raise
            try:
                ended = yield from self._run_patiently(held.server, command)
            except ClientError:
                raise error from None
            if not ended and not isinstance(error, ServerUnavailable):
                raise  # perhaps the first attempt ended it
        return ended

    def _run_patiently(self, server: Address, command: Command[T]) -> Plan[T]:
        deadline = self.clock() + self.restart_patience
        while True:
            try:
                result: T = yield RunStep(server, command)
            except ServerUnavailable:
                if self.clock() >= deadline:
                    raise
            else:
                return result
            yield PauseStep(_PAUSE_WHEN_ALL_FAILED)

    def advance(
        self, queue: str, held: HeldReads[bytes] | None, timeout: float
    ) -> Plan[HeldReads[bytes] | None]:
        """Confirm the open read and open the next one, in a single command if possible.

        If the confirmation fails, the item is delivered again, to this reader or another.
        """
        if held is not None:
            name = commands.checked_queue(queue)
            stay = held.streak < LONGEST_STREAK
            try:
                if stay:
                    found: HeldReads[bytes] | None = yield HoldStep(
                        held.server, commands.open_read(name, close=True), on=held
                    )
                    if found is not None:
                        return found
                else:
                    yield ReleaseStep(held, commands.close_read(name))
            except (ServerRefused, *_FAILED) as error:
                _log.warning("%s: an item of %r may come again: %s", held.server, queue, error)
        return (yield from self.hold(queue, timeout))

    def confirm_last(self, queue: str, held: HeldReads[bytes]) -> Plan[None]:
        """Confirm the last read of a consumer, as `advance` does."""
        try:
            yield ReleaseStep(held, commands.close_read(commands.checked_queue(queue)))
        except ClientError as error:
            _log.warning("%s: an item of %r may come again: %s", held.server, queue, error)

    # Queues and servers. Except for `exists`, these ask every server and fail if one of them fails.

    def flush(self, queue: str) -> Plan[None]:
        """Drop all items of a queue on every server."""
        yield from self._on_every_server(commands.flush(commands.checked_queue(queue)))

    def flush_all(self) -> Plan[None]:
        """Drop all items of every queue on every server."""
        yield from self._on_every_server(commands.flush_all())

    def delete(self, queue: str) -> Plan[None]:
        """Delete a queue on every server; it need not exist."""
        yield from self._on_every_server(commands.delete(commands.checked_queue(queue)))

    def browse(
        self,
        queue: str,
        offset: int = 0,
        count: int = 100,
        *,
        text: str | bytes | None = None,
        pattern: str | bytes | None = None,
        place: str | None = None,
        server: str | None = None,
    ) -> Plan[dict[str, BrowsedPage]]:
        """Look at items from `offset` on, in memory or on disk, and leave them in the queue.

        Args:
            queue: its name.
            offset: how many items to pass over; 0 begins at the head.
            count: the most items to return; a server returns fewer if they are large.
            text: only items that contain this.
            pattern: only items that have a match of this regular expression (of Python, on bytes).
            place: where to begin instead of `offset`: the `place` of an earlier page. It is of one
                server, so with several give that.
            server: the server to ask; by default all.

        Returns:
            What each server that has the queue found. One search looks at a part of the queue only,
            so go on from its `next_offset`, even if it found nothing, until that is None.

        Raises:
            InvalidRequest: both `text` and `pattern` are given, or one is empty or too long.
            ServerRefused: the queue was loaded anew since it had that place.
        """
        wanted = pattern if text is None else text
        if (text is not None and pattern is not None) or wanted in ("", b""):
            raise InvalidRequest("give either a text or a pattern, and not an empty one")
        search = b"" if wanted is None else commands.checked_bytes(wanted, "what to search for")
        begin = offset if place is None else place
        name = commands.checked_queue(queue)
        command = commands.browse(name, begin, count, search, is_pattern=text is None)
        if server is None and place is None:
            return (yield from self._where_it_is(command))
        only = self._server(server)
        page = yield RunStep(only, command)
        return {} if page is None else {str(only): page}

    def move(self, queue: str, target: str, count: int | None = None) -> Plan[dict[str, Moved]]:
        """Move the first `count` items of a queue, or all that wait, to another, on every server.

        Each server moves its own items, in order. An item is in the target before it leaves the
        queue: if a server crashes, it may be in both. Where the target refuses an item, the move
        ends.

        Returns:
            What each server did that has the queue.
        """
        return (yield from self._move("move", queue, target, count))

    def copy(self, queue: str, target: str, count: int | None = None) -> Plan[dict[str, Moved]]:
        """Copy the first `count` items of a queue, or all that wait, to another; as `move`."""
        return (yield from self._move("copy", queue, target, count))

    def redrive(self, queue: str, target: str | None = None) -> Plan[dict[str, Moved]]:
        """Move all dead letters of a queue to `target`; as `move`.

        Without a target, each goes to the queue that it came from. Fanout children do not get them.
        Those from unknown queues, or from such that are gone, stay: `Moved.stopped` says how many.
        """
        return (yield from self._move("redrive", queue, target, None))

    def _move(
        self,
        verb: Literal["move", "copy", "redrive"],
        queue: str,
        target: str | None,
        count: int | None,
    ) -> Plan[dict[str, Moved]]:
        name = commands.checked_queue(queue)
        to = None if target is None else commands.checked_queue(target)
        if count is not None:
            count = checked_count(count, "a number of items")
        return (yield from self._where_it_is(commands.move(verb, name, to, count)))

    def export_page(self, queue: str, place: ExportPlace | None) -> Plan[ExportPage]:
        """Return some lines of an export, and where to go on; `place` is None at the begin.

        Raises:
            ServerRefused: the queue was deleted since the page before.
        """
        name = commands.checked_queue(queue)
        here = place or ExportPlace(tuple(self._all_servers()))
        command = commands.browse(name, here.place or 0, EXPORTED_AT_ONCE)
        page = yield RunStep(here.servers[0], command)
        others = here.servers[1:]
        following = ExportPlace(others) if others else None
        if page is None:
            if here.place:
                raise ServerRefused(f"queue {queue} was deleted before all of it was exported")
            return ExportPage([], following)
        if page.next_offset is not None:
            following = ExportPlace(here.servers, page.place)
        return ExportPage([commands.export_line(queue, one) for one in page.items], following)

    def import_items(self, lines: Iterable[str | bytes], *, queue: str | None = None) -> Plan[int]:
        """Add the items of lines of JSON, as `export` returns them; return how many.

        They are new items: they keep their expiry, to the second, but not the time when they were
        added. Those that have expired meanwhile are left out; those that are not due are delayed.
        Items of one queue that follow each other are sent together, as by `put_many`. When one is
        refused, those that were sent behind it may be added, and count; no others are sent.

        Args:
            lines: the lines, such as an open file.
            queue: the queue that gets all of them; by default, each line says which.

        Raises:
            ImportStopped: a line is wrong, or an item could not be added. Its cause is the error of
                `put_many`, if there was one.
        """
        if not isinstance(lines, Iterable):
            raise InvalidRequest(f"import_items takes lines, not {type(lines).__name__}")
        if queue is not None:
            commands.checked_queue(queue)
        added = 0
        try:
            for rows in import_batches(lines, queue, BATCH_ITEMS):
                name = rows[0].queue
                now = SystemClock().now()
                times = [times_of_row(row.expiry, row.due, now) for row in rows]
                outcomes = yield from self._put_all(name, [row.data for row in rows], times)
                added += outcomes.count(True)
                if not all(outcomes):
                    break
            else:
                return added
        except ClientError as error:
            raise ImportStopped(str(error), added + error.stored.count(True)) from error
        except (JournalError, OSError, UnicodeDecodeError) as error:
            raise ImportStopped(str(error), added) from error
        raise ImportStopped(f"queue {name!r} is full, or an item is too large", added)

    def declare(
        self,
        queue: str,
        *,
        fanout_only: bool = False,
        journal: bool | None = None,
        expires: float | None = None,
        max_age: float | None = None,
        max_items: int | None = None,
    ) -> Plan[None]:
        """Create a queue with settings of its own on every server, or give it others.

        They are kept over a restart, until the queue is deleted. What the configuration of a server
        says for exactly this queue wins over them.

        Args:
            queue: its name.
            fanout_only: whether items go to its fanout children only.
            journal: whether its items are written to disk; None as for other queues. It cannot be
                changed while the queue exists.
            expires: seconds after which it is deleted when it is empty; None as for other queues.
            max_age: the longest time in seconds that an item may wait; None as for other queues.
            max_items: the most items that it may hold; None as for other queues.
        """
        settings = ["fanout_only"] if fanout_only else []
        if journal is not None:
            settings.append(f"journal={'yes' if journal else 'no'}")
        for name, seconds in (("expires", expires), ("max_age", max_age)):
            if seconds is not None:
                settings.append(f"{name}={declared_time(seconds, name)}")
        if max_items is not None:
            settings.append(f"max_items={checked_count(max_items, 'max_items')}")
        yield from self._on_every_server(commands.declare(commands.checked_queue(queue), settings))

    def pause(self, queue: str, operations: str = "all") -> Plan[bool]:
        """Pause `reads`, `writes` or `all` of a queue on every server, until `resume`.

        Readers find a queue whose reads are paused empty, or wait. Adding to one whose writes are
        paused is refused. Open reads can be ended. A restart of a server keeps what is paused.

        Returns:
            Whether any server has the queue; on one that does not have it, nothing is paused.
        """
        answers = yield from self._on_every_server(
            commands.pause(commands.checked_queue(queue), operations)
        )
        return any(answers.values())

    def resume(self, queue: str, operations: str = "all") -> Plan[bool]:
        """Resume `reads`, `writes` or `all` of a queue on every server; return as `pause`."""
        answers = yield from self._on_every_server(
            commands.resume(commands.checked_queue(queue), operations)
        )
        return any(answers.values())

    def stats(self) -> Plan[dict[str, dict[str, str]]]:
        """Return every statistic of each server, by name."""
        answers = yield from self._on_every_server(commands.stats())
        return {server: dict(pairs) for server, pairs in answers.items()}

    def queues(self, queue: str | None = None) -> Plan[list[QueueStats]]:
        """Return the queues of every server, with their statistics; or only the one of that name.

        One queue is asked for by its name, so it costs no more where there are many.
        """
        if queue is None:
            answers = yield from self._on_every_server(commands.stats())
            return [one for server, pairs in answers.items() for one in queue_stats(server, pairs)]
        answers = yield from self._on_every_server(commands.stats(commands.checked_queue(queue)))
        found = [stats_of_queue(server, queue, pairs) for server, pairs in answers.items()]
        return [one for one in found if one is not None]

    def status(self) -> Plan[dict[str, str]]:
        """Return the status of each server, such as `UP`."""
        return (yield from self._on_every_server(commands.status()))

    def set_status(self, status: str) -> Plan[None]:
        """Change the status of every server, such as to `up`, `readonly` or `quiescent`."""
        if not isinstance(status, str):
            raise InvalidRequest(f"a status is text, not {type(status).__name__}")
        yield from self._on_every_server(commands.set_status(status))

    def version(self) -> Plan[dict[str, str]]:
        """Return the version of each server."""
        return (yield from self._on_every_server(commands.version()))

    def reload(self) -> Plan[dict[str, str]]:
        """Have every server reload its configuration; return what takes a restart, or ""."""
        return (yield from self._on_every_server(commands.reload()))

    def clients(self) -> Plan[list[ConnectedClient]]:
        """Return the clients that are connected to each server, this one among them."""
        answers = yield from self._on_every_server(commands.clients())
        return [replace(one, server=s) for s, found in answers.items() for one in found]

    def kill_client(self, number: int, server: str | None = None) -> Plan[bool]:
        """Disconnect a client; its open reads go back. False if there is none of that number.

        Args:
            number: the client's `id` in `clients`.
            server: the client's `server`; needed if this client has several.

        Raises:
            InvalidRequest: the server is not one of this client's, or must be given.
        """
        killed: bool = yield RunStep(self._server(server), commands.kill_client(number))
        return killed

    def shutdown(self) -> Plan[None]:
        """Stop every server."""
        yield from self._on_every_server(commands.shutdown())

    def exists(self, queue: str) -> Plan[bool]:
        """Return whether any server has the queue. This does not create it.

        Raises:
            ServerUnavailable, ...: no server that answered has it, and some did not answer.
        """
        name = commands.checked_queue(queue)
        errors: list[ClientError] = []
        for server in self._all_servers():
            try:
                if (yield RunStep(server, commands.exists(name))):
                    return True
            except ClientError as error:
                errors.append(error)
        if errors:
            raise join_errors(errors)
        return False

    def _all_servers(self) -> list[Address]:
        """Return every known server, sorted. Raises ServerUnavailable: there is none."""
        choice = self.reads.choose()
        others = self.writes.choose()
        servers = sorted({*choice.ready, *choice.aside, *others.ready, *others.aside})
        if not servers:
            raise ServerUnavailable("no server is known")
        return servers

    def _server(self, server: str | None) -> Address:
        """Return the only server, or the one that is named. Raises InvalidRequest."""
        servers = {str(one): one for one in self._all_servers()}
        if server is None and len(servers) > 1:
            raise InvalidRequest(f"say on which server: {', '.join(servers)}")
        found = servers.get(next(iter(servers)) if server is None else server)
        if found is None:
            raise InvalidRequest(f"{server} is none of the servers: {', '.join(servers)}")
        return found

    def _where_it_is(self, command: Command[T | None]) -> Plan[dict[str, T]]:
        """Run `command` at every server, and leave out those that answer None: no such queue."""
        answers = yield from self._on_every_server(command)
        return {server: found for server, found in answers.items() if found is not None}

    def _on_every_server(self, command: Command[T]) -> Plan[dict[str, T]]:
        """Run `command` at every server, even if some fail; then raise one error for those."""
        results: dict[str, T] = {}
        errors: list[ClientError] = []
        for server in self._all_servers():
            try:
                results[str(server)] = yield RunStep(server, command)
            except ClientError as error:
                errors.append(error)
        if errors:
            raise join_errors(errors)
        return results


# --- the operations as methods of both clients ---


class _Blocking(Protocol):
    def _carry_out(self, plan: Plan[T]) -> T: ...


class _Awaiting(Protocol):
    async def _carry_out(self, plan: Plan[T]) -> T: ...


class PlanMethod(Generic[P, T]):
    """A method of both clients that carries out a plan: `Client` blocks, `AsyncClient` awaits.

    The plan is made by the attribute `_plans` of the object.
    """

    def __init__(self, plan: Callable[Concatenate[PlannerT, P], Plan[T]]) -> None:
        self._plan = plan
        self._methods: dict[type, Any] = {}

    @overload
    def __get__(self, client: _Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: _Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """Return the bound method of a client, or the function of its class."""
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

    return _with_signature(method, plan)


def _awaiting(plan: Callable[..., Plan[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    async def method(self: Any, *args: Any, **kwargs: Any) -> T:
        result: T = await self._carry_out(plan(self._plans, *args, **kwargs))
        return result

    return _with_signature(method, plan)


def _with_signature(method: M, plan: Callable[..., Plan[Any]]) -> M:
    """Give `method` the name, docstring and signature of `plan`, with the plan's result type."""
    update_wrapper(method, plan)
    signature = inspect.signature(plan)
    result = get_args(signature.return_annotation)[2]
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return method


class ClientOperations:
    """The operations of both clients that consist of a single plan."""

    put = PlanMethod(Planner.put)
    put_many = PlanMethod(Planner.put_many)
    get = PlanMethod(Planner.get)
    peek = PlanMethod(Planner.peek)
    reserve_many = PlanMethod(Planner.reserve_many)
    hold_many = PlanMethod(Planner.hold_many)
    finish = PlanMethod(Planner.finish)
    release = PlanMethod(Planner.release)
    release_owner = PlanMethod(Planner.release_owner)
    owners = PlanMethod(Planner.owners)
    extend = PlanMethod(Planner.extend)
    extend_owner = PlanMethod(Planner.extend_owner)
    retire = PlanMethod(Planner.retire)
    flush = PlanMethod(Planner.flush)
    flush_all = PlanMethod(Planner.flush_all)
    delete = PlanMethod(Planner.delete)
    browse = PlanMethod(Planner.browse)
    move = PlanMethod(Planner.move)
    copy = PlanMethod(Planner.copy)
    redrive = PlanMethod(Planner.redrive)
    import_items = PlanMethod(Planner.import_items)
    declare = PlanMethod(Planner.declare)
    pause = PlanMethod(Planner.pause)
    resume = PlanMethod(Planner.resume)
    exists = PlanMethod(Planner.exists)
    stats = PlanMethod(Planner.stats)
    queues = PlanMethod(Planner.queues)
    status = PlanMethod(Planner.status)
    set_status = PlanMethod(Planner.set_status)
    version = PlanMethod(Planner.version)
    reload = PlanMethod(Planner.reload)
    clients = PlanMethod(Planner.clients)
    kill_client = PlanMethod(Planner.kill_client)
    shutdown = PlanMethod(Planner.shutdown)
