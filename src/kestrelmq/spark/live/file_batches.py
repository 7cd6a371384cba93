"""The batches of a stream whose parts are files, which the tasks make: the driver's side.

The driver holds the lock of the staging location from its first call on. The tasks confirm the
items; the driver only tells a server that they could not reach, when that is back.
"""

import time
from collections.abc import Callable
from typing import Final

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.disk.locks import FileLock
from kestrelmq.spark.live.batch_plan import BatchPlan
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.shares import PartitionShare
from kestrelmq.spark.live.staging import PartId, Staging, StagingInUse

LOCK_PATIENCE: Final = 15.0
"""Seconds that a new query waits for the lock. If a driver was killed, its Python process keeps the
lock for as long as its option `wait`."""

SETTLE_PAUSE: Final = 5.0
"""Seconds before a server that could not be told about parts is asked again."""


class FileBatches:
    """The batches of one query; see `stream_driver.Batches` for the methods."""

    def __init__(
        self,
        staging: Staging,
        servers: ServerProbe,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; no I/O is done before the first call.

        Args:
            staging: where parts are kept.
            servers: the servers to tell.
            clock: measures how long to wait for the lock.
            pause: sleeps between two attempts to take the lock.
        """
        self._staging = staging
        self._servers = servers
        self._clock = clock or SystemClock()
        self._pause = pause
        self._lock: FileLock | None = None
        self._identity: str | None = None
        self._counted: set[PartId] | None = None
        self._settle_at = 0.0
        self._retired = 0

    def begin(self) -> str:
        """Lock the staging location unless that is done; return its identity.

        Raises:
            StagingInUse: another query has it locked.
        """
        if self._identity is None:
            self._lock = self._staging.lock(LOCK_PATIENCE, self._clock, self._pause)
            self._identity = self._staging.identity()
            self._staging.collect_garbage()
        return self._identity

    def check(self, plan: BatchPlan) -> None:
        """Check that a plan is of the query that the staging location belongs to."""
        if plan.staging != self.begin():
            raise StagingInUse(
                f"staging location {self._staging.path} belongs to another query than the "
                "checkpoint: give each query its own"
            )

    def settle(self, before: BatchPlan) -> bool:
        """Tell servers what was read of them in the batches up to `before`, if tasks could not.

        When all is told, release what is still reserved: for tasks that were ended because another
        one had read their partition, or that are still to come. Return False: a batch that was
        planned is read, whatever happens.
        """
        self._check_last(before)
        if before.epoch == self._retired or self._clock.monotonic() < self._settle_at:
            return False
        failed: set[str] = set()
        for name, part in self._staging.unsettled(before.epoch):
            if part.server not in failed and self._servers.settle(part):
                self._staging.mark_settled(name)
            else:
                failed.add(part.server)
        if failed:
            self._settle_at = self._clock.monotonic() + SETTLE_PAUSE
            return False
        self._retired = before.epoch
        queues: dict[str, list[str]] = {}
        for share in before.shares:
            if share.reserves:
                queues.setdefault(share.server, []).extend(name for name, _ in share.queues)
        self._servers.retire(queues, before.staging, before.epoch)
        return False

    def _check_last(self, before: BatchPlan) -> None:
        """Check that the staging location belongs to the checkpoint that `before` is from."""
        strays = [part_id for part_id in self._staging.parts() if part_id.epoch > before.epoch]
        if strays or self._staging.committed() > before.epoch:
            raise StagingInUse(
                f"staging location {self._staging.path} has batches after batch {before.epoch}, "
                "the last one of the checkpoint: it holds items of a query with another "
                "checkpoint. Start that query again, or give this one its own staging location"
            )

    def make(
        self, before: BatchPlan, queue: str, shares: tuple[PartitionShare, ...], patience: float
    ) -> BatchPlan:
        """Return the plan of the batch after `before`; its tasks make the parts."""
        del patience  # it is the tasks'
        return BatchPlan(before.epoch + 1, before.staging, queue, shares)

    def restart_counting(self) -> None:
        """Let `newly_taken` begin anew; lock the staging location first."""
        self.begin()
        self._counted = None

    def newly_taken(self) -> dict[tuple[str, str], int]:
        """Return how many items were taken of servers' queues since the last call."""
        if self._counted is None:
            # A batch that was started earlier has been read again by now. What it had reserved
            # before the counting is not among what was counted, so nothing of it is subtracted:
            # rather some items too many, which came later, than some too few.
            self._counted = set(self._staging.parts())
        parts = [part_id for part_id in self._staging.parts() if part_id not in self._counted]
        self._counted.update(parts)
        taken: dict[tuple[str, str], int] = {}
        for part in filter(None, map(self._staging.find, parts)):
            for run in part.runs:
                key = part.server, run.queue
                taken[key] = taken.get(key, 0) + run.items
        return taken

    def commit(self, plan: BatchPlan) -> None:
        """Delete the parts of this and all earlier batches."""
        self._staging.commit(plan.epoch)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
        self._identity = None
