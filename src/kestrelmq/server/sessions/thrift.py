"""The thrift protocol over one connection.

A request that fails is answered with an exception and the connection stays open; it closes only
when the input is not valid thrift. Open reads belong to the server, not to a connection.
"""

import logging
from collections.abc import Coroutine, Sequence
from itertools import islice
from typing import Any, Final

from kestrelmq.access.users import User
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.names import queue_name_error
from kestrelmq.protocol import thrift
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import (
    Delete,
    Flush,
    FlushAll,
    GetStatus,
    SetStatus,
    SignIn,
    Version,
)
from kestrelmq.protocol.thrift import EncodedItem, MessageHeader, ThriftParser
from kestrelmq.protocol.thrift_service import (
    Abort,
    Answer,
    Confirm,
    Get,
    Item,
    Peek,
    Put,
    QueueInfo,
    RefusalReason,
    RefusedRequest,
    Request,
    ThriftStatus,
)
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode
from kestrelmq.scheduling.durability import Committable
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.context import NO_ROOM, OutOfMemory, ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.replies import Queues, data_of
from kestrelmq.server.requests import changes
from kestrelmq.server.requests.managing import check_action, manage
from kestrelmq.server.requests.put import PendingPut
from kestrelmq.server.requests.reads import MOST_READS_COUNTED, PendingRead, ReadHandler
from kestrelmq.server.sessions.thrift_reads import ThriftOpenReads
from kestrelmq.server.status import Status
from kestrelmq.version import VERSION

log = logging.getLogger(__name__)

MAX_ITEMS: Final = 10_000
"""The most items in one answer, to keep turns short."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""An answer with so many bytes of data, or more, gets no further items."""
_AT_ONCE: Final = 1000
"""The most items that are removed in one turn; a read of more items opens them first."""
_CHECK_EVERY: Final = 32
"""Items that are encoded between two checks of whether others must be served first."""
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
_NO_QUEUE: Final = QueueInfo(None, 0, 0, 0, 0, 0, 0)


