"""Writing what a queue has collected to its journal, and what follows if that fails.

`commit` of the queue writes all collected records with one write, before any reply is sent. What
takes long is written by a round instead: see `GroupCommit.write_in_round`. If it fails, the changes
are taken back, newest first.
"""

import contextlib
import errno
from typing import Final

from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError
from kestrelmq.format.describing import describe_records
from kestrelmq.format.records import ADDX, ADDX_HEADER, NotedItem
from kestrelmq.journal.life import (
    FORGOTTEN,
    HEAD_AGAIN,
    HELD,
    NEXT,
    OPEN_AGAIN,
    RETRYING,
    UNDO,
    UNRESERVED,
    WAITING,
)
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.writer import FileJournal, NoJournal
from kestrelmq.queue.backlog import Backlog
from kestrelmq.queue.changes import Changes, HeadDropped, ReadsChanged
from kestrelmq.queue.limits import SUSPECT
from kestrelmq.queue.reads import OpenReads
from kestrelmq.queue.state import QueueState
from kestrelmq.scheduling.durability import Committable
from kestrelmq.scheduling.worker import Job

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = get_logger(__name__)


class Writing:
    """How the changes of one queue get into its journal.

    Attributes:
        children: the fanout queues that get what is added here, and are written before it.
        failure: why the last attempt to write the journal failed; None if it succeeded.
    """

    __slots__ = (
        "_backlog",
        "_changes",
        "_is_traced",
        "_journal",
        "_reads",
        "_sent",
        "_state",
        "_sync_period",
        "children",
        "failure",
    )

    def __init__(
        self,
        state: QueueState,
        journal: FileJournal | NoJournal,
        changes: Changes,
        backlog: Backlog,
        reads: OpenReads,
    ) -> None:
        """`changes` is what is written; if that fails, `backlog` and `reads` are as before."""
        self._state = state
        self._journal = journal
        self._changes = changes
        self._backlog = backlog
        self._reads = reads
        self.children: tuple[Committable, ...] = ()
        self.failure: JournalError | None = None
        # The records that the writer writes.
        self._sent: list[bytes] = []
        self.configure(state.config)

    def configure(self, config: QueueConfig) -> None:
        """Put other settings in force."""
        self._is_traced = config.enable_trace
        self._sync_period = config.sync_journal

    # --- writing ---

    @property
    def is_writing(self) -> bool:
        """Whether the writer has to write, before anything else is written: see `Round`."""
        return self._state.commits.is_writing(self._state.queue)

    def write_now(self) -> None:
        """Write the collected records now, before the turn's commit. Raises JournalError.

        What takes long to be written is only begun: the queue `is_writing` then.
        """
        commits, queue = self._state.commits, self._state.queue
        if self._changes.pending or self._changes.prelude:
            failure = self.write()
        else:
            failure = commits.failures.get(queue)
        if failure is not None:
            commits.failures[queue] = failure
            raise JournalError(str(failure))  # a new one, for the same reason as in `fail`

    def write(self) -> JournalError | None:
        """Write the collected records; on failure, take the changes back and return the error."""
        state, changes = self._state, self._changes
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
            if changes.is_large and isinstance(self._journal, NoJournal):
                pass  # to join the records would take long
            elif changes.prelude:
                self._journal.append(changes.prelude + b"".join(pending))
                changes.prelude = b""
            else:
                self._journal.append(pending[0] if len(pending) == 1 else commits.join(pending))
        except BaseException as error:  # noqa: BLE001 # it raises what is no OSError
            return self._not_written(error)
        if self._is_traced:
            for records in pending:
                self._trace(records)
        changes.is_large = False
        changes.written(state.clock)
        self._have_written()
        return None

    def _must_join(self) -> bool:
        """Whether the writer has to write what is collected, see `GroupCommit.write_in_round`.

        It writes what takes long, and what comes after that: in this queue, or in its children.
        """
        journal = self._journal
        if self.is_writing:
            return True
        if journal.is_torn or not isinstance(journal, FileJournal):
            return False
        if self._changes.is_large:
            return True
        return any(self._state.commits.is_writing(child) for child in self.children)

    def write_at_once(self, records: bytes) -> None:
        """Write records of changes that are not made yet. Raises JournalError: do not make them."""
        state = self._state
        if self.is_writing:
            raise JournalError(f"queue {state.name}: a large item is being written")
        try:
            self._journal.append(self._changes.prelude + records)
        except OSError as error:
            raise self.fail(error) from error
        self._changes.prelude = b""
        # The journal grew, so the commit must check upkeep.
        state.commits.dirty.append(state.queue)

    def begin_write(self) -> Job:
        """Return a job that writes the records in a thread; `end_write` must follow it."""
        changes, journal = self._changes, self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # others join no round
        sent = self._sent = [changes.prelude, *changes.send()]
        with contextlib.suppress(OSError):  # the job has it again
            journal.begin_append_all()
        return lambda pause: journal.append_all(sent, pause)

    def end_write(self, error: OSError | None) -> JournalError | None:
        """Finish a `write` whose job has ended; `error` is what the job raised."""
        changes, journal, records = self._changes, self._journal, self._sent
        self._sent = []
        if isinstance(journal, FileJournal):
            journal.end_append_all(0 if error is not None else sum(map(len, records)))
        if self._state.is_closed:
            return None
        if error is not None:
            return self._not_written(error)
        if self._is_traced:
            for one in records[1:]:
                self._trace(one)
        changes.prelude = b""
        changes.sent_written(self._state.clock)
        self._have_written()
        return None

    def _have_written(self) -> None:
        """Note that records were written."""
        self.failure = None
        self.sync_again()

    def _trace(self, records: bytes) -> None:
        """Log what an operation wrote."""
        name = self._state.name
        for line in describe_records(records):
            log.info("queue %s: %s", name, line, extra={"queue": name})

    def sync_again(self) -> None:
        """Let the answer wait until what was written earlier is on disk, if it must be."""
        period, state = self._sync_period, self._state
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
        added = self._backlog.total_items
        self._take_back()
        if not isinstance(error, OSError):
            raise error
        if error.errno in _NO_SPACE and self._backlog.total_items < added:
            self.note_no_room(str(error))
        return self.fail(error)

    def _take_back(self) -> None:
        """Undo the collected changes, newest first, and count them as refused.

        Reads that nobody has then are overdue at once.
        """
        state, reads = self._state, self._reads
        pending, undo = self._changes.take_all()
        state.refusals.failed += len(pending)
        reopened: list[OpenRead] = []
        while pending:
            record = pending.pop()
            if record[0] == ADDX:
                self._backlog.drop_last(len(record) - ADDX_HEADER)
                continue
            change = undo.pop()
            if isinstance(change, ReadsChanged):
                self._take_back_reads(change)
                if change.event in FORGOTTEN:
                    reopened += change.reads
            elif isinstance(change, HeadDropped):
                self._backlog.put_back(change.item)
            elif isinstance(change, bytes | NotedItem):
                self._backlog.put_back(change)
            elif change:
                change[0](*change[1:])
        for read in reopened:
            if not read.is_over and read.state in {HELD, RETRYING}:
                reads.set_deadline(read, 0)
        state.watch_deadlines()

    def _take_back_reads(self, change: ReadsChanged) -> None:
        undo, reads = UNDO[change.event], self._reads
        if undo == UNRESERVED:
            reads.reservations.remove(change.reads)
        elif undo == HEAD_AGAIN:
            for read in reversed(change.reads):
                current = reads.open[read.xid]  # another if its reader has lost it since
                reads.end(current)
                reads.forget_aside(current)
                self._backlog.put_back(read.item)
            reads.last_xid = change.last_xid
        elif undo == OPEN_AGAIN:
            if NEXT[change.event] == WAITING:
                self._backlog.take()
            if change.other is not None:
                reads.end(change.other)
                reads.forget_aside(change.other)
            for read in change.reads:
                reads.reopen(read)

    def fail(self, error: OSError) -> JournalError:
        """Note that the journal could not be written or synced; return the error to report."""
        name = self._state.name
        message = f"queue {name}: {error}"
        # The next try may fail alike with a temporary file that has another name.
        if self.failure is None or (error.strerror or message) not in str(self.failure):
            log.error("%s", message, extra={"queue": name})
            self._state.note_change()
            # What is kept is never raised: its traceback would keep the client's connection alive.
            self.failure = JournalError(message)
        return JournalError(message)

    def sync_failed(self, error: OSError) -> JournalError:
        """Return the error to report for a failed sync."""
        if error.errno in _NO_SPACE:
            self.note_no_room(str(error))
        if self.is_suspect:
            self._state.checks.set(SUSPECT, on=True)
        return self.fail(error)

    @property
    def is_suspect(self) -> bool:
        """Whether nothing may be added or taken, because no sync of it would succeed.

        Answers to clients wait for syncs, so each would be an error although all was done: a
        producer that tries again would add its item each time. Reads can be ended meanwhile.
        """
        journal = self._journal
        return self._sync_period == 0 and isinstance(journal, FileJournal) and journal.suspect

    def check_can_change(self) -> None:
        """Raise QueueUnavailable or JournalError if nothing may be added or taken now.

        The queue was closed, or it `is_suspect`.
        """
        self._state.check_usable()
        if self.is_suspect:
            raise JournalError(
                f"queue {self._state.name}: an earlier sync failed; its journal is being rewritten"
            )

    def check_cured(self) -> bool:
        """Let items be added and taken again if the journal is not suspect any more.

        Return whether that is so now, and was not before.
        """
        state = self._state
        if not state.checks.has(SUSPECT) or self.is_suspect:
            return False
        state.checks.set(SUSPECT, on=False)
        return True

    def check_failure(self) -> None:
        """Write the prelude, and see whether a journal that failed can be written now."""
        changes = self._changes
        try:
            if changes.prelude:
                self._journal.append(changes.prelude)
                changes.prelude = b""
            if self.failure is not None:
                self._journal.probe()
                self.failure = None
                self._state.note_change()
        except OSError as error:
            self.fail(error)

    def note_no_room(self, reason: str) -> None:
        """Note that an add was refused for want of disk space."""
        self._state.refusals.no_room = (reason, self._backlog.total_items)
        self._state.note_change()

    @property
    def lacks_room(self) -> bool:
        """Whether an add was refused for want of disk space, and none succeeded since."""
        no_room = self._state.refusals.no_room
        return no_room is not None and no_room[1] == self._backlog.total_items

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to write the journal failed, or it `lacks_room`."""
        return self.lacks_room or self.failure is not None

    @property
    def problem(self) -> str | None:
        """What is wrong with the journal; None if nothing is."""
        if self.failure is not None:
            return str(self.failure)
        no_room = self._state.refusals.no_room
        if self.lacks_room and no_room is not None:
            return f"queue {self._state.name}: {no_room[0]}"
        return None
