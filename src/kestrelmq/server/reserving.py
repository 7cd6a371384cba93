"""Reserving items, possibly with a wait on several queues; for the commands of every protocol.

`PendingReserve` ends in exactly one of three ways:

    ReserveHandler.answer       with the reservations; none if no time is left
    ReserveHandler.answer_done  the tag is done: its items were finished before
    ReserveHandler.fail         a queue cannot be read, or the tag is refused

What was taken for the answer belongs to the client once the answer was handed to the socket. If the
connection ends before that, or an error had to be sent instead, it is released, uncounted.
"""

import asyncio
import secrets
from typing import Final

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import ReadMode, Waiter
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.journal.reservations import Reservation, ReserveTerms
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.context import ServerContext
from kestrelmq.server.replies import OUTPUT_LIMIT

MAX_OWNERS: Final = 100
"""The most owners that one connection may name."""

Reserved = list[tuple[Queue, Reservation]]
"""Reservations of one request, and their queues."""


class ReserveHandler:
    """What a protocol does with the reservations of a request."""

    def answer(self, reserved: Reserved) -> None:
        """Send the items; there may be none."""
        raise NotImplementedError

    def answer_done(self) -> None:
        """Send that the tag is done."""
        raise NotImplementedError

    def fail(self, error: KestrelError) -> None:
        """Send the error; nothing was reserved."""
        raise NotImplementedError


