"""Taking items off the head of a queue: removes, open reads and what becomes of them, expiry."""

from collections.abc import Callable, Sequence
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.commits import Commits
from kestrelmq.engine.deadlines import Deadlines
from kestrelmq.engine.store import Store
from kestrelmq.engine.undo import Confirmed, GivenBack, Opened
from kestrelmq.engine.waiters import Waiters
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.journal.records import (
    ADDX_HEADER,
    NO_EXPIRY,
    REMOVE_RECORD,
    REMOVE_TENTATIVE_RECORD,
    NamedItem,
    confirm_remove,
    item_add_time,
    item_expiry,
    remove_tentative_xid,
    save_xid,
    unremove,
    xid_before,
)
from kestrelmq.journal.replay import Replay, opened_xid
from kestrelmq.journal.writer import FileJournal, NoJournal

_ABORT_AGAIN: Final = 1.0
"""Seconds until reads are given back that could not be."""

ExpireTo = Callable[[str, bytes], None]
"""Adds data to the queue of that name, and writes it, before its old queue forgets it."""


class Taking(Store):
    """A store whose head may be taken.

    Attributes:
        config: the settings in force.
        waiters: readers that wait for an item.
        get_hits, expired_items, transactions, canceled_transactions: counted since the queue
            came up.
    """

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        clock: Clock,
        commits: Commits,
        journal: FileJournal | NoJournal,
        state: Replay,
        expire_to: ExpireTo | None,
    ) -> None:
        super().__init__(name, clock, commits, journal, state)
        self.waiters = Waiters()
        self.get_hits = self.expired_items = 0
        self.transactions = self.canceled_transactions = 0
        self._expire_to = expire_to
        self._deadlines = Deadlines()
        self._limited = self._closed = False
        self._moving = False
        self._expiring = self._behind is not None or any(
            record[13:21] != NO_EXPIRY for record in self._memory
        )
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force; what is in the queue stays."""
        self.config = config
        self._configure_journal(config)
        self._max_age = None if config.max_age is None else int(config.max_age * 1000)
        self._timeout = config.open_transaction_timeout
        self._explicit_xids = self.dialect == "kestrel-2"
        if self._max_age is not None:
            self._expiring = True
        self._set_careful()

    def _set_careful(self) -> None:
        self._careful = self._limited or self._expiring or self._closed

    def _serve(self) -> None:
        """Serve those who wait."""
        raise NotImplementedError

    def remove(self) -> bytes | None:
        """Take the head off the queue; None when the queue is empty.

        Raises:
            QueueUnavailable: the queue was closed, or its items could not be read.
        """
        if self._careful or self.memory_bytes < self._refill_below or not self._memory:
            record = self._take()
            if record is None:
                return None
        else:
            record = self._memory.popleft()
            self.memory_bytes -= len(record) - ADDX_HEADER
            self.get_hits += 1
        pending = self._pending
        if not pending:
            self._commits.dirty.append(self)
        pending.append(REMOVE_RECORD)
        self._undo.append(record)
        return record

    def open_read(self, timeout: float | None = None) -> tuple[int, bytes] | None:
        """Open a read of the head: set it aside until it is confirmed or given back.

        Args:
            timeout: seconds after which it gives itself back; None is the queue's setting.

        Returns:
            The read's xid and the item; None when the queue is empty.

        Raises:
            QueueUnavailable: as `remove`.
        """
        self.transactions += 1
        record = self._take()
        if record is None:
            return None
        last = self.last_xid
        xid = opened_xid(record, last, self.open)
        if self._explicit_xids:
            self._log(remove_tentative_xid(xid))
            self.last_xid = xid
        elif isinstance(record, NamedItem):
            self._log_named_open(xid)
        else:
            self._log(REMOVE_TENTATIVE_RECORD)
            self.last_xid = xid
        self.open[xid] = record
        self._undo.append(Opened(xid, record, last))
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None:
            self._end_read_after(xid, record, timeout)
        return xid, record

    def _log_named_open(self, xid: int) -> None:
        """Journal the opening of an item that was once added with ADD_XID.

        Readers of the format may disagree whether such an item keeps its xid when it is opened a
        second time; the counter is set so that it makes no difference.
        """
        self._log(save_xid(xid_before(xid)) + REMOVE_TENTATIVE_RECORD + save_xid(self.last_xid))

    def _take(self) -> bytes | None:
        if self._careful:
            self._check_usable()
            if self._expiring:
                self.discard_expired(None)
        memory = self._memory
        if not memory and (self._behind is None or not self._recall()):
            return None
        if self._behind is not None and self.memory_bytes < self._refill_below:
            # Before the item is taken: this may write what is collected, which must be whole.
            self._recall()
            if not memory:
                return None
        record = memory.popleft()
        self.memory_bytes -= len(record) - ADDX_HEADER
        self.get_hits += 1
        return record

    def peek(self) -> bytes | None:
        """Return the head and leave it there; None when the queue is empty."""
        if self._careful:
            self._check_usable()
            if self._expiring:
                self.discard_expired(None)
        if not self._memory and (self._behind is None or not self._recall()):
            return None
        return self._memory[0]

    def confirm(self, xid: int) -> bool:
        """Finish the open read `xid`; False when it is not open."""
        record = self.open.pop(xid, None)
        if record is None:
            return False
        self._log(confirm_remove(xid))
        self._undo.append(Confirmed(xid, record))
        return True

    def unremove(self, xid: int) -> bool:
        """Give the open read `xid` back to the head; False when it is not open."""
        return self.give_back((xid,)) == 1

    def give_back(self, xids: Sequence[int]) -> int:
        """Give open reads back, the first of `xids` at the head; return how many were open.

        Waiting readers are served when all of them are back, and so in their order.
        """
        count = 0
        for xid in reversed(xids):
            record = self.open.pop(xid, None)
            if record is None:
                continue
            count += 1
            self._memory.appendleft(self._given_back(xid, record))
            self.memory_bytes += len(record) - ADDX_HEADER
            self._log(unremove(xid))
            self._undo.append(GivenBack(xid, record))
        self.canceled_transactions += count
        if count and self.waiters.line:
            self._serve()
        return count

    def extend(self, xid: int, timeout: float) -> bool:
        """Let the open read `xid` give itself back `timeout` seconds from now, not earlier."""
        record = self.open.get(xid)
        if record is None:
            return False
        self._end_read_after(xid, record, timeout)
        return True

    def _end_read_after(self, xid: int, record: bytes, seconds: float) -> None:
        self._deadlines.set(xid, record, self._clock.monotonic() + seconds, self.open)
        self._commits.end_later(self)

    # --- expiry and deadlines ---

    def discard_expired(self, limit: int | None) -> int:
        """Take expired items off the head, at most `limit`; return how many.

        An item may expire to the queue that it is in, also by way of others: it goes to the end.
        """
        if self._moving:
            return 0
        now = self._clock.now()
        count = 0
        before = len(self)
        while limit is None or count < limit:
            if not self._memory and (self._behind is None or not self._recall()):
                # What is open, or taken back when the write fails, may expire yet.
                self._expiring = self._max_age is not None or bool(self.open or self._undo)
                self._set_careful()
                break
            head = self._memory[0]
            if count == before or not self._is_expired(head, now):
                break
            if self._expire_to is not None and self.config.expire_to_queue is not None:
                self._moving = True
                try:
                    self._expire_to(self.config.expire_to_queue, head[ADDX_HEADER:])
                finally:
                    self._moving = False
            self._drop_head()
            count += 1
        self.expired_items += count
        return count

    def _is_expired(self, record: bytes, now: int) -> bool:
        expiry = item_expiry(record)
        if expiry != 0 and expiry <= now:
            return True
        return self._max_age is not None and item_add_time(record) + self._max_age <= now

    def _drop_head(self) -> bool:
        """Take the head off, unseen; False when the queue is empty."""
        if not self._memory and (self._behind is None or not self._recall()):
            return False
        record = self._memory.popleft()
        self.memory_bytes -= len(record) - ADDX_HEADER
        self._log(REMOVE_RECORD)
        self._undo.append(record)
        return True

    def abort_overdue(self) -> int:
        """Give back the open reads whose time is up, and write that; return how many.

        If it cannot be written they stay open, the commit reports it, and a second later it is
        tried again.
        """
        now = self._clock.monotonic()
        overdue = self._deadlines.overdue(now, self.open)
        if not overdue:
            return 0
        # In the order of a restart: by when they were opened, not by when they were to end.
        overdue.sort()
        held = [(xid, self.open[xid]) for xid in overdue]
        count = self.give_back(overdue)
        try:
            self.write_now()
        except JournalError:
            for xid, record in held:
                self._deadlines.set(xid, record, now + _ABORT_AGAIN, self.open)
            return 0
        return count

    @property
    def next_deadline(self) -> float | None:
        """When the next open read may give itself back (monotonic seconds)."""
        return self._deadlines.next()

    def end_overdue(self) -> bool:
        """Give back the open reads whose time is up; return whether others have one."""
        self.abort_overdue()
        return len(self._deadlines) > 0

    def _check_usable(self) -> None:
        if self._closed:
            raise QueueUnavailable(f"queue {self.name} is closed")
