"""Reads of the memcache protocol that may wait: `get` with its options, and `monitor`.

While a read waits its connection is paused: what comes after it on the same connection waits too,
and so replies keep their order.
"""

from typing import Final, NamedTuple

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Wanted
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.protocol import memcache
from kestrelmq.protocol.memcache import END, ERROR, Get, Key, Monitor
from kestrelmq.server.connection import OUTPUT_LIMIT, STALLED, Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.reads import OpenReads
from kestrelmq.server.waiting import EmptyWait, WaitingRead

_FAILURES: Final = (QueueUnavailable, JournalError)
_GRACE: Final = 5.0
"""Seconds by which an item that was taken outlives the wait for the next one."""


class _Taken(NamedTuple):
    """An item of a plain key: a read that is open until its part of the reply leaves."""

    part: int
    queue: Queue
    xid: int
    record: bytes

    @property
    def is_open(self) -> bool:
        # The same xid may be open for somebody else by now; the item's object tells.
        return self.queue.open.get(self.xid) is self.record


class MemcacheFetch:
    """A `get`: its keys are served one after the other.

    The reply is sent as a whole, unless it is large: then in parts, each when the client has read
    the one before. With several keys an item is not removed before the reply that has it leaves,
    for a later key may fail, or the client may hang up while it waits; a crash meanwhile leaves
    the item open in the journal, and so it comes back.
    """

    __slots__ = (
        "_connection",
        "_context",
        "_index",
        "_parts",
        "_reads",
        "_request",
        "_several",
        "_size",
        "_taken",
        "_touched",
        "_waiting",
        "is_done",
    )

    def __init__(
        self, connection: Connection, context: ServerContext, reads: OpenReads, request: Get
    ) -> None:
        self._connection = connection
        self._context = context
        self._reads = reads
        self._request = request
        self._several = len(request.keys) > 1
        self._index = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._taken: list[_Taken] = []
        self._touched: list[Queue] = []
        self._waiting: WaitingRead | EmptyWait | None = None
        self.is_done = False

    def proceed(self) -> None:
        """Serve keys until one waits, the client has much to read, or all are served."""
        try:
            if self._serve_keys():
                self._finish(self._values() + END)
        except KestrelError as error:
            self._give_back()
            self._finish(self._error(error))

    def _serve_keys(self) -> bool:
        """Serve keys; True when all are served and nothing was answered yet."""
        keys = self._request.keys
        while self._index < len(keys):
            if self._size > OUTPUT_LIMIT:
                self._send(self._values())
                self._connection.stall()
                return False
            if self._several and self._context.turns.share_is_over():
                self._connection.yield_turn()
                return False
            if not self._serve(keys[self._index]) or self.is_done:
                return False
            self._index += 1
        return True

    def resume(self) -> None:
        """Go on, now that the client has read what was sent."""
        if not self.is_done and self._waiting is None:
            self.proceed()

    def _error(self, error: KestrelError) -> bytes:
        if isinstance(error, _FAILURES):
            return memcache.server_error(str(error))
        return memcache.client_error(str(error))

    def _values(self) -> bytes:
        """Remove what was taken, and return the reply so far.

        Raises:
            JournalError: an item went back because its read could not be written.
        """
        lost = [taken for taken in self._taken if not taken.is_open]
        for part, queue, _, _ in lost:
            if queue.failure is not None:
                raise JournalError(str(queue.failure))
            self._parts[part] = b""  # its queue was deleted, or its time was up
        for taken in self._taken:
            if taken.is_open:
                taken.queue.confirm(taken.xid)
        self._taken.clear()
        return b"".join(self._parts)

    def _give_back(self) -> None:
        """Give back what was taken; the oldest of a queue ends up at its head."""
        reads = OpenReads()
        for _, queue, xid, record in self._taken:
            reads.add(queue, xid, record)
        self._taken.clear()
        reads.give_back()

    def _send(self, reply: bytes) -> None:
        self._connection.push(reply, tuple(self._touched))
        self._parts.clear()
        self._touched.clear()
        self._size = 0

    def _finish(self, reply: bytes) -> None:
        self.is_done = True
        self._send(reply)

    def _close_with(self, reply: bytes) -> bool:
        self._connection.closing = True
        self._finish(reply)
        return True

    def _serve(self, key: Key) -> bool:
        """Serve one key; False while it waits."""
        context, reads = self._context, self._reads
        if key.abort or key.close:
            self._end_oldest(key)
            if key.abort or not key.open:
                return True
        refusal = context.refuses_reads()
        if refusal is not None:
            return self._close_with(memcache.server_error(refusal))
        held = reads.count(key.queue)
        if held and not key.open and not key.peek:
            return self._close_with(ERROR)
        if key.open and held >= context.config.max_open_transactions:
            return self._close_with(ERROR)
        context.check_client(key.queue, write=False)
        if key.peek:
            context.counters.cmd_peek += 1
        if key.queue in context.collection.config.aliases:
            return not key.timeout or self._wait(
                EmptyWait(self._connection, self._go_on), key.timeout
            )
        return self._read(key, context.collection.obtain(key.queue))

    def _end_oldest(self, key: Key) -> None:
        taken = self._reads.take_oldest(key.queue)
        if taken is None:
            return
        queue, xid = taken
        if key.abort:
            queue.unremove(xid)
        else:
            queue.confirm(xid)
        self._touched.append(queue)

    def _read(self, key: Key, queue: Queue) -> bool:
        opens = key.open or self._several
        wanted = Wanted.PEEK if key.peek else Wanted.OPEN if opens else Wanted.REMOVE
        record, xid = queue.take_as(wanted)
        if record is not None:
            self._take(key, queue, record, xid)
            return True
        if not key.timeout:
            self._miss(key, queue)
            return True
        waiting = WaitingRead(
            self._connection,
            queue,
            wanted,
            lambda record, xid: self._served(key, queue, record, xid),
            lambda: self._timed_out(key, queue),
            self._failed,
        )
        return self._wait(waiting, key.timeout)

    def _wait(self, waiting: WaitingRead | EmptyWait, milliseconds: int) -> bool:
        self._waiting = waiting
        waiting.begin(self._context.loop, milliseconds / 1000)
        self._keep_taken(milliseconds / 1000)
        return False

    def _keep_taken(self, seconds: float) -> None:
        """Have what was taken not give itself back while the next item is waited for."""
        for _, queue, xid, _ in self._taken:
            if queue.config.open_transaction_timeout is not None:
                queue.extend(xid, seconds + _GRACE)

    def _take(self, key: Key, queue: Queue, record: bytes, xid: int) -> None:
        if key.open:
            self._reads.add(queue, xid, record)
        elif self._several and not key.peek:
            self._taken.append(_Taken(len(self._parts), queue, xid, record))
        self._touched.append(queue)
        cas = None if not self._request.cas else xid if key.open else 0
        self._parts.append(memcache.value(key.echo, record[ADDX_HEADER:], cas))
        self._size += len(record)

    @staticmethod
    def _miss(key: Key, queue: Queue) -> None:
        if not key.peek:
            queue.get_misses += 1

    def _served(self, key: Key, queue: Queue, record: bytes, xid: int) -> None:
        self._take(key, queue, record, xid)
        self._go_on()

    def _timed_out(self, key: Key, queue: Queue) -> None:
        self._context.latencies.timed_out(queue, (key.timeout or 0) / 1000)
        self._miss(key, queue)
        self._go_on()

    def _go_on(self) -> None:
        """Serve the next key: there is nothing to wait for any more."""
        self._waiting = None
        self._index += 1
        self.proceed()

    def _failed(self, error: KestrelError) -> None:
        self._waiting = None
        self._give_back()
        self._finish(self._error(error))

    def cancel(self) -> None:
        """The client is gone: what was taken is given back with its other open reads."""
        self.is_done = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        # A plain key is refused while a read of its queue is open: those came later.
        for _, queue, xid, record in reversed(self._taken):
            self._reads.add_oldest(queue, xid, record)
        self._taken.clear()


