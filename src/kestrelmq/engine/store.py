"""A queue's items and open reads, and the journal of every change to them.

A change is applied in memory and its record collected; `commit` writes what was collected, with one
write, before any reply leaves. If that fails the changes are taken back, newest first.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Sequence

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.durability import Commits
from kestrelmq.engine.items import Items
from kestrelmq.engine.policy import Limits
from kestrelmq.engine.undo import Change, Confirmed, Dropped, GivenBack, Opened
from kestrelmq.engine.upkeep import Upkeep
from kestrelmq.engine.worker import Pause, Worker, no_pause
from kestrelmq.errors import JournalError
from kestrelmq.journal.files import Directory, UnnamedFiles
from kestrelmq.journal.names import AHEAD, NEXT, temporary_name
from kestrelmq.journal.records import (
    ADDX,
    ADDX_HEADER,
    REMOVE_RECORD,
    NamedItem,
    item_add_time,
    save_xid,
    unremove,
)
from kestrelmq.journal.replacement import FromMemory
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import Dialect, FileJournal, NoJournal, Removal

log = logging.getLogger(__name__)


class Store(Items):
    """Items, open reads and their journal; the part of a queue that must survive a crash.

    Attributes:
        open: items of open reads by xid.
        last_xid: the last-used xid.
        dialect: that of the records that are written.
        total_items, put_bytes: added since the queue came up.
        given_back: how many open reads were given back at most since then.
        failure: why the journal could not be written when that was last tried; None when it was.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        commits: Commits,
        journal: FileJournal | NoJournal,
        state: Replay,
    ) -> None:
        given_back = sorted(state.open, reverse=True)
        for xid in given_back:
            state.unremove(xid)
        super().__init__(name, journal, state)
        self.failure: JournalError | None = None
        self.total_items = self.put_bytes = self.given_back = 0
        self._clock = clock
        self._commits = commits
        # Header of the item that was read last, and when; read at the commit, for the statistics.
        self._last_taken = b""
        self._last_taken_at = 0
        self._pending: list[bytes] = []
        self._undo: list[Change] = []
        self._sync_each = False
        self._sync_period: float | None = None
        # Where its files are, or were.
        self._directory: Directory | None = None
        if isinstance(journal, FileJournal):
            self._directory = journal.directory
        self.dialect: Dialect = "documented"
        if isinstance(journal, FileJournal) and journal.dialect is not None:
            self.dialect = journal.dialect
        self._upkeep: Upkeep | None = None
        # The journal still has the open reads open; it hears of it with the first write.
        self._prelude = b"".join(map(unremove, given_back))
        self.open: dict[int, bytes] = {}
        self.last_xid = state.last_xid

    @property
    def last_wait(self) -> int:
        """How long the item that was read last, as of the last commit, had waited (ms)."""
        waited = self._last_taken_at - item_add_time(self._last_taken) if self._last_taken else 0
        return max(0, waited)

    def sample(self, number: int) -> int | None:
        """Return the opcode of one of the records collected for the next commit, if any are."""
        pending = self._pending
        return pending[number % len(pending)][0] if pending else None

    def _configure_journal(self, config: QueueConfig) -> None:
        """Put the settings that concern the journal in force."""
        lowered = config.max_memory_size < self._memory_most
        self._memory_limit = self._memory_most = config.max_memory_size
        self._sync_each = config.sync_journal == 0
        self._sync_period = config.sync_journal or None
        journal = self.journal
        if isinstance(journal, NoJournal):
            return
        self._has_room(0)
        limits = Limits.of(config)
        if self._upkeep is None:
            self._upkeep = Upkeep(self, journal, self._commits.worker, self._clock, limits)
        self._upkeep.configure(limits)
        wanted = config.journal_dialect
        if journal.dialect not in {None, wanted}:
            if not self._change_dialect():
                wanted = self.dialect  # the next reload tries again
            elif wanted == "documented":
                # Reads are numbered from the last one, which the other dialect need not tell.
                self._prelude += save_xid(self.last_xid)
        journal.dialect = self.dialect = wanted
        if lowered and self.memory_bytes > self._memory_most:
            with contextlib.suppress(JournalError):  # then it is done later
                self.write_now()
            self._upkeep.trim_memory()

    def begin_journal(self, directory: Directory, config: QueueConfig) -> None:
        """Keep a journal from now on, which begins with what the queue holds.

        Either all of it is on disk then, or the queue goes on without a journal.

        Raises:
            JournalError: it could not be written.
        """
        self.write_now()
        dialect: Dialect = config.journal_dialect
        name = temporary_name(self.name, NEXT, self._clock.now())
        contents = FromMemory(dialect, self.last_xid, tuple(self.open.items()), self._memory)
        journal = FileJournal(directory, self.name, {}, dialect if self.open else None)
        try:
            file = directory.create(name)
            try:
                for piece in contents.pieces(no_pause):
                    file.append(piece)
                file.sync()
            finally:
                file.close()
            directory.rename(name, self.name)
            directory.sync()
            journal.open()
        except OSError as error:
            with contextlib.suppress(OSError):
                directory.remove(name)
            raise JournalError(f"queue {self.name}: {error}") from error
        self.journal, self.dialect, self._directory = journal, dialect, directory
        worker, limits = self._commits.worker, Limits.of(config)
        self._upkeep = Upkeep(self, journal, worker, self._clock, limits)
        if dialect == "documented":
            self._upkeep.named = set(self.open)

    def end_journal(self, memory_size: int) -> None:
        """Hold everything in memory from now on, and remove the journal.

        Args:
            memory_size: bytes of data that memory may hold.

        Raises:
            JournalError: that is not enough, or the journal could not be read or removed; the
                queue goes on as before.
        """
        self.write_now()
        if self.size > memory_size:
            raise JournalError(
                f"queue {self.name}: its items have {self.size} bytes, and memory may hold "
                f"{memory_size}"
            )
        try:
            self._recall_all()
            removal = self.begin_removal()
            if removal is not None:
                removal.replace(no_pause)
        except OSError as error:
            if self._upkeep is not None:
                self._upkeep.removal_failed()
            raise JournalError(f"queue {self.name}: {error}") from error
        self.journal.close()
        if removal is not None:
            unnamed = UnnamedFiles()
            removal.remove(unnamed, no_pause)
            self._commits.worker.run(unnamed.free, lambda _error: None)
        self.journal, self._upkeep, self.failure = NoJournal(), None, None
        self._prelude = b""

    @property
    def worker(self) -> Worker:
        """What runs long work on the journal."""
        return self._commits.worker

    @property
    def has_pending(self) -> bool:
        """Whether records wait to be written."""
        return bool(self._pending)

    def _change_dialect(self) -> bool:
        """Begin a new file, for a file keeps to one dialect; False if it failed."""
        if self._pending:
            with contextlib.suppress(JournalError):
                self.write_now()
        return self._upkeep is not None and self._upkeep.rotate_for_dialect()

    def _log(self, record: bytes) -> None:
        """Collect a journal record for the next commit."""
        pending = self._pending
        if not pending:
            self._commits.dirty.append(self)
        pending.append(record)

    @property
    def _unwritten(self) -> int:
        return sum(map(len, self._pending)) + len(self._prelude)

    def _drop_all(self) -> int:
        """Drop every waiting item and write that at once; return how many there were.

        Raises:
            JournalError: it could not be written; nothing was dropped.
        """
        self.write_now()
        count = len(self)
        if not count:
            return 0
        try:
            self._append(self._prelude + REMOVE_RECORD * count)
        except OSError as error:
            raise self._fail(error) from error
        self._prelude = b""
        if self._upkeep is not None and self._upkeep.places is not None:
            self._upkeep.places.drop(count)
        self._let_go()
        return count

    def trim_memory(self, kept: int, files: Sequence[str], position: int, skip: int) -> None:
        """Hold the first `kept` items in memory only; as `drop_from_memory`."""
        self._commits.worker.let_go(self.drop_from_memory(kept, files, position, skip))

    def _let_go(self) -> None:
        """Forget every waiting item; there may be millions."""
        memory = self._memory
        self._memory, self.memory_bytes = deque(), 0
        self._commits.worker.let_go(memory)
        self._leave_behind()

    def write_now(self) -> None:
        """Commit ahead of the others, within a turn. Raises JournalError."""
        if self._pending or self._prelude:
            failure = self._write()
        else:
            failure = self._commits.failures.get(self)
        if failure is not None:
            self._commits.failures[self] = failure
            raise JournalError(str(failure))  # another, for the same reason as in `_fail`

    def _fail(self, error: OSError) -> JournalError:
        message = f"queue {self.name}: {error}"
        if str(self.failure) != message:
            log.error("%s", message)
        # What is kept is never raised: its traceback would keep the connection that asked.
        self.failure = JournalError(message)
        return JournalError(message)

    def commit(self) -> JournalError | None:
        """Write the collected records; on failure take the changes back and say why."""
        if self._pending:
            failure = self._write()
            if failure is not None:
                return failure
        upkeep = self._upkeep
        if upkeep is not None and self.journal.size > (
            upkeep.attend_at if self._memory else upkeep.attend_empty_at
        ):
            upkeep.attend()
        return None

    def _write(self) -> JournalError | None:
        pending = self._pending
        failures = self._commits.failures
        if failures and self in failures:
            # Earlier in the turn a write failed. All replies of the turn are errors then, and so
            # what came after must not be done either.
            self._roll_back()
            return failures[self]
        try:
            if self._prelude:
                self._append(self._prelude + b"".join(pending))
                self._prelude = b""
            else:
                self._append(pending[0] if len(pending) == 1 else self._commits.join(pending))
        except OSError as error:
            failure = self._fail(error)
            self._roll_back()
            return failure
        self.failure = None
        undo = self._undo
        if undo:
            self._note_taken(undo)
            if self._upkeep is not None and self._upkeep.places is not None:
                self._upkeep.places.follow(undo)
        self._sync_in_time()
        pending.clear()
        undo.clear()
        return None

    def _append(self, records: bytes) -> None:
        """Write records, all or none, where the journal can still take some. Raises OSError."""
        if self.journal.is_torn and self._upkeep is not None:
            self._upkeep.write_to_new_file(records, self.new_file())
        else:
            self.journal.append(records)

    def _sync_in_time(self) -> None:
        """Have what was written synced when the settings say so."""
        if self._sync_each:
            self._commits.syncs.unsynced.add(self)
        elif self._sync_period is not None:
            self._commits.sync_later(self, self._clock.monotonic() + self._sync_period)

    def new_file(self) -> str:
        """Return a name for a file to `begin`."""
        self._commits.begun += 1
        return temporary_name(self.name, AHEAD, self._commits.begun)

    def begin(self, file: str, record: bytes, pause: Pause) -> None:
        """Write the record of an item that is not here yet, a large one; from any thread.

        Args:
            file: where to; for `add_begun` or `forget`.
            record: the item.
            pause: called after each short piece.

        Raises:
            OSError: it could not be written; there is no such file.
        """
        journal = self.journal
        if isinstance(journal, NoJournal):
            raise OSError(f"queue {self.name} keeps no journal any more")
        journal.begin(file, record, pause)

    def forget(self, file: str) -> None:
        """Remove a file that `begin` made, if it is still one."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._directory.remove(file)

    def _adopt(self, file: str) -> None:
        """Let the journal go on in a file that it began. Raises JournalError: it does not."""
        assert self._upkeep is not None  # noqa: S101 # there is a journal
        try:
            self._upkeep.adopt(file)
        except OSError as error:
            raise self._fail(error) from error
        self.failure = None
        self._sync_in_time()
        self._commits.dirty.append(self)  # the journal grew: the commit may have to attend to it

    def _note_taken(self, changes: list[Change]) -> None:
        """Remember the last of the changes that was a reader's fetch, if any was."""
        for change in reversed(changes):
            if isinstance(change, bytes):
                record = change
            elif isinstance(change, Opened) and change.by_reader:
                record = change.item
            else:
                continue
            self._last_taken = record[:ADDX_HEADER]
            self._last_taken_at = self._clock.now()
            return

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""
        self.journal.sync()

    def failed(self, error: OSError) -> JournalError:
        """Say how a failed `sync` or `begin` is to be reported."""
        return self._fail(error)

    # --- upkeep ---

    @property
    def upkeep_waits(self) -> bool:
        """Whether `tick` may have something to do for the journal, now or later."""
        return self._upkeep is not None and self._upkeep.waits

    def tick(self) -> None:
        """Do what upkeep the passing of time brings about; everything must be committed."""
        if self._upkeep is None or self._pending:
            return
        try:
            if self._prelude:
                self._append(self._prelude)
                self._prelude = b""
            if self.failure is not None:
                self.journal.probe(self._clock.now())
                self.failure = None
        except OSError as error:
            self._fail(error)
        self._upkeep.tick()

    def _given_back(self, xid: int, record: bytes) -> bytes:
        """Return `record`, which was open under `xid`, as the item to put back on the queue."""
        self.given_back += 1
        upkeep = self._upkeep
        if upkeep is None or xid not in upkeep.named:
            return record
        upkeep.named.discard(xid)
        return NamedItem.of(xid, record)

    def begin_removal(self) -> Removal | None:
        """Return what removes the journal, if there is one, while the queue goes on for now.

        Then call `drop`, or `removal_failed`. Raises OSError, after which `removal_failed` too.
        """
        return None if self._upkeep is None else self._upkeep.begin_removal()

    def removal_failed(self, error: BaseException) -> JournalError:
        """Go on as before; say how it is to be reported."""
        if self._upkeep is not None:
            self._upkeep.removal_failed()
        return self._fail(error if isinstance(error, OSError) else OSError(str(error)))

    def _close_journal(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
            # The turn that deletes the queue may still commit it; and it refers back to here.
            self._upkeep = None
        self.journal.close()

    def _roll_back(self) -> None:
        pending, undo = self._pending, self._undo
        while pending:
            record = pending.pop()
            if record[0] == ADDX:
                self._take_back_add(record)
            else:
                self._take_back(undo.pop())
        undo.clear()

    def _take_back_add(self, record: bytes) -> None:
        size = len(record) - ADDX_HEADER
        self.total_items -= 1
        self.put_bytes -= size
        self._drop_last(size)

    def _take_back(self, change: Change) -> None:
        match change:
            case Opened(xid, record, last_xid):
                del self.open[xid]
                self.last_xid = last_xid
                self._push_back(record)
            case Confirmed(xid, record):
                self.open[xid] = record
            case GivenBack(xid, record):
                if isinstance(self._memory.popleft(), NamedItem) and self._upkeep is not None:
                    self._upkeep.named.add(xid)
                self.memory_bytes -= len(record) - ADDX_HEADER
                self.open[xid] = record
            case Dropped(record):
                self._push_back(record)
            case bytes():
                self._push_back(change)
