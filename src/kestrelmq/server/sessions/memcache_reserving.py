"""The memcache commands for reserved reads: `reserve`, `finish`, `release`, `extend`, `retire`."""

from collections.abc import Sequence
from typing import Final

from kestrelmq.errors import KestrelError
from kestrelmq.format.records import (
    ADDX_HEADER,
    first_xid,
    is_run,
    item_deliveries,
    item_times,
    record_of,
)
from kestrelmq.journal.open_read import Reservation
from kestrelmq.protocol import memcache
from kestrelmq.protocol.decimals import consecutive
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
from kestrelmq.queue.queue import Queue
from kestrelmq.server.connection import Connection
from kestrelmq.server.replies import data_of
from kestrelmq.server.requests.reserving import (
    Reserved,
    ReserveHandler,
    held_of,
)
from kestrelmq.server.sessions.memcache_reads import refuse

_LINE_END: Final = b"\r\n"
_VERBS: Final[dict[type[Reserve | EndsReads], bytes]] = {
    Finish: b"FINISHED",
    Release: b"RELEASED",
    Extend: b"EXTENDED",
    ExtendOwner: b"EXTENDED",
    Retire: b"RETIRED",
}
"""The first word of each reply."""


class MemcacheReserving(ReserveHandler):
    """The replies to a command for reserved reads."""

    __slots__ = ("_connection", "_request")

    def __init__(self, connection: Connection, request: Reserve | EndsReads) -> None:
        self._connection = connection
        self._request = request

    def answer(self, reserved: Reserved) -> None:
        """Send the items, or with `nodata` how much they are, and END."""
        request = self._request
        if isinstance(request, Reserve) and request.nodata:
            lines = [
                memcache.held_line(one.queue, one.nonce, one.count, one.size)
                for one in held_of(reserved)
            ]
            self._connection.push(b"".join([*lines, END]), tuple([queue for queue, _ in reserved]))
            return
        parts: list[bytes | memoryview] = []
        size = len(END)
        for queue, reservation in reserved:
            parts += _reply_parts(queue, reservation)
            size += reservation.size
        if parts:
            parts[0] = bytes(parts[0]).removeprefix(_LINE_END)
            parts.append(_LINE_END)
        parts.append(END)
        self._connection.push_large(parts, size, tuple([queue for queue, _ in reserved]))

    def answer_done(self, queues: tuple[Queue, ...]) -> None:
        """Send that the tag is done."""
        self._connection.push(DONE, queues)

    def answer_count(self, count: int, queues: tuple[Queue, ...]) -> None:
        """Send how many reads or tags were ended or extended."""
        self._connection.push(memcache.counted_line(_VERBS[type(self._request)], count), queues)

    def fail(self, error: KestrelError) -> None:
        """Send the error."""
        refuse(self._connection, error)


def _reply_parts(queue: Queue, reservation: Reservation) -> list[bytes | memoryview]:
    """Return the parts of the reply with the items of a reservation; a line end begins it."""
    xids, items = queue.reserved.reads_of(reservation)
    before = _LINE_END + ITEM + queue.name.encode() + b" "
    begins: list[bytes] = []
    endings: list[bytes] = []
    for begin, some in _decimals(xids):
        begins += [before + begin] * len(some)
        endings += some
    rests: list[bytes] = []
    header, last_deliveries, rest = b"", 0, b""
    records = [record_of(one) for one in items]
    for place, record in enumerate(records):
        deliveries = item_deliveries(items[place]) + 1
        # Neighbours are often of the same size and millisecond.
        if deliveries != last_deliveries or not record.startswith(header):
            header, last_deliveries = record[:ADDX_HEADER], deliveries
            size = len(record) - ADDX_HEADER
            rest = reserved_rest(reservation.nonce, deliveries, item_times(record), size)
        rests.append(rest)
    # Setting one kind of parts at a time is much faster than appending part by part.
    parts: list[bytes | memoryview] = [b""] * (4 * len(records))
    parts[::4] = begins
    parts[1::4] = endings
    parts[2::4] = rests
    parts[3::4] = [data_of(record) for record in records]
    return parts


def _decimals(xids: Sequence[int]) -> list[tuple[bytes, list[bytes]]]:
    """Return the texts of xids, as `decimals.consecutive` does."""
    if not is_run(xids):
        return [(b"", [b"%d" % xid for xid in xids])]
    return consecutive(first_xid(xids), len(xids))
