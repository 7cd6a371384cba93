"""Open reads of a queue on one server.

`TaggedReads` are for servers that have reserved reads, `MonitoredReads` for any other server of the
protocol.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import count as count_up
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
from kestrelmq.spark.refusals import QueueCannotBeRead, ask_when_loaded
from kestrelmq.spark.staging import OpenedItems, PartId, StagedPart

T = TypeVar("T")

MAX_CONNECTIONS: Final = 32
_MOST_MONITORED: Final = 10_000
_MOST_RESERVED: Final = 1000

_log: Final = logging.getLogger("kestrelmq.spark")


class TaggedReads:
    """The reserved reads of one partition.

    They are reserved some at a time, each time under a tag of its own that names the query, the
    part, and how many times before: a task that makes the part again gets the same items.
    """

    def __init__(
        self,
        server: str,
        queue: str,
        name: str,
        lease: float,
        options: ClientOptions | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        """Prepare to read a queue of a server.

        Args:
            server: its address.
            queue: the queue.
            name: a name of the query for its tags.
            lease: seconds for which the reads are reserved.
            options: options of the connection.
            patience: as for `MonitoredReads`.
        """
        self._address = parse_address(server)
        self._queue = commands.checked_queue(queue)
        self._name = name
        self._lease = lease
        self._options = options or ClientOptions()
        self._patience = patience
        self._connection: Connection | None = None
        self._held: list[ReservedRead] = []

    def open(self, part: PartId, items: int, size: int) -> OpenedItems:
        """Reserve up to `items` items, of about `size` bytes, in the queue's order.

        Raises:
            ClientError: the server cannot be read.
            QueueCannotBeRead: the queue cannot be read, and `patience` is not None.
        """
        self._held = []
        exhausted, unsure = False, ""
        tags = (
            f"{self._name}:{part.epoch}:{part.partition}.{part.number}.{time}"
            for time in count_up()
        )
        for wanted, tag in zip(_requests(self._held, items, size, _MOST_RESERVED), tags):  # noqa: B905 # endless
            try:
                arrived = self._reserve(wanted, tag)
            except (QueueCannotBeRead, ServerRefused):
                if not self._held:
                    raise
                # Keep the reads; the next call raises the error if it lasts.
                break
            except ServerUnavailable:
                if not self._held:
                    raise
                exhausted = True
                break
            except (ConnectionLost, OperationTimeout):
                exhausted, unsure = True, tag
                break
            if not arrived:
                exhausted = True
                break
            self._held += arrived
        found = self._held
        return OpenedItems([read.data for read in found], exhausted, tuple(found), unsure)

    def confirm(self, part: StagedPart) -> bool:
        """Finish the reads of the part; return whether the server was told."""
        self._held = []
        return self.settle(part)

    def settle(self, part: StagedPart) -> bool:
        """Finish the reads of the part, again perhaps; return whether the server was told."""
        try:
            for command in settling(self._queue, part):
                self._connected().run(command)
        except ClientError as error:
            _log.warning("%s: it will be told later what was read: %s", self._address, error)
            return False
        return True

    def give_back(self, *, but: Collection[str] = ()) -> None:
        """Release the reads that are not among `but`; if that fails, their leases end."""
        kept = frozenset(but)
        released = [read.read for read in self._held if read.read not in kept]
        self._held = []
        try:
            if released:
                command = commands.release(self._queue, Reads(released), 0.0, counted=False)
                self._connected().run(command)
        except ClientError as error:
            _log.warning("%s: %d items stay reserved: %s", self._address, len(released), error)
        self.close()

    def close(self) -> None:
        """Close the connection; the reads stay reserved."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reserve(self, items: int, tag: str) -> list[ReservedRead]:
        terms = commands.reserve_terms(self._lease, tag)
        command = commands.reserve([self._queue], items, terms, 0.0)
        try:
            return self._run(command) or []
        except (ConnectionLost, OperationTimeout) as error:
            lost = error
        try:
            # Items may have been reserved: the tag gives them again.
            return self._run(command) or []
        except (ServerUnavailable, ConnectionLost, OperationTimeout):
            raise lost from None

    def _run(self, command: Command[T]) -> T:
        # Not while items are held: the server may want those to be finished first.
        patience = 0.0 if self._held and self._patience is not None else self._patience
        return _run_when_loaded(
            self._queue.decode(),
            str(self._address),
            lambda: self._connected().run(command),
            patience,
        )

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_usable():
            self.close()
            connection = Connection(self._address, self._options)
            connection.open()
            self._connection = connection
        return self._connection