class ThriftGet(ReadHandler):
    """One `get`: collects items until there are enough or the time is up, and then answers.

    An answer with thousands of items takes several turns. The items stay open until the whole
    answer is made, so none is lost if the client disconnects in between.
    """

    __slots__ = ("_encoded", "_get", "_header", "_items", "_mode", "_most", "_queue", "_session")

    def __init__(self, session: "ThriftSession", header: MessageHeader, get: Get) -> None:
        """Prepare; `begin` begins the read, and pauses the session's connection while it waits."""
        self._session = session
        self._header = header
        self._get = get
        self._items: list[tuple[bytes, int]] = []
        self._encoded: list[EncodedItem] = []
        self._most = min(get.max_items, MAX_ITEMS)
        self._queue: Queue | None = None
        # A read that is answered at once can remove its items without opening them.
        at_once = not get.auto_abort and get.timeout <= 0 and self._most <= _AT_ONCE
        removing = ReadMode.REMOVE if at_once else ReadMode.HOLD
        self._mode = ReadMode.OPEN if get.auto_abort else removing

    def begin(self) -> None:
        """Take the items that are there, and wait if more are wanted."""
        name = self._get.queue
        if self._get.auto_abort:
            self._most = min(self._most, self._session.room_for_reads(name))
        PendingRead(
            self._session.connection,
            self._session.context,
            self,
            name,
            self._mode,
            self._get.timeout / 1000,
            self._most,
            MAX_BYTES,
        ).begin()

    @property
    def takes_all(self) -> bool:
        """True: thrift can carry every item."""
        return True

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Add an item to the answer."""
        self._queue = queue
        self._items.append((record, xid))
        return True

    def end(self, queue: Queue | None) -> None:
        """Answer with the items read."""
        self._queue = queue
        self.resume()

    def fail(self, error: KestrelError) -> None:
        """Answer with the items read so far; if there are none, with the error."""
        if self._items:
            self.resume()
        else:
            self._session.refuse(self._header, error)

    def cancel(self) -> None:
        """Give back the items that were read."""
        if self._queue is not None:
            self._queue.returns.give_back([xid for _, xid in self._items], counted=False)

    def resume(self) -> None:
        """Encode items, and answer when all are encoded."""
        connection, queue = self._session.connection, self._queue
        while queue is not None and len(self._encoded) < len(self._items):
            if self._is_time_over():
                connection.yield_turn()
                connection.resume_later(self)
                return
            self._encode(queue, *self._items[len(self._encoded)])
        connection.request_done()
        items = [] if queue is None else self._confirmed(queue)
        if queue is not None:
            queue.counts.get_misses += not items and self._most > 0
        self._answer(items)

    def _is_time_over(self) -> bool:
        """Whether others must be served first; not when items were removed: they could be lost."""
        return (
            self._mode is not ReadMode.REMOVE
            and len(self._encoded) % _CHECK_EVERY == _CHECK_EVERY - 1
            and self._session.context.turns.slow_share_is_over()
        )

    def _encode(self, queue: Queue, record: bytes, xid: int) -> None:
        """Encode an item; as [] if its read has ended since it was opened."""
        identity = 0
        if self._get.auto_abort:
            if not queue.reads.extend(xid, self._get.auto_abort / 1000):
                self._encoded.append([])
                return
            identity = self._session.add_read(queue, xid)
        item = Item(data_of(record), identity)
        self._encoded.append(thrift.encode_item(self._header, item))

    def _confirmed(self, queue: Queue) -> list[EncodedItem]:
        """Confirm reads that are not to stay open; return the encoded items of reads not ended."""
        if self._mode is ReadMode.REMOVE:
            return self._encoded
        if self._get.auto_abort:
            return [encoded for encoded in self._encoded if encoded]
        xids = [xid for _, xid in self._items]
        both = zip(self._encoded, xids, strict=True)
        found = [encoded for encoded, xid in both if xid in queue.reads.open]
        queue.reads.confirm_all(xids)
        return found

    def _answer(self, items: list[EncodedItem]) -> None:
        self._session.answer(
            self._header, items, self._queue, hands_out=self._mode is not ReadMode.OPEN
        )


class ThriftSession(Session):
    """The session of one client."""

    def __init__(
        self, connection: Connection, context: ServerContext, shared: ThriftOpenReads
    ) -> None:
        """Prepare; `shared` are the open reads of all thrift clients of the server."""
        self.connection = connection
        self.context = context
        self._shared = shared
        self._own: dict[str, set[int]] = {}
        """By queue, the ids of the reads that this connection has opened."""
        self._parser = ThriftParser()
        self._is_closed = False
        self.bytes_needed = 0

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`; return the input after one that waits."""
        connection, parser = self.connection, self._parser
        parser.receive(data)
        try:
            while (frame := parser.next_frame()) is not None:
                connection.count_input(0)
                if parser.is_cut:
                    parser.is_cut = False
                    self.refuse(thrift.decode(frame)[0], OutOfMemory(NO_ROOM))
                elif isinstance(frame, memoryview):
                    changes.answer_later(
                        connection, self._decoded(frame), self._serve_decoded, self._close
                    )
                else:
                    self._serve(*thrift.decode(frame))
                if connection.paused or connection.closing:
                    self.bytes_needed = 0
                    return parser.take_back()
        except ClientFault as fault:
            self._close(fault)
            return b""
        if not connection.count_input(parser.arriving_size):
            parser.cut()
        self.bytes_needed = parser.missing
        return b""

    async def _decoded(self, frame: memoryview) -> tuple[MessageHeader, Request | RefusedRequest]:
        """Decode a large frame in a thread, so that other clients need not wait.

        Raises:
            KestrelError: it cannot be answered.
        """
        found: list[tuple[MessageHeader, Request | RefusedRequest]] = []
        try:
            await changes.run_job(
                self.context, lambda pause: found.append(thrift.decode(frame, pause))
            )
        except ClientFault as fault:
            raise KestrelError(fault.message) from None
        return found[0]

    def _serve_decoded(self, decoded: tuple[MessageHeader, Request | RefusedRequest]) -> None:
        if not self._is_closed:
            self._serve(*decoded)

    def _close(self, fault: Exception) -> None:
        log.debug("%s: %s", self.connection.peer, fault)
        self.connection.closing = True
        self.connection.push(b"")

    def failure_reply(
        self, failure: JournalError, reply: bytes, _queues: Sequence[Committable]
    ) -> bytes:
        """Return the exception that replaces `reply` when the operation was undone."""
        self.connection.lose_answer(reply)
        return _refusal(thrift.header_of(reply), failure)

    def answer_internal_error(self) -> None:
        """Close the connection: a request failed because of a bug."""
        self.connection.closing = True

    def open_reads(self) -> dict[str, int]:
        """Return how many of the first `MOST_READS_COUNTED` reads are open, by queue."""
        found: dict[str, int] = {}
        reads = ((name, identity) for name, ids in self._own.items() for identity in ids)
        for name, identity in islice(reads, MOST_READS_COUNTED):
            if self._shared.is_open(identity):
                found[name] = found.get(name, 0) + 1
        return found

    def holds(self, queue: str) -> list[int]:
        """Return the xids of the client's open reads of a queue; of very many only some."""
        ids = islice(self._own.get(queue, ()), MOST_READS_COUNTED)
        xids = (self._shared.xid_of(identity, queue) for identity in ids)
        return [xid for xid in xids if xid is not None]

    def room_for_reads(self, queue: str) -> int:
        """Return how many more reads of a queue this connection may open."""
        held = {identity for identity in self._own.get(queue, ()) if self._shared.is_open(identity)}
        self._own[queue] = held
        return max(0, self.context.config.max_monitor_transactions - len(held))

    def add_read(self, queue: Queue, xid: int) -> int:
        """Add a read that was just opened; return its id."""
        identity = self._shared.add(queue, xid)
        self._own[queue.name].add(identity)
        return identity

    def connection_closed(self) -> None:
        """Give nothing back: open reads do not belong to a connection."""
        self._is_closed = True

    def answer(
        self,
        header: MessageHeader,
        answer: Answer | list[EncodedItem],
        queues: Queues = None,
        *,
        hands_out: bool = False,
    ) -> None:
        """Answer the request of `header`, once what was written to `queues` is."""
        if not header.oneway:
            self.connection.push_parts(thrift.encode(header, answer), queues, hands_out=hands_out)

    def refuse(self, header: MessageHeader, error: KestrelError) -> None:
        """Answer the request of `header` with an exception."""
        if not header.oneway:
            self.connection.push(_refusal(header, error))

    def _answer_later(self, header: MessageHeader, change: Coroutine[None, None, Any]) -> None:
        """Answer the request of `header` with what `change` returns."""
        changes.answer_later(
            self.connection,
            change,
            lambda answer: self.answer(header, answer),
            lambda error: self.refuse(header, error),
        )

    def _serve(self, header: MessageHeader, request: Request | RefusedRequest) -> None:
        user = self.connection.user
        if user is None and header.client_id is not None:  # the id restricts, and nothing else
            user = User(header.client_id, is_admin=True)
        try:
            self.context.check_request(user, request)
            self._apply(header, request)
        except KestrelError as error:
            self.refuse(header, error)
        self.connection.count_slow_request()
        if not isinstance(request, _QUICK):
            self.connection.share_turn()

    def _apply(  # noqa: C901 # one case a request
        self, header: MessageHeader, request: Request | RefusedRequest
    ) -> None:
        match request:
            case Get():
                ThriftGet(self, header, request).begin()
            case Put(name, items, expiration):
                PendingPut(
                    self.connection,
                    self.context,
                    name,
                    items,
                    self.context.expiry_after(expiration),
                    lambda count, queues: self.answer(header, count, queues),
                    lambda error: self.refuse(header, error),
                ).begin()
            case Confirm() | Abort():
                self.answer(header, *self._end_reads(request))
            case Peek(name):
                self._peek(header, name)
            case Flush() | FlushAll() | Delete():
                self._answer_later(header, manage(self.context, request, self.connection))
            case SignIn(user, password):
                signing_in = self.context.sign_in(self.connection, user, password)
                self._answer_later(header, signing_in)
            case GetStatus():
                self.answer(header, _TO_THRIFT[self.context.status.status])
            case SetStatus(name):
                if name == ThriftStatus.NOT_CONFIGURED.name:
                    raise QueueUnavailable(f"{name} cannot be set")
                check_action(self.context, request, self.connection)
                self.context.status.set(Status.parse(name))
                self.answer(header, None)
            case Version():
                self.answer(header, VERSION)
            case RefusedRequest():
                if not header.oneway:
                    self.connection.push(thrift.encode_refusal(header, request))

    def _end_reads(self, request: Confirm | Abort) -> tuple[int, Queue | None]:
        found = self._shared.take(request.queue, request.ids)
        if found is None:
            return 0, None
        queue, xids = found
        if isinstance(request, Abort):
            return queue.returns.give_back(xids), queue
        return sum(queue.reads.confirm(xid) for xid in xids), queue

    def _peek(self, header: MessageHeader, name: str) -> None:
        context = self.context
        context.counters.cmd_peek += 1
        context.check_readable()
        queue = context.collection.queues.get(name)
        if queue is None:
            problem = queue_name_error(name)
            if problem is not None:
                raise QueueUnavailable(problem)
            context.collection.check_usable(name)
            self.answer(header, _NO_QUEUE)
        elif context.prepare_head(queue):
            self.answer(header, self._info(queue))
        else:
            self._answer_later(header, self._later_info(queue))

    async def _later_info(self, queue: Queue) -> QueueInfo:
        await in_slices(self.context.preparing_head(queue))
        return self._info(queue)

    def _info(self, queue: Queue) -> QueueInfo:
        record = queue.line.peek()
        return QueueInfo(
            head_item=None if record is None else data_of(record),
            items=len(queue),
            bytes=queue.backlog.size,
            journal_bytes=queue.journal.size,
            age=0
            if record is None
            else max(0, self.context.turns.clock.now() - queue.backlog.oldest),
            waiters=queue.waiters.readers,
            open_transactions=queue.reads.held,
        )


def _refusal(header: MessageHeader, error: KestrelError) -> bytes:
    return thrift.encode_refusal(header, RefusedRequest(RefusalReason.INTERNAL_ERROR, str(error)))
