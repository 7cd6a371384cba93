"""The health of the server: whether it can serve, and everything that is wrong.

A problem of one queue is listed, but the server serves the others, and so it is ready.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any, Final, Literal

from kestrelmq.admin.slices import slices
from kestrelmq.queue.adding import NO_ROOM
from kestrelmq.queues.loading_queues import still_loading
from kestrelmq.queues.stats import damaged_queues
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices

ProblemKind = Literal["status", "queue_path", "disk", "loading", "damaged", "failing"]
"""status: it forbids reads and writes · queue_path: it was lost · disk: it has too little room,
and adds are refused · loading: a queue is not loaded
yet · damaged: a queue must be repaired · failing: a queue's journal cannot be written."""

_NOT_READY: Final = frozenset({"status", "queue_path", "loading"})
"""The problems with which the server is not ready."""
MOST_LISTED: Final = 100
"""Most problems in one answer."""
_SLICE: Final = 1000
"""Queues that are looked at before other tasks may run."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong.

    Attributes:
        kind: what it is about.
        queue: the queue that it concerns; None for the whole server.
        reason: a description, for people.
    """

    kind: ProblemKind
    queue: str | None
    reason: str


@dataclass(slots=True)
class _Kind:
    """The problems of one kind: how many there are, and the first of them."""

    count: int = 0
    first: list[Problem] = field(default_factory=list)


class Health:
    """What is wrong with a server.

    Attributes:
        status: the server's status.
    """

    __slots__ = ("_kinds", "status")

    def __init__(self, status: str) -> None:
        self.status = status
        self._kinds: dict[ProblemKind, _Kind] = {}

    def add(self, first: Sequence[Problem], count: int = 1) -> None:
        """Add `count` problems of one kind; `first` has as many of them as an answer may list."""
        if first:
            kind = self._kinds.setdefault(first[0].kind, _Kind())
            kind.count += count
            kind.first += first[: MOST_LISTED - len(kind.first)]

    @property
    def is_ready(self) -> bool:
        """Whether the server can serve."""
        return _NOT_READY.isdisjoint(self._kinds)

    @property
    def problems(self) -> list[Problem]:
        """The first problems, `MOST_LISTED` at most; what concerns the whole server comes first."""
        return list(
            islice(chain.from_iterable(kind.first for kind in self._kinds.values()), MOST_LISTED)
        )

    @property
    def reasons(self) -> list[str]:
        """A line for each kind of problem: the first one, and how many others there are."""
        return [
            kind.first[0].reason + (f", and {kind.count - 1} more" if kind.count > 1 else "")
            for kind in self._kinds.values()
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the body of `/health`."""
        return {
            "healthy": self.is_ready,
            "status": self.status,
            "reasons": self.reasons,
            "problems": [asdict(problem) for problem in self.problems],
            "problem_count": sum(kind.count for kind in self._kinds.values()),
        }


async def health_of(context: ServerContext) -> Health:
    """Return the health of the server; others are served between slices of its queues."""
    status, collection = context.status, context.collection
    health = Health(status.status.value)
    if not status.reads_allowed and not status.writes_allowed:
        health.add([Problem("status", None, f"the status is {health.status}")])
    if collection.guard.lost is not None:
        health.add([Problem("queue_path", None, collection.guard.lost)])
    if collection.commits.is_disk_short:
        health.add([Problem("disk", None, NO_ROOM)])
    loading = list(collection.loading)
    names = await _first_names(loading)
    health.add([Problem("loading", name, still_loading(name)) for name in names], len(loading))
    damaged = await in_slices(damaged_queues(collection))
    names = await _first_names(damaged)
    health.add([Problem("damaged", name, damaged[name]) for name in names], len(damaged))
    async for queues in slices(list(collection.queues.values()), _SLICE):
        for queue in queues:
            if queue.core.is_failing:
                reason = f"the journal cannot be written: {queue.core.problem}"
                health.add([Problem("failing", queue.name, reason)])
    return health


async def _first_names(names: Collection[str]) -> list[str]:
    """Return the first of the names, in order; others are served meanwhile."""
    first: list[str] = []
    async for some in slices(names, _SLICE):
        first = heapq.nsmallest(MOST_LISTED, [*first, *some])
    return first
