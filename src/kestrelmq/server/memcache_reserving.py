"""The memcache commands for reserved reads: `reserve`, `finish`, `release`, `extend`, `retire`."""

from typing import Final

from kestrelmq.errors import KestrelError
from kestrelmq.journal.records import ADDX_HEADER, item_deliveries, item_times
from kestrelmq.protocol import memcache
from kestrelmq.protocol.memcache import DONE, END, ITEM, reserved_rest
from kestrelmq.protocol.reserving import (
    EndsReads,
    Extend,
    ExtendOwner,
    Finish,
    Release,
    Reserve,
    Retire,
)
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import Forbidden, ServerContext
from kestrelmq.server.memcache_reads import error_reply
from kestrelmq.server.reserving import (
    ConnectionOwners,
    Reserved,
    ReserveHandler,
    begin_reserve,
    end_reserved,
)

_LINE_END: Final = b"\r\n"
_VERBS: Final[dict[type[EndsReads], bytes]] = {
    Finish: b"FINISHED",
    Release: b"RELEASED",
    Extend: b"EXTENDED",
    ExtendOwner: b"EXTENDED",
    Retire: b"RETIRED",
}
"""The first word of each reply."""


class MemcacheReserve(ReserveHandler):
    """A `reserve`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answer(self, reserved: Reserved) -> None:
        """Send the items and END."""
        parts: list[bytes] = []
        for queue, reservation in reserved:
            begin, nonce = ITEM + queue.name.encode() + b" ", reservation.nonce
            last_header, last_deliveries, rest = b"", 0, b""
            for xid, record in queue.reserved_reads(reservation):
                header, deliveries = record[:ADDX_HEADER], item_deliveries(record) + 1
                # Neighbours are often of the same size and millisecond.
                if header != last_header or deliveries != last_deliveries:
                    last_header, last_deliveries = header, deliveries
                    size = len(record) - ADDX_HEADER
                    rest = reserved_rest(nonce, deliveries, item_times(record), size)
                parts += (begin, b"%d" % xid, rest, record[ADDX_HEADER:], _LINE_END)
        parts.append(END)
        self._connection.push(b"".join(parts), tuple(queue for queue, _ in reserved))

    def answer_done(self) -> None:
        """Send that the tag is done."""
        self._connection.push(DONE)

    def fail(self, error: KestrelError) -> None:
        """Send the error."""
        _refuse(self._connection, error)


def reserve(
    connection: Connection, context: ServerContext, owners: ConnectionOwners, request: Reserve
) -> None:
    """Serve a `reserve`."""
    begin_reserve(connection, context, owners, request, MemcacheReserve(connection))


def end_reads(
    connection: Connection, context: ServerContext, owners: ConnectionOwners, request: EndsReads
) -> None:
    """Serve a request about reads that are reserved."""
    verb = _VERBS[type(request)]
    end_reserved(
        connection,
        context,
        owners,
        request,
        lambda count, queue: connection.push(memcache.counted_line(verb, count), queue),
        lambda error: _refuse(connection, error),
    )


def _refuse(connection: Connection, error: KestrelError) -> None:
    connection.push(error_reply(error))
    connection.closing |= isinstance(error, Forbidden)
