"""Reads of the memcache protocol that may take several turns: `get` and `monitor`."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kestrelmq.access.signing_in import SignInRefused
from kestrelmq.errors import (
    InvalidDeclaration,
    InvalidQueueName,
    JournalError,
    KestrelError,
    NoDeadLetterQueue,
    NotSynced,
    PatternRefused,
    PlaceRefused,
    ReadersChanged,
    TagRefused,
)
from kestrelmq.format.records import record_of
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.protocol import memcache
from kestrelmq.protocol.memcache import END, ERROR, Get, Key, Monitor
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ClientForbidden, Forbidden, ServerContext
from kestrelmq.server.replies import OUTPUT_LIMIT, Part, data_of
from kestrelmq.server.requests.reads import ConnectionOpenReads, PendingRead, ReadHandler

_GRACE: Final = 5.0
"""Seconds by which the open read of a taken item outlasts the wait for the next item."""


_CLIENT_FAULTS: Final = (
    ClientForbidden,
    InvalidQueueName,
    InvalidDeclaration,
    NoDeadLetterQueue,
    PatternRefused,
    PlaceRefused,
    ReadersChanged,
    SignInRefused,
    TagRefused,
)


def error_reply(error: KestrelError) -> bytes:
    """Return the error reply; its kind says whether the client or the server is at fault."""
    if isinstance(error, _CLIENT_FAULTS):
        return memcache.client_error(str(error))
    return memcache.server_error(str(error))


def refuse(connection: Connection, error: KestrelError, *, noreply: bool = False) -> None:
    """Send the error reply; close the connection if the server allows no such request at present.

    With `noreply` the client expects no reply; then one is sent only before the end.
    """
    is_forbidden = isinstance(error, Forbidden)
    if is_forbidden or not noreply:
        connection.push(error_reply(error))
    connection.closing |= is_forbidden


class _TakenItem(NamedTuple):
    """An item in a reply that is not sent yet, of a request with several keys.

    That of a plain key has an open read until its part of the reply is sent. That of a key with
    /open is among the open reads of the connection already.
    """

    part: int
    queue: Queue
    read: OpenRead
    is_plain: bool

    @property
    def is_open(self) -> bool:
        """Whether it was not given back, and its queue was not deleted."""
        return self.queue.reads.is_open(self.read)


class MemcacheGet(ReadHandler):
    """A `get`: its keys are served one after the other.

    The reply is sent as a whole, unless it is large: then it is sent in parts, each when the client
    has read the part before. With several keys, an item is removed only when the reply with it is
    sent, because a later key may fail, or the client may disconnect during a wait. A crash before
    that leaves the item open in the journal, so it is in the queue again after the restart. If one
    of several queues cannot be written then, the others' items must not be lost with its own: so
    each is written by itself, and the reply has the items of those that could be.
    """

    __slots__ = (
        "_connection",
        "_context",
        "_found",
        "_hands_out",
        "_index",
        "_parts",
        "_reads",
        "_request",
        "_several",
        "_size",
        "_taken",
        "_touched",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        reads: ConnectionOpenReads,
        request: Get,
    ) -> None:
        self._connection = connection
        self._context = context
        self._reads = reads
        self._request = request
        self._several = len(request.keys) > 1
        self._index = 0
        self._found = False
        self._hands_out = False
        self._parts: list[Part] = []
        self._size = 0
        self._taken: list[_TakenItem] = []
        self._touched: list[Queue] = []

    def proceed(self) -> None:
        """Serve keys until one waits, the client has too much to read, or all are served."""
        keys, connection = self._request.keys, self._connection
        try:
            while self._index < len(keys):
                if self._size > OUTPUT_LIMIT:
                    parts = self._finished_reply(has_more=True)
                    self._hands_out = True  # what follows it cannot follow an error
                    self._send(parts)
                    connection.stall()
                elif not self._prepare_head(keys[self._index]) or (
                    self._several and self._context.turns.slow_share_is_over()
                ):
                    connection.yield_turn()
                if connection.must_pause:
                    self._end_turn()
                    connection.resume_later(self)
                    return
                if not self._serve_key(keys[self._index]):
                    return
                self._index += 1
            self._send([*self._finished_reply(), END])
        except KestrelError as error:
            self.fail(error)

    def _prepare_head(self, key: Key) -> bool:
        """Prepare the head of a key's queue to be read; False if others must be served first."""
        queue = self._context.collection.queues.get(key.queue)
        if queue is None:  # with several keys, there is a check for each anyway
            return self._several or self._context.has_time_for(key.queue)
        return self._context.prepare_head(queue)

    def _serve_key(self, key: Key) -> bool:
        """Serve one key; return False when it waits, or when the whole request was answered."""
        context, reads = self._context, self._reads
        if key.abort or key.close:
            self._end_oldest(key)
            if key.abort or not key.open:
                return True
        context.check_readable()
        held = reads.count(key.queue)
        if (held and not key.open and not key.peek) or (
            key.open and held >= context.config.max_open_transactions
        ):
            self._close_with(ERROR)
            return False
        if key.peek:
            context.counters.cmd_peek += 1
        removing = ReadMode.HOLD if self._several else ReadMode.REMOVE
        mode = ReadMode.PEEK if key.peek else ReadMode.OPEN if key.open else removing
        queue = context.collection.obtain_single(key.queue)
        if queue is not None:
            one, xid = queue.line.take_as(mode)
            if one is not None:
                self._add_to_reply(key, queue, record_of(one), xid)
                return True
        if key.timeout:
            self.wait(key, queue, mode)
            return False
        self._miss(key, queue)
        return True

    def wait(self, key: Key, queue: Queue | None, mode: ReadMode) -> None:
        """Wait for an item for `key`; `queue` is empty now, and None for an alias."""
        seconds = (key.timeout or 0) / 1000
        for one in self._taken:
            # The items taken already must not be given back during the wait.
            if one.is_plain and one.queue.config.open_transaction_timeout is not None:
                one.queue.reads.extend(one.read.xid, seconds + _GRACE)
        self._end_turn()
        PendingRead(self._connection, self._context, self, key.queue, mode, seconds).wait(queue)

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Take the item that the current key waited for; answer if it is the only key."""
        self._add_to_reply(self._request.keys[self._index], queue, record, xid)
        if self._several:
            self._found = True
            return True
        self._send([*self._parts, END])
        return False

    def end(self, queue: Queue | None) -> None:
        """Go on to the next key: the wait of the current one has ended."""
        if self._found:
            self._found = False
        elif queue is not None:
            key = self._request.keys[self._index]
            self._context.latencies.timed_out(queue, (key.timeout or 0) / 1000)
            self._miss(key, queue)
        self._index += 1
        self.proceed()

    def fail(self, error: KestrelError) -> None:
        """Answer with an error, and give back the items taken, which the client does not get.

        Those that were opened, too: a later /close would confirm an item that nobody has seen.
        """
        if isinstance(error, Forbidden):
            self._close_with(error_reply(error))
            return
        kept = [
            one
            for one in reversed(self._taken)
            if one.is_plain or self._reads.take_newest(one.queue, one.read.xid)
        ]
        self._taken.clear()
        reads = ConnectionOpenReads()
        for one in reversed(kept):
            reads.add(one.queue, one.read)
        reads.give_back(counted=False)  # the oldest of a queue becomes its head
        self._hands_out = False
        self._send([error_reply(error)])

    def resume(self) -> None:
        """Continue with the remaining keys."""
        self._connection.request_done()
        self.proceed()

    def give_up(self) -> None:
        """Send END, but no items of earlier keys: they are given back."""
        self._parts.clear()
        self._hands_out = False
        self._send([END])

    def cancel(self) -> None:
        """Add the items taken to the connection's open reads, which are given back."""
        # A plain key is refused while its queue has open reads: those there now are newer.
        for one in reversed(self._taken):
            if one.is_plain:
                self._reads.add_oldest(one.queue, one.read)
        self._taken.clear()

    def _close_with(self, reply: bytes) -> None:
        self.cancel()
        self._hands_out = False
        self._send([reply])
        self._connection.closing = True

    def _end_oldest(self, key: Key) -> None:
        taken = self._reads.take_oldest(key.queue)
        if taken is None:
            return
        queue, xid = taken
        if key.abort:
            queue.returns.give_back([xid])
        else:
            queue.reads.confirm(xid)
        self._touched.append(queue)

    def _add_to_reply(self, key: Key, queue: Queue, record: bytes, xid: int) -> None:
        """Add an item to the reply."""
        if key.open:
            self._reads.add(queue, queue.reads.open[xid])
        elif not key.peek:
            self._hands_out = True
        if self._several and not key.peek:
            taken = _TakenItem(
                len(self._parts), queue, queue.reads.open[xid], is_plain=not key.open
            )
            self._taken.append(taken)
        self._touched.append(queue)
        cas = None if not self._request.cas else xid if key.open else 0
        self._parts += memcache.value_parts(key.echo, data_of(record), cas)
        self._size += len(record)

    @staticmethod
    def _miss(key: Key, queue: Queue | None) -> None:
        if queue is not None and not key.peek:
            queue.counts.get_misses += 1

    def _finished_reply(self, *, has_more: bool = False) -> list[Part]:
        """Remove the items taken, and return the parts of the reply so far.

        `has_more` is whether more of the reply follows in later turns.

        Raises:
            JournalError: an item was given back because its read could not be written.
        """
        failure = self._connection.replies.failure if self._several else None
        if failure is not None and not isinstance(failure, NotSynced):
            raise JournalError(str(failure))  # an earlier turn of this request could not be written
        queues = dict.fromkeys(self._touched)
        is_written = has_more or (len(queues) > 1 and self._hands_out)
        if is_written:
            for queue in queues:
                queue.core.write_now()
        for taken in self._taken:
            if taken.is_plain and not taken.is_open:
                if taken.queue.core.failure is not None:
                    raise JournalError(str(taken.queue.core.failure))
                self._leave_out(taken)  # its queue was deleted, or its time was up
        for taken in self._taken:
            if taken.is_plain and taken.is_open:
                taken.queue.reads.confirm(taken.read.xid)
        if is_written:
            self._write_each(queues)
        self._taken.clear()
        return self._parts

    def _write_each(self, queues: Iterable[Queue]) -> None:
        """Write that items were removed; leave those out whose queue cannot be written.

        Raises:
            JournalError: no item is left.
        """
        failures: dict[Queue, JournalError] = {}
        for queue in queues:
            try:
                queue.core.write_now()
            except JournalError as error:
                failures[queue] = error
        if not failures:
            return
        if all(taken.is_plain and taken.queue in failures for taken in self._taken):
            raise next(iter(failures.values()))
        for taken in self._taken:
            if taken.is_plain and taken.queue in failures:
                self._leave_out(taken)
        self._touched = [queue for queue in self._touched if queue not in failures]

    def _leave_out(self, taken: _TakenItem) -> None:
        """Leave an item out of the reply."""
        part = taken.part
        self._parts[part : part + 3] = [b""] * 3

    def _end_turn(self) -> None:
        """Let the reply, which comes in a later turn, depend on the changes of this one."""
        if self._touched:
            self._connection.push(b"", tuple(self._touched))

    def _send(self, parts: list[Part]) -> None:
        self._connection.push_large(
            parts, self._size, tuple(self._touched), hands_out=self._hands_out
        )
        self._parts.clear()
        self._touched.clear()
        self._size = 0
        self._hands_out = False


