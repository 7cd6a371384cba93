"""Reserving items, possibly with a wait on several queues, and ending that; for every protocol.

`PendingReserve` ends in exactly one of three ways:

    ReserveHandler.answer       with the reservations; none if no time is left
    ReserveHandler.answer_done  the tag is done: its items were finished before
    ReserveHandler.fail         a queue cannot be read, or the tag is refused

All other requests end in `ReserveHandler.answer_count` or `fail`.

What was taken for the answer belongs to the client once the answer was handed to the socket. If the
connection ends before that, or an error had to be sent instead, it is released, uncounted.

A request comes from a connection, or from a task, as those over HTTP do (`AwaitedRequest`).
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, TypeAlias

from kestrelmq.errors import (
    KestrelError,
    NoDeadLetterQueue,
    QueueUnavailable,
    ReservedMemoryFull,
)
from kestrelmq.format.records import Item, item_size
from kestrelmq.journal.open_read import Reservation, ReserveTerms
from kestrelmq.protocol.reserving import (
    EndsReads,
    Extend,
    ExtendOwner,
    Finish,
    Release,
    Reserve,
    Retire,
    nonce_text,
)
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.context import ServerContext
from kestrelmq.server.replies import OUTPUT_LIMIT, Queues
from kestrelmq.server.requests.changes import wait_until_durable
from kestrelmq.server.requests.reads import MOST_READS_COUNTED

MAX_OWNERS: Final = 100
"""The most owners that one connection may name."""
_terms: Final = lru_cache(1000)(ReserveTerms)
"""The terms of a request: clients repeat them, and the making takes a microsecond."""
_AT_ONCE: Final = 200
"""The most reads of an owner to release in one turn: this takes two or three milliseconds."""

Reserved = list[tuple[Queue, Reservation]]
"""Reservations of one request, and their queues."""


@dataclass(frozen=True, slots=True)
class HeldReads:
    """How much of a queue is reserved: the reads' nonce and number, the bytes of their items."""

    queue: str
    nonce: int
    count: int
    size: int


def held_of(reserved: Reserved) -> list[HeldReads]:
    """Return how much is reserved of each queue."""
    found = []
    for queue, reservation in reserved:
        xids, items = queue.reserved.reads_of(reservation)
        size = sum(map(item_size, items))
        found.append(HeldReads(queue.name, reservation.nonce, len(xids), size))
    return found


Requester: TypeAlias = "Connection | AwaitedRequest"
"""Who made a request: it is told when the request waits, when it is done, and so on."""


class ReserveHandler:
    """What a protocol answers to a request about reserved reads."""

    def answer(self, reserved: Reserved) -> None:
        """Send the items; there may be none."""
        raise NotImplementedError

    def answer_done(self, queues: tuple[Queue, ...]) -> None:
        """Send that the tag is done in `queues`."""
        raise NotImplementedError

    def answer_count(self, count: int, queues: tuple[Queue, ...]) -> None:
        """Send how many reads or tags of `queues` were ended or extended."""
        raise NotImplementedError

    def fail(self, error: KestrelError) -> None:
        """Send the error; nothing was done."""
        raise NotImplementedError


