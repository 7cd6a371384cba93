"""The journal is ahead of the reply: which queues changed since the last commit.

Operations change a queue in memory and collect journal records. `commit` writes them, one write
for each queue that changed, and only then may replies leave. A queue whose write fails takes back
every operation since its last commit, and its name is among the failures.
"""

from typing import Protocol

from kestrelmq.errors import JournalError


class Committable(Protocol):
    """Something that collects changes."""

    def commit(self) -> JournalError | None:
        """Write what was collected; on failure take it back and say why."""

    def sync(self) -> None:
        """Force to disk what was written; may be called from another thread. Raises OSError."""

    def sync_failed(self, error: OSError) -> JournalError:
        """Say how the failed sync is to be reported."""


class Commits:
    """The queues that changed since the last commit, in the order in which they first changed.

    Attributes:
        dirty: the queues; a queue adds itself with its first change.
        unsynced: queues that were written since `take_unsynced` and whose replies wait for a sync.
        failures: queues whose changes were taken back since the last `commit`, and why.
    """

    __slots__ = ("dirty", "failures", "unsynced")

    def __init__(self) -> None:
        self.dirty: list[Committable] = []
        self.unsynced: set[Committable] = set()
        self.failures: dict[Committable, JournalError] = {}

    def commit(self) -> dict[Committable, JournalError]:
        """Write everything; return the queues that could not be written, and why."""
        for queue in self.dirty:
            failure = queue.commit()
            if failure is not None:
                self.failures[queue] = failure
        self.dirty.clear()
        failures = self.failures
        if failures:
            self.failures = {}
        return failures

    def take_unsynced(self) -> set[Committable]:
        """Return the queues that need a sync before their replies may leave, and forget them."""
        unsynced = self.unsynced
        if unsynced:
            self.unsynced = set()
        return unsynced
