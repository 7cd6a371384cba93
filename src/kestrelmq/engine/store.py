"""A queue's items in order, in memory and on disk, and the journal of every change to them.

- An item in memory is its ADDX record, the bytes that went to the journal.
- A change is applied in memory and its record collected; `commit` writes what was collected, with
  one write, before any reply leaves. If that fails the changes are taken back, newest first.
- Memory holds the head, at most `max_memory_size` bytes of data and one item; what comes after is
  behind: counted, and read back from the journal when its turn comes.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.behind import READ_AHEAD, Behind
from kestrelmq.engine.commits import Commits, Committable
from kestrelmq.engine.policy import Limits
from kestrelmq.engine.undo import Change, Confirmed, GivenBack, Opened
from kestrelmq.engine.upkeep import Upkeep
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.journal.memory import limit_for_now
from kestrelmq.journal.records import (
    ADDX,
    ADDX_HEADER,
    REMOVE_RECORD,
    NamedItem,
    item_add_time,
    unremove,
)
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import Dialect, FileJournal, NoJournal

log = logging.getLogger(__name__)


class Store(Committable):
    """Items, open reads and their journal; the part of a queue that must survive a crash.

    Attributes:
        name: the queue's name.
        open: items of open reads by xid.
        last_xid: the last-used xid.
        dialect: that of the records that are written.
        memory_bytes: bytes of item data held in memory, without open reads.
        total_items, put_bytes: added since the queue came up.
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
        self.name = name
        self.journal = journal
        self.failure: JournalError | None = None
        self.total_items = self.put_bytes = 0
        self._clock = clock
        self._commits = commits
        # Header of the item that was read last, and when; read at the commit, for the statistics.
        self._last_taken = b""
        self._last_taken_at = 0
        self._pending: list[bytes] = []
        self._undo: list[Change] = []
        # Bytes of data that memory may hold as it is now filled, and at most.
        self._memory_limit = self._memory_most = 0
        # What is behind is read back when memory holds less.
        self._refill_below = 0
        self._sync_each = False
        self._sync_period: float | None = None
        self.dialect: Dialect = "documented"
        if isinstance(journal, FileJournal) and journal.dialect is not None:
            self.dialect = journal.dialect
        self._upkeep: Upkeep | None = None
        # The journal still has the open reads open; it hears of it with the first write.
        given_back = sorted(state.open, reverse=True)
        self._prelude = b"".join(map(unremove, given_back))
        for xid in given_back:
            state.unremove(xid)
        self.open: dict[int, bytes] = {}
        self.last_xid = state.last_xid
        self._memory = state.memory
        self.memory_bytes = state.memory_bytes
        self._behind: Behind | None = None
        if state.behind is not None:
            self._behind = Behind(state.behind, state.behind_items, state.behind_bytes)

    def __len__(self) -> int:
        """Items waiting, without the open ones."""
        return len(self._memory) + (self._behind.items if self._behind else 0)

    @property
    def size(self) -> int:
        """Bytes of data in the items that wait."""
        return self.memory_bytes + (self._behind.bytes if self._behind else 0)

    @property
    def memory_items(self) -> int:
        """Items held in memory."""
        return len(self._memory)

    @property
    def read_behind(self) -> bool:
        """Whether part of the queue is on disk only."""
        return self._behind is not None

    def browse(self, count: int) -> list[bytes]:
        """Return the first items that memory holds, at most `count`, and leave them there."""
        return list(islice(self._memory, count))

    @property
    def oldest(self) -> int:
        """When the item at the head was added (ms); 0 when memory holds none."""
        return item_add_time(self._memory[0]) if self._memory else 0

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
        if journal.dialect not in {None, wanted} and not self._change_dialect():
            wanted = self.dialect  # the next reload tries again
        journal.dialect = self.dialect = wanted

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

    def _has_room(self, size: int) -> bool:
        """Look how full memory is; say whether an item of `size` bytes may be held."""
        if isinstance(self.journal, FileJournal):
            most, held = self._memory_most, self.memory_bytes
            self._memory_limit = limit_for_now(most, held, len(self._memory))
            self._refill_below = self._memory_limit // 2 if self._behind is not None else 0
        return not self._memory or self.memory_bytes + size <= self._memory_limit

    def _put_behind(self, size: int) -> None:
        if self._behind is None:
            assert isinstance(self.journal, FileJournal)  # noqa: S101 # else it was refused
            position = self.journal.current_size + sum(map(len, self._pending)) + len(self._prelude)
            log.info("queue %s: memory is full, reading behind", self.name)
            self._behind = Behind(self.journal.reader(self.journal.current_name, position))
            self._refill_below = self._memory_limit // 2
        self._behind.items += 1
        self._behind.bytes += size

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
            self.journal.append(self._prelude + REMOVE_RECORD * count)
        except OSError as error:
            raise self._fail(error) from error
        self._prelude = b""
        if self._upkeep is not None and self._upkeep.places is not None:
            self._upkeep.places.drop(count)
        self._let_go()
        return count

    def _let_go(self) -> None:
        """Forget every waiting item; there may be millions."""
        memory, behind = self._memory, self._behind
        self._memory, self.memory_bytes = deque(), 0
        self._behind, self._refill_below = None, 0
        self._commits.worker.let_go(memory)
        if behind is not None:
            behind.close()

    def write_now(self) -> None:
        """Commit ahead of the others, within a turn. Raises JournalError."""
        failure = self._write() if self._pending else None
        if failure is not None:
            self._commits.failures[self] = failure
            raise failure

    def _fail(self, error: OSError) -> JournalError:
        self.failure = JournalError(f"queue {self.name}: {error}")
        log.error("%s", self.failure)
        return self.failure

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
                self.journal.append(self._prelude + b"".join(pending))
                self._prelude = b""
            else:
                self.journal.append(pending[0] if len(pending) == 1 else b"".join(pending))
        except OSError as error:
            failure = self._fail(error)
            self._roll_back()
            return failure
        self.failure = None
        undo = self._undo
        if undo:
            self._note_taken(undo[-1])
            if self._upkeep is not None and self._upkeep.places is not None:
                self._upkeep.places.follow(undo)
        if self._sync_each:
            self._commits.unsynced.add(self)
        elif self._sync_period is not None:
            self._commits.sync_later(self, self._clock.monotonic() + self._sync_period)
        pending.clear()
        undo.clear()
        return None

    def _note_taken(self, last: Change) -> None:
        if isinstance(last, Opened):
            last = last.item
        if isinstance(last, bytes):
            self._last_taken = last[:ADDX_HEADER]
            self._last_taken_at = self._clock.now()

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""
        self.journal.sync()

    def sync_failed(self, error: OSError) -> JournalError:
        """Say how a failed sync is to be reported."""
        return self._fail(error)

    # --- upkeep ---

    @property
    def behind_read(self) -> int:
        """How many items were read back since the queue last began to read behind."""
        return self._behind.read_items if self._behind is not None else 0

    @property
    def reader_file(self) -> str | None:
        """The file in which the next item that is not in memory is looked for, if any is."""
        return self._behind.reader.file if self._behind is not None else None

    def reader_renamed(self, old: str, new: str) -> None:
        """Tell that the journal file `old` is called `new` now."""
        if self._behind is not None:
            self._behind.reader.renamed(old, new)

    def move_reader(self, files: Sequence[str], position: int, skip: int) -> None:
        """Let the next item be looked for in other files, after `skip` items from `position` on.

        Raises:
            OSError, JournalError: they cannot be read; it is looked for where it was.
        """
        if self._behind is not None:
            self._behind.move(files, position, skip)

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
                self.journal.append(self._prelude)
                self._prelude = b""
            if self.failure is not None:
                self.journal.probe(self._clock.now())
                self.failure = None
        except OSError as error:
            self._fail(error)
        self._upkeep.tick()

    def _given_back(self, xid: int, record: bytes) -> bytes:
        """Return `record`, which was open under `xid`, as the item to put back on the queue."""
        upkeep = self._upkeep
        if upkeep is None or xid not in upkeep.named:
            return record
        upkeep.named.discard(xid)
        return NamedItem.of(xid, record)

    def _delete_journal(self) -> None:
        """Remove the journal's files. Raises OSError."""
        if self._upkeep is not None:
            self._upkeep.delete_journal()
        self._let_go()

    def _close_journal(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
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
        if self._behind is not None:
            self._behind.items -= 1
            self._behind.bytes -= size
            if not self._behind.items:
                self._behind.close()
                self._behind = None
        else:
            self._memory.pop()
            self.memory_bytes -= size

    def _take_back(self, change: Change) -> None:
        match change:
            case Opened(xid, record, last_xid):
                del self.open[xid]
                self.last_xid = last_xid
                self._push_back(record)
            case Confirmed(xid, record):
                self.open[xid] = record
            case GivenBack(xid, record):
                self._memory.popleft()
                self.memory_bytes -= len(record) - ADDX_HEADER
                self.open[xid] = record
            case bytes():
                self._push_back(change)

    def _push_back(self, record: bytes) -> None:
        self._memory.appendleft(record)
        self.memory_bytes += len(record) - ADDX_HEADER

    def _recall(self) -> bool:
        """Read items back into memory; False when none is behind."""
        behind = self._behind
        if behind is None:
            return False
        try:
            items, size = self._read_behind(behind)
        except (OSError, JournalError) as error:
            if self._memory:
                return True  # those come first; the error is the next reader's
            raise QueueUnavailable(f"queue {self.name} cannot be read: {error}") from error
        self._memory.extend(items)
        self.memory_bytes += size
        if not behind.items:
            behind.close()
            self._behind, self._refill_below = None, 0
        return bool(self._memory)

    def _read_behind(self, behind: Behind) -> tuple[list[bytes], int]:
        assert isinstance(self.journal, FileJournal)  # noqa: S101 # else nothing is behind
        self._has_room(0)
        wanted = max(1, min(READ_AHEAD, self._memory_limit - self.memory_bytes))
        items, size = behind.read(self.journal.files, wanted, brief=bool(self._memory))
        if items or self._memory:
            return items, size
        self.write_now()  # what is left has not been written yet
        return behind.read(self.journal.files, wanted)
