"""What a queue holds, written as the first records of a journal file.

    documented   SAVE_XID, ADD_XID and REMOVE_TENTATIVE for each open read, SAVE_XID, then ADDX ...
    kestrel-2    ADDX and REMOVE_TENTATIVE_XID for each open read, then ADDX ...

Replaying those records on an empty queue gives the contents again. Readers of the documented
dialect disagree about a REMOVE_TENTATIVE after ADD_XID: it takes the xid of its item, or the next
one. So the counter is set to the xid before, and to the last-used one in the end.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from kestrelmq.journal.records import (
    REMOVE_TENTATIVE_RECORD,
    add_xid,
    next_xid,
    remove_tentative_xid,
    save_xid,
    xid_before,
)
from kestrelmq.journal.writer import Dialect

PIECE: Final = 256 << 10
"""Bytes of records that are put together at once: a short time, as long as other threads wait."""


def open_read_records(
    dialect: Dialect, last_xid: int, reads: Iterable[tuple[int, bytes]], *, followed: bool = False
) -> Iterator[bytes]:
    """Yield the records that open `reads` in an empty queue and leave the xid counter right.

    Args:
        dialect: how the xid of a read is said.
        last_xid: the last-used xid.
        reads: the open reads, as xid and item.
        followed: whether records of later times follow in other files. An item that was added
            with ADD_XID keeps its xid when it is opened again, which those records do not know
            of; so the xids then come from the counter.
    """
    if dialect == "kestrel-2":
        for xid, record in reads:
            yield record + remove_tentative_xid(xid)
        return
    taken = dict(reads)
    for xid, record in taken.items():
        # An xid of 0, which no counter gives, may come from the other dialect.
        told = xid or next_xid(0, taken)
        added = record if followed else add_xid(told, record)
        yield save_xid(xid_before(told)) + added + REMOVE_TENTATIVE_RECORD
    yield save_xid(last_xid)


def in_pieces(records: Iterable[bytes]) -> Iterator[bytes]:
    """Join records to pieces of about `PIECE` bytes."""
    source = iter(records)
    count = 64
    while batch := list(islice(source, count)):
        piece = b"".join(batch)
        yield piece
        if len(piece) < PIECE // 2 and count < 4096:
            count *= 2
        elif len(piece) > PIECE and count > 1:
            count //= 2
