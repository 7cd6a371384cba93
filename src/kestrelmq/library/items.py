"""Items as users of the library see them."""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from kestrelmq.arguments import given_number, given_time
from kestrelmq.format.notes import DeadLetter, dead_letter
from kestrelmq.format.records import Item as QueueItem
from kestrelmq.format.records import item_add_time, item_data, item_deliveries, item_expiry

Expiry = float | timedelta | datetime | None
"""When an item expires: seconds from now, a `datetime` with a time zone, or never (None)."""

LONGEST_TIME: Final = 1e9
"""Seconds that a read may be held back or extended by, and that a wait may be limited to."""
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
        dead_letter: where it came from, when it died and why, if it is a dead letter; likewise.
    """

    data: bytes
    add_time: int
    expiry: int | None
    xid: int = 0
    deliveries: int = field(default=0, compare=False)
    dead_letter: DeadLetter | None = field(default=None, compare=False)

    @classmethod
    def of(cls, one: QueueItem, xid: int) -> "Item":
        """Make an item from the one that the queue holds."""
        return cls(
            item_data(one),
            item_add_time(one),
            item_expiry(one) or None,
            xid,
            item_deliveries(one),
            dead_letter(one),
        )


def longest_wait(timeout: float | None) -> float | None:
    """Return for how many seconds to wait; None for as long as it takes.

    Raises ValueError: `timeout` is not a number.
    """
    if timeout is None:
        return None
    seconds = given_number(timeout, "a timeout")
    if math.isnan(seconds):
        raise ValueError("a timeout is a number of seconds")
    return seconds if seconds <= LONGEST_TIME else None


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
