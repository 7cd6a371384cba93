"""Open reads of queues on one server.

`TaggedReads` are for servers that have reserved reads, `MonitoredReads` for any other server of the
protocol.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import parse_address
from kestrelmq.client.blocking import Connection
from kestrelmq.client.commands import Command, Reads, ReservedRead
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import (
    ClientError,
    ConnectionLost,
    OperationTimeout,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.protocol.reserving import MAX_RESERVED
from kestrelmq.spark.live.refusals import QueueCannotBeRead, ask_when_loaded
from kestrelmq.spark.live.staging import OpenedItems, PartId, StagedPart

T = TypeVar("T")

MAX_CONNECTIONS: Final = 32
_MOST_MONITORED: Final = 10_000

_log: Final = logging.getLogger("kestrelmq.spark")


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How the reads of a partition get at its server.

    Attributes:
        server: the server's address.
        patience: seconds to wait for a queue that is still loading before raising
            `QueueCannotBeRead`; None raises `ServerRefused` at once.
    """

    server: str
    patience: float | None = None

    def connect(self) -> Connection:
        """Return a new connection. Raises ServerUnavailable."""
        connection = Connection(parse_address(self.server), ClientOptions())
        connection.open()
        return connection

    def run(self, queue: str, ask: Callable[[], T], *, now: bool = False) -> T:
        """Return what `ask` returns; with `patience` wait while the queue loads, unless `now`."""
        if self.patience is None:
            return ask()
        return ask_when_loaded(queue, self.server, ask, 0.0 if now else self.patience)


