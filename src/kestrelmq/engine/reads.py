"""The open reads of a queue: items that were taken off the head and are not confirmed yet.

Most of them were opened by a reader, and are given back when their time is up. Some of those are
reserved: `reservations` knows them, and until when. No reader has the others:

- Expired items that could not be moved to `expire_to_queue`; moving them is tried again.
- Items that were given back and wait for `retry_delay`. For the journal they are still open: it is
  written that they are given back when the delay is over. So a restart cuts the delay short.
"""

import heapq
from collections import deque
from typing import Final

from kestrelmq.engine.reservations import Reservations
from kestrelmq.journal.memory import OVERHEAD
from kestrelmq.journal.records import (
    ADDX_HEADER,
    REMOVE_TENTATIVE_RECORD,
    AnnotatedItem,
    annotated,
    item_deliveries,
    kept_xid,
    remove_tentative_xid,
    save_xid,
    xid_before,
)
from kestrelmq.journal.replay import opened_xid
from kestrelmq.journal.reservations import Reservation, ReservedReads
from kestrelmq.journal.writer import Dialect

_SLACK: Final = 64
"""How many deadlines of ended reads to keep, beyond one for each open read."""
_MOVED_AT_ONCE: Final = 2
"""Deadlines that are checked, while there are too many of ended reads, for each that is set."""
_COLLECTED_AT_ONCE: Final = 10_000
"""Deadlines that are looked at in one go."""
_GIVEN_BACK_AT_ONCE: Final = 500
"""Overdue reads that are given back in one go."""

Deadline = tuple[float, int, int, bytes]
"""Monotonic seconds, a number that orders equal times, xid and item."""


