"""Opening reads of a queue, and what the open ones are."""

from kestrelmq.format.records import item_data, record_of
from kestrelmq.journal.open_read import OpenRead, Reservation
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode


def open_read(queue: Queue, seconds: float | None = None) -> tuple[int, bytes] | None:
    """Open a read of the head; return its xid and the item's record, or None if there is none.

    It is given back after so many `seconds`; by default, as the queue is set.
    """
    one, xid = queue.line.take_as(ReadMode.OPEN)
    if one is None:
        return None
    if seconds is not None:
        queue.reads.extend(xid, seconds)
    return xid, record_of(one)


def data_by_xid(opened: ReadTable[OpenRead]) -> dict[int, bytes]:
    """Return the data of their items."""
    return {xid: item_data(read.item) for xid, read in opened.items()}


def record_bytes(opened: ReadTable[OpenRead]) -> int:
    """Return the bytes of their items' records."""
    return sum(len(read.record) for read in opened.values())


def reservations(opened: ReadTable[OpenRead]) -> dict[int, Reservation]:
    """Return the reservations of those that are reserved."""
    return {xid: one.reservation for xid, one in opened.items() if one.reservation is not None}


def uncounted(opened: ReadTable[OpenRead]) -> list[int]:
    """Return the xids of those that were no deliveries."""
    return [xid for xid, read in opened.items() if not read.is_counted]
