"""The memcache protocol over one connection: `set`, `get`, `monitor` and their open reads.

The hot path is `feed`: a plain `set` or `get` on a queue that exists is served there, in a few
look-ups. Everything else goes to `_serve`, one method a request. Replies are collected on the
connection, each with the queue that must be in its journal before the reply may leave.
"""

from typing import Final

from kestrelmq.engine.queue import Queue
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.journal.records import ADDX_HEADER, LATEST
from kestrelmq.protocol import memcache
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import BINARY_REQUEST, binary_refusal
from kestrelmq.protocol.memcache import (
    END,
    ERROR,
    NOT_FOUND,
    NOT_STORED,
    REMEMBERED,
    STORED,
    TOUCHED,
    Confirm,
    Dump,
    Get,
    Monitor,
    Parser,
    Refused,
    Request,
    Set,
    Simple,
    Stats,
    TouchRead,
    value_header,
)
from kestrelmq.server.ahead import Outcome, one_ahead
from kestrelmq.server.connection import (
    OUTPUT_LIMIT,
    PART,
    SLOW,
    WRITING,
    Connection,
    Session,
    Touched,
)
from kestrelmq.server.context import ServerContext
from kestrelmq.server.large_item import AHEAD, LARGE, ArrivingItem, LargeItem, UnwantedItem
from kestrelmq.server.long_reply import LongReply
from kestrelmq.server.memcache_admin import Forbidden, listing, serve_admin
from kestrelmq.server.memcache_reads import MemcacheFetch, MemcacheMonitor
from kestrelmq.server.reads import OpenReads

_EPOCH_EXPIRY: Final = {"kestrel": 1_000_000, "memcached": 30 * 24 * 60 * 60 + 1}
"""By dialect: expiries from here on are epoch seconds; smaller ones are seconds from now."""
_FIRST_LINE: Final = b"version\r\n"
_FIRST_REQUEST: Final = Simple("version")
_AFTER_VALUE: Final = b"\r\nEND\r\n"
_FAILURES: Final = (QueueUnavailable, JournalError)


