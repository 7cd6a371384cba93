"""The memcache protocol over one connection: `set`, `get`, `monitor` and their open reads.

The hot path is `feed`: it serves a plain `set` or `get` of an existing queue with a few look-ups.
All other requests go to `_serve_other`. The connection collects the replies, each with the queues
whose journals must be written before the reply may be sent.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.format.records import ADDX_HEADER, LATEST
from kestrelmq.protocol import memcache
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import BINARY_REQUEST, TLS_HELLO, binary_refusal
from kestrelmq.protocol.managing import (
    Confirm,
    Delete,
    Flush,
    FlushAll,
    ListClients,
    Quit,
    Shutdown,
)
from kestrelmq.protocol.memcache import (
    END,
    ERROR,
    MAX_CACHED_LINE,
    NOT_FOUND,
    NOT_STORED,
    SEQUENCE,
    STORED,
    TOUCHED,
    VALUE,
    Dump,
    Get,
    Monitor,
    NumberedLine,
    Parser,
    RefusedRequest,
    Request,
    Set,
    Stats,
    TouchRead,
    value_header,
)
from kestrelmq.protocol.reserving import (
    Extend,
    ExtendOwner,
    Finish,
    ListOwners,
    Release,
    Reserve,
    Retire,
)
from kestrelmq.queue.adding import Put
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode
from kestrelmq.queues.counters import LARGE_ITEM
from kestrelmq.scheduling.durability import Committable
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import NO_ROOM, ClientForbidden, Forbidden, ServerContext
from kestrelmq.server.long_reply import LongReply
from kestrelmq.server.loop.turns import LARGE_SHARE
from kestrelmq.server.replies import Queues
from kestrelmq.server.requests.put import PendingPut
from kestrelmq.server.requests.reads import PendingConfirm
from kestrelmq.server.requests.reserving import serve_reserved
from kestrelmq.server.sessions.large_item import (
    ArrivingItem,
    ArrivingLargeItem,
    SkippedItem,
)
from kestrelmq.server.sessions.line_session import LineSession
from kestrelmq.server.sessions.memcache_admin import listing, serve_admin
from kestrelmq.server.sessions.memcache_reads import (
    MemcacheGet,
    MemcacheMonitor,
    error_reply,
    refuse,
)
from kestrelmq.server.sessions.memcache_reserving import MemcacheReserving

log = logging.getLogger(__name__)

_EPOCH_EXPIRY: Final = {"kestrel": 1_000_000, "memcached": 30 * 24 * 60 * 60 + 1}
"""By dialect: an expiry from this on is in epoch seconds, a smaller one in seconds from now."""
_NO_LINE: Final = TLS_HELLO
"""What is compared with the input while no line is remembered; it closes the connection at once."""
_NO_REQUEST: Final = Quit()
_NO_MEMORY: Final = memcache.server_error(NO_ROOM)
_AFTER_VALUE: Final = b"\r\nEND\r\n"
_FAILURES: Final = (QueueUnavailable, JournalError)


class MemcacheSession(LineSession):
    """The session of one client: its requests and its open reads."""

    def __init__(self, connection: Connection, context: ServerContext, parser: Parser) -> None:
        super().__init__(connection, context)
        self._turns = context.turns
        self._counters = context.counters
        self._status = context.status
        # The queues that requests on the hot path may use: without users, all of them. With a limit
        # on connections, no request may take it.
        user, queues = connection.user, context.collection.queues
        self._readable = queues if user is None else user.readable
        self._writable = queues if user is None else user.writable
        if context.has_connection_limit:
            self._readable = self._writable = {}
        self._replies = connection.replies
        self._parse = parser.parse
        self._parse_long = parser.parse_long
        self._parse_numbered = parser.parse_numbered
        self._epoch_expiry = _EPOCH_EXPIRY[context.config.memcache_dialect]
        # The last VALUE line, its size and its request: a queue's items often have the same size.
        self._header = b""
        self._header_size = -1
        self._header_request: Get | None = None
        # The last request line that was not too long to cache, with its line end, and its request:
        # clients often repeat a line.
        self._line = _NO_LINE
        self._request: Request = _NO_REQUEST
        self._is_first = True
        # What the last line with the number of a producer's item has in common with the next.
        self._numbered: NumberedLine | None = None
        # The request of the last line that was not the same; None if it was malformed.
        self._parsed: Request | None = None
        self._arriving: ArrivingItem | None = None

    # --- the hot path ---

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`; return the rest."""
        self.bytes_needed = position = 0
        connection = self._connection
        if self._arriving is not None:
            position = self._take_arriving(self._arriving, data, 0)
        end = len(data)
        while position < end and not (connection.paused or connection.closing):
            request = self._request
            body = position + len(self._line)
            if data[position:body] != self._line:
                body = self._read_line(data, position)
                if not body:
                    return self._incomplete_line(data[position:])
                if self._parsed is None:
                    position = body
                    continue
                request = self._parsed
            if isinstance(request, Set):
                after = self._set(request, data, body)
                if not after:
                    return data[position:]
                position = after
            elif isinstance(request, Get):
                position = body
                self._get(request)
            elif isinstance(request, RefusedRequest):
                position = self._refuse(request, data, body)
            elif self._turns.slow_share_is_over():
                # However long the line is, it is not to be parsed again in each turn until then.
                self._line, self._request = data[position:body], request
                connection.yield_turn()
                return data[position:]
            else:
                position = body
                if len(self._line) > MAX_CACHED_LINE:
                    self._line, self._request = _NO_LINE, _NO_REQUEST
                self._serve_other(request)
        return data[position:] if position < end else b""

    def _read_line(self, data: bytes, position: int) -> int:
        """Read the line at `position`, and set `_parsed`; return where it ends, 0 if it has not."""
        numbered = self._numbered
        if numbered is not None:
            end = numbered.read(data, position)
            if end:
                self._parsed = numbered.request
                return end
        end = data.find(b"\n", position) + 1
        self._parsed = self._parse_new(data, position, end) if end else None
        return end

    def _parse_new(self, data: bytes, position: int, end: int) -> Request | None:
        """Parse the line in `data`; when it is malformed, reply and return None."""
        line = data[position:end]
        is_first, self._is_first = self._is_first, False
        try:
            if is_first:
                memcache.check_first(line)
            if len(line) > MAX_CACHED_LINE:
                return self._parse_long(line[:-1])
            if SEQUENCE in line:
                return self._parse_with_number(line)
            request = self._parse(line[:-1])
        except ClientFault as fault:
            if line.startswith(BINARY_REQUEST):
                self._close_with(binary_refusal(data[position:]))
            else:
                self._fault(fault)
            return None
        self._line, self._request = line, request
        if self._context.explains_dialect and isinstance(request, Get) and b"/" in line:
            self._explain_dialect()
        return request

    def _explain_dialect(self) -> None:
        """Log, once in the run of a server, what an ordinary client needs to find such an item."""
        self._context.explains_dialect = False
        log.info(
            "%s reads with options: in the dialect kestrel the reply names only the queue, and an"
            " ordinary memcached client drops the item; for such clients set"
            ' memcache_dialect = "memcached"',
            self._connection.peer,
            extra=self._connection.log_fields,
        )

    def _parse_with_number(self, line: bytes) -> Request:
        """Parse a line that has the number of a producer's item. Raises ClientFault."""
        numbered = self._parse_numbered(line)
        if numbered is None or not numbered.read(line, 0):
            return self._parse_long(line[:-1])
        self._numbered = numbered
        return numbered.request

    def _set(self, request: Set, data: bytes, body: int) -> int:
        """Add the item whose data begins at `body`.

        Returns:
            Where the next request begins; 0 when the data has not all arrived.
        """
        body_end = body + request.size
        after = body_end + 2
        if data[body_end:after] != b"\r\n":
            after = self._find_end(request, data, body, body_end)
            if after <= 0:
                return -after
        queue = self._writable.get(request.plain)
        if queue is None or queue.restricted or not self._status.all_allowed:
            if self._is_allowed(request, noreply=request.noreply):
                self._new_put(request, data[body:body_end]).begin()
            return after
        self._counters.cmd_set += 1
        expiry = request.expiry and self._expiry(request.expiry)
        try:
            stored = queue.add(data[body:body_end], expiry, 0, request.mark)
        except _FAILURES as error:
            refuse(self._connection, error, noreply=request.noreply)
            return after
        if not request.noreply:
            targets = queue.targets
            self._replies.add(STORED if stored else NOT_STORED, targets)
        return after

    def _get(self, request: Get) -> None:
        queue = self._readable.get(request.plain) if request.plain is not None else None
        if (
            queue is None
            or self._reads.by_queue
            or queue.restricted
            or not self._status.all_allowed
        ):
            self._get_slowly(request)
            return
        try:
            if not queue.line.is_settled or self._turns.large_output > LARGE_SHARE:
                self._get_slowly(request)
                return
            record = queue.line.remove()
        except _FAILURES as error:
            self._connection.push(error_reply(error))
            return
        if record is None:
            if request.keys[0].timeout:
                get = MemcacheGet(self._connection, self._context, self._reads, request)
                get.wait(request.keys[0], queue, ReadMode.REMOVE)
                return
            queue.counts.get_misses += 1
            self._context.latencies.missed = queue
            self._connection.push(END)
            return
        size = len(record) - ADDX_HEADER
        if size != self._header_size or request is not self._header_request:
            self._header_size, self._header_request = size, request
            self._header = value_header(request.prefix, size)
        if size < LARGE_ITEM:
            self._replies.add_item(self._header, record[ADDX_HEADER:], _AFTER_VALUE, queue)
            self._connection.count_output(size)
        else:
            parts = (self._header, memoryview(record)[ADDX_HEADER:], _AFTER_VALUE)
            self._connection.push_large(parts, len(record), queue, hands_out=True)

    # --- incomplete input ---

    def _find_end(self, request: Set, data: bytes, body: int, body_end: int) -> int:
        """Find the end of an item whose data is incomplete, or does not end in CR LF.

        Returns:
            Where the next request begins; 0 when more input is needed first; or minus the place up
            to which the input was used, when there is nothing to add at present.
        """
        ending = data[body_end : body_end + 2]
        if ending[:1] == b"\n":
            return body_end + 1
        if not ending or ending == b"\r":
            queue = self._writable.get(request.plain)
            if queue is None or queue.children:
                limit = self._context.collection.max_item_size(request.queue)
            else:
                limit = queue.config.max_item_size
            if limit is not None and request.size > limit:
                return self._skip_too_large(request, data, body)
            if request.size >= LARGE_ITEM:
                item: ArrivingItem = ArrivingLargeItem(request)
                refusal = self._refusal(request) if queue is None else None
                if refusal is not None:
                    item = SkippedItem(request.size, b"" if request.noreply else refusal)
                elif not self._connection.count_input(request.size):
                    item = SkippedItem(request.size, b"" if request.noreply else _NO_MEMORY)
                return -self._take_arriving(item, data, body)
            if not self._connection.count_rest(request.size):
                item = SkippedItem(request.size, b"" if request.noreply else _NO_MEMORY)
                return -self._take_arriving(item, data, body)
            # The line end may be CR LF, and need one byte more.
            self.bytes_needed = request.size + 1 + body - data.rfind(b"\n", 0, body - 1) - 1
            return 0
        self._fault(ClientFault("bad data chunk", closes=True))
        return -len(data)

    def _skip_too_large(self, request: Set, data: bytes, body: int) -> int:
        """Refuse an item, as if it had arrived, and drop its data; return as `_find_end`."""
        reply = NOT_STORED
        try:
            self._context.check_writable()
            self._context.check_request(self._connection.user, request)
            self._context.collection.count_too_large(request.queue)
        except Forbidden as error:
            refuse(self._connection, error, noreply=request.noreply)
            return -len(data)
        except KestrelError as error:
            reply = error_reply(error)
        skipped = SkippedItem(request.size, b"" if request.noreply else reply)
        return -self._take_arriving(skipped, data, body)

    def _take_arriving(self, item: ArrivingItem, data: bytes, position: int) -> int:
        """Take more of an item that arrives in pieces; return where its bytes in `data` end."""
        self._arriving = item
        position = item.take(data, position)
        if item.is_bad:
            self._fault(ClientFault("bad data chunk", closes=True))
            return len(data)
        if item.is_whole:
            self._arriving = None
            if isinstance(item, ArrivingLargeItem):
                self._connection.count_input(0)
                self._set_large(item)
            elif isinstance(item, SkippedItem) and item.reply:
                self._connection.push(item.reply)
        self.bytes_needed = item.missing
        return position

    def _set_large(self, large: ArrivingLargeItem) -> None:
        request = large.request
        queue = self._writable.get(request.plain)
        if queue is None and not self._is_allowed(
            request, noreply=request.noreply, is_counted=True
        ):
            return
        if queue is None and request.plain and self._status.all_allowed:
            # If this fails, the put that follows is refused for the same reason.
            with suppress(KestrelError):
                queue = self._context.collection.obtain_single(request.plain)
        if queue is None or queue.restricted or not self._status.all_allowed:
            self._new_put(request, large.data()).begin()
            return
        self._counters.cmd_set += 1
        expiry = request.expiry and self._expiry(request.expiry)
        added = self._context.turns.clock.now()
        # To shorten it later would copy the item.
        record = large.record(added, queue.state.limits.expiry(added, expiry))
        try:
            stored = queue.accept(Put(record, mark=request.mark))
        except _FAILURES as error:
            refuse(self._connection, error, noreply=request.noreply)
            return
        self._answer_set(request, queue.targets, stored=stored)

    def _refuse(self, request: RefusedRequest, data: bytes, body: int) -> int:
        if request.size is None:
            self._connection.push(request.reply)
            return body
        return self._take_arriving(SkippedItem(request.size, request.reply), data, body)

    def _incomplete_line(self, part: bytes) -> bytes:
        if part.startswith(BINARY_REQUEST):
            self._close_with(binary_refusal(part))
            return b""
        # The last byte may be the CR of the line's end.
        if len(part.removesuffix(b"\r")) <= memcache.MAX_LINE:
            return part
        self._fault(ClientFault(f"a line has at most {memcache.MAX_LINE} bytes", closes=True))
        return b""

    # --- replies ---

    def _fault(self, fault: ClientFault) -> None:
        self._connection.push(memcache.client_error(fault.message))
        self._connection.closing |= fault.closes
        self._connection.share_turn()  # malformed lines take much longer than others

    def _close_with(self, reply: bytes) -> None:
        self._connection.push(reply)
        self._connection.closing = True

    def failure_reply(
        self, failure: JournalError, reply: bytes, queues: Sequence[Committable]
    ) -> bytes:
        """Return the error reply to an operation that was undone, or that could not be synced."""
        self._lose_reply(reply, VALUE, queues)
        return memcache.server_error(str(failure))

    def answer_internal_error(self) -> None:
        """Reply to a request that failed because of a bug, and close."""
        self._close_with(memcache.server_error("internal error"))

    def _expiry(self, expiry: int, due: int = 0) -> int:
        """Convert a client's expiry, which is not 0, to milliseconds since the epoch.

        It counts from `due` (ms since the epoch); 0 is now.
        """
        begin = due or self._context.turns.clock.now()
        if expiry < 0:
            return begin - 1
        return min(expiry * 1000 + (begin if expiry < self._epoch_expiry else 0), LATEST)

    # --- set and get, in full ---

    def _new_put(self, request: Set, item: bytes | memoryview) -> PendingPut:
        """Return the put for a `set` of an item."""
        due = self._context.due_after(request.delay)
        return PendingPut(
            self._connection,
            self._context,
            request.queue,
            (item,),
            request.expiry and self._expiry(request.expiry, due),
            lambda count, queues: self._answer_set(request, queues, stored=bool(count)),
            lambda error: refuse(self._connection, error, noreply=request.noreply),
            request.mark,
            due=due,
        )

    def _answer_set(self, request: Set, queues: Queues, *, stored: bool) -> None:
        if not request.noreply:
            self._connection.push(STORED if stored else NOT_STORED, queues)

    def _get_slowly(self, request: Get) -> None:
        self._connection.count_slow_request()
        if self._is_allowed(request):
            MemcacheGet(self._connection, self._context, self._reads, request).proceed()

    def _refusal(self, request: Request, *, is_counted: bool = False) -> bytes | None:
        """Return the reply to a request that the client may not make; None if it may."""
        check = self._context.check_rights if is_counted else self._context.check_request
        try:
            check(self._connection.user, request)
        except ClientForbidden as error:
            return error_reply(error)
        return None

    def _is_allowed(
        self, request: Request, *, noreply: bool = False, is_counted: bool = False
    ) -> bool:
        """Whether the client may make a request; if not, send why."""
        refusal = self._refusal(request, is_counted=is_counted)
        if refusal is not None and not noreply:
            self._connection.push(refusal)
        return refusal is None

    def _serve_other(self, request: Request) -> None:
        is_quiet = isinstance(request, Delete | Flush | FlushAll) and request.noreply
        if not self._is_allowed(request, noreply=is_quiet):
            return
        match request:
            case Monitor():
                MemcacheMonitor(self._connection, self._context, self._reads, request).begin()
            case Stats() | Dump() | ListClients() | ListOwners():
                pieces = listing(self._context, request, self._connection.user)
                LongReply(self._connection, self._turns, pieces)
            case Confirm(queue, count):
                PendingConfirm(
                    self._connection, self._reads, queue, count, self._answer_confirm
                ).begin()
            case TouchRead(queue, milliseconds):
                self._touch(queue, milliseconds)
            case Reserve() | Finish() | Release() | Extend() | ExtendOwner() | Retire():
                handler = MemcacheReserving(self._connection, request)
                serve_reserved(self._connection, self._context, self._owners, request, handler)
            case Quit():
                self._connection.closing = True
            case _:
                self._serve_admin(request)

    def _serve_admin(self, request: Request) -> None:
        try:
            reply = serve_admin(self._context, self._connection, request)
        except Forbidden as error:
            refuse(self._connection, error)
            return
        if reply:
            self._connection.push(reply)
        elif isinstance(request, Shutdown):
            self._connection.closing = True

    def _answer_confirm(self, touched: tuple[Queue, ...] | None) -> None:
        if touched is None:
            self._connection.push(ERROR)
        else:
            self._connection.push(END, touched)

    def _touch(self, queue: str, milliseconds: int) -> None:
        held = self._reads.xids(queue)
        for found, xid in held:
            found.reads.extend(xid, milliseconds / 1000)
        self._connection.push(TOUCHED if held else NOT_FOUND)
