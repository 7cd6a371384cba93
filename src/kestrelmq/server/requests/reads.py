"""Reading from a queue, possibly with a wait, and the open reads of a connection.

`PendingRead` takes items for the commands of every protocol. It ends in exactly one of five ways:

    ReadHandler.take is False   the handler needs no more items, or cannot send this one
    ReadHandler.end             there are enough items, or no time is left
    ReadHandler.fail            the queue cannot be read, or not any further
    ReadHandler.give_up         the client sends nothing more, and is perhaps gone
    ReadHandler.cancel          the client is gone
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import chain, islice
from typing import Final

from kestrelmq.errors import KestrelError
from kestrelmq.format.records import ADDX_HEADER, Item, record_of
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.durability import Committable
from kestrelmq.scheduling.worker import run_to_end
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.context import ServerContext
from kestrelmq.server.replies import OUTPUT_LIMIT

MOST_READS_COUNTED: Final = 1000
"""Most open reads of a client that are counted, to be shown: counting takes time."""
_AT_ONCE: Final = 500
"""Reads of a connection that are ended before others are served."""
_CHECK_EVERY: Final = 32
"""Items that are taken between two checks of whether others must be served first."""


class ReadHandler(PendingRequest):
    """What a protocol does with the items of a read."""

    @property
    def takes_all(self) -> bool:
        """Whether `take` is true of every item, so that several may be opened together."""
        return False

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Take an item and its xid (0 unless opened); False ends the read, without `end`."""
        raise NotImplementedError

    def end(self, queue: Queue | None) -> None:
        """Send the answer: there are enough items, or no time is left.

        `queue` is None for an alias.
        """
        raise NotImplementedError

    def fail(self, error: KestrelError) -> None:
        """Send the error: the queue cannot be read, or not any further."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Send the answer that there is no item; `cancel` was called, and the connection closes."""
        self.end(None)

    def cancel(self) -> None:
        """Give back the items opened for an answer that the client, which is gone, did not get."""


