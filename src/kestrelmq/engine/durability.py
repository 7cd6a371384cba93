"""When is a change on disk? Written by the commit, synced by a round of fsyncs.

Operations change a queue in memory and collect journal records. `Commits.commit` writes them, one
write for each queue that changed, and only then may replies leave. A queue whose write fails takes
back every operation since its last commit, and its name is among the failures.

Where the settings ask for it, what was written is then synced, in rounds; see `Syncs`. Nothing here
knows threads, locks or loops. Who drives it does, in its own way: the server (`server.turns`), the
library for threads (`library.access`) and the library for asyncio (`library.aio`).
"""

import logging
from collections.abc import Callable

from kestrelmq.clock import Pause, no_pause
from kestrelmq.engine.worker import InlineWorker, Worker
from kestrelmq.errors import JournalError

log = logging.getLogger(__name__)


class Committable:
    """Something that collects changes."""

    def commit(self) -> JournalError | None:
        """Write what was collected; on failure take it back and say why."""
        raise NotImplementedError

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""
        raise NotImplementedError

    def failed(self, error: OSError) -> JournalError:
        """Say how a failure outside of `commit` is to be reported."""
        raise NotImplementedError

    def end_overdue(self) -> bool:
        """Give back the open reads whose time is up; return whether others have one."""
        raise NotImplementedError


class SyncRound:
    """One fsync of each of some queues; it covers all that was written to them before it began.

    Attributes:
        number: rounds are numbered from 1, in the order in which they run.
        queues: what is synced; no more are added once the round has begun.
        has_ended: whether it was tried.
        failures: when it has ended, the queues that may not be on disk, and why.
    """

    __slots__ = ("_errors", "failures", "has_ended", "number", "queues")

    def __init__(self, number: int) -> None:
        self.number = number
        self.queues: set[Committable] = set()
        self.has_ended = False
        self.failures: dict[Committable, JournalError] = {}
        self._errors: dict[Committable, OSError] = {}

    def run(self, pause: Pause = no_pause) -> None:  # noqa: ARG002 # so that it is a worker's job
        """Sync the queues, each whatever happens to the others; may run in another thread."""
        errors: dict[Committable, OSError] = {}
        for queue in self.queues:
            try:
                queue.sync()
            except OSError as error:
                errors[queue] = error
            except Exception as error:
                # The round must end whatever happens: clients wait for it.
                log.exception("a journal was not synced")
                errors[queue] = OSError(repr(error))
        self._errors = errors

    def end(self, error: BaseException | None = None) -> None:
        """Say what failed, after `run`, or `error` if that could not run."""
        if error is not None:
            self._errors = dict.fromkeys(self.queues, OSError(str(error)))
        self.failures = {queue: queue.failed(error) for queue, error in self._errors.items()}
        self.has_ended = True


class Syncs:
    """Which round of fsyncs covers what was written, and when.

    One round runs at a time. What is written meanwhile is covered by the next one:

        request: a queue joins the next round
        begin:   the next round becomes the one that runs, unless one runs
        end:     it is over; `SyncRound.failures` says what is to be answered with an error

    Every method is called by the owner of the queues. Only `SyncRound.run` may be called elsewhere,
    between `begin` and `end`.

    Attributes:
        unsynced: queues that were written since `take_unsynced`, and whose replies wait for a sync.
        running: the round that was begun and has not ended.
    """

    __slots__ = ("_due", "_next", "running", "unsynced")

    def __init__(self) -> None:
        self.unsynced: set[Committable] = set()
        self._next = SyncRound(1)
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
        """Whether `take_due` will return something, now or later."""
        return bool(self._due)

    def sync_by(self, queue: Committable, due: float) -> bool:
        """Have `take_due` return `queue` at `due`; False if it does so earlier anyway."""
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
        """Whether a round waits for the one that runs to end."""
        return bool(self._next.queues)

    def request(self, queues: set[Committable]) -> SyncRound | None:
        """Have `queues` synced; return the round that covers them, None when there are none."""
        if not queues:
            return None
        self._next.queues |= queues
        return self._next

    def begin(self) -> SyncRound | None:
        """Return the round that is to `run` now, if any: one that waits, while none runs."""
        if self.running is not None or not self.has_next:
            return None
        self.running = self._next
        self._next = SyncRound(self.running.number + 1)
        return self.running

    def end(self, error: BaseException | None = None) -> SyncRound:
        """End the round that runs, as `SyncRound.end`, and return it."""
        running, self.running = self.running, None
        assert running is not None  # noqa: S101 # it was begun
        running.end(error)
        return running


class Commits:
    """The queues that changed since the last commit, in the order in which they first changed.

    Attributes:
        dirty: the queues; a queue adds itself with its first change.
        failures: queues whose changes were taken back since the last `commit`, and why.
        syncs: when what was written is synced.
        timed: queues with open reads that end by themselves.
        on_timed: called when something is to happen at a later time; see `is_timed`.
        begun: how many files were ever begun for items that are added later; it numbers them.
        worker: runs long work on the journals.
    """

    __slots__ = (
        "_joined",
        "_records",
        "begun",
        "dirty",
        "failures",
        "on_timed",
        "syncs",
        "timed",
        "worker",
    )

    def __init__(self, worker: Worker | None = None) -> None:
        """`worker` is by default one that does all at once; queues keep the one they began with."""
        self.worker: Worker = worker or InlineWorker()
        self._records: list[bytes] = []
        self._joined = b""
        self.begun = 0
        self.dirty: list[Committable] = []
        self.syncs = Syncs()
        self.timed: set[Committable] = set()
        self.on_timed: Callable[[], object] = _nobody
        self.failures: dict[Committable, JournalError] = {}

    def commit(self) -> dict[Committable, JournalError]:
        """Write everything; return the queues that could not be written, and why."""
        for queue in self.dirty:
            try:
                failure = queue.commit()
            except Exception as error:
                # A bug that one queue shows must not keep the others from being written.
                log.exception("a queue was not committed")
                failure = JournalError(f"internal error: {error!r}")
            if failure is not None:
                self.failures[queue] = failure
        self.dirty.clear()
        if self._records:
            self._records, self._joined = [], b""
        failures = self.failures
        if failures:
            self.failures = {}
        return failures

    def join(self, records: list[bytes]) -> bytes:
        """Return several records as one piece; made once for fanout queues that write the same."""
        if len(self.dirty) == 1:
            return b"".join(records)
        if records != self._records:
            self._records, self._joined = records.copy(), b"".join(records)
        return self._joined

    # --- as time goes by ---

    @property
    def is_timed(self) -> bool:
        """Whether `end_overdue` or `Syncs.take_due` will have something to do."""
        return bool(self.timed) or self.syncs.has_due

    def end_later(self, queue: Committable) -> None:
        """Have `end_overdue` of `queue` called now and then, until no open read needs it."""
        if queue not in self.timed:
            self.timed.add(queue)
            self.on_timed()

    def sync_later(self, queue: Committable, due: float) -> None:
        """Have `queue` synced at `due` (monotonic seconds), unless that is to happen earlier."""
        if self.syncs.sync_by(queue, due):
            self.on_timed()


def sync_now(queue: Committable) -> JournalError | None:
    """Force to disk what a queue has written, while nobody else uses it; say what failed."""
    alone = SyncRound(0)
    alone.queues.add(queue)
    alone.run()
    alone.end()
    return alone.failures.get(queue)


def _nobody() -> None:
    """Do nothing: nobody waits."""
