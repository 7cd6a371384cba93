"""The text protocol over one connection.

Every error is a reply; the connection stays open, unless its client speaks HTTP. Items are read
with open reads of the connection: a command that reads a queue confirms those of the commands
before it, and the reads that are still open when the client disconnects are given back.
"""

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Final

from kestrelmq.errors import JournalError, KestrelError
from kestrelmq.format.records import ADDX_HEADER, record_of
from kestrelmq.protocol import text
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import (
    Confirm,
    GetStatus,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    SignIn,
    Version,
)
from kestrelmq.protocol.text import (
    Command,
    Get,
    Monitor,
    Peek,
    Put,
    TextParser,
)
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode
from kestrelmq.scheduling.durability import Committable
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import NO_ROOM, ServerContext
from kestrelmq.server.replies import data_of
from kestrelmq.server.requests import changes
from kestrelmq.server.requests.managing import check_action, manage
from kestrelmq.server.requests.put import PendingPut
from kestrelmq.server.requests.reads import (
    ConnectionOpenReads,
    PendingConfirm,
    PendingRead,
    ReadHandler,
)
from kestrelmq.server.sessions.line_session import LineSession
from kestrelmq.server.status import Status
from kestrelmq.version import VERSION

_DONE: Final = text.count_reply(0)

_QUICK: Final = (Put, Get, Peek, Confirm)
"""The other commands may take long: they are served in each turn's time for slow requests."""


class TextSession(LineSession):
    """The session of one client: its commands and its open reads."""

    def __init__(self, connection: Connection, context: ServerContext) -> None:
        super().__init__(connection, context)
        self._parser = TextParser(context.collection.max_item_size)

    def feed(self, data: bytes) -> bytes:
        """Apply the commands in `data`; return the input after one that waits."""
        connection, parser = self._connection, self._parser
        parser.receive(data)
        while True:
            command: Command | None = None
            try:
                command = parser.next_command()
                if command is not None:
                    self._serve(command)
                elif not parser.has_more:
                    self._count_input()
                    return b""
            except ClientFault as fault:
                connection.push(text.error_reply(fault.message))
                connection.closing |= fault.closes
            except (KestrelError, ValueError) as error:
                _refuse(connection, error)
            connection.count_slow_request()
            if not isinstance(command, _QUICK):
                connection.share_turn()
            if connection.paused or connection.closing:
                self._count_input()
                return parser.take_back()

    def _count_input(self) -> None:
        """Count what has arrived of a `put`; refuse it if there is no room."""
        if not self._connection.count_input(self._parser.buffered):
            self._parser.refuse_put(NO_ROOM)
            self._connection.count_input(0)

    def failure_reply(
        self, failure: JournalError, reply: bytes, queues: Sequence[Committable]
    ) -> bytes:
        """Return the error reply to an operation that was undone, or that could not be synced."""
        self._lose_reply(reply, b":", queues)
        return text.error_reply(str(failure))

    def answer_internal_error(self) -> None:
        """Reply to a command that failed because of a bug, and close."""
        self._connection.push(text.error_reply("internal error"))
        self._connection.closing = True

    def _serve(self, command: Command) -> None:
        self._context.check_request(self._connection.user, command)
        match command:
            case SignIn(user, password):
                self._answer_later(self._context.sign_in(self._connection, user, password))
            case Get() | Peek() | Monitor():
                TextRead(self._connection, self._context, self._reads, command).begin()
            case Quit():
                self._connection.closing = True
            case Put():
                self._put(command)
            case Confirm(queue, count):
                answer = partial(self._answer_confirm, count)
                PendingConfirm(self._connection, self._reads, queue, count, answer).begin()
            case SetStatus() | GetStatus() | Reload() | Shutdown() | Version():
                self._serve_server(command)
            case _:
                self._answer_later(manage(self._context, command, self._connection))

    def _serve_server(self, command: SetStatus | GetStatus | Reload | Shutdown | Version) -> None:
        connection, context = self._connection, self._context
        check_action(context, command, connection)
        match command:
            case SetStatus(name):
                context.status.set(Status.parse(name))
                connection.push(_DONE)
            case GetStatus():
                connection.push(text.value_reply(context.status.status.value.encode()))
            case Reload():
                self._answer_later(context.reload())
            case Shutdown():
                connection.closing = True
                context.shutdown()
            case Version():
                connection.push(text.value_reply(VERSION.encode()))

    def _put(self, put: Put) -> None:
        connection = self._connection
        if put.too_large:
            self._context.collection.count_too_large(put.queue, put.too_large)
        PendingPut(
            connection,
            self._context,
            put.queue,
            put.items,
            self._context.expiry_after(put.expiry),
            lambda count, queues: connection.push(text.count_reply(count), queues),
            partial(_refuse, connection),
            stops=False,
        ).begin()

    def _answer_confirm(self, count: int, touched: tuple[Queue, ...] | None) -> None:
        if touched is None:
            self._connection.push(text.error_reply("Not that many transactions open."))
        else:
            self._connection.push(text.count_reply(count), touched)

    def _answer_later(self, change: Coroutine[None, None, object]) -> None:
        connection = self._connection
        changes.answer_later(
            connection,
            change,
            lambda _: connection.push(_DONE),
            partial(_refuse, connection),
        )