class PendingRead(PendingRequest):
    """One read of one queue: up to a number of items and bytes, until a deadline.

    A read that gets its only item at once does not need it. While it waits, the connection is
    paused, so replies keep their order. Readers that have waited longer get their items before it
    takes a second one. Other clients are served between the items of a long read, and nothing is
    taken while the client has too many replies to read.
    """

    __slots__ = (
        "_bytes",
        "_connection",
        "_context",
        "_deadline",
        "_handler",
        "_is_waiting",
        "_left",
        "_mode",
        "_name",
        "_next_check",
        "_queue",
        "_taken",
        "_timer",
        "_waiter",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        handler: ReadHandler,
        name: str,
        mode: ReadMode,
        seconds: float,
        most: int = 1,
        most_bytes: int = sys.maxsize,
    ) -> None:
        """Prepare; `begin` or `wait` begins the read.

        Args:
            connection: the connection of the request.
            context: what the sessions share.
            handler: takes the items and sends the answer.
            name: the name of the queue, or of an alias, which never has items.
            mode: what is done with the items.
            seconds: the longest time to wait, from now on.
            most: the most items to take; if they are removed, all are taken in one turn.
            most_bytes: after so many bytes of data, no more items are taken.
        """
        self._connection = connection
        self._context = context
        self._handler = handler
        self._name = name
        self._mode = mode
        self._deadline = context.loop.time() + seconds
        self._left = most
        self._bytes = most_bytes
        self._taken = 0
        self._next_check = _CHECK_EVERY
        self._is_waiting = False
        self._queue: Queue | None = None
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queue that it reads."""
        return (self._name,)

    def begin(self) -> None:
        """Take the items that are there; then wait for more, yield to others, or answer."""
        try:
            self._context.check_readable()
            if not self._context.has_time_for(self._name):
                self._connection.resume_later(self)
                return
            queue = self._context.collection.obtain_single(self._name)
            if queue is None:
                self.wait(None)
            else:
                self._take_items(queue, None, 0)
        except KestrelError as error:
            self._finish().fail(error)

    def resume(self) -> None:
        """Continue after the client has read its replies, or others have been served."""
        self.begin()

    def _take_items(self, queue: Queue, record: bytes | None, xid: int) -> None:
        """Take items, and wait if more are wanted; `record` is the first one, if already taken.

        Raises:
            KestrelError: the queue cannot be read, or not any further.
        """
        while self._left > 0 and self._bytes > 0:
            if record is None:
                if self._taken and queue.waiters:
                    break
                if (self._taken and self._must_pause()) or not self._prepare_head(queue):
                    self._connection.resume_later(self)
                    return
                if self._open_next(queue):
                    continue
                one, xid = queue.line.take_as(self._mode)
                if one is None:
                    break
                record = record_of(one)
            self._count(record)
            if not self._handler.take(queue, record, xid):
                self._finish()
                return
            record = None
        self.wait(queue)

    def _open_next(self, queue: Queue) -> bool:
        """Take several items that are in memory, if more than one is wanted; False for none."""
        mode = self._mode
        if mode in {ReadMode.REMOVE, ReadMode.PEEK} or self._left == 1:
            return False
        if not self._handler.takes_all:
            return False
        most = min(self._left, _CHECK_EVERY)
        opened = queue.line.open_next(most, min(self._bytes, OUTPUT_LIMIT), mode)
        for xid, record in opened:
            self._count(record)
            self._handler.take(queue, record, xid)
        return bool(opened)

    def _count(self, record: bytes) -> None:
        """Count an item that is taken."""
        self._taken += 1
        self._left -= 1
        self._bytes -= len(record) - ADDX_HEADER

    def _prepare_head(self, queue: Queue) -> bool:
        """Prepare the head to be read; return False if others must be served first."""
        # Items that were removed cannot be given back if the client leaves in between.
        is_removing = self._taken > 0 and self._mode is ReadMode.REMOVE
        return is_removing or self._context.prepare_head(queue)

    def _must_pause(self) -> bool:
        """Whether the client has too many replies to read, or others must be served first.

        Reads that remove items do not yield to others: if the client disconnected during the pause,
        the items could not be given back.
        """
        if self._taken >= self._next_check and self._mode is not ReadMode.REMOVE:
            self._next_check = self._taken + _CHECK_EVERY
            if self._context.turns.slow_share_is_over():
                self._connection.yield_turn()
        return self._connection.must_pause

    def wait(self, queue: Queue | None) -> None:
        """Wait for the next item, or answer when no more are wanted or no time is left.

        `queue` is None for an alias, which never has items.
        """
        self._queue = queue
        remaining = self._deadline - self._context.loop.time()
        if self._left <= 0 or self._bytes <= 0 or remaining <= 0:
            self._finish().end(queue)
        elif self._connection.wait_for_item(self):
            self._is_waiting = True
            self._context.waiting[self] = None
            if self._timer is None:
                self._timer = self._context.loop.call_later(remaining, self._time_out)
            if queue is not None:
                self._waiter = Waiter(self._mode, self._item_arrived, self._item_failed)
                try:
                    queue.waiters.add(self._waiter)
                except KestrelError as error:
                    self._finish().fail(error)

    # --- the ends of a wait ---

    def _item_arrived(self, one: Item | None, xid: int) -> None:
        """Take the item that arrived; None means that the queue was deleted."""
        queue, self._waiter = self._queue, None
        self._is_waiting = False
        try:
            if one is None or queue is None:
                self._finish().end(queue)
            else:
                self._take_items(queue, record_of(one), xid)
        except KestrelError as error:
            self._finish().fail(error)
        except Exception as error:  # noqa: BLE001 # it is logged
            self._connection.request_failed(error)

    def _item_failed(self, error: KestrelError) -> None:
        """Answer that the item that arrived could not be taken."""
        self._connection.guard(lambda: self._finish().fail(error))

    def _time_out(self) -> None:
        """Answer, unless the read is to be resumed; it then checks the deadline itself."""
        self._timer = None
        self.end_wait()

    def end_wait(self) -> None:
        """Answer with what was read so far, if it waits."""
        queue = self._queue
        if self._is_waiting:
            self._connection.guard(lambda: self._finish().end(queue))

    def input_ended(self) -> None:
        """Stop waiting, give back what was not sent to the client, and answer."""
        handler = self._finish()
        handler.cancel()
        handler.give_up()

    def cancel(self) -> None:
        """Stop waiting, and give back what was not sent to the client, which is gone."""
        self._finish().cancel()

    def _finish(self) -> ReadHandler:
        """End the read; return the handler, which must be notified."""
        if self._timer is not None:
            self._timer.cancel()
        if self._queue is not None and self._waiter is not None:
            self._queue.waiters.cancel(self._waiter)
        self._timer = self._waiter = self._queue = None
        self._is_waiting = False
        self._context.waiting.pop(self, None)
        handler, self._handler = self._handler, _NO_HANDLER
        self._connection.request_done()
        return handler


_NO_HANDLER: Final = ReadHandler()
"""The handler of a read that has ended."""


_Read = tuple[Queue, OpenRead]


class ConnectionOpenReads:
    """The open reads of a connection.

    A read that ended by itself (its time was up, or its queue was deleted) is dropped at the next
    access to its queue's reads.

    Attributes:
        by_queue: the reads, by the name of their queue; it has no empty entries.
    """

    __slots__ = ("by_queue",)

    def __init__(self) -> None:
        self.by_queue: dict[str, deque[_Read]] = {}

    def add(self, queue: Queue, read: OpenRead) -> None:
        """Add a read that was just opened."""
        self.by_queue.setdefault(queue.name, deque()).append((queue, read))

    def add_oldest(self, queue: Queue, read: OpenRead) -> None:
        """Add a read that was opened before all others of its queue."""
        self.by_queue.setdefault(queue.name, deque()).appendleft((queue, read))

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

    def most(self, queue: str) -> int:
        """Return how many reads are open on a queue at most: some may have ended by themselves."""
        return len(self.by_queue.get(queue, ()))

    def has_of(self, queues: Sequence[Committable]) -> bool:
        """Whether there is an open read of any of `queues`."""
        some = [name for name, reads in self.by_queue.items() if reads[0][0] in queues]
        return any(map(self.count, some))

    def counts(self) -> dict[str, int]:
        """Return how many of the first `MOST_READS_COUNTED` reads are open, by queue."""
        found: dict[str, int] = {}
        reads = chain.from_iterable(self.by_queue.values())
        for read in islice(reads, MOST_READS_COUNTED):
            if _is_open(read):
                name = read[0].name
                found[name] = found.get(name, 0) + 1
        return found

    def first_xids(self, queue: str) -> list[int]:
        """Return the xids of those of the first `MOST_READS_COUNTED` reads that are open."""
        reads = islice(self.by_queue.get(queue, ()), MOST_READS_COUNTED)
        return [read[1].xid for read in reads if _is_open(read)]

    def take_oldest(self, queue: str) -> tuple[Queue, int] | None:
        """Remove and return the oldest read open on a queue; None when there is none."""
        reads = self._oldest(queue, 1)
        if reads is None:
            return None
        found, read = reads.popleft()
        if not reads:
            del self.by_queue[queue]
        return found, read.xid

    def take_newest(self, queue: Queue, xid: int) -> bool:
        """Remove the read that was opened last on a queue; return False if that is another one."""
        reads = self.by_queue.get(queue.name)
        if not reads or reads[-1][0] is not queue or reads[-1][1].xid != xid:
            return False
        reads.pop()
        if not reads:
            del self.by_queue[queue.name]
        return True

    def confirm_oldest(self, queue: str, count: int) -> tuple[Queue, ...] | None:
        """Confirm the `count` oldest reads open on a queue; none if there are fewer.

        Returns:
            The queues that the reply depends on; None if no read was confirmed.
        """
        reads = self._oldest(queue, count)
        if reads is None:
            return None
        if not count:
            return ()
        found = reads[0][0]
        found.reads.confirm_all([reads.popleft()[1].xid for _ in range(count)])
        if not reads:
            del self.by_queue[queue]
        return (found,)

    def _oldest(self, queue: str, count: int) -> deque[_Read] | None:
        """Return the reads of a queue if at least the first `count` are open; otherwise None.

        Only so many are looked at, besides those that have ended.
        """
        reads = self.by_queue.get(queue)
        if reads is None:
            return deque() if not count else None
        opened: list[_Read] = []
        while reads and len(opened) < count:
            read = reads.popleft()
            if _is_open(read):
                opened.append(read)
        reads.extendleft(reversed(opened))
        if not reads:
            del self.by_queue[queue]
        return reads if len(opened) == count else None

    def xids(self, queue: str) -> list[tuple[Queue, int]]:
        """Return the queues and xids of the reads open on a queue, oldest first."""
        if not self.count(queue):
            return []
        return [(found, read.xid) for found, read in self.by_queue[queue]]

    def give_back(self, *, counted: bool = True) -> None:
        """Do all of `giving_back`."""
        run_to_end(self.giving_back(counted=counted))

    def giving_back(self, *, counted: bool = True) -> Generator[None, None, None]:
        """Give all reads back; the oldest of a queue becomes its head.

        Yields between short pieces of work.

        Args:
            counted: whether their items were handed out.
        """
        for reads in self.by_queue.values():
            queue = reads[-1][0]  # if another queue had the name before, its reads have ended
            returning = HeldReadsReturn(
                queue, reads, counted=counted, why="its reader disconnected"
            )
            yield from queue.returns.in_pieces(returning)
        self.by_queue.clear()


class PendingConfirm(PendingRequest):
    """A request to confirm the oldest reads of a connection, some in each turn."""

    __slots__ = ("_answer", "_connection", "_left", "_queue", "_reads")

    def __init__(
        self,
        connection: Connection,
        reads: ConnectionOpenReads,
        queue: str,
        count: int,
        answer: Callable[[tuple[Queue, ...] | None], None],
    ) -> None:
        """Prepare; `begin` begins.

        Args:
            connection: the connection of the request.
            reads: its reads.
            queue: the queue's name.
            count: how many reads to confirm; if there are fewer, none is. If there are more than
                `_AT_ONCE` and some have ended by themselves, others are.
            answer: called with the queues that the reply depends on; None if there are fewer reads.
        """
        self._connection = connection
        self._reads = reads
        self._queue = queue
        self._left = count
        self._answer = answer

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queue whose reads it confirms."""
        return (self._queue,)

    def begin(self) -> None:
        """Confirm some or all, unless there are fewer reads."""
        if self._left > self._reads.most(self._queue):
            self._answer(None)
        else:
            self.resume()

    def resume(self) -> None:
        """Confirm some; answer after the last, or if too many of the reads have ended."""
        some = min(self._left, _AT_ONCE)
        touched = self._reads.confirm_oldest(self._queue, some)
        self._left -= some
        if touched is None or not self._left:
            self._connection.request_done()
            self._answer(touched)
            return
        self._connection.push(b"", touched)  # makes the answer depend on these as well
        self._connection.resume_later(self)

    def cancel(self) -> None:
        """End; what was confirmed stays so."""


