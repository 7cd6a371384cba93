"""Keeping a queue's journal small: decides, and has it rotated, rewritten or packed.

`attend` is called after a commit when the journal has grown past `attend_at` (items wait) or
`attend_empty_at` (none does), and now and then. What takes long runs in the worker, on files that
do not change any more, while the queue goes on in a new one. One replacement runs at a time; what
failed is tried again later, and a queue never fails because of it.
"""

import logging
import sys
from typing import TYPE_CHECKING, Final

from kestrelmq.clock import Clock
from kestrelmq.engine.places import Checkpoint, Places
from kestrelmq.engine.policy import Action, JournalState, Limits, decide
from kestrelmq.engine.worker import InlineWorker, Worker, no_pause
from kestrelmq.errors import JournalError
from kestrelmq.journal.records import ADD_XID_HEADER, ADDX_HEADER
from kestrelmq.journal.replacement import (
    Cancelled,
    Expected,
    FromFiles,
    FromMemory,
    Live,
    Replacement,
    Source,
)
from kestrelmq.journal.writer import FileJournal, Removal

if TYPE_CHECKING:
    from kestrelmq.engine.store import Store

log = logging.getLogger(__name__)

NEVER: Final = sys.maxsize
RETRY: Final = 1.0
"""Seconds until what failed is tried again."""
RETRY_UNREADABLE: Final = 60.0
"""The same, when the files are not what they should be."""
AT_HAND: Final = 50_000
"""Items in memory that are copied at once; of more, the journal itself is read."""
AT_HAND_BYTES: Final = 16 << 20
"""And so many bytes of them, since what is copied is kept until it is written."""
REST: Final = 256 << 10
"""Bytes at most that a rotation syncs while the queue waits; more is synced in the worker first."""
_ROTATES: Final = frozenset({Action.START_EMPTY, Action.ROTATE, Action.REWRITE})
AT_ONCE: Final = 256 << 10
"""Bytes of a journal that is read and written at once when memory is to hold less of the queue."""
_STEPS: Final = 16
_OPENED: Final = ADD_XID_HEADER - ADDX_HEADER + 1
"""Bytes that a read which a file begins with takes besides its item, in either dialect."""