def settling(queue: bytes, part: StagedPart) -> Iterator[Command[int]]:
    """Yield the commands that tell a server about a part in place; they may be repeated."""
    reads = part.reads
    if reads:
        yield commands.finish(queue, Reads(reads))
    if part.unsure:
        yield commands.release(queue, Reads(tag=part.unsure), 0.0, counted=False)


class MonitoredReads:
    """The open reads of one partition, over as many connections as needed.

    A server limits the number of open reads of a connection (`max_monitor_transactions`, by default
    100), so the reads of a part are spread over several connections. They are filled one after the
    other, so the items stay in the queue's order. Closing the connections gives the items back.
    """

    def __init__(
        self,
        server: str,
        queue: str,
        options: ClientOptions | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        """Prepare to read a queue of a server.

        Args:
            server: its address.
            queue: the queue.
            options: options of the connections.
            patience: seconds to wait for a queue that is still loading before raising
                `QueueCannotBeRead`; None raises `ServerRefused` at once.
        """
        self._address = parse_address(server)
        self._queue = commands.checked_queue(queue)
        self._patience = patience
        self._options = options or ClientOptions()
        self._free: list[Connection] = []
        self._held: list[Connection] = []
        self._counts: list[int] = []
        self._has_room = False

    def open(self, part: PartId, items: int, size: int) -> OpenedItems:  # noqa: ARG002 # for tags
        """Open up to `items` reads, of about `size` bytes, in the queue's order.

        Raises:
            ClientError: the server cannot be read.
            QueueCannotBeRead: the queue cannot be read, and `patience` is not None.
        """
        found: list[bytes] = []
        for wanted in _requests(found, items, size, _MOST_MONITORED):
            if not self._has_room and len(self._held) == MAX_CONNECTIONS:
                break
            try:
                arrived = self._more(wanted)
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
        held = zip(self._held, self._counts, strict=True)
        self._held, self._counts, self._has_room = [], [], False
        for connection, count in held:
            try:
                connection.run(commands.confirm(self._queue, count))
            except ClientError as error:
                _log.warning("%s: %d items may come again: %s", self._address, count, error)
            else:
                self._free.append(connection)
        return True

    def settle(self, part: StagedPart) -> bool:  # noqa: ARG002 # as above
        """Do nothing: reads of a task that is gone were given back."""
        return True

    def give_back(self, *, but: Collection[str] = ()) -> None:  # noqa: ARG002 # reads have no names
        """Close the connections; the server then puts the items of open reads back."""
        self.close()

    def close(self) -> None:
        """Close the connections, and so give back what was not confirmed."""
        connections = [*self._free, *self._held]
        self._free, self._held, self._counts, self._has_room = [], [], [], False
        for connection in connections:
            connection.close()

    def _more(self, items: int) -> list[bytes]:
        """Open more reads: on the last connection if it may have room, or else on another."""
        command = commands.monitor(self._queue, 0, items)
        if self._has_room:
            arrived = self._run(self._held[-1], command)
            self._counts[-1] += len(arrived)
        else:
            connection = self._free.pop() if self._free else self._connect()
            arrived = self._run(connection, command)
            if not arrived:
                self._free.append(connection)
                return arrived
            self._held.append(connection)
            self._counts.append(len(arrived))
        # With fewer items than requested, either the connection is full or the queue is empty; a
        # request on another connection shows which.
        self._has_room = len(arrived) == items
        return arrived or self._more(items)

    def _run(self, connection: Connection, command: Command[list[bytes]]) -> list[bytes]:
        ask = partial(connection.run, command)
        return _run_when_loaded(self._queue.decode(), str(self._address), ask, self._patience)

    def _connect(self) -> Connection:
        connection = Connection(self._address, self._options)
        connection.open()
        return connection


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


def _run_when_loaded(queue: str, server: str, ask: Callable[[], T], patience: float | None) -> T:
    """Return what `ask` returns; with `patience`, wait while the queue is loading."""
    if patience is None:
        return ask()
    return ask_when_loaded(queue, server, ask, patience)
