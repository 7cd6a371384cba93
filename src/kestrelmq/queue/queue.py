"""One durable queue, made of parts.

    backlog     the waiting items, in memory or on disk only
    reads       the open reads: which items readers hold, and until when
    changes     what is not in the journal yet, and how to take it back
    delayed     the items that wait until they are due, if there ever were any
    waiters     the readers that wait for an item, first come, first served
    departures  the items that go to other queues: dead letters, and expired ones
    upkeep      what keeps the journal small

An operation changes the parts in memory and collects its records. `commit` writes them with one
write, before any reply is sent. If that fails, the changes are taken back, newest first.

Not thread-safe: the server's loop, or the library's lock, protects it.
"""

import contextlib
import errno
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain, islice
from math import inf
from typing import Final, Protocol

from kestrelmq.clock import Clock, Pause
from kestrelmq.config import QueueConfig
from kestrelmq.config.values import MAX_DURATION
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import (
    JournalError,
    QueueUnavailable,
    ReadersChanged,
    ReservedMemoryFull,
    TagRefused,
)
from kestrelmq.format.describing import describe_records
from kestrelmq.format.notes import (
    delayed_notes,
    flushed_note,
    item_note,
    joined_note,
    uncounted_unremove,
)
from kestrelmq.format.records import (
    ADDX,
    ADDX_HEADER,
    NO_EXPIRY,
    REMOVE_RECORD,
    REMOVE_TENTATIVE_RECORD,
    TIMES_SIZE,
    Item,
    NotedItem,
    confirm_remove,
    confirm_removes,
    first_xid,
    item,
    item_add_time,
    item_expiry,
    item_size,
    kept_xid,
    noted,
    pack_header,
    record_of,
    save_xid,
    unremove,
    waiting_again,
)
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.delayed_items import DelayedItems, entry_number
from kestrelmq.journal.life import (
    ASIDE,
    CONFIRM,
    CONFIRM_KEPT,
    GIVE_BACK,
    HOLD_BACK,
    LOSE,
    PUT_ASIDE,
    READ,
    RESERVE,
    RESTART,
    RETRYING,
)
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.open_read import OpenRead, Reservation, ReserveTerms
from kestrelmq.journal.producers import MAX_PRODUCERS, marked
from kestrelmq.journal.read_table import NO_READS, ReadTable
from kestrelmq.journal.reader import LargeRecord
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.reserved_reads import (
    done_note,
    held_back_note,
    reserved_note,
    retired_note,
    unreserved_note,
)
from kestrelmq.journal.shared_empty import NOBODY, own_line
from kestrelmq.journal.writer import FileJournal, JournalRemoval, NoJournal
from kestrelmq.queue.backlog import Backlog
from kestrelmq.queue.changes import (
    Changes,
    HeadDropped,
    ReadsChanged,
)
from kestrelmq.queue.departures import MIN_ASIDE_LIMIT, Departures, MoveTo
from kestrelmq.queue.limits import NO_LIMITS, QueueLimits
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.reads import OpenReads
from kestrelmq.queue.refusals import RefusalReason, Refusals
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.durability import Committable, GroupCommit
from kestrelmq.scheduling.worker import LARGE_ITEM, Worker, run_to_end
from kestrelmq.tags import parse_tag
from kestrelmq.upkeep.upkeep import Upkeep

_MAX_DOUBLINGS: Final = 64
"""Deliveries after which the retry delay does not grow any more."""
_RETRY: Final = 1.0
"""Seconds after a failure until overdue reads are given back, or delayed items join, again."""
_BUSY_RETRY: Final = 0.01
"""Seconds until deadlines are looked at again because the journal is being written."""
JOINED_AT_ONCE: Final = 200
"""Most delayed items that join at once: this takes one or two milliseconds."""
_TIME_IS_UP: Final = "its time is up"
_GIVEN_BACK_AT_ONCE: Final = 500
"""Most reads that are given back when an epoch is retired, before others are served."""
_FLUSHED_AT_ONCE: Final = 500
"""Items that a flush drops at once of those that wait for their retry delay."""
_DISCARDED_AT_ONCE: Final = 2000
"""Most items that make room for others at once."""
_DISCARDED_BYTES: Final = 16 << 20
"""Bytes of such items, after which no more are dropped: they may have to be read from disk."""
_EXPIRED_AT_ONCE: Final = 500
"""Expired items that are dropped or moved before others are served."""
_BURIED_AT_ONCE: Final = 100
"""Dead letters that a restart left, which are moved before others are served."""
RESERVED_MEMORY: Final = 4 << 20
"""Bytes of memory that the reserved items of a queue may always take."""
MAX_TAGS: Final = 10_000
"""Most tags of a queue that are open or done."""
MAX_TAG_NAMES: Final = 10_000
"""Most names of which a queue remembers the last retired epoch."""
_RETIRED_FOR: Final = 30 * 86_400_000
"""Milliseconds for which it does so, after the last time."""
_NOTED_AGAIN: Final = 86_400_000
"""Milliseconds after which an epoch that is retired again is written again."""

NO_ROOM: Final = "the disk has less room than min_free_disk, so nothing is added"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = get_logger(__name__)


class ReadsReturn(Protocol):
    """Many open reads of a queue that are given back in pieces."""

    def oldest(self) -> int | None:
        """Return the xid of the oldest that was not given back; None if there may be none."""

    def give_back(self, xids: Sequence[int]) -> None:
        """Give some of them back, such that the first of `xids` is the head."""

    def give_back_some(self) -> bool:
        """Give back the youngest; return whether there are more."""


def _item_of(read: OpenRead) -> Item:
    return read.item


def _any_expires(items: Iterable[Item]) -> bool:
    """Whether any of these items can expire."""
    for one in items:  # noqa: SIM110 # compiled, a generator would go through all of them
        if record_of(one)[13:21] != NO_EXPIRY:
            return True
    return False


def _xids_of(reads: Sequence[OpenRead]) -> Sequence[int]:
    """Return the xids of reads; a range if they are consecutive."""
    first, count = reads[0].xid, len(reads)
    for place in range(count):
        if reads[place].xid != first + place:
            return tuple([read.xid for read in reads])
    return range(first, first + count)