class PendingReserve(PendingRequest):
    """A request to reserve items of the first of some queues that have any.

    It is answered as soon as there is one item, with all that are there then, up to a number. While
    it waits, it is in the line of each queue. A connection is paused meanwhile, and input after the
    request ends the wait; and it is paused after the answer until its socket has taken that.
    """

    __slots__ = (
        "_again",
        "_context",
        "_count",
        "_deadline",
        "_failure",
        "_handler",
        "_is_answered",
        "_is_lost",
        "_leaves_half",
        "_names",
        "_requester",
        "_taken",
        "_terms",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        requester: Requester,
        context: ServerContext,
        handler: ReserveHandler,
        request: Reserve,
    ) -> None:
        """Prepare; `begin` begins it.

        Args:
            requester: who asks.
            context: what the sessions share.
            handler: sends the answer.
            request: what to reserve.
        """
        names = request.queues
        self._requester = requester
        self._context = context
        self._handler = handler
        self._names = names if len(names) == 1 else tuple(dict.fromkeys(names))
        self._count = request.count
        self._terms = _terms(request.lease, request.grace, request.owner, request.tag)
        self._again = request.again
        self._leaves_half = request.nodata
        self._deadline = context.loop.time() + request.timeout / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Queue, Waiter]] = []
        # With the number of the event that began the lease.
        self._taken: list[tuple[Queue, Reservation, int]] = []
        self._failure: str | None = None
        self._is_answered = False
        self._is_lost = False  # an error was sent instead of the answer

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queues that it reserves items of."""
        return self._names

    def begin(self) -> None:
        """Answer with what is there, or wait."""
        try:
            self._context.check_readable()
            queues = self._queues()
            if queues is None or not all(map(self._context.prepare_head, queues)):
                self._requester.resume_later(self)
                return
            if self._try(queues):
                return
            if self._failure is not None:
                raise QueueUnavailable(self._failure)
            self._wait(queues)
        except KestrelError as error:
            self._fail(error)

    def resume(self) -> None:
        """End the request, because its answer was sent; or begin, after a pause."""
        if not self._is_answered:
            self.begin()
            return
        if self._is_lost:
            self._release()
        self._taken = []
        self._requester.request_done()

    def cancel(self) -> None:
        """Stop waiting, and release what was not sent to the client, which is gone."""
        self._stop_waiting()
        if self._is_lost or self._requester.has_unsent:
            self._release()

    def input_arrived(self) -> None:
        """End the wait: the next command does."""
        self._end_wait()

    def input_ended(self) -> None:
        """End the wait: no command follows, and nothing is reserved for a client that is gone."""
        self._end_wait()

    def lose_answer(self, reply: bytes) -> bool:
        """Return whether `reply`, which an error replaces, has the items that were taken here.

        If not, it answers an earlier `reserve`, whose tag was open already: that does not pause the
        connection.
        """
        nonces = [nonce_text(reservation.nonce).encode() for _, reservation, _ in self._taken]
        is_answer = any(nonce in reply for nonce in nonces)
        self._is_lost |= is_answer
        return is_answer

    # --- reserving ---

    def _queues(self) -> list[Queue] | None:
        """Return the queues to ask; those that do not exist are created if items may be taken.

        None if others must be served before all are created.

        But if one cannot be used, they are those before it that exist, and `_failure` is the
        answer if none of them has an item. With a tag all must be usable: it may be open in any.

        Raises as `QueueCollection.obtain` and `ReservedItems.check_tag`; then no queue was created.
        """
        self._failure = None
        existing = []
        for name in self._names:
            try:
                queue = self._context.collection.existing(name)
            except QueueUnavailable as error:
                if self._terms.tag:
                    raise
                self._failure = self._failure or str(error)
                continue
            if queue is not None:
                queue.reserved.check_tag(self._terms.tag)
                if self._failure is None:
                    existing.append(queue)
        if self._failure is not None or self._again:
            return existing
        found: list[Queue] = []
        for name in self._names:
            if not self._context.has_time_for(name):
                return None
            queue = self._context.collection.obtain_single(name)
            if queue is not None:
                found.append(queue)
        return found

    def _try(self, queues: list[Queue]) -> bool:
        """Answer if there is something to answer; return whether it was answered.

        Raises:
            KestrelError: a queue cannot be read, or the tag is refused; nothing was reserved.
        """
        if self._try_tag(queues):
            return True
        if not self._again:
            self._take(queues)
        if self._taken:
            self._answer([(queue, reservation) for queue, reservation, _ in self._taken])
        return bool(self._taken)

    def _try_tag(self, queues: list[Queue]) -> bool:
        """Answer if the tag is open or done; return whether it was answered.

        Raises:
            KestrelError: the tag is retired, or a queue cannot be changed.
        """
        tag = self._terms.tag
        if not tag:
            return False
        for queue in queues:
            queue.reserved.check_tag(tag)
        again = [(queue, queue.reserved.again(self._terms)) for queue in queues]
        found = [(queue, one) for queue, one in again if one is not None]
        if found:
            self._answer(found)
            return True
        done = tuple([queue for queue in queues if queue.reserved.is_done(tag)])
        if done:
            self._stop_waiting()
            self._requester.request_done()
            self._handler.answer_done(done)
        return bool(done)

    def _take(self, queues: list[Queue]) -> None:
        """Reserve items; what was taken is kept if a later queue fails.

        A queue whose reserved items take all the memory they may has none for now: readers who wait
        for it to be read would be locked out of the queues behind it.
        """
        left, room = self._count, OUTPUT_LIMIT
        full: ReservedMemoryFull | None = None
        for queue in queues:
            try:
                nonce = int.from_bytes(os.urandom(8))
                reservation = queue.reserved.reserve(
                    self._terms, nonce, left, room, leaves_half=self._leaves_half
                )
            except ReservedMemoryFull as error:
                full = full or error
                continue
            except KestrelError:
                if not self._taken:
                    raise
                return
            if reservation is None:
                continue
            self._taken.append((queue, reservation, reservation.set_at))
            if queue is queues[-1]:
                return
            left -= reservation.left
            room -= sum(map(item_size, queue.reserved.reads_of(reservation)[1]))
            if left <= 0 or room <= 0:
                return
        if full is not None and not self._taken:
            raise full

    def _answer(self, reserved: Reserved) -> None:
        """Send the answer, and wait until the socket has it."""
        self._stop_waiting()
        self._is_answered = True
        self._handler.answer(reserved)
        if self._taken:
            self._requester.stall()
            self._requester.resume_later(self)
        else:
            self._requester.request_done()

    def _fail(self, error: KestrelError) -> None:
        self._stop_waiting()
        self._requester.request_done()
        self._handler.fail(error)

    def _release(self) -> None:
        """Give back what was not sent; but not if it was sent to another reader of the tag since.

        That one has begun the lease anew, and may be storing the items.
        """
        taken, self._taken = self._taken, []
        for queue, reservation, set_at in taken:
            if reservation.set_at == set_at:
                queue.returns.give_back(queue.reserved.reads_of(reservation)[0], counted=False)

    # --- waiting ---

    def _wait(self, queues: list[Queue]) -> None:
        """Wait for an item; answer if no time is left. Raises QueueUnavailable."""
        remaining = self._deadline - self._context.loop.time()
        if remaining <= 0:
            for queue in () if self._again else queues:
                queue.counts.get_misses += 1
            self._answer([])
        elif self._requester.wait_for_item(self):
            self._context.waiting[self] = None
            self._timer = self._context.loop.call_later(remaining, self._time_out)
            for queue in queues:
                waiter = Waiter(ReadMode.PEEK, self._item_arrived, self._item_failed)
                queue.waiters.add(waiter)
                self._waiting.append((queue, waiter))

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._context.waiting.pop(self, None)
        waiting, self._waiting = self._waiting, []
        for queue, waiter in waiting:
            queue.waiters.cancel(waiter)

    def _item_arrived(self, one: Item | None, _xid: int) -> None:
        """Reserve what is there; None means that a queue was deleted."""
        if not self._waiting:
            return  # another queue served it while this one looked for its head
        queues = [queue for queue, _ in self._waiting]
        self._stop_waiting()
        try:
            if not (self._try_tag(queues) if one is None else self._try(queues)):
                self._answer([])
        except KestrelError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 # it is logged
            self._requester.request_failed(error)

    def _item_failed(self, error: KestrelError) -> None:
        self._requester.guard(lambda: self._fail(error))

    def _time_out(self) -> None:
        self._timer = None
        for queue, _ in self._waiting:
            queue.counts.get_misses += 1
        self.end_wait()

    def end_wait(self) -> None:
        """Answer without an item."""
        self._requester.guard(self._end_wait)

    def _end_wait(self) -> None:
        """Answer without an item.

        But the tag may be open or done by now, if another connection reserves for it, too. To
        answer that there is nothing would let this one finish items that it never got.
        """
        queues = [queue for queue, _ in self._waiting]
        self._stop_waiting()
        try:
            if not self._try_tag(queues):
                self._answer([])
        except KestrelError as error:
            self._fail(error)


def serve_reserved(
    requester: Requester,
    context: ServerContext,
    owners: "ConnectionOwners | None",
    request: Reserve | EndsReads,
    handler: ReserveHandler,
) -> None:
    """Serve a request about reserved reads, perhaps in several turns.

    `owners` are those of the connection, if it comes from one.
    """
    requester.count_slow_request()
    try:
        if not isinstance(request, Reserve):
            _end_reads(requester, context, owners, request, handler)
            return
        if request.owner and owners is not None:
            owners.add(request.owner)
    except KestrelError as error:
        handler.fail(error)
        return
    PendingReserve(requester, context, handler, request).begin()


def _end_reads(
    requester: Requester,
    context: ServerContext,
    owners: "ConnectionOwners | None",
    request: EndsReads,
    handler: ReserveHandler,
) -> None:
    """Serve a request about reads that are reserved. Raises KestrelError."""
    if isinstance(request, ExtendOwner):
        if owners is not None:
            owners.add(request.owner)
        seconds, now = request.milliseconds / 1000, context.turns.clock.monotonic()
        handler.answer_count(context.collection.owners.extend(request.owner, seconds, now), ())
        return
    if isinstance(request, Release) and request.owner:
        everywhere = context.collection.owners.reads_of(request.owner)
        names = [request.queue] if request.queue else list(everywhere)
        found_all = map(context.collection.existing, names)
        queues = [queue for queue in found_all if queue is not None]
        for queue in queues:
            _check_release(context, queue, request)
        _OwnerRelease(requester, queues, request, handler).begin()
        return
    if isinstance(request, Retire):
        found = context.collection.obtain_single(request.queue)
    else:
        found = context.collection.existing(request.queue)
    count = 0 if found is None else _applied(context, found, request)
    handler.answer_count(count, () if found is None else (found,))


def _applied(
    context: ServerContext, queue: Queue, request: Finish | Release | Extend | Retire
) -> int:
    """Carry out a request; return how many reads or tags it ended or extended."""
    match request:
        case Finish(tag=tag) if tag:
            return queue.reserved.finish(tag)
        case Finish():
            xids = queue.reserved.find(request.reads)
            queue.reads.confirm_all(xids)
            return len(xids)
        case Release():
            _check_release(context, queue, request)
            return _release(queue, request, _named(queue, request))
        case Extend():
            return queue.reads.extend_leases(_named(queue, request), request.milliseconds / 1000)
        case Retire(_, name, epoch):
            return queue.reserved.retire(name, epoch)


def _named(queue: Queue, request: Release | Extend) -> Sequence[int]:
    """Return the xids of the reads that a request names, those that are reserved."""
    if request.tag:
        return queue.reserved.with_tag(request.tag)
    return queue.reserved.find(request.reads)


def _check_release(context: ServerContext, queue: Queue, request: Release) -> None:
    """Check that reads can be released as a request says.

    Raises:
        NoDeadLetterQueue: there is no queue for dead letters.
        QueueUnavailable: it is still loading. Otherwise the items would go back to their own queue,
            for every reader, though the client was told that they were released.
    """
    if request.dead:
        target = queue.config.dead_letter_queue
        if target is None:
            raise NoDeadLetterQueue(f"queue {queue.name} has no dead_letter_queue")
        context.collection.loading.check(context.collection.leaves(target))


def _release(queue: Queue, request: Release, xids: Sequence[int]) -> int:
    """Give reads back as a request says; return how many."""
    return queue.returns.give_back(
        xids,
        counted=not request.uncounted,
        why="it was released",
        delay=None if request.delay is None else request.delay / 1000,
        is_dead=request.dead,
    )


class _OwnerRelease(PendingRequest):
    """The release of all reads of an owner in some queues, one after the other, in many turns."""

    __slots__ = (
        "_count",
        "_failure",
        "_giving_back",
        "_handler",
        "_left",
        "_queue",
        "_queues",
        "_request",
        "_requester",
    )

    def __init__(
        self,
        requester: Requester,
        queues: Sequence[Queue],
        request: Release,
        handler: ReserveHandler,
    ) -> None:
        self._requester = requester
        self._queues = tuple(queues)
        self._left = list(queues)
        self._request = request
        self._handler = handler
        self._count = 0

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queue whose reads it releases."""
        return (self._queue.name,)

    def begin(self) -> None:
        """Begin to release them."""
        if self._left:
            self._begin_next()
            self.resume()
        else:
            self._handler.answer_count(0, ())

    def _begin_next(self) -> None:
        self._queue = self._left.pop()
        self._failure = self._queue.core.failure
        self._giving_back = self._queue.returns.in_pieces(self)

    def resume(self) -> None:
        """Release some, unless readers have done that; answer when there are no more."""
        requester, queue = self._requester, self._queue
        is_over = next(self._giving_back, True) is not None
        if is_over and self._left and not self._has_failed:
            self._begin_next()
        elif is_over:
            requester.request_done()
            if self._has_failed and queue.core.failure is not None:
                self._handler.fail(queue.core.failure)
            else:
                self._handler.answer_count(self._count, self._queues)
            return
        requester.yield_turn()
        requester.resume_later(self)

    def oldest(self) -> int | None:
        """Return the xid of the owner's oldest read, unless it goes elsewhere than to the head."""
        if self._has_failed or self._request.dead or self._request.delay:
            return None
        xids = self._queue.reserved.of_owner(self._request.owner, 1)
        return xids[0] if xids else None

    def give_back(self, xids: Sequence[int]) -> None:
        """Release some."""
        released = _release(self._queue, self._request, xids)  # it may serve readers, and recur
        self._count += released
        self._requester.push(b"", self._queue)  # makes the answer depend on it

    def give_back_some(self) -> bool:
        """Release the youngest; return whether there are more."""
        if self._has_failed:
            return False  # what was released is reserved again; the answer tells
        # Those that go to the end of the dead-letter queue do so in their order.
        queue, request = self._queue, self._request
        find = queue.reserved.of_owner if request.dead else queue.reserved.youngest_of_owner
        xids = find(request.owner, _AT_ONCE)
        self.give_back(xids)
        return len(xids) == _AT_ONCE

    @property
    def _has_failed(self) -> bool:
        failure = self._queue.core.failure
        return failure is not None and failure is not self._failure

    def cancel(self) -> None:
        """End; what was released stays so."""
        self._giving_back.close()


