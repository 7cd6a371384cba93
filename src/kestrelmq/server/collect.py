"""Reading from a queue: the one read that may wait, and what a connection holds open.

`Collect` takes items for every protocol and command. It ends in exactly one of four ways:

    Reader.take says so   the reader has what it wants, or cannot send what it got
    Reader.end            there are enough items, or no time is left
    Reader.fail           the queue cannot be read, or no more of it
    Reader.cancel         the client is gone
"""

import asyncio
import sys
from collections import deque
from typing import Final

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Waiter, Wanted
from kestrelmq.errors import KestrelError
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.server.connection import Connection, Unfinished
from kestrelmq.server.context import ServerContext

_LOOK_AGAIN: Final = 32
"""Items that are taken before others may have to be served first."""


class Reader(Unfinished):
    """What a protocol does with the items of a read."""

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Take an item, and its xid (0 unless opened); False ends the read, without `end`."""
        raise NotImplementedError

    def end(self, queue: Queue | None) -> None:
        """Answer: there are enough items, or no time is left; `queue` is None for an alias."""
        raise NotImplementedError

    def fail(self, error: KestrelError) -> None:
        """Answer: the queue cannot be read, or no more of it."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Give back what was opened for an answer that the client did not get; it is gone."""


class Collect(Unfinished):
    """One read of one queue: up to a number of items and bytes, until a deadline.

    A read that finds its item at once needs none. While it waits, the connection is paused, and so
    replies keep their order. Readers who have waited longer are served before it takes a second
    item, others are served between the items of a long read, and nothing is taken while the client
    has too much to read.
    """

    __slots__ = (
        "_bytes",
        "_connection",
        "_context",
        "_deadline",
        "_is_waiting",
        "_left",
        "_name",
        "_queue",
        "_reader",
        "_taken",
        "_timer",
        "_waiter",
        "_wanted",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        reader: Reader,
        name: str,
        wanted: Wanted,
        seconds: float,
        most: int = 1,
        most_bytes: int = sys.maxsize,
    ) -> None:
        """Prepare; `begin` or `wait` begins.

        Args:
            connection: whose request it is.
            context: the server's.
            reader: takes the items and answers.
            name: of the queue, or of an alias, which never has an item.
            wanted: what is done with the items.
            seconds: how long to wait at most, from now on.
            most: how many items to take at most; all in one turn if they are removed.
            most_bytes: after how many bytes of data to take no more.
        """
        self._connection = connection
        self._context = context
        self._reader = reader
        self._name = name
        self._wanted = wanted
        self._deadline = context.loop.time() + seconds
        self._left = most
        self._bytes = most_bytes
        self._taken = 0
        self._is_waiting = False
        self._queue: Queue | None = None
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Take what is there; then wait for more, let others be served first, or answer."""
        try:
            self._context.check_readable()
            queue = self._context.queue_to_read(self._name)
            if queue is None:
                self.wait(None)
            else:
                self._collect(queue, None, 0)
        except KestrelError as error:
            self._finish().fail(error)

    def resume(self) -> None:
        """Go on: the client has read what was due, or others were served."""
        self.begin()

    def _collect(self, queue: Queue, record: bytes | None, xid: int) -> None:
        """Take items, the first of which may be at hand; then wait, if there is need.

        Raises:
            KestrelError: the queue cannot be read, or no more of it.
        """
        while self._left > 0 and self._bytes > 0:
            if record is None:
                if self._taken and queue.waiters.line:
                    break
                if self._taken and self._is_interrupted():
                    self._connection.interrupt(self)
                    return
                record, xid = queue.take_as(self._wanted)
                if record is None:
                    break
            self._taken += 1
            self._left -= 1
            self._bytes -= len(record) - ADDX_HEADER
            if not self._reader.take(queue, record, xid):
                self._finish()
                return
            record = None
        self.wait(queue)

    def _is_interrupted(self) -> bool:
        """Whether the client has too much to read, or others are to be served first.

        What was removed could not be given back to the queue if the client left meanwhile.
        """
        if (
            self._taken % _LOOK_AGAIN == 0
            and self._wanted is not Wanted.REMOVE
            and self._context.turns.share_is_over()
        ):
            self._connection.yield_turn()
        return self._connection.is_interrupted

    def wait(self, queue: Queue | None) -> None:
        """Wait for the next item, or answer when no more are wanted or no time is left.

        `queue` is None for an alias, which never has one.
        """
        self._queue = queue
        remaining = self._deadline - self._context.loop.time()
        if self._left <= 0 or self._bytes <= 0 or remaining <= 0:
            self._finish().end(queue)
        elif self._connection.wait(self):
            self._is_waiting = True
            if self._timer is None:
                self._timer = self._context.loop.call_later(remaining, self._time_out)
            if queue is not None:
                self._waiter = Waiter(self._wanted, self._serve, self._fail)
                try:
                    queue.wait(self._waiter)
                except KestrelError as error:
                    self._finish().fail(error)

    # --- what ends a wait ---

    def _serve(self, record: bytes | None, xid: int) -> None:
        """Take the item that came; without one, the queue went away."""
        queue, self._waiter = self._queue, None
        self._is_waiting = False
        try:
            if record is None or queue is None:
                self._finish().end(queue)
            else:
                self._collect(queue, record, xid)
        except KestrelError as error:
            self._finish().fail(error)
        except Exception as error:  # noqa: BLE001 # it is logged
            self._connection.request_failed(error)

    def _fail(self, error: KestrelError) -> None:
        """Answer that the item that came could not be taken."""
        self._connection.guard(lambda: self._finish().fail(error))

    def _time_out(self) -> None:
        """Answer, unless the read goes on when the client has read what is due."""
        self._timer = None
        queue = self._queue
        if self._is_waiting:
            self._connection.guard(lambda: self._finish().end(queue))

    def cancel(self) -> None:
        """The client is gone: leave the line, and give back what it was not sent."""
        self._finish().cancel()

    def _finish(self) -> Reader:
        """End the read; return who is to be told."""
        if self._timer is not None:
            self._timer.cancel()
        if self._queue is not None and self._waiter is not None:
            self._queue.waiters.cancel(self._waiter)
        self._timer = self._waiter = self._queue = None
        self._is_waiting = False
        reader, self._reader = self._reader, _NOBODY
        self._connection.done()
        return reader


_NOBODY: Final = Reader()
"""The reader of a read that is over."""


class OpenReads:
    """A connection's open reads.

    A read that ended by itself (its time was up, its queue was deleted) is forgotten when it is
    next looked for.

    Attributes:
        by_queue: the reads, by the name of their queue; no queue without one.
    """

    __slots__ = ("by_queue",)

    def __init__(self) -> None:
        self.by_queue: dict[str, deque[tuple[Queue, int, bytes]]] = {}

    def add(self, queue: Queue, xid: int, record: bytes) -> None:
        """Remember a read that was just opened."""
        self.by_queue.setdefault(queue.name, deque()).append((queue, xid, record))

    def add_oldest(self, queue: Queue, xid: int, record: bytes) -> None:
        """Remember a read that was opened before all others of its queue."""
        self.by_queue.setdefault(queue.name, deque()).appendleft((queue, xid, record))

    def count(self, queue: str) -> int:
        """Return how many reads are open on a queue."""
        reads = self.by_queue.get(queue)
        if reads is None:
            return 0
        if any(not _is_open(read) for read in reads):
            reads = deque(read for read in reads if _is_open(read))
            self.by_queue[queue] = reads
        if not reads:
            del self.by_queue[queue]
        return len(reads)

    def take_oldest(self, queue: str) -> tuple[Queue, int] | None:
        """Return the oldest read open on a queue, and forget it; None when there is none."""
        if not self.count(queue):
            return None
        reads = self.by_queue[queue]
        found, xid, _ = reads.popleft()
        if not reads:
            del self.by_queue[queue]
        return found, xid

    def xids(self, queue: str) -> list[tuple[Queue, int]]:
        """Return the reads open on a queue, oldest first."""
        if not self.count(queue):
            return []
        return [(found, xid) for found, xid, _ in self.by_queue[queue]]

    def give_back(self) -> None:
        """Give every read back; the oldest of a queue ends up at its head."""
        for reads in self.by_queue.values():
            held = [read for read in reads if _is_open(read)]
            if held:
                held[0][0].give_back([xid for _, xid, _ in held])
        self.by_queue.clear()


def _is_open(read: tuple[Queue, int, bytes]) -> bool:
    # The same xid may be open for somebody else by now; the item's object tells.
    queue, xid, record = read
    return queue.open.get(xid) is record
