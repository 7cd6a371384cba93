"""Adding items, for every protocol, except the small memcache `set` of the hot path.

If the items are delayed, the queues that keep no such items yet begin to, one after the other. A
thread writes large items first, so that other clients need not wait (`WrittenAhead`). Then the
items are added, one slice per turn. A slice is written to the journal before
the next one begins. If a later slice cannot be written, the earlier ones stay and the answer counts
them; if the first cannot, the answer is the error and nothing was added. A crash leaves the slices
that were written, none of them acknowledged.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from kestrelmq.clock import Pause
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.large_items import LargePut, WrittenAhead
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.worker import WRITE_AHEAD_SIZE
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.context import ItemTimes, ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.replies import Queues
from kestrelmq.server.requests.changes import run_job

SLICE_ITEMS: Final = 500
"""The most items of a slice, a copy for each queue; adding so many takes about a millisecond."""
SLICE_BYTES: Final = 1 << 20
"""Bytes of data after which a slice ends."""

_ENDED: Final = object()
"""What `next` returns instead when a generator has ended."""

log = logging.getLogger(__name__)


def prepared(
    context: ServerContext, name: str, times: ItemTimes, mark: PutMark | None = None
) -> LargePut | None:
    """Return what writes a large item ahead for a queue, or for those of an alias, and adds it.

    Raises as `QueueCollection.obtain`; None if there is no queue that gets it.
    """
    collection = context.collection
    if name in collection.queues:
        return _large_put(context, [collection.queues[name]], times, mark)
    collection.loading.check(collection.leaves(name))
    if name not in collection.config.aliases:
        return _large_put(context, [collection.obtain(name)], times, mark)
    queues: list[Queue] = []
    failure: str | None = None
    for leaf in collection.leaves(name):
        try:
            queues.append(collection.obtain(leaf))
        except QueueUnavailable as error:
            failure = str(error)
    return _large_put(context, queues, times, mark, failure) if queues else None


def _large_put(
    context: ServerContext,
    queues: Sequence[Queue],
    times: ItemTimes,
    mark: PutMark | None,
    failure: str | None = None,
) -> LargePut:
    added = times.due or context.turns.clock.now()
    is_delayed = times.due > 0
    parts = [
        WrittenAhead(queue, added, times.expiry, mark, is_delayed=is_delayed) for queue in queues
    ]
    return LargePut(parts, failure)


async def put(
    context: ServerContext, name: str, data: bytes, times: ItemTimes, mark: PutMark | None = None
) -> bool:
    """Do what `QueueCollection.add` does; a thread writes a large item first."""
    if times.due:
        await in_slices(context.collection.beginning_to_delay(name), context.turns)
    large = prepared(context, name, times, mark) if len(data) >= WRITE_AHEAD_SIZE else None
    if large is None:
        return context.collection.add(name, data, times.expiry, due=times.due, mark=mark)
    try:
        await run_job(context, partial(large.write, data))
        return large.add()
    except OSError as error:
        large.writing.refusals.failed += 1
        raise large.writing.failed(error) from error
    finally:
        large.discard()


class PendingPut(PendingRequest):
    """A request to add items to a queue, or to the queues of an alias."""

    __slots__ = (
        "_answer",
        "_beginning",
        "_connection",
        "_context",
        "_is_cancelled",
        "_is_writing",
        "_items",
        "_large",
        "_mark",
        "_name",
        "_next",
        "_place",
        "_record",
        "_refuse",
        "_stops",
        "_stored",
        "_times",
        "_turn",
        "_written",
    )

    def __init__(  # noqa: PLR0913 # the last two concern one protocol each
        self,
        connection: Connection,
        context: ServerContext,
        name: str,
        items: Sequence[bytes | memoryview],
        times: ItemTimes,
        answer: Callable[[int, Queues], None],
        refuse: Callable[[KestrelError], None],
        mark: PutMark | None = None,
        *,
        stops: bool = True,
    ) -> None:
        """Prepare; `begin` or `write_ahead` begins the work.

        Args:
            connection: the connection of the request; its other requests wait for this one.
            context: what the sessions share.
            name: the name of the queue, or of an alias.
            items: the items, in order; large ones may be memoryviews.
            times: when they expire and are due.
            answer: called with the number of items accepted and the queues the reply depends on.
            refuse: called instead, with the error, when no item was accepted.
            mark: that of the only item, if a producer is named.
            stops: whether the first item that is refused ends the put.
        """
        self._mark = mark
        self._stops = stops
        self._connection = connection
        self._context = context
        self._name = name
        self._items = items
        self._times = times
        self._answer = answer
        self._refuse = refuse
        self._next = self._stored = self._written = self._place = 0
        self._turn = -1
        self._is_writing = self._is_cancelled = False
        # Lets queues begin to keep delayed items; None once that is done, or not needed.
        self._beginning: Generator[None, None, None] | None = None
        self._record: bytes | None = None
        self._large: dict[int, LargePut] = {}

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queue, or the alias, that it adds to."""
        return (self._name,)

    def begin(self) -> None:
        """Add the items; a thread writes those of `WRITE_AHEAD_SIZE` bytes or more first."""
        context, name = self._context, self._name
        context.counters.cmd_set += bool(self._items)
        try:
            context.check_writable()
            context.check_client(name, write=True)
        except KestrelError as error:
            self._refuse(error)
            return
        if self._times.due:
            self._beginning = context.collection.beginning_to_delay(name)
            self.resume()
        else:
            self._write_large()

    def _write_large(self) -> None:
        """Have a thread write the large items; add all at once if there are none."""
        places = [place for place, data in enumerate(self._items) if len(data) >= WRITE_AHEAD_SIZE]
        large = {}
        try:
            for place in places:
                one = prepared(self._context, self._name, self._times, self._mark)
                if one is not None:
                    large[place] = one
        except KestrelError as error:
            self._fail(error)
            return
        if large:
            self._write(large)
        else:
            self.resume()  # many requests that create queues, or go to many, take several turns

    def write_ahead(self, queue: Queue, record: bytes) -> bool:
        """Have a thread write `record`, that of the only item, which is large; then add it.

        Returns:
            False if the queues that get it must write it themselves.
        """
        self._record = record
        large = _large_put(self._context, [queue], self._times, self._mark)
        if not large.is_useful:
            return False
        self._write({0: large})
        return True

    def _write(self, large: dict[int, LargePut]) -> None:
        """Have a thread write the large items, by their places; then add all items."""
        self._large = large
        self._is_writing = True
        self._connection.wait_for_work(self)
        self._context.writer.run(self._write_files, self._files_written)

    def _write_files(self, pause: Pause) -> None:
        """Write the large items; runs in the thread. Raises OSError."""
        for place, large in self._large.items():
            self._place = place
            if self._record is None:
                large.write(self._items[place], pause)
            else:
                large.write_record(self._record, pause)

    def _files_written(self, error: BaseException | None) -> None:
        """Add the items, even when the client is gone."""
        self._is_writing = False
        if error is None:
            self._connection.guard(self._add)
        elif isinstance(error, OSError):
            queue = self._large[self._place].writing
            queue.refusals.failed += 1
            self._fail(queue.failed(error))
        else:
            log.error(
                "an item for queue %s was not written",
                self._name,
                exc_info=error,
                extra={"queue": self._name},
            )
            self._fail(KestrelError("internal error"))

    def resume(self) -> None:
        """Do the next step, once the one before is written and this turn has time for it."""
        turns = self._context.turns
        while turns.turn_count != self._turn and not turns.slow_share_is_over():
            if self._beginning is None:
                self._add()
                return
            if next(self._beginning, _ENDED) is _ENDED:
                self._beginning = None
                self._write_large()
                return
        self._connection.yield_turn()
        self._connection.resume_later(self)

    def _add(self) -> None:
        """Add a slice of the items; answer after the last one."""
        connection, first = self._connection, self._next
        try:
            has_more = self._add_slice()
            destinations = self._context.collection.destinations(
                self._name, due=self._times.due, mark=self._mark
            )
            for place in range(first, self._next + 1):
                if place in self._large:  # the alias may have others by now
                    destinations += self._large[place].targets
            queues = tuple(dict.fromkeys(destinations))
            if has_more or first:
                for queue in queues:
                    queue.write_now()
        except KestrelError as error:
            self._fail(error)
            return
        self._written = self._stored
        if not has_more:
            self._finish()
            self._answer(self._stored, queues)
        elif self._is_cancelled:
            self._finish()
        else:
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
        large = self._large.get(self._next)
        if large is not None:
            return large.add()
        times = self._times
        item = bytes(data)  # no copy, but of a memoryview
        return context.collection.add(
            self._name, item, times.expiry, due=times.due, mark=self._mark
        )

    def _fail(self, error: KestrelError) -> None:
        """Answer with the number of items stored so far; if there are none, with the error."""
        self._finish()
        if self._written:
            self._answer(self._written, None)
        else:
            self._refuse(error)

    def cancel(self) -> None:
        """Stop after the current slice.

        If the thread is writing, one slice is added after it. Then the files that it wrote for
        other items are removed.
        """
        self._is_cancelled = True
        if not self._is_writing:
            self._finish()

    def _finish(self) -> None:
        for large in self._large.values():
            large.discard()
        self._connection.request_done()
