"""One durable queue: items, the reads that are open, those who wait, limits and expiry.

What is in it, on disk and in memory, is the `Store`'s; this is what the queue does with it.
Not thread-safe: the server's loop, or the library's lock, goes around it.
"""

import logging
from collections.abc import Callable, Sequence

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.commits import Commits
from kestrelmq.engine.deadlines import Deadlines
from kestrelmq.engine.store import Store
from kestrelmq.engine.undo import Confirmed, GivenBack, Opened
from kestrelmq.engine.waiters import Waiter, Waiters, Wanted
from kestrelmq.errors import QueueUnavailable
from kestrelmq.journal.records import (
    ADDX,
    ADDX_HEADER,
    MAX_XID,
    MIN_XID,
    NO_EXPIRY,
    REMOVE_RECORD,
    REMOVE_TENTATIVE_RECORD,
    TIMES_SIZE,
    NamedItem,
    confirm_remove,
    item,
    item_add_time,
    item_expiry,
    pack_header,
    remove_tentative_xid,
    save_xid,
    unremove,
)
from kestrelmq.journal.replay import Replay, opened_xid
from kestrelmq.journal.writer import FileJournal, NoJournal

log = logging.getLogger(__name__)

ExpireTo = Callable[[str, bytes], None]
"""Adds data to the queue of that name, and writes it, before its old queue forgets it."""


