"""The open reads of a queue: items that were taken off the head and are not confirmed yet.

Most were opened by a reader, and give themselves back when its time is up. The others are expired
items that could not be moved to where they expire to; nobody reads them, and they are tried again.
"""

import heapq
from typing import Final

from kestrelmq.journal.memory import OVERHEAD
from kestrelmq.journal.records import (
    ADDX_HEADER,
    REMOVE_TENTATIVE_RECORD,
    NamedItem,
    remove_tentative_xid,
    save_xid,
    xid_before,
)
from kestrelmq.journal.replay import opened_xid
from kestrelmq.journal.writer import Dialect

_SLACK: Final = 64
"""Deadlines of reads that are over, which may be kept besides those of open ones."""


class Reads:
    """The open reads.

    Attributes:
        open: their items by xid.
        last_xid: the last-used xid.
        dialect: that of the records that are written.
        named: xids of those that the journal opens with ADD_XID.
        aside: expired items that wait until they can be moved, by xid; these are open as well.
        aside_bytes: the memory that they take.
        given_back: how many reads were given back at most since the queue came up.
    """

    def __init__(self, last_xid: int, dialect: Dialect) -> None:
        """Begin with no open read."""
        self.open: dict[int, bytes] = {}
        self.last_xid = last_xid
        self.dialect: Dialect = dialect
        self.named: set[int] = set()
        self.aside: dict[int, bytes] = {}
        self.aside_bytes = self.given_back = 0
        # When reads end: monotonic seconds, a number to tell equal times apart, xid and item. Those
        # of reads that are over stay until they are due, or too many.
        self._deadlines: list[tuple[float, int, int, bytes]] = []
        self._sequence = 0

    # --- opening and giving back ---

    def begin(self, record: bytes) -> tuple[int, bytes]:
        """Hold the item `record`, which was the head, open.

        Returns:
            Its xid, and what the journal is to be told.
        """
        last = self.last_xid
        kept = record.xid if isinstance(record, NamedItem) else None
        xid = opened_xid(kept, last, self.open)
        if self.dialect == "kestrel-2":
            told = remove_tentative_xid(xid)
            self.last_xid = xid
        elif kept is not None:
            # It was once added with ADD_XID. Readers of the format may disagree whether such an
            # item keeps its xid when it is opened a second time; set the counter so that it makes
            # no difference.
            told = save_xid(xid_before(xid)) + REMOVE_TENTATIVE_RECORD + save_xid(last)
        else:
            told = REMOVE_TENTATIVE_RECORD
            self.last_xid = xid
        self.open[xid] = record
        return xid, told

    def end(self, xid: int) -> bytes | None:
        """End the read `xid` to give its item back; return that, None if it is not a reader's."""
        if self.aside and xid in self.aside:
            return None
        record = self.open.pop(xid, None)
        if record is not None:
            self.given_back += 1
        return record

    def as_waiting(self, xid: int, record: bytes) -> bytes:
        """Return `record`, which was open under `xid`, as the item to put back on the queue."""
        if xid not in self.named:
            return record
        self.named.discard(xid)
        return NamedItem.of(xid, record)

    # --- deadlines ---

    @property
    def has_deadlines(self) -> bool:
        """Whether some read may have to be given back at a later time."""
        return len(self._deadlines) > 0

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline, which may be that of a read that is over."""
        return self._deadlines[0][0] if self._deadlines else None

    def end_at(self, xid: int, record: bytes, deadline: float) -> None:
        """Let the read `xid` of `record` end at `deadline` (monotonic seconds)."""
        reads = self.open
        if len(self._deadlines) > 2 * len(reads) + _SLACK:
            self._deadlines = [one for one in self._deadlines if reads.get(one[2]) is one[3]]
            heapq.heapify(self._deadlines)
        self._sequence += 1
        heapq.heappush(self._deadlines, (deadline, self._sequence, xid, record))

    def take_overdue(self, now: float) -> list[int]:
        """Return the xids of reads whose deadline is not after `now`, and forget the deadlines.

        A read counts with its last deadline: one that was extended is not overdue by its first.
        They come in the order of their xids: as at a restart, by when they were opened.
        """
        deadlines, reads = self._deadlines, self.open
        due: dict[int, bytes] = {}
        while deadlines and deadlines[0][0] <= now:
            _, _, xid, record = heapq.heappop(deadlines)
            if reads.get(xid) is record:
                due[xid] = record
        if due:
            later = {xid for _, _, xid, record in deadlines if due.get(xid) is record}
            return sorted(xid for xid in due if xid not in later)
        return []

    # --- expired items that are set aside ---

    def set_aside(self, xid: int, record: bytes) -> None:
        """Keep the open item `record` from readers."""
        self.aside[xid] = record
        self.aside_bytes += len(record) - ADDX_HEADER + OVERHEAD

    def forget_aside(self, xid: int) -> None:
        """Set the item `xid` aside no more."""
        self.aside_bytes -= len(self.aside.pop(xid)) - ADDX_HEADER + OVERHEAD

    def clear(self) -> None:
        """Forget all of them."""
        self.open.clear()
        self.aside.clear()
        self.aside_bytes = 0
