"""One durable queue, made of parts.

    core        what it holds, and how that is written; the other parts work on it
    backlog     the waiting items, in memory or on disk only, and those that are delayed
    adding      which items it accepts, and how
    reads       the open reads: which items readers hold, and until when
    changes     what is not in the journal yet, and how to take it back
    waiters     the readers that wait for an item, first come, first served
    departures  the items that go to other queues: dead letters, and expired ones
    returns     the open reads that are given back
    line        the head: what is taken from it, and what has to leave before that
    reserved    the reads that are reserved for an owner or a tag
    upkeep      what keeps the journal small

An operation changes the parts in memory and collects its records. `commit` writes them with one
write, before any reply is sent.

Not thread-safe: the server's loop, or the library's lock, protects it.
"""

import contextlib
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError
from kestrelmq.format.notes import flushed_note
from kestrelmq.format.records import (
    NO_EXPIRY,
    REMOVE_RECORD,
    Item,
    confirm_removes,
    item,
    record_of,
)
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.read_table import NO_READS
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal, JournalRemoval, NoJournal
from kestrelmq.queue.adding import Adding, Put
from kestrelmq.queue.core import Core
from kestrelmq.queue.departures import Departures, MoveTo
from kestrelmq.queue.limits import CLOSED, DEAD_HEAD, EXPIRING, SUSPECT, QueueLimits
from kestrelmq.queue.line import Line
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.refusals import RefusalReason
from kestrelmq.queue.reserving import ReservedItems
from kestrelmq.queue.returns import Returns
from kestrelmq.queue.state import QueueState
from kestrelmq.scheduling.durability import Committable, GroupCommit
from kestrelmq.scheduling.worker import LARGE_ITEM, Job, run_to_end
from kestrelmq.upkeep.upkeep import Upkeep

_FLUSHED_AT_ONCE: Final = 500
"""Items that a flush drops at once of those that wait for their retry delay."""

_BUSY_RETRY: Final = 0.01
"""Seconds until deadlines are looked at again because the journal is being written."""
_NO_QUEUE: Final = Committable()
"""What the state of a closed queue has instead, so that no cycle keeps the queue in memory."""

log = get_logger(__name__)


def _item_of(read: OpenRead) -> Item:
    return read.item


def _any_expires(items: Iterable[Item]) -> bool:
    """Whether any of these items can expire."""
    for one in items:  # noqa: SIM110 # compiled, a generator would go through all of them
        if record_of(one)[13:21] != NO_EXPIRY:
            return True
    return False


