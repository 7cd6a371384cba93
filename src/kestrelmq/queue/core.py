"""The core of a queue, on which its other parts work: what it holds, and how that is written.

`commit` of the queue writes all collected records with one write, before any reply is sent. What
takes long is written by a round instead: see `GroupCommit.write_in_round`. If it fails, the changes
are taken back, newest first.
"""

import contextlib
import errno
from collections.abc import Sequence
from typing import Final

from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError
from kestrelmq.format.describing import describe_records
from kestrelmq.format.records import (
    ADDX,
    ADDX_HEADER,
    NotedItem,
    confirm_remove,
    save_xid,
    unremove,
)
from kestrelmq.journal.life import (
    FORGOTTEN,
    HEAD_AGAIN,
    HELD,
    NEXT,
    OPEN_AGAIN,
    RESTART,
    RETRYING,
    UNDO,
    UNRESERVED,
    WAITING,
)
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal, NoJournal
from kestrelmq.queue.backlog import Backlog
from kestrelmq.queue.changes import Changes, HeadDropped, ReadsChanged
from kestrelmq.queue.limits import SUSPECT
from kestrelmq.queue.reads import OpenReads
from kestrelmq.queue.state import QueueState
from kestrelmq.queue.waiters import Waiters
from kestrelmq.scheduling.durability import Committable
from kestrelmq.scheduling.worker import Job

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = get_logger(__name__)


