"""The driver's side of a stream: plan the next batch, and delete parts that are done.

Where the batches are kept is another module's: `file_batches` if the staging location is a
directory, `stored_batches` if it is in a store. This module does not need Spark; `source`
connects it to Spark's interface.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import ConfigError
from kestrelmq.spark.live.batch_plan import BatchPlan, from_offset, share_out
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.shares import PartitionShare

COUNTING_PAUSE: Final = 0.2
"""Seconds in which a server gives back some of many items, if it has not given back all."""


BACKLOG_PAUSE: Final = 10.0
"""Seconds for which the backlog is not asked for again."""


class Batches(Protocol):
    """Where the batches of a query are kept; `FileBatches` and `StoredBatches` implement it."""

    def begin(self) -> str:
        """Return the identity that a new checkpoint gets. Raises StagingInUse."""

    def check(self, plan: BatchPlan) -> None:
        """Check that a plan is of the query whose batches these are. Raises StagingInUse."""

    def settle(self, before: BatchPlan) -> bool:
        """Tell the servers what they do not know yet of `before`, which is over.

        Return whether items went back to their queues that no batch has.

        Raises:
            StagingInUse: there are later batches: the checkpoint is another one, or an old copy.
        """

    def make(
        self, before: BatchPlan, queue: str, shares: tuple[PartitionShare, ...], patience: float
    ) -> BatchPlan | None:
        """Return the plan of the batch after `before`; None if there are no items after all.

        Args:
            before: the last batch.
            queue: the option `queue`.
            shares: what each partition may take.
            patience: seconds to wait for a queue that is loading.
        """

    def restart_counting(self) -> None:
        """Let `newly_taken` begin anew; make sure that no other driver takes items meanwhile."""

    def newly_taken(self) -> dict[tuple[str, str], int]:
        """Return how many items were taken of servers' queues since the last call."""

    def commit(self, plan: BatchPlan) -> None:
        """Delete what is kept of this and all earlier batches."""

    def close(self) -> None:
        """Release what is held."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Maximum items and bytes of a batch; `items` None means what the servers have now."""

    items: int | None
    bytes: int