class ConnectionOwners:
    """The owners of reserved reads that a connection has named: it is one of theirs."""

    __slots__ = ("_context", "_names")

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Remember an owner that the client named. Raises QueueUnavailable for too many."""
        if name in self._names:
            return
        if len(self._names) >= MAX_OWNERS:
            raise QueueUnavailable(f"a connection may name {MAX_OWNERS} owners")
        self._names[name] = None
        self._context.collection.owners.connected(name, self._context.turns.clock.monotonic())

    def add_reads(self, counts: dict[str, int]) -> None:
        """Add to `counts` how many reads these owners have, by queue; of very many the first."""
        for name in self._names:
            reads = self._context.collection.owners.reads_of(name, MOST_READS_COUNTED)
            for queue, count in reads.items():
                counts[queue] = counts.get(queue, 0) + count

    def first_xids(self, queue: str) -> list[int]:
        """Return the xids of these owners' reads of a queue; of very many only the first."""
        found = self._context.collection.queues.get(queue)
        if found is None:
            return []
        reads = (
            xid for name in self._names for xid in found.reserved.of_owner(name, MOST_READS_COUNTED)
        )
        return list(islice(reads, MOST_READS_COUNTED))

    def end(self) -> None:
        """Let go of all owners: the connection is closed."""
        owners, now = self._context.collection.owners, self._context.turns.clock.monotonic()
        for name in self._names:
            owners.disconnected(name, now)
        self._names.clear()


