"""The operations of a queue, each written once, for threads and for asyncio.

An operation is a coroutine. It changes the queue, and waits, only by the methods of `QueueUse`.
`AsyncPersistentQueue` suspends the task there. `BlockingQueue` blocks the thread instead, so that
its coroutines never suspend, and end in one step (`unsuspended.run`).
"""

from __future__ import annotations  # nested functions would evaluate theirs in each call

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from itertools import count as counting
from typing import Any, Final, TypeVar

from kestrelmq.arguments import given_bytes, given_count, given_number, item_bytes
from kestrelmq.clock import Clock
from kestrelmq.errors import (
    ImportStopped,
    KestrelError,
    LeaseEnded,
    NoDeadLetterQueue,
    TagRefused,
)
from kestrelmq.format.records import Item as QueueItem
from kestrelmq.format.records import item_add_time, item_data, item_expiry
from kestrelmq.idempotent_producers import PutMark, put_mark
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.library.items import (
    LONGEST_TIME,
    Delay,
    Expiry,
    FoundItem,
    FoundItems,
    Item,
    item_times,
    longest_wait,
)
from kestrelmq.protocol.reserving import MAX_RESERVED
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode
from kestrelmq.queues.browsing import Look, Tour
from kestrelmq.queues.searching import READ_BYTES, SEARCHED_ITEMS, Search, matches, page_of
from kestrelmq.tags import parse_tag
from kestrelmq.tools.export_rows import ExportRow, dead_letter_fields, live_rows, to_json

# ruff: noqa: ASYNC109 # a time-out of a wait is an answer here, not an error

T = TypeVar("T")
HeldT = TypeVar("HeldT", bound="Held")

_SHORTEST_LEASE: Final = 0.001
"""Seconds that a read may be reserved for: leases are in milliseconds."""


class Held:
    """An item that is held during a block of `reserve`.

    Attributes:
        item: the item; its read is open.
        is_over: whether it was confirmed or given back.
    """

    def __init__(
        self, item: Item, change: Callable[[Callable[[Queue], bool]], Coroutine[Any, Any, bool]]
    ) -> None:
        """Hold `item`; `change` changes its queue, and returns the result."""
        self.item = item
        self.is_over = False
        self._change = change

    @property
    def data(self) -> bytes:
        """The data that was added."""
        return self.item.data

    @property
    def deliveries(self) -> int:
        """How often the item was handed out before, and came back."""
        return self.item.deliveries

    async def _if_open(self, change: Callable[[Queue], bool]) -> bool:
        """Apply `change` if the read is still open; return False if it is not."""
        xid = self.item.xid
        return await self._change(lambda queue: xid in queue.reads.open and change(queue))

    async def _end(self, change: Callable[[Queue], bool]) -> None:
        """Confirm the item or give it back. Raises ValueError: that was done before."""
        if self.is_over:
            raise ValueError("the item was confirmed or given back before")
        self.is_over = True
        if not await self._if_open(change):
            raise LeaseEnded("the item was given back before, or its queue deleted")


class AsyncHeldItem(Held):
    """An item that `reserve` holds during its block."""

    async def finish(self: Held) -> None:
        """Confirm the item now; an error later in the block does not bring it back.

        Raises:
            LeaseEnded: it was given back before, or its queue deleted.
        """
        await self._end(_confirming(self.item.xid))

    async def release(
        self: Held, delay: float | None = None, *, counted: bool = True, dead: bool = False
    ) -> None:
        """Give the item back now, as the queue's `release` does. Raises as `finish`."""
        await self._end(_releasing(self.item.xid, delay, counted=counted, dead=dead))

    async def extend(self: Held, seconds: float) -> bool:
        """Give the item back only `seconds` from now; False if it is not held any more."""
        extend = _extending(self.item.xid, seconds)
        return not self.is_over and await self._if_open(extend)


