"""The open reads of a queue: items that were taken off the head and are not confirmed yet.

`journal.open_read` says what a read is, and in which states. This module has all of a queue, and
knows when each is to be given back, except for reserved ones: see `leases`. For the journal, a read
whose item waits for its retry delay is still open: it is written that it is given back when the
delay is over. So a restart cuts the delay short.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, cast

from kestrelmq.config.values import MAX_DURATION
from kestrelmq.format.notes import uncounted_unremove
from kestrelmq.format.records import (
    ADDX_HEADER,
    MAX_XID,
    REMOVE_TENTATIVE_RECORD,
    Item,
    confirm_remove,
    confirm_removes,
    kept_xid,
    remove_tentative_xid,
    save_xid,
    unremove,
    waiting_again,
    xid_before,
)
from kestrelmq.journal.life import (
    ASIDE,
    CONFIRM,
    CONFIRM_KEPT,
    GIVE_BACK,
    HELD,
    HOLD_BACK,
    LOSE,
    PUT_ASIDE,
    READ,
    RESERVED,
    RETRYING,
)
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.open_read import NO_DEADLINE, OpenRead
from kestrelmq.journal.read_table import NO_READS, ReadTable, own_table
from kestrelmq.journal.replay import opened_xid
from kestrelmq.journal.reserved_reads import ReservedReads, held_back_note, unreserved_note
from kestrelmq.journal.shared_empty import NOTHING, own
from kestrelmq.journal.writer import Dialect
from kestrelmq.queue.backlog import Backlog
from kestrelmq.queue.changes import Changes, ReadsChanged
from kestrelmq.queue.leases import Reservations
from kestrelmq.queue.state import QueueState
from kestrelmq.scheduling.deadline_heap import DeadlineHeap

MIN_ASIDE_LIMIT: Final = 1 << 20
"""Bytes of memory that items set aside may take, however small `max_memory_size` is."""
_MAX_DOUBLINGS: Final = 64
"""Deliveries after which the retry delay does not grow any more."""
_COLLECTED_AT_ONCE: Final = 2000
"""Deadlines that are looked at in one go."""
_GIVEN_BACK_AT_ONCE: Final = 500
"""Overdue reads that are given back in one go."""

Deadline = tuple[float, int, OpenRead]
"""Monotonic seconds, a number that orders equal times, and a read."""


class OpenReads:
    """The open reads.

    Attributes:
        open: the reads by xid.
        open_bytes: bytes of their items' records.
        last_xid: the last-used xid.
        dialect: the dialect of the records that are written.
        aside: those that are ASIDE or LEAVING by xid, in the order in which they are moved.
        aside_bytes: the memory that their items take.
        retrying: those that are RETRYING by xid.
        retrying_bytes: the memory that their items take.
        flushed: those of them that a flush is to drop.
        reserved: what the journal says of reserved ones, and which tags are over.
        reservations: the leases and owners of those.
        given_back: an upper bound of how many reads were given back since the queue was loaded.
        overdue: the reads that `collect_overdue` found and `take_overdue` did not return yet, by
            xid.
        is_dropped: whether `drop_all` has forgotten them.
    """

    def __init__(
        self,
        state: QueueState,
        backlog: Backlog,
        changes: Changes,
        last_xid: int,
        reserved: ReservedReads,
    ) -> None:
        """Start with the open reads of `reserved`, which are all reserved."""
        self._state = state
        self._backlog = backlog
        self._changes = changes
        self.reserved = reserved
        self.reservations = Reservations(reserved)
        self.hold_all(reserved.opened)
        self.last_xid = last_xid
        self.dialect: Dialect = state.config.journal_dialect
        self.aside: dict[int, OpenRead] = NOTHING
        self.retrying: ReadTable[OpenRead] = NO_READS
        self.flushed: ReadTable[OpenRead] = NO_READS
        self.aside_bytes = self.retrying_bytes = self.given_back = 0
        self.is_dropped = False
        self._deadlines: DeadlineHeap[Deadline] = DeadlineHeap()
        self._sequence = 0
        self.overdue: ReadTable[OpenRead] = NO_READS

    # --- opening and ending ---

    def open_item(self, item: Item, event: int = READ) -> OpenRead:
        """Open a read of `item`, which was the head; `event` is READ or PUT_ASIDE."""
        last = self.last_xid
        # The records of kestrel-2 say the xid. If it were the one that an item keeps, which may be
        # much older, the last-used xid would go back to that.
        kept = kept_xid(item) if self.dialect == "documented" else None
        xid = opened_xid(kept, last, self.open)
        if xid == kept:
            # Another server added the item with ADD_XID, and did not open it. For readers of the
            # format that do not know its xid, set the counter so that it is the next one.
            records = save_xid(xid_before(xid)) + REMOVE_TENTATIVE_RECORD + save_xid(last)
        else:
            says_xid = self.dialect == "kestrel-2"
            records = remove_tentative_xid(xid) if says_xid else REMOVE_TENTATIVE_RECORD
            self.last_xid = xid
        read = OpenRead(xid, item)
        self.open[xid] = read
        self.open_bytes += len(read.record)
        self._changes.collect(records)
        self._changes.undo.append(ReadsChanged(event, (xid,), [read], last))
        return read

    def open_together(self, xids: Sequence[int], reads: list[OpenRead], size: int) -> None:
        """Open `reads`, with `size` bytes of records, whose xids are the first of `free_xids`."""
        last = self.last_xid
        self.open.set_all(xids, reads)
        self.open_bytes += size
        self.last_xid += len(xids)
        self._changes.collect(REMOVE_TENTATIVE_RECORD * len(reads))
        self._changes.undo.append(ReadsChanged(READ, xids, reads, last))

    def hold_all(self, opened: ReadTable[OpenRead]) -> None:
        """Let these be the open reads."""
        self.open = self.reserved.opened = opened
        self.open_bytes = 0
        for read in opened.values():
            self.open_bytes += len(read.record)

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

    @property
    def held(self) -> int:
        """How many reads a reader has."""
        return len(self.open) - len(self.aside) - len(self.retrying)

    @property
    def items_aside(self) -> int:
        """Number of expired items that wait until they can be moved."""
        return len(self.aside)

    def is_held(self, xid: int) -> bool:
        """Whether a reader has the read `xid`."""
        return self.held_read(xid) is not None

    def held_read(self, xid: int) -> OpenRead | None:
        """Return the read `xid` if a reader has it; otherwise None."""
        read = self.open.get(xid)
        return read if read is not None and read.has_reader else None

    def is_open(self, read: OpenRead) -> bool:
        """Whether a read has not ended, and its queue was not deleted."""
        return not read.is_over and not self.is_dropped

    def end(self, read: OpenRead) -> None:
        """End a read, which is open; `reopen` undoes it."""
        del self.open[read.xid]
        read.is_over = True
        self.open_bytes -= len(read.record)
        if read.state == RETRYING:
            self._forget_retrying(read)
        self.reservations.end(read)

    def end_all(self, xids: Sequence[int]) -> list[OpenRead]:
        """End reads; return those that were open."""
        before = len(self.open)
        found = self.open.pop_all(xids)
        if len(self.open) > before - len(xids):
            ended = [read for read in found if read is not None]
        else:
            ended = cast("list[OpenRead]", found)
        size = 0
        for read in ended:
            read.is_over = True
            size += len(read.record)
            if read.state == RETRYING:
                self._forget_retrying(read)
        self.open_bytes -= size
        if ended:
            self.reservations.end_all(ended)
        return ended

    def reopen(self, read: OpenRead) -> None:
        """Undo the end of a read."""
        self.open[read.xid] = read
        read.is_over = False
        self.open_bytes += len(read.record)
        if read.state == RETRYING:
            self._add_retrying(read)
        self.reservations.restore(read)

    def replace(self, read: OpenRead, state: int, *, counted: bool) -> OpenRead:
        """Let another read take the place of one whose reader has lost its item; return it."""
        other = read.without_reader(state, counted=counted)
        self.open[read.xid] = other
        self.reservations.end(read)
        return other

    def _add_retrying(self, read: OpenRead) -> None:
        self.retrying = own_table(self.retrying)
        self.retrying[read.xid] = read
        self.retrying_bytes += len(read.record) - ADDX_HEADER + OVERHEAD

    def _forget_retrying(self, read: OpenRead) -> None:
        self.retrying.pop(read.xid)
        self.retrying_bytes -= len(read.record) - ADDX_HEADER + OVERHEAD

    def transactions_among(self, reads: Sequence[OpenRead]) -> int:
        """Return how many of these reads are transactions."""
        return len([read for read in reads if not read.is_plain])

    def unused_memory(self) -> list[list[Any]]:
        """Return the memory to free of tables that are empty now; it may be much."""
        useless = self.reservations.unused_memory()
        if not len(self.open):
            self.open.clear()
            self.overdue.clear()
            if len(self._deadlines):
                useless += self._deadlines.take_all()
        if not len(self.retrying):
            self.retrying.clear()
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

    def set_deadline(self, read: OpenRead, deadline: float) -> None:
        """Set the deadline of a read (monotonic seconds), which is not reserved."""
        if read.deadline == deadline:
            return
        self._sequence += 1
        read.deadline = deadline
        self._deadlines.push((deadline, self._sequence, read), len(self.open), _is_awaited)

    def collect_overdue(self, now: float) -> bool:
        """Look for reads whose time is up `now` (monotonic seconds); False if there may be more.

        Only the last deadline of a read counts: one that was extended is not overdue by its first.
        """
        deadlines = self._deadlines
        for _ in range(_COLLECTED_AT_ONCE):
            first = deadlines.first
            if first is None or first > now:
                break
            entry = deadlines.pop()
            if _is_awaited(entry):
                entry[2].deadline = NO_DEADLINE
                self._set_overdue(entry[2])
        else:
            return False
        leases = self.reservations.take_overdue(now) if self.reserved.count else []
        for xid in leases:
            self._set_overdue(self.open[xid])
        return not leases

    def _set_overdue(self, read: OpenRead) -> None:
        self.overdue = own_table(self.overdue)
        self.overdue[read.xid] = read

    def take_overdue(self, now: float) -> list[OpenRead]:
        """Return some reads that `collect_overdue` found.

        They are the youngest, so that what is given back later, in front of them, is older. They
        are sorted, which is the order in which the reads were opened, as at a restart.
        """
        some = self.overdue.youngest()[-_GIVEN_BACK_AT_ONCE:]
        reads = self.overdue.pop_all(some)
        return [read for read in reads if read is not None and self._is_overdue(read, now)]

    def oldest_overdue(self, now: float) -> OpenRead | None:
        """Return the oldest read that `take_overdue` is still to return, if a reader has it.

        None also if very many have ended.
        """
        for xid in self.overdue.oldest():
            read = self.overdue[xid]
            if self._is_overdue(read, now):
                return read if read.has_reader else None
            self.overdue.pop(xid)
        return None

    def _is_overdue(self, read: OpenRead, now: float) -> bool:
        """Whether a read that was overdue still is: it was neither ended nor extended."""
        if read.state == RESERVED:
            return not read.is_over and self.reservations.lease_end(read) <= now
        return not read.is_over and read.deadline == NO_DEADLINE

    # --- items that no reader has ---

    def set_aside(self, read: OpenRead) -> None:
        """Let a read be ASIDE: its item is not given back to readers."""
        read.state = ASIDE
        self.aside = own(self.aside)
        self.aside[read.xid] = read
        self.aside_bytes += len(read.record) - ADDX_HEADER + OVERHEAD

    def forget_aside(self, read: OpenRead) -> None:
        """Remove a read from those that are ASIDE or LEAVING: it has ended, or is to be retried.

        If the end is undone, it is like one that its reader has forgotten.
        """
        read.state = HELD
        if self.aside.pop(read.xid, None) is not None:
            self.aside_bytes -= len(read.record) - ADDX_HEADER + OVERHEAD

    def retry_at(self, read: OpenRead, deadline: float, *, counted: bool) -> OpenRead:
        """Let the item of a read wait until `deadline` (monotonic seconds).

        Its reader, who may still know it, does not have it any more.

        Returns:
            The read that takes its place. `counted` is whether this was a delivery.
        """
        other = self.replace(read, RETRYING, counted=counted)
        self._add_retrying(other)
        self.set_deadline(other, deadline)
        return other

    # --- what happens to reads, with the records of it ---

    def confirm(self, xid: int, *, kept: bool = False) -> bool:
        """Confirm the open read `xid`; return False if it is not open.

        If this cannot be written, the read is given back later. If it is `kept`, or reserved, it
        stays its reader's, who may try again.
        """
        read = self.open.get(xid)
        if read is None:
            return False
        self.end(read)
        self._changes.collect(confirm_remove(xid))
        self.note(CONFIRM_KEPT if kept else CONFIRM, (xid,), [read])
        return True

    def confirm_all(self, xids: Sequence[int]) -> None:
        """Confirm open reads, as one change; if it cannot be written, as `confirm`."""
        ended = self.end_all(xids)
        if ended:
            if len(ended) < len(xids):
                xids = [read.xid for read in ended]
            self._changes.collect(confirm_removes(xids))
            self.note(CONFIRM, xids, ended)

    def put_back(self, read: OpenRead, *, counted: bool) -> None:
        """Make the item of an open read the head again."""
        self.end(read)
        self._backlog.put_back(waiting_again(read.item, counted=counted))
        self.given_back += 1
        self._state.counts.redelivered += counted
        xid = read.xid
        self._changes.collect(unremove(xid) if counted else uncounted_unremove(xid, self.last_xid))
        self.note(GIVE_BACK, (xid,), [read])

    def retry(self, read: OpenRead, delay: float | None = None, *, counted: bool) -> None:
        """Let the item of an open read be read again, after its retry delay if it has one.

        Args:
            read: the read; no reader has it any more.
            delay: seconds, instead of the retry delay, which is only for deliveries.
            counted: whether the item was delivered.
        """
        seconds = self._retry_delay(read, delay, counted=counted)
        if not seconds:
            self.put_back(read, counted=counted)
            return
        at = self._state.clock.monotonic() + seconds
        self._lose_reader(read, self.retry_at(read, at, counted=counted))
        self._state.watch_deadlines()

    def _retry_delay(self, read: OpenRead, delay: float | None, *, counted: bool) -> float:
        """Return how long the item of an open read waits to be read again, in seconds.

        That is 0, too, if such items take too much memory already. `delay` overrides the settings,
        which are for deliveries that are `counted`.
        """
        config = self._state.config
        if delay is None and not counted:
            return 0
        if not (config.retry_delay if delay is None else delay):
            return 0
        memory = self.retrying_bytes + len(read.record)
        if memory > max(MIN_ASIDE_LIMIT, self._backlog.max_memory_bytes // 4):
            return 0
        if delay is not None:
            return delay
        retries = min(read.deliveries, _MAX_DOUBLINGS)
        longest = MAX_DURATION if config.max_retry_delay is None else config.max_retry_delay
        return min(config.retry_delay * config.retry_backoff**retries, longest)

    def _lose_reader(self, read: OpenRead, other: OpenRead) -> None:
        """Note in the journal, if need be, that `other` has taken the place of `read`."""
        if read.reservation is not None or not other.is_counted:
            note = unreserved_note if other.is_counted else held_back_note
            self._changes.collect(note((read.xid,), self.last_xid))
            self.note(LOSE, (read.xid,), [read], other)

    def put_aside(self, taken: Item) -> OpenRead:
        """Set an item that was the head aside; return its read."""
        read = self.open_item(taken, PUT_ASIDE)
        self.set_aside(read)
        self.hold_back((read.xid,))
        return read

    def take_over(self, read: OpenRead, *, counted: bool) -> OpenRead:
        """Set the item of an open read aside, which its reader does not have any more.

        `counted` is whether it was delivered. Return the read that takes its place.
        """
        other = self.replace(read, ASIDE, counted=counted)
        self.set_aside(other)
        self._lose_reader(read, other)
        return other

    def hold_back(self, xids: Sequence[int]) -> None:
        """Write that these reads, which were just opened, are not deliveries.

        So a restart, which gives them back, does not count them.
        """
        for xid in xids:
            self.open[xid].is_counted = False
        self._changes.collect(held_back_note(xids, self.last_xid))
        self.note(HOLD_BACK, xids, [])

    def extend(self, xid: int, timeout: float) -> bool:
        """Extend the open read `xid`: give it back `timeout` seconds from now, not earlier.

        If it is reserved, its lease ends then.
        """
        read = self.open.get(xid)
        if read is None:
            return False
        if read.reservation is not None:
            self.extend_leases((xid,), timeout)
        else:
            self.set_timeout(read, timeout)
        return True

    def set_timeout(self, read: OpenRead, seconds: float) -> None:
        """Give a read, which is not reserved, back `seconds` from now."""
        self.set_deadline(read, self._state.clock.monotonic() + seconds)
        self._state.watch_deadlines()

    def extend_leases(self, xids: Sequence[int], seconds: float) -> int:
        """Let the leases of these reserved reads end `seconds` from now; return how many."""
        self.reservations.extend(xids, seconds, self._state.clock.monotonic())
        self._state.watch_deadlines()
        return len(xids)

    def note(
        self, event: int, xids: Sequence[int], reads: list[OpenRead], other: OpenRead | None = None
    ) -> None:
        """Note what happened to open reads, so that it can be taken back."""
        self._changes.undo.append(ReadsChanged(event, xids, reads, self.last_xid, other))

    def drop_all(self) -> list[list[Any]]:
        """Forget all open reads; return lists of what is to be freed: there may be millions."""
        useless: list[list[Any]] = [*self._deadlines.take_all()]
        self.aside.clear()
        useless += [self.open.take_pages(), self.retrying.take_pages(), self.overdue.take_pages()]
        useless += self.reservations.drop_all()
        self.open_bytes = self.aside_bytes = self.retrying_bytes = 0
        self.is_dropped = True
        return useless


def _is_awaited(entry: Deadline) -> bool:
    """Whether this is the last deadline of an open read."""
    deadline, _, read = entry
    return not read.is_over and read.deadline == deadline