class Upkeep:
    """The upkeep of one queue's journal.

    Attributes:
        attend_at, attend_empty_at: journal size (bytes) beyond which to call `attend`, when items
            wait and when none does.
        places: follows the items while the queue is in read-behind; None otherwise.
        named: xids of reads that the journal opens with ADD_XID.
        limits: the settings in force.
        packs: how often older files were packed.
    """

    def __init__(
        self, store: "Store", journal: FileJournal, worker: Worker, clock: Clock, limits: Limits
    ) -> None:
        self._store = store
        self._journal = journal
        self._directory = journal.directory
        self._worker = worker
        self._clock = clock
        self._job: Replacement | None = None
        self._stalled = False  # whether the job failed and is to be begun again
        self._syncing = False  # whether the worker syncs the current file, to be rotated then
        self._reader_base = 0
        self._ahead = 0
        # How many items there were when the replacement began, had been added, and given back.
        self._waited = self._added = self._given_back = 0
        # When memory is to hold less of the queue (monotonic seconds); None when it need not.
        self._trim_at: float | None = None
        # Bytes in files that were rotated without a checkpoint since the last one.
        self._unmarked = 0
        self._checkpoint: Checkpoint | None = None
        self._cures = False
        self._rewrote_at: float | None = None
        self._retry_at: float | None = None
        self.places: Places | None = None
        self.named: set[int] = set()
        self.packs = 0
        self.attend_at = self.attend_empty_at = 0
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """Put other limits in force."""
        self.limits = limits
        if self._job is None and not self._syncing:
            self._look_again(0)

    def _look_again(self, size: int) -> None:
        """Look again when the journal is a little larger than `size`."""
        limits = self.limits
        least = min(limits.default_journal_size, limits.max_journal_size, limits.max_memory_size)
        step = least // _STEPS
        self.attend_at = max(least, size + step)
        self.attend_empty_at = min(limits.default_journal_size, limits.max_memory_size)
        if not len(self._store):
            # It was looked at as an empty one; while items wait that is still to come.
            self.attend_empty_at = max(self.attend_empty_at, size + step)

    # --- deciding ---

    @property
    def waits(self) -> bool:
        """Whether `tick` may have something to do, now or later."""
        if self._retry_at is not None:
            return True
        if self._job is not None or self._syncing:
            return False
        journal = self._journal
        return (
            journal.suspect
            or self._trim_at is not None
            or journal.size > min(self.attend_at, self.attend_empty_at)
        )

    def tick(self) -> None:
        """Do what only time brings about: try again what failed, rewrite when the delay is over."""
        if self._journal.is_ending:
            return
        if self._retry_at is not None:
            if self._clock.monotonic() < self._retry_at:
                return
            self._retry_at = None
            if self._job is not None:
                if self._stalled:
                    self._begin(self._job)
                return
            self._look_again(0)
        journal = self._journal
        if (
            journal.suspect
            or self._is_trim_due
            or journal.size > min(self.attend_at, self.attend_empty_at)
        ):
            self.attend()

    def attend(self) -> None:
        """Decide, and begin what is to be done. Everything must have been committed."""
        if self._job is not None or self._syncing or self._retry_at is not None:
            return
        if self._journal.is_ending:
            return
        if self._journal.suspect:
            self._rewrite()
            return
        if self._is_trim_due:
            if self._may_rotate():
                self._rewrite()
            return
        action = decide(self._state(), self.limits)
        if action in _ROTATES and not self._may_rotate():
            return
        match action:
            case Action.NOTHING:
                self._look_again(self._journal.size)
            case Action.START_EMPTY:
                self._start_empty()
            case Action.ROTATE:
                self._rotate_full()
            case Action.PACK:
                self._pack()
            case Action.REWRITE:
                self._rewrote_at = self._clock.monotonic()
                self._rewrite()

    def _may_rotate(self) -> bool:
        """Whether little of the current file is left to sync; if not, have the worker sync it.

        What is written meanwhile is looked at when it is done, and synced the same way if that is
        much again: the queue never waits for more than `REST` bytes.
        """
        if self._journal.unsynced > REST:
            self._syncing = True
            self.attend_at = self.attend_empty_at = NEVER
            self._worker.run(lambda _pause: self._journal.sync_current(), self._synced)
        return not self._syncing and self._retry_at is None and self._journal.unsynced <= REST

    def _synced(self, error: BaseException | None) -> None:
        self._syncing = False
        if error is not None:
            self._failed("synced", error)
        elif self._job is None and self._retry_at is None:
            # The next commit or tick finds out what is to be done now.
            self.attend_at = self.attend_empty_at = 0

    def _state(self) -> JournalState:
        store, journal = self._store, self._journal
        reads = sum(map(len, store.open.values())) + _OPENED * len(store.open)
        packable = packed = 0
        checkpoint = self.places.passed(store.memory_items) if self.places is not None else None
        if self.places is not None and checkpoint is not None:
            packable = sum(journal.sizes[name] for name in self._files_to(checkpoint.file))
            packed = reads + store.memory_bytes + ADDX_HEADER * store.memory_items
            packed += 9 * self.places.taken_since(checkpoint)
        since = None
        if self._rewrote_at is not None:
            since = self._clock.monotonic() - self._rewrote_at
        return JournalState(
            size=journal.size,
            current_size=journal.current_size,
            live=reads + store.size + ADDX_HEADER * len(store),
            is_empty=not len(store),
            read_behind=store.read_behind,
            since_rewrite=since,
            packable=packable,
            packed=packed,
            unmarked=self._unmarked,
        )

    def _files_to(self, name: str) -> list[str]:
        files = list(self._journal.sizes)
        return files[: files.index(name) + 1]

    # --- beginning ---

    def _rotate(self) -> str | None:
        """Have no more written to the files there are; return the last one's name.

        None: it failed, and is to be tried again later.
        """
        journal = self._journal
        self._unmarked = 0
        if journal.sizes and not journal.current_size:
            return list(journal.sizes)[-1]
        try:
            return self._begin_file()
        except OSError as error:
            self._failed("rotated", error)
            return None

    def _begin_file(self, begun: str | None = None) -> str:
        journal = self._journal
        before = journal.current_name
        try:
            rotated = journal.rotate(self._clock.now(), begun)
        except OSError:
            self._store.reader_renamed(before, journal.current_name)
            raise
        self._store.reader_renamed(before, rotated)
        return rotated

    def adopt(self, begun: str) -> None:
        """Let the journal go on in a file that it began. Raises OSError."""
        size = self._journal.current_size
        self._begin_file(begun)
        self._unmarked += size

    def write_to_new_file(self, records: bytes, name: str) -> None:
        """Write records, all or none, to a file of their own: the current one takes no more.

        They go to a temporary first, `name`, and so each failure leaves the files as they were: a
        disk that stays full does not get a file with every attempt. Raises OSError.
        """
        journal = self._journal
        old, end = journal.current_name, journal.current_size
        journal.begin(name, records, no_pause)
        try:
            self.adopt(name)
        except OSError:
            journal.forget(name)
            raise
        log.info("queue %s goes on in a new file: the end of %s was cut off", self._store.name, old)
        self._store.reader_carried(list(journal.sizes)[-1], end, journal.current_name)

    def _failed(self, verb: str, error: BaseException) -> None:
        log.warning("the journal of queue %s could not be %s: %s", self._store.name, verb, error)
        # A disk may have room again soon; what cannot be read stays so.
        delay = RETRY if isinstance(error, OSError) else RETRY_UNREADABLE
        self._retry_at = self._clock.monotonic() + delay
        self.attend_at = self.attend_empty_at = NEVER

    def rotate_for_dialect(self) -> bool:
        """Begin a new file because other records are written from now on; False if it failed."""
        self.places = None
        return self._rotate() is not None

    def _rotate_full(self) -> None:
        """Begin a new file because the current one is long; packs need to know of it."""
        store = self._store
        rotated = self._rotate()
        if rotated is None:
            return
        if store.read_behind and self.places is None:
            self.places = Places(store.open)
        if self.places is not None:
            self.places.mark(rotated, len(store))
        self._look_again(self._journal.size)

    def _start_empty(self) -> None:
        store = self._store
        if self._rotate() is None:
            return
        self._name_reads()
        reads = tuple(store.open.items())
        self._replace_all(FromMemory(store.dialect, store.last_xid, reads, ()))

    def _rewrite(self) -> None:
        store = self._store
        cures = self._journal.suspect
        if self._rotate() is None:
            return
        self._cures = cures
        self._name_reads()
        self._journal.rewrites += 1
        log.info("rewriting the journal of queue %s, %d bytes", store.name, self._journal.size)
        if (
            self._trim_at is None
            and not store.read_behind
            and store.memory_items <= AT_HAND
            and store.memory_bytes <= AT_HAND_BYTES
        ):
            reads = tuple(store.open.items())
            items = store.browse(store.memory_items)
            self._replace_all(FromMemory(store.dialect, store.last_xid, reads, items))
            return
        expected = Expected(
            len(store),
            store.size,
            frozenset(store.open),
            store.last_xid if store.dialect == "documented" else None,
        )
        files = list(self._journal.sizes)
        self._replace_all(FromFiles(self._directory, files, store.dialect, expected=expected))

    def _name_reads(self) -> None:
        if self._store.dialect == "documented":
            self.named = set(self._store.open)
        # All older files go, and with them the checkpoints.
        self.places = None

    def _replace_all(self, source: Source) -> None:
        store = self._store
        self._ahead = store.memory_items
        self._reader_base = store.behind_read
        self._waited, self._added = len(store), store.total_items
        self._given_back = store.given_back
        self._begin(Replacement(self._directory, store.name, list(self._journal.sizes), source))

    def _pack(self) -> None:
        store, places = self._store, self.places
        checkpoint = places.passed(store.memory_items) if places is not None else None
        if places is None or checkpoint is None:
            raise AssertionError("the policy packs only where a checkpoint was passed")
        early, fresh, place = places.live_places(), places.fresh, checkpoint.place
        live = Live(
            checkpoint.first_live(early, fresh),
            lambda index: place(index) >= fresh or place(index) in early,
            frozenset(xid for xid, at in checkpoint.opened.items() if at in early),
        )
        files = self._files_to(checkpoint.file)
        source = FromFiles(self._directory, files, store.dialect, live=live)
        self._checkpoint = checkpoint
        self.packs += 1
        self._journal.rewrites += 1
        log.info("packing %d files of queue %s", len(files), store.name)
        # What is gone by later records stays gone only if those are on disk.
        self._begin(Replacement(self._directory, store.name, files, source, self._journal.sync))

    # --- the replacement ---

    def _begin(self, job: Replacement) -> None:
        self._job = job
        self._stalled = False
        self.attend_at = self.attend_empty_at = NEVER
        if job.pack in self._journal.sizes:
            self._clear(job)
        else:
            # What is asked for and short is done at once.
            is_short = self._trim_at is not None and self._journal.size <= AT_ONCE
            worker = InlineWorker() if is_short else self._worker
            worker.run(job.place, lambda error: self._placed(job, error))

    def _placed(self, job: Replacement, error: BaseException | None) -> None:
        if isinstance(error, Cancelled) or self._job is not job:
            return
        if error is None:
            error = self._switch(job)
        if error is not None:
            if not job.is_placed:
                self._job = self._checkpoint = None
                self._cures = False
            self._stalled = self._job is not None
            self._failed("replaced", error)
            return
        self._clear(job)

    def _switch(self, job: Replacement) -> BaseException | None:
        """Let the queue's reader go on in the new file; say why it cannot."""
        journal, store = self._journal, self._store
        if store.reader_file in job.files:
            later = [name for name in journal.files if name not in job.files]
            next_item = self._ahead + store.behind_read - self._reader_base
            try:
                if self._checkpoint is not None or next_item >= job.marks[-1][0]:
                    # What it still has to read is in the file after those that are replaced.
                    store.move_reader(later, 0, 0)
                else:
                    number, position = job.mark_before(next_item)
                    store.move_reader([job.pack, *later], position, next_item - number)
            except (OSError, JournalError) as error:
                return error
        journal.replaced(list(job.files), job.pack, job.size)
        if self._checkpoint is None:
            self._trim(job)
        return None

    def _clear(self, job: Replacement) -> None:
        self._worker.run(job.clear, lambda error: self._cleared(job, error))

    # --- memory that is to hold less ---

    def trim_memory(self) -> None:
        """Have memory hold only what the settings allow, the newest items on disk only.

        Nobody knows where in the journal an item in memory stands. So the journal is rewritten,
        and then it is known of every item in the new file.
        """
        self._trim_at = self._clock.monotonic()
        if not self._store.has_pending:
            self.attend()

    @property
    def _is_trim_due(self) -> bool:
        return self._trim_at is not None and self._clock.monotonic() >= self._trim_at

    def _trim(self, job: Replacement) -> None:
        """Drop from memory what it may not hold, now that `job` wrote all there was to one file."""
        if self._trim_at is None:
            return
        try:
            done = self._drop_newest(job)
        except (OSError, JournalError) as error:
            log.warning("queue %s still holds more in memory: %s", self._store.name, error)
            done = False
        self._trim_at = None if done else self._clock.monotonic() + RETRY_UNREADABLE

    def _drop_newest(self, job: Replacement) -> bool:
        """Drop the newest items that memory holds; False if the new file does not have them.

        Items are numbered as they stand in the new file; those that were added since go on from
        there, in the files after it. Items that were given back since may stand at the head.
        """
        store = self._store
        store.write_now()
        in_memory, given_back = store.memory_items, store.given_back - self._given_back
        kept = max(store.fitting_items(), given_back)
        if kept >= in_memory:
            return True
        end = self._waited + store.total_items - self._added - store.behind_items
        first = min(end - (in_memory - kept), self._waited)
        kept = in_memory - (end - first)
        if kept < given_back:
            return False
        number, position = job.mark_before(first)
        files = self._journal.files
        files = files[files.index(job.pack) :]
        store.trim_memory(kept, files, position, first - number)
        return True

    def _cleared(self, job: Replacement, error: BaseException | None) -> None:
        if isinstance(error, Cancelled) or self._job is not job:
            return
        if error is not None:
            self._stalled = True
            self._failed("cleared", error)
            return
        journal = self._journal
        journal.renamed(job.pack, job.name)
        self._store.reader_renamed(job.pack, job.name)
        if self._cures:
            # All that the failed sync should have covered was written anew, and synced.
            journal.suspect = self._cures = False
        if self._checkpoint is not None and self.places is not None:
            self.places.packed(self._checkpoint)
        self._job = self._checkpoint = None
        self._look_again(0)

    def begin_removal(self) -> Removal:
        """Give up what is under way; return what removes the journal's files. Raises OSError.

        Nothing else is done to the journal then, unless `removal_failed`.
        """
        journal = self._journal
        before = journal.current_name
        also = self.cancel()
        try:
            return journal.begin_removal(self._clock.now(), also)
        finally:
            self._store.reader_renamed(before, journal.current_name)

    def removal_failed(self) -> None:
        """Look after the journal again: the queue stays."""
        self._journal.is_ending = False
        self._look_again(0)

    def cancel(self) -> tuple[str, ...]:
        """Give up what is under way; return the names of files that it may leave."""
        job, self._job = self._job, None
        if job is None:
            return ()
        job.cancel()
        return (*job.files, job.pack, job.name)
