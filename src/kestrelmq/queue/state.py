"""What all parts of a queue go by: its settings, what operations must check, what was counted."""

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.queue.limits import CLOSED, EXPIRING, LIMITED, NO_LIMITS, READS_PAUSED, QueueLimits
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
        checks: what operations must check: the sum of those in `queue.limits` that hold. If it is
            0, an add checks nothing; if it is at most `LIMITED`, a read checks nothing.
        limits: the limits in force.
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
        "limits",
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
        self.checks = 0
        self.limits = NO_LIMITS
        self.is_moving = False

    def has(self, checks: int) -> bool:
        """Whether any of these checks must be made."""
        return self.checks & checks != 0

    def set(self, check: int, *, on: bool) -> None:
        """Set whether one of them must be made."""
        self.checks = self.checks | check if on else self.checks & ~check

    def limit(self, limits: QueueLimits) -> None:
        """Put these limits in force."""
        self.limits = limits
        # To compare them takes long for each of very many queues; most have the very same.
        self.set(LIMITED, on=limits is not NO_LIMITS and limits != NO_LIMITS)
        self.set(READS_PAUSED, on=limits.reads_paused)
        if limits.max_age is not None:
            self.set(EXPIRING, on=True)

    @property
    def is_closed(self) -> bool:
        """Whether the queue was closed."""
        return self.has(CLOSED)

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
