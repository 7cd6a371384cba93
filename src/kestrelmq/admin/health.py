"""The health of the server: whether it can serve, and everything that is wrong.

A problem of one queue is listed, but the server serves the others, and so it is ready.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from kestrelmq.engine.loading_queues import still_loading
from kestrelmq.engine.stats import damaged_queues
from kestrelmq.server.context import ServerContext

ProblemKind = Literal["status", "queue_path", "loading", "damaged", "failing"]
"""status: it forbids reads and writes · queue_path: it was lost · loading: a queue is not loaded
yet · damaged: a queue must be repaired · failing: a queue's journal cannot be written."""

_NOT_READY: Final = frozenset({"status", "queue_path", "loading"})
"""The problems with which the server is not ready."""
MOST_LISTED: Final = 100
"""Most problems in one answer."""


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


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong with a server.

    Attributes:
        status: the server's status.
        problems: everything that is wrong, first what concerns the whole server.
    """

    status: str
    problems: list[Problem]

    @property
    def is_ready(self) -> bool:
        """Whether the server can serve."""
        return not any(problem.kind in _NOT_READY for problem in self.problems)

    @property
    def reasons(self) -> list[str]:
        """A line for each kind of problem: the first one, and how many others there are."""
        by_kind: dict[str, list[str]] = {}
        for problem in self.problems:
            by_kind.setdefault(problem.kind, []).append(problem.reason)
        return [
            first if not others else f"{first}, and {len(others)} more"
            for first, *others in by_kind.values()
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the body of `/health`."""
        return {
            "healthy": self.is_ready,
            "status": self.status,
            "reasons": self.reasons,
            "problems": [asdict(problem) for problem in self.problems[:MOST_LISTED]],
            "problem_count": len(self.problems),
        }


def health_of(context: ServerContext) -> Health:
    """Return the health of the server."""
    return Health(context.status.status.value, list(_problems(context)))


def _problems(context: ServerContext) -> Iterator[Problem]:
    status, collection = context.status, context.collection
    if not status.reads_allowed and not status.writes_allowed:
        yield Problem("status", None, f"the status is {status.status.value}")
    if collection.guard.lost is not None:
        yield Problem("queue_path", None, collection.guard.lost)
    for name in sorted(collection.loading):
        yield Problem("loading", name, still_loading(name))
    for name, reason in sorted(damaged_queues(collection).items()):
        yield Problem("damaged", name, reason)
    for name, queue in collection.queues.items():
        if queue.delayed_damage is not None:
            yield Problem("damaged", name, queue.delayed_damage)
        if queue.is_failing:
            yield Problem("failing", name, f"the journal cannot be written: {queue.problem}")
