"""Readers that wait for an item; `Queue.waiters` has those of a queue.

Exactly one of three things happens to a waiter: it is served, it is told why it cannot be served,
or it is cancelled. The caller keeps the deadlines, and cancels.
"""

from collections.abc import Callable
from enum import Enum, auto

from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.format.records import Item

log = get_logger(__name__)


class ReadMode(Enum):
    """What a reader wants done with the item.

    OPEN is a transactional read. HOLD opens a read, too, but only until the item can be removed.
    """

    REMOVE = auto()
    OPEN = auto()
    HOLD = auto()
    PEEK = auto()


class Waiter:
    """A waiting reader.

    Attributes:
        mode: what to do with the item.
        callback: called with the item and its xid (0 unless opened); with None if the queue was
            closed.
        failed: called instead, with the reason, if the item could not be taken.
    """

    __slots__ = ("callback", "failed", "mode")

    def __init__(
        self,
        mode: ReadMode,
        callback: Callable[[Item | None, int], None],
        failed: Callable[[KestrelError], None],
    ) -> None:
        self.mode = mode
        self.callback = callback
        self.failed = failed

    def serve(self, one: Item | None, xid: int) -> None:
        """Hand over an item; an exception of the reader is logged and affects nobody else."""
        try:
            self.callback(one, xid)
        except Exception:
            log.exception("a waiting reader was served, but could not be answered")

    def fail(self, error: Exception) -> None:
        """Tell the reader that the item could not be taken."""
        if not isinstance(error, KestrelError):
            log.error("a waiting reader could not be served", exc_info=error)
            error = QueueUnavailable("internal error")
        try:
            self.failed(error)
        except Exception:
            log.exception("a waiting reader could not be told that it was not served")
