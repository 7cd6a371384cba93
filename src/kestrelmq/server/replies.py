"""What a client is still to be told: its replies, in order, until they may be sent.

A reply may leave when the queues that it depends on are written, and, where their settings demand
it, synced. If that fails, an error takes its place, which the session words.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError

Queues = Committable | tuple[Committable, ...] | None
"""What a reply depends on: a queue, several, or none."""
Reply = tuple[bytes, Queues]

FailureReply = Callable[[JournalError, bytes], bytes]
"""Returns the reply to an operation that was taken back, instead of the one that is given."""

OUTPUT_LIMIT: Final = 1 << 20
"""Bytes of replies that may be collected before no further request is applied."""


class Replies:
    """The replies of one connection that were not sent.

    An empty reply belongs to the one after it: if what it depends on fails, that one is replaced.
    So a request that takes several turns has one answer, which depends on all that it changed.

    Attributes:
        due: the replies of this turn, each with what it depends on.
        failure: why the next reply is to be replaced, if an empty one before it failed.
    """

    __slots__ = ("_held", "due", "failure")

    def __init__(self) -> None:
        self.due: list[Reply] = []
        self.failure: JournalError | None = None
        self._held: deque[tuple[int, list[Reply]]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a sync."""
        return bool(self._held)

    def fail(
        self, failures: Mapping[Committable, JournalError], failure_reply: FailureReply
    ) -> None:
        """Replace the replies of this turn that depend on a queue in `failures`."""
        self._replace(self.due, failures, failure_reply)

    def take(self, unsynced: Collection[Committable], sync: int) -> bytes | None:
        """Take the replies of this turn, whose changes were written.

        Args:
            unsynced: queues whose replies wait until sync number `sync` is done.
            sync: see `unsynced`.

        Returns:
            What may be sent now; None when all of it waits, for that sync or behind another.
        """
        due = self.due
        if self._held or (unsynced and _depend(due, unsynced)):
            if due:
                self._held.append((sync, due.copy()))
                due.clear()
            return None
        data = due[0][0] if len(due) == 1 else b"".join([reply for reply, _ in due])
        due.clear()
        return data

    def synced(
        self,
        sync: int,
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> bytes:
        """Return what waited for syncs up to number `sync`; `failures` are those of the last."""
        parts: list[bytes] = []
        while self._held and self._held[0][0] <= sync:
            replies = self._held.popleft()[1]
            self._replace(replies, failures, failure_reply)
            parts += [reply for reply, _ in replies]
        return b"".join(parts)

    def _replace(
        self,
        replies: list[Reply],
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> None:
        for place, (reply, queues) in enumerate(replies):
            for queue in _each(queues):
                if queue in failures:
                    self.failure = failures[queue]
            if reply and self.failure is not None:
                replies[place] = (failure_reply(self.failure, reply), None)
                self.failure = None

    def clear(self) -> None:
        """Forget everything: nobody is there to be told."""
        self.due.clear()
        self._held.clear()
        self.failure = None


def _each(queues: Queues) -> tuple[Committable, ...]:
    if queues is None:
        return ()
    return queues if isinstance(queues, tuple) else (queues,)


def _depend(replies: list[Reply], queues: Collection[Committable]) -> bool:
    """Whether any of the replies depends on one of `queues`."""
    return any(queue in queues for _, some in replies for queue in _each(some))