def _refuse(connection: Connection, error: Exception) -> None:
    connection.push(text.error_reply(str(error)))


class TextRead(ReadHandler):
    """A command that reads: `get` and `peek` reply with one item, `monitor` with many.

    The end of a `monitor` is "*", which is also the reply when there is no item.
    """

    __slots__ = ("_command", "_connection", "_context", "_mode", "_reads")

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        reads: ConnectionOpenReads,
        command: Get | Peek | Monitor,
    ) -> None:
        self._connection = connection
        self._context = context
        self._reads = reads
        self._command = command
        self._mode = ReadMode.PEEK if isinstance(command, Peek) else ReadMode.OPEN

    def begin(self) -> None:
        """Confirm the connection's reads of the queue, as Kestrel does, and then read."""
        reads, name = self._reads, self._command.queue
        PendingConfirm(self._connection, reads, name, reads.count(name), self._read).begin()

    def _read(self, _touched: tuple[Queue, ...] | None) -> None:
        """Take the items that are there, and wait if more are wanted."""
        try:
            self._take_first()
        except KestrelError as error:
            self.fail(error)

    def _take_first(self) -> None:
        context, command = self._context, self._command
        context.counters.cmd_peek += isinstance(command, Peek)
        context.counters.cmd_monitor += isinstance(command, Monitor)
        context.check_readable()
        if isinstance(command, Monitor):
            most = context.config.max_monitor_transactions
            self._collect(most if command.most is None else min(command.most, most)).begin()
            return
        if not context.has_time_for(command.queue):
            self._collect(1).begin()
            return
        queue = context.collection.obtain_single(command.queue)
        if queue is not None:
            if not context.prepare_head(queue):
                self._collect(1).begin()
                return
            one, xid = queue.line.take_as(self._mode)
            if one is not None:
                self.take(queue, record_of(one), xid)
                return
        self._collect(1).wait(queue)

    def _collect(self, most: int) -> PendingRead:
        name, seconds = self._command.queue, self._command.timeout / 1000
        return PendingRead(self._connection, self._context, self, name, self._mode, seconds, most)

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Send an item; return False when it completes the reply, or cannot be sent."""
        if not text.can_carry(record, ADDX_HEADER):
            if self._mode is ReadMode.OPEN:
                queue.returns.give_back((xid,), counted=False)
            message = "the item holds a linefeed, which the text protocol cannot carry"
            self._connection.push(text.error_reply(message), queue)
            return False
        if self._mode is ReadMode.OPEN:
            self._reads.add(queue, queue.reads.open[xid])
        item = data_of(record)
        self._connection.push_large(text.value_parts(item), len(record), queue)
        if isinstance(self._command, Monitor):
            self._context.counters.cmd_monitor_get += 1
            return True
        return False

    def end(self, queue: Queue | None) -> None:
        """Send the reply that there is no item, or no further one."""
        if queue is not None:
            queue.counts.get_misses += isinstance(self._command, Get)
        self._connection.push(text.NO_ITEM, queue)

    def fail(self, error: KestrelError) -> None:
        """Send the error that ends the read."""
        _refuse(self._connection, error)
