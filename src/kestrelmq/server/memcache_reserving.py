"""The memcache commands for reserved reads: `reserve`, `finish`, `release`, `extend`, `retire`."""

from collections.abc import Sequence
from typing import Final

from kestrelmq.engine.queue import Queue
from kestrelmq.errors import KestrelError, TagRefused
from kestrelmq.journal.records import ADDX_HEADER, item_deliveries, item_times
from kestrelmq.journal.reservations import ReserveTerms
from kestrelmq.protocol import memcache
from kestrelmq.protocol.memcache import (
    DONE,
    END,
    ITEM,
    Extend,
    ExtendOwner,
    Finish,
    Release,
    Reserve,
    Retire,
    reserved_rest,
)
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.context import Forbidden, ServerContext
from kestrelmq.server.memcache_reads import error_reply
from kestrelmq.server.reserving import (
    ConnectionOwners,
    PendingReserve,
    Reserved,
    ReserveHandler,
)

_AT_ONCE: Final = 1000
"""The most reads of an owner to release in one turn."""

_LINE_END: Final = b"\r\n"

EndsReads = Finish | Release | Extend | ExtendOwner | Retire
"""Requests about reads that are reserved."""


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
    try:
        if request.owner:
            owners.add(request.owner)
    except KestrelError as error:
        _refuse(connection, error)
        return
    connection.count_slow_request()
    terms = ReserveTerms(request.lease, request.grace, request.owner, request.tag)
    PendingReserve(
        connection,
        context,
        MemcacheReserve(connection),
        request.queues,
        request.count,
        terms,
        request.timeout / 1000,
    ).begin()


def end_reads(
    connection: Connection, context: ServerContext, owners: ConnectionOwners, request: EndsReads
) -> None:
    """Serve a request about reads that are reserved."""
    connection.count_slow_request()
    try:
        if isinstance(request, ExtendOwner):
            owners.add(request.owner)
            seconds, now = request.milliseconds / 1000, context.turns.clock.monotonic()
            count = context.collection.owners.extend(request.owner, seconds, now)
            connection.push(memcache.counted_line(b"EXTENDED", count))
            return
        context.check_client(request.queue, write=False)
        if isinstance(request, Retire):
            queue = context.queue_to_read(request.queue)
        else:
            queue = context.collection.existing(request.queue)
        if isinstance(request, Release) and request.owner and queue is not None:
            _OwnerRelease(connection, queue, request).resume()
            return
        verb, count = _applied(queue, request)
        connection.push(memcache.counted_line(verb, count), queue)
    except KestrelError as error:
        _refuse(connection, error)


def _applied(queue: Queue | None, request: Finish | Release | Extend | Retire) -> tuple[bytes, int]:
    """Do what a request says; return the first word of the reply, and of how many."""
    match request:
        case Finish():
            return b"FINISHED", 0 if queue is None else _finish(queue, request)
        case Release():
            return b"RELEASED", 0 if queue is None else _release(queue, request, ())
        case Extend():
            if queue is None:
                return b"EXTENDED", 0
            xids = _named(queue, request)
            return b"EXTENDED", queue.extend_leases(xids, request.milliseconds / 1000)
        case Retire(_, name, epoch):
            return b"RETIRED", 0 if queue is None else queue.retire(name, epoch)


def _named(queue: Queue, request: Finish | Release | Extend) -> list[int]:
    """Return the xids of the reads that a request names, those that are reserved."""
    if request.tag:
        return queue.reserved_with(request.tag)
    return queue.find_reserved(request.reads)


def _finish(queue: Queue, request: Finish) -> int:
    if request.tag:
        return queue.finish(request.tag)
    xids = queue.find_reserved(request.reads)
    queue.confirm_all(xids)
    return len(xids)


def _release(queue: Queue, request: Release, xids: Sequence[int]) -> int:
    """Give back `xids`, or else the reads that the request names; return how many."""
    if request.dead and queue.config.dead_letter_queue is None:
        raise TagRefused(f"queue {queue.name} has no dead_letter_queue")
    return queue.give_back(
        xids or _named(queue, request),
        counted=not request.uncounted,
        why="it was released",
        delay=None if request.delay is None else request.delay / 1000,
        is_dead=request.dead,
    )


class _OwnerRelease(PendingRequest):
    """The release of all reads of an owner in a queue, some in each turn."""

    __slots__ = ("_connection", "_count", "_queue", "_request")

    def __init__(self, connection: Connection, queue: Queue, request: Release) -> None:
        self._connection = connection
        self._queue = queue
        self._request = request
        self._count = 0

    @property
    def queue_name(self) -> str | None:
        """The queue whose reads it releases."""
        return self._queue.name

    def resume(self) -> None:
        """Release some; answer when there are no more."""
        connection, queue, request = self._connection, self._queue, self._request
        xids = queue.reserved_by(request.owner, _AT_ONCE)
        self._count += _release(queue, request, xids) if xids else 0
        if len(xids) == _AT_ONCE:
            connection.push(b"", queue)
            connection.yield_turn()
            connection.resume_later(self)
            return
        connection.request_done()
        connection.push(memcache.counted_line(b"RELEASED", self._count), queue)

    def cancel(self) -> None:
        """End; what was released stays so."""


def _refuse(connection: Connection, error: KestrelError) -> None:
    connection.push(error_reply(error))
    connection.closing |= isinstance(error, Forbidden)
