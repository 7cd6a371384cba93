"""Items as users of the library see them."""

from __future__ import annotations  # nested functions would evaluate theirs in each call

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count as counting
from typing import Final

from kestrelmq.engine.browsing import Look
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.searching import (
    READ_BYTES,
    SEARCHED_ITEMS,
    Search,
    matches,
    page_of,
)
from kestrelmq.errors import ImportStopped, KestrelError, LeaseEnded, TagRefused
from kestrelmq.given_data import given_bytes, given_count, given_number, given_time, item_bytes
from kestrelmq.journal.export_rows import ExportRow, live_rows, to_json
from kestrelmq.journal.records import item_add_time, item_data, item_deliveries, item_expiry
from kestrelmq.journal.reservations import ReserveTerms
from kestrelmq.marks import PutMark, put_mark
from kestrelmq.protocol.reserving import MAX_RESERVED
from kestrelmq.tags import parse_tag

Expiry = float | timedelta | datetime | None
"""When an item expires: seconds from now, a `datetime` with a time zone, or never (None)."""

_LONGEST_TIME: Final = 1e9
"""Seconds that a read may be held back or extended by, and that a wait may be limited to."""
_SHORTEST_LEASE: Final = 0.001
"""Seconds that a read may be reserved for: leases are in milliseconds."""
_LONGEST_EXPIRY: Final = 1e14
"""Seconds until an item is due, or expires; in milliseconds, a journal has room for them."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item that was read.

    Attributes:
        data: the data that was added.
        add_time: when it was added, in milliseconds since the epoch.
        expiry: when it expires, in milliseconds since the epoch; None for never.
        xid: the open read, for `unremove` and `confirm_remove`; 0 if none was opened.
        deliveries: how often it was handed out before, and came back; no part of a comparison.
    """

    data: bytes
    add_time: int
    expiry: int | None
    xid: int = 0
    deliveries: int = field(default=0, compare=False)

    @classmethod
    def of(cls, record: bytes, xid: int) -> Item:
        """Make an item from the record that the engine holds."""
        return cls(
            item_data(record),
            item_add_time(record),
            item_expiry(record) or None,
            xid,
            item_deliveries(record),
        )


class Held:
    """An item that is held during a block of `reserve`.

    Attributes:
        item: the item; its read is open.
        is_over: whether it was confirmed or given back.
    """

    def __init__(self, item: Item) -> None:
        self.item = item
        self.is_over = False

    @property
    def data(self) -> bytes:
        """The data that was added."""
        return self.item.data

    @property
    def deliveries(self) -> int:
        """How often the item was handed out before, and came back."""
        return self.item.deliveries

    def _if_open(self, change: Callable[[Queue], bool]) -> Callable[[Queue], bool]:
        """Return a function that applies `change` if the read is still open, or returns False.

        An item that was given back may be open again, under the same xid. It was handed out once
        more by then.
        """
        item = self.item

        def change_if_open(queue: Queue) -> bool:
            record = queue.open.get(item.xid)
            is_open = record is not None and item_deliveries(record) == item.deliveries
            return is_open and change(queue)

        return change_if_open

    def _end(self) -> None:
        """Take note that it is confirmed or given back now. Raises ValueError if it was before."""
        if self.is_over:
            raise ValueError("the item was confirmed or given back before")
        self.is_over = True


def confirming(xid: int) -> Callable[[Queue], bool]:
    """Return a function that confirms an open read; it returns False if that is not open."""
    return lambda queue: queue.confirm(xid, kept=True)


def releasing(
    xid: int, delay: float | None, *, counted: bool, dead: bool
) -> Callable[[Queue], bool]:
    """Return a function that gives an open read back; it returns False if that is not open.

    Both raise ValueError as `BlockingQueue.release` does.
    """
    if delay is not None and not 0 <= given_number(delay, "the delay") <= _LONGEST_TIME:
        raise ValueError(f"the delay must be from 0 to {_LONGEST_TIME:.0f} seconds")

    def release(queue: Queue) -> bool:
        if dead and queue.config.dead_letter_queue is None:
            raise ValueError(f"queue {queue.name} has no dead_letter_queue")
        why = "it was released"
        given_back = queue.give_back([xid], counted=counted, why=why, delay=delay, is_dead=dead)
        return given_back == 1

    return release


