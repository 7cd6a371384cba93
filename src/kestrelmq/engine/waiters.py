"""Readers that wait for an item, served in the order in which they began to wait.

Exactly one of two things happens to a waiter: its callback is called once, or it is cancelled.
Deadlines are the caller's: it cancels.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto


class Wanted(Enum):
    """What a waiting reader wants done with the item."""

    REMOVE = auto()
    OPEN = auto()
    PEEK = auto()


class Waiter:
    """A waiting reader.

    Attributes:
        wanted: what it wants.
        callback: called with the item and its xid (0 unless opened); with None when the queue
            went away.
    """

    __slots__ = ("callback", "wanted")

    def __init__(self, wanted: Wanted, callback: Callable[[bytes | None, int], None]) -> None:
        self.wanted = wanted
        self.callback = callback


class Waiters:
    """The waiting readers of one queue, first come first served.

    Attributes:
        line: those who wait, in order.
    """

    __slots__ = ("line",)

    def __init__(self) -> None:
        self.line: OrderedDict[Waiter, None] = OrderedDict()

    def add(self, waiter: Waiter) -> None:
        """Put `waiter` at the end of the line."""
        self.line[waiter] = None

    def cancel(self, waiter: Waiter) -> bool:
        """Take `waiter` out of the line; False when it was served already."""
        if waiter not in self.line:
            return False
        del self.line[waiter]
        return True

    def pop(self) -> Waiter:
        """Take the first out of the line."""
        return self.line.popitem(last=False)[0]