class QueueUse(ABC):
    """A queue in use, and a way to wait for what is done to it.

    The coroutines of a subclass for threads never suspend.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock

    @abstractmethod
    async def _change(
        self,
        operation: Callable[[Queue], T],
        *,
        creates: bool = True,
    ) -> T:
        """Apply an operation, and wait until its result is durable.

        Args:
            operation: what is done to the queue.
            creates: whether the queue is created if it does not exist; otherwise the operation gets
                one that is empty, and kept nowhere.
        """

    @abstractmethod
    async def _take(self, mode: ReadMode) -> Item | None:
        """Read the head. It is returned even if its sync fails: nobody else would get it."""

    @abstractmethod
    async def _wait(self, mode: ReadMode, timeout: float | None) -> Item | None:
        """Wait up to so many seconds for an item, and read it."""

    @abstractmethod
    def _measure(self, what: Callable[[Queue], int]) -> int:
        """Return a number of the queue, without waiting; as of an empty one if it is missing."""

    @abstractmethod
    async def _next(self, steps: Generator[T, None, None]) -> T | None:
        """Do the next step of a generator that belongs to the queue's owner; None at the end."""

    @abstractmethod
    async def _read(self, look: Look) -> list[QueueItem]:
        """Return the records of the items at which `look` looks. Raises QueueUnavailable."""

    @abstractmethod
    async def _aside(self, work: Callable[[], T]) -> T:
        """Run work that takes long and does not need the queue."""

    async def _put(self, data: bytes, expires: int, due: int, mark: PutMark | None) -> bool:
        """Add an item that expires, and is due, at these times (ms; 0: never, now)."""
        return await self._change(lambda queue: queue.add(data, expires, due, mark))

    @asynccontextmanager
    async def _holding(
        self, timeout: float | None, kind: type[HeldT]
    ) -> AsyncIterator[HeldT | None]:
        """Hold an item as `reserve` does."""
        item = await self._wait(ReadMode.OPEN, timeout)
        if item is None:
            yield None
            return
        held = kind(item, partial(self._change, creates=False))
        try:
            yield held
        except BaseException:
            if not held.is_over:
                with suppress(KestrelError):
                    await AsyncHeldItem.release(held)
            raise
        if not held.is_over:
            await AsyncHeldItem.finish(held)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    def __len__(self) -> int:
        """Number of waiting items, without those of open reads."""
        return self._measure(len)

    def __bool__(self) -> bool:
        """Return True, even if the queue is empty."""
        return True

    @property
    def bytes(self) -> int:
        """Bytes of data in the waiting items."""
        return self._measure(lambda queue: queue.backlog.size)

    @property
    def journal_size(self) -> int:
        """Size of the journal's files in bytes; 0 without a journal."""
        return self._measure(lambda queue: queue.journal.size)


