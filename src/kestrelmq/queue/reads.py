"""The open reads of a queue: items that were taken off the head and are not confirmed yet.

Most of them were opened by a reader, and are given back when their time is up. Some of those are
reserved: `reservations` knows them, and until when. No reader has the others:

- Expired items that could not be moved to `expire_to_queue`; moving them is tried again.
- Items that were given back and wait for `retry_delay`. For the journal they are still open: it is
  written that they are given back when the delay is over. So a restart cuts the delay short.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, cast

from kestrelmq.format.records import (
    ADDX_HEADER,
    MAX_XID,
    REMOVE_TENTATIVE_RECORD,
    another,
    kept_xid,
    remove_tentative_xid,
    save_xid,
    xid_before,
)
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.read_table import NO_READS, ReadTable, own_table
from kestrelmq.journal.replay import opened_xid
from kestrelmq.journal.reserved_reads import Reservation, ReservedReads
from kestrelmq.journal.shared_empty import NOTHING, own
from kestrelmq.journal.writer import Dialect
from kestrelmq.queue.leases import Reservations
from kestrelmq.scheduling.deadline_heap import DeadlineHeap

_COLLECTED_AT_ONCE: Final = 2000
"""Deadlines that are looked at in one go."""
_GIVEN_BACK_AT_ONCE: Final = 500
"""Overdue reads that are given back in one go."""

Deadline = tuple[float, int, int, bytes]
"""Monotonic seconds, a number that orders equal times, xid and item."""


class OpenReads:
    """The open reads.

    Attributes:
        open: their items by xid.
        open_bytes: bytes of those items' records.
        last_xid: the last-used xid.
        dialect: the dialect of the records that are written.
        aside: expired items that wait until they can be moved, by xid; they are also in `open`.
        aside_bytes: the memory that the items set aside take.
        retrying: items that wait for their retry delay, by xid; they are also in `open`.
        retrying_bytes: the memory that those take.
        reserved: which reads are reserved, and which tags are over.
        reservations: the leases and owners of those.
        plain: the reads whose readers asked for no transaction: they are open only until the item
            can be removed. None if there are none.
        given_back: an upper bound of how many reads were given back since the queue was loaded.
        overdue: the reads that `collect_overdue` found, with their items, and `take_overdue` did
            not return yet, by xid.
    """

    def __init__(
        self,
        last_xid: int,
        dialect: Dialect,
        opened: ReadTable[bytes],
        reserved: ReservedReads,
    ) -> None:
        """Start with `opened`, the open reads, which are all reserved."""
        self.hold_all(opened)
        self.reserved = reserved
        self.reservations = Reservations(reserved)
        self.last_xid = last_xid
        self.dialect: Dialect = dialect
        self.plain: set[int] | None = None
        self.aside: dict[int, bytes] = NOTHING
        self.retrying: ReadTable[bytes] = NO_READS
        self.aside_bytes = self.retrying_bytes = self.given_back = 0
        # Only the last deadline of a read counts; `_last` has the number of that, by xid.
        self._deadlines: DeadlineHeap[Deadline] = DeadlineHeap()
        self._last: ReadTable[int] = NO_READS
        self._sequence = 0
        self.overdue: ReadTable[bytes] = NO_READS

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
        if xid == kept:
            # Another server added the item with ADD_XID, and did not open it. For readers of the
            # format that do not know its xid, set the counter so that it is the next one.
            records = save_xid(xid_before(xid)) + REMOVE_TENTATIVE_RECORD + save_xid(last)
            self.forget_deadline(xid)
        else:
            says_xid = self.dialect == "kestrel-2"
            records = remove_tentative_xid(xid) if says_xid else REMOVE_TENTATIVE_RECORD
            self.last_xid = xid
        self.put(xid, record)
        return xid, records

    def hold_all(self, opened: ReadTable[bytes]) -> None:
        """Let these be the open reads."""
        self.open = opened
        self.open_bytes = 0
        for record in opened.values():
            self.open_bytes += len(record)

    def put(self, xid: int, record: bytes) -> None:
        """Let the read `xid` of `record` be open."""
        self.open[xid] = record
        self.open_bytes += len(record)

    def free_xids(self, most: int) -> Sequence[int]:
        """Return the next xids in the documented dialect, at most `most`; a range if all are free.

        They are fewer, perhaps none, before one that is zero, taken or too large.
        """
        first = self.last_xid + 1
        xids = range(first, min(first + most, MAX_XID + 1))
        if first <= 0 < first + most:
            xids = xids[:-first]
        if self.open.has_any(xids):
            return list(takewhile(lambda xid: xid not in self.open, xids))
        return xids

    def put_all(self, xids: Sequence[int], items: list[bytes], size: int) -> None:
        """Open reads of `items`, which have `size` bytes in all, under the first of `free_xids`."""
        self.open.set_all(xids, items)
        self.open_bytes += size
        self.last_xid += len(xids)

    def items_of(self, xids: Sequence[int]) -> list[bytes]:
        """Return the items of open reads."""
        return self.open.get_all(xids)

    @property
    def held(self) -> int:
        """How many reads a reader has."""
        return len(self.open) - len(self.aside) - len(self.retrying)

    def is_held(self, xid: int) -> bool:
        """Whether a reader has the read `xid`."""
        return xid in self.open and xid not in self.aside and xid not in self.retrying

    def end(self, xid: int) -> bytes | None:
        """End the read `xid`; return its item, or None if it is not open."""
        record = self.open.pop(xid)
        if record is not None:
            self.open_bytes -= len(record)
            if len(self.retrying):
                self._forget_retrying(xid)
            if len(self.reserved.uncounted):
                self.reserved.uncounted.pop(xid)
            if self.plain is not None:
                self._forget_plain(self.plain, (xid,))
        return record

    def end_all(self, xids: Sequence[int]) -> tuple[Sequence[int], list[bytes]]:
        """End reads; return those that were open, and their items."""
        before = len(self.open)
        found = self.open.pop_all(xids)
        if len(self.open) > before - len(xids):
            both = zip(xids, found, strict=True)
            xids = [xid for xid, record in both if record is not None]
            ended = [record for record in found if record is not None]
        else:
            ended = cast("list[bytes]", found)
        size = 0
        for record in ended:  # compiled, a tenth of the time of `sum`
            size += len(record)
        self.open_bytes -= size
        if len(self.retrying):
            for xid in xids:
                self._forget_retrying(xid)
        if len(self.reserved.uncounted):
            self.reserved.uncounted.pop_all(xids)
        if self.plain is not None:
            self._forget_plain(self.plain, xids)
        return xids, ended

    # --- reads that are no transactions ---

    def hold_plainly(self, xids: Sequence[int]) -> None:
        """Take note that the readers of these reads asked for no transaction."""
        if self.plain is None:
            self.plain = set()
        self.plain.update(xids)

    def transactions_among(self, xids: Sequence[int]) -> int:
        """Return how many of these reads are transactions."""
        plain = self.plain
        return len(xids) if plain is None else len([xid for xid in xids if xid not in plain])

    def _forget_plain(self, plain: set[int], xids: Sequence[int]) -> None:
        """Take note that reads have ended, which need not be among the `plain` ones."""
        plain.difference_update(xids)
        if not plain:
            self.plain = None

    # --- the items of reads ---

    def is_open(self, xid: int, record: bytes) -> bool:
        """Whether the read `xid` of the item `record` is open.

        Another read may have got the same xid since it ended, so the items' objects are compared.
        """
        return self.open.get(xid) is record

    def end_reservation(self, xid: int) -> Reservation | None:
        """Take note that the read `xid` has ended; return its reservation, if it was reserved."""
        return self.reservations.end(xid) if len(self.reserved.by_xid) else None

    def unused_memory(self) -> list[list[Any]]:
        """Return what is to be freed of tables that are empty now; there may be much."""
        useless = self.reservations.unused_memory()
        if not len(self.open):
            self.open.clear()
            self.overdue.clear()
            if len(self._deadlines):
                useless += self._deadlines.take_all()
            if pages := self._last.take_pages():
                useless.append(pages)
        if not len(self.retrying):
            self.retrying.clear()
        if not len(self.reserved.by_xid):
            self.reserved.by_xid.clear()
        if not self.aside:
            self.aside.clear()
        return useless

    # --- deadlines ---

    @property
    def has_deadlines(self) -> bool:
        """Whether a read may have to be given back later."""
        return len(self._deadlines) > 0 or len(self.overdue) > 0 or self.reservations.has_deadlines

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline (monotonic seconds); it may belong to a read that has ended."""
        if len(self.overdue):
            return 0.0
        first, lease_end = self._deadlines.first, self.reservations.next_deadline
        if first is None or lease_end is None:
            return lease_end if first is None else first
        return min(first, lease_end)

    def set_deadline(self, xid: int, record: bytes, deadline: float) -> None:
        """Set the deadline of the read `xid` of `record` (monotonic seconds)."""
        self._sequence += 1
        self._last = own_table(self._last)
        self._last[xid] = self._sequence
        entry = (deadline, self._sequence, xid, record)
        self._deadlines.push(entry, len(self.open), self._is_awaited)

    def forget_deadline(self, xid: int) -> None:
        """Take note that the deadline of the read `xid`, if it had one, is not that of the next."""
        self._last.pop(xid)

    def _is_awaited(self, entry: Deadline) -> bool:
        """Whether this is the last deadline of an open read."""
        _, number, xid, record = entry
        if self._last.get(xid) != number:
            return False
        if self.is_open(xid, record):
            return True
        self._last.pop(xid)
        return False

    def collect_overdue(self, now: float) -> bool:
        """Look for reads whose time is up `now` (monotonic seconds); False if there may be more.

        Only the last deadline of a read counts: one that was extended is not overdue by its first.
        """
        last, deadlines = self._last, self._deadlines
        for _ in range(_COLLECTED_AT_ONCE):
            first = deadlines.first
            if first is None or first > now:
                break
            _, number, xid, record = deadlines.pop()
            if last.get(xid) == number:
                last.pop(xid)
                self._set_overdue(xid, record)
        else:
            return False
        leases = self.reservations.take_overdue(now) if len(self.reserved.by_xid) else []
        for xid in leases:
            self._set_overdue(xid, self.open[xid])
        return not leases

    def _set_overdue(self, xid: int, record: bytes) -> None:
        self.overdue = own_table(self.overdue)
        self.overdue[xid] = record

    def take_overdue(self, now: float) -> list[int]:
        """Return the xids of some reads that `collect_overdue` found.

        They are the youngest, so that what is given back later, in front of them, is older. They
        are sorted, which is the order in which the reads were opened, as at a restart.
        """
        some = self.overdue.youngest()[-_GIVEN_BACK_AT_ONCE:]
        both = zip(some, self.overdue.pop_all(some), strict=True)
        return [xid for xid, record in both if self._is_overdue(xid, record, now)]

    def oldest_overdue(self, now: float) -> int | None:
        """Return the oldest read that `take_overdue` is still to return, if a reader has it.

        None also if very many have ended.
        """
        for xid in self.overdue.oldest():
            if self._is_overdue(xid, self.overdue[xid], now):
                return xid if self.is_held(xid) else None
            self.overdue.pop(xid)
        return None

    def _is_overdue(self, xid: int, record: bytes | None, now: float) -> bool:
        """Whether a read that was overdue still is: it was neither ended nor extended."""
        if record is None or xid in self._last or not self.is_open(xid, record):
            return False
        return xid not in self.reserved.by_xid or self.reservations.lease_end(xid) <= now

    # --- expired items that are set aside ---

    def set_aside(self, xid: int, record: bytes) -> None:
        """Set the open item `record` aside, so that it is not given back to readers."""
        self.aside = own(self.aside)
        self.aside[xid] = record
        self.aside_bytes += len(record) - ADDX_HEADER + OVERHEAD

    def forget_aside(self, xid: int) -> None:
        """Remove the item `xid` from those set aside."""
        self.aside_bytes -= len(self.aside.pop(xid)) - ADDX_HEADER + OVERHEAD

    # --- items that wait for their retry delay ---

    def retry_at(self, xid: int, deadline: float, *, counted: bool = True) -> None:
        """Hold back the item of the read `xid` until `deadline` (monotonic seconds).

        Its reader, who may still know it, does not have it any more. `counted` is whether this was
        a delivery.
        """
        if not counted:
            self.reserved.set_uncounted(xid)
        record = self.open[xid]
        # Readers recognise an item that they hold by its object.
        again = another(record)
        self.open[xid] = again
        self.retrying = own_table(self.retrying)
        self.retrying[xid] = again
        self.retrying_bytes += len(again) - ADDX_HEADER + OVERHEAD
        self.set_deadline(xid, again, deadline)

    def _forget_retrying(self, xid: int) -> None:
        """Remove the item `xid` from those that wait for their retry delay, if it is one."""
        record = self.retrying.pop(xid)
        if record is not None:
            self.retrying_bytes -= len(record) - ADDX_HEADER + OVERHEAD

    def drop_all(self) -> list[list[Any]]:
        """Forget all open reads; return lists of what is to be freed: there may be millions."""
        useless: list[list[Any]] = [*self._deadlines.take_all()]
        self.aside.clear()
        self.plain = None
        useless += [self.open.take_pages(), self.retrying.take_pages(), self._last.take_pages()]
        useless.append(self.overdue.take_pages())
        useless += self.reservations.drop_all()
        self.open_bytes = self.aside_bytes = self.retrying_bytes = 0
        return useless