class Queue(Committable):
    """A queue that is loaded and can be used.

    Attributes:
        name: the queue's name.
        config: the settings in force.
        paused: what is paused; `pause` changes it.
        journal: where the items are written.
        backlog, reads, changes, waiters: its parts.
        children: fanout queues that receive every item added here.
        targets: the queues whose journals an add must be written to: the children, and this queue.
        create_time: when it was created (ms), as far as its files can tell.
        restricted: whether only some clients may use it.
        histograms: how long its operations took; managed by `metrics`.
        browsed_as: a random number that the places of its items begin with; managed by `browsing`.
        failure: why the last attempt to write the journal failed; None if it succeeded.
        refusals: how many requests were refused, by reason.
        get_hits, get_misses, discarded, expired_items, dead_lettered, redelivered, total_flushes,
            transactions, canceled_transactions: counted since the queue was loaded or created.
    """

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        clock: Clock,
        commits: GroupCommit,
        *,
        journal: FileJournal | NoJournal | None = None,
        state: Replay | None = None,
        move_to: MoveTo | None = None,
        created: int | None = None,
    ) -> None:
        """Start with `state`, which was replayed from `journal`.

        Its open reads are given back, except those that are reserved. `open_journal` opens the
        journal.
        """
        self.name = name
        self.config = config
        self.journal = journal = journal or NoJournal()
        self._clock = clock
        self._commits = commits
        self._departures = Departures(move_to, commits, clock)
        state = state or Replay()
        reserved = state.reserved
        given_back = sorted(
            [xid for xid, read in state.open.items() if read.reservation is None], reverse=True
        )
        for xid in given_back:
            state.end_read(RESTART, xid)
        # In the journal these reads are still open. The first write adds that they are given back,
        # or what became of them.
        prelude = [save_xid(state.last_xid)] if state.is_note_cut else []
        prelude += [*map(unremove, given_back), *map(confirm_remove, sorted(reserved.unconfirmed))]
        self.changes = Changes(b"".join(prelude))
        self.backlog = Backlog(name, journal, state, len(given_back))
        self.reads = OpenReads(state.last_xid, config.journal_dialect, reserved)
        self.waiters: OrderedDict[Waiter, None] = NOBODY
        self._upkeep = (
            Upkeep(
                journal,
                self.backlog,
                self.reads,
                self.changes,
                commits.worker,
                clock,
                config,
                self.write_now,
            )
            if isinstance(journal, FileJournal)
            else None
        )
        self._delayed = state.delayed
        # Since when delayed items may join, after a write that failed (monotonic seconds).
        self._join_at = 0.0
        if self._upkeep is not None:
            self._upkeep.delayed = self._delayed
        self.children: tuple[Queue, ...] = ()
        self.targets: tuple[Queue, ...] = (self,)
        self.histograms: object = None
        self.browsed_as = 0
        self.create_time = clock.now() if created is None else created
        self.failure: JournalError | None = None
        self.refusals = Refusals(name, clock)
        self.get_hits = self.get_misses = self.discarded = 0
        self.expired_items = self.dead_lettered = 0
        self.redelivered = len(given_back)
        self.total_flushes = self.transactions = self.canceled_transactions = 0
        # The last header made, with its time and size: items often have one size, and many of them
        # one add time.
        self._header = b""
        self._header_time = self._header_size = -1
        # What is being given back in pieces, what began first before the rest; and whether the
        # oldest of it is just being given back.
        self._returning: tuple[ReadsReturn, ...] = ()
        # Whether a flush is going on, and which of the items that wait for their retry delay it is
        # to drop.
        self._brings_oldest = self._is_flushing = False
        self._flushed: ReadTable[OpenRead] = NO_READS
        # Whether older items are still to be dropped because the queue is full; whether a thread
        # is reading the head, which is large; and whether it could not do so the last time.
        self._has_excess = self._is_reading_large = self._is_unreadable = False
        # Whether an expired item can neither be moved nor be set aside, so that the items behind it
        # cannot be read.
        self._is_blocked = False
        # Whether it was closed; whether nothing may be added or taken, as far as `tick` knows: see
        # `_is_suspect`.
        self._closed = self._was_suspect = False
        # The records that the writer writes.
        self._sent: list[bytes] = []
        # Whether items at the head may have been delivered `max_deliveries` times: those whose
        # reads were open when the server stopped. And how many items were behind those.
        self._may_have_dead_head = bool(given_back) and config.max_deliveries is not None
        self._behind_given_back = len(self.backlog) - len(given_back)
        self.paused = Paused.NOTHING
        # Whether any item that waits, or that may wait again, can expire.
        self._expiring = (
            self.backlog.behind is not None
            or _any_expires(self.backlog.front)
            or _any_expires(self.backlog.memory)
            or _any_expires(map(_item_of, self.reads.open.values()))
        )
        self.configure(config)
        self.backlog.producers.start_clock(clock)
        if reserved.count:
            self.reads.reservations.begin_leases(clock.monotonic())

    def open_journal(self) -> None:
        """Open the journal, which was only loaded until now. Raises OSError.

        A queue that is `fanout_only` gets no file before it takes items.
        """
        journal = self.journal
        if isinstance(journal, FileJournal) and not (journal.is_new and self.config.fanout_only):
            journal.open()
        if self.next_deadline is not None:
            self._commits.watch_deadlines(self)

    # --- settings ---

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force; the queue keeps its items.

        `keep_journal` and `journal_dialect` must be as they are: those that it was made with.

        This is the one place that knows which part each setting concerns.
        """
        readers = config.allowed_client_ids_for_dequeue
        if readers is not None and readers != self.config.allowed_client_ids_for_dequeue:
            self._refuse_waiters()
        self.config = config
        self.restricted = (
            config.allowed_client_ids_for_dequeue is not None
            or config.allowed_client_ids_for_enqueue is not None
        )
        self._set_limits()
        if self._limits.max_age is not None:
            self._expiring = True
        self._timeout = config.open_transaction_timeout
        self.backlog.producers.ttl = round(config.producer_ttl * 1000)
        self._is_traced = config.enable_trace
        self._sync_period = config.sync_journal
        holds_too_much = self.backlog.limit_memory(config.max_memory_size)
        if self._upkeep is not None:
            self._upkeep.configure(config)
        self._set_needs_checks()
        if holds_too_much and self._upkeep is not None:
            with contextlib.suppress(JournalError):  # if it fails, memory is trimmed later
                self.write_now()
            self._upkeep.trim_memory()

    def _set_limits(self) -> None:
        """Compute the limits anew; `_set_needs_checks` must follow."""
        memory_only = isinstance(self.journal, NoJournal)
        self._limits = QueueLimits.of(self.config, self.paused, memory_only=memory_only)
        self._is_limited = self._limits != NO_LIMITS

    def pause(self, paused: Paused) -> None:
        """Pause these operations from now on, and no others.

        While reads are paused, the queue answers readers as if it were empty, and those that wait
        go on waiting. While writes are paused, `add` raises QueueUnavailable. A fanout child is
        then passed over, as a full one is. Open reads can always be ended.
        """
        self.paused = paused
        self._commits.note_change(self)
        self._set_limits()
        self._set_needs_checks()
        if self.waiters:
            self.serve_waiting()

    def _set_needs_checks(self) -> None:
        """Set whether operations, and whether reads, must check anything; see `QueueLimits`."""
        self._read_needs_checks = (
            self._expiring
            or self._closed
            or self._was_suspect
            or self._limits.reads_paused
            or self._may_have_dead_head
            or self.is_returning
        )
        self._needs_checks = self._read_needs_checks or self._is_limited

    def connect(self, children: tuple["Queue", ...]) -> None:
        """Make `children` receive every item that is added here from now on."""
        self.children = children
        self.targets = (*children, self)

    # --- contents ---

    def __len__(self) -> int:
        """Number of waiting items, without the open ones."""
        return len(self.backlog)

    @property
    def waiting_items(self) -> int:
        """Number of waiting items, without the open ones."""
        return len(self.backlog)

    @property
    def open_reads(self) -> int:
        """Number of open reads that a reader has."""
        return self.reads.held

    @property
    def waiting_readers(self) -> int:
        """Number of readers that wait for an item."""
        return len(self.waiters)

    @property
    def size(self) -> int:
        """Bytes of data in the waiting items."""
        return self.backlog.size

    @property
    def memory_items(self) -> int:
        """Number of items held in memory."""
        return self.backlog.memory_items

    @property
    def held_items(self) -> int:
        """Number of all items in memory: those that wait, open reads, and delayed ones."""
        return self.backlog.memory_items + len(self.reads.open) + self.delayed_items

    @property
    def read_behind(self) -> bool:
        """Whether part of the queue is on disk only."""
        return self.backlog.behind is not None

    @property
    def reads_paused(self) -> bool:
        """Whether readers find the queue empty."""
        return self._limits.reads_paused

    @property
    def writes_paused(self) -> bool:
        """Whether adding is refused."""
        return self._limits.writes_paused

    @property
    def oldest(self) -> int:
        """When the item at the head was added (ms); 0 if no item is in memory."""
        return self.backlog.oldest

    @property
    def age(self) -> int:
        """How long the last item that was read had waited (ms); 0 if the queue is empty."""
        return self.changes.last_wait if len(self.backlog) else 0

    @property
    def open(self) -> ReadTable[OpenRead]:
        """The open reads by xid."""
        return self.reads.open

    @property
    def last_xid(self) -> int:
        """The last-used xid."""
        return self.reads.last_xid

    @property
    def set_aside(self) -> int:
        """Number of expired items that wait until they can be moved."""
        return len(self.reads.aside)

    @property
    def delayed(self) -> int:
        """Number of items that wait until they may be read: delayed ones, and retries."""
        return len(self.reads.retrying) + self.delayed_items

    @property
    def delayed_items(self) -> int:
        """Number of delayed items that are not due yet."""
        return len(self._delayed) if self._delayed is not None else 0

    @property
    def remembers_requests(self) -> bool:
        """Whether it knows which items of producers it has stored, or which tags are done.

        Clients may repeat such requests, and the answers must be the same. Retired epochs do not
        count: they are never forgotten.
        """
        return bool(self.reads.reserved.done or len(self.backlog.producers))

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to write the journal failed, or it `lacks_room`."""
        return self.lacks_room or self.failure is not None

    @property
    def lacks_room(self) -> bool:
        """Whether an add was refused for want of disk space, and none succeeded since."""
        no_room = self.refusals.no_room
        return no_room is not None and no_room[1] == self.backlog.total_items

    @property
    def fullness(self) -> RefusalReason | None:
        """Why any item would be refused now, because of what the queue holds; or None."""
        return None if self.config.discard_old_when_full else self._too_full(0)

    @property
    def problem(self) -> str | None:
        """What is wrong with the journal; None if nothing is."""
        if self.failure is not None:
            return str(self.failure)
        if self.lacks_room and self.refusals.no_room is not None:
            return f"queue {self.name}: {self.refusals.no_room[0]}"
        return None

    def is_held(self, xid: int) -> bool:
        """Whether a reader has the open read `xid`."""
        return self.reads.is_held(xid)

    def browse(self, count: int) -> list[Item]:
        """Return at most `count` of the first items in memory, without taking them."""
        return self.backlog.browse(count)

    def sample(self, number: int) -> int | None:
        """Return the opcode of one of the collected records, which `number` selects, if any."""
        pending = self.changes.pending
        return pending[number % len(pending)][0] if pending else None

    # --- adding ---

    def add(self, data: bytes, expiry: int = 0) -> bool:
        """Add an item here and to every fanout child, the children first.

        Args:
            data: the item.
            expiry: when it expires (ms since the epoch), 0 for never.

        Returns:
            False if this queue refused the item: the queue is full, or the item is too large.

        Raises:
            QueueUnavailable: as `check_writes`, or the queue was closed.
        """
        size = len(data)
        backlog = self.backlog
        behind = backlog.behind
        if (
            self._needs_checks
            or expiry
            or self.children
            or self._commits.is_disk_short
            or size >= LARGE_ITEM
            or (behind is None and backlog.memory_bytes + size > backlog.memory_limit)
        ):
            return self.add_record(item(self._clock.now(), expiry, data), expiry)
        # The hot path: as `accept`, with nothing to check.
        record = self._new_header(size) + data
        if behind is None:
            backlog.memory.append(record)
            backlog.memory_bytes += size
        else:
            behind.items += 1
            behind.bytes += size
        backlog.total_items += 1
        backlog.put_bytes += size
        pending = self.changes.pending
        if not pending:
            self._commits.dirty.append(self)
        pending.append(record)
        if self.waiters:
            self.serve_waiting()
        return True

    def _new_header(self, size: int) -> bytes:
        """Return the header of an item of `size` bytes that is added now and never expires."""
        now = self._clock.now()
        if now != self._header_time or size != self._header_size:
            self._header_time, self._header_size = now, size
            self._header = pack_header(ADDX, size + TIMES_SIZE, now, 0)
        return self._header

    def add_alone(self, record: bytes, expiry: int = 0) -> bool:
        """Do what `add_record` does, but not for the children."""
        self.check_writes()
        return self.accept(record, expiry)

    def add_record(self, one: Item, expiry: int = 0) -> bool:
        """Do what `add` does, for an item that is already a record (see `records.item`)."""
        self.check_writes()
        if not self.children:
            return self.accept(one, expiry)
        return self.accept_in_all(lambda queue: queue.accept(one, expiry))

    def accept_in_all(self, accept: Callable[["Queue"], bool]) -> bool:
        """Let `accept` add an item to each child, then to this queue; return its answer for this.

        A child that cannot be written does not stop the others; its error is raised at the end.

        Raises:
            QueueUnavailable: this queue cannot take the item.
            JournalError: one of the queues could not be written; the others have the item.
        """
        failure: str | None = None  # keeping the exception itself would be a reference cycle
        for child in self.children:
            try:
                accept(child)
            except JournalError as error:
                failure = str(error)
        is_stored = accept(self)
        if failure is not None:
            raise JournalError(failure)
        return is_stored

    def check_writes(self) -> None:
        """Raise QueueUnavailable if the queue is paused for writes, or the disk has no room."""
        if self._limits.writes_paused:
            self.refusals.count("paused")
            raise QueueUnavailable(f"queue {self.name} is paused for writes")
        if self._is_disk_short:
            self.refusals.count("disk")
            self._note_no_room(NO_ROOM)
            raise QueueUnavailable(f"queue {self.name}: {NO_ROOM}")

    @property
    def _is_disk_short(self) -> bool:
        """Whether adds are refused because the disk has too little room, for any journal."""
        return self._commits.is_disk_short and any(
            isinstance(one.journal, FileJournal) for one in self.targets
        )

    def _note_no_room(self, reason: str) -> None:
        """Take note that an add was refused for want of disk space."""
        self.refusals.no_room = (reason, self.backlog.total_items)
        self._commits.note_change(self)

    def accept(self, one: Item, expiry: int = 0) -> bool:
        """Add an item, whose record several queues may share, to this queue only; as `add`."""
        record = record_of(one)
        size = len(record) - ADDX_HEADER
        if self._needs_checks or expiry:
            if self._limits.fanout_only:
                return True
            admitted = self._admit(record, size)
            if admitted is None:
                return False
            record = admitted
        if isinstance(one, NotedItem):
            one = noted(record, one.deliveries, one.letter)
            self._append_noted(one, size, item_note(one, self.reads.last_xid))
        else:
            self._append(record, size)
            self._collect(record)
        if self.waiters:
            self.serve_waiting()
        return True

    def _append_noted(self, one: Item, size: int, note: bytes) -> None:
        """Append an item that is written with a note before it, unless that is empty."""
        self._append(one, size)
        if note:
            self._collect(note)
            self.changes.undo.append(())  # the note goes with the item
        self._collect(record_of(one))

    def _append(self, one: Item, size: int) -> None:
        """Append an item to the backlog; its record is not collected yet."""
        backlog = self.backlog
        if backlog.behind is None and not self._limits.memory_only and not backlog.has_room(size):
            backlog.enter_read_behind(self.changes.size)
        backlog.append(one, size)

    def _admit(self, record: bytes, size: int) -> bytes | None:
        """Return the record to add, its expiry limited to `max_age`; None if it is refused."""
        self._check_usable()
        self.check_not_suspect()
        limits = self._limits
        if limits.writes_paused:
            self.refusals.count("paused")
            return None
        if limits.max_item_size is not None and size > limits.max_item_size:
            self.refusals.count("too_large")
            return None
        if self._expiring:
            most = self.config.max_expire_sweep
            self.discard_expired(_EXPIRED_AT_ONCE if most is None else min(most, _EXPIRED_AT_ONCE))
            while self._too_full(size) is not None and self.discard_expired(_EXPIRED_AT_ONCE):
                pass
        full = self._too_full(size)
        if full is not None:
            if self._departures.is_moving or not self.config.discard_old_when_full:
                self.refusals.count(full)
                return None
            full = self._make_room(size)
            if full is not None and self.delayed_items:
                self.refusals.count(full)
                return None
        if limits.max_age is not None:
            added = item_add_time(record)
            expiry = self.limited_expiry(added, item_expiry(record))
            if expiry != item_expiry(record):
                header = pack_header(ADDX, size + TIMES_SIZE, added, expiry)
                record = b"".join((header, memoryview(record)[ADDX_HEADER:]))
        if record[13:21] != NO_EXPIRY:
            self._expiring = self._needs_checks = self._read_needs_checks = True
        return record

    def limited_expiry(self, added: int, expiry: int) -> int:
        """Return when an item expires here (ms), if no limit is 0: `max_age` may be earlier."""
        max_age = self._limits.max_age
        if max_age is None or (expiry and expiry <= added + max_age):
            return expiry
        return added + max_age

    def has_room(self, size: int) -> bool:
        """Whether an item of `size` bytes would be accepted now."""
        self._check_usable()
        limits = self._limits
        if limits.writes_paused or self._is_suspect or self._is_disk_short:
            return False
        if limits.max_item_size is not None and size > limits.max_item_size:
            return False
        makes_room = limits.fanout_only or self.config.discard_old_when_full
        return makes_room or self._too_full(size) is None

    def _make_room(self, size: int, added: int = 1) -> RefusalReason | None:
        """Drop the oldest items until `added` more, of `size` bytes, are within the limits.

        If very many have to go, the next sweep drops the rest, unless memory must hold all items.
        If none is to be added, the last one stays: an item may be larger than `max_size` alone.

        Returns:
            Which limit still is exceeded, although nothing more can be dropped.
        """
        count, bytes_before = 0, self.backlog.size
        while (full := self._too_full(size, added)) is not None:
            dropped = bytes_before - self.backlog.size
            if not self._limits.memory_only and (
                count >= _DISCARDED_AT_ONCE or dropped >= _DISCARDED_BYTES
            ):
                self._has_excess, full = True, None
                break
            if not added and len(self.backlog) + self.delayed_items < 2:
                break
            if not self._drop_oldest():
                break
            count += 1
        self.discarded += count
        return full

    def _too_full(self, size: int, added: int = 1) -> RefusalReason | None:
        """Return why an item of `size` bytes must be refused, or older ones dropped; or None.

        `added` is 0 if none is to be added.

        Items are refused once a limit is reached, so the last accepted one may exceed `max_size`.
        If older items are dropped instead, the queue stays within its limits with the new one.
        """
        limits, backlog, delayed = self._limits, self.backlog, self._delayed
        items, held = len(backlog), backlog.size
        if delayed is not None:
            items, held = items + len(delayed), held + delayed.size
        if limits.max_items is not None and items + added > limits.max_items:
            return "full_items"
        if limits.max_size is not None and (
            held + size > limits.max_size
            if self.config.discard_old_when_full
            else held >= limits.max_size
        ):
            return "full_bytes"
        if limits.memory_only and items and held + size > backlog.memory_limit:
            return "memory"
        return None

    def put(self, data: bytes, expiry: int, due: int, mark: PutMark | None) -> bool:
        """Do what `add_once` does, or without a mark `add_delayed` or `add`."""
        if mark is not None:
            return self.add_once(data, mark, expiry, due=due)
        return self.add_delayed(data, due, expiry) if due else self.add(data, expiry)

    def put_record(self, record: bytes, due: int, mark: PutMark | None) -> bool:
        """Do what `put` does, for a record; if the item is `due`, that is its add time."""
        if mark is not None:
            return self.add_record_once(record, mark, is_delayed=due > 0)
        if due:
            return self.add_record_delayed(record)
        return self.add_record(record, item_expiry(record))

    # --- items of producers ---

    def add_once(self, data: bytes, mark: PutMark, expiry: int = 0, *, due: int = 0) -> bool:
        """Do what `add` or `add_delayed` does, unless the producer added this item before.

        It did if the queue remembers an item of it with this number, or a greater one. Then nothing
        is stored, and the answer is the same. Each fanout child decides for itself: if one of them
        could not be written at first, it gets the item when the producer tries again.

        Args:
            data: the item.
            mark: whose it is, and its number.
            expiry: when it expires (ms since the epoch), 0 for never.
            due: from when on it waits (ms since the epoch), 0 for now.

        Returns:
            False also if the mark is `after` an item that was not added.

        Raises:
            QueueUnavailable: as `add_delayed`; or there are too many producers.
        """
        if due or expiry:
            record = item(due or self._clock.now(), expiry, data)
        else:
            record = self._new_header(len(data)) + data
        return self.add_record_once(record, mark, is_delayed=due > 0)

    def add_record_once(self, record: bytes, mark: PutMark, *, is_delayed: bool = False) -> bool:
        """Do what `add_once` does, for an item that is already a record."""
        self.check_writes()
        last = self.last_number(mark.producer)
        if mark.after > last and not self._limits.fanout_only:
            return False
        if last < 0 and self.backlog.producers.is_full:
            raise QueueUnavailable(f"queue {self.name} has items of {MAX_PRODUCERS} producers")
        if not self.children:
            return self._accept_after(last, record, mark, is_delayed=is_delayed)
        return self.accept_in_all(
            lambda queue: queue.accept_once(
                record, mark if queue is self else mark.by_master(), is_delayed=is_delayed
            )
        )

    def accept_once(self, record: bytes, mark: PutMark, *, is_delayed: bool) -> bool:
        """Do what `add_record_once` does, for this queue only."""
        last = self.last_number(mark.producer)
        return self._accept_after(last, record, mark, is_delayed=is_delayed)

    def _accept_after(self, last: int, record: bytes, mark: PutMark, *, is_delayed: bool) -> bool:
        """Do what `accept_once` does; `last` is the number of the producer's last item."""
        if self._limits.fanout_only:
            return True
        if mark.sequence <= last:
            self.sync_again()
            return True
        if last < 0 and self.backlog.producers.is_full:
            return False
        if is_delayed:
            return self.accept_delayed(record, mark)
        if self._needs_checks or record[13:21] != NO_EXPIRY:
            admitted = self._admit(record, len(record) - ADDX_HEADER)
            if admitted is None:
                return False
            record = admitted
        self._append_marked(record, mark)
        if self.waiters:
            self.serve_waiting()
        return True

    def last_number(self, producer: bytes) -> int:
        """Return the number of the producer's last item, delayed or not; -1 if it is unknown."""
        producers = self.backlog.producers
        now = producers.now()
        producers.forget_old(now)
        return producers.last(producer, now)

    def sync_again(self) -> None:
        """Let the answer wait until what was written earlier is on disk, if it must be."""
        if self._sync_period is not None:
            self._schedule_sync(self._sync_period)

    def _append_marked(self, record: bytes, mark: PutMark) -> None:
        """Append an item that is written with a note before it, of its producer."""
        self._append(record, len(record) - ADDX_HEADER)
        self._note_producer(record, mark)
        self._collect(record)

    def _note_producer(self, record: bytes, mark: PutMark) -> None:
        """Collect the note that a producer adds an item, which is collected next."""
        producers = self.backlog.producers
        added = producers.now() // 1000
        self._collect(marked(record, mark, added, self.reads.last_xid))
        before = producers.set(mark, added)
        self.changes.undo.append((producers.restore, mark.producer, before))

    # --- delayed items ---

    def add_delayed(self, data: bytes, due: int, expiry: int = 0) -> bool:
        """Do what `add` does, but let the item wait at the tail only from `due` (ms) on.

        It counts towards the limits at once, and is then added without a check.

        Raises:
            QueueUnavailable: the queue was closed, or is paused for writes.
        """
        return self.add_record_delayed(item(due, expiry, data))

    def add_record_delayed(self, record: bytes) -> bool:
        """Do what `add_delayed` does, for a record whose add time is when the item is due."""
        self.check_writes()
        return self.accept_in_all(lambda queue: queue.accept_delayed(record))

    def accept_delayed(self, record: bytes, mark: PutMark | None = None) -> bool:
        """Do what `add_delayed` does, for this queue only.

        The add time of `record` is when it is due; `mark` is that of its producer, if it has one.
        """
        if self._limits.fanout_only:
            return True
        size = len(record) - ADDX_HEADER
        admitted = self._admit(record, size)
        if admitted is None:
            return False
        delayed = self._delayed
        if delayed is None:
            delayed = self._delayed = DelayedItems()
            if self._upkeep is not None:
                self._upkeep.delayed = delayed
        if not delayed.has_room(size, self.config.max_memory_size):
            self.refusals.count("memory")
            return False
        if mark is not None:
            self._note_producer(admitted, mark)
        number = delayed.last_number + 1
        self._collect(delayed_notes(number, admitted, self.reads.last_xid))
        key = delayed.add(number, admitted)
        self.changes.undo.append((delayed.take_back, key, size))
        self._commits.watch_deadlines(self)
        return True

    def confirm_held(self, xids: Sequence[int]) -> None:
        """Confirm open reads that no reader has, and write that.

        Raises:
            JournalError: they are as they were.
        """
        if not xids:
            return
        self.write_now()
        self._write_at_once(confirm_removes(xids))
        self.reads.end_all(xids)
        if self.changes.places is not None:
            self.changes.places.forget(xids)

    def _write_at_once(self, records: bytes) -> None:
        """Write records of changes that are not made yet. Raises JournalError: do not make them."""
        if self.is_writing:
            raise JournalError(f"queue {self.name}: a large item is being written")
        try:
            self.journal.append(self.changes.prelude + records)
        except OSError as error:
            raise self._fail(error) from error
        self.changes.prelude = b""
        self._commits.dirty.append(self)  # the journal grew, so the commit must check upkeep

    def _join_due(self) -> None:
        """Add some of the delayed items that are due, and write that.

        If it cannot be written, they are still delayed, and it is tried again a second later.
        """
        delayed, at, now = self._delayed, self._clock.monotonic(), self._clock.now()
        if delayed is None or self._closed or at < self._join_at:
            return
        count = size = 0
        while count < JOINED_AT_ONCE and size < LARGE_ITEM:
            due = delayed.next_due
            if due is None or due > now:
                break
            size += self._join_next(delayed)
            count += 1
        if not count:
            return
        try:
            self.write_now()
        except BaseException as error:
            self._join_at = at + _RETRY
            if not isinstance(error, JournalError):
                raise
            return
        if self.is_writing:
            self._commits.after_writing((self,), self._have_joined)
        elif self.waiters:
            self.serve_waiting()

    def _have_joined(self, failure: JournalError | None) -> None:
        """Take note that delayed items, one of them large, are written here, or are not."""
        if failure is not None:
            self._join_at = self._clock.monotonic() + _RETRY
        elif self.waiters:
            self.serve_waiting()
        if self.next_deadline is not None:
            self._commits.watch_deadlines(self)

    def _join_next(self, delayed: DelayedItems) -> int:
        """Add the delayed item that is due first; return how many bytes of data it has."""
        entry = delayed.take()
        record = entry[1]
        size = len(record) - ADDX_HEADER
        self._collect(joined_note(entry_number(entry), self.reads.last_xid))
        self.changes.undo.append((delayed.restore, entry))
        self._append(record, size)
        self._collect(record)
        if record[13:21] != NO_EXPIRY:
            self._expiring = self._needs_checks = self._read_needs_checks = True
        return size

    # --- taking ---

    def remove(self) -> bytes | None:
        """Remove the head and return its record; None if the queue is empty.

        Raises:
            QueueUnavailable: the queue was closed, or its items could not be read.
        """
        one = self._remove()
        return None if one is None else record_of(one)

    def _remove(self) -> Item | None:
        backlog = self.backlog
        if (
            self._read_needs_checks
            or backlog.memory_bytes < backlog.refill_below
            or backlog.front
            or not backlog.memory
        ):
            taken = self._take()
            if taken is None:
                return None
        else:
            taken = backlog.memory.popleft()
            backlog.memory_bytes -= item_size(taken)
            self.get_hits += 1
        changes = self.changes
        pending = changes.pending
        if not pending:
            self._commits.dirty.append(self)
        pending.append(REMOVE_RECORD)
        changes.undo.append(taken)
        return taken

    def open_read(self, timeout: float | None = None) -> tuple[int, bytes] | None:
        """Open a read of the head: keep it for its reader until it is confirmed or given back.

        Args:
            timeout: seconds after which it is given back; None for the queue's setting.

        Returns:
            The read's xid and the item; None if the queue is empty.

        Raises:
            QueueUnavailable: as `remove`.
        """
        self.transactions += 1
        read = self._open_head(timeout)
        return None if read is None else (read.xid, read.record)

    def _open_head(self, timeout: float | None) -> OpenRead | None:
        taken = self._take()
        if taken is None:
            return None
        read = self._open(taken, by_reader=True)
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None:
            self._set_deadline(read, timeout)
        return read

    def open_next(
        self, most: int, most_bytes: int, mode: ReadMode = ReadMode.OPEN
    ) -> list[tuple[int, bytes]]:
        """Open reads of several items as one change; faster than `open_read` for each.

        Args:
            most: the most items.
            most_bytes: after so many bytes of data, no more items are taken.
            mode: OPEN or HOLD.

        Returns:
            The reads' xids and the items. If it is empty, call `open_read`.
        """
        reads, _ = self._open_from_memory(most, most_bytes)
        if mode is ReadMode.OPEN:
            self.transactions += len(reads)
        else:
            for read in reads:
                read.is_plain = True
        if reads and self._timeout is not None:
            deadline = self._clock.monotonic() + self._timeout
            for read in reads:
                self.reads.set_deadline(read, deadline)
            self._commits.watch_deadlines(self)
        return [(read.xid, read.record) for read in reads]

    def _open(self, taken: Item, *, by_reader: bool) -> OpenRead:
        """Open a read of an item that was the head; return it."""
        last = self.reads.last_xid
        read, records = self.reads.open_read(taken)
        self._collect(records)
        event = READ if by_reader else PUT_ASIDE
        self.changes.undo.append(ReadsChanged(event, (read.xid,), [read], last))
        return read

    def _take(self) -> Item | None:
        if self._read_needs_checks:
            self.check_not_suspect()
        if not self._has_head():
            return None
        backlog = self.backlog
        if backlog.behind is not None and backlog.memory_bytes < backlog.refill_below:
            self._read_back(at_once=False)
        self.get_hits += 1
        return backlog.take()

    def peek(self) -> bytes | None:
        """Return the record of the head without taking it; None if the queue is empty."""
        head = self._peek()
        return None if head is None else record_of(head)

    def _peek(self) -> Item | None:
        if self.is_returning and not self._limits.reads_paused:
            xid = self._oldest_returning()
            oldest = None if xid is None else self.reads.open[xid].item
            if oldest is not None and not self._is_expired(oldest, self._clock.now()):
                return oldest
        return self.backlog.head if self._has_head() else None

    def head(self) -> Item | None:
        """Return the head without taking it, also while reads are paused; None if there is none."""
        return self.backlog.head if self._has_head(although_paused=True) else None

    def hold_head(self) -> int:
        """Open a read of the head, which `head` returned, without a time limit; return its xid.

        It is no transaction.
        """
        read = self._open(self.backlog.take(), by_reader=True)
        read.is_plain = True
        return read.xid

    def hold_back(self, xids: Sequence[int]) -> None:
        """Take note that these reads, which were just opened, are no deliveries.

        So a restart, which gives them back, does not count them.
        """
        for xid in xids:
            self.reads.open[xid].is_counted = False
        self._collect(held_back_note(xids, self.reads.last_xid))
        self._note_change(HOLD_BACK, xids, [])

    @property
    def is_settled(self) -> bool:
        """Whether a read takes only a short time; otherwise see `settle`."""
        backlog = self.backlog
        if backlog.behind is not None and backlog.head is None:
            return False
        if self._must_bury and self._departures.has_dead_head(self):
            return False
        if not self._expiring or len(backlog) <= _EXPIRED_AT_ONCE:
            return True
        head = backlog.head
        return head is not None and not self._is_expired(head, self._clock.now())

    def settle(self) -> bool:
        """Prepare a read a bit: read the head back, and drop or move some items before it.

        Those have expired, or are dead letters that a restart left. A read does so at once, which
        may take long if they are many, or if the head is large and on disk. Whoever can wait calls
        this first, and lets others be served in between.

        Returns:
            False if there may be more to do. Raises as `remove`.
        """
        backlog = self.backlog
        if backlog.head is None and backlog.behind is not None and not self._reads_head():
            return False
        if self.discard_expired(_EXPIRED_AT_ONCE) == _EXPIRED_AT_ONCE:
            return False
        return not self._must_bury or self._bury_heads(self._buried_at_once)

    def _reads_head(self) -> bool:
        """Read the head back, a large one by a thread; return False while that does so."""
        if self._is_reading_large:
            return False
        if self._is_unreadable:
            self._is_unreadable = False
            return True  # whoever reads gets the error; or it works now
        backlog = self.backlog
        try:
            if backlog.read_back(at_once=False):
                return True
            large = backlog.large_record()
        except (OSError, JournalError):
            return True  # whoever reads gets the error
        if large is None:
            return not self.is_writing  # what is left may be what is being written
        self._is_reading_large = True
        self._commits.writer.run(
            lambda _pause: large.load(), lambda error: self._has_read(large, error)
        )
        return False

    def _has_read(self, large: LargeRecord, error: BaseException | None) -> None:
        self._is_reading_large = False
        self._is_unreadable = error is not None
        if error is None:
            self.backlog.use(large)

    def _has_head(self, *, although_paused: bool = False) -> bool:
        """Bring the head into memory; return False if there is none that may be taken now.

        Raises:
            QueueUnavailable: as `remove`.
        """
        if self._read_needs_checks:
            self._check_usable()
            if self._limits.reads_paused and not although_paused:
                return False
            if self.is_returning:
                self._bring_oldest()
            if self._expiring:
                self.discard_expired(None)
                if self._is_blocked or self._departures.is_moving:
                    return False
            if self._may_have_dead_head:
                if self._departures.is_moving:
                    return False  # in the journal the item that is moved is still the head
                self._bury_heads()
        return self.backlog.memory_items > 0 or self._read_back()

    def _read_back(self, *, at_once: bool = True) -> bool:
        """Read items back into memory; return whether any are there.

        A large one is read if it must be there `at_once`.

        Raises:
            QueueUnavailable: memory holds no item, and those on disk cannot be read.
        """
        backlog = self.backlog
        if backlog.behind is None:
            return False
        try:
            if not backlog.read_back(at_once=at_once):
                self.write_now()  # what is left has not been written yet
                if not backlog.read_back(at_once=at_once) and not self.is_writing:
                    backlog.check_complete()
        except (OSError, JournalError) as error:
            if backlog.memory_items:
                return True  # those come first; a later read gets the error
            raise QueueUnavailable(f"queue {self.name} cannot be read: {error}") from error
        return backlog.memory_items > 0

    def _drop_oldest(self) -> bool:
        """Drop the head, or if none waits the delayed item that is due first; False if none is."""
        if not self.backlog.memory_items and not self._read_back():
            if self._delayed is None or not len(self._delayed):
                return False
            self._join_next(self._delayed)
        self.drop_taken(self.backlog.take())
        return True

    def drop_taken(self, taken: Item) -> None:
        """Drop an item that was the head and is already taken."""
        self._collect(REMOVE_RECORD)
        self.changes.undo.append(HeadDropped(taken))

    # --- ending reads ---

    def confirm(self, xid: int, *, kept: bool = False) -> bool:
        """Confirm the open read `xid`; return False if it is not open.

        If this cannot be written, the read is given back later. If it is `kept`, or reserved, it
        stays its reader's, who may try again.
        """
        read = self.reads.open.get(xid)
        if read is None:
            return False
        self.reads.end(read)
        self._collect(confirm_remove(xid))
        self._note_change(CONFIRM_KEPT if kept else CONFIRM, (xid,), [read])
        return True

    def confirm_all(self, xids: Sequence[int]) -> None:
        """Confirm open reads, as one change; if it cannot be written, as `confirm`."""
        ended = self.reads.end_all(xids)
        if ended:
            if len(ended) < len(xids):
                xids = [read.xid for read in ended]
            self._collect(confirm_removes(xids))
            self._note_change(CONFIRM, xids, ended)

    def unremove(self, xid: int) -> bool:
        """Give the open read `xid` back to the head; return False if it is not open."""
        return self.give_back((xid,)) == 1

    def give_back(
        self,
        xids: Sequence[int],
        *,
        counted: bool = True,
        why: str = "it was given back",
        delay: float | None = None,
        is_dead: bool = False,
    ) -> int:
        """Give open reads back, such that the first of `xids` is the head; return how many.

        An item that was delivered `max_deliveries` times goes to `dead_letter_queue` instead. Any
        other waits for its retry delay, if there is one. Waiting readers are served only when all
        are given back, so they get the items in order. If this cannot be written, it is done again
        later; reads that are reserved stay so.

        Args:
            xids: the reads; those that no reader has are left out.
            counted: whether the items were handed out, so that this counts as a delivery; those of
                a retired tag never do.
            why: the reason, for the log.
            delay: seconds until the items may be read again; None for the retry delay, which is
                only for deliveries.
            is_dead: whether they go to `dead_letter_queue` however often they were delivered.
        """
        reads = self.reads
        held = [read for read in map(reads.held_read, xids) if read is not None]
        self.canceled_transactions += reads.transactions_among(held)
        alive = [
            read
            for read in held
            if not (is_dead or self._counts(read, counted=counted))
            or not self._departures.bury(
                self, read, why, counted=self._counts(read, counted=counted), even_alive=is_dead
            )
        ]
        for read in reversed(alive):
            if not read.is_over:  # unless a write has failed meanwhile
                self.retry(read, delay, counted=self._counts(read, counted=counted))
        if held and self.waiters:
            self.serve_waiting()
        return len(held)

    def _counts(self, read: OpenRead, *, counted: bool) -> bool:
        """Whether a read that is given back counts as a delivery: not if its tag was retired."""
        reserved = self.reads.reserved
        if not counted or read.reservation is None or not reserved.retired:
            return counted
        tag = read.reservation.terms.tag
        return not (tag and reserved.is_retired(parse_tag(tag)))

    def begin_giving_back(self, returning: ReadsReturn) -> None:
        """Begin to give many open reads back, in pieces, while others are served.

        The youngest come first, and the oldest is the head in the end. A reader that comes in
        between gets the oldest all the same: it is given back first. Whoever calls this calls
        `give_back_some` while `is_giving_back`.
        """
        self._returning = (*self._returning, returning)
        self._set_needs_checks()

    def giving_back(self, returning: ReadsReturn) -> Generator[None, None, None]:
        """Give many open reads back; yields between short pieces, see `begin_giving_back`."""
        self.begin_giving_back(returning)
        try:
            self.give_back_some()
            while self.is_giving_back(returning):
                yield
                self.give_back_some()
        finally:
            self.stop_giving_back(returning)

    def is_giving_back(self, returning: ReadsReturn) -> bool:
        """Whether there are more of these reads to give back."""
        return returning in self._returning

    def stop_giving_back(self, returning: ReadsReturn) -> None:
        """Give no more of these reads back."""
        if returning in self._returning:
            self._returning = tuple(one for one in self._returning if one is not returning)
            self._set_needs_checks()

    @property
    def is_returning(self) -> bool:
        """Whether there are open reads that are being given back in pieces."""
        return len(self._returning) > 0 or len(self.reads.overdue) > 0

    def give_back_some(self) -> None:
        """Give back a piece of the reads that are given back in pieces, if there are any."""
        if self._returning:
            is_more = False
            try:
                is_more = self._returning[0].give_back_some()
            finally:
                if not is_more:
                    self._returning = self._returning[1:]
                    self._set_needs_checks()

    def _bring_oldest(self) -> None:
        """Make the oldest of the reads that are being given back the head, for a reader."""
        xid = self._oldest_returning()
        if xid is None or self._brings_oldest or self._departures.is_moving:
            return
        self._brings_oldest = True
        try:
            if self._returning:
                self._returning[-1].give_back((xid,))
            else:
                self.give_back((xid,), why=_TIME_IS_UP)
        finally:
            self._brings_oldest = False

    def _oldest_returning(self) -> int | None:
        """Return the xid of the oldest read that is being given back; None if there may be none."""
        if self._returning:
            return self._returning[-1].oldest()
        if not len(self.reads.overdue):
            return None
        read = self.reads.oldest_overdue(self._clock.monotonic())
        return None if read is None else read.xid

    def _put_back(self, read: OpenRead, *, counted: bool) -> None:
        """Make the item of an open read the head again."""
        reads = self.reads
        reads.end(read)
        self.backlog.put_back(waiting_again(read.item, counted=counted))
        reads.given_back += 1
        self.redelivered += counted
        xid = read.xid
        self._collect(unremove(xid) if counted else uncounted_unremove(xid, reads.last_xid))
        self._note_change(GIVE_BACK, (xid,), [read])

    def retry(self, read: OpenRead, delay: float | None = None, *, counted: bool) -> None:
        """Let the item of an open read be read again, after its retry delay if it has one.

        Args:
            read: the read; no reader has it any more.
            delay: seconds, instead of the retry delay, which is only for deliveries.
            counted: whether the item was delivered.
        """
        seconds = self._retry_delay(read, delay, counted=counted)
        if not seconds:
            self._put_back(read, counted=counted)
            return
        at = self._clock.monotonic() + seconds
        self._lose_reader(read, self.reads.retry_at(read, at, counted=counted))
        self._commits.watch_deadlines(self)

    def _retry_delay(self, read: OpenRead, delay: float | None, *, counted: bool) -> float:
        """Return for how long the item of an open read is held back, in seconds.

        That is 0, too, if such items take too much memory already. `delay` overrides the settings,
        which are for deliveries that are `counted`.
        """
        config, reads = self.config, self.reads
        if delay is None and not counted:
            return 0
        if not (config.retry_delay if delay is None else delay):
            return 0
        memory = reads.retrying_bytes + len(read.record)
        if memory > max(MIN_ASIDE_LIMIT, self.backlog.max_memory_bytes // 4):
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
            self._collect(note((read.xid,), self.reads.last_xid))
            self._note_change(LOSE, (read.xid,), [read], other)

    # --- items that go to another queue: see `departures` ---

    def _bury_heads(self, most: int | None = None) -> bool:
        """Move the dead letters that a restart left at the head, at most `most`.

        One that is behind an item which stays has its turn when that was taken. Items that nobody
        has read since the queue was loaded are left alone, however often they were delivered: they
        may be dead letters of other queues.

        Returns:
            False if there may be more.
        """
        backlog, count = self.backlog, 0
        while len(backlog) - backlog.total_items > self._behind_given_back:
            if count == most:
                return False
            if not (backlog.memory_items or self._read_back()):
                return True
            if not self._departures.bury_head(self):
                return True
            count += 1
        self._may_have_dead_head = False
        self._set_needs_checks()
        return True

    @property
    def _must_bury(self) -> bool:
        """Whether a read must move such dead letters first."""
        return self._may_have_dead_head and not self._limits.reads_paused

    @property
    def _buried_at_once(self) -> int:
        """How many dead letters to move at once; each is synced if the journal is."""
        return _BURIED_AT_ONCE if self._sync_period is None else 1

    def put_aside(self, taken: Item) -> OpenRead:
        """Set an item that was the head aside; return its read."""
        read = self._open(taken, by_reader=False)
        self.reads.set_aside(read)
        self.hold_back((read.xid,))
        return read

    def take_over(self, read: OpenRead, *, counted: bool) -> OpenRead:
        """Set the item of an open read aside, which its reader does not have any more.

        `counted` is whether it was delivered. Return the read that takes its place.
        """
        other = self.reads.replace(read, ASIDE, counted=counted)
        self.reads.set_aside(other)
        self._lose_reader(read, other)
        return other

    # --- reserved reads ---

    def reserve(
        self,
        terms: ReserveTerms,
        nonce: int,
        most: int,
        most_bytes: int,
        *,
        leaves_half: bool = False,
    ) -> Reservation | None:
        """Open reads of the next items and reserve them; None if there is no item.

        Readers that wait come first: if there are any, one item is taken.

        Args:
            terms: for how long and for whom.
            nonce: a random number that names the reservation.
            most: the most items.
            most_bytes: after so many bytes of data, no more items are taken.
            leaves_half: whether half of the memory for reserved items is left to others.

        Raises:
            QueueUnavailable: as `remove`.
            ReservedMemoryFull: there is an item, but reserved ones take too much memory already.
            TagRefused: the tag is retired, or there are too many tags.
        """
        self.check_tag(terms.tag, is_new=True)
        memory = self.reads.reserved.size
        limit = max(self.config.max_memory_size, RESERVED_MEMORY)
        if memory >= (limit // 2 if leaves_half else limit):
            if not self._has_head():
                return None
            raise ReservedMemoryFull(
                f"the reserved items of queue {self.name} take {memory} bytes of memory, which is "
                f"{'half of ' * leaves_half}max_memory_size or more; finish or release some"
            )
        reads: list[OpenRead] = []
        size = 0
        while len(reads) < most and size < most_bytes and not (reads and self.waiters):
            some, some_size = self._open_from_memory(most - len(reads), most_bytes - size)
            if some:
                reads += some
                size += some_size
                self.transactions += len(some)
                continue
            self.transactions += 1
            try:
                taken = self._take()
            except QueueUnavailable:
                if not reads:
                    raise
                break
            if taken is None:
                break
            reads.append(self._open(taken, by_reader=True))
            size += item_size(taken)
        # If a write failed meanwhile, some were taken back, and the commit takes back the others.
        reads = [read for read in reads if not read.is_over]
        if not reads:
            return None
        memory = size + (ADDX_HEADER + OVERHEAD) * len(reads)
        reservation = Reservation(nonce, terms, _xids_of(reads), memory, len(reads))
        self.reads.reservations.add(reservation, reads, self._clock.monotonic())
        self._collect(reserved_note(nonce, terms, reservation.xids, self.reads.last_xid))
        self._note_change(RESERVE, reservation.xids, reads)
        self._commits.watch_deadlines(self)
        return reservation

    def _open_from_memory(self, most: int, most_bytes: int) -> tuple[list[OpenRead], int]:
        """Open reads of items at the head, as one change, at most `most`.

        Returns:
            The reads, and the bytes of data in them. If none is opened, the head must be opened by
            itself.
        """
        backlog, reads = self.backlog, self.reads
        if self._read_needs_checks or self.waiters or reads.dialect != "documented":
            return [], 0
        last = reads.last_xid
        free = reads.free_xids(min(most, backlog.memory_items))
        first = first_xid(free) if type(free) is range else 0
        opened: list[OpenRead] = []
        size, most_size = 0, min(most_bytes - 1, backlog.memory_bytes - backlog.refill_below)
        for place in range(len(free)):
            if size > most_size:
                break
            xid = first + place if first else free[place]
            one = backlog.front.pop() if backlog.front else backlog.memory.popleft()
            if kept_xid(one) is not None:
                backlog.front.append(one)
                break
            size += item_size(one)
            opened.append(OpenRead(xid, one))
        if opened:
            xids = free[: len(opened)]
            backlog.memory_bytes -= size
            reads.put_all(xids, opened, size + ADDX_HEADER * len(opened))
            self.get_hits += len(opened)
            self._collect(REMOVE_TENTATIVE_RECORD * len(opened))
            self.changes.undo.append(ReadsChanged(READ, xids, opened, last))
        return opened, size

    def reserve_again(self, terms: ReserveTerms) -> Reservation | None:
        """Return the reservation of an open tag, with a new lease on these terms.

        None: the tag is not open. Raises TagRefused if it is retired.
        """
        self.check_tag(terms.tag)
        reservation = self.reads.reserved.by_tag.get(terms.tag)
        if reservation is None:
            return None
        before = reservation.terms
        self.reads.reservations.renew(reservation, terms, self._clock.monotonic())
        self._commits.watch_deadlines(self)
        if terms != before:
            xids = self.reads.reserved.live(reservation)
            self._collect(reserved_note(reservation.nonce, terms, xids, self.reads.last_xid))
            set_terms = self.reads.reservations.set_terms
            self.changes.undo.append((set_terms, reservation, before))
        else:
            self.sync_again()
        return reservation

    def check_tag(self, tag: str, *, is_new: bool = False) -> None:
        """Raise TagRefused if `tag`, unless it is empty, cannot be used now."""
        if not tag:
            return
        reserved = self.reads.reserved
        parsed = parse_tag(tag)
        if reserved.is_retired(parsed):
            reserved.forget_retired(self._clock.now() - _RETIRED_FOR)
            if reserved.is_retired(parsed):
                raise TagRefused(f"the epoch of tag {tag} is retired")
        if is_new and len(reserved.by_tag) + len(reserved.done) >= MAX_TAGS:
            raise TagRefused(f"queue {self.name} has {MAX_TAGS} tags; retire epochs that are over")

    def reserved_reads(self, reservation: Reservation) -> tuple[Sequence[int], list[Item]]:
        """Return the xids and the items of a reservation's reads that have not ended."""
        xids = self.reads.reserved.live(reservation)
        return xids, [read.item for read in self.reads.open.get_all(xids)]

    def find_reserved(self, reads: Sequence[tuple[int, Sequence[int]]]) -> Sequence[int]:
        """Return the xids of those reads, given by nonce, that are reserved; each once."""
        return self.reads.reserved.find(reads)

    def reserved_with(self, tag: str) -> Sequence[int]:
        """Return the xids of the reads of a tag. Raises TagRefused if it is retired."""
        self.check_tag(tag)
        reservation = self.reads.reserved.by_tag.get(tag)
        return () if reservation is None else self.reads.reserved.live(reservation)

    def reserved_by(self, owner: str, most: int | None = None) -> list[int]:
        """Return the xids of the reads of an owner, at most `most`."""
        found = self.reads.reservations.owners.get(owner)
        if found is None:
            return []
        # Not a generator expression: compiled, it would first collect all of them.
        xids: list[int] = []
        for reservation in found.reservations.values():
            xids += self.reads.reserved.live(reservation)
            if most is not None and len(xids) >= most:
                break
        return xids[:most]

    def youngest_reserved_by(self, owner: str, most: int) -> list[int]:
        """Return the xids of an owner's youngest reads, at most `most`, the oldest first."""
        found = self.reads.reservations.owners.get(owner)
        if found is None:
            return []
        xids: list[int] = []
        for reservation in found.reservations.backwards():
            xids = [*self.reads.reserved.live(reservation), *xids]
            if len(xids) >= most:
                break
        return xids[-most:]

    def is_done(self, tag: str) -> bool:
        """Whether the reads of `tag` were finished; the answer waits until that is on disk."""
        if tag not in self.reads.reserved.done:
            return False
        self.sync_again()
        return True

    def finish(self, tag: str) -> int:
        """Confirm the reads of a tag, which is done from then on; return how many they were.

        If it is done, return how many they were then; 0 if it was never open. Raises TagRefused if
        it is retired.
        """
        reserved = self.reads.reserved
        xids = self.reserved_with(tag)
        if not xids:
            return reserved.done[tag] if self.is_done(tag) else 0
        reserved.set_done(tag, len(xids))
        self._collect(done_note(tag, len(xids), self.reads.last_xid))
        self.changes.undo.append((reserved.forget_done, tag))
        self.confirm_all(xids)
        return len(xids)

    def retire(self, name: str, epoch: int) -> int:
        """Refuse the tags of `name` up to `epoch` from now on, and forget those that are done.

        The reads of those that are open are given back, uncounted; if they are many, soon after.
        A name is forgotten 30 days after this was last called for it, and its tags are over.

        Returns:
            How many tags were open or done.

        Raises:
            TagRefused: there are too many names.
        """
        reserved = self.reads.reserved
        now = self._clock.now()
        reserved.forget_retired(now - _RETIRED_FOR)
        before = reserved.retired.get(name)
        if (
            before is not None
            and epoch <= before
            and now < reserved.retired_at[name] + _NOTED_AGAIN
        ):
            self.sync_again()
            return 0
        if before is None and len(reserved.retired) >= MAX_TAG_NAMES:
            raise TagRefused(f"queue {self.name} has retired epochs of {MAX_TAG_NAMES} names")
        opened = reserved.open_up_to(name, epoch)
        forgotten = reserved.retire(name, epoch, now)
        self._collect(retired_note(name, epoch, self.reads.last_xid, now))
        self.changes.undo.append((reserved.unretire, name, before, forgotten))
        if sum(reservation.left for reservation in opened) <= _GIVEN_BACK_AT_ONCE:
            xids = sorted(chain.from_iterable(map(reserved.live, opened)))
            self.give_back(xids)
        else:  # in pieces
            self.reads.reservations.end_leases(opened, self._clock.monotonic())
            self._commits.watch_deadlines(self)
        return len(opened) + len(forgotten)

    def extend_leases(self, xids: Sequence[int], seconds: float) -> int:
        """Let the leases of these reserved reads end `seconds` from now; return how many."""
        self.reads.reservations.extend(xids, seconds, self._clock.monotonic())
        self._commits.watch_deadlines(self)
        return len(xids)

    # --- deadlines ---

    def extend(self, xid: int, timeout: float) -> bool:
        """Extend the open read `xid`: give it back `timeout` seconds from now, not earlier.

        If it is reserved, its lease ends then.
        """
        read = self.reads.open.get(xid)
        if read is None:
            return False
        if read.reservation is not None:
            self.extend_leases((xid,), timeout)
        else:
            self._set_deadline(read, timeout)
        return True

    def _set_deadline(self, read: OpenRead, seconds: float) -> None:
        self.reads.set_deadline(read, self._clock.monotonic() + seconds)
        self._commits.watch_deadlines(self)

    def give_back_overdue(self) -> int:
        """Give back some open reads whose time is up, and write that; return how many.

        Items whose retry delay is over can be read again, and are not counted here. If the write
        fails, they stay open, the commit reports it, and it is tried again a second later.
        """
        now = self._clock.monotonic()
        reads = self.reads
        overdue = reads.take_overdue(now) if reads.collect_overdue(now) else []
        if not overdue:
            if self._read_needs_checks or self.is_returning:
                self._set_needs_checks()
            return 0
        if len(reads.overdue):
            self._set_needs_checks()
        held = [read for read in overdue if read.state != RETRYING]
        for read in reversed(overdue):
            if read.state == RETRYING:
                if read.xid in self._flushed:
                    self.confirm(read.xid)
                else:
                    self._put_back(read, counted=read.is_counted)
        count = self.give_back([read.xid for read in held], why=_TIME_IS_UP)
        try:
            self.write_now()
        except BaseException as error:
            self._give_back_later(overdue, now + _RETRY)
            if not isinstance(error, JournalError):
                raise
            return 0
        self._set_needs_checks()
        if len(held) < len(overdue) and self.waiters:
            self.serve_waiting()
        return count

    def _give_back_later(self, reads: Sequence[OpenRead], at: float) -> None:
        """Give reads back at a later time (monotonic seconds), unless they are over."""
        for read in reads:
            if read.reservation is not None:
                self.reads.reservations.retry_at = at
            elif not read.is_over:
                self.reads.set_deadline(read, at)

    @property
    def next_deadline(self) -> float | None:
        """When `check_deadlines` may have something to do next (monotonic seconds), if ever."""
        if self._closed:  # what is delayed is left to the next start, or was deleted
            return None
        deadline, delayed = self.reads.next_deadline, self._delayed
        if delayed is None:
            return deadline
        due = delayed.next_due
        if due is None:
            return deadline
        wait = max(0.0, (due - self._clock.now()) / 1000)
        step = max(self._join_at, self._clock.monotonic() + wait)
        return step if deadline is None else min(deadline, step)

    def check_deadlines(self) -> float | None:
        """Give back the open reads whose time is up, and add delayed items that are due.

        Returns:
            When to call this again (monotonic seconds); None if not before the next change. It may
            be at once, because it takes only a short time.
        """
        if self.is_writing:
            return self._clock.monotonic() + _BUSY_RETRY
        if self.reads.has_deadlines:
            self.give_back_overdue()
        self._join_due()
        return self.next_deadline

    # --- expiry ---

    def discard_expired(self, limit: int | None) -> int:
        """Drop or move at most `limit` expired items from the head, or set them aside.

        Returns:
            How many they were.

        An item may expire to its own queue, directly or by way of others; then it goes to the end.
        An item that `expire_to_queue` cannot take now is set aside.
        """
        if self._departures.is_moving:
            return 0
        now = self._clock.now()
        backlog = self.backlog
        self._is_blocked = False
        count, before = 0, len(backlog)
        while True:
            head = backlog.head if backlog.memory_items or self._read_back() else None
            if head is None:
                # Items of open reads, or of changes that may be taken back, may still expire.
                self._expiring = self._limits.max_age is not None or bool(
                    self.reads.open or self.changes.undo
                )
                self._set_needs_checks()
                break
            if count in (limit, before) or not self._is_expired(head, now):
                break
            if not self._departures.expire_head(self):
                self._is_blocked = True
                break
            count += 1
        if count and self._sync_period == 0 and self.reads.aside:
            self._departures.move_aside(self)
        return count

    def _is_expired(self, one: Item, now: int) -> bool:
        expiry = item_expiry(one)
        if expiry != 0 and expiry <= now:
            return True
        max_age = self._limits.max_age
        return max_age is not None and item_add_time(one) + max_age <= now

    # --- waiting ---

    def wait(self, waiter: Waiter) -> None:
        """Add `waiter`, after all earlier ones. Raises QueueUnavailable if the queue is closed."""
        self._check_usable()
        self.waiters = own_line(self.waiters)
        self.waiters[waiter] = None
        self._commits.note_change(self)

    def cancel_wait(self, waiter: Waiter) -> bool:
        """Never serve `waiter`; return False if it was already served."""
        if waiter not in self.waiters:
            return False
        del self.waiters[waiter]
        self._commits.note_change(self)
        return True

    def serve_waiting(self) -> None:
        """Serve the waiting readers, in order; failures go to them, never to the caller."""
        waiters, backlog = self.waiters, self.backlog
        if self._limits.reads_paused or self._brings_oldest or self._was_suspect:
            return
        while (
            waiters
            and not self._departures.is_moving
            and (backlog.memory_items or backlog.behind is not None)
        ):
            waiter = next(iter(waiters))
            try:
                record, xid = self._take_as(waiter.mode)
            except Exception as error:  # the reader is told, and it is logged there
                if not self._commits.survives(error):
                    raise
                if self._leaves_line(waiter):
                    waiter.fail(error)
                continue
            if record is None:
                return
            if self._leaves_line(waiter):
                waiter.serve(record, xid)

    def _refuse_waiters(self) -> None:
        """Refuse the readers that wait: who may read has changed, and they were asked before."""
        for waiter in list(self.waiters):
            if self._leaves_line(waiter):
                self.refusals.count("forbidden")
                waiter.fail(ReadersChanged(f"who may read {self.name} has changed"))

    def _leaves_line(self, waiter: Waiter) -> bool:
        """Take `waiter`, the first in line, out of it; return False if it was cancelled meanwhile.

        To look for the head may move an expired item to another queue, where the same reader waits,
        too. It peeks, then; so nothing was taken for it here.
        """
        if waiter not in self.waiters:
            return False
        del self.waiters[waiter]
        return True

    def take_as(self, mode: ReadMode) -> tuple[Item | None, int]:
        """Remove, open or peek at the head; return the item and its xid (0 unless opened)."""
        self.transactions += mode is ReadMode.OPEN
        return self._take_as(mode)

    def _take_as(self, mode: ReadMode) -> tuple[Item | None, int]:
        """Do what `take_as` does, for a reader that is counted already."""
        match mode:
            case ReadMode.REMOVE:
                return self._remove(), 0
            case ReadMode.PEEK:
                return self._peek(), 0
            case ReadMode.OPEN | ReadMode.HOLD:  # pragma: no branch: there is no other mode
                read = self._open_head(None)
                if read is None:
                    return None, 0
                read.is_plain = mode is ReadMode.HOLD
                return read.item, read.xid

    # --- writing ---

    def _collect(self, record: bytes) -> None:
        """Collect a journal record for the next commit."""
        pending = self.changes.pending
        if not pending:
            self._commits.dirty.append(self)
        pending.append(record)
        if len(record) >= LARGE_ITEM:
            self.changes.is_large = True

    def _note_change(
        self, event: int, xids: Sequence[int], reads: list[OpenRead], other: OpenRead | None = None
    ) -> None:
        """Note what happened to open reads, so that it can be taken back."""
        self.changes.undo.append(ReadsChanged(event, xids, reads, self.reads.last_xid, other))

    def commit(self) -> JournalError | None:
        """Write the collected records; on failure, take the changes back and return the error."""
        if self.changes.pending:
            failure = self._write()
            if failure is not None:
                return failure
        upkeep = self._upkeep
        if (
            upkeep is not None
            and self.journal.size
            > (
                upkeep.attend_at
                if self.backlog.memory or self.backlog.front
                else upkeep.attend_empty_at
            )
            and self.changes.are_written
        ):
            upkeep.attend()
        return None

    @property
    def is_writing(self) -> bool:
        """Whether the writer has to write, before anything else is written: see `Round`."""
        return self._commits.is_writing(self)

    def write_now(self) -> None:
        """Write the collected records now, before the turn's commit. Raises JournalError.

        What takes long to be written is only begun: the queue `is_writing` then.
        """
        if self.changes.pending or self.changes.prelude:
            failure = self._write()
        else:
            failure = self._commits.failures.get(self)
        if failure is not None:
            self._commits.failures[self] = failure
            raise JournalError(str(failure))  # a new one, for the same reason as in `_fail`

    def _write(self) -> JournalError | None:
        changes = self.changes
        failures = self._commits.failures
        if failures and self in failures:
            # A write failed earlier in this turn. All replies of the turn are errors then, so later
            # changes must not be done either.
            self._take_back()
            return failures[self]
        pending = changes.pending
        if (changes.is_large or self._commits.writing is not None) and self._must_join():
            self._commits.write_in_round(self)
            return failures.get(self)
        try:
            if changes.is_large and isinstance(self.journal, NoJournal):
                pass  # to join the records would take long
            elif changes.prelude:
                self.journal.append(changes.prelude + b"".join(pending))
                changes.prelude = b""
            else:
                self.journal.append(
                    pending[0] if len(pending) == 1 else self._commits.join(pending)
                )
        except BaseException as error:  # noqa: BLE001 # it raises what is no OSError
            return self._not_written(error)
        if self._is_traced:
            for records in pending:
                self._trace(records)
        changes.is_large = False
        changes.written(self._clock)
        self._have_written()
        return None

    def _must_join(self) -> bool:
        """Whether the writer has to write what is collected, see `GroupCommit.write_in_round`.

        It writes what takes long, and what comes after that: in this queue, or in its children.
        """
        commits, journal = self._commits, self.journal
        if commits.is_writing(self):
            return True
        if journal.is_torn or not isinstance(journal, FileJournal):
            return False
        if self.changes.is_large:
            return True
        return any(commits.is_writing(child) for child in self.children)

    def begin_write(self) -> None:
        """Prepare to `write` what is collected; nothing else is written before `end_write`."""
        changes, journal = self.changes, self.journal
        self._sent = [changes.prelude, *changes.send()]
        if isinstance(journal, FileJournal):
            with contextlib.suppress(OSError):  # `write` has it again
                journal.begin_append_all()

    def write(self, pause: Pause) -> None:
        """Write that; may be called from another thread. Raises OSError.

        `pause` is called after each short piece.
        """
        journal = self.journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # others join no round
        journal.append_all(self._sent, pause)

    def end_write(self, error: OSError | None) -> JournalError | None:
        """Do what `commit` does after it has written; `error` is what `write` raised."""
        changes, journal, records = self.changes, self.journal, self._sent
        self._sent = []
        if isinstance(journal, FileJournal):
            journal.end_append_all(0 if error is not None else sum(map(len, records)))
        if self._closed:
            return None
        if error is not None:
            return self._not_written(error)
        if self._is_traced:
            for one in records[1:]:
                self._trace(one)
        changes.prelude = b""
        changes.sent_written(self._clock)
        self._have_written()
        if self.waiters:  # the head may have been on disk only, and not written yet
            self.serve_waiting()
        return None

    def _have_written(self) -> None:
        """Take note that records were written."""
        self.failure = None
        if self._sync_period is not None:
            self._schedule_sync(self._sync_period)

    def _not_written(self, error: BaseException) -> JournalError:
        """Take the changes back, because they were not written. Raises what is no OSError."""
        # Whatever it is: what stayed collected would never be written.
        added = self.backlog.total_items
        self._take_back()
        if not isinstance(error, OSError):
            raise error
        if error.errno in _NO_SPACE and self.backlog.total_items < added:
            self._note_no_room(str(error))
        return self._fail(error)

    def _take_back(self) -> None:
        """Undo the collected changes, which cannot be written, and count them as refused."""
        self.refusals.failed += len(self.changes.sent) + len(self.changes.pending)
        self.changes.take_back(self.backlog, self.reads)
        if self.reads.has_deadlines or self.delayed_items:
            self._commits.watch_deadlines(self)

    def _trace(self, records: bytes) -> None:
        """Log what an operation wrote."""
        for line in describe_records(records):
            log.info("queue %s: %s", self.name, line, extra={"queue": self.name})

    def _schedule_sync(self, period: float) -> None:
        """Have what was written synced in `period` seconds at the latest; 0 is before the reply."""
        if period == 0:
            self._commits.syncs.unsynced.add(self)
        else:
            self._commits.sync_later(self, self._clock.monotonic() + period)

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""
        self.journal.sync()

    def failed(self, error: OSError) -> JournalError:
        """Return the error to report for a failed `sync`."""
        if error.errno in _NO_SPACE:
            self._note_no_room(str(error))
        if self._is_suspect:
            self._was_suspect = True
            self._set_needs_checks()
        return self._fail(error)

    @property
    def _is_suspect(self) -> bool:
        """Whether nothing may be added or taken, because no sync of it would succeed.

        Answers to clients wait for syncs, so each would be an error although all was done: a
        producer that tries again would add its item each time. Reads can be ended meanwhile.
        """
        journal = self.journal
        return self._sync_period == 0 and isinstance(journal, FileJournal) and journal.suspect

    def check_not_suspect(self) -> None:
        """Raise JournalError if nothing may be added or taken; see `_is_suspect`."""
        if self._is_suspect:
            raise JournalError(
                f"queue {self.name}: an earlier sync failed; its journal is being rewritten"
            )

    def _check_cured(self) -> None:
        """Let items be added and taken again if the journal is not suspect any more."""
        if self._was_suspect and not self._is_suspect:
            self._was_suspect = False
            self._set_needs_checks()
            self.serve_waiting()

    def _fail(self, error: OSError) -> JournalError:
        message = f"queue {self.name}: {error}"
        # The next try may fail alike with a temporary file that has another name.
        if self.failure is None or (error.strerror or message) not in str(self.failure):
            log.error("%s", message, extra={"queue": self.name})
            self._commits.note_change(self)
            # What is kept is never raised: its traceback would keep the client's connection alive.
            self.failure = JournalError(message)
        return JournalError(message)

    # --- periodic work ---

    @property
    def has_background_work(self) -> bool:
        """Whether `sweep` or `tick` may have something to do, now or later."""
        return self.needs_sweep or self.upkeep_waits

    @property
    def rests_until(self) -> float:
        """When `sweep` or `tick` may have something to do next, unless the queue changes earlier.

        In ms since the epoch: 0 if they may have now, infinite if never. Deadlines do not count:
        `GroupCommit.deadlines` finds them. `GroupCommit.follow` tells which queues have changed.
        """
        if (
            self._has_items_to_drop
            or self.upkeep_waits
            or self.failure is not None
            or self._was_suspect
            or self.changes.prelude
            or not self.changes.are_written
            or (self._upkeep is not None and not self._upkeep.is_idle)
        ):
            return 0
        producers = self.backlog.producers
        forgets_at = self._clock.now() + producers.forgets_in(producers.now())
        return min(self._head_expires_at, forgets_at, self.ends_at)

    @property
    def _head_expires_at(self) -> float:
        """When the head has to go because it expires (ms since the epoch); infinite if never."""
        if not self._expiring:
            return inf
        head = self.backlog.head
        if head is None:
            # An item of an open read that is given back, or of a change, is a change itself.
            return inf if self.backlog.behind is None else 0
        return self.limited_expiry(item_add_time(head), item_expiry(head)) or inf

    @property
    def ends_at(self) -> float:
        """When the queue is to be deleted (ms since the epoch); infinite while it is in use."""
        age = self.config.max_queue_age
        if age is None or self._is_in_use:
            return inf
        return self.create_time + age * 1000

    @property
    def _is_in_use(self) -> bool:
        return bool(
            len(self.backlog)
            or self.delayed_items
            or self.open
            or self.waiters
            or self.paused
            or self.remembers_requests
        )

    @property
    def needs_sweep(self) -> bool:
        """Whether `sweep` may have something to do, now or later."""
        return self._expiring or self._has_items_to_drop or self.next_deadline is not None

    @property
    def _has_items_to_drop(self) -> bool:
        """Whether items that do not expire have to go, or such that could not go when they did.

        They are dead letters, or make room for newer ones.
        """
        return (
            bool(self.reads.aside)
            or (self._may_have_dead_head and self._departures.has_dead_head(self))
            or self._has_excess
            or self._is_blocked
        )

    def sweep(self) -> None:
        """Do all of `sweeping`."""
        run_to_end(self.sweeping())

    def sweeping(self) -> Generator[None, None, None]:
        """Do what `check_deadlines` does, and drop or move expired items, in short pieces.

        So does it drop what was to make room for newer items.
        """
        self.check_deadlines()
        while self._has_excess and not self._closed:
            self._has_excess = False
            if self.config.discard_old_when_full:
                self._make_room(0, added=0)
            yield
        while self._may_have_dead_head and not self._closed:
            if self._bury_heads(self._buried_at_once):
                break
            yield
        yield from self.expiring(self.config.max_expire_sweep)

    def expiring(self, limit: int | None = None) -> Generator[None, None, int]:
        """Drop or move expired items, at most `limit` from the head.

        Yields after each short piece of work. An item that is added meanwhile is left alone.

        Returns:
            How many were dropped or moved.

        Raises:
            QueueUnavailable: as `remove`.
        """
        expired = self.expired_items
        if self.reads.aside:
            self._departures.move_aside(self)
        left = len(self.backlog) if limit is None else min(limit, len(self.backlog))
        while self._expiring and not self._closed:
            # Even of none, so that it is noticed if nothing can expire any more.
            most = min(left, _EXPIRED_AT_ONCE)
            count = self.discard_expired(most)
            self.serve_waiting()  # an item may have expired to this queue
            left -= count
            if count < _EXPIRED_AT_ONCE or not left:
                break
            yield
        return self.expired_items - expired

    @property
    def upkeep_waits(self) -> bool:
        """Whether `tick` may have something to do for the journal, now or later."""
        return self._upkeep is not None and self._upkeep.waits

    def tick(self) -> None:
        """Do upkeep that is due by time; does nothing while changes are not committed."""
        changes = self.changes
        self._check_cured()
        self.backlog.producers.forget_old(self.backlog.producers.now())
        if changes.are_written:  # what is taken back must be as it was
            for useless in self.reads.unused_memory():
                self._commits.worker.free(useless)
        if self._upkeep is None or not changes.are_written:
            return
        try:
            if changes.prelude:
                self.journal.append(changes.prelude)
                changes.prelude = b""
            if self.failure is not None:
                self.journal.probe()
                self.failure = None
                self._commits.note_change(self)
        except OSError as error:
            self._fail(error)
        if self._commits.is_disk_short:
            self._upkeep.gives_back = True
        self._upkeep.tick()

    # --- flushing, deleting, closing ---

    def flush(self) -> int:
        """Do all of `flushing`."""
        self.write_now()
        self._commits.finish_writing()
        return run_to_end(self.flushing())

    def flushing(self) -> Generator[None, None, int]:
        """Drop every item that waits now, but not those that readers have; return how many.

        Expired items that are set aside stay, too: they have left the queue for their target.

        Yields after each short piece of work. First go the items that could be read and those that
        are delayed, all at once; then those that wait for their retry delay, none of which can be
        read any more. Whatever is added or given back meanwhile stays: it comes after the flush.
        One flush waits for the other. A crash may leave some of the items.

        Raises:
            JournalError: the journal could not be written; not all was dropped.
            QueueUnavailable: the queue was closed.
        """
        while self._is_flushing or self.is_writing:
            yield
        self._check_usable()
        self._is_flushing = True
        try:
            self._flushed = self.reads.retrying.copy()
            self.write_now()
            yield from self._writing()
            count = self._drop_waiting()
            count += yield from self._dropping_retries()
            self._check_usable()  # it may have been closed meanwhile
        finally:
            self._is_flushing = False
            self.worker.free(self._flushed.take_pages())
            self._flushed = NO_READS
        self.sync_again()
        if self._upkeep is not None:
            # Let the commit give the journal's files back if the queue holds nothing then.
            self._upkeep.gives_back = True
            self._upkeep.attend_empty_at = 0
            self._commits.dirty.append(self)
        self.total_flushes += 1
        return count

    def _writing(self) -> Generator[None, None, None]:
        """Yield while the queue `is_writing`."""
        while self.is_writing:
            yield

    def _dropping_retries(self) -> Generator[None, None, int]:
        """Drop the items that are to be flushed and wait for their retry delay; as `flushing`."""
        retrying, dropped = self.reads.retrying, len(self._flushed)
        xids = iter(self._flushed)
        while some := list(islice(xids, _FLUSHED_AT_ONCE)):
            yield from self._writing()
            self._check_usable()
            self.confirm_held([xid for xid in some if xid in retrying])
            yield
        return dropped

    def _drop_waiting(self) -> int:
        """Drop the items that could be read and the delayed ones, at once; return how many.

        All must be written.
        """
        count, later = len(self.backlog), self.delayed_items
        records = REMOVE_RECORD * count
        if later:
            records += flushed_note(self.reads.last_xid)
        if records:
            self._write_at_once(records)
        if later and self._delayed is not None:
            self._commits.worker.free(self._delayed.drop_all())
        if count:
            if self._is_traced:
                log.info("queue %s: REMOVE, %d times", self.name, count, extra={"queue": self.name})
            if self.changes.places is not None:
                self.changes.places.drop(count)
            self._free_backlog()
        return count + later

    def _free_backlog(self) -> None:
        for useless in self.backlog.drop_all():
            self._commits.worker.free(useless)

    @property
    def worker(self) -> Worker:
        """What runs long work on the journal."""
        return self._commits.worker

    def begin_removal(self) -> JournalRemoval | None:
        """Prepare to remove the journal, if there is one; the queue can still be used for now.

        Call `drop` or `removal_failed` afterwards. Raises OSError; then call `removal_failed`, too.
        """
        return None if self._upkeep is None else self._upkeep.begin_removal()

    def removal_failed(self, error: BaseException) -> JournalError:
        """Continue as before `begin_removal`; return the error to report."""
        self.resume_upkeep()
        return self._fail(error if isinstance(error, OSError) else OSError(str(error)))

    def resume_upkeep(self) -> None:
        """Resume the upkeep of the journal, which was not removed."""
        if self._upkeep is not None:
            self._upkeep.removal_failed()

    def drop(self) -> None:
        """Close the queue because it is deleted: forget its items, reads and changes.

        `tell_closed` tells the waiting readers.
        """
        self._free_backlog()
        self._commits.worker.free(self.backlog.producers.drop_all())
        self.changes.forget()
        for useless in self.reads.drop_all():
            self._commits.worker.free(useless)
        if self._delayed is not None:
            self._commits.worker.free(self._delayed.drop_all())
        self._close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the queue and tell waiting readers. All changes must have been committed."""
        self._close()
        self.tell_closed(len(self.waiters))

    def tell_closed(self, most: int) -> bool:
        """Tell the first readers that wait that the queue is closed; return whether more do."""
        for _ in range(min(most, len(self.waiters))):
            if not self.waiters:  # those that were told may have cancelled others
                break
            waiter, _ = self.waiters.popitem(last=False)
            waiter.serve(None, 0)
        return bool(self.waiters)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = self._needs_checks = self._read_needs_checks = True
        self._commits.deadlines.forget(self)
        self._returning = ()
        self.backlog.close()
        if self._upkeep is not None:
            self._upkeep.cancel()
            # If it was deleted in this turn, the turn's commit still comes: it must skip upkeep.
            self._upkeep = None
        self.journal.close()
        # These refer to the queue itself: without them, it is freed without the cycle collector.
        self.children = self.targets = ()

    def _check_usable(self) -> None:
        if self._closed:
            raise QueueUnavailable(f"queue {self.name} is closed")
