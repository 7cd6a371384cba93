"""The journal is ahead of the reply: which queues changed since the last commit.

Operations change a queue in memory and collect journal records. `commit` writes them, one write
for each queue that changed, and only then may replies leave. A queue whose write fails takes back
every operation since its last commit, and its name is among the failures.
"""

import logging
from collections.abc import Callable

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


class Commits:
    """The queues that changed since the last commit, in the order in which they first changed.

    Attributes:
        dirty: the queues; a queue adds itself with its first change.
        unsynced: queues that were written since `take_unsynced` and whose replies wait for a sync.
        failures: queues whose changes were taken back since the last `commit`, and why.
        timed: queues with open reads that end by themselves.
        on_timed: called when something is to happen at a later time; see `is_timed`.
        begun: how many files were ever begun for items that are added later; it numbers them.
        worker: runs long work on the journals.
    """

    __slots__ = (
        "_due",
        "_joined",
        "_records",
        "begun",
        "dirty",
        "failures",
        "on_timed",
        "timed",
        "unsynced",
        "worker",
    )

    def __init__(self, worker: Worker | None = None) -> None:
        """`worker` is by default one that does all at once; queues keep the one they began with."""
        self.worker: Worker = worker or InlineWorker()
        self._due: dict[Committable, float] = {}
        self._records: list[bytes] = []
        self._joined = b""
        self.begun = 0
        self.dirty: list[Committable] = []
        self.unsynced: set[Committable] = set()
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

    @property
    def is_timed(self) -> bool:
        """Whether `end_overdue` or `take_due` will have something to do."""
        return bool(self.timed or self._due)

    def end_later(self, queue: Committable) -> None:
        """Have `end_overdue` of `queue` called now and then, until no open read needs it."""
        if queue not in self.timed:
            self.timed.add(queue)
            self.on_timed()

    def sync_later(self, queue: Committable, due: float) -> None:
        """Have `queue` synced at `due` (monotonic seconds), unless that is to happen earlier."""
        if queue not in self._due:
            self._due[queue] = due
            self.on_timed()

    def take_due(self, now: float) -> set[Committable]:
        """Return the queues whose periodic sync is due, and forget them."""
        if not self._due:
            return set()
        due = {queue for queue, at in self._due.items() if at <= now}
        for queue in due:
            del self._due[queue]
        return due

    def take_unsynced(self) -> set[Committable]:
        """Return the queues that need a sync before their replies may leave, and forget them."""
        unsynced = self.unsynced
        if unsynced:
            self.unsynced = set()
        return unsynced


def _nobody() -> None:
    """Do nothing: nobody waits."""
