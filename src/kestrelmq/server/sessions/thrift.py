"""The thrift protocol over one connection.

A request that fails is answered with an exception and the connection stays open; it closes only
when the input is not valid thrift. Open reads belong to the server, not to a connection.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Final

from kestrelmq.clock import Pause
from kestrelmq.engine.durability import Committable
from kestrelmq.engine.moving import Moved
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.searching import Page
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.journal.records import item_deliveries, item_times
from kestrelmq.names import queue_name_error
from kestrelmq.protocol import thrift
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import (
    GetStatus,
    KillClient,
    ListClients,
    ManagingRequest,
    SetStatus,
    Version,
)
from kestrelmq.protocol.reserving import (
    Extend,
    ExtendOwner,
    Finish,
    Release,
    Reserve,
    Retire,
    read_text,
)
from kestrelmq.protocol.thrift import ThriftParser
from kestrelmq.protocol.thrift_messages import (
    Abort,
    Answer,
    BrowsedItem,
    BrowsedItems,
    ClientEntry,
    ClientList,
    Confirm,
    Get,
    MessageHeader,
    MovedItems,
    Peek,
    Put,
    QueueInfo,
    RefusalReason,
    RefusedRequest,
    Request,
    ReservedItem,
    ReservedItems,
    ThriftStatus,
)
from kestrelmq.server.clients import connected_clients, kill_client
from kestrelmq.server.connection import Connection, PendingRequest, Session
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.replies import Part, Queues, data_of
from kestrelmq.server.requests import changes
from kestrelmq.server.requests.managing import ManageAnswer, check_action, manage
from kestrelmq.server.requests.put import PendingPut
from kestrelmq.server.requests.reads import MOST_READS_COUNTED
from kestrelmq.server.requests.reserving import (
    ConnectionOwners,
    Reserved,
    ReserveHandler,
    serve_reserved,
)
from kestrelmq.server.sessions.thrift_reads import ThriftGet, ThriftOpenReads
from kestrelmq.server.status import Status
from kestrelmq.version import VERSION

log = logging.getLogger(__name__)

# The service has fewer statuses than the server: each is reported as the one that allows the same.
_TO_THRIFT: Final = {
    Status.UP: ThriftStatus.UP,
    Status.WRITE_AVOID: ThriftStatus.UP,
    Status.READ_ONLY: ThriftStatus.READ_ONLY,
    Status.QUIESCENT: ThriftStatus.QUIESCENT,
    Status.DOWN: ThriftStatus.QUIESCENT,
}
_QUICK: Final = (Put, Get, Peek, Confirm, Abort)
"""The other requests may take long: they are served in each turn's time for slow requests."""
_MOST_CLIENTS: Final = 100
"""The most clients of one answer."""
_NO_QUEUE: Final = QueueInfo(None, 0, 0, 0, 0, 0, 0)


_Decoded = tuple[MessageHeader, Request | RefusedRequest]


class _Decoding(PendingRequest):
    """The decoding of a large frame in a thread, so that other clients need not wait."""

    __slots__ = ("_connection", "_decoded", "_frame", "_is_cancelled", "_serve")

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        frame: memoryview,
        serve: Callable[[_Decoded | ClientFault], None],
    ) -> None:
        """Begin; `serve` is called with the request, or with why it cannot be answered."""
        self._connection = connection
        self._frame: memoryview | None = frame
        self._serve = serve
        self._decoded: _Decoded | ClientFault | None = None
        self._is_cancelled = False
        connection.wait_for_work(self)
        context.writer.run(self._decode, self._end)

    def _decode(self, _pause: Pause) -> None:
        """Decode the frame; runs in the thread."""
        assert self._frame is not None  # noqa: S101 # the end has not come
        try:
            self._decoded = thrift.decode(self._frame)
        except ClientFault as fault:
            self._decoded = fault

    def _end(self, error: BaseException | None) -> None:
        if self._is_cancelled:
            return
        decoded, self._frame = self._decoded, None
        if isinstance(error, Exception):
            self._connection.request_failed(error)
        elif decoded is not None:
            self._connection.request_done()
            self._connection.guard(lambda: self._serve(decoded))

    def cancel(self) -> None:
        """Drop the request: the client is gone."""
        self._is_cancelled = True