class OpenReads:
    """The open reads.

    Attributes:
        open: their items by xid.
        last_xid: the last-used xid.
        dialect: the dialect of the records that are written.
        named: xids of the open reads that the journal opens with ADD_XID.
        aside: expired items that wait until they can be moved, by xid; they are also in `open`.
        aside_bytes: the memory that the items set aside take.
        retrying: items that wait for their retry delay, by xid; they are also in `open`.
        retrying_bytes: the memory that those take.
        reserved: which reads are reserved, and which tags are over.
        reservations: the leases and owners of those.
        given_back: an upper bound of how many reads were given back since the queue was loaded.
        overdue: the reads that `collect_overdue` found, with their items, and `take_overdue` did
            not return yet, by xid.
    """

    def __init__(
        self, last_xid: int, dialect: Dialect, opened: dict[int, bytes], reserved: ReservedReads
    ) -> None:
        """Start with `opened`, the open reads, which are all reserved."""
        self.open = opened
        self.reserved = reserved
        self.reservations = Reservations(reserved)
        self.last_xid = last_xid
        self.dialect: Dialect = dialect
        self.named: set[int] = set()
        self.aside: dict[int, bytes] = {}
        self.retrying: dict[int, bytes] = {}
        self.aside_bytes = self.retrying_bytes = self.given_back = 0
        # A heap of deadlines. Those of ended reads stay until they are due, or too many: then this
        # heap becomes the old one, which is moved to a new one little by little, without them. Only
        # the last deadline of a read counts; `_last` has the number of that, by xid.
        self._deadlines: list[Deadline] = []
        self._old: list[Deadline] = []
        self._last: dict[int, int] = {}
        self._sequence = 0
        self.overdue: deque[tuple[int, bytes]] = deque()

    # --- opening and giving back ---

    def open_read(self, record: bytes) -> tuple[int, bytes]:
        """Open a read of the item `record`, which was the head.

        Returns:
            The read's xid, and the journal record or records to write.
        """
        last = self.last_xid
        # The records of kestrel-2 say the xid. If it were the one that an item keeps, which may be
        # much older, the last-used xid would go back to that.
        kept = kept_xid(record) if self.dialect == "documented" else None
        xid = opened_xid(kept, last, self.open)
        if self.dialect == "kestrel-2":
            records = remove_tentative_xid(xid)
            self.last_xid = xid
        elif kept is not None:
            # The item was once added with ADD_XID. Readers of the format may disagree whether such
            # an item keeps its xid when it is opened a second time. Set the counter so that both
            # interpretations give the same xid.
            records = save_xid(xid_before(xid)) + REMOVE_TENTATIVE_RECORD + save_xid(last)
        else:
            records = REMOVE_TENTATIVE_RECORD
            self.last_xid = xid
        self.open[xid] = record
        return xid, records

    @property
    def held(self) -> int:
        """How many reads a reader has."""
        return len(self.open) - len(self.aside) - len(self.retrying)

    def is_held(self, xid: int) -> bool:
        """Whether a reader has the read `xid`."""
        return xid in self.open and xid not in self.aside and xid not in self.retrying

    def end(self, xid: int) -> bytes | None:
        """End the read `xid`; return its item, or None if it is not open."""
        record = self.open.pop(xid, None)
        if record is not None and self.retrying and xid in self.retrying:
            self.forget_retrying(xid)
        return record

    def is_open(self, xid: int, record: bytes) -> bool:
        """Whether the read `xid` of the item `record` is open.

        Another read may have got the same xid since it ended, so the items' objects are compared.
        """
        return self.open.get(xid) is record

    def end_reservation(self, xid: int) -> Reservation | None:
        """Take note that the read `xid` has ended; return its reservation, if it was reserved."""
        return self.reservations.end(xid) if self.reserved.by_xid else None

    def as_waiting(self, xid: int, record: bytes, *, counted: bool) -> bytes:
        """Return `record`, which was open under `xid`, as the item to put back on the queue.

        `counted` is whether it was handed out once more.
        """
        kept = xid if xid in self.named else kept_xid(record)
        self.named.discard(xid)
        return annotated(record, xid=kept, deliveries=item_deliveries(record) + counted)

    def release_memory(self) -> None:
        """Give back the memory of tables that are empty now: a dict keeps that of its entries."""
        tables = (self.open, self.aside, self.retrying, self._last, self.reserved.by_xid)
        for table in tables:
            if not table:
                table.clear()

    # --- deadlines ---

    @property
    def has_deadlines(self) -> bool:
        """Whether a read may have to be given back later."""
        return (
            len(self._deadlines) > 0
            or len(self._old) > 0
            or len(self.overdue) > 0
            or self.reservations.has_deadlines
        )

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline (monotonic seconds); it may belong to a read that has ended."""
        if self.overdue:
            return 0.0
        first = self.reservations.next_deadline
        for heap in (self._deadlines, self._old):
            if heap and (first is None or heap[0][0] < first):
                first = heap[0][0]
        return first

    def set_deadline(self, xid: int, record: bytes, deadline: float) -> None:
        """Set the deadline of the read `xid` of `record` (monotonic seconds)."""
        if self._old:
            for _ in range(_MOVED_AT_ONCE):
                self._move_deadline()
        elif len(self._deadlines) > 2 * len(self.open) + _SLACK:
            self._old, self._deadlines = self._deadlines, []
        self._sequence += 1
        self._last[xid] = self._sequence
        heapq.heappush(self._deadlines, (deadline, self._sequence, xid, record))

    def _move_deadline(self) -> None:
        """Move the first deadline of the old heap to the new one, unless its read has ended."""
        if self._old:
            moved = heapq.heappop(self._old)
            if self._last.get(moved[2]) != moved[1]:
                return
            if self.is_open(moved[2], moved[3]):
                heapq.heappush(self._deadlines, moved)
            else:
                del self._last[moved[2]]

    def collect_overdue(self, now: float) -> bool:
        """Look for reads whose deadline is not after `now`; return False if there may be more.

        Only the last deadline of a read counts: one that was extended is not overdue by its first.
        """
        last, before = self._last, len(self.overdue)
        left = _COLLECTED_AT_ONCE
        for heap in (self._deadlines, self._old):
            while heap and heap[0][0] <= now and left:
                left -= 1
                _, number, xid, record = heapq.heappop(heap)
                if last.get(xid) == number:
                    del last[xid]
                    self.overdue.append((xid, record))
        if len(self.overdue) > before:
            self.overdue = deque(sorted(self.overdue))
        return left > 0

    def take_overdue(self, now: float) -> list[int]:
        """Return the xids of some reads that `collect_overdue` found, and of some leases' ends.

        They are the youngest, so that what is given back later, in front of them, is older. They
        are sorted, which is the order in which the reads were opened, as at a restart.
        """
        overdue: list[int] = []
        while self.overdue and len(overdue) < _GIVEN_BACK_AT_ONCE:
            xid, record = self.overdue.pop()
            if self._is_overdue(xid, record):
                overdue.append(xid)
        if self.reserved.by_xid:
            overdue += self.reservations.take_overdue(now)
        return sorted(overdue)

    def oldest_overdue(self) -> int | None:
        """Return the oldest read that `take_overdue` is still to return, if a reader has it.

        None also if very many have ended.
        """
        for _ in range(min(len(self.overdue), _GIVEN_BACK_AT_ONCE)):
            xid, record = self.overdue[0]
            if self._is_overdue(xid, record):
                return xid if self.is_held(xid) else None
            self.overdue.popleft()
        return None

    def _is_overdue(self, xid: int, record: bytes) -> bool:
        """Whether a read that was overdue still is: it was neither ended nor extended."""
        return xid not in self._last and self.is_open(xid, record)

    # --- expired items that are set aside ---

    def set_aside(self, xid: int, record: bytes) -> None:
        """Set the open item `record` aside, so that it is not given back to readers."""
        self.aside[xid] = record
        self.aside_bytes += len(record) - ADDX_HEADER + OVERHEAD

    def forget_aside(self, xid: int) -> None:
        """Remove the item `xid` from those set aside."""
        self.aside_bytes -= len(self.aside.pop(xid)) - ADDX_HEADER + OVERHEAD

    # --- items that wait for their retry delay ---

    def retry_at(self, xid: int, deadline: float) -> None:
        """Hold back the item of the read `xid` until `deadline` (monotonic seconds).

        Its reader, who may still know it, does not have it any more.
        """
        record = self.open[xid]
        # Readers recognise an item that they hold by its object.
        again = AnnotatedItem.of(record, xid=kept_xid(record), deliveries=item_deliveries(record))
        self.open[xid] = self.retrying[xid] = again
        self.retrying_bytes += len(again) - ADDX_HEADER + OVERHEAD
        self.set_deadline(xid, again, deadline)

    def forget_retrying(self, xid: int) -> None:
        """Remove the item `xid` from those that wait for their retry delay."""
        self.retrying_bytes -= len(self.retrying.pop(xid)) - ADDX_HEADER + OVERHEAD

    def clear(self) -> None:
        """Forget all open reads."""
        self.open.clear()
        self.aside.clear()
        self.retrying.clear()
        self._deadlines.clear()
        self._old.clear()
        self.overdue.clear()
        self._last.clear()
        self.reservations.clear()
        self.aside_bytes = self.retrying_bytes = 0