class AwaitedRequest(ReserveHandler):
    """A request about reserved reads that a task awaits, such as that of an HTTP request.

    To what the request goes through it is what a connection would be, and it hands the answer to
    the task. It does not count as a connection of an owner: leases end when they end, unless a
    connection has named their owner.
    """

    __slots__ = (
        "_context",
        "_count",
        "_ended",
        "_has_input",
        "_is_done",
        "_is_waiting",
        "_pending",
        "_queues",
        "_reserved",
    )

    def __init__(self, context: ServerContext) -> None:
        """Prepare; `reserve` or `end_reads` is to follow."""
        self._context = context
        self._ended: asyncio.Future[None] = context.loop.create_future()
        self._pending: PendingRequest | None = None
        self._queues: tuple[Queue, ...] = ()
        self._reserved: Reserved = []
        self._is_done = self._is_waiting = self._has_input = False
        self._count = 0

    async def reserve(self, request: Reserve) -> Reserved | None:
        """Return what was reserved, which is on disk then; None if the tag is done.

        The task must then call `sent`, or `cancel` if the answer could not be sent.

        Raises:
            ConnectionError: it was cancelled.
            KestrelError: nothing was reserved, or it was released again.
        """
        await self._serve(request)
        return None if self._is_done else self._reserved

    async def end_reads(self, request: EndsReads) -> int:
        """End reads or tags, or extend them; return how many, once that is on disk.

        Raises:
            KestrelError: the request is refused, or could not be written.
        """
        await self._serve(request)
        return self._count

    async def _serve(self, request: Reserve | EndsReads) -> None:
        """Begin, and wait for the answer, and until the disk has what it says."""
        try:
            serve_reserved(self, self._context, None, request, self)
            await self._ended
            await wait_until_durable(self._context, *self._queues)
        except BaseException:
            self.cancel()
            raise

    @property
    def has_unsent(self) -> bool:
        """True: `sent` ends the request once the socket has taken the answer."""
        return True

    def sent(self) -> None:
        """Hear that the socket has taken the answer."""
        if self._pending is not None:
            self._pending.resume()

    def input_arrived(self) -> None:
        """End the wait for an item, if there is or will be one: the client sent a next request."""
        self._has_input = True
        if self._is_waiting and self._pending is not None:
            self.guard(self._pending.input_arrived)

    def cancel(self) -> None:
        """Stop waiting, and release what was not sent to the client, which is gone."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
        if not self._ended.done():
            self._ended.set_exception(ConnectionResetError("the client is gone"))

    # --- the answer ---

    def answer(self, reserved: Reserved) -> None:
        """Hand over the reservations."""
        self._reserved = reserved
        self._queues = tuple([queue for queue, _ in reserved])
        self._end(None)

    def answer_done(self, queues: tuple[Queue, ...]) -> None:
        """Hand over that the tag is done."""
        self._is_done = True
        self._queues = queues
        self._end(None)

    def fail(self, error: KestrelError) -> None:
        """Hand over the error."""
        self._end(error)

    def answer_count(self, count: int, queues: tuple[Queue, ...]) -> None:
        """Hand over how many reads or tags were ended or extended."""
        self._count = count
        self._queues = queues
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    # --- what a request asks of a connection ---

    def wait_for_item(self, request: PendingRequest) -> bool:
        """Keep `request`, which waits for an item."""
        self._pending = request
        self._is_waiting = True
        if self._has_input:
            self._context.loop.call_soon(self.input_arrived)
        return True

    def resume_later(self, request: PendingRequest) -> None:
        """Resume `request` once others have been served; after the answer, when that was sent."""
        self._pending = request
        self._is_waiting = False
        if not self._ended.done():
            self._context.loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._pending is not None:
            self.guard(self._pending.resume)

    def request_done(self) -> None:
        """End the wait: the request was answered."""
        self._pending = None
        self._is_waiting = False

    def guard(self, step: Callable[[], None]) -> None:
        """Call `step`, which continues the request; if it raises, the task gets the exception."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 # the awaiting task gets it
            self.request_failed(error)

    def request_failed(self, error: Exception) -> None:
        """Hand over the exception of a request that was continued."""
        self._end(error)

    def push(self, reply: bytes, queues: Queues) -> None:
        """Nothing to do: the task waits for the queues at the end."""

    def stall(self) -> None:
        """Nothing to do: the task tells when the answer was sent."""

    def yield_turn(self) -> None:
        """Nothing to do: each step is in a turn of its own."""

    def count_slow_request(self) -> None:
        """Nothing to do: a task makes one request."""
