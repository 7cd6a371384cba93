"""The reads that one connection holds open, oldest first for each queue."""

from collections import deque

from kestrelmq.engine.queue import Queue


class OpenReads:
    """A connection's open reads.

    A read that ended by itself (its time was up, its queue was deleted) is forgotten when it is
    next looked for.

    Attributes:
        by_queue: the reads, by the name of their queue; no queue without one.
    """

    __slots__ = ("by_queue",)

    def __init__(self) -> None:
        self.by_queue: dict[str, deque[tuple[Queue, int, bytes]]] = {}

    def add(self, queue: Queue, xid: int, record: bytes) -> None:
        """Remember a read that was just opened."""
        self.by_queue.setdefault(queue.name, deque()).append((queue, xid, record))

    def add_oldest(self, queue: Queue, xid: int, record: bytes) -> None:
        """Remember a read that was opened before all others of its queue."""
        self.by_queue.setdefault(queue.name, deque()).appendleft((queue, xid, record))

    def count(self, queue: str) -> int:
        """Return how many reads are open on a queue."""
        reads = self.by_queue.get(queue)
        if reads is None:
            return 0
        if any(not _is_open(read) for read in reads):
            reads = deque(read for read in reads if _is_open(read))
            self.by_queue[queue] = reads
        if not reads:
            del self.by_queue[queue]
        return len(reads)

    def take_oldest(self, queue: str) -> tuple[Queue, int] | None:
        """Return the oldest read open on a queue, and forget it; None when there is none."""
        if not self.count(queue):
            return None
        reads = self.by_queue[queue]
        found, xid, _ = reads.popleft()
        if not reads:
            del self.by_queue[queue]
        return found, xid

    def xids(self, queue: str) -> list[tuple[Queue, int]]:
        """Return the reads open on a queue, oldest first."""
        if not self.count(queue):
            return []
        return [(found, xid) for found, xid, _ in self.by_queue[queue]]

    def give_back(self) -> None:
        """Give every read back; the oldest of a queue ends up at its head."""
        for reads in self.by_queue.values():
            held = [read for read in reads if _is_open(read)]
            if held:
                held[0][0].give_back([xid for _, xid, _ in held])
        self.by_queue.clear()


def _is_open(read: tuple[Queue, int, bytes]) -> bool:
    # The same xid may be open for somebody else by now; the item's object tells.
    queue, xid, record = read
    return queue.open.get(xid) is record