class StreamDriver:
    """Plans the batches of one query."""

    def __init__(  # noqa: PLR0913 # one for each option
        self,
        batches: Batches,
        servers: ServerProbe,
        choice: QueueChoice,
        *,
        wait: float = 1.0,
        patience: float = 0.0,
        partitions: int = 1,
        rate: int | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
        random: Random | None = None,
    ) -> None:
        """Prepare to plan batches. No I/O is done before the first call.

        Args:
            batches: where batches are kept.
            servers: the servers to ask.
            choice: the queues to read.
            wait: seconds that `latest_offset` waits for an item.
            patience: seconds that a query that ends by itself waits for a queue that is loading.
            partitions: minimum number of partitions in a batch.
            rate: most items in a second; None for any number.
            clock: measures what `rate` allows.
            pause: sleeps until `rate` allows an item.
            random: the order of the queues in a batch.
        """
        self._batches = batches
        self._servers = servers
        self._choice = choice
        self._random = random or Random()  # noqa: S311 # a fair order, keeps no secret
        self._wait = wait
        self._patience = patience
        self._partitions = partitions
        self._clock = clock or SystemClock()
        self._pause = pause
        self._remaining: dict[tuple[str, str], int] | None = None
        self._rate = rate
        self._asked_at: float | None = None
        self._fraction = 0.0
        self._backlog: dict[str, dict[str, Any]] | None = None
        self._backlog_until = 0.0

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset before the first batch."""
        return BatchPlan(0, self._batches.begin(), str(self._choice)).to_offset()

    @property
    def is_limited(self) -> bool:
        """Whether the query ends once it has read what the servers had at its start."""
        return self._remaining is not None

    def plan_of(self, offset: Mapping[str, Any]) -> BatchPlan:
        """Return the plan of the batch with this offset.

        Raises:
            StagingInUse: the staging location belongs to another query.
            ConfigError: the batch is of other queues.
        """
        plan = from_offset(offset, self._choice.only)
        if plan.queue is not None and not self._choice.means(plan.queue):
            raise ConfigError(
                f"option 'queue' of reading kestrel: {str(self._choice)!r} is not allowed: the "
                f"checkpoint is of queue {plan.queue!r}, and staged items would appear under the "
                "wrong name. Give other queues their own checkpoint and staging location"
            )
        self._batches.check(plan)
        return plan

    def latest_offset(self, start: Mapping[str, Any], limits: BatchLimits) -> dict[str, Any]:
        """Return the offset of the next batch, or `start` if there are no items.

        Raises:
            StagingInUse: the staging location belongs to another query or another checkpoint.
            ConfigError: the checkpoint is of other queues.
            QueueCannotBeRead: the query ends once it has read what was there, and a server has a
                queue but refuses to let it be read, or it is paused.
        """
        before = self.plan_of(start)
        if self._batches.settle(before) and self._remaining is not None:
            self._remaining = self._steady_counts()
        if self.is_limited:
            self._servers.check_readable(self._patience)
        limits = self._rated(limits)
        allowed = self._items_left(limits)
        if allowed is None:
            found = self._servers.with_items(self._wait)
        else:
            found = [
                replace(one, items=allowed[one.server, one.queue])
                for one in (self._servers.with_items(0.0) if any(allowed.values()) else [])
                if allowed.get((one.server, one.queue))
            ]
        reserving = self._servers.reserving(sorted({one.server for one in found})) if found else {}
        waiting = [one for one in found if one.server in reserving]
        # If they are too many for a batch, or a long item uses it up, others are first next time.
        self._random.shuffle(waiting)
        shares = share_out(waiting, limits.items, limits.bytes, self._partitions, reserving)
        patience = self._patience if self.is_limited else 0.0
        plan = self._batches.make(before, str(self._choice), shares, patience) if shares else None
        if plan is None:
            if self._remaining is not None and any(self._remaining.values()):
                # Other readers took the rest, or somebody paused a queue: then this raises.
                self._servers.counts()
            return dict(start)
        return plan.to_offset()

    def limit_to_present_items(self) -> None:
        """From now on, take no more than the servers have now.

        Raises:
            ServerUnavailable: no server can be asked.
            QueueCannotBeRead: a server has a queue but refuses to let it be read.
        """
        self._batches.restart_counting()
        self._servers.check_readable(self._patience)
        counts = self._servers.counts()
        if not counts:
            raise self._servers.unavailable()
        self._remaining = _by_queue(counts)

    def backlog(self) -> dict[str, dict[str, Any]] | None:
        """Return how much waits on each server that can be asked; None if no server can.

        What is returned may be some seconds old, so that a busy stream does not ask all the time.
        """
        now = self._clock.monotonic()
        if now >= self._backlog_until:
            self._backlog = self._servers.backlog() or None
            self._backlog_until = self._clock.monotonic() + BACKLOG_PAUSE
        return self._backlog

    def commit(self, end: Mapping[str, Any]) -> None:
        """Delete the parts of all batches up to `end`."""
        self._batches.commit(self.plan_of(end))

    def close(self) -> None:
        """Close the connections, and release the staging location."""
        self._servers.close()
        self._batches.close()

    def _rated(self, limits: BatchLimits) -> BatchLimits:
        """Return the limits of a batch that takes what `rate` allows since the last call."""
        if self._rate is None:
            return limits
        now = self._clock.monotonic()
        passed = 1.0 if self._asked_at is None else now - self._asked_at
        self._asked_at = now
        allowed = self._fraction + passed * self._rate
        if allowed < 1:
            self._pause((1 - allowed) / self._rate)
            self._asked_at, allowed = self._clock.monotonic(), 1.0
        items = int(allowed)
        self._fraction = allowed - items
        most = items if limits.items is None else min(items, limits.items)
        return BatchLimits(most, limits.bytes)

    def _steady_counts(self) -> dict[tuple[str, str], int]:
        """Return what the servers' queues have when all that goes back to them is there."""
        found = self._servers.counts()
        while True:
            self._pause(COUNTING_PAUSE)
            before, found = found, self._servers.counts()
            if found == before:
                return _by_queue(found)

    def _items_left(self, limits: BatchLimits) -> dict[tuple[str, str], int] | None:
        """Return how many items may be taken from each server's queues, or None for no limit."""
        if self._remaining is None:
            return _by_queue(self._servers.counts()) if limits.items is None else None
        for key, items in self._batches.newly_taken().items():
            # A queue that gave nothing has none of those items left.
            self._remaining[key] = max(0, self._remaining.get(key, 0) - items) if items else 0
        return self._remaining


def _by_queue(counts: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    """Return counts of servers' queues by server and queue."""
    return {
        (server, name): items for server, found in counts.items() for name, items in found.items()
    }