def extending(xid: int, seconds: float) -> Callable[[Queue], bool]:
    """Return a function that extends an open read; it returns False if that is not open.

    Raises ValueError as `BlockingQueue.extend` does.
    """
    if not 0 <= given_number(seconds, "an extension") <= _LONGEST_TIME:
        raise ValueError(f"a read is extended by 0 to {_LONGEST_TIME:.0f} seconds")
    return lambda queue: queue.extend(xid, seconds)


def reserving(count: int, lease: float, tag: str) -> Callable[[Queue], list[Item] | None]:
    """Return a function that reserves items; it returns None if the tag is done.

    Both raise what `BlockingQueue.reserve_many` does.
    """
    if not 1 <= given_count(count, "a number of items") <= MAX_RESERVED:
        raise ValueError(f"1 to {MAX_RESERVED} items are reserved at once")
    if not _SHORTEST_LEASE <= given_number(lease, "a lease") <= _LONGEST_TIME:
        raise ValueError(f"a lease is from a millisecond to {_LONGEST_TIME:.0f} seconds")
    if tag:
        _check_tag(tag)
    terms = ReserveTerms(round(lease * 1000), tag=tag)

    def reserve(queue: Queue) -> list[Item] | None:
        reservation = queue.reserve_again(terms) if tag else None
        if reservation is None:
            if queue.is_done(tag):
                return None
            nonce = int.from_bytes(os.urandom(8))
            reservation = queue.reserve(terms, nonce, count, READ_BYTES)
        if reservation is None:
            return []
        xids, records = queue.reserved_reads(reservation)
        return [Item.of(record, xid) for xid, record in zip(xids, records, strict=True)]

    return reserve


def finishing(tag: str) -> Callable[[Queue], int]:
    """Return a function that finishes the reads of a tag. Raises TagRefused: it is no tag."""
    _check_tag(tag)
    return lambda queue: queue.finish(tag)


def _check_tag(tag: object) -> None:
    """Raise TagRefused: it is no tag."""
    if not isinstance(tag, str):
        raise TagRefused(f"a tag is text, not {type(tag).__name__}")
    parse_tag(tag)


def retiring(name: str, epoch: int) -> Callable[[Queue], int]:
    """Return a function that retires tags. Raises TagRefused: no tag can have these parts."""
    given: object = name
    if not isinstance(given, str):
        raise TagRefused(f"the name of a tag is text, not {type(given).__name__}")
    parse_tag(f"{name}:{epoch}:0")
    return lambda queue: queue.retire(name, epoch)


def longest_wait(timeout: float | None) -> float | None:
    """Return for how many seconds to wait; None for as long as it takes.

    Raises ValueError: `timeout` is not a number.
    """
    if timeout is None:
        return None
    seconds = given_number(timeout, "a timeout")
    if math.isnan(seconds):
        raise ValueError("a timeout is a number of seconds")
    return seconds if seconds <= _LONGEST_TIME else None


def turns(max_items: int | None) -> Iterable[int]:
    """Return what to iterate over to do something so many times, or for ever. Raises ValueError."""
    return counting() if max_items is None else range(given_count(max_items, "max_items"))


def looking(offset: int, count: int) -> Callable[[Queue], Look]:
    """Return a function that begins a `browse`. Raises ValueError: a number is below 0."""
    given_count(offset, "an offset")
    given_count(count, "a number of items")
    return lambda queue: Look(queue, offset, count, sys.maxsize)


@dataclass(frozen=True, slots=True)
class FoundItem:
    """An item that a search found: its place in the queue, where 0 is the head, and the item."""

    place: int
    item: Item


@dataclass(frozen=True, slots=True)
class FoundItems:
    """What a search found, and the offset to go on from; None at the end of the queue."""

    items: list[FoundItem]
    next_offset: int | None


def searching(
    text: str | bytes | None, pattern: str | bytes | None, offset: int, count: int
) -> tuple[Search, Callable[[Queue], Look]]:
    """Return what to search for, and a function that begins to look at items. Raises ValueError."""
    wanted = pattern if text is None else text
    if (text is None) == (pattern is None) or not wanted:
        raise ValueError("give either a text or a pattern, and not an empty one")
    given_count(offset, "an offset")
    given_count(count, "a number of items")
    search = given_bytes(wanted, "what to search for")
    return Search(search, is_pattern=text is None), lambda queue: Look(
        queue, offset, SEARCHED_ITEMS, READ_BYTES
    )