class Queue(Store):
    """A queue that is up.

    Attributes:
        config: the settings in force.
        children: fanout queues that receive every item added here.
        waiters: readers that wait for an item.
        create_time: when it came into being (ms).
        restricted: whether only some clients may use it.
        measured: how long its operations took; it belongs to `metrics`.
        get_hits, get_misses, expired_items, discarded, total_flushes, transactions,
        canceled_transactions: counted since the queue came up.
    """

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        clock: Clock,
        commits: Commits,
        *,
        journal: FileJournal | NoJournal | None = None,
        state: Replay | None = None,
        expire_to: ExpireTo | None = None,
    ) -> None:
        super().__init__(name, clock, commits, journal or NoJournal(), state or Replay())
        self.children: tuple[Queue, ...] = ()
        self.waiters = Waiters()
        self.measured: object = None
        self.create_time = clock.now()
        self.get_hits = self.get_misses = 0
        self.expired_items = self.discarded = self.total_flushes = 0
        self.transactions = self.canceled_transactions = 0
        self._expire_to = expire_to
        self._deadlines = Deadlines()
        self._closed = False
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
        self.restricted = (
            config.allowed_client_ids_for_dequeue is not None
            or config.allowed_client_ids_for_enqueue is not None
        )
        if self._max_age is not None:
            self._expiring = True
        self._limited = (
            config.max_items is not None
            or config.max_size is not None
            or config.max_item_size is not None
            or isinstance(self.journal, NoJournal)
        )
        self._set_careful()

    def _set_careful(self) -> None:
        self._careful = self._limited or self._expiring or self._closed

    @property
    def age(self) -> int:
        """How long the last item that was read had waited (ms); 0 when the queue is empty."""
        return self.last_wait if len(self) else 0

    # --- adding ---

    def add(self, data: bytes, expiry: int = 0) -> bool:
        """Add an item here and to every fanout child, the children first.

        Args:
            data: the item.
            expiry: when it expires (ms since the epoch), 0 for never.

        Returns:
            False when this queue refused it: it is full, or the item is too large.

        Raises:
            QueueUnavailable: the queue was closed.
        """
        size = len(data)
        behind = self._behind
        if (
            self._careful
            or expiry
            or self.children
            or (behind is None and self.memory_bytes + size > self._memory_limit)
        ):
            record = item(self._clock.now(), expiry, data)
            for child in self.children:
                child.accept(record, expiry)
            return self.accept(record, expiry)
        # The hot path: as `accept`, with nothing to look out for.
        record = pack_header(ADDX, size + TIMES_SIZE, self._clock.now(), 0) + data
        if behind is None:
            self._memory.append(record)
            self.memory_bytes += size
        else:
            behind.items += 1
            behind.bytes += size
        self.total_items += 1
        self.put_bytes += size
        pending = self._pending
        if not pending:
            self._commits.dirty.append(self)
        pending.append(record)
        if self.waiters.line:
            self._serve()
        return True

    def accept(self, record: bytes, expiry: int = 0) -> bool:
        """Add an item here only; as `add`, for a record that queues may share."""
        size = len(record) - ADDX_HEADER
        if self._careful or expiry:
            if self.config.fanout_only:
                return True
            admitted = self._admit(record, size)
            if admitted is None:
                return False
            record = admitted
        if self._behind is None and (
            self.memory_bytes + size <= self._memory_limit or self._has_room(size)
        ):
            self._memory.append(record)
            self.memory_bytes += size
        else:
            self._put_behind(size)
        self.total_items += 1
        self.put_bytes += size
        self._log(record)
        if self.waiters.line:
            self._serve()
        return True

    def _admit(self, record: bytes, size: int) -> bytes | None:
        """Return the record to add, its expiry capped; None when it is refused."""
        self._check_usable()
        config = self.config
        if config.max_item_size is not None and size > config.max_item_size:
            return None
        if self._expiring:
            self.discard_expired(config.max_expire_sweep)
        if self._too_full(size) and self._expiring:
            self.discard_expired(None)
        if self._too_full(size):
            if not config.discard_old_when_full:
                return None
            while self._too_full(size) and self._drop_head():
                self.discarded += 1
        if self._max_age is not None:
            added, expiry = item_add_time(record), item_expiry(record)
            if expiry == 0 or expiry > added + self._max_age:
                record = item(added, added + self._max_age, record[ADDX_HEADER:])
        if record[13:21] != NO_EXPIRY:
            self._expiring = self._careful = True
        return record

    def _too_full(self, size: int) -> bool:
        config = self.config
        if config.max_items is not None and len(self) >= config.max_items:
            return True
        if config.max_size is not None and self.size + size > config.max_size:
            return True
        # Without a journal there is nowhere but memory.
        return isinstance(self.journal, NoJournal) and bool(
            self._memory and self.memory_bytes + size > self._memory_limit
        )

    # --- taking ---

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
        before = xid - 1 if xid > MIN_XID else MAX_XID
        self._log(save_xid(before) + REMOVE_TENTATIVE_RECORD + save_xid(self.last_xid))

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

    def flush(self) -> int:
        """Drop every waiting item, not the open ones; return how many there were."""
        self._check_usable()
        count = self._drop_all()
        self.total_flushes += 1
        return count

    # --- waiting ---

    def wait(self, waiter: Waiter) -> None:
        """Serve `waiter` with the next item that nobody before it waits for."""
        self._check_usable()
        self.waiters.add(waiter)

    def _serve(self) -> None:
        line = self.waiters.line
        while line and (self._memory or self._behind is not None):
            waiter = self.waiters.pop()
            record, xid = self.take_as(waiter.wanted)
            if record is None:
                self.waiters.line[waiter] = None
                self.waiters.line.move_to_end(waiter, last=False)
                return
            waiter.callback(record, xid)

    def take_as(self, wanted: Wanted) -> tuple[bytes | None, int]:
        """Remove, open or peek at the head; return the item and its xid (0 unless opened)."""
        match wanted:
            case Wanted.REMOVE:
                return self.remove(), 0
            case Wanted.PEEK:
                return self.peek(), 0
            case Wanted.OPEN:
                opened = self.open_read()
                return (None, 0) if opened is None else (opened[1], opened[0])

    # --- expiry ---

    def discard_expired(self, limit: int | None) -> int:
        """Take expired items off the head, at most `limit`; return how many."""
        now = self._clock.now()
        count = 0
        while limit is None or count < limit:
            if not self._memory and (self._behind is None or not self._recall()):
                self._expiring = self._max_age is not None
                self._set_careful()
                break
            head = self._memory[0]
            if not self._is_expired(head, now):
                break
            if self._expire_to is not None and self.config.expire_to_queue is not None:
                self._expire_to(self.config.expire_to_queue, head[ADDX_HEADER:])
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

    @property
    def is_timed(self) -> bool:
        """Whether `sweep` or `tick` may have something to do, now or later."""
        return self._expiring or len(self._deadlines) > 0 or self.upkeep_waits

    def sweep(self) -> None:
        """Do what time demands: drop expired items, give back overdue reads."""
        if self._expiring:
            self.discard_expired(self.config.max_expire_sweep)
        if len(self._deadlines):
            self.abort_overdue()

    def abort_overdue(self) -> int:
        """Give back the open reads whose time is up; return how many."""
        return self.give_back(self._deadlines.overdue(self._clock.monotonic(), self.open))

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

    def delete(self) -> None:
        """Drop everything, the journal too. Raises JournalError: it is still there."""
        try:
            self._delete_journal()
        except OSError as error:
            raise self._fail(error) from error
        self._pending.clear()
        self._undo.clear()
        self.open.clear()
        self.close()

    def close(self) -> None:
        """Stop: waiting readers are told; what was collected must have been committed."""
        if self._closed:
            return
        self._closed = self._careful = True
        while self.waiters.line:
            self.waiters.pop().callback(None, 0)
        if self._behind is not None:
            self._behind.close()
        self._close_journal()