class ThriftSession(Session):
    """The session of one client."""

    def __init__(
        self, connection: Connection, context: ServerContext, shared: ThriftOpenReads
    ) -> None:
        """Prepare; `shared` are the open reads of all thrift clients of the server."""
        self._connection = connection
        self._context = context
        self._shared = shared
        self._own: dict[str, set[int]] = {}
        self._owners = ConnectionOwners(context)
        self._parser = ThriftParser()
        self.bytes_needed = 0

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`; return the input after one that waits."""
        connection, parser = self._connection, self._parser
        parser.receive(data)
        try:
            while (frame := parser.next_frame()) is not None:
                if isinstance(frame, memoryview):
                    _Decoding(self._connection, self._context, frame, self._serve_decoded)
                    self.bytes_needed = 0
                    return parser.take_back()
                header, request = thrift.decode(frame)
                self._serve(header, request)
                connection.count_slow_request()
                if not isinstance(request, _QUICK):
                    connection.share_turn()
                if connection.paused or connection.closing:
                    self.bytes_needed = 0
                    return parser.take_back()
        except ClientFault as fault:
            self._close(fault)
            return b""
        self.bytes_needed = parser.missing
        return b""

    def _serve_decoded(self, decoded: "_Decoded | ClientFault") -> None:
        if isinstance(decoded, ClientFault):
            self._close(decoded)
            self._connection.push(b"")
        else:
            self._serve(*decoded)

    def _close(self, fault: ClientFault) -> None:
        log.debug("%s: %s", self._connection.peer, fault.message)
        self._connection.closing = True

    def failure_reply(
        self, failure: JournalError, reply: bytes, _queues: Sequence[Committable]
    ) -> bytes:
        """Return the exception that replaces `reply` when the operation was undone."""
        self._connection.lose_answer(reply)
        return thrift.encode_refusal(thrift.header_of(reply), _internal_error(failure))

    def answer_internal_error(self) -> None:
        """Close the connection: a request failed because of a bug."""
        self._connection.closing = True

    def open_reads(self) -> dict[str, int]:
        """Return how many of the first `MOST_READS_COUNTED` reads are open, by queue.

        Reserved reads count if the client has named their owner.
        """
        found: dict[str, int] = {}
        reads = ((name, identity) for name, ids in self._own.items() for identity in ids)
        for name, identity in islice(reads, MOST_READS_COUNTED):
            if self._shared.is_open(identity):
                found[name] = found.get(name, 0) + 1
        self._owners.add_reads(found)
        return found

    def holds(self, queue: str) -> list[int]:
        """Return the xids of the client's open reads of a queue; of very many only some."""
        ids = islice(self._own.get(queue, ()), MOST_READS_COUNTED)
        xids = (self._shared.xid_of(identity, queue) for identity in ids)
        return [xid for xid in xids if xid is not None] + self._owners.first_xids(queue)

    def connection_closed(self) -> None:
        """Give nothing back: open reads do not belong to a connection, only to their owner."""
        self._owners.end()

    def _serve(self, header: MessageHeader, request: Request | RefusedRequest) -> None:
        try:
            match request:
                case RefusedRequest():
                    self._send(header, (thrift.encode_refusal(header, request),), None)
                case Get():
                    ThriftGet(
                        self._connection,
                        self._context,
                        self._shared,
                        self._own,
                        header,
                        request,
                        lambda items, queue: self._send(
                            header,
                            thrift.encode_items(header, items),
                            queue,
                            hands_out=not request.auto_abort,
                        ),
                        lambda error: self.refuse(header, error),
                    ).begin()
                case Put():
                    self._put(header, request)
                case Reserve() | Finish() | Release() | Extend() | ExtendOwner() | Retire():
                    handler = _ThriftReserving(self, header)
                    serve_reserved(self._connection, self._context, self._owners, request, handler)
                case Confirm() | Abort():
                    self.answer(header, *self._end_reads(request))
                case Peek(name):
                    self._peek(header, name)
                case GetStatus() | SetStatus() | Version():
                    self.answer(header, self._serve_server(request))
                case _:
                    self._manage(header, request)
        except KestrelError as error:
            self.refuse(header, error)

    def answer(self, header: MessageHeader, answer: Answer, queues: Queues = None) -> None:
        """Answer the request of `header`, once what was written to `queues` is."""
        self._send(header, thrift.encode(header, answer), queues)

    def refuse(self, header: MessageHeader, error: KestrelError) -> None:
        """Answer the request of `header` with an exception."""
        self._send(header, (thrift.encode_refusal(header, _internal_error(error)),), None)

    def _send(
        self,
        header: MessageHeader,
        parts: Sequence[Part],
        queues: Queues,
        *,
        hands_out: bool = False,
    ) -> None:
        if not header.oneway:
            self._connection.push_parts(parts, queues, hands_out=hands_out)

    def _put(self, header: MessageHeader, put: Put) -> None:
        PendingPut(
            self._connection,
            self._context,
            put.queue,
            put.items,
            self._context.item_times(put.expiration, put.delay),
            lambda count, queues: self.answer(header, count, queues),
            lambda error: self.refuse(header, error),
            put.mark,
        ).begin()

    def _end_reads(self, request: Confirm | Abort) -> tuple[int, Queue | None]:
        found = self._shared.take(request.queue, request.ids)
        if found is None:
            return 0, None
        queue, xids = found
        if isinstance(request, Abort):
            return queue.give_back(xids), queue
        return sum(queue.confirm(xid) for xid in xids), queue

    def _peek(self, header: MessageHeader, name: str) -> None:
        context = self._context
        context.counters.cmd_peek += 1
        context.check_readable()
        context.check_client(name, write=False)
        queue = context.collection.queues.get(name)
        if queue is None:
            self._check_absent(name)
            self.answer(header, _NO_QUEUE)
        elif context.settle(queue):
            self.answer(header, self._info(queue))
        else:
            changes.answer_later(
                self._connection,
                self._later_info(queue),
                lambda info: self.answer(header, info),
                lambda error: self.refuse(header, error),
            )

    async def _later_info(self, queue: Queue) -> QueueInfo:
        await in_slices(self._context.settling(queue))
        return self._info(queue)

    def _info(self, queue: Queue) -> QueueInfo:
        record = queue.peek()
        return QueueInfo(
            head_item=None if record is None else data_of(record),
            items=len(queue),
            bytes=queue.size,
            journal_bytes=queue.journal.size,
            age=0 if record is None else max(0, self._context.turns.clock.now() - queue.oldest),
            waiters=queue.waiting_readers,
            open_transactions=queue.open_reads,
        )

    def _check_absent(self, name: str) -> None:
        """Raise QueueUnavailable if `name` is invalid, or its queue exists but cannot be used."""
        problem = queue_name_error(name)
        if problem is not None:
            raise QueueUnavailable(problem)
        self._context.collection.check_usable(name)

    def _manage(self, header: MessageHeader, request: ManagingRequest) -> None:
        context = self._context
        match request:
            case ListClients(offset):
                found = islice(connected_clients(context, offset), _MOST_CLIENTS)
                entries = [ClientEntry(**asdict(client)) for client in found]
                self.answer(header, ClientList(tuple(entries)))
            case KillClient(number):
                check_action(context, request, self._connection)
                if not kill_client(context, number):
                    raise KestrelError(f"there is no client {number}")
                self.answer(header, None)
            case _:
                changes.answer_later(
                    self._connection,
                    manage(context, request, self._connection),
                    lambda answer: self.answer(header, _managed(answer)),
                    lambda error: self.refuse(header, error),
                )

    def _serve_server(self, request: GetStatus | SetStatus | Version) -> Answer:
        status = self._context.status
        match request:
            case GetStatus():
                return _TO_THRIFT[status.status]
            case SetStatus(name):
                if name == ThriftStatus.NOT_CONFIGURED.name:
                    raise QueueUnavailable(f"{name} cannot be set")
                check_action(self._context, request, self._connection)
                status.set(Status.parse(name))
                return None
            case Version():
                return VERSION


def _managed(answer: ManageAnswer) -> Answer:
    """Return the answer to a request about queues."""
    match answer:
        case Page(total, items, next_offset):
            browsed = [_browsed(place, record) for place, record in items]
            return BrowsedItems(tuple(browsed), total, next_offset)
        case Moved(count, stopped):
            return MovedItems(count, stopped)
        case _:
            return None


def _browsed(place: int, record: bytes) -> BrowsedItem:
    return BrowsedItem(place, *item_times(record), data_of(record))


class _ThriftReserving(ReserveHandler):
    """The answers to a request about reserved reads."""

    __slots__ = ("_header", "_session")

    def __init__(self, session: ThriftSession, header: MessageHeader) -> None:
        self._session = session
        self._header = header

    def answer(self, reserved: Reserved) -> None:
        """Send the items."""
        items = []
        for queue, reservation in reserved:
            for xid, record in zip(*queue.reserved_reads(reservation), strict=True):
                added, expiry = item_times(record)
                items.append(
                    ReservedItem(
                        queue.name,
                        read_text(xid, reservation.nonce),
                        item_deliveries(record) + 1,
                        added,
                        expiry,
                        data_of(record),
                    )
                )
        queues = tuple(queue for queue, _ in reserved)
        self._session.answer(self._header, ReservedItems(tuple(items)), queues)

    def answer_done(self, queues: tuple[Queue, ...]) -> None:
        """Send that the tag is done."""
        self._session.answer(self._header, ReservedItems((), is_done=True), queues)

    def answer_count(self, count: int, queue: Queue | None) -> None:
        """Send how many reads or tags were ended or extended."""
        self._session.answer(self._header, count, queue)

    def fail(self, error: KestrelError) -> None:
        """Send the error."""
        self._session.refuse(self._header, error)


def _internal_error(error: KestrelError) -> RefusedRequest:
    return RefusedRequest(RefusalReason.INTERNAL_ERROR, str(error))
