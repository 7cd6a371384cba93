"""When a change is on disk: written by the commit, synced by a round of fsyncs.

Operations change a queue in memory and collect journal records. `GroupCommit.commit` writes them,
with one write for each queue that changed, and only then may replies be sent. A queue whose write
fails takes back every operation since its last commit, and is among the failures.

What takes long is done in rounds, by a thread, and replies wait for the rounds that their queues
are in. A `WriteRound` writes queues that have collected a large item; see
`GroupCommit.write_in_round`. If the settings ask for it, the written records are then synced; see
`SyncScheduler`. This module has no threads or loops. Its three drivers do: the server
(`server.turns`), the library for threads (`library.access`) and the library for asyncio
(`library.aio`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock
from typing import TypeVar

from kestrelmq.clock import Pause, no_pause
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError, KestrelError, NotSynced, QueueUnavailable
from kestrelmq.scheduling.deadline_watch import DeadlineWatch, Timed
from kestrelmq.scheduling.worker import InlineWorker, Job, Worker

T = TypeVar("T")

log = get_logger(__name__)


class Committable(Timed):  # pragma: no cover: it only declares what a queue does
    """Something that collects changes."""

    def commit(self) -> JournalError | None:
        """Write the collected changes; on failure, take them back and return the error."""
        raise NotImplementedError

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""
        raise NotImplementedError

    def begin_write(self) -> Job:
        """Return the job that writes what is collected; it raises OSError.

        Another thread may run it. Nothing else is written before `end_write`.
        """
        raise NotImplementedError

    def end_write(self, error: OSError | None) -> JournalError | None:
        """Finish a `commit` whose records were written; `error` is what the job raised."""
        raise NotImplementedError

    def failed(self, error: OSError) -> JournalError:
        """Return the error to report for a failure outside of `commit`."""
        raise NotImplementedError


class Round:
    """Work on several queues that takes long: it may be run in another thread.

    Attributes:
        queues: the queues; none are added once the round has begun.
        syncs: the rounds that sync what it has written, if replies wait for that, too.
        has_ended: whether the round is over.
        failures: once the round is over, the queues of which it failed, and why.
    """

    def __init__(self) -> None:
        self.queues: dict[Committable, None] = {}
        self.syncs: list[Round] = []
        self.has_ended = False
        self.failures: dict[Committable, JournalError] = {}
        self._errors: dict[Committable, OSError] = {}

    def run(self, pause: Pause = no_pause) -> None:
        """Work on each queue, even if others fail; may run in another thread."""
        errors: dict[Committable, OSError] = {}
        for queue in self.queues:
            try:
                self._work_on(queue, pause)
            except OSError as error:
                errors[queue] = error
            except Exception as error:
                # The round must end whatever happens, because clients wait for it.
                log.exception("the round of a journal failed")
                errors[queue] = OSError(repr(error))
        self._errors = errors

    def _work_on(self, queue: Committable, pause: Pause) -> None:
        """Work on one queue; `pause` after each short piece. Raises OSError."""
        raise NotImplementedError

    def end(self, error: BaseException | None = None) -> None:
        """Set `failures`, after `run`; `error` is given if that could not run."""
        if error is not None:
            self._errors = dict.fromkeys(self.queues, OSError(str(error)))
        self._find_failures(self._errors)
        self.has_ended = True

    def _find_failures(self, errors: dict[Committable, OSError]) -> None:
        """Set `failures`, given the errors of the work on some queues."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Whether replies need not wait for it any more."""
        return self.has_ended and all(sync.has_ended for sync in self.syncs)


class SyncRound(Round):
    """One fsync of each of several queues; it covers all that was written to them before it began.

    Its failures are `NotSynced`: those queues may not be on disk.
    """

    def _work_on(self, queue: Committable, pause: Pause) -> None:  # noqa: ARG002 # it is one piece
        queue.sync()

    def _find_failures(self, errors: dict[Committable, OSError]) -> None:
        self.failures = {
            queue: NotSynced(str(queue.failed(error))) for queue, error in errors.items()
        }


