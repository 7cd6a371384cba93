"""What all parts of a queue go by: its settings, what operations must check, what was counted."""

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.queue.limits import CLOSED, Checks
from kestrelmq.queue.refusals import Refusals
from kestrelmq.scheduling.durability import Committable, GroupCommit


class Counts:
    """What a queue has counted since it was loaded or created."""

    __slots__ = (
        "canceled_transactions",
        "dead_lettered",
        "expired_items",
        "get_hits",
        "get_misses",
        "redelivered",
        "total_flushes",
        "transactions",
    )

    def __init__(self) -> None:
        self.get_hits = self.get_misses = 0
        self.expired_items = self.dead_lettered = self.redelivered = 0
        self.total_flushes = self.transactions = self.canceled_transactions = 0


class QueueState:
    """What the parts of one queue share.

    Attributes:
        name: the queue's name.
        config: the settings in force.
        clock: tells the time.
        commits: which queues changed since the last commit.
        queue: the queue itself, for `commits`.
        refusals: how many requests were refused, by reason.
        counts: what else was counted.
        checks: what operations must check, with the limits in force.
        is_moving: whether an item is just being added to another queue. Nothing may be taken here
            meanwhile: in the journal, that item may still be the head.
    """

    __slots__ = (
        "checks",
        "clock",
        "commits",
        "config",
        "counts",
        "is_moving",
        "name",
        "queue",
        "refusals",
    )

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        clock: Clock,
        commits: GroupCommit,
        queue: Committable,
    ) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        self.commits = commits
        self.queue = queue
        self.refusals = Refusals(name, clock)
        self.counts = Counts()
        self.checks = Checks()
        self.is_moving = False

    @property
    def is_closed(self) -> bool:
        """Whether the queue was closed."""
        return self.checks.has(CLOSED)

    def note_change(self) -> None:
        """Tell those who follow the queue of a change that is no item's, unless it is closed."""
        if not self.is_closed:
            self.commits.note_change(self.queue)

    def watch_deadlines(self) -> None:
        """Have the queue's deadlines looked at soon: there may be an earlier one."""
        self.commits.watch_deadlines(self.queue)

    def check_usable(self) -> None:
        """Raise QueueUnavailable if the queue was closed."""
        if self.is_closed:
            raise QueueUnavailable(f"queue {self.name} is closed")
