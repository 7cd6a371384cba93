"""What an operation of a queue must check."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kestrelmq.config import QueueConfig
from kestrelmq.queue.paused import Paused


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What an operation must check. A queue whose limits are all at their defaults checks nothing.

    A new limit needs a field here, whose default is no limit, and a check in `Queue._admit`.

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
        """Return the limits of a queue with these settings, of which something may be paused."""
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


_shared_limits: Final = lru_cache(maxsize=256)(QueueLimits)
"""There may be very many queues with the same limits."""
NO_LIMITS: Final = QueueLimits()
_NOTHING_PAUSED: Final = Paused.NOTHING
