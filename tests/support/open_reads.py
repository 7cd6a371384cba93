"""What the open reads of a queue are."""

from kestrelmq.format.records import item_data
from kestrelmq.journal.open_read import OpenRead, Reservation
from kestrelmq.journal.read_table import ReadTable


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
