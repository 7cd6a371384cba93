"""Write `kestrel`: add rows to queues as items.

A failed task is run again from its beginning, and an add whose reply was lost is sent again. So
that each item is stored once, a partition is a producer (`PutMark`) that numbers its items in each
queue, and keeps to one server: a batch that is run again has the same numbers, if it has the same
rows in the same order. Otherwise, without `exactlyOnce`, items go to any server that accepts them,
at least once.

A full queue is not a failure: the task waits for room, and so does everything after it. If no item
was stored for the time that the option `patience` gives, the task fails, and with it the query;
when the query is started again, it sends the batch again.

A row that can never become an item, because it is larger than any server takes, has no data or
names no queue, is a dead letter: see `dead_letters`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, takewhile
from typing import Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kestrelmq.client import Client, commands
from kestrelmq.client.address import Address
from kestrelmq.client.blocking import Connection, connected
from kestrelmq.client.cluster import FixedMembership, Membership, by_affinity
from kestrelmq.client.options import LONGEST_DELAY, ClientOptions, Expiry
from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import (
    AuthenticationFailed,
    ClientError,
    ConfigError,
    InvalidRequest,
    KestrelError,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.names import queue_name_error
from kestrelmq.spark.sinks import written_columns
from kestrelmq.spark.sinks.dead_letters import DeadLetter, DeadLetters
from kestrelmq.spark.sinks.live_options import KestrelWriteOptions

_NOBODY: Final = "nobody:of:spark"
"""The name of an owner of no reads: to extend them changes nothing."""
_COLUMNS: Final = ("queue", "data", "expiry", "due")
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_BATCH_SHIFT: Final = 32
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

Reject = Callable[[DeadLetter], None]
"""Takes a row that can never become an item, or raises `CannotBeStored`."""

_log: Final = logging.getLogger("kestrelmq.spark")


class QueueStaysFull(KestrelError):  # noqa: N818 # says what it is
    """No item could be stored for the time that the option `patience` gives."""


class PutClient(Protocol):
    """The part of a client that the sink uses."""

    def put_many(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry = None,
        *,
        delay: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        retry_unknown: bool | None = None,
    ) -> list[bool]:
        """Add items; return for each whether it was stored."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """How the items of a partition are numbered.

    Attributes:
        producer: the name of the partition.
        begin: the number of its first item in each queue.
    """

    producer: str
    begin: int


def numbering(write: str) -> Numbering:
    """Return that of this task; `write` is the name of a table's write, and empty for a stream's.

    In `foreachBatch` there may be several writes of one batch, and each is a table's.
    """
    task = TaskContext.get()
    assert task is not None  # noqa: S101 # a writer runs in a task
    if write:
        return Numbering(f"{write}.{task.partitionId()}", 1)
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    assert query is not None and batch is not None  # noqa: S101, PT018 # it is that of a stream
    name = query.replace("-", "")
    return Numbering(f"{name}.{task.partitionId()}", (int(batch) + 1 << _BATCH_SHIFT) + 1)


class ItemSender:
    """Sends items to the servers, again and again until they are stored."""

    def __init__(
        self,
        client: PutClient,
        patience: float,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
        *,
        delay: float | None = None,
        largest: Callable[[str], int | None] = lambda _queue: None,
        reject: Reject | None = None,
        numbered: Numbering | None = None,
    ) -> None:
        """Prepare to send.

        Args:
            client: what puts the items.
            patience: seconds without any item stored, after which it gives up.
            clock: measures that.
            pause: sleeps between two attempts.
            delay: seconds for which each item is to wait in its queue.
            largest: asks for the most bytes of an item of a queue that a server takes; None if that
                is not limited, or not known.
            reject: takes items that are larger; None fails.
            numbered: how the items are numbered; None if they are not. The client has one server.
        """
        self._numbered = numbered
        self._next: dict[str, int] = {}
        self._limits: dict[str, int | None] = {}
        self._client = client
        self._largest = largest
        self._reject = reject or DeadLetters(None).add
        self._delay = delay
        self._patience = patience
        self._clock = clock or SystemClock()
        self._pause = pause

    def send(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry = None,
        due: int | None = None,
    ) -> None:
        """Add items to a queue; return when every one is stored.

        Args:
            queue: the queue.
            items: their data.
            expiry: when they expire.
            due: until when they wait in their queue (ms since the epoch), instead of `delay`.

        Raises:
            QueueStaysFull: no item was stored for `patience` seconds.
            CannotBeStored: an item is larger than any server takes.
            InvalidRequest: an item cannot be sent.
            ServerRefused: no server would ever accept an item.
        """
        mark: dict[str, Any] = {}
        begin = self._next.get(queue, self._numbered.begin if self._numbered else 0)
        self._next[queue] = begin + len(items)
        for number, some in self._fitting(queue, items, expiry):
            if self._numbered is not None:
                mark = {"producer": self._numbered.producer, "sequence": begin + number}
            self._send(queue, some, expiry, due, mark)

    def _fitting(
        self, queue: str, items: Sequence[bytes], expiry: Expiry
    ) -> list[tuple[int, list[bytes]]]:
        """Return runs of items that are not too large, each with the place of its first.

        The others are rejected before anything is sent, by every attempt.
        """
        if queue not in self._limits:
            self._limits[queue] = self._largest(queue)
        limit = self._limits[queue]
        if limit is None:
            return [(0, list(items))]
        until = int(expiry.timestamp() * 1000) if isinstance(expiry, datetime) else 0
        fitting = []
        for fits, run in groupby(enumerate(items), lambda one: len(one[1]) <= limit):
            places, some = zip(*run, strict=True)
            if fits:
                fitting.append((places[0], list(some)))
                continue
            for item in some:
                reason = (
                    f"an item of queue {queue!r} has {len(item)} bytes, and the servers take at "
                    f"most {limit}"
                )
                self._reject(DeadLetter(queue, item, until, reason))
        return fitting

    def _send(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry,
        due: int | None,
        mark: dict[str, Any],
    ) -> None:
        """Send, as `send`; `mark` has the producer and the number of the first item."""
        left = list(items)
        pause = _FIRST_PAUSE
        deadline = self._clock.monotonic() + self._patience
        while left:
            reason = "the servers refuse it: the queue is full, or the item is too large"
            try:
                stored: Sequence[bool | None] = self._client.put_many(
                    queue,
                    left,
                    expiry,
                    delay=self._delay_until(due),
                    retry_unknown=True,
                    **mark,
                )
            except ClientError as error:
                hopeless = isinstance(error, InvalidRequest) or (
                    isinstance(error, ServerRefused) and error.kind != "SERVER_ERROR"
                )
                if hopeless:
                    raise
                stored, reason = error.stored, str(error)
            done = sum(outcome is True for outcome in stored)
            if mark:
                # Behind one that is refused none is stored; what is unknown is sent again as it is.
                done = sum(1 for _ in takewhile(lambda outcome: outcome is True, stored))
                stored = stored[:done]
                mark = mark | {"sequence": mark["sequence"] + done}
            if done:
                left = [
                    item
                    for place, item in enumerate(left)
                    if place >= len(stored) or stored[place] is not True
                ]
                pause, deadline = _FIRST_PAUSE, self._clock.monotonic() + self._patience
            if not left:
                return
            if self._clock.monotonic() >= deadline:
                raise QueueStaysFull(
                    f"{len(left)} items of queue {queue!r} could not be stored for "
                    f"{self._patience:g} seconds: {reason}"
                )
            _log.info("%d items of %r wait: %s", len(left), queue, reason)
            self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _delay_until(self, due: int | None) -> float | None:
        if due is None:
            return self._delay
        left = min((due - self._clock.now()) / 1000, LONGEST_DELAY)
        return left if left > 0 else None


def largest_item(
    membership: Membership, options: ClientOptions, queue: str, *, marked: bool
) -> int | None:
    """Return the most bytes of an item that any server takes; None if not limited or not known.

    Raises:
        ConfigError: items are `marked`, with a number or a delay, and a server does not know that:
            it would take the mark for a part of the queue's name.
    """
    name = commands.checked_queue(queue)
    limits = []
    for server in membership.writes():
        try:
            with closing(connected(server, options)) as connection:
                if marked:
                    _check_ours(connection, server)
                connection.run(commands.peek(name))  # only queues that exist have settings
                limits.append(connection.run(commands.item_limit(name)))
        except ClientError:
            return None
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else None


def _check_ours(connection: Connection, server: Address) -> None:
    try:
        connection.run(commands.extend_owner(_NOBODY, 1))
    except ServerRefused as error:
        if error.kind == "SERVER_ERROR" or isinstance(error, AuthenticationFailed):
            raise
        raise ConfigError(
            f"{server} is not a kestrelmq server: write with exactlyOnce=false, and without a delay"
        ) from None


class _RowWriter:
    """Writes rows: the common part of the writers of tables and streams."""

    _name = ""
    """Of a table's write."""

    def __init__(self, options: KestrelWriteOptions, schema: StructType) -> None:
        """Prepare a write.

        Raises:
            ConfigError: the columns cannot be written, or nobody can sign in.
        """
        check_columns(schema, queue_given=options.queue is not None)
        options.cluster.client_options()  # what is wrong with it is found before any task runs
        self._options = options
        has_due = "due" in (name.lower() for name in schema.names)
        self._marked = options.exactly_once or options.delay is not None or has_due

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add the rows of one task."""
        membership: Membership = self._options.cluster.membership()
        numbered = numbering(self._name)
        if self._options.exactly_once:
            membership = _home(membership, numbered.producer)
        task = f"{numbered.producer}-{numbered.begin}"
        dead_letters = DeadLetters(self._options.dead_letter_path, task)
        clients = self._options.cluster.client_options()
        with Client(membership, options=clients) as client:
            sender = ItemSender(
                client,
                self._options.patience,
                delay=self._options.delay,
                largest=partial(largest_item, membership, clients, marked=self._marked),
                reject=dead_letters.add,
                numbered=numbered if self._options.exactly_once else None,
            )
            zone = written_columns.session_zone()
            for batch in iterator:
                rows = written_columns.cast(batch, zone)
                groups = grouped(rows, self._options.queue, dead_letters.add)
                for queue, due, expiry, data in groups:
                    sender.send(queue, data, expiry, due)
        dead_letters.flush()
        return WriterCommitMessage()


def _home(membership: Membership, producer: str) -> Membership:
    """Return the server of a producer alone, which changes only if servers join or leave.

    Raises ServerUnavailable: no server is known.
    """
    membership.start()
    try:
        servers = membership.writes()
    finally:
        membership.close()
    if not servers:
        raise ServerUnavailable("no server is known")
    return FixedMembership(by_affinity(frozenset(servers), producer)[:1])


class KestrelWriter(_RowWriter, DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: KestrelWriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._name = uuid4().hex


class KestrelStreamWriter(_RowWriter, DataSourceStreamArrowWriter):
    """Writes a stream. There is nothing to commit: stored items are in their queues."""


def check_columns(schema: StructType, *, queue_given: bool) -> None:
    """Check that rows of `schema` can be written.

    Raises:
        ConfigError: a column is missing, unknown or of a type that is not allowed.
    """
    written_columns.check("writing kestrel", schema, _COLUMNS)
    if queue_given == ("queue" in (name.lower() for name in schema.names)):
        raise ConfigError(
            "writing kestrel: give the queue either as option 'queue' or as column 'queue'"
        )


def grouped(
    batch: pa.RecordBatch, queue: str | None, reject: Reject
) -> Iterator[tuple[str, int | None, datetime | None, list[bytes]]]:
    """Yield a batch's items by the time at which they are due (ms), by queue and by expiry.

    Those that are not delayed come first. Items of a queue that are due at the same time are in the
    batch's order.

    Args:
        batch: rows, as `written_columns.cast` returns them.
        queue: the queue of all rows; None takes it from the column.
        reject: takes rows that have no data, or no name of a queue; it may raise CannotBeStored.
    """
    data = batch.column("data").to_pylist()
    queues = [queue] * len(data) if queue else batch.column("queue").to_pylist()
    dues, expiries = (
        batch.column(name).to_pylist() if name in batch.schema.names else [None] * len(data)
        for name in ("due", "expiry")
    )
    rows: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
    for name, due, expiry, item in zip(queues, dues, expiries, data, strict=True):
        if name is None or item is None:
            missing = "queue" if name is None else "data"
            reject(DeadLetter(name, item, expiry or 0, f"column {missing!r} must not be null"))
        else:
            rows.setdefault((due or 0, name), []).append((expiry or 0, item))
    for (due, name), found in sorted(rows.items()):
        error = queue_name_error(name)
        if error is not None:
            reason = f"column 'queue': {name!r} is not allowed: {error}"
            for expiry, item in found:
                reject(DeadLetter(name, item, expiry, reason))
            continue
        for expiry, same in groupby(found, key=lambda row: row[0]):
            yield name, due or None, _expiry(expiry), [item for _, item in same]


def _expiry(time_ms: int) -> datetime | None:
    """Return when an item expires, from ms since the epoch; 0 means never.

    A time that no calendar has becomes the nearest one that it has.
    """
    if not time_ms:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        nearest = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
        return nearest[time_ms < 0]
