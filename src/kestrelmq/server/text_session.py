"""The text protocol over one connection.

Every error is a reply; the connection stays open, unless its client speaks HTTP. Reads are open
reads of the connection: `get` confirms the one before it, and whatever is open when the client goes
is given back.
"""

from typing import Final

from kestrelmq.engine.queue import Queue
from kestrelmq.errors import JournalError, KestrelError
from kestrelmq.protocol import text
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.text import TextParser
from kestrelmq.protocol.text_commands import (
    Command,
    Confirm,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    Get,
    GetStatus,
    Monitor,
    Peek,
    Put,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    Version,
)
from kestrelmq.server.connection import OUTPUT_LIMIT, SLOW, Connection, Session, Touched
from kestrelmq.server.context import ServerContext
from kestrelmq.server.puts import PutItems
from kestrelmq.server.reads import OpenReads
from kestrelmq.server.server_actions import Action
from kestrelmq.server.status import Status
from kestrelmq.server.text_reads import TextRead
from kestrelmq.version import VERSION

_DONE: Final = text.counted(0)

_SLOW: Final = (Flush, FlushAll, FlushExpired, Delete, SetStatus, Reload)
"""Commands that may take long: they share a part of each turn."""

Answer = tuple[bytes, Touched]


class TextSession(Session):
    """One client's commands, open reads and waiting read."""

    def __init__(self, connection: Connection, context: ServerContext) -> None:
        self._connection = connection
        self._context = context
        self._parser = TextParser(context.collection.max_item_size)
        self._reads = OpenReads()
        self._read: TextRead | None = None
        self.wanted = 0

    def feed(self, data: bytes) -> bytes:
        """Apply the commands in `data`; return what comes after one that waits."""
        connection, parser = self._connection, self._parser
        parser.receive(data)
        produced = 0
        while True:
            command: Command | None = None
            try:
                command = parser.next_command()
                if command is None:
                    return b""
                self._serve(command)
            except ClientFault as fault:
                connection.push(text.error(fault.message), None)
                connection.closing |= fault.closes
            except (KestrelError, ValueError) as error:
                connection.push(text.error(str(error)), None)
            produced += max(len(connection.out[-1]) if connection.out else 0, SLOW)
            if produced > OUTPUT_LIMIT:
                connection.stall()
            elif isinstance(command, _SLOW) and self._context.turns.share_is_over():
                connection.yield_turn()
            if connection.paused or connection.closing:
                return parser.take_back()

    def failure_reply(self, failure: JournalError, _reply: bytes) -> bytes:
        """Return the reply to an operation that was taken back."""
        return text.error(str(failure))

    def broken(self) -> None:
        """Reply to a command that failed because of a bug."""
        self._connection.push(text.error("internal error"), None)
        self._connection.closing = True

    def resume(self) -> None:
        """Go on with a monitor that was interrupted because the client had much to read."""
        if self._read is not None:
            self._read.resume()

    def closed(self) -> None:
        """Give back what the connection holds."""
        if self._read is not None:
            self._read.cancel()
        self._reads.give_back()

    def _serve(self, command: Command) -> None:
        match command:
            case Get() | Peek() | Monitor():
                self._read = TextRead(self._connection, self._context, self._reads, command)
                self._read.begin()
            case Quit():
                self._connection.closing = True
            case Shutdown():
                self._check_action("shutdown")
                self._connection.closing = True
                self._context.shutdown()
            case Put():
                self._put(command)
            case Confirm():
                self._connection.push(*self._confirm(command))
            case Flush() | FlushAll() | FlushExpired() | Delete():
                self._connection.push(*self._change(command))
            case SetStatus(name):
                self._check_action("status")
                self._context.status.set(Status.parse(name))
                self._connection.push(_DONE, None)
            case GetStatus():
                self._connection.push(text.value(self._context.status.status.value.encode()), None)
            case Reload():
                self._check_action("reload")
                self._context.reload()
                self._connection.push(_DONE, None)
            case Version():
                self._connection.push(text.value(VERSION.encode()), None)

    def _check_action(self, action: Action) -> None:
        self._context.actions.check(action, "text", self._connection.peer)

    def _put(self, put: Put) -> None:
        connection = self._connection
        PutItems(
            connection,
            self._context,
            put.queue,
            put.items,
            lambda count, touched: connection.push(text.counted(count), touched),
            lambda error: connection.push(text.error(str(error)), None),
        ).begin(put.expiry)

    def _confirm(self, confirm: Confirm) -> Answer:
        reads, name = self._reads, confirm.queue
        if reads.count(name) < confirm.count:
            return text.error("Not that many transactions open."), None
        touched: list[Queue] = []
        for _ in range(confirm.count):
            taken = reads.take_oldest(name)
            if taken is not None:
                queue, xid = taken
                queue.confirm(xid)
                touched.append(queue)
        return text.counted(confirm.count), tuple(touched[:1])

    def _change(self, command: Flush | FlushAll | FlushExpired | Delete) -> Answer:
        self._context.check_writable()
        collection = self._context.collection
        match command:
            case Flush(name):
                collection.flush(name)
            case FlushAll():
                collection.flush_all()
            case Delete(name):
                collection.delete(name)
            case FlushExpired(None):
                collection.flush_all_expired()
                return _DONE, tuple(collection.queues.values())
            case FlushExpired(str(name)):
                collection.flush_expired(name)
                return _DONE, collection.queues.get(name)
        return _DONE, None
