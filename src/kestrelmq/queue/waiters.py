"""Readers that wait for an item, in the order in which they came.

Exactly one of three things happens to a waiter: it is served, it is told why it cannot be served,
or it is cancelled. The caller keeps the deadlines, and cancels.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import KestrelError, QueueUnavailable, ReadersChanged
from kestrelmq.format.records import Item
from kestrelmq.journal.shared_empty import NOBODY, own_line
from kestrelmq.queue.state import QueueState

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


class HeadTaker:
    """Takes the head for readers that wait; this one has nothing for them."""

    __slots__ = ()

    def take_waiting(self, mode: ReadMode) -> tuple[Item | None, int]:  # noqa: ARG002
        """Take the head as such a reader wants it: return the item and its xid (0 unless opened).

        None instead of the item: there is none for readers that wait.
        """
        return None, 0


_NOTHING_TO_TAKE: Final = HeadTaker()


class Waiters:
    """The readers that wait for an item of one queue.

    Attributes:
        line: they, the one that came first before the others.
        taker: takes the head for them.
    """

    __slots__ = ("_state", "line", "taker")

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self.line: OrderedDict[Waiter, None] = NOBODY
        self.taker: HeadTaker = _NOTHING_TO_TAKE

    def __len__(self) -> int:
        return len(self.line)

    @property
    def readers(self) -> int:
        """How many wait."""
        return len(self.line)

    def add(self, waiter: Waiter) -> None:
        """Add `waiter`, after all others. Raises QueueUnavailable if the queue is closed."""
        self._state.check_usable()
        self.line = own_line(self.line)
        self.line[waiter] = None
        self._state.note_change()

    def cancel(self, waiter: Waiter) -> bool:
        """Never serve `waiter`; return False if it was already served."""
        if not self._leaves(waiter):
            return False
        self._state.note_change()
        return True

    def serve(self) -> None:
        """Serve the readers, in order; failures go to them, never to the caller."""
        line = self.line
        while line:
            waiter = next(iter(line))
            try:
                one, xid = self.taker.take_waiting(waiter.mode)
            except Exception as error:  # the reader is told, and it is logged there
                if not self._state.commits.survives(error):
                    raise
                if self._leaves(waiter):
                    waiter.fail(error)
                continue
            if one is None:
                return
            if self._leaves(waiter):
                waiter.serve(one, xid)

    def refuse(self, why: str) -> None:
        """Refuse all: who may read has changed, and they were asked before."""
        for waiter in list(self.line):
            if self._leaves(waiter):
                self._state.refusals.count("forbidden")
                waiter.fail(ReadersChanged(why))

    def tell_closed(self, most: int) -> bool:
        """Tell the first `most` that the queue is closed; return whether there are more."""
        for _ in range(min(most, len(self.line))):
            if not self.line:  # those that were told may have cancelled others
                break
            waiter, _ = self.line.popitem(last=False)
            waiter.serve(None, 0)
        return bool(self.line)

    def close(self) -> None:
        """Serve nobody any more; `tell_closed` tells them."""
        self.taker = _NOTHING_TO_TAKE

    def _leaves(self, waiter: Waiter) -> bool:
        """Take `waiter` out of the line; return False if it was served or cancelled meanwhile.

        To look for the head may move an expired item to another queue, where the same reader waits,
        too. It peeks, then; so nothing was taken for it here.
        """
        if waiter not in self.line:
            return False
        del self.line[waiter]
        return True
