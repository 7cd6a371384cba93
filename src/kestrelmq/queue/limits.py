"""What an operation of a queue must check; `QueueState` says what is to be checked now."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kestrelmq.config import QueueConfig
from kestrelmq.queue.paused import Paused


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What an operation must check. A queue whose limits are all at their defaults checks nothing.

    A new limit needs a field here, whose default is no limit, and a check in `Adding`.

    Attributes:
        max_items: as in the settings.
        max_size: as in the settings.
        max_item_size: as in the settings.
        max_age: as in the settings, but in milliseconds.
        fanout_only: whether only the children take items.
        memory_only: whether items can be held only in memory, because there is no journal.
        reads_paused: whether readers find the queue empty; see `Queue.pause`.
        writes_paused: whether adding is refused.
    """

    max_items: int | None = None
    max_size: int | None = None
    max_item_size: int | None = None
    max_age: int | None = None
    fanout_only: bool = False
    memory_only: bool = False
    reads_paused: bool = False
    writes_paused: bool = False

    @classmethod
    def of(cls, config: QueueConfig, paused: Paused, *, memory_only: bool) -> "QueueLimits":
        """Return the limits of a queue with these settings; some operations may be paused."""
        is_paused = paused is not _NOTHING_PAUSED
        return _shared_limits(
            max_items=config.max_items,
            max_size=config.max_size,
            max_item_size=config.max_item_size,
            max_age=None if config.max_age is None else int(config.max_age * 1000),
            fanout_only=config.fanout_only,
            memory_only=memory_only,
            reads_paused=is_paused and Paused.READS in paused,
            writes_paused=is_paused and Paused.WRITES in paused,
        )

    def expiry(self, added: int, expiry: int) -> int:
        """Return when an item expires (ms since the epoch), 0 for never.

        Args:
            added: when it was added.
            expiry: when it was to expire, 0 for never; `max_age` may be earlier.
        """
        max_age = self.max_age
        if max_age is None or (expiry and expiry <= added + max_age):
            return expiry
        return added + max_age


_shared_limits: Final = lru_cache(maxsize=256)(QueueLimits)
"""There may be very many queues with the same limits."""
_NOTHING_PAUSED: Final = Paused.NOTHING
NO_LIMITS: Final = QueueLimits.of(QueueConfig(), _NOTHING_PAUSED, memory_only=False)
"""Those of the default settings: queues with them share it."""

LIMITED: Final = 1
"""A limit is in force, so adds must check all of them. What is below concerns reads, too."""
EXPIRING: Final = 2
"""An item that waits, or that may wait again, can expire."""
READS_PAUSED: Final = 4
"""Readers find the queue empty."""
DEAD_HEAD: Final = 8
"""Items at the head, which had open reads at a restart, may have been delivered too often."""
RETURNING: Final = 16
"""Open reads are being given back in pieces."""
SUSPECT: Final = 32
"""Nothing may be added or taken, because no sync would succeed; see `Queue.tick`."""
CLOSED: Final = 64
"""The queue was closed."""
