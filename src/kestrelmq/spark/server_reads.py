"""Open reads of a queue on one server, over as many connections as needed.

A server limits the number of open reads of a connection (`max_monitor_transactions`, by default
100), so the reads of a part are spread over several connections. They are filled one after the
other, so the items stay in the queue's order. Closing the connections gives the items back.
"""

import logging
from functools import partial
from typing import Final

from kestrelmq.client import commands
from kestrelmq.client.address import parse_address
from kestrelmq.client.blocking import Connection
from kestrelmq.client.commands import Command
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import ClientError, ServerRefused, ServerUnavailable
from kestrelmq.spark.refusals import QueueCannotBeRead, ask_when_loaded
from kestrelmq.spark.staging import OpenedItems

MAX_CONNECTIONS: Final = 32
_MOST_AT_ONCE: Final = 10_000

_log: Final = logging.getLogger("kestrelmq.spark")


class ServerReads:
    """The open reads of one partition."""

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

    def open(self, items: int, size: int) -> OpenedItems:
        """Open up to `items` reads, of about `size` bytes, in the queue's order.

        The sizes of items are not known in advance. The first request is for one item; each later
        one is for as many as would fit if none were larger than the largest item so far.

        Raises:
            ClientError: the server cannot be read.
            QueueCannotBeRead: the queue cannot be read, and `patience` is not None.
        """
        found: list[bytes] = []
        largest, taken = 0, 0
        while len(found) < items and taken < size:
            fitting = (size - taken) // max(largest, 1) if found else 1
            wanted = max(1, min(items - len(found), fitting, _MOST_AT_ONCE))
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
            largest = max(largest, *map(len, arrived))
            taken += sum(map(len, arrived))
            found += arrived
        return OpenedItems(found, exhausted=False)

    def confirm(self) -> None:
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

    def give_back(self) -> None:
        """Close the connections; the server then puts the items of open reads back."""
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
        if self._patience is None:
            return connection.run(command)
        server = str(self._address)
        ask = partial(connection.run, command)
        return ask_when_loaded(self._queue.decode(), server, ask, self._patience)

    def _connect(self) -> Connection:
        connection = Connection(self._address, self._options)
        connection.open()
        return connection
