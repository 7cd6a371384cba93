"""The line of items that wait: what is taken from its head, and what has to leave it before that.

Before the head is taken, the oldest read that is being given back is put before it; what has
expired is dropped or moved, and so are dead letters that a restart left.
"""

from collections.abc import Generator
from math import inf
from typing import Final

from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import (
    ADDX_HEADER,
    REMOVE_RECORD,
    Item,
    first_xid,
    item_add_time,
    item_expiry,
    item_size,
    kept_xid,
    record_of,
)
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.reader import LargeRecord
from kestrelmq.queue.core import Core
from kestrelmq.queue.departures import Departures
from kestrelmq.queue.limits import DEAD_HEAD, EXPIRING, LIMITED, READS_PAUSED, SUSPECT
from kestrelmq.queue.returns import Returns
from kestrelmq.queue.waiters import HeadTaker, ReadMode

EXPIRED_AT_ONCE: Final = 500
"""Expired items that are dropped or moved before others are served."""
_BURIED_AT_ONCE: Final = 100
"""Dead letters that a restart left, which are moved before others are served."""


class Line(HeadTaker):
    """The items of one queue that wait, as readers take them.

    Attributes:
        timeout: seconds after which a read is given back, unless its reader says otherwise.
        is_blocked: whether an expired item can neither be moved nor be set aside, so that the items
            behind it cannot be read.
    """

    __slots__ = (
        "_behind_given_back",
        "_core",
        "_departures",
        "_is_reading_large",
        "_is_unreadable",
        "_returns",
        "_state",
        "is_blocked",
        "timeout",
    )

    def __init__(self, core: Core, departures: Departures, returns: Returns) -> None:
        """Take the items of a queue, to which a restart may have given some back."""
        self._core = core
        self._state = core.state
        self._departures = departures
        self._returns = returns
        self._behind_given_back = len(core.backlog) - len(core.backlog.front)
        # Whether a thread is reading the head, which is large; and whether it could not do so the
        # last time.
        self._is_reading_large = self._is_unreadable = False
        self.is_blocked = False
        self.timeout: float | None = None
        core.waiters.taker = self

    # --- taking ---

    def remove(self) -> bytes | None:
        """Remove the head and return its record; None if the queue is empty.

        Raises:
            QueueUnavailable: the queue was closed, or its items could not be read.
        """
        one = self._remove()
        return None if one is None else record_of(one)

    def _remove(self) -> Item | None:
        backlog = self._core.backlog
        if (
            self._state.checks > LIMITED
            or backlog.memory_bytes < backlog.refill_below
            or backlog.front
            or not backlog.memory
        ):
            taken = self.take()
            if taken is None:
                return None
        else:
            taken = backlog.memory.popleft()
            backlog.memory_bytes -= item_size(taken)
            self._state.counts.get_hits += 1
        changes = self._core.changes
        pending = changes.pending
        if not pending:
            self._state.commits.dirty.append(self._state.queue)
        pending.append(REMOVE_RECORD)
        changes.undo.append(taken)
        return taken

    def open_next(
        self, most: int, most_bytes: int, mode: ReadMode = ReadMode.OPEN
    ) -> list[tuple[int, bytes]]:
        """Open reads of several items as one change; faster than `take_as` for each.

        Args:
            most: the most items.
            most_bytes: after so many bytes of data, no more items are taken.
            mode: OPEN or HOLD.

        Returns:
            The reads' xids and the items. If it is empty, call `take_as`.
        """
        reads, _ = self.open_from_memory(most, most_bytes)
        if mode is ReadMode.OPEN:
            self._state.counts.transactions += len(reads)
        else:
            for read in reads:
                read.is_plain = True
        if reads and self.timeout is not None:
            deadline = self._state.clock.monotonic() + self.timeout
            for read in reads:
                self._core.reads.set_deadline(read, deadline)
            self._state.watch_deadlines()
        return [(read.xid, read.record) for read in reads]

    def take_as(self, mode: ReadMode) -> tuple[Item | None, int]:
        """Remove, open or peek at the head; return the item and its xid (0 unless opened)."""
        self._state.counts.transactions += mode is ReadMode.OPEN
        return self._take_as(mode)

    def _take_as(self, mode: ReadMode) -> tuple[Item | None, int]:
        """Take the head, as `take_as`, for a reader that is counted already."""
        match mode:
            case ReadMode.REMOVE:
                return self._remove(), 0
            case ReadMode.PEEK:
                return self._peek(), 0
            case ReadMode.OPEN | ReadMode.HOLD:  # pragma: no branch: there is no other mode
                taken = self.take()
                if taken is None:
                    return None, 0
                reads = self._core.reads
                read = reads.open_item(taken)
                read.is_plain = mode is ReadMode.HOLD
                if self.timeout is not None:
                    reads.set_timeout(read, self.timeout)
                return read.item, read.xid

    def peek(self) -> bytes | None:
        """Return the record of the head without taking it; None if the queue is empty."""
        head = self._peek()
        return None if head is None else record_of(head)

    def _peek(self) -> Item | None:
        if self._returns.is_returning and not self._state.has(READS_PAUSED):
            xid = self._returns.oldest()
            oldest = None if xid is None else self._core.reads.open[xid].item
            if oldest is not None and not self._is_expired(oldest, self._state.clock.now()):
                return oldest
        return self._core.backlog.head if self.has_head() else None

    def head(self) -> Item | None:
        """Return the head without taking it, also while reads are paused; None if there is none."""
        return self._core.backlog.head if self.has_head(although_paused=True) else None

    def hold_head(self) -> int:
        """Open a read of the head, which `head` returned, without a time limit; return its xid.

        It is no transaction.
        """
        read = self._core.reads.open_item(self._core.backlog.take())
        read.is_plain = True
        return read.xid

    def take_waiting(self, mode: ReadMode) -> tuple[Item | None, int]:
        """Take the head, as `take_as`, for a reader that has waited and is counted already."""
        backlog, state = self._core.backlog, self._state
        if (
            state.has(READS_PAUSED | SUSPECT)
            or self._returns.brings_oldest
            or self._state.is_moving
            or not (backlog.memory_items or backlog.behind is not None)
        ):
            return None, 0
        return self._take_as(mode)

    def take(self) -> Item | None:
        """Take the head for a reader; None if there is none."""
        if self._state.checks > LIMITED:
            self._core.check_can_change()
        if not self.has_head():
            return None
        backlog = self._core.backlog
        if backlog.behind is not None and backlog.memory_bytes < backlog.refill_below:
            self.read_back(at_once=False)
        self._state.counts.get_hits += 1
        return backlog.take()

    def open_from_memory(self, most: int, most_bytes: int) -> tuple[list[OpenRead], int]:
        """Open reads of items at the head, as one change, at most `most`.

        Returns:
            The reads, and the bytes of data in them. If none is opened, the head must be opened by
            itself.
        """
        backlog, reads = self._core.backlog, self._core.reads
        if self._state.checks > LIMITED or self._core.waiters.line or reads.dialect != "documented":
            return [], 0
        free = reads.free_xids(min(most, backlog.memory_items))
        first = first_xid(free) if type(free) is range else 0
        opened: list[OpenRead] = []
        size, most_size = 0, min(most_bytes - 1, backlog.memory_bytes - backlog.refill_below)
        for index in range(len(free)):
            if size > most_size:
                break
            xid = first + index if first else free[index]
            one = backlog.front.pop() if backlog.front else backlog.memory.popleft()
            if kept_xid(one) is not None:
                backlog.front.append(one)
                break
            size += item_size(one)
            opened.append(OpenRead(xid, one))
        if opened:
            xids = free[: len(opened)]
            backlog.memory_bytes -= size
            reads.open_together(xids, opened, size + ADDX_HEADER * len(opened))
            self._state.counts.get_hits += len(opened)
        return opened, size

    def has_head(self, *, although_paused: bool = False) -> bool:
        """Bring the head into memory; return False if there is none that may be taken now.

        Raises:
            QueueUnavailable: as `remove`.
        """
        if self._state.checks > LIMITED:
            self._state.check_usable()
            if self._state.has(READS_PAUSED) and not although_paused:
                return False
            if self._returns.is_returning:
                self._returns.bring_oldest()
            if self._state.has(EXPIRING):
                self.discard_expired(None)
                if self.is_blocked or self._state.is_moving:
                    return False
            if self._state.has(DEAD_HEAD):
                if self._state.is_moving:
                    return False  # in the journal the item that is moved is still the head
                self._bury_heads()
        return self._core.backlog.memory_items > 0 or self.read_back()

    def read_back(self, *, at_once: bool = True) -> bool:
        """Read items back into memory; return whether any are there.

        A large one is read if it must be there `at_once`.

        Raises:
            QueueUnavailable: memory holds no item, and those on disk cannot be read.
        """
        backlog = self._core.backlog
        if backlog.behind is None:
            return False
        try:
            if not backlog.read_back(at_once=at_once):
                self._core.write_now()  # what is left has not been written yet
                if not backlog.read_back(at_once=at_once) and not self._core.is_writing:
                    backlog.check_complete()
        except (OSError, JournalError) as error:
            if backlog.memory_items:
                return True  # those come first; a later read gets the error
            raise QueueUnavailable(f"queue {self._state.name} cannot be read: {error}") from error
        return backlog.memory_items > 0

    # --- preparing the head ---

    @property
    def is_settled(self) -> bool:
        """Whether a read takes only a short time; otherwise see `settle`."""
        backlog = self._core.backlog
        if backlog.behind is not None and backlog.head is None:
            return False
        if self._must_bury and self._departures.has_dead_head():
            return False
        if not self._state.has(EXPIRING) or len(backlog) <= EXPIRED_AT_ONCE:
            return True
        head = backlog.head
        return head is not None and not self._is_expired(head, self._state.clock.now())

    def settle(self) -> bool:
        """Prepare a read a bit: read the head back, and drop or move some items before it.

        Those have expired, or are dead letters that a restart left. A read does so at once, which
        may take long if they are many, or if the head is large and on disk. A caller that can wait
        calls this first, and lets others be served in between.

        Returns:
            False if there may be more to do. Raises as `remove`.
        """
        backlog = self._core.backlog
        if backlog.head is None and backlog.behind is not None and not self._reads_head():
            return False
        if self.discard_expired(EXPIRED_AT_ONCE) == EXPIRED_AT_ONCE:
            return False
        return not self._must_bury or self.bury_some()

    def _reads_head(self) -> bool:
        """Read the head back, a large one by a thread; return False while that does so."""
        if self._is_reading_large:
            return False
        if self._is_unreadable:
            self._is_unreadable = False
            return True  # the reader gets the error; or it works now
        backlog = self._core.backlog
        try:
            if backlog.read_back(at_once=False):
                return True
            large = backlog.large_record()
        except (OSError, JournalError):
            return True  # the reader gets the error
        if large is None:
            return not self._core.is_writing  # what is left may be what is being written
        self._is_reading_large = True
        self._state.commits.writer.run(
            lambda _pause: large.load(), lambda error: self._has_read(large, error)
        )
        return False

    def _has_read(self, large: LargeRecord, error: BaseException | None) -> None:
        self._is_reading_large = False
        self._is_unreadable = error is not None
        if error is None:
            self._core.backlog.use(large)

    # --- what has to leave ---

    @property
    def has_items_to_drop(self) -> bool:
        """Whether items have to go that do not expire, or that could not go when they expired.

        They are dead letters, or make room for newer ones.
        """
        return (
            bool(self._core.reads.aside)
            or (self._state.has(DEAD_HEAD) and self._departures.has_dead_head())
            or self.is_blocked
        )

    def discard_expired(self, limit: int | None) -> int:
        """Drop or move at most `limit` expired items from the head, or set them aside.

        Returns:
            How many they were.

        An item may expire to its own queue, directly or by way of others; then it goes to the end.
        An item that `expire_to_queue` cannot take now is set aside.
        """
        if self._state.is_moving:
            return 0
        now = self._state.clock.now()
        backlog = self._core.backlog
        self.is_blocked = False
        count, before = 0, len(backlog)
        while True:
            head = backlog.head if backlog.memory_items or self.read_back() else None
            if head is None:
                # What is open, or may be taken back, may still expire.
                may_wait_again = self._core.reads.open or self._core.changes.undo
                if self._state.limits.max_age is None and not may_wait_again:
                    self._state.set(EXPIRING, on=False)
                break
            if count in (limit, before) or not self._is_expired(head, now):
                break
            if not self._departures.expire_head():
                self.is_blocked = True
                break
            count += 1
        if count and self._state.config.sync_journal == 0 and self._core.reads.aside:
            self._departures.move_aside()
        return count

    def _is_expired(self, one: Item, now: int) -> bool:
        expiry = item_expiry(one)
        if expiry != 0 and expiry <= now:
            return True
        max_age = self._state.limits.max_age
        return max_age is not None and item_add_time(one) + max_age <= now

    @property
    def expires_at(self) -> float:
        """When the head has to go because it expires (ms since the epoch); infinite if never."""
        if not self._state.has(EXPIRING):
            return inf
        head = self._core.backlog.head
        if head is None:
            # An item of an open read that is given back, or of a change, is a change itself.
            return inf if self._core.backlog.behind is None else 0
        return self._state.limits.expiry(item_add_time(head), item_expiry(head)) or inf

    def expiring(self, limit: int | None = None) -> Generator[None, None, int]:
        """Drop or move expired items, at most `limit` from the head.

        Yields after each short piece of work. An item that is added meanwhile is left alone.

        Returns:
            How many were dropped or moved.

        Raises:
            QueueUnavailable: as `remove`.
        """
        expired = self._state.counts.expired_items
        if self._core.reads.aside:
            self._departures.move_aside()
        left = len(self._core.backlog) if limit is None else min(limit, len(self._core.backlog))
        while self._state.has(EXPIRING) and not self._state.is_closed:
            # Even of none, so that it is noticed if nothing can expire any more.
            most = min(left, EXPIRED_AT_ONCE)
            count = self.discard_expired(most)
            self._core.waiters.serve()  # an item may have expired to this queue
            left -= count
            if count < EXPIRED_AT_ONCE or not left:
                break
            yield
        return self._state.counts.expired_items - expired

    # --- dead letters that a restart left ---

    def _bury_heads(self, most: int | None = None) -> bool:
        """Move the dead letters that a restart left at the head, at most `most`.

        A dead letter behind a live item is moved when that item was taken. Items that nobody
        has read since the queue was loaded are left alone, however often they were delivered: they
        may be dead letters of other queues.

        Returns:
            False if there may be more.
        """
        backlog, count = self._core.backlog, 0
        while len(backlog) - backlog.total_items > self._behind_given_back:
            if count == most:
                return False
            if not (backlog.memory_items or self.read_back()):
                return True
            if not self._departures.bury_head():
                return True
            count += 1
        self._state.set(DEAD_HEAD, on=False)
        return True

    @property
    def _must_bury(self) -> bool:
        """Whether a read must move such dead letters first."""
        return self._state.has(DEAD_HEAD) and not self._state.has(READS_PAUSED)

    def bury_some(self) -> bool:
        """Move some dead letters; return False if there may be more."""
        is_synced = self._state.config.sync_journal is not None  # so is each of them, then
        return self._bury_heads(1 if is_synced else _BURIED_AT_ONCE)