class Queue(Committable):
    """A queue that is loaded and can be used.

    Attributes:
        name: the queue's name.
        config: the settings in force.
        paused: what is paused; `pause` changes it.
        journal: where the items are written.
        state: what its parts share, with the limits in force.
        core, backlog, reads, changes, waiters, returns, line, adding: its parts.
        children: fanout queues that receive every item added here.
        targets: the queues whose journals an add must be written to: the children, and this queue.
        create_time: when it was created (ms), as far as its files can tell.
        restricted: whether only some clients may use it.
        histograms: how long its operations took; managed by `metrics`.
        browsed_as: a random number that the places of its items begin with; managed by `browsing`.
        refusals: how many requests were refused, by reason.
        counts: what else it has counted since it was loaded or created.
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
        self.state = QueueState(name, config, clock, commits, self)
        self.refusals, self.counts = self.state.refusals, self.state.counts
        self.core = core = Core(self.state, journal, state or Replay())
        self.backlog, self.reads = core.backlog, core.reads
        self.changes, self.waiters = core.changes, core.waiters
        departures = Departures(core, move_to)
        self.returns = Returns(core, departures)
        self.line = Line(core, departures, self.returns)
        self.adding = Adding(core, self.line)
        self._upkeep = Upkeep(core, journal) if isinstance(journal, FileJournal) else None
        self.children: tuple[Queue, ...]
        self.targets: tuple[Queue, ...]
        self.connect(())
        self.histograms: object = None
        self.browsed_as = 0
        self.create_time = clock.now() if created is None else created
        self.counts.redelivered = given_back = len(self.backlog.front)
        self.state.set(DEAD_HEAD, on=given_back > 0 and config.max_deliveries is not None)
        self.paused = Paused.NOTHING
        self.state.set(
            EXPIRING,
            on=self.backlog.behind is not None
            or _any_expires(self.backlog.front)
            or _any_expires(self.backlog.memory)
            or _any_expires(map(_item_of, self.reads.open.values())),
        )
        self.configure(config)
        self.backlog.producers.start_clock(clock)
        if self.reads.reserved.count:
            self.reads.reservations.begin_leases(clock.monotonic())

    def open_journal(self) -> None:
        """Open the journal, which was only loaded until now. Raises OSError.

        A queue that is `fanout_only` gets no file before it takes items.
        """
        journal = self.journal
        if isinstance(journal, FileJournal) and not (journal.is_new and self.config.fanout_only):
            journal.open()
        if self.next_deadline is not None:
            self.state.commits.watch_deadlines(self)

    # --- settings ---

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force; the queue keeps its items.

        `keep_journal` and `journal_dialect` must be as they are: those that it was made with.

        This is the one place that knows which part each setting concerns.
        """
        readers = config.allowed_client_ids_for_dequeue
        if readers is not None and readers != self.config.allowed_client_ids_for_dequeue:
            self.waiters.refuse(f"who may read {self.name} has changed")
        self.config = self.state.config = config
        self.restricted = (
            config.allowed_client_ids_for_dequeue is not None
            or config.allowed_client_ids_for_enqueue is not None
        )
        self._set_limits()
        self.line.timeout = config.open_transaction_timeout
        self.backlog.producers.ttl = round(config.producer_ttl * 1000)
        self.core.configure(config)
        holds_too_much = self.backlog.limit_memory(config.max_memory_size)
        if self._upkeep is not None:
            self._upkeep.configure()
        if holds_too_much and self._upkeep is not None:
            with contextlib.suppress(JournalError):  # if it fails, memory is trimmed later
                self.core.write_now()
            self._upkeep.trim_memory()

    def _set_limits(self) -> None:
        memory_only = isinstance(self.journal, NoJournal)
        self.state.limit(QueueLimits.of(self.config, self.paused, memory_only=memory_only))

    def pause(self, paused: Paused) -> None:
        """Pause these operations from now on, and no others.

        While reads are paused, the queue answers readers as if it were empty, and those that wait
        go on waiting. While writes are paused, `add` raises QueueUnavailable. A fanout child is
        then passed over, as a full one is. Open reads can always be ended.
        """
        self.paused = paused
        self.state.commits.note_change(self)
        self._set_limits()
        if self.waiters.line:
            self.waiters.serve()

    def connect(self, children: tuple["Queue", ...]) -> None:
        """Make `children` receive every item that is added here from now on."""
        self.children = self.core.children = children
        self.targets = (*children, self)
        self.adding.has_journal = any(isinstance(one.journal, FileJournal) for one in self.targets)

    # --- contents ---

    @property
    def reserved(self) -> ReservedItems:
        """The reads that are reserved for an owner or a tag."""
        return ReservedItems(self.core, self.line, self.returns)

    def __len__(self) -> int:
        """Number of waiting items, without the open ones."""
        return len(self.backlog)

    @property
    def held_items(self) -> int:
        """Number of all items in memory: those that wait, open reads, and delayed ones."""
        return self.backlog.memory_items + len(self.reads.open) + self.delayed_items

    @property
    def age(self) -> int:
        """How long the last item that was read had waited (ms); 0 if the queue is empty."""
        return self.changes.last_wait if len(self.backlog) else 0

    @property
    def delayed(self) -> int:
        """Number of items that wait until they may be read: delayed ones, and retries."""
        return len(self.reads.retrying) + self.delayed_items

    @property
    def delayed_items(self) -> int:
        """Number of delayed items that are not due yet."""
        return len(self.backlog.delayed) if self.backlog.delayed is not None else 0

    @property
    def fullness(self) -> RefusalReason | None:
        """Why any item would be refused now, because of what the queue holds; or None."""
        return None if self.config.discard_old_when_full else self.adding.too_full(0)

    # --- adding ---

    def add(self, data: bytes, expiry: int = 0, due: int = 0, mark: PutMark | None = None) -> bool:
        """Add an item here and to every fanout child, the children first.

        A producer that numbers its items may repeat an add: nothing is stored then, and the answer
        is the same. Each fanout child decides for itself: if one of them could not be written at
        first, it gets the item when the producer tries again.

        Args:
            data: the item.
            expiry: when it expires (ms since the epoch), 0 for never.
            due: from when on it waits (ms since the epoch), 0 for now.
            mark: its producer's number, if it has one.

        Returns:
            False if this queue refused the item: the queue is full, the item is too large, or its
            mark is `after` an item that was not added.

        Raises:
            QueueUnavailable: the queue is paused for writes, was closed, or has too many producers;
                or the disk has no room.
            JournalError: one of the queues could not be written; the others have the item.
        """
        size = len(data)
        backlog = self.backlog
        behind = backlog.behind
        if (
            self.state.checks
            or expiry
            or due
            or mark is not None
            or self.children
            or self.state.commits.is_disk_short
            or size >= LARGE_ITEM
            or (behind is None and backlog.memory_bytes + size > backlog.memory_limit)
        ):
            if expiry or due:
                record = item(due or self.state.clock.now(), expiry, data)
            else:
                record = self.adding.header(size) + data
            return self.accept(Put(record, is_delayed=due > 0, mark=mark))
        # The hot path: as `accept`, with nothing to check.
        record = self.adding.header(size) + data
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
            self.state.commits.dirty.append(self)
        pending.append(record)
        if self.waiters.line:
            self.waiters.serve()
        return True

    def accept(self, put: Put, *, alone: bool = False) -> bool:
        """Add a put, as `add`; if `alone`, not to the fanout children.

        A child that cannot be written does not stop the others.
        """
        adding, mark, children = self.adding, put.mark, () if alone else self.children
        adding.check_writes()
        if mark is not None and children:
            last = self.backlog.producers.last_number(mark.producer)
            if not adding.follows(mark, last):
                return False
        failure: str | None = None  # keeping the exception itself would be a reference cycle
        for child in children:
            try:
                child.adding.accept(put.by_master(), is_copy=True)
            except JournalError as error:
                failure = str(error)
        is_stored = adding.accept(put)
        if failure is not None:
            raise JournalError(failure)
        return is_stored

    def has_room(self, size: int) -> bool:
        """Whether an item of `size` bytes would be accepted now."""
        self.state.check_usable()
        return not self.core.is_suspect and self.adding.has_room(size)

    def confirm_held(self, xids: Sequence[int]) -> None:
        """Confirm open reads that no reader has, and write that.

        Raises:
            JournalError: they are as they were.
        """
        if not xids:
            return
        self.core.write_now()
        self.core.write_at_once(confirm_removes(xids))
        self.reads.end_all(xids)
        if self.changes.places is not None:
            self.changes.places.forget(xids)

    # --- deadlines ---

    @property
    def next_deadline(self) -> float | None:
        """When `check_deadlines` may have something to do next (monotonic seconds), if ever."""
        if self.state.is_closed:  # what is delayed is left to the next start, or was deleted
            return None
        deadline, joins_at = self.reads.next_deadline, self.adding.joins_at()
        if deadline is None or joins_at is None:
            return joins_at if deadline is None else deadline
        return min(deadline, joins_at)

    def check_deadlines(self) -> float | None:
        """Give back the open reads whose time is up, and add delayed items that are due.

        Returns:
            When to call this again (monotonic seconds); None if not before the next change. It may
            be at once, because it takes only a short time.
        """
        if self.core.is_writing:
            return self.state.clock.monotonic() + _BUSY_RETRY
        if self.reads.has_deadlines:
            self.returns.give_back_overdue()
        self.adding.join_due()
        return self.next_deadline

    # --- writing ---

    def commit(self) -> JournalError | None:
        """Write the collected records; on failure, take the changes back and return the error."""
        if self.changes.pending:
            failure = self.core.write()
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
            try:
                upkeep.attend()
            except Exception as error:
                if not self.state.commits.survives(error):
                    raise
                # The operation was written: it must not be answered as if it had failed.
                fields = {"queue": self.name}
                log.exception("the upkeep of queue %s failed", self.name, extra=fields)
        return None

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""
        self.journal.sync()

    def begin_write(self) -> Job:
        """Return what writes the collected records; nothing else is written before `end_write`."""
        return self.core.begin_write()

    def end_write(self, error: OSError | None) -> JournalError | None:
        """Finish a `commit` whose records were written; `error` is what the job raised."""
        failure = self.core.end_write(error)
        if failure is None:
            self.waiters.serve()  # the head may have been on disk only, and not written yet
        return failure

    def failed(self, error: OSError) -> JournalError:
        """Return the error to report for a failed `sync`."""
        return self.core.sync_failed(error)

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
            (self.line.has_items_to_drop or self.adding.has_excess)
            or self.upkeep_waits
            or self.core.failure is not None
            or self.state.has(SUSPECT)
            or self.changes.prelude
            or not self.changes.are_written
            or (self._upkeep is not None and not self._upkeep.is_idle)
        ):
            return 0
        producers = self.backlog.producers
        forgets_at = self.state.clock.now() + producers.forgets_in(producers.now())
        return min(self.line.expires_at, forgets_at, self.ends_at)

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
            or self.reads.open
            or self.waiters.line
            or self.paused
            # Clients may repeat their requests, and the answers must be the same. Retired epochs do
            # not count: they are never forgotten.
            or self.reads.reserved.done
            or len(self.backlog.producers)
        )

    @property
    def needs_sweep(self) -> bool:
        """Whether `sweep` may have something to do, now or later."""
        has_items_to_drop = self.line.has_items_to_drop or self.adding.has_excess
        return self.state.has(EXPIRING) or has_items_to_drop or self.next_deadline is not None

    def sweep(self) -> None:
        """Run `sweeping` to its end."""
        run_to_end(self.sweeping())

    def sweeping(self) -> Generator[None, None, None]:
        """Serve the deadlines, and drop or move expired items, in short pieces.

        So does it drop what was to make room for newer items.
        """
        self.check_deadlines()
        while self.adding.has_excess and not self.state.is_closed:
            self.adding.drop_excess()
            yield
        while self.state.has(DEAD_HEAD) and not self.state.is_closed:
            if self.line.bury_some():
                break
            yield
        yield from self.line.expiring(self.config.max_expire_sweep)

    @property
    def upkeep_waits(self) -> bool:
        """Whether `tick` may have something to do for the journal, now or later."""
        return self._upkeep is not None and self._upkeep.waits

    def tick(self) -> None:
        """Do upkeep that is due by time; does nothing while changes are not committed."""
        changes = self.changes
        if self.core.check_cured():
            self.waiters.serve()
        self.backlog.producers.forget_old(self.backlog.producers.now())
        if changes.are_written:  # what is taken back must be as it was
            for useless in self.reads.unused_memory():
                self.state.commits.worker.free(useless)
        if self._upkeep is None or not changes.are_written:
            return
        self.core.check_failure()
        if self.state.commits.is_disk_short:
            self._upkeep.gives_back = True
        self._upkeep.tick()

    # --- flushing, deleting, closing ---

    def flush(self) -> int:
        """Run `flushing` to its end; return how many items were dropped."""
        self.core.write_now()
        self.state.commits.finish_writing()
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
        while self.reads.flushed is not NO_READS or self.core.is_writing:
            yield
        self.state.check_usable()
        self.reads.flushed = self.reads.retrying.copy()
        try:
            self.core.write_now()
            yield from self._writing()
            count = self._drop_waiting()
            count += yield from self._dropping_retries()
            self.state.check_usable()  # it may have been closed meanwhile
        finally:
            self.state.commits.worker.free(self.reads.flushed.take_pages())
            self.reads.flushed = NO_READS
        self.core.sync_again()
        if self._upkeep is not None:
            # Let the commit give the journal's files back if the queue holds nothing then.
            self._upkeep.gives_back = True
            self._upkeep.attend_empty_at = 0
            self.state.commits.dirty.append(self)
        self.counts.total_flushes += 1
        return count

    def _writing(self) -> Generator[None, None, None]:
        """Yield while the queue `is_writing`."""
        while self.core.is_writing:
            yield

    def _dropping_retries(self) -> Generator[None, None, int]:
        """Drop the items that are to be flushed and wait for their retry delay; as `flushing`."""
        retrying, dropped = self.reads.retrying, len(self.reads.flushed)
        xids = iter(self.reads.flushed)
        while some := list(islice(xids, _FLUSHED_AT_ONCE)):
            yield from self._writing()
            self.state.check_usable()
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
            self.core.write_at_once(records)
        if later and self.backlog.delayed is not None:
            self.state.commits.worker.free(self.backlog.delayed.drop_all())
        if count:
            if self.changes.places is not None:
                self.changes.places.drop(count)
            self._free_backlog()
            if self.config.enable_trace:
                log.info("queue %s: REMOVE, %d times", self.name, count, extra={"queue": self.name})
        return count + later

    def _free_backlog(self) -> None:
        for useless in self.backlog.drop_all():
            self.state.commits.worker.free(useless)

    def begin_removal(self) -> JournalRemoval | None:
        """Prepare to remove the journal, if there is one; the queue can still be used for now.

        Call `drop` or `removal_failed` afterwards. Raises OSError; then call `removal_failed`, too.
        """
        return None if self._upkeep is None else self._upkeep.begin_removal()

    def removal_failed(self, error: BaseException) -> JournalError:
        """Continue as before `begin_removal`; return the error to report."""
        if self._upkeep is not None:
            self._upkeep.removal_failed()
        return self.core.fail(error if isinstance(error, OSError) else OSError(str(error)))

    def drop(self) -> None:
        """Close the queue because it is deleted: forget its items, reads and changes.

        `tell_closed` tells the waiting readers.
        """
        self._free_backlog()
        self.state.commits.worker.free(self.backlog.producers.drop_all())
        self.changes.forget()
        for useless in self.reads.drop_all():
            self.state.commits.worker.free(useless)
        if self.backlog.delayed is not None:
            self.state.commits.worker.free(self.backlog.delayed.drop_all())
        self._close()

    def close(self) -> None:
        """Close the queue and tell waiting readers. All changes must have been committed."""
        self._close()
        self.waiters.tell_closed(len(self.waiters))

    def _close(self) -> None:
        if self.state.is_closed:
            return
        self.state.set(CLOSED, on=True)
        self.state.commits.deadlines.forget(self)
        self.returns.close()
        self.backlog.close()
        if self._upkeep is not None:
            self._upkeep.cancel()
            # If it was deleted in this turn, the turn's commit still comes: it must skip upkeep.
            self._upkeep = None
        self.journal.close()
        # These refer to the queue itself: without them, it is freed without the cycle collector.
        self.children = self.targets = self.core.children = ()
        self.state.queue = _NO_QUEUE
        self.waiters.close()
