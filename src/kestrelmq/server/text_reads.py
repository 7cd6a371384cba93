"""Reads of the text protocol, all of which may wait: `get`, `peek` and `monitor`.

While a read waits its connection is paused, and so replies keep their order.
"""

from collections.abc import Callable
from typing import assert_never

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Wanted
from kestrelmq.errors import KestrelError
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.protocol import text
from kestrelmq.protocol.text_commands import Get, Monitor, Peek
from kestrelmq.server.connection import OUTPUT_LIMIT, STALLED, Connection, Touched
from kestrelmq.server.context import ServerContext
from kestrelmq.server.reads import OpenReads
from kestrelmq.server.waiting import EmptyWait, WaitingRead


class TextRead:
    """One command that reads: it sends items as they come, then how it ended, if that is a reply.

    A `get` or `peek` ends with its item; a `monitor` ends with "*", and so does whatever found
    nothing.
    """

    __slots__ = (
        "_command",
        "_connection",
        "_context",
        "_deadline",
        "_left",
        "_reads",
        "_stalled",
        "_waiting",
        "_wanted",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        reads: OpenReads,
        command: Get | Peek | Monitor,
    ) -> None:
        self._connection = connection
        self._context = context
        self._reads = reads
        self._command = command
        self._wanted = Wanted.PEEK if isinstance(command, Peek) else Wanted.OPEN
        self._left = 0
        self._deadline = 0.0
        self._stalled = False
        self._waiting: WaitingRead | EmptyWait | None = None

    def begin(self) -> None:
        """Read what is there, and wait for more if there is need.

        Raises:
            KestrelError: the queue cannot be read.
        """
        context, name = self._context, self._command.queue
        self._count()
        if isinstance(self._command, Get):
            self._confirm_previous()
        refusal = context.refuses_reads()
        if refusal is not None:
            self._end(text.error(refusal))
            return
        context.check_client(name, write=False)
        self._left = self._room()
        if self._left <= 0 and not isinstance(self._command, Monitor):
            self._end(text.error("too many transactions open"))
            return
        self._deadline = context.loop.time() + self._command.timeout / 1000
        if name in context.collection.config.aliases:
            self._wait(EmptyWait(self._connection, self._end_alias), self._end_alias)
        else:
            self._collect(context.collection.obtain(name))

    def resume(self) -> None:
        """Go on, now that the client has read what was sent."""
        if not self._stalled:
            return
        self._stalled = False
        try:
            self._collect(self._context.collection.obtain(self._command.queue))
        except KestrelError as error:
            self._end(text.error(str(error)))

    def cancel(self) -> None:
        """The client is gone."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _count(self) -> None:
        match self._command:
            case Get():
                pass  # its queue counts hits and misses
            case Peek():
                self._context.counters.cmd_peek += 1
            case Monitor():
                self._context.counters.cmd_monitor += 1
            case _:
                assert_never(self._command)

    def _room(self) -> int:
        """Return how many items this command may send."""
        match self._command:
            case Peek():
                return 1
            case Get(name):
                return min(1, self._context.config.max_monitor_transactions - self._held(name))
            case Monitor(name, _, most):
                room = self._context.config.max_monitor_transactions - self._held(name)
                return room if most is None else min(most, room)
            case _:
                assert_never(self._command)

    def _held(self, name: str) -> int:
        return self._reads.count(name)

    def _confirm_previous(self) -> None:
        taken = self._reads.take_oldest(self._command.queue)
        if taken is not None:
            queue, xid = taken
            queue.confirm(xid)

    def _collect(self, queue: Queue) -> None:
        """Send what is there, as far as the client has to read that now."""
        size = 0
        while self._left > 0:
            if size > OUTPUT_LIMIT:
                self._stalled = True
                self._connection.stall()
                return
            record, xid = queue.take_as(self._wanted)
            if record is None:
                break
            if not self._send(queue, record, xid):
                return
            size += len(record)
        self._go_on(queue)

    def _go_on(self, queue: Queue) -> None:
        """End if there is nothing to wait for, else get in line for the next item."""

        def end() -> None:
            self._end_empty(queue)

        if self._connection.paused & STALLED and self._left > 0:
            self._stalled = True  # what is due is read first
            return
        waiting = WaitingRead(
            self._connection,
            queue,
            self._wanted,
            lambda record, xid: self._served(queue, record, xid),
            end,
            lambda error: self._end(text.error(str(error))),
        )
        self._wait(waiting, end)

    def _wait(self, waiting: WaitingRead | EmptyWait, end: Callable[[], None]) -> None:
        """Wait for more, or end if there is no room or no time for it."""
        remaining = self._deadline - self._context.loop.time()
        if self._left <= 0 or remaining <= 0:
            end()
            return
        self._waiting = waiting
        waiting.begin(self._context.loop, remaining)

    def _end_alias(self) -> None:
        self._end(text.NOTHING)

    def _end_empty(self, queue: Queue) -> None:
        """End when nothing more comes."""
        is_monitor = isinstance(self._command, Monitor)
        if self._left <= 0 and not is_monitor:
            self._end(None)  # its item was the answer
            return
        queue.get_misses += isinstance(self._command, Get)
        self._end(text.NOTHING, queue)

    def _send(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Send an item; False when it cannot be sent, which ends the read."""
        item = record[ADDX_HEADER:]
        if not text.carries(item):
            if self._wanted is Wanted.OPEN:
                queue.unremove(xid)
            message = "the item holds a linefeed, which the text protocol cannot carry"
            self._end(text.error(message), queue)
            return False
        self._left -= 1
        if self._wanted is Wanted.OPEN:
            self._reads.add(queue, xid, record)
        if isinstance(self._command, Monitor):
            self._context.counters.cmd_monitor_get += 1
        self._connection.push(text.value(item), queue)
        return True

    def _served(self, queue: Queue, record: bytes, xid: int) -> None:
        self._waiting = None
        try:
            if self._send(queue, record, xid):
                # Those who have waited longer are served before this one takes more.
                (self._go_on if queue.waiters.line else self._collect)(queue)
        except KestrelError as error:
            self._end(text.error(str(error)))

    def _end(self, reply: bytes | None, touched: Touched = None) -> None:
        """Send how it ended; `touched` is what must be written first."""
        self._waiting = None
        if reply is not None:
            self._connection.push(reply, touched)