class TaggedReads:
    """The reserved reads of one partition.

    They are reserved some at a time, each time under a tag of its own that names the query, the
    part, and how many times before for that queue: a task that makes the part again gets the same
    items of each queue.
    """

    def __init__(self, access: ServerAccess, name: str, lease: float) -> None:
        """Prepare to read a server.

        Args:
            access: the server.
            name: a name of the query for its tags.
            lease: seconds for which the reads are reserved.
        """
        self._access = access
        self._name = name
        self._lease = lease
        self._connection: Connection | None = None
        self._held: list[ReservedRead] = []
        self._has_left = False

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:
        """Reserve up to `items` items, of about `size` bytes, in the queue's order.

        Raises:
            ClientError: the server cannot be read, and nothing is reserved for the part.
            QueueCannotBeRead: the queue cannot be read, and there is `patience`.
        """
        found: list[ReservedRead] = []
        tags: list[tuple[str, int]] = []
        for times, wanted in enumerate(_requests(found, items, size, MAX_RESERVED)):
            tag = f"{self._name}:{part.epoch}:{part.partition}.{part.number}.{times}"
            try:
                arrived = self._reserve(queue, wanted, tag)
            except (QueueCannotBeRead, ServerRefused):
                if not found:
                    raise
                # Keep the reads; the next call raises the error if it lasts.
                return self._opened(found, tags, exhausted=False)
            except ServerUnavailable:
                if not self._held:
                    raise
                return self._opened(found, tags, exhausted=True, is_lost=True)
            except (ConnectionLost, OperationTimeout):
                return self._opened(found, tags, exhausted=True, is_lost=True, unsure=tag)
            if not arrived:
                return self._opened(found, tags, exhausted=True)
            found += arrived
            tags.append((tag, len(arrived)))
            self._held += arrived
        return self._opened(found, tags, exhausted=False)

    def confirm(self, part: StagedPart) -> bool:
        """Finish the reads of the part; return whether the server was told."""
        self._held = []
        return self.settle(part)

    def settle(self, part: StagedPart) -> bool:
        """Finish the reads of the part, again perhaps; return whether the server was told."""
        try:
            for command in settling(part):
                self._connected().run(command)
        except ClientError as error:
            _log.warning("%s: it will be told later what was read: %s", self._access.server, error)
            return False
        return True

    def give_back(self, *, but: Collection[str] = ()) -> None:
        """Release the reads that are not among `but`; if that fails, their leases end."""
        kept = frozenset(but)
        released: dict[str, list[str]] = {}
        for read in self._held:
            if read.read not in kept:
                released.setdefault(read.queue, []).append(read.read)
        self._held = []
        try:
            for queue, reads in released.items():
                command = commands.release(
                    commands.checked_queue(queue), Reads(reads), 0.0, counted=False
                )
                self._connected().run(command)
        except ClientError as error:
            _log.warning("%s: some items stay reserved: %s", self._access.server, error)
        self.close()

    def leave(self) -> None:
        """Forget the open reads: they stay reserved."""
        self._held, self._has_left = [], True

    def close(self) -> None:
        """Close the connection; the reads stay reserved."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(
        self,
        found: list[ReservedRead],
        tags: list[tuple[str, int]],
        *,
        exhausted: bool,
        is_lost: bool = False,
        unsure: str = "",
    ) -> OpenedItems:
        data = [read.data for read in found]
        return OpenedItems(data, exhausted, tuple(found), unsure, is_lost, tuple(tags))

    def _reserve(self, queue: str, items: int, tag: str) -> list[ReservedRead]:
        terms = commands.reserve_terms(self._lease, tag)
        command = commands.reserve([commands.checked_queue(queue)], items, terms, 0.0)
        # Do not wait while items are held: the server may want those to be finished first.
        run = partial(
            self._access.run,
            queue,
            lambda: self._connected().run(command),
            now=self._has_left or bool(self._held),
        )
        try:
            return run() or []
        except (ConnectionLost, OperationTimeout) as error:
            lost = error
        try:
            # Items may have been reserved: the tag gives them again.
            return run() or []
        except (ServerUnavailable, ConnectionLost, OperationTimeout):
            raise lost from None

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_usable():
            self.close()
            self._connection = self._access.connect()
        return self._connection


def settling(part: StagedPart) -> Iterator[Command[int]]:
    """Yield the commands that tell a server about a part in place; they may be repeated."""
    for queue, reads in part.reads_by_queue().items():
        yield commands.finish(commands.checked_queue(queue), Reads(reads))
    if part.unsure:
        last = commands.checked_queue(part.runs[-1].queue)
        yield commands.release(last, Reads(tag=part.unsure), 0.0, counted=False)


class MonitoredReads:
    """The open reads of one partition, over as many connections as needed.

    A server limits the number of open reads of a connection (`max_monitor_transactions`, by default
    100), so the reads of a part are spread over several connections. They are filled one after the
    other, so the items stay in the queue's order. Closing the connections gives the items back.
    """

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        self._free: list[Connection] = []
        self._held: list[_HeldReads] = []
        self._has_room = False

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:  # noqa: ARG002 # for tags
        """Open up to `items` reads, of about `size` bytes, in the queue's order.

        Raises:
            ClientError: the server cannot be read.
            QueueCannotBeRead: the queue cannot be read, and there is `patience`.
        """
        name = commands.checked_queue(queue)
        found: list[bytes] = []
        self._has_room = False  # what is open already is of another queue
        for wanted in _requests(found, items, size, _MOST_MONITORED):
            if not self._has_room and len(self._held) == MAX_CONNECTIONS:
                break
            try:
                arrived = self._more(name, wanted)
            except QueueCannotBeRead:
                if not found:
                    raise
                # Keep the open reads; the next call raises the error.
                break
            except (ServerUnavailable, ServerRefused) as error:
                if not found or getattr(error, "kind", "SERVER_ERROR") != "SERVER_ERROR":
                    raise
                # The server accepts no further connections; the open reads are good.
                return OpenedItems(found, exhausted=True)
            if not arrived:
                return OpenedItems(found, exhausted=True)
            found += arrived
        return OpenedItems(found, exhausted=False)

    def confirm(self, part: StagedPart) -> bool:  # noqa: ARG002 # it does not name the reads
        """Confirm the open reads; items whose confirmation fails are delivered again."""
        held = self._held
        self._held, self._has_room = [], False
        for one in held:
            try:
                one.connection.run(commands.confirm(one.queue, one.reads))
            except ClientError as error:
                _log.warning(
                    "%s: %d items may come again: %s", self._access.server, one.reads, error
                )
            else:
                self._free.append(one.connection)
        return True

    def settle(self, part: StagedPart) -> bool:  # noqa: ARG002 # as above
        """Do nothing: reads of a task that is gone were given back."""
        return True

    def give_back(self, *, but: Collection[str] = ()) -> None:  # noqa: ARG002 # reads have no names
        """Close the connections; the server then puts the items of open reads back."""
        self.close()

    def close(self) -> None:
        """Close the connections, and so give back what was not confirmed."""
        connections = [*self._free, *(one.connection for one in self._held)]
        self._free, self._held, self._has_room = [], [], False
        for connection in connections:
            connection.close()

    def _more(self, queue: bytes, items: int) -> list[bytes]:
        """Open more reads: on the last connection if it may have room, or else on another."""
        if self._has_room:
            arrived = self._run(self._held[-1].connection, queue, items)
            self._held[-1].reads += len(arrived)
        else:
            connection = self._free.pop() if self._free else self._access.connect()
            try:
                arrived = self._run(connection, queue, items)
            except BaseException:
                connection.close()
                raise
            if not arrived:
                self._free.append(connection)
                return arrived
            self._held.append(_HeldReads(connection, queue, len(arrived)))
        # With fewer items than requested, either the connection is full or the queue is empty; a
        # request on another connection shows which.
        self._has_room = len(arrived) == items
        return arrived or self._more(queue, items)

    def _run(self, connection: Connection, queue: bytes, items: int) -> list[bytes]:
        command = commands.monitor(queue, 0, items)
        return self._access.run(queue.decode(), partial(connection.run, command))


@dataclass(slots=True)
class _HeldReads:
    """The open reads of a connection, all of one queue."""

    connection: Connection
    queue: bytes
    reads: int


def _requests(
    found: Sequence[bytes] | Sequence[ReservedRead], items: int, size: int, most: int
) -> Iterator[int]:
    """Yield how many items to request next, until `found` has `items` items or `size` bytes.

    The sizes of items are not known in advance. The first request is for one item; each later
    one is for as many as would fit if none were larger than the largest item so far.
    """
    largest = taken = seen = 0
    while len(found) < items and taken < size:
        fitting = (size - taken) // max(largest, 1) if found else 1
        yield max(1, min(items - len(found), fitting, most))
        sizes = [len(one if isinstance(one, bytes) else one.data) for one in found[seen:]]
        seen = len(found)
        largest = max(largest, *sizes)
        taken += sum(sizes)
