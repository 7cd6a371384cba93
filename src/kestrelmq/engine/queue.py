"""One durable queue: what may be added to it, and who waits for an item.

It is made of layers, each of which knows nothing of the next:

    items    the items that wait, in memory and on disk
    store    open reads, and the journal of every change
    taking   removes, open reads and expiry, at the head
    queue    adds, limits, fanout and waiting readers

Not thread-safe: the server's loop, or the library's lock, goes around it.
"""

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.durability import Commits
from kestrelmq.engine.taking import ExpireTo, Taking
from kestrelmq.engine.waiters import Waiter, Wanted
from kestrelmq.errors import JournalError
from kestrelmq.journal.records import (
    ADDX,
    ADDX_HEADER,
    NO_EXPIRY,
    TIMES_SIZE,
    item,
    item_add_time,
    item_expiry,
    pack_header,
)
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal, NoJournal


class Queue(Taking):
    """A queue that is up.

    Attributes:
        children: fanout queues that receive every item added here.
        reached: what an add must be written to: the children, and this queue.
        create_time: when it came into being (ms), as far as its files can tell.
        restricted: whether only some clients may use it.
        is_draining: whether it takes no items any more, and its journal is to go with the last.
        measured: how long its operations took; it belongs to `metrics`.
        get_misses, discarded, total_flushes: counted since the queue came up.
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
        created: int | None = None,
    ) -> None:
        self.children: tuple[Queue, ...] = ()
        self.reached: tuple[Queue, ...] = (self,)
        self.measured: object = None
        # The header made last, and what for: items are often of one size, and many of one time.
        self._header = b""
        self._header_time = self._header_size = -1
        self.create_time = clock.now() if created is None else created
        self.get_misses = self.discarded = self.total_flushes = 0
        super().__init__(
            name, config, clock, commits, journal or NoJournal(), state or Replay(), expire_to
        )

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force; what is in the queue stays."""
        self.restricted = (
            config.allowed_client_ids_for_dequeue is not None
            or config.allowed_client_ids_for_enqueue is not None
        )
        self._limited = (
            config.max_items is not None
            or config.max_size is not None
            or config.max_item_size is not None
            or config.fanout_only
            or isinstance(self.journal, NoJournal)
        )
        self.is_draining = config.fanout_only and isinstance(self.journal, FileJournal)
        super().configure(config)

    def connect(self, children: tuple["Queue", ...]) -> None:
        """Have `children` receive every item that is added here from now on."""
        self.children = children
        self.reached = (*children, self)

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
            return self.add_record(item(self._clock.now(), expiry, data), expiry)
        # The hot path: as `accept`, with nothing to look out for.
        now = self._clock.now()
        if now != self._header_time or size != self._header_size:
            self._header_time, self._header_size = now, size
            self._header = pack_header(ADDX, size + TIMES_SIZE, now, 0)
        record = self._header + data
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

    def add_record(self, record: bytes, expiry: int = 0) -> bool:
        """Add an item as `item` makes it; otherwise as `add`."""
        for child in self.children:
            child.accept(record, expiry)
        return self.accept(record, expiry)

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
        self._place(record, size)
        self._log(record)
        if self.waiters.line:
            self._serve()
        return True

    def _place(self, record: bytes, size: int) -> None:
        if self._behind is None and (
            self.memory_bytes + size <= self._memory_limit or self._has_room(size)
        ):
            self._memory.append(record)
            self.memory_bytes += size
        else:
            self._put_behind(size)
        self.total_items += 1
        self.put_bytes += size

    @property
    def writes_ahead(self) -> bool:
        """Whether an item may be written, by `begin`, before it is added, by `add_begun`.

        That spares all others the wait while a large one is written.
        """
        return (
            isinstance(self.journal, FileJournal)
            and not self.children
            and not self._closed
            and not self.journal.is_ending
            and self._max_age is None
            and not self.config.fanout_only
        )

    def add_begun(self, record: bytes, file: str, expiry: int = 0) -> bool:
        """Add an item whose record is in a file, as `begin` wrote it; otherwise as `add_record`.

        The file becomes the journal's current one; if the item is not added, it is to be forgotten.

        Raises:
            JournalError: the journal could not be written; the item was not added.
        """
        if not self.writes_ahead:
            self.forget(file)
            return self.add_record(record, expiry)
        size = len(record) - ADDX_HEADER
        if (self._careful or expiry) and self._admit(record, size) is None:
            return False
        # What came before is in the files before.
        self.write_now()
        self._place(record, size)
        try:
            self._adopt(file)
        except JournalError:
            self._take_back_add(record)
            raise
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
            if self._moving or not config.discard_old_when_full:
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

    def has_room(self, size: int) -> bool:
        """Whether an item of `size` bytes would be taken now."""
        self._check_usable()
        config = self.config
        if config.max_item_size is not None and size > config.max_item_size:
            return False
        return config.fanout_only or config.discard_old_when_full or not self._too_full(size)

    def _too_full(self, size: int) -> bool:
        """Whether an item of `size` bytes has to be refused, or older ones dropped for it.

        A limit refuses once it is reached, so that the last item may exceed `max_size`; where older
        items are dropped instead, the queue is within its limits with the new one.
        """
        config = self.config
        if config.max_items is not None and len(self) >= config.max_items:
            return True
        if config.max_size is not None and (
            self.size + size > config.max_size
            if config.discard_old_when_full
            else self.size >= config.max_size
        ):
            return True
        # Without a journal there is nowhere but memory.
        return isinstance(self.journal, NoJournal) and bool(
            self._memory and self.memory_bytes + size > self._memory_limit
        )

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
        """Serve those who wait, in their order; nothing that fails here concerns the caller."""
        line = self.waiters.line
        while line and not self._moving and (self._memory or self._behind is not None):
            waiter = self.waiters.pop()
            try:
                record, xid = self.take_as(waiter.wanted)
            except Exception as error:  # noqa: BLE001 # the reader is told, and it is logged
                waiter.fail(error)
                continue
            if record is None:
                line[waiter] = None
                line.move_to_end(waiter, last=False)
                return
            waiter.serve(record, xid)

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

    # --- counted for the statistics ---

    @property
    def waiting_items(self) -> int:
        """Items waiting, without the open ones."""
        return len(self)

    @property
    def open_reads(self) -> int:
        """Reads that are open, without the expired items that are set aside."""
        return len(self.open) - self.set_aside

    @property
    def waiting_readers(self) -> int:
        """Readers that wait for an item."""
        return len(self.waiters.line)

    # --- as time goes by ---

    @property
    def is_timed(self) -> bool:
        """Whether `sweep` or `tick` may have something to do, now or later."""
        return (
            self._expiring
            or bool(self._aside)
            or self.is_draining
            or len(self._deadlines) > 0
            or self.upkeep_waits
        )

    def sweep(self) -> None:
        """Do what time demands: give back overdue reads, drop or move expired items."""
        if len(self._deadlines):
            self.abort_overdue()
        self.expire(self.config.max_expire_sweep)

    def expire(self, limit: int | None = None) -> int:
        """Drop or move expired items, at most `limit` of the head; return how many are gone."""
        expired = self.expired_items
        if self._aside:
            self.move_aside()
        if self._expiring:
            self.discard_expired(limit)
            self._serve()  # an item may have expired to this queue
        return self.expired_items - expired

    def drop(self) -> None:
        """Stop, for good: the queue is deleted, and nothing of it is needed any more."""
        self._let_go()
        self._pending.clear()
        self._undo.clear()
        self.open.clear()
        self._aside.clear()
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was stopped."""
        return self._closed

    def close(self) -> None:
        """Stop: waiting readers are told; what was collected must have been committed."""
        if self._closed:
            return
        self._closed = self._careful = True
        while self.waiters.line:
            self.waiters.pop().serve(None, 0)
        if self._behind is not None:
            self._behind.close()
        self._close_journal()
        # A queue that is gone must not wait for the collector of cycles.
        self.children = self.reached = ()
