"""Adding items, for every protocol, except the memcache `set` of the hot path.

A thread makes the records of large items, which copies them. Then the items are added, one slice
per turn. A slice is written to the journal before the next one begins. If a later slice cannot be
written, the earlier ones stay and the answer counts them; if the first cannot, the answer is the
error and nothing was added. A crash leaves the slices that were written, none of them acknowledged.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kestrelmq.clock import Pause
from kestrelmq.errors import JournalError, KestrelError
from kestrelmq.format.records import item_in_pieces
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.adding import Put
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.worker import LARGE_ITEM
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.context import ServerContext
from kestrelmq.server.replies import Queues
from kestrelmq.server.requests.changes import run_job

SLICE_ITEMS: Final = 500
"""The most items of a slice, a copy for each queue; adding so many takes about a millisecond."""
SLICE_BYTES: Final = 1 << 20
"""Bytes of data after which a slice ends."""

log = logging.getLogger(__name__)


async def put(
    context: ServerContext,
    name: str,
    data: bytes,
    expiry: int = 0,
    *,
    due: int = 0,
    mark: PutMark | None = None,
) -> bool:
    """Add an item, as `QueueCollection.add`; a thread copies a large one first."""
    collection = context.collection
    if len(data) < LARGE_ITEM:
        return collection.add(name, data, expiry, due=due, mark=mark)
    records: list[bytes] = []
    added = due or context.turns.clock.now()
    limited = collection.limited_expiry(name, added, expiry)
    await run_job(
        context, lambda pause: records.append(item_in_pieces(added, limited, data, pause))
    )
    return collection.accept(name, Put(records.pop(), is_delayed=due > 0, mark=mark))


class PendingPut(PendingRequest):
    """A request to add items to a queue, or to the queues of an alias."""

    __slots__ = (
        "_answer",
        "_connection",
        "_context",
        "_due",
        "_expiry",
        "_is_cancelled",
        "_is_working",
        "_items",
        "_mark",
        "_name",
        "_next",
        "_records",
        "_refuse",
        "_stops",
        "_stored",
        "_turn",
        "_written",
    )

    def __init__(  # noqa: PLR0913 # the last two concern one protocol each
        self,
        connection: Connection,
        context: ServerContext,
        name: str,
        items: Sequence[bytes | memoryview],
        expiry: int,
        answer: Callable[[int, Queues], None],
        refuse: Callable[[KestrelError], None],
        mark: PutMark | None = None,
        *,
        due: int = 0,
        stops: bool = True,
    ) -> None:
        """Prepare; `begin` begins the work.

        Args:
            connection: the connection of the request; its other requests wait for this one.
            context: what the sessions share.
            name: the name of the queue, or of an alias.
            items: the items, in order; large ones may be memoryviews.
            expiry: when they expire (epoch ms); 0 for never.
            answer: called with the number of items accepted and the queues the reply depends on.
            refuse: called instead, with the error, when no item was accepted.
            mark: that of the only item, if a producer is named.
            due: from when on they wait in the queue (epoch ms); 0 for now.
            stops: whether the first item that is refused ends the put.
        """
        self._mark = mark
        self._stops = stops
        self._connection = connection
        self._context = context
        self._name = name
        self._items = items
        self._expiry = expiry
        self._due = due
        self._answer = answer
        self._refuse = refuse
        self._next = self._stored = self._written = 0
        self._turn = -1
        self._is_working = self._is_cancelled = False
        # The large items, by their places, once a thread has copied them.
        self._records: dict[int, bytes] = {}

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queue, or the alias, that it adds to."""
        return (self._name,)

    def begin(self) -> None:
        """Add the items; a thread copies those of `LARGE_ITEM` bytes or more first."""
        context, name = self._context, self._name
        context.counters.cmd_set += bool(self._items)
        try:
            context.check_writable()
        except KestrelError as error:
            self._refuse(error)
            return
        places = [place for place, data in enumerate(self._items) if len(data) >= LARGE_ITEM]
        if not places:
            self.resume()  # many requests that create queues, or go to many, take several turns
            return
        added = self._due or context.turns.clock.now()
        expiry = context.collection.limited_expiry(name, added, self._expiry)

        def copy(pause: Pause) -> None:
            for place in places:
                self._records[place] = item_in_pieces(added, expiry, self._items[place], pause)

        self._work()
        context.writer.run(copy, self._have_copied)

    def _work(self) -> None:
        """Wait while a thread works for this."""
        self._is_working = True
        self._connection.wait_for_work(self)

    def _have_copied(self, error: BaseException | None) -> None:
        """Add the items, even when the client is gone."""
        self._is_working = False
        if error is None:
            self._connection.guard(self._add)
            return
        log.error(
            "an item for queue %s was not copied",
            self._name,
            exc_info=error,
            extra={"queue": self._name},
        )
        self._fail(KestrelError("internal error"))

    def resume(self) -> None:
        """Do the next step, once the one before is written and this turn has time for it."""
        turns = self._context.turns
        if turns.turn_count != self._turn and not turns.slow_share_is_over():
            self._add()
            return
        self._connection.yield_turn()
        self._connection.resume_later(self)

    def _add(self) -> None:
        """Add a slice of the items; answer after the last one."""
        is_first = not self._next
        try:
            has_more = self._add_slice()
            destinations = self._context.collection.destinations(self._name)
            queues = tuple(dict.fromkeys(destinations))
            if has_more or not is_first:
                for queue in queues:
                    queue.core.write_now()
        except KestrelError as error:
            self._fail(error)
            return
        if (has_more or not is_first) and any(queue.core.is_writing for queue in queues):
            self._work()
            self._context.collection.commits.after_writing(
                queues, partial(self._slice_written, queues, has_more=has_more)
            )
        else:
            self._proceed(queues, has_more=has_more)

    def _slice_written(
        self, queues: tuple[Queue, ...], failure: JournalError | None, *, has_more: bool
    ) -> None:
        """Go on after a slice that took long to be written."""
        self._is_working = False
        if failure is not None:
            self._fail(failure)
        else:
            self._connection.guard(lambda: self._proceed(queues, has_more=has_more))

    def _proceed(self, queues: tuple[Queue, ...], *, has_more: bool) -> None:
        """Answer after the last slice; go on with the next one after any other."""
        self._written = self._stored
        if not has_more:
            self._finish()
            self._answer(self._stored, queues)
        elif self._is_cancelled:
            self._finish()
        else:
            connection = self._connection
            self._turn = self._context.turns.turn_count
            connection.push(b"", queues)  # makes the answer depend on this slice as well
            connection.yield_turn()
            connection.resume_later(self)

    def _add_slice(self) -> bool:
        """Add a slice of items; return whether there are more to add."""
        items, size = self._items, 0
        last = min(self._next + self._slice_items(), len(items))
        while self._next < last and size < SLICE_BYTES:
            data = items[self._next]
            if self._add_item(data):
                self._stored += 1
            elif self._stops:
                return False
            self._next += 1
            size += len(data)
        return self._next < len(items)

    def _slice_items(self) -> int:
        """Return the most items of the next slice: fewer if there are many fanout children."""
        if len(self._items) == 1:
            return 1
        copies = len(self._context.collection.destinations(self._name)) or 1
        return max(1, SLICE_ITEMS // copies)

    def _add_item(self, data: bytes | memoryview) -> bool:
        """Add an item; return False when it is refused."""
        context = self._context
        context.counters.cmd_set += self._next > 0
        record = self._records.pop(self._next, None)
        if record is not None:
            put = Put(record, is_delayed=self._due > 0, mark=self._mark)
            return context.collection.accept(self._name, put)
        item = bytes(data)  # no copy, but of a memoryview
        return context.collection.add(
            self._name, item, self._expiry, due=self._due, mark=self._mark
        )

    def _fail(self, error: KestrelError) -> None:
        """Answer with the number of items stored so far; if there are none, with the error."""
        self._finish()
        if self._written:
            self._answer(self._written, None)
        else:
            self._refuse(error)

    def cancel(self) -> None:
        """Stop after the current slice; if a thread is copying, after the first one."""
        self._is_cancelled = True
        if not self._is_working:
            self._finish()

    def _finish(self) -> None:
        self._connection.request_done()