class HeldReadsReturn:
    """Reads of one queue that readers have, when they are given back.

    Attributes:
        count: how many were given back so far.
    """

    def __init__(
        self,
        queue: Queue,
        reads: deque[_Read],
        *,
        counted: bool = True,
        why: str,
    ) -> None:
        """Prepare.

        Args:
            queue: the queue.
            reads: the reads, by xid; this empties it.
            counted: whether their items were handed out.
            why: the reason, for the log.
        """
        self.count = 0
        self._queue = queue
        self._reads = reads
        self._counted = counted
        self._why = why

    def oldest(self) -> int | None:
        """Return the xid of the oldest that is open; None if very many have ended."""
        reads = self._reads
        for _ in range(min(len(reads), _AT_ONCE)):
            if _is_open(reads[0]):
                return reads[0][1].xid
            reads.popleft()
        return None

    def give_back(self, xids: Sequence[int]) -> None:
        """Give some of them back."""
        # It may serve readers, and recur, before the count is changed.
        given_back = self._queue.returns.give_back(xids, counted=self._counted, why=self._why)
        self.count += given_back

    def give_back_some(self) -> bool:
        """Give back the youngest; return whether there are more."""
        reads = self._reads
        some = [reads.pop() for _ in range(min(len(reads), _AT_ONCE))]
        self.give_back([read[1].xid for read in reversed(some) if _is_open(read)])
        return bool(reads)


def _is_open(read: _Read) -> bool:
    return read[0].reads.is_open(read[1])