class Core:
    """What one queue holds, who waits for it, and how its changes get into its journal.

    Attributes:
        state: what all parts go by.
        journal: where the items are written.
        changes: what is not in the journal yet; if that cannot be written, it is taken back.
        backlog: the waiting items.
        reads: the open reads.
        waiters: the readers that wait for an item.
        children: the fanout queues that get what is added here, and are written before it.
        failure: why the last attempt to write the journal failed; None if it succeeded.
    """

    __slots__ = (
        "_is_traced",
        "_sent",
        "_sync_period",
        "backlog",
        "changes",
        "children",
        "failure",
        "journal",
        "reads",
        "state",
        "waiters",
    )

    def __init__(
        self, state: QueueState, journal: FileJournal | NoJournal, replayed: Replay
    ) -> None:
        """Start with what was `replayed`. Open reads are given back unless they are reserved."""
        reserved = replayed.reserved
        given_back = sorted(
            [xid for xid, read in replayed.open.items() if read.reservation is None], reverse=True
        )
        for xid in given_back:
            replayed.end_read(RESTART, xid)
        # In the journal these reads are still open. The first write adds that they are given back,
        # or what became of them.
        prelude = [save_xid(replayed.last_xid)] if replayed.is_note_cut else []
        prelude += [*map(unremove, given_back), *map(confirm_remove, sorted(reserved.unconfirmed))]
        self.state = state
        self.journal = journal
        self.changes = Changes(state, b"".join(prelude))
        self.backlog = Backlog(state.name, journal, replayed, len(given_back))
        self.reads = OpenReads(state, self.backlog, self.changes, replayed.last_xid, reserved)
        self.waiters = Waiters(state)
        self.children: tuple[Committable, ...] = ()
        self.failure: JournalError | None = None
        # The records that the writer writes.
        self._sent: Sequence[bytes] = ()
        self.configure(state.config)

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force."""
        self._is_traced = config.enable_trace
        self._sync_period = config.sync_journal

    # --- writing ---

    @property
    def is_writing(self) -> bool:
        """Whether the writer has to write, before anything else is written: see `Round`."""
        return self.state.commits.is_writing(self.state.queue)

    def write_now(self) -> None:
        """Write the collected records now, before the turn's commit. Raises JournalError.

        What takes long to be written is only begun: the queue `is_writing` then.
        """
        commits, queue = self.state.commits, self.state.queue
        if self.changes.pending or self.changes.prelude:
            failure = self.write()
        else:
            failure = commits.failures.get(queue)
        if failure is not None:
            commits.failures[queue] = failure
            raise JournalError(str(failure))  # a new one, for the same reason as in `fail`

    def write(self) -> JournalError | None:
        """Write the collected records; on failure, take the changes back and return the error."""
        state, changes = self.state, self.changes
        commits = state.commits
        failures = commits.failures
        if failures and state.queue in failures:
            # A write failed earlier in this turn. All replies of the turn are errors then, so later
            # changes must not be done either.
            self._take_back()
            return failures[state.queue]
        pending = changes.pending
        if (changes.is_large or commits.writing is not None) and self._must_join():
            commits.write_in_round(state.queue)
            return failures.get(state.queue)
        try:
            if changes.is_large and isinstance(self.journal, NoJournal):
                pass  # to join the records would take long
            elif changes.prelude:
                self.journal.append(changes.prelude + b"".join(pending))
                changes.prelude = b""
            else:
                self.journal.append(pending[0] if len(pending) == 1 else commits.join(pending))
        except BaseException as error:  # noqa: BLE001 # it raises what is no OSError
            return self._not_written(error)
        traced: Sequence[bytes] = pending.copy() if self._is_traced else ()
        changes.is_large = False
        changes.written(state.clock)
        self._have_written(traced)
        return None

    def _must_join(self) -> bool:
        """Whether the writer has to write what is collected, see `GroupCommit.write_in_round`.

        It writes what takes long, and what comes after that: in this queue, or in its children.
        """
        journal = self.journal
        if self.is_writing:
            return True
        if journal.is_torn or not isinstance(journal, FileJournal):
            return False
        if self.changes.is_large:
            return True
        return any(self.state.commits.is_writing(child) for child in self.children)

    def write_at_once(self, records: bytes) -> None:
        """Write records of changes that are not made yet. Raises JournalError: do not make them."""
        state = self.state
        if self.is_writing:
            raise JournalError(f"queue {state.name}: a large item is being written")
        try:
            self.journal.append(self.changes.prelude + records)
        except OSError as error:
            raise self.fail(error) from error
        self.changes.prelude = b""
        # The journal grew, so the commit must check upkeep.
        state.commits.dirty.append(state.queue)

    def begin_write(self) -> Job:
        """Return a job that writes the records in a thread; `end_write` must follow it."""
        changes, journal = self.changes, self.journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # others join no round
        sent = self._sent = [changes.prelude, *changes.send()]
        with contextlib.suppress(OSError):  # the job has it again
            journal.begin_append_all()
        return lambda pause: journal.append_all(sent, pause)

    def end_write(self, error: OSError | None) -> JournalError | None:
        """Finish a `write` whose job has ended; `error` is what the job raised."""
        changes, journal, records = self.changes, self.journal, self._sent
        self._sent = ()
        if isinstance(journal, FileJournal):
            journal.end_append_all(0 if error is not None else sum(map(len, records)))
        if self.state.is_closed:
            return None
        if error is not None:
            return self._not_written(error)
        changes.prelude = b""
        changes.sent_written(self.state.clock)
        self._have_written(records[1:] if self._is_traced else ())
        return None

    def _have_written(self, traced: Sequence[bytes]) -> None:
        """Note that records were written; log those that are `traced`, of one operation each."""
        self.failure = None
        self.sync_again()
        name = self.state.name
        for records in traced:
            for line in describe_records(records):
                log.info("queue %s: %s", name, line, extra={"queue": name})

    def sync_again(self) -> None:
        """Let the answer wait until what was written earlier is on disk, if it must be."""
        period, state = self._sync_period, self.state
        if period is None:
            return
        if period == 0:
            state.commits.syncs.unsynced.add(state.queue)
        else:
            state.commits.sync_later(state.queue, state.clock.monotonic() + period)

    # --- failures ---

    def _not_written(self, error: BaseException) -> JournalError:
        """Take the changes back: they were not written. Raises `error` unless it is an OSError."""
        # Whatever it is: what stayed collected would never be written.
        added = self.backlog.total_items
        self._take_back()
        if not isinstance(error, OSError):
            raise error
        if error.errno in _NO_SPACE and self.backlog.total_items < added:
            self.note_no_room(str(error))
        return self.fail(error)

    def _take_back(self) -> None:
        """Undo the collected changes, newest first, and count them as refused.

        Reads that nobody has then are overdue at once.
        """
        state, reads = self.state, self.reads
        pending, undo = self.changes.take_all()
        state.refusals.failed += len(pending)
        reopened: list[OpenRead] = []
        while pending:
            record = pending.pop()
            if record[0] == ADDX:
                self.backlog.drop_last(len(record) - ADDX_HEADER)
                continue
            change = undo.pop()
            if isinstance(change, ReadsChanged):
                self._take_back_reads(change)
                if change.event in FORGOTTEN:
                    reopened += change.reads
            elif isinstance(change, HeadDropped):
                self.backlog.put_back(change.item)
            elif isinstance(change, bytes | NotedItem):
                self.backlog.put_back(change)
            elif change:
                change[0](*change[1:])
        for read in reopened:
            if not read.is_over and read.state in {HELD, RETRYING}:
                reads.set_deadline(read, 0)
        state.watch_deadlines()

    def _take_back_reads(self, change: ReadsChanged) -> None:
        undo, reads = UNDO[change.event], self.reads
        if undo == UNRESERVED:
            reads.reservations.remove(change.reads)
        elif undo == HEAD_AGAIN:
            for read in reversed(change.reads):
                current = reads.open[read.xid]  # another if its reader has lost it since
                reads.end(current)
                reads.forget_aside(current)
                self.backlog.put_back(read.item)
            reads.last_xid = change.last_xid
        elif undo == OPEN_AGAIN:
            if NEXT[change.event] == WAITING:
                self.backlog.take()
            if change.other is not None:
                reads.end(change.other)
                reads.forget_aside(change.other)
            for read in change.reads:
                reads.reopen(read)

    def fail(self, error: OSError) -> JournalError:
        """Note that the journal could not be written or synced; return the error to report."""
        name = self.state.name
        message = f"queue {name}: {error}"
        # The next try may fail alike with a temporary file that has another name.
        if self.failure is None or (error.strerror or message) not in str(self.failure):
            log.error("%s", message, extra={"queue": name})
            self.state.note_change()
            # What is kept is never raised: its traceback would keep the client's connection alive.
            self.failure = JournalError(message)
        return JournalError(message)

    def sync_failed(self, error: OSError) -> JournalError:
        """Return the error to report for a failed sync."""
        if error.errno in _NO_SPACE:
            self.note_no_room(str(error))
        if self.is_suspect:
            self.state.set(SUSPECT, on=True)
        return self.fail(error)

    @property
    def is_suspect(self) -> bool:
        """Whether nothing may be added or taken, because no sync of it would succeed.

        Answers to clients wait for syncs, so each would be an error although all was done: a
        producer that tries again would add its item each time. Reads can be ended meanwhile.
        """
        journal = self.journal
        return self._sync_period == 0 and isinstance(journal, FileJournal) and journal.suspect

    def check_can_change(self) -> None:
        """Raise QueueUnavailable or JournalError if nothing may be added or taken now.

        The queue was closed, or it `is_suspect`.
        """
        self.state.check_usable()
        if self.is_suspect:
            raise JournalError(
                f"queue {self.state.name}: an earlier sync failed; its journal is being rewritten"
            )

    def check_cured(self) -> bool:
        """Let items be added and taken again if the journal is not suspect any more.

        Return whether that is so now, and was not before.
        """
        state = self.state
        if not state.has(SUSPECT) or self.is_suspect:
            return False
        state.set(SUSPECT, on=False)
        return True

    def check_failure(self) -> None:
        """Write the prelude, and see whether a journal that failed can be written now."""
        changes = self.changes
        try:
            if changes.prelude:
                self.journal.append(changes.prelude)
                changes.prelude = b""
            if self.failure is not None:
                self.journal.probe()
                self.failure = None
                self.state.note_change()
        except OSError as error:
            self.fail(error)

    def note_no_room(self, reason: str) -> None:
        """Note that an add was refused for want of disk space."""
        self.state.refusals.no_room = (reason, self.backlog.total_items)
        self.state.note_change()

    @property
    def lacks_room(self) -> bool:
        """Whether an add was refused for want of disk space, and none succeeded since."""
        no_room = self.state.refusals.no_room
        return no_room is not None and no_room[1] == self.backlog.total_items

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to write the journal failed, or it `lacks_room`."""
        return self.lacks_room or self.failure is not None

    @property
    def problem(self) -> str | None:
        """What is wrong with the journal; None if nothing is."""
        if self.failure is not None:
            return str(self.failure)
        no_room = self.state.refusals.no_room
        if self.lacks_room and no_room is not None:
            return f"queue {self.state.name}: {no_room[0]}"
        return None