def found_page(search: Search, look: Look, offset: int, count: int) -> FoundItems:
    """Search what was looked at, which may take long. Raises PatternRefused."""
    places = matches(search, look.records)
    page = page_of(look.total, offset, look.records, places, count)
    found = [FoundItem(place, Item.of(record, 0)) for place, record in page.items]
    return FoundItems(found, page.next_offset)


def exported(name: str, place: int, records: Sequence[bytes]) -> list[str]:
    """Return items as lines of JSON; `place` is that of the first in the queue `name`."""
    items = ((number, Item.of(record, 0)) for number, record in enumerate(records, place))
    rows = (
        ExportRow(name, number, one.data, one.add_time, one.expiry or 0) for number, one in items
    )
    return list(map(to_json, rows))


def check_held(*, ended: bool) -> None:
    """Raise LeaseEnded unless an open read was `ended`."""
    if not ended:
        raise LeaseEnded("the item was given back before, or its queue deleted")


Adding = tuple[Callable[[Queue], bool], Callable[[Queue], Iterable[Queue]]]
"""A function that adds an item, and one that tells on whose journals the answer depends."""


class Import:
    """The items of lines of JSON, while they are added to a queue.

    Attributes:
        added: how many were added so far.
        is_refused: whether the last one was refused; none is yielded after that.
    """

    def __init__(self, rows: Iterator[ExportRow]) -> None:
        """Begin with these rows."""
        self.added = 0
        self.is_refused = False
        self._rows = rows

    def __iter__(self) -> Iterator[Adding]:
        """Yield what adds each, as `adding` does, before a call of `count`. Raises KestrelError."""
        for row in self._rows:
            yield _adding_at(row.data, row.expiry, row.due, None)
            if self.is_refused:
                return

    def count(self, *, stored: bool) -> None:
        """Take note of whether an item was added."""
        self.added += stored
        self.is_refused = not stored


@contextmanager
def importing(name: str, lines: Iterable[str | bytes], now: Callable[[], int]) -> Iterator[Import]:
    """Yield what is to be added to the queue `name`. Raises ImportStopped: not all of it was."""
    found = Import(live_rows(lines, name, now))
    try:
        yield found
    except KestrelError as error:
        raise ImportStopped(str(error), found.added) from error
    if found.is_refused:
        raise ImportStopped(f"queue {name} is full, or the item is too large", found.added)


Delay = float | timedelta | datetime | None
"""When an item is due: seconds from now, a `datetime` with a time zone, or at once (None)."""


def item_times(expiry: Expiry, delay: Delay, now: int) -> tuple[int, int]:
    """Return when an item expires, 0 for never, and when it is due, 0 for now (ms).

    An expiry in seconds counts from when it is due. Raises ValueError as `expiry_time`.
    """
    due = expiry_time(delay, now)
    if due <= now:
        due = 0
    return expiry_time(expiry, due or now), due


def expiry_time(expiry: Expiry, now: int) -> int:
    """Return `expiry` as milliseconds since the epoch; 0 for never.

    Raises:
        ValueError: `expiry` is a `datetime` without a time zone, or too far away.
    """
    match expiry:
        case None:
            return 0
        case datetime():
            return max(1, round(given_time(expiry) * 1000))  # a past one must not become never
        case timedelta():
            seconds = expiry.total_seconds()
        case _:
            seconds = given_number(expiry, "an expiry or a delay")
    if not abs(seconds) <= _LONGEST_EXPIRY:
        raise ValueError(f"an expiry or a delay is at most {_LONGEST_EXPIRY:.0f} seconds")
    return max(1, now + round(seconds * 1000))


def adding(  # those of `add`
    data: bytes | str,
    expiry: Expiry,
    delay: Delay,
    producer: str | None,
    sequence: int | None,
    now: int,
) -> Adding:
    """Return a function that adds an item.

    The parameters are those of `PersistentQueue.add`, and the time (ms), and so are the errors.
    """
    item = item_bytes(data)
    expires, due = item_times(expiry, delay, now)
    return _adding_at(item, expires, due, put_mark(producer, sequence))


def _adding_at(data: bytes, expires: int, due: int, mark: PutMark | None) -> Adding:
    """Return how to add an item that expires, and is due, at these times (ms; 0: never, now)."""
    return (
        lambda queue: queue.put(data, expires, due, mark),
        lambda queue: queue.written_by(due, mark),
    )


def alone(queue: Queue) -> tuple[Queue, ...]:
    """Return the queue alone: on its journal most results depend."""
    return (queue,)
