"""Keeping a queue's journal small: what is done to it, when, and how failures are handled.

`attend` is called periodically, and after a commit when the journal has grown past `attend_at`
(items wait) or `attend_empty_at` (none waits). It asks `decide`, a pure function, and begins:

    rotate       continue the journal in a new file; done at once
    rewrite      replace all older files by one that holds what is live
    start empty  the same, when only open reads are left to write; soon if the queue was flushed, or
                 the disk has too little room
    pack         in read-behind, replace the files up to a checkpoint by one

Only files that no longer change are replaced, so all but a pack begin with a rotation. Long work
runs in the worker, while the queue continues in the new file. One thing is done at a time:

                much is not synced yet           files are to be replaced
        Syncing <--------------------- Idle ---------------------> Placing
           |                           ^  ^                           |
           |         synced            |  |                           |  the new file is in place
           '---------------------------'  |                           v  and is read
                                          '----------------------- Clearing
                                           the old files are gone

        Syncing, Placing, Clearing, or a rotation  --- it fails ---> Waiting
        Waiting  --- after a delay ---> the failed state, or Idle

    Syncing    the worker syncs the current file, so that a rotation does not make the queue wait
    Placing    the worker writes the new file and puts it in the place of the old ones
    Clearing   the worker removes the old files and gives the new one its final name
    Waiting    for the time at which a failed step is tried again

With `keep_replaced_journals`, upkeep goes from Placing to Idle, and to Clearing when the time of
the old files is over, also if a start comes before that. Meanwhile the journal is rotated and
packed as ever, and the next replacement may replace the new file of the last one, which is then an
old file, too.

`_failed` is the one place that handles a failed step, whatever the reason: a full disk, too many
open files, a queue path that went away, files that cannot be read. The queue never fails because of
it, and continues in its current file. A replacement that fails before its file is in place leaves
nothing behind (see `Replacement.place`); after a delay, upkeep decides anew what to do. Once the
file is in place, the same step is retried until it succeeds. `journal/replacement.py` says what a
crash leaves.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from kestrelmq.clock import Pause
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError
from kestrelmq.format.records import ADD_XID_HEADER, ADDX_HEADER, Item
from kestrelmq.journal.replacement import (
    ContentSource,
    ExpectedContents,
    FilesSource,
    LiveContents,
    MemorySource,
    Replacement,
)
from kestrelmq.journal.writer import FileJournal, JournalRemoval
from kestrelmq.queue.changes import Checkpoint, LivePlaces, PlaceTracker
from kestrelmq.queue.core import Core
from kestrelmq.scheduling.worker import InlineWorker, Job
from kestrelmq.upkeep.policy import BLOCK, ROTATES, Action, JournalState, decide
from kestrelmq.upkeep.states import (
    IDLE,
    Clearing,
    Idle,
    Pack,
    Placing,
    Removing,
    Replaced,
    Rewrite,
    State,
    Syncing,
    Waiting,
    Work,
)

log = get_logger(__name__)

NEVER: Final = sys.maxsize
RETRY: Final = 1.0
"""Seconds until a failed step is tried again."""
RETRY_UNREADABLE: Final = 60.0
"""The same, if the files are not what they should be."""
COPIED_ITEMS_LIMIT: Final = 50_000
"""Most items to copy from memory for a rewrite; if there are more, the journal is read instead."""
COPIED_BYTES_LIMIT: Final = 16 << 20
"""Most bytes of such items, because the copied items are kept until they are written."""
ROTATION_SYNC_LIMIT: Final = 256 << 10
"""Most bytes to sync in a rotation, while the queue waits; if more, the worker syncs first."""
INLINE_TRIM_LIMIT: Final = 256 << 10
"""Most bytes of a journal that is rewritten at once, without the worker, to trim memory."""
_STEPS: Final = 16
_OPEN_READ_OVERHEAD: Final = ADD_XID_HEADER - ADDX_HEADER + 1
"""Bytes that an open read at the start of a file takes besides its item, in either dialect."""


def _live_contents(checkpoint: Checkpoint, now: LivePlaces, pause: Pause) -> LiveContents:
    """Return what is live now of the contents at a checkpoint; runs in the worker."""
    early, fresh, place = now.early(pause), now.fresh, checkpoint.place
    return LiveContents(
        checkpoint.first_live(early, fresh),
        lambda index: place(index) >= fresh or place(index) in early,
        lambda xid: checkpoint.is_read_live(xid, early),
    )


def _run_all(jobs: Sequence[Job], pause: Pause) -> None:
    for job in jobs:
        job(pause)


class Upkeep:
    """The upkeep of one queue's journal.

    Attributes:
        attend_at: journal size (bytes) beyond which to call `attend` if items wait.
        attend_empty_at: the same, if no item waits.
        state: what is being done.
        gives_back: whether files of a queue that holds nothing are to go at once: it was flushed,
            or the disk has too little room.
    """

    __slots__ = (
        "_core",
        "_journal",
        "_name",
        "_replaced",
        "_rewrote_at",
        "_trim_at",
        "attend_at",
        "attend_empty_at",
        "gives_back",
        "state",
    )

    def __init__(self, core: Core, journal: FileJournal) -> None:
        """Start idle; `journal` is the one of the `core`. `configure` is to follow."""
        self._name = journal.queue
        self._core = core
        self._journal = journal
        # When to trim memory (monotonic seconds); None if it need not be trimmed.
        self._trim_at: float | None = None
        self._rewrote_at: float | None = None
        # Files that were replaced and are still there, the oldest first. The last new file gets its
        # final name when they are all gone: until then it replaces them.
        self._replaced: tuple[Replaced, ...] = ()
        if journal.kept:
            replacement = Replacement(journal.directory, journal.queue, journal.kept)
            at = self._core.state.clock.monotonic() - journal.kept_for
            self._replaced = (Replaced(replacement, at, cures=False),)
        self.state: State = IDLE
        self.gives_back = False
        self.attend_at = self.attend_empty_at = 0

    def configure(self) -> None:
        """Go by the settings that are in force now."""
        if isinstance(self.state, Idle):
            self._set_thresholds(0)

    def _set_thresholds(self, size: int) -> None:
        """Let `attend` be called when the journal is a little larger than `size`."""
        config = self._core.state.config
        least = min(config.default_journal_size, config.max_journal_size, config.max_memory_size)
        step = least // _STEPS
        self.attend_at = max(least, size + step)
        self.attend_empty_at = min(config.default_journal_size, config.max_memory_size)
        if not len(self._core.backlog):
            # The empty queue was just attended to. A queue with items must be attended to again
            # as soon as it is empty.
            self.attend_empty_at = max(self.attend_empty_at, size + step)

    def _enter(self, state: State) -> None:
        """Enter a state, and let the worker begin its work."""
        self.state = state
        self.attend_at = self.attend_empty_at = NEVER
        match state:
            case Idle():
                self._set_thresholds(0)
            case Syncing():
                sync = self._journal.sync_current
                self._core.state.commits.worker.run(
                    lambda _pause: sync(), lambda error: self._synced(state, error)
                )
            case Placing(work):
                # If the journal is short, trim memory at once, when the settings are put in force.
                is_short = self._trim_at is not None and self._journal.size <= INLINE_TRIM_LIMIT
                worker = InlineWorker() if is_short else self._core.state.commits.worker
                worker.run(work.replacement.place, lambda error: self._placed(state, error))
            case Clearing(replaced):
                newest = self._replaced[-1]
                jobs = [
                    one.replacement.clear if one is newest else one.replacement.remove_old
                    for one in replaced
                ]
                self._core.state.commits.worker.run(
                    lambda pause: _run_all(jobs, pause), lambda error: self._cleared(state, error)
                )

    def _failed(self, verb: str, error: BaseException, then: Idle | Placing | Clearing) -> None:
        """Handle a failed step: log it, and enter `then` after a delay."""
        fields = {"queue": self._name}
        log.warning(
            "the journal of queue %s could not be %s: %s", self._name, verb, error, extra=fields
        )
        # A disk may soon have room again; unreadable files are likely to stay unreadable.
        delay = RETRY if isinstance(error, OSError) else RETRY_UNREADABLE
        self._enter(Waiting(self._core.state.clock.monotonic() + delay, then))

    # --- idle: deciding what to do ---

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being done, and nothing waits for its time."""
        return isinstance(self.state, Idle) and not self._replaced

    @property
    def waits(self) -> bool:
        """Whether `tick` may have something to do, now or later."""
        match self.state:
            case Waiting():
                return True
            case Idle():
                return self._is_due or self._trim_at is not None or bool(self._replaced)
            case _:
                return False

    @property
    def _is_due(self) -> bool:
        journal = self._journal
        return (
            journal.suspect
            or self._is_removal_due
            or self._is_trim_due
            or (self.gives_back and not len(self._core.backlog) and journal.size >= BLOCK)
            or journal.size > min(self.attend_at, self.attend_empty_at)
        )

    def tick(self) -> None:
        """Start what is due by time: a failed step, removing old files, or a delayed rewrite."""
        state = self.state
        if isinstance(state, Waiting):
            if self._core.state.clock.monotonic() < state.at:
                return
            self._enter(state.then)
        if self._is_due:
            self.attend()

    def attend(self) -> None:
        """Decide what to do, and begin it, unless the journal is being written.

        All changes must have been committed.
        """
        if not isinstance(self.state, Idle) or self._journal.is_writing:
            return
        if self._journal.suspect:
            self._rewrite()
            return
        if self._is_removal_due:
            self._clear_due()
            return
        if self._is_trim_due:
            if self._may_rotate():
                self._rewrite()
            return
        action = decide(self._journal_state(), self._core.state.config)
        self.gives_back &= action is Action.START_EMPTY
        if action in ROTATES and not self._may_rotate():
            return
        match action:
            case Action.NOTHING:
                self._set_thresholds(self._journal.size)
            case Action.START_EMPTY:
                self._start_empty()
            case Action.ROTATE:
                self._rotate_full()
            case Action.PACK:
                self._pack()
            case Action.REWRITE:  # pragma: no branch: there is no other action
                self._rewrote_at = self._core.state.clock.monotonic()
                self._rewrite()

    def _journal_state(self) -> JournalState:
        backlog, journal, places = self._core.backlog, self._journal, self._core.changes.places
        reads = self._core.reads.open_bytes + _OPEN_READ_OVERHEAD * len(self._core.reads.open)
        reads += self._core.reads.reserved.note_bytes + self._core.backlog.producers.note_bytes
        delayed = 0
        if backlog.delayed is not None:
            delayed = len(backlog.delayed)
            reads += backlog.delayed.note_bytes
        packable = packed = 0
        checkpoint = places.newest_passed(backlog.memory_items) if places is not None else None
        if places is not None and checkpoint is not None:
            packable = sum(journal.sizes[name] for name in self._files_to(checkpoint.file))
            packed = reads + backlog.memory_bytes + ADDX_HEADER * backlog.memory_items
            packed += 9 * places.taken_since(checkpoint)
        since = None
        if self._rewrote_at is not None:
            since = self._core.state.clock.monotonic() - self._rewrote_at
        return JournalState(
            size=journal.size,
            current_size=journal.current_size,
            live=reads + backlog.size + ADDX_HEADER * len(backlog),
            is_empty=not len(backlog) and not delayed,
            gives_back=self.gives_back,
            read_behind=backlog.behind is not None,
            since_rewrite=since,
            packable=packable,
            packed=packed,
        )

    def _files_to(self, name: str) -> list[str]:
        files = list(self._journal.sizes)
        return files[: files.index(name) + 1]

    # --- rotating ---

    def _may_rotate(self) -> bool:
        """Whether little of the current file is left to sync; if not, let the worker sync it.

        If much is written during that sync, the worker syncs again. So the queue never waits for
        the sync of more than `ROTATION_SYNC_LIMIT` bytes.
        """
        if self._journal.unsynced > ROTATION_SYNC_LIMIT:
            self._enter(Syncing())
        return isinstance(self.state, Idle) and self._journal.unsynced <= ROTATION_SYNC_LIMIT

    def _synced(self, state: Syncing, error: BaseException | None) -> None:
        if self.state is not state:
            return  # it was cancelled
        if error is not None:
            self._failed("synced", error, IDLE)
            return
        self._enter(IDLE)
        # Let the next commit or tick decide what to do now.
        self.attend_at = self.attend_empty_at = 0

    def _rotate(self, *, cures: bool = False) -> str | None:
        """End the current file, see `FileJournal.end_file`; return the last rotated file's name.

        None: it failed, and will be tried again later.
        """
        try:
            return self._journal.end_file(cures=cures)
        except OSError as error:
            self._failed("rotated", error, IDLE)
            return None

    def _rotate_full(self) -> None:
        """Begin a new file because the current one is long; in read-behind, make a checkpoint."""
        rotated = self._rotate()
        if rotated is None:
            return
        changes, backlog = self._core.changes, self._core.backlog
        if changes.places is None and backlog.behind is not None:
            changes.places = PlaceTracker()
        if changes.places is not None:
            changes.places.add_checkpoint(rotated, len(backlog))
        self._set_thresholds(self._journal.size)

    # --- beginning to replace files ---

    def _start_empty(self) -> None:
        if self._rotate() is not None:
            self._journal.rewrites += 1
            self._replace_all(self._memory_source(()), cures=False)

    def _rewrite(self) -> None:
        journal, backlog, reads = self._journal, self._core.backlog, self._core.reads
        delayed = backlog.delayed
        cures = journal.suspect
        if self._rotate(cures=cures) is None:
            return
        journal.rewrites += 1
        log.info(
            "rewriting the journal of queue %s, %d bytes",
            self._name,
            journal.size,
            extra={"queue": self._name},
        )
        source: ContentSource
        if (
            self._trim_at is None
            and backlog.behind is None
            and backlog.memory_items <= COPIED_ITEMS_LIMIT
            and backlog.memory_bytes <= COPIED_BYTES_LIMIT
            and (delayed is None or len(delayed) <= COPIED_ITEMS_LIMIT)
        ):
            source = self._memory_source(backlog.browse(backlog.memory_items))
        else:
            expected = ExpectedContents(
                len(backlog),
                backlog.size,
                reads.open.copy(),
                reads.last_xid if reads.dialect == "documented" else None,
                reads.reserved.count,
                len(reads.reserved.done),
                0 if delayed is None else len(delayed),
            )
            files = list(journal.sizes)
            source = FilesSource(
                journal.directory,
                files,
                reads.dialect,
                expected=expected,
                producers=backlog.producers,
            )
        self._replace_all(source, cures=cures)

    def _memory_source(self, items: Sequence[Item]) -> MemorySource:
        reads = self._core.reads
        producers, delayed = self._core.backlog.producers, self._core.backlog.delayed
        now = producers.now()
        producers.forget_old(now)
        return MemorySource(
            reads.dialect,
            reads.last_xid,
            reads.open.copy(),
            items,
            None if delayed is None else delayed.snapshot(),
            reads.reserved.snapshot(),
            producers.noted(now),
        )

    def _replace_all(self, source: ContentSource, *, cures: bool) -> None:
        """Begin to replace all files but the current one by `source`."""
        journal, backlog, reads = self._journal, self._core.backlog, self._core.reads
        # All older files are removed, so the checkpoints in them are useless.
        self._core.changes.places = None
        replacement = Replacement(journal.directory, self._name, list(journal.sizes), source)
        work = Rewrite(
            replacement,
            memory_items=backlog.memory_items,
            read_items=backlog.read_items,
            waiting=len(backlog),
            total_items=backlog.total_items,
            given_back=reads.given_back,
            cures=cures,
        )
        self._enter(Placing(work))

    def _pack(self) -> None:
        """Begin to replace the files up to the newest passed checkpoint."""
        journal, places = self._journal, self._core.changes.places
        checkpoint = (
            places.newest_passed(self._core.backlog.memory_items) if places is not None else None
        )
        # The policy packs only where a checkpoint was passed.
        assert places is not None  # noqa: S101
        assert checkpoint is not None  # noqa: S101
        files = self._files_to(checkpoint.file)
        source = FilesSource(
            journal.directory,
            files,
            self._core.reads.dialect,
            live=partial(_live_contents, checkpoint, places.snapshot()),
            producers=self._core.backlog.producers,
        )
        journal.rewrites += 1
        log.info(
            "packing %d files of queue %s", len(files), self._name, extra={"queue": self._name}
        )
        # The pack leaves out items that later records remove: sync those before it is used.
        replacement = Replacement(journal.directory, self._name, files, source, journal.sync)
        self._enter(Placing(Pack(replacement, checkpoint)))

    # --- the new file is written ---

    def _placed(self, state: Placing, error: BaseException | None) -> None:
        if self.state is not state:
            return  # it was cancelled
        work = state.work
        if error is None:
            error = self._switch(work)
        if error is not None:
            self._failed("replaced", error, state if work.replacement.is_placed else IDLE)
            return
        work.replacement.forget_contents()
        self.gives_back = False
        cures = isinstance(work, Rewrite) and work.cures
        replaced = Replaced(work.replacement, self._core.state.clock.monotonic(), cures)
        self._replaced = (*self._replaced, replaced)
        self._enter(IDLE)
        if cures:  # adds are refused until the old files are gone
            self._clear(len(self._replaced))
        elif self._is_removal_due:
            self._clear_due()

    def _switch(self, work: Work) -> BaseException | None:
        """Let the queue use the new file; return the error if it cannot."""
        journal, replacement = self._journal, work.replacement
        if self._core.backlog.reader_file in replacement.files:
            try:
                self._move_reader(work)
            except (OSError, JournalError) as error:
                return error
        journal.replaced(list(replacement.files), replacement.pack, replacement.size)
        match work:
            case Rewrite() if self._trim_at is not None:
                self._trim(work)
            case Pack(checkpoint=checkpoint) if self._core.changes.places is not None:
                self._core.changes.places.forget_packed(checkpoint)
        return None

    def _move_reader(self, work: Work) -> None:
        """Read behind from the new file and later ones. Raises OSError, JournalError."""
        backlog, replacement = self._core.backlog, work.replacement
        later = [name for name in self._journal.files if name not in replacement.files]
        if isinstance(work, Rewrite):
            next_item = work.memory_items + backlog.read_items - work.read_items
            if next_item < replacement.positions[-1][0]:
                number, position = replacement.position_before(next_item)
                files = [replacement.pack, *later]
                backlog.move_reader(files, position, next_item - number)
                return
        # All items that are still to be read are in the files after the replaced ones.
        backlog.move_reader(later, 0, 0)

    # --- the old files are removed ---

    @property
    def _is_removal_due(self) -> bool:
        return bool(self._replaced) and self._is_over(self._replaced[0])

    def _is_over(self, replaced: Replaced) -> bool:
        """Whether old files were kept for long enough."""
        return (
            self._core.state.clock.monotonic() - replaced.at
            >= self._core.state.config.keep_replaced_journals
        )

    def _clear_due(self) -> None:
        self._clear(sum(map(self._is_over, self._replaced)))

    def _clear(self, count: int) -> None:
        """Begin to remove the oldest `count` of what was replaced."""
        self._enter(Clearing(self._replaced[:count]))

    def _cleared(self, state: Clearing, error: BaseException | None) -> None:
        if self.state is not state:
            return  # it was cancelled
        if error is not None:
            self._failed("cleared", error, state)
            return
        self._replaced = self._replaced[len(state.replaced) :]
        last = state.replaced[-1]
        if not self._replaced:
            self._journal.renamed(last.replacement.pack, last.replacement.name)
        if last.cures:
            self._journal.suspect = False
        self._enter(IDLE)

    # --- trimming memory ---

    def trim_memory(self) -> None:
        """Drop the newest items from memory, down to what the settings allow; keep them on disk.

        Positions in the journal are not recorded for items in memory. So the journal is rewritten:
        then the position of every item in the new file is known. No change may be uncommitted.
        """
        self._trim_at = self._core.state.clock.monotonic()
        self.attend()

    @property
    def _is_trim_due(self) -> bool:
        return self._trim_at is not None and self._core.state.clock.monotonic() >= self._trim_at

    def _trim(self, work: Rewrite) -> None:
        """Trim memory, now that all items of the old files are in the new file."""
        try:
            done = self._drop_newest(work)
        except (OSError, JournalError) as error:
            log.warning(
                "queue %s holds more than max_memory_size in memory until this can be done: %s",
                self._name,
                error,
                extra={"queue": self._name},
            )
            done = False
        self._trim_at = None if done else self._core.state.clock.monotonic() + RETRY_UNREADABLE

    def _drop_newest(self, work: Rewrite) -> bool:
        """Drop the newest items that memory holds; False if it still holds more than it may.

        Items are numbered in the order of the new file; the numbers of items that were added since
        continue from there, in the files after it. Items that were given back since may be at the
        head, and are not in the new file's order.
        """
        self._core.write_now()
        if not self._core.changes.are_written:
            return False  # the writer has them
        backlog = self._core.backlog
        in_memory, given_back = backlog.memory_items, self._core.reads.given_back - work.given_back
        fitting = backlog.fitting_items()
        if fitting >= in_memory:
            return True
        kept = max(fitting, given_back)
        if kept >= in_memory:
            return False
        end = work.waiting + backlog.total_items - work.total_items - backlog.behind_items
        first = min(end - (in_memory - kept), work.waiting)
        kept = in_memory - (end - first)
        if kept < given_back:
            return False
        number, position = work.replacement.position_before(first)
        files = self._journal.files
        files = files[files.index(work.replacement.pack) :]
        for useless in backlog.trim(kept, files, position, first - number):
            self._core.state.commits.worker.free(useless)
        return kept <= fitting

    # --- removing the journal ---

    def begin_removal(self) -> JournalRemoval:
        """Cancel what is being done, and prepare to remove the journal's files. Raises OSError.

        From now on nothing else is done to the journal, until `removal_failed` is called.
        """
        given_up = self.cancel()
        self._enter(Removing(given_up))
        return self._journal.begin_removal(
            name for one in self._replacements(given_up) for name in one.names
        )

    def removal_failed(self) -> None:
        """Resume the upkeep, because the queue was not removed."""
        state = self.state
        self._journal.is_ending = False
        if not isinstance(state, Removing):
            return
        for one in self._replacements(state.given_up):
            one.resume()
        # A new file that has replaced old ones must be completed.
        match state.given_up:
            case Placing(work) if work.replacement.is_placed:
                self._enter(Placing(work))
            case Clearing(replaced):
                self._enter(Clearing(replaced))
            case _:
                self._enter(IDLE)

    def cancel(self) -> Placing | Clearing | None:
        """Cancel what is being done; return its state if it is a replacement."""
        state = self.state.then if isinstance(self.state, Waiting) else self.state
        self._enter(IDLE)
        given_up = state if isinstance(state, Placing | Clearing) else None
        for one in self._replacements(given_up):
            one.cancel()
        return given_up

    def _replacements(self, given_up: Placing | Clearing | None) -> Iterator[Replacement]:
        """Yield those whose old files are there, and the one that `given_up` puts in place."""
        yield from (one.replacement for one in self._replaced)
        if isinstance(given_up, Placing):
            yield given_up.work.replacement