class QueueOperations(QueueUse):
    """The operations of a queue. They need only a `QueueUse`, so `BlockingQueue` has them, too."""

    async def add(
        self: QueueUse,
        data: bytes | str,
        expiry: Expiry = None,
        *,
        delay: Delay = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> bool:
        """Add an item at the end; False if it was refused: the queue is full or the item too large.

        Args:
            data: the data of the item; it may be empty. Text is encoded as UTF-8.
            expiry: seconds from now, a `timedelta`, a `datetime` with a time zone, or None for
                never. Seconds count from when the item is due.
            delay: when the item is due, that is, when it is put at the end; likewise. None is now.
                A thread that waits may get it up to a second late.
            producer: whose item it is, if the add may be repeated: it is stored only if its number
                is above that of the producer's last item, and True is returned in any case.
            sequence: that number.
        """
        item = item_bytes(data)
        expires, due = item_times(expiry, delay, self._clock.now())
        return await self._put(item, expires, due, put_mark(producer, sequence))

    async def peek(self: QueueUse) -> Item | None:
        """Return the item at the head without removing it; None if the queue is empty."""
        return await self._take(ReadMode.PEEK)

    async def remove(self: QueueUse, *, transaction: bool = False) -> Item | None:
        """Remove the item at the head; None if the queue is empty.

        With `transaction`, open a read instead: the item is kept until `confirm_remove` confirms
        it. It goes back to the head with `unremove`, after the `open_transaction_timeout`, or when
        the queue is set up again.
        """
        return await self._take(ReadMode.OPEN if transaction else ReadMode.REMOVE)

    async def unremove(self: QueueUse, xid: int) -> bool:
        """Give the open read `xid` back to the head; False if it is not open."""
        return await self._change(lambda queue: queue.returns.give_back([xid]) == 1, creates=False)

    async def confirm_remove(self: QueueUse, xid: int) -> bool:
        """Confirm the open read `xid`; False if it is not open."""
        return await self._change(_confirming(xid), creates=False)

    async def release(
        self: QueueUse,
        xid: int,
        delay: float | None = None,
        *,
        counted: bool = True,
        dead: bool = False,
    ) -> bool:
        """Give the open read `xid` back; False if it is not open.

        Args:
            xid: the open read.
            delay: seconds until the item may be read again; None for `retry_delay`.
            counted: whether this was a delivery, of those that `max_deliveries` counts.
            dead: whether the item goes to the dead-letter queue at once.

        Raises:
            ValueError: the delay is not a number of seconds from 0 on, or
                there is no dead-letter queue.
        """
        return await self._change(_releasing(xid, delay, counted=counted, dead=dead), creates=False)

    async def extend(self: QueueUse, xid: int, seconds: float) -> bool:
        """Give the open read `xid` back only `seconds` from now; False if it is not open.

        Without `open_transaction_timeout`, and until this is called, a read is open until it ends.

        Raises:
            ValueError: `seconds` is not a number of seconds from 0 on.
        """
        return await self._change(_extending(xid, seconds), creates=False)

    async def consume(
        self: QueueUse, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> AsyncGenerator[Item, None]:
        """Iterate over items, as `PersistentQueue.consume` does.

        When a loop ends early, Python closes an asynchronous iterator late. Use
        `async with contextlib.aclosing(...)`, so that an unconfirmed item goes back at once.
        """
        turns = counting() if max_items is None else range(given_count(max_items, "max_items"))
        for _ in turns:
            async with self._holding(idle_timeout, Held) as held:
                if held is None:
                    return
                yield held.item

    async def reserve_many(
        self: QueueUse,
        count: int,
        lease: float,
        timeout: float | None = 0.0,
        *,
        tag: str = "",
        again: bool = False,
    ) -> list[Item] | None:
        """Reserve up to `count` items for `lease` seconds, with the xids of their open reads.

        They stay reserved when the program ends: after the next `setup` each lease begins anew. A
        read ends by `confirm_remove`, by `release` or `unremove`, or when its lease does; `extend`
        lets that end later. Those of a task that is cancelled here stay reserved until their leases
        end.

        With a `tag`, `NAME:EPOCH:PART`, the step can be repeated, also by the next run of the
        program: while the tag is open, the same items are returned again, with a new lease.
        `finish` ends it.

        Args:
            count: the most items, up to 1000; beyond about 16 MiB it returns fewer.
            lease: how many seconds they are reserved for; 0 is without end.
            timeout: how many seconds to wait for an item; None is for as long as it takes.
            tag: the step that they belong to.
            again: whether only what the tag has already is wanted: nothing is taken, or waited for.

        Returns:
            The items that are there, at least one unless none came; None if the tag is done.

        Raises:
            ValueError: the count or the lease is out of range, or `again` has no tag.
            TagRefused: this is not a tag, or its epoch was retired.
        """
        reserve = _reserving(count, lease, tag, again=again)
        longest = 0.0 if again else longest_wait(timeout)
        deadline = None if longest is None else time.monotonic() + longest
        while True:
            found = await self._change(reserve)
            remaining = None if deadline is None else deadline - time.monotonic()
            if found != [] or (remaining is not None and remaining <= 0):
                return found
            await self._wait(ReadMode.PEEK, remaining)

    async def finish(self: QueueUse, tag: str) -> int:
        """Confirm the items of a tag, which is done then; return how many, also when repeated.

        Raises:
            TagRefused: this is not a tag, or its epoch was retired.
        """
        _check_tag(tag)
        return await self._change(lambda queue: queue.reserved.finish(tag), creates=False)

    async def retire(self: QueueUse, name: str, epoch: int) -> int:
        """Forget the tags of `name` up to an epoch, and refuse them from now on; return how many.

        The items of those that are open go back, and that was no delivery. A name is forgotten 30
        days after the last time.

        Raises:
            TagRefused: no tag can have this name or epoch.
        """
        _check_text(name, "the name of a tag")
        parse_tag(f"{name}:{epoch}:0")
        return await self._change(lambda queue: queue.reserved.retire(name, epoch))

    async def wait_remove(
        self: QueueUse, timeout: float | None = None, *, transaction: bool = False
    ) -> Item | None:
        """Remove an item, as `remove`, after a wait; None if none came in `timeout` seconds.

        Readers are served in the order in which they began to wait. With a `timeout` of None the
        wait is unlimited; if the queue is closed meanwhile, it ends with QueueUnavailable.
        """
        return await self._wait(ReadMode.OPEN if transaction else ReadMode.REMOVE, timeout)

    async def wait_peek(self: QueueUse, timeout: float | None = None) -> Item | None:
        """Return the head, as `peek`, after a wait for it; see `wait_remove`."""
        return await self._wait(ReadMode.PEEK, timeout)

    async def browse(self: QueueUse, offset: int = 0, count: int = 100) -> list[Item]:
        """Return up to `count` items from `offset` on, which stay in the queue; 0 is the head.

        They are the waiting items, in memory or on disk, the expired ones too until they are
        dropped. What is read or added meanwhile may move them by some places. Items on disk are
        read without holding up others; a task that is cancelled meanwhile waits for that to end.

        Raises:
            ValueError: a number is below 0.
        """
        _check_part(offset, count)
        look = await self._change(
            lambda queue: Look(queue, offset, count, sys.maxsize), creates=False
        )
        return [Item.of(record, 0) for record in await self._read(look)]

    async def search(
        self: QueueUse,
        text: str | bytes | None = None,
        *,
        pattern: str | bytes | None = None,
        offset: int = 0,
        count: int = 100,
    ) -> FoundItems:
        """Return up to `count` items from `offset` on that have `text`, or a match of `pattern`.

        They stay in the queue. One search looks at 10,000 items, or about 16 MiB, so go on from its
        `next_offset`, even if it found nothing, until that is None. A pattern is a regular
        expression on bytes, which a process of its own evaluates, for 5 seconds at most.

        Raises:
            ValueError: not exactly one of the two is given, or a number is below 0.
            PatternRefused: the pattern is no regular expression, or takes too long.
        """
        wanted = pattern if text is None else text
        if (text is None) == (pattern is None) or not wanted:
            raise ValueError("give either a text or a pattern, and not an empty one")
        _check_part(offset, count)
        search = Search(given_bytes(wanted, "what to search for"), is_pattern=text is None)
        look = await self._change(
            lambda queue: Look(queue, offset, SEARCHED_ITEMS, READ_BYTES), creates=False
        )
        records = await self._read(look)
        places = await self._aside(lambda: matches(search, records))
        page = page_of(look, places, count)
        found = [FoundItem(place, Item.of(record, 0)) for place, record in page.items]
        return FoundItems(found, page.next_offset)

    async def export(self: QueueUse) -> AsyncGenerator[str, None]:
        """Iterate over the waiting items as lines of JSON, as `PersistentQueue.export` does."""
        looks = await self._change(lambda queue: Tour(queue).looks(), creates=False)
        place = 0
        with closing(looks):
            while (look := await self._next(looks)) is not None:
                for record in await self._read(look):
                    row = ExportRow(
                        self._name,
                        place,
                        item_data(record),
                        item_add_time(record),
                        item_expiry(record),
                        dead_letter=dead_letter_fields(record),
                    )
                    yield to_json(row)
                    place += 1

    async def import_items(self: QueueUse, lines: Iterable[str | bytes]) -> int:
        """Add the items of lines of JSON, as `export` returns them; return how many.

        They keep their expiry, but not the time when they were added. Those that have expired are
        left out; those that are not due are delayed.

        Raises:
            ImportStopped: a line is wrong, or an item was refused; those before it are added.
        """
        added, stored = 0, True
        try:
            for row in live_rows(lines, self._name, self._clock.now):
                stored = await self._put(row.data, row.expiry, row.due, None)
                if not stored:
                    break
                added += 1
        except KestrelError as error:
            raise ImportStopped(str(error), added) from error
        if not stored:
            raise ImportStopped(f"queue {self._name} is full, or the item is too large", added)
        return added

    async def flush(self: QueueUse) -> int:
        """Drop all waiting items, but not those of open reads; return how many there were."""
        return await self._change(lambda queue: queue.flush(), creates=False)


def _confirming(xid: int) -> Callable[[Queue], bool]:
    """Return a function that confirms an open read; it returns False if that is not open."""
    return lambda queue: queue.reads.confirm(xid, kept=True)


def _releasing(
    xid: int, delay: float | None, *, counted: bool, dead: bool
) -> Callable[[Queue], bool]:
    """Return a function that gives an open read back; it returns False if that is not open.

    Both raise ValueError as `release` does.
    """
    if delay is not None and not 0 <= given_number(delay, "the delay") <= LONGEST_TIME:
        raise ValueError(f"the delay must be from 0 to {LONGEST_TIME:.0f} seconds")

    def release(queue: Queue) -> bool:
        if dead and xid in queue.reads.open and queue.config.dead_letter_queue is None:
            raise NoDeadLetterQueue(f"queue {queue.name} has no dead_letter_queue")
        why = "it was released"
        given_back = queue.returns.give_back(
            [xid], counted=counted, why=why, delay=delay, is_dead=dead
        )
        return given_back == 1

    return release


def _extending(xid: int, seconds: float) -> Callable[[Queue], bool]:
    """Return a function that extends an open read; it returns False if that is not open.

    Raises ValueError as `extend` does.
    """
    if not 0 <= given_number(seconds, "an extension") <= LONGEST_TIME:
        raise ValueError(f"a read is extended by 0 to {LONGEST_TIME:.0f} seconds")
    return lambda queue: queue.reads.extend(xid, seconds)


def _reserving(
    count: int, lease: float, tag: str, *, again: bool
) -> Callable[[Queue], list[Item] | None]:
    """Return a function that reserves items; it returns None if the tag is done.

    Both raise what `reserve_many` does.
    """
    if not 1 <= given_count(count, "a number of items") <= MAX_RESERVED:
        raise ValueError(f"1 to {MAX_RESERVED} items are reserved at once")
    if given_number(lease, "a lease") != 0 and not _SHORTEST_LEASE <= lease <= LONGEST_TIME:
        raise ValueError(f"a lease is 0, or from a millisecond to {LONGEST_TIME:.0f} seconds")
    if again and not tag:
        raise ValueError("again needs a tag")
    if tag:
        _check_tag(tag)
    terms = ReserveTerms(round(lease * 1000), tag=tag)

    def reserve(queue: Queue) -> list[Item] | None:
        reservation = queue.reserved.again(terms) if tag else None
        if reservation is None:
            if queue.reserved.is_done(tag):
                return None
            if again:
                return []
            nonce = int.from_bytes(os.urandom(8))
            reservation = queue.reserved.reserve(terms, nonce, count, READ_BYTES)
        if reservation is None:
            return []
        xids, records = queue.reserved.reads_of(reservation)
        return [Item.of(record, xid) for xid, record in zip(xids, records, strict=True)]

    return reserve


def _check_text(given: object, what: str) -> None:
    """Raise TagRefused: it is not text."""
    if not isinstance(given, str):
        raise TagRefused(f"{what} is text, not {type(given).__name__}")


def _check_tag(tag: str) -> None:
    """Raise TagRefused: it is not a tag."""
    _check_text(tag, "a tag")
    parse_tag(tag)


def _check_part(offset: int, count: int) -> None:
    """Raise ValueError or TypeError: no part of a queue can have this offset and size."""
    given_count(offset, "an offset")
    given_count(count, "a number of items")