class WriteRound(Round):
    """A round of writes, one for each queue, in the order in which they joined."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[Committable, Job] = {}
        self._has_run = False
        self._lock = Lock()

    def begin(self) -> None:
        """Prepare to `run`: no queue joins it any more."""
        self._jobs = {queue: queue.begin_write() for queue in self.queues}

    def run(self, pause: Pause = no_pause) -> None:
        """Write each queue, even if others fail; may run in another thread.

        If that was done, or is being done, wait for its end.
        """
        with self._lock:
            if not self._has_run:
                self._has_run = True
                super().run(pause)

    def _work_on(self, queue: Committable, pause: Pause) -> None:
        self._jobs[queue](pause)

    def _find_failures(self, errors: dict[Committable, OSError]) -> None:
        for queue in self.queues:
            failure = queue.end_write(errors.get(queue))
            if failure is not None:
                self.failures[queue] = failure


Rounds = Collection[Round]
"""The rounds that a reply waits for."""
AfterWriting = Callable[[JournalError | None], None]
"""Called when something is written; with the error if it was not."""


def failures_of(rounds: Rounds) -> dict[Committable, JournalError]:
    """Return the failures of rounds that are over."""
    failures: dict[Committable, JournalError] = {}
    for one in rounds:
        for part in (*one.syncs, one):
            failures.update(part.failures)
    return failures


class SyncScheduler:
    """Schedules rounds of fsyncs.

    One round runs at a time. What is written meanwhile is covered by the next one:

        request: a queue joins the next round
        begin:   the next round becomes the running one, unless one is running
        end:     the running round is over; `SyncRound.failures` tells which replies are errors

    Only the owner of the queues calls these methods. `SyncRound.run` alone may be called elsewhere,
    between `begin` and `end`.

    Attributes:
        unsynced: queues that were written since `take_unsynced`, and whose replies wait for a sync.
        running: the round that was begun and has not ended.
    """

    __slots__ = ("_due", "_next", "running", "unsynced")

    def __init__(self) -> None:
        self.unsynced: set[Committable] = set()
        self._next = SyncRound()
        self.running: SyncRound | None = None
        self._due: dict[Committable, float] = {}

    def take_unsynced(self) -> set[Committable]:
        """Return the queues that need a sync before their replies may leave, and forget them."""
        unsynced = self.unsynced
        if unsynced:
            self.unsynced = set()
        return unsynced

    # --- periods ---

    @property
    def has_due(self) -> bool:
        """Whether `take_due` will return any queue, now or later."""
        return bool(self._due)

    def sync_by(self, queue: Committable, due: float) -> bool:
        """Let `take_due` return `queue` at `due`; return False if it will earlier anyway."""
        if queue in self._due:
            return False
        self._due[queue] = due
        return True

    def take_due(self, now: float) -> set[Committable]:
        """Return the queues whose periodic sync is due, and forget them."""
        if not self._due:
            return set()
        due = {queue for queue, at in self._due.items() if at <= now}
        for queue in due:
            del self._due[queue]
        return due

    # --- rounds ---

    @property
    def has_next(self) -> bool:
        """Whether any queue is in the next round."""
        return bool(self._next.queues)

    @property
    def is_due(self) -> bool:
        """Whether the next round may begin: it has queues, and no round is running."""
        return self.running is None and self.has_next

    def request(self, queues: set[Committable]) -> SyncRound | None:
        """Add `queues` to the next round, and return that; None if there are no `queues`."""
        if not queues:
            return None
        for queue in queues:
            self._next.queues[queue] = None
        return self._next

    def begin(self) -> SyncRound | None:
        """Begin the next round and return it, to be `run`; None if one runs or none is needed."""
        if not self.is_due:
            return None
        self.running = self._next
        self._next = SyncRound()
        return self.running

    def end(self, error: BaseException | None = None) -> SyncRound:
        """End the running round, as `SyncRound.end`, and return it."""
        running, self.running = self.running, None
        assert running is not None  # noqa: S101 # it was begun
        running.end(error)
        return running


class GroupCommit:
    """Commits the queues that changed since the last commit, in the order of their first changes.

    Attributes:
        dirty: these queues; a queue adds itself with its first change.
        failures: queues whose changes were taken back since the last `commit`, and why.
        syncs: schedules the syncs of what was written.
        deadlines: which queues have something to do at some time.
        on_timer_needed: called when something has to happen later; see `needs_timer`.
        is_disk_short: whether adds are to be refused because the disk has too little room.
        writing: the round that writes queues; None if none does.
        on_written: called when such a round has ended.
        worker: runs long work on the journals.
        writer: runs what clients wait for: rounds, and other work on large items.
        isolates_faults: whether a bug that one queue shows leaves the others in use: `survives`.
        fault: the exception that may have left a queue half changed, in `apply`.
        on_fault: called when there is one.
    """

    __slots__ = (
        "_after_writing",
        "_followers",
        "_joined",
        "_next_write",
        "_records",
        "deadlines",
        "dirty",
        "failures",
        "fault",
        "is_disk_short",
        "isolates_faults",
        "on_fault",
        "on_timer_needed",
        "on_written",
        "syncs",
        "worker",
        "writer",
        "writing",
    )

    def __init__(self, worker: Worker | None = None, *, isolates_faults: bool = True) -> None:
        """Start with no changes. For `isolates_faults` see `survives`.

        The default `worker` runs each job at once, and so does the writer. Queues keep the worker
        that they began with.
        """
        self.worker: Worker = worker or InlineWorker()
        self.writer: Worker = InlineWorker()
        self.writing: WriteRound | None = None
        self.on_written: Callable[[], object] = _nobody
        self.on_fault: Callable[[], object] = _nobody
        self._next_write = WriteRound()
        self._after_writing: list[tuple[dict[Committable, Round], AfterWriting]] = []
        self._records: list[bytes] = []
        self._joined = b""
        self.is_disk_short = False
        self.dirty: list[Committable] = []
        self._followers: list[set[Committable]] = []
        self.syncs = SyncScheduler()
        self.deadlines: DeadlineWatch[Timed] = DeadlineWatch()
        self.on_timer_needed: Callable[[], object] = _nobody
        self.failures: dict[Committable, JournalError] = {}
        self.isolates_faults = isolates_faults
        self.fault: BaseException | None = None

    def commit(self) -> dict[Committable, JournalError]:
        """Write everything; return the queues that could not be written, and why."""
        for queue in self.dirty:
            try:
                failure = queue.commit()
            except Exception as error:
                if not self.survives(error):
                    raise
                # A bug that one queue shows must not keep the others from being written.
                log.exception("a queue was not committed")
                failure = JournalError(f"internal error: {error!r}")
            if failure is not None:
                self.failures[queue] = failure
        for changed in self._followers:
            changed.update(self.dirty)
        self.dirty.clear()
        if self._records:
            self._records, self._joined = [], b""
        failures = self.failures
        if failures:
            self.failures = {}
        return failures

    def apply(self, operation: Callable[[], T], finish: Callable[[], None]) -> T:
        """Apply an operation, then call `finish`, which commits; return the operation's result.

        `finish` is also called if the operation is refused, by a KestrelError. Any other exception
        may leave a queue half changed: a time limit, a Ctrl-C, a bug. Then nothing more is written,
        and all later calls raise QueueUnavailable.
        """
        self.check_whole()
        try:
            try:
                result = operation()
            except KestrelError:
                finish()
                raise
            finish()
        except KestrelError:
            raise
        except BaseException as error:
            self.fault = error
            self.dirty.clear()
            self.failures = {}
            self.syncs.unsynced.clear()
            self.on_fault()
            raise
        return result

    def survives(self, error: Exception) -> bool:
        """Whether work on the other queues goes on after an error of one queue.

        A server survives any: a bug that one queue shows must not stop all. The library only
        survives refusals, because all others may have left the queue half changed.
        """
        return self.isolates_faults or isinstance(error, KestrelError)

    def check_whole(self) -> None:
        """Raise QueueUnavailable: a change was left half-way, see `apply`."""
        if self.fault is not None:
            refusal = QueueUnavailable(
                f"a change was left half-way ({self.fault!r}): close the queue and set it up again"
            )
            refusal.__cause__ = self.fault  # mypyc ignores it after "from"
            raise refusal

    def follow(self, queues: Iterable[Committable]) -> set[Committable]:
        """Return a set of `queues`; from now on every queue that changes is added to it.

        The caller empties it regularly, and need only look at the queues that it finds there.
        """
        changed = set(queues)
        self._followers.append(changed)
        return changed

    def note_change(self, queue: Committable) -> None:
        """Tell the followers (`follow`) of a change that concerns no item: it is not committed."""
        for changed in self._followers:
            changed.add(queue)

    def join(self, records: list[bytes]) -> bytes:
        """Join records; the result is reused for fanout queues that write the same records."""
        if len(self.dirty) == 1:
            return b"".join(records)
        if records != self._records:
            self._records, self._joined = records.copy(), b"".join(records)
        return self._joined

    # --- rounds ---

    def write_in_round(self, queue: Committable) -> None:
        """Let the writer write what `queue` has collected, which takes long.

        One round runs at a time. What a queue of it collects meanwhile is written after it: at once
        if that takes a short time, else by the next round. Replies wait for the round after which
        it is written.
        """
        self._next_write.queues[queue] = None
        if self.writing is None:
            self._begin_writes()

    def _begin_writes(self) -> None:
        begun, self._next_write = self._next_write, WriteRound()
        self.writing = begun
        begun.begin()
        self.writer.run(begun.run, lambda error: self._end_writes(begun, error))

    def _end_writes(self, ended: WriteRound, error: BaseException | None) -> None:
        """End a round; commit what waited for it, and begin the next one if need be."""
        if ended is not self.writing:
            return  # `finish_writing` has done so
        ended.end(error)
        self.failures.update(ended.failures)
        self.dirty += ended.queues  # the journals grew, so the commit must check upkeep
        self._will_sync(ended, ended.queues)
        following = self._next_write
        waiting, following.queues = following.queues, {}
        for queue in waiting:
            failure = ended.failures.get(queue) or queue.commit()
            if failure is not None:
                self.failures[queue] = following.failures[queue] = failure
        self._will_sync(following, waiting)
        self.writing = None
        if following.queues:
            self._begin_writes()
        elif waiting:
            following.has_ended = True
            self._next_write = WriteRound()
        self.on_written()
        self._call_after_writing()

    def _will_sync(self, one: WriteRound, written: Iterable[Committable]) -> None:
        """Let those who wait for a round wait until queues are synced, too, if they must be."""
        covering = self.syncs.request(self.syncs.unsynced.intersection(written))
        if covering is not None:
            one.syncs.append(covering)

    def finish_writing(self) -> None:
        """Have everything written when this returns: wait for the writer, or do its work."""
        while (running := self.writing) is not None:
            running.run()
            self._end_writes(running, None)

    def is_writing(self, queue: Committable) -> bool:
        """Whether `queue` is in a round that has not ended."""
        running = self.writing
        if running is None:
            return False
        return queue in self._next_write.queues or (
            queue in running.queues and not running.has_ended
        )

    def writing_of(self, queues: Iterable[Committable]) -> dict[Committable, Round]:
        """Return the rounds that changes to `queues` wait for, by queue, as far as they must."""
        running = self.writing
        rounds: dict[Committable, Round] = {}
        if running is not None:
            for queue in queues:
                if queue in self._next_write.queues:
                    rounds[queue] = self._next_write
                elif queue in running.queues:
                    rounds[queue] = running
        return rounds

    def take_rounds(self) -> Mapping[Committable, Round]:
        """Return the rounds that replies have to wait for, by the queues that they depend on.

        Replies are taken after a commit: to what was written now, the round is one of syncs.
        """
        rounds: dict[Committable, Round] = {}
        unsynced = self.syncs.take_unsynced()
        covering = self.syncs.request(unsynced)
        if covering is not None:
            rounds = dict.fromkeys(unsynced, covering)
        if self.writing is not None:
            rounds.update(self.writing_of((*self.writing.queues, *self._next_write.queues)))
        return rounds

    def after_writing(self, queues: Iterable[Committable], call: AfterWriting) -> None:
        """Call `call` when what `queues` have collected is written; at once if no round has to."""
        rounds = self.writing_of(queues)
        if rounds:
            self._after_writing.append((rounds, call))
        else:
            call(None)

    def _call_after_writing(self) -> None:
        waiting, self._after_writing = self._after_writing, []
        for rounds, call in waiting:
            if all(one.has_ended for one in rounds.values()):
                failures = [
                    one.failures[queue] for queue, one in rounds.items() if queue in one.failures
                ]
                call(failures[0] if failures else None)
            else:
                self._after_writing.append((rounds, call))

    # --- as time goes by ---

    @property
    def needs_timer(self) -> bool:
        """Whether `check_deadlines` or `SyncScheduler.take_due` will have something to do."""
        return bool(self.deadlines) or self.syncs.has_due

    def watch_deadlines(self, one: Timed) -> None:
        """Let `check_deadlines` of `one`, which may have got an earlier deadline, be called soon.

        What that returns is when it is called again.
        """
        if self.deadlines.watch(one):
            self.on_timer_needed()

    def sync_later(self, queue: Committable, due: float) -> None:
        """Let `queue` be synced at `due` (monotonic seconds), unless it will be synced earlier."""
        if self.syncs.sync_by(queue, due):
            self.on_timer_needed()


def sync_now(*queues: Committable) -> JournalError | None:
    """Force to disk what queues have written, while nobody else uses them; return a failure."""
    alone = SyncRound()
    alone.queues = dict.fromkeys(queues)
    alone.run()
    alone.end()
    return next(iter(alone.failures.values()), None)


def nothing() -> None:
    """Commit nothing: the next change does. It may be the `finish` of `apply`."""


def _nobody() -> None:
    """Do nothing: nobody needs to be told."""