class PendingReserve(PendingRequest):
    """A request to reserve items of the first of some queues that have any.

    It is answered as soon as there is one item, with all that are there then, up to a number. While
    it waits, it is in the line of each queue, and the connection is paused; input after it ends the
    wait. After the answer the connection is paused until its socket has taken that.

    Attributes:
        is_lost: whether an error was sent instead of the answer.
    """

    __slots__ = (
        "_connection",
        "_context",
        "_count",
        "_deadline",
        "_handler",
        "_is_answered",
        "_names",
        "_taken",
        "_terms",
        "_timer",
        "_waiting",
        "is_lost",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        handler: ReserveHandler,
        names: tuple[str, ...],
        count: int,
        terms: ReserveTerms,
        seconds: float,
    ) -> None:
        """Prepare; `begin` begins it.

        Args:
            connection: the connection of the request.
            context: what the sessions share.
            handler: sends the answer.
            names: the names of the queues, in the order in which they are asked.
            count: the most items.
            terms: for how long and for whom.
            seconds: the longest time to wait, from now on.
        """
        self._connection = connection
        self._context = context
        self._handler = handler
        self._names = names
        self._count = count
        self._terms = terms
        self._deadline = context.loop.time() + seconds
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Queue, Waiter]] = []
        self._taken: Reserved = []
        self._is_answered = self.is_lost = False

    @property
    def queue_name(self) -> str | None:
        """The queue that it reserves items of; None if there are several."""
        return self._names[0] if len(self._names) == 1 else None

    def begin(self) -> None:
        """Answer with what is there, or wait."""
        try:
            self._context.check_readable()
            found = [self._context.queue_to_read(name) for name in self._names]
            queues = [queue for queue in found if queue is not None]
            if not self._try(queues):
                self._wait(queues)
        except KestrelError as error:
            self._fail(error)

    def resume(self) -> None:
        """End the request, because its answer was sent; or begin, after a pause."""
        if not self._is_answered:
            self.begin()
            return
        if self.is_lost:
            self._release()
        self._taken = []
        self._connection.request_done()

    def cancel(self) -> None:
        """Stop waiting, and release what was not sent to the client, which is gone."""
        self._stop_waiting()
        self._release()

    def input_arrived(self) -> None:
        """Answer without an item: the next command ends the wait."""
        self._answer([])

    # --- reserving ---

    def _try(self, queues: list[Queue]) -> bool:
        """Answer if there is something to answer; return whether it was answered.

        Raises:
            KestrelError: a queue cannot be read, or the tag is refused; nothing was reserved.
        """
        tag = self._terms.tag
        if tag:
            for queue in queues:
                queue.check_tag(tag)
            again = [(queue, queue.reserve_again(self._terms)) for queue in queues]
            found = [(queue, one) for queue, one in again if one is not None]
            if found:
                self._answer(found)
                return True
            if any(queue.is_done(tag) for queue in queues):
                self._stop_waiting()
                self._connection.request_done()
                self._handler.answer_done()
                return True
        self._take(queues)
        if self._taken:
            self._answer(self._taken)
        return bool(self._taken)

    def _take(self, queues: list[Queue]) -> None:
        """Reserve items; what was taken is kept if a later queue fails."""
        left, room = self._count, OUTPUT_LIMIT
        for queue in queues:
            try:
                reservation = queue.reserve(self._terms, secrets.randbits(64), left, room)
            except KestrelError:
                if not self._taken:
                    raise
                return
            if reservation is None:
                continue
            self._taken.append((queue, reservation))
            if queue is queues[-1]:
                return
            left -= reservation.left
            room -= sum(
                len(record) - ADDX_HEADER for _, record in queue.reserved_reads(reservation)
            )
            if left <= 0 or room <= 0:
                return

    def _answer(self, reserved: Reserved) -> None:
        """Send the answer, and wait until the socket has it."""
        self._stop_waiting()
        self._is_answered = True
        self._handler.answer(reserved)
        if self._taken:
            self._connection.stall()
            self._connection.resume_later(self)
        else:
            self._connection.request_done()

    def _fail(self, error: KestrelError) -> None:
        self._stop_waiting()
        self._connection.request_done()
        self._handler.fail(error)

    def _release(self) -> None:
        taken, self._taken = self._taken, []
        for queue, reservation in taken:
            xids = [xid for xid, _ in queue.reserved_reads(reservation)]
            queue.give_back(xids, counted=False)

    # --- waiting ---

    def _wait(self, queues: list[Queue]) -> None:
        """Wait for an item; answer if no time is left. Raises QueueUnavailable."""
        remaining = self._deadline - self._context.loop.time()
        if remaining <= 0:
            for queue in queues:
                queue.get_misses += 1
            self._answer([])
        elif self._connection.wait_for_item(self):
            self._timer = self._context.loop.call_later(remaining, self._time_out)
            for queue in queues:
                waiter = Waiter(ReadMode.PEEK, self._item_arrived, self._item_failed)
                queue.wait(waiter)
                self._waiting.append((queue, waiter))

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for queue, waiter in waiting:
            queue.cancel_wait(waiter)

    def _item_arrived(self, record: bytes | None, _xid: int) -> None:
        """Reserve what is there; no `record` means that a queue was deleted."""
        queues = [queue for queue, _ in self._waiting]
        self._stop_waiting()
        try:
            if record is None or not self._try(queues):
                self._answer([])
        except KestrelError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 # it is logged
            self._connection.request_failed(error)

    def _item_failed(self, error: KestrelError) -> None:
        self._connection.guard(lambda: self._fail(error))

    def _time_out(self) -> None:
        self._timer = None
        for queue, _ in self._waiting:
            queue.get_misses += 1
        self._connection.guard(lambda: self._answer([]))


class ConnectionOwners:
    """The owners of reserved reads that a connection has named: it is one of theirs."""

    __slots__ = ("_context", "_names")

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Take note that the client names an owner. Raises QueueUnavailable for too many."""
        if name in self._names:
            return
        if len(self._names) >= MAX_OWNERS:
            raise QueueUnavailable(f"a connection may name {MAX_OWNERS} owners")
        self._names[name] = None
        self._context.collection.owners.connected(name, self._context.turns.clock.monotonic())

    def add_reads(self, counts: dict[str, int]) -> None:
        """Add to `counts` how many reads these owners have, by queue."""
        for name in self._names:
            for queue, count in self._context.collection.owners.reads_of(name).items():
                counts[queue] = counts.get(queue, 0) + count

    def end(self) -> None:
        """Take note that the connection is closed."""
        owners, now = self._context.collection.owners, self._context.turns.clock.monotonic()
        for name in self._names:
            owners.disconnected(name, now)
        self._names.clear()
