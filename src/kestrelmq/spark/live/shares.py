"""What a partition of a batch may take, and how it divides that among its queues. No I/O.

A partition reads its queues one after the other, each once. A queue may take an equal part of what
those before it have left: so no queue is left out because of a longer one, and what a short one
does not use is there for the others.

What a queue may take depends only on the share and on the runs of the parts that are in place. So a
task that makes the rest of a partition goes on exactly where the parts end.
"""

from copy import copy
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """What one partition of a batch may take: the server, and the maximum of items and bytes.

    Attributes:
        server: the server's address.
        items: maximum number of items.
        bytes: approximate maximum of bytes of items.
        reserves: whether the server has reserved reads.
        queues: the queues in the order in which they are read, each with the most items to take
            from it, None for any number.
    """

    server: str
    items: int
    bytes: int
    reserves: bool = False
    queues: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class QueueRun:
    """Items of one queue that stand together in a part.

    Attributes:
        queue: the queue.
        items: how many; 0 if it had none.
        bytes: the bytes of their data.
        is_done: whether the partition takes no more from this queue.
    """

    queue: str
    items: int
    bytes: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class Allowance:
    """The queue that a partition reads next, and the most items and bytes to take from it."""

    queue: str
    items: int
    bytes: int


class ShareProgress:
    """How much of its share a partition has taken."""

    def __init__(self, share: PartitionShare) -> None:
        self._queues = share.queues
        # Of the share, when the queue at `_place` was begun; and what that one has taken.
        self._items, self._bytes = share.items, share.bytes
        self._taken_items = self._taken_bytes = 0
        self._place = 0

    def copy(self) -> "ShareProgress":
        """Return the same progress, which can go on by itself."""
        return copy(self)

    def next(self) -> Allowance | None:
        """Return what to take next; None if the partition is complete."""
        while self._place < len(self._queues):
            name, most = self._queues[self._place]
            rest = len(self._queues) - self._place
            items = -(-self._items // rest)
            items = (items if most is None else min(items, most)) - self._taken_items
            size = -(-self._bytes // rest) - self._taken_bytes
            if items > 0 and size > 0:
                return Allowance(name, items, size)
            self._leave()
        return None

    def add(self, run: QueueRun) -> None:
        """Count items that came from the queue of `next`."""
        self.next()
        self._taken_items += run.items
        self._taken_bytes += run.bytes
        if run.is_done:
            self._leave()

    def _leave(self) -> None:
        """Go on to the next queue."""
        self._items -= self._taken_items
        self._bytes -= self._taken_bytes
        self._taken_items = self._taken_bytes = 0
        self._place += 1