class MemcacheMonitor(ReadHandler):
    """A `monitor`: each item is opened and sent as a whole reply when it arrives; END is last."""

    __slots__ = ("_connection", "_context", "_reads", "_request")

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        reads: ConnectionOpenReads,
        request: Monitor,
    ) -> None:
        self._connection = connection
        self._context = context
        self._reads = reads
        self._request = request

    def begin(self) -> None:
        """Send the items that are there, and wait for more."""
        context, request = self._context, self._request
        context.counters.cmd_monitor += 1
        room = context.config.max_monitor_transactions - self._reads.count(request.queue)
        most = room if request.max_items is None else min(request.max_items, room)
        PendingRead(
            self._connection, context, self, request.queue, ReadMode.OPEN, request.seconds, most
        ).begin()

    @property
    def takes_all(self) -> bool:
        """True: memcache can carry every item."""
        return True

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Send an item."""
        self._context.counters.cmd_monitor_get += 1
        self._reads.add(queue, queue.reads.open[xid])
        echo = self._request.queue.encode()
        parts = memcache.value_parts(echo, data_of(record))
        self._connection.push_large((*parts, END), len(record), queue)
        return True

    def end(self, queue: Queue | None) -> None:  # noqa: ARG002 # every monitor ends alike
        """Send END."""
        self._connection.push(END)

    def fail(self, error: KestrelError) -> None:
        """Send the error that ends the monitor."""
        refuse(self._connection, error)
