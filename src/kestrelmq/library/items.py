"""Items as users of the library see them."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kestrelmq.journal.records import item_add_time, item_data, item_deliveries, item_expiry

Expiry = float | timedelta | datetime | None
"""When an item expires: seconds from now, a `datetime` with a time zone, or never (None)."""


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
    def of(cls, record: bytes, xid: int) -> "Item":
        """Make an item from the record that the engine holds."""
        return cls(
            item_data(record),
            item_add_time(record),
            item_expiry(record) or None,
            xid,
            item_deliveries(record),
        )


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
        ValueError: `expiry` is a `datetime` without a time zone.
    """
    match expiry:
        case None:
            return 0
        case datetime():
            if expiry.tzinfo is None:
                raise ValueError("an expiry needs a time zone")
            return round(expiry.timestamp() * 1000)
        case timedelta():
            return now + round(expiry.total_seconds() * 1000)
        case _:
            return now + round(expiry * 1000)