class MemcacheMonitor:
    """A `monitor`: each item is an open read and a whole reply, sent as it arrives; then END."""

    __slots__ = (
        "_connection",
        "_context",
        "_deadline",
        "_left",
        "_reads",
        "_request",
        "_waiting",
        "is_done",
    )

    def __init__(
        self, connection: Connection, context: ServerContext, reads: OpenReads, request: Monitor
    ) -> None:
        self._connection = connection
        self._context = context
        self._reads = reads
        self._request = request
        self._waiting: WaitingRead | EmptyWait | None = None
        self._deadline = context.loop.time() + request.seconds
        room = context.config.max_monitor_transactions - reads.count(request.queue)
        self.is_done = False
        self._left = room if request.max_items is None else min(request.max_items, room)

    def proceed(self) -> None:
        """Begin to monitor."""
        self._context.counters.cmd_monitor += 1
        self._check_and_go_on()

    def resume(self) -> None:
        """Go on, now that the client has read what was sent."""
        if not self.is_done and self._waiting is None:
            self._check_and_go_on()

    def _check_and_go_on(self) -> None:
        context, name = self._context, self._request.queue
        refusal = context.refuses_reads()
        if refusal is not None:
            self._connection.closing = True
            self._end(memcache.server_error(refusal))
            return
        try:
            context.check_client(name, write=False)
            if name in context.collection.config.aliases:
                self._wait(EmptyWait(self._connection, self._time_out))
            else:
                self._go_on(context.collection.obtain(name))
        except _FAILURES as error:
            self._end(memcache.server_error(str(error)))
        except KestrelError as error:
            self._end(memcache.client_error(str(error)))

    def _go_on(self, queue: Queue) -> None:
        """Send what is there; then wait for the next, or end."""
        size = 0
        # Those who have waited longer are served before this one takes more.
        while self._left > 0 and not queue.waiters.line:
            if size > OUTPUT_LIMIT:
                self._connection.paused |= STALLED
                return
            record, xid = queue.take_as(Wanted.OPEN)
            if record is None:
                break
            self._send(queue, record, xid)
            size += len(record)
        self._wait(
            WaitingRead(
                self._connection,
                queue,
                Wanted.OPEN,
                lambda record, xid: self._served(queue, record, xid),
                self._time_out,
                lambda error: self._end(memcache.server_error(str(error))),
            )
        )

    def _wait(self, waiting: WaitingRead | EmptyWait) -> None:
        """Wait for the next item, or end if there is no room or no time for one."""
        remaining = self._deadline - self._context.loop.time()
        if self._left <= 0 or remaining <= 0:
            self._time_out()
            return
        if self._connection.paused & STALLED:
            return  # what is due is read first
        self._waiting = waiting
        waiting.begin(self._context.loop, remaining)

    def _time_out(self) -> None:
        self._end(END)

    def _send(self, queue: Queue, record: bytes, xid: int) -> None:
        self._left -= 1
        self._context.counters.cmd_monitor_get += 1
        self._reads.add(queue, xid, record)
        echo = self._request.queue.encode()
        self._connection.push(memcache.value(echo, record[ADDX_HEADER:]) + END, queue)

    def _served(self, queue: Queue, record: bytes, xid: int) -> None:
        self._waiting = None
        self._send(queue, record, xid)
        try:
            self._go_on(queue)
        except _FAILURES as error:
            self._end(memcache.server_error(str(error)))

    def _end(self, reply: bytes) -> None:
        self.is_done = True
        self._waiting = None
        self._connection.push(reply, None)

    def cancel(self) -> None:
        """The client is gone."""
        self.is_done = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
