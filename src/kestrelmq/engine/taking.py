"""Taking items off the head of a queue: removes, open reads and what becomes of them, expiry."""

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.deadlines import Deadlines
from kestrelmq.engine.durability import Commits
from kestrelmq.engine.store import Store
from kestrelmq.engine.undo import Change, Confirmed, Dropped, GivenBack, Opened
from kestrelmq.engine.waiters import Waiters
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.journal.memory import OVERHEAD
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

_LEAST_ASIDE: Final = 1 << 20
"""Bytes of memory that may be set aside, however little `max_memory_size` is."""
_TRIED_AGAIN: Final = 500
"""Items that were set aside and are tried again in one sweep, at most."""
_REFUSED: Final = 16
"""After so many refusals the sweep tries no more."""
_TELL_AGAIN: Final = 60.0
"""Seconds between lines in the log about items that are set aside."""

log = logging.getLogger(__name__)

ExpireTo = Callable[[str, bytes], bool]
"""Adds data to the queue of that name, and writes it, before its old queue forgets it.

False, or a KestrelError, when it cannot be added now.
"""


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
        # Whether an expired item is on its way to another queue; whether one cannot get there, nor
        # be set aside, and so keeps what follows from being read.
        self._moving = self._held_up = False
        # Expired items that could not be moved yet, by the xid under which each is open.
        self._aside: dict[int, bytes] = {}
        self._aside_bytes = 0
        self._tell_at = 0.0
        self._expiring = self._behind is not None or any(
            record[13:21] != NO_EXPIRY for record in self._memory
        )
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force; what is in the queue stays."""
        self._configure_journal(config)
        if isinstance(self.journal, FileJournal) and self.dialect != config.journal_dialect:
            # The change failed, and the settings tell what is in force.
            config = config.model_copy(update={"journal_dialect": self.dialect})
        self.config = config
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
        xid = self._open(record, by_reader=True)
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None:
            self._end_read_after(xid, record, timeout)
        return xid, record

    def _open(self, record: bytes, *, by_reader: bool) -> int:
        """Set `record`, which was the head, aside; return its xid."""
        last = self.last_xid
        kept = record.xid if isinstance(record, NamedItem) else None
        xid = opened_xid(kept, last, self.open)
        if self._explicit_xids:
            self._log(remove_tentative_xid(xid))
            self.last_xid = xid
        elif kept is not None:
            self._log_named_open(xid)
        else:
            self._log(REMOVE_TENTATIVE_RECORD)
            self.last_xid = xid
        self.open[xid] = record
        self._undo.append(Opened(xid, record, last, by_reader))
        return xid

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
                if self._held_up or self._moving:
                    return None
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
                if self._held_up or self._moving:
                    return None
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
            if self._aside and xid in self._aside:
                continue  # no reader has it
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
        """Take expired items off the head, at most `limit`; return how many are gone.

        An item may expire to the queue that it is in, also by way of others: it goes to the end.
        One that `expire_to_queue` cannot take now is set aside.
        """
        if self._moving:
            return 0
        now = self._clock.now()
        self._held_up = False
        count = 0
        before, expired = len(self), self.expired_items
        while limit is None or count < limit:
            if not self._memory and (self._behind is None or not self._recall()):
                # What is open, or taken back when the write fails, may expire yet.
                self._expiring = self._max_age is not None or bool(self.open or self._undo)
                self._set_careful()
                break
            head = self._memory[0]
            if count == before or not self._is_expired(head, now):
                break
            if not self._expire_head():
                self._held_up = True
                break
            count += 1
        return self.expired_items - expired

    def _expire_head(self) -> bool:
        """Move the head to where it expires to, or set it aside; False when neither can be done."""
        record = self._memory.popleft()
        size = len(record) - ADDX_HEADER
        self.memory_bytes -= size
        try:
            moved = self._move(record)
        except BaseException:
            self._push_back(record)
            raise
        if moved:
            self._log(REMOVE_RECORD)
            self._undo.append(Dropped(record))
            self.expired_items += 1
            return True
        if self._aside_bytes + size > max(_LEAST_ASIDE, self._memory_most // 4):
            self._push_back(record)
            return False
        self._aside[self._open(record, by_reader=False)] = record
        self._aside_bytes += size + OVERHEAD
        return True

    def _move(self, record: bytes) -> bool:
        """Add an expired item to where it expires to; False when that cannot be done now."""
        target = self.config.expire_to_queue
        if target is None or self._expire_to is None:
            return True
        if self.failure is not None:
            return False  # it could not be forgotten here, and would be moved again and again
        reason = "it refuses them"
        self._moving = True
        try:
            if self._expire_to(target, record[ADDX_HEADER:]):
                return True
        except KestrelError as error:
            reason = str(error)
        finally:
            self._moving = False
        now = self._clock.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + _TELL_AGAIN
            log.warning(
                "queue %s: expired items cannot go to %s: %s; they are set aside (%d so far) and "
                "tried again",
                self.name,
                target,
                reason,
                len(self._aside),
            )
        return False

    @property
    def set_aside(self) -> int:
        """How many expired items wait until they can be moved."""
        return len(self._aside)

    def is_set_aside(self, xid: int) -> bool:
        """Whether the open item `xid` is no reader's, but one that expired."""
        return xid in self._aside

    def move_aside(self) -> None:
        """Try again to move items that were set aside, some of them."""
        moved = []
        refused = 0
        most = min(self.config.max_expire_sweep or _TRIED_AGAIN, _TRIED_AGAIN)
        for xid, record in list(islice(self._aside.items(), most)):
            if self.open.get(xid) is not record:
                self._forget_aside(xid)  # somebody who guessed its xid confirmed it
            elif self._move(record):
                moved.append(xid)
            else:
                # The others have their turn before it is tried again.
                del self._aside[xid]
                self._aside[xid] = record
                refused += 1
                if refused == _REFUSED:
                    break
        for xid in moved:
            self._log(confirm_remove(xid))
            self._undo.append(Confirmed(xid, self.open.pop(xid)))
        try:
            self.write_now()
        except JournalError:
            return  # they are open, and set aside, as before
        for xid in moved:
            self._forget_aside(xid)
        self.expired_items += len(moved)

    def _forget_aside(self, xid: int) -> None:
        self._aside_bytes -= len(self._aside.pop(xid)) - ADDX_HEADER + OVERHEAD

    def _take_back(self, change: Change) -> None:
        super()._take_back(change)
        if isinstance(change, Opened) and not change.by_reader:
            self._forget_aside(change.xid)

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
        self._undo.append(Dropped(record))
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