class MemcacheSession(Session):
    """One client's requests, open reads and waiting read."""

    def __init__(self, connection: Connection, context: ServerContext, parser: Parser) -> None:
        self._connection = connection
        self._context = context
        self._turns = context.turns
        self._counters = context.counters
        self._status = context.status
        # With a limit on connections every request is looked at in full.
        self._queues = {} if context.is_limited else context.collection.queues
        self._out = connection.out
        self._touched = connection.touched
        self._parse = parser.parse
        self._parse_long = parser.parse_long
        self._epoch_expiry = _EPOCH_EXPIRY[context.config.memcache_dialect]
        self._reads = OpenReads()
        self._fetch: MemcacheFetch | MemcacheMonitor | LongReply | None = None
        self._produced = 0
        # The VALUE line made last, and what for: items of a queue are often of one size.
        self._header = b""
        self._header_size = -1
        self._header_request: Get | None = None
        # Clients repeat themselves: a line, with its end, and what it says; the last one if that
        # was not too long.
        self._line = _FIRST_LINE
        self._request: Request = _FIRST_REQUEST
        self._arriving: ArrivingItem | None = None
        self.wanted = 0

    # --- the hot path ---

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`; return what is left."""
        self.wanted = self._produced = position = 0
        connection = self._connection
        if self._arriving is not None:
            position = self._take(self._arriving, data, 0)
        end = len(data)
        while position < end and not (connection.paused or connection.closing):
            request = self._request
            body = position + len(self._line)
            if data[position:body] != self._line:
                body = data.find(b"\n", position) + 1
                if not body:
                    return self._part_of_line(data[position:])
                parsed = self._parse_new(data, position, body)
                if parsed is None:
                    position = body
                    continue
                request = parsed
            if isinstance(request, Set):
                after = self._set(request, data, body)
                if not after:
                    return data[position:]
                position = after
            elif isinstance(request, Get):
                position = body
                self._get(request)
            elif isinstance(request, Refused):
                position = self._refuse(request, data, body)
            elif self._turns.share_is_over():
                connection.yield_turn()
                return data[position:]
            else:
                position = body
                self._serve(request)
        return data[position:] if position < end else b""

    def _parse_new(self, data: bytes, position: int, end: int) -> Request | None:
        """Parse the line between two places; answer and return None when it is malformed."""
        line = data[position:end]
        try:
            if len(line) > REMEMBERED:
                return self._parse_long(line[:-1])
            request = self._parse(line[:-1])
        except ClientFault as fault:
            if line.startswith(BINARY_REQUEST):
                self._close_with(binary_refusal(data[position:]))
            else:
                self._fault(fault)
            return None
        self._line, self._request = line, request
        return request

    def _set(self, request: Set, data: bytes, body: int) -> int:
        """Add the item that begins at `body`; return where the next request does, 0 for not yet."""
        body_end = body + request.size
        after = body_end + 2
        if data[body_end:after] != b"\r\n":
            after = self._find_end(request, data, body, body_end)
            if after <= 0:
                return -after
        queue = self._queues.get(request.queue)
        if queue is None or queue.restricted or not self._status.is_open:
            self._set_slowly(request, data[body:body_end])
            return after
        self._counters.cmd_set += 1
        try:
            stored = queue.add(data[body:body_end], request.expiry and self._expiry(request.expiry))
        except _FAILURES as error:
            self._answer_error(error, noreply=request.noreply)
            return after
        if not request.noreply:
            self._out.append(STORED if stored else NOT_STORED)
            self._touched.append(queue.reached)
        return after

    def _get(self, request: Get) -> None:
        queue = self._queues.get(request.plain) if request.plain is not None else None
        if queue is None or self._reads.by_queue or queue.restricted or not self._status.is_open:
            self._get_slowly(request)
            return
        try:
            record = queue.remove()
        except _FAILURES as error:
            self._answer_error(error)
            return
        if record is None:
            queue.get_misses += 1
            self._context.latencies.missed = queue
            self._out.append(END)
            self._touched.append(None)
            return
        size = len(record) - ADDX_HEADER
        if size != self._header_size or request is not self._header_request:
            self._header_size, self._header_request = size, request
            self._header = value_header(request.prefix, size)
        self._produced += size
        out, touched = self._out, self._touched
        if size < LARGE:
            # Pieces are joined once for all the replies of a turn.
            out.append(self._header)
            out.append(record[ADDX_HEADER:])
            out.append(_AFTER_VALUE)
            touched.append(queue)
            touched.append(PART)
            touched.append(PART)
        else:
            out.append(b"".join((self._header, memoryview(record)[ADDX_HEADER:], _AFTER_VALUE)))
            touched.append(queue)
        if self._produced > OUTPUT_LIMIT:
            self._connection.stall()

    # --- input that is not whole ---

    def _find_end(self, request: Set, data: bytes, body: int, body_end: int) -> int:
        """Return where data that does not end in CR LF ends; 0: not here yet; below 0: closing."""
        ending = data[body_end : body_end + 2]
        if ending[:1] == b"\n":
            return body_end + 1
        if not ending or ending == b"\r":
            queue = self._queues.get(request.queue)
            if queue is None or queue.children:
                limit = self._context.collection.max_item_size(request.queue)
            else:
                limit = queue.config.max_item_size
            if limit is not None and request.size > limit:
                reply = b"" if request.noreply else NOT_STORED
                return -self._take(UnwantedItem(request.size, reply), data, body)
            if request.size >= LARGE:
                return -self._take(LargeItem(request), data, body)
            # Or one byte more, if the line end is CR LF.
            self.wanted = request.size + 1 + body - data.rfind(b"\n", 0, body - 1) - 1
            return 0
        self._fault(ClientFault("bad data chunk", closes=True))
        return -len(data)

    def _take(self, item: ArrivingItem, data: bytes, position: int) -> int:
        """Take in more of an item; return where in `data` that ends."""
        self._arriving = item
        position = item.take(data, position)
        if item.is_bad:
            self._fault(ClientFault("bad data chunk", closes=True))
            return len(data)
        if item.is_whole:
            self._arriving = None
            if isinstance(item, LargeItem):
                self._set_large(item)
            elif isinstance(item, UnwantedItem) and item.reply:
                self._answer(item.reply)
        self.wanted = item.missing
        return position

    def _set_large(self, large: LargeItem) -> None:
        request = large.request
        queue = self._queues.get(request.queue)
        if queue is None or queue.restricted or not self._status.is_open:
            self._set_slowly(request, large.data())
            return
        self._counters.cmd_set += 1
        expiry = request.expiry and self._expiry(request.expiry)
        record = large.record(self._context.turns.clock.now(), expiry)
        if request.size >= AHEAD and queue.writes_ahead:
            self._connection.paused |= WRITING
            one_ahead(
                queue, record, expiry, lambda outcome: self._large_added(request, queue, outcome)
            ).start(self._context.writer)
            return
        try:
            stored = queue.add_record(record, expiry)
        except _FAILURES as error:
            self._answer_error(error, noreply=request.noreply)
            return
        if not request.noreply:
            self._answer(STORED if stored else NOT_STORED, queue.reached)

    def _large_added(self, request: Set, queue: Queue, outcome: Outcome) -> None:
        """Reply to the `set` of an item that was written meanwhile, and go on."""
        if request.noreply:
            self._connection.push(b"", None)
        elif isinstance(outcome, KestrelError):
            self._connection.push(memcache.server_error(str(outcome)), None)
        else:
            self._connection.push(STORED if outcome else NOT_STORED, queue.reached)
        self._connection.unpause(WRITING)

    def _refuse(self, request: Refused, data: bytes, body: int) -> int:
        if request.size is None:
            self._answer(request.reply)
            return body
        return self._take(UnwantedItem(request.size, request.reply), data, body)

    def _part_of_line(self, part: bytes) -> bytes:
        if part.startswith(BINARY_REQUEST):
            self._close_with(binary_refusal(part))
            return b""
        # The last byte may yet turn out to belong to the line's end.
        if len(part.removesuffix(b"\r")) <= memcache.MAX_LINE:
            return part
        self._fault(ClientFault(f"a line has at most {memcache.MAX_LINE} bytes", closes=True))
        return b""

    # --- replies ---

    def _answer(self, reply: bytes, touched: Touched = None) -> None:
        self._out.append(reply)
        self._touched.append(touched)
        self._produced += len(reply)
        if self._produced > OUTPUT_LIMIT:
            self._connection.stall()

    def _answer_error(self, error: Exception, *, noreply: bool = False) -> None:
        if not noreply:
            self._answer(memcache.server_error(str(error)))

    def _fault(self, fault: ClientFault) -> None:
        self._answer(memcache.client_error(fault.message))
        self._connection.closing |= fault.closes

    def _close_with(self, reply: bytes) -> None:
        self._answer(reply)
        self._connection.closing = True

    def failure_reply(self, failure: JournalError, _reply: bytes) -> bytes:
        """Return the reply to an operation that was taken back."""
        return memcache.server_error(str(failure))

    def broken(self) -> None:
        """Reply to a request that failed because of a bug."""
        self._close_with(memcache.server_error("internal error"))

    def resume(self) -> None:
        """Go on with a read that was interrupted because the client had much to read."""
        if self._fetch is not None:
            self._fetch.resume()

    def closed(self) -> None:
        """Give back what the connection holds."""
        if self._fetch is not None:
            self._fetch.cancel()
        self._reads.give_back()

    def _expiry(self, expiry: int) -> int:
        """Translate a client's expiry, which is not 0, to milliseconds since the epoch."""
        now = self._context.turns.clock.now()
        if expiry < 0:
            return now - 1
        return now + expiry * 1000 if expiry < self._epoch_expiry else min(expiry * 1000, LATEST)

    # --- set and get, in full ---

    def _set_slowly(self, request: Set, data: bytes) -> None:
        self._counters.cmd_set += 1
        context = self._context
        refusal = context.refuses_writes()
        if refusal is not None:
            self._close_with(memcache.server_error(refusal))
            return
        try:
            context.check_client(request.queue, write=True)
            stored = context.collection.add(
                request.queue, data, request.expiry and self._expiry(request.expiry)
            )
        except KestrelError as error:
            self._answer_error(error, noreply=request.noreply)
            return
        if not request.noreply:
            self._answer(STORED if stored else NOT_STORED, self._targets(request.queue))

    def _targets(self, name: str) -> Touched:
        """Return the queues that an add to `name` went to."""
        collection = self._context.collection
        queue = collection.queues.get(name)
        return queue.reached if queue is not None else tuple(collection.destinations(name))

    def _get_slowly(self, request: Get) -> None:
        before = len(self._out)
        self._fetch = MemcacheFetch(self._connection, self._context, self._reads, request)
        self._fetch.proceed()
        self._produced += max(sum(map(len, self._out[before:])), SLOW)
        if self._produced > OUTPUT_LIMIT:
            self._connection.stall()

    def _serve(self, request: Request) -> None:
        match request:
            case Monitor():
                self._fetch = MemcacheMonitor(self._connection, self._context, self._reads, request)
                self._fetch.proceed()
            case Stats() | Dump():
                pieces = listing(self._context, request)
                self._fetch = LongReply(self._connection, self._turns, pieces)
            case Confirm(queue, count):
                self._confirm(queue, count)
            case TouchRead(queue, milliseconds):
                self._touch(queue, milliseconds)
            case Simple("quit"):
                self._connection.closing = True
            case _:
                self._serve_admin(request)

    def _serve_admin(self, request: Request) -> None:
        try:
            reply, touched = serve_admin(self._context, request, self._connection.peer)
        except Forbidden as forbidden:
            self._close_with(memcache.server_error(str(forbidden)))
            return
        if reply:
            self._answer(reply, touched)
        elif request == Simple("shutdown"):
            self._connection.closing = True

    def _confirm(self, queue: str, count: int) -> None:
        reads = self._reads
        if reads.count(queue) < count:
            self._answer(ERROR)
            return
        touched: list[Queue] = []
        for _ in range(count):
            taken = reads.take_oldest(queue)
            if taken is not None:
                taken[0].confirm(taken[1])
                touched.append(taken[0])
        self._answer(END, tuple(touched[:1]))

    def _touch(self, queue: str, milliseconds: int) -> None:
        held = self._reads.xids(queue)
        for found, xid in held:
            found.extend(xid, milliseconds / 1000)
        self._answer(TOUCHED if held else NOT_FOUND)
