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
Extent = tuple[int, int, Queues]
"""A reply: its first part, the part after its last, and what it depends on."""

FailureReply = Callable[[JournalError, bytes], bytes]
"""Returns the reply to an operation that was taken back, instead of the one that is given."""

OUTPUT_LIMIT: Final = 1 << 20
"""Bytes of replies that may be collected before no further request is applied."""


class Replies:
    """The replies of one connection that were not sent.

    An empty reply belongs to the one after it: if what it depends on fails, that one is replaced.
    So a request that takes several turns has one answer, which depends on all that it changed.

    A reply may have several parts, which are joined when it leaves.

    Attributes:
        parts: the parts of the replies of this turn.
        extents: where each of those replies is in `parts`, and what it depends on.
        failure: why the next reply is to be replaced, if an empty one before it failed.
    """

    __slots__ = ("_held", "extents", "failure", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.extents: list[Extent] = []
        self.failure: JournalError | None = None
        self._held: deque[tuple[int, list[bytes], list[Extent]]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a sync."""
        return bool(self._held)

    def add(self, reply: bytes, queues: Queues) -> None:
        """Add a reply of this turn."""
        first = len(self.parts)
        self.extents.append((first, first + 1, queues))
        self.parts.append(reply)

    def add_parts(self, begin: bytes, middle: bytes, end: bytes, queues: Queues) -> None:
        """Add a reply in three parts, which are copied once, with all of the turn."""
        parts = self.parts
        first = len(parts)
        self.extents.append((first, first + 3, queues))
        parts.append(begin)
        parts.append(middle)
        parts.append(end)

    def fail(
        self, failures: Mapping[Committable, JournalError], failure_reply: FailureReply
    ) -> None:
        """Replace the replies of this turn that depend on a queue in `failures`."""
        self._replace(self.parts, self.extents, failures, failure_reply)

    def take(self, unsynced: Collection[Committable], sync: int) -> bytes | None:
        """Take the replies of this turn, whose changes were written.

        Args:
            unsynced: queues whose replies wait until sync number `sync` is done.
            sync: see `unsynced`.

        Returns:
            What may be sent now; None when all of it waits, for that sync or behind another.
        """
        parts, extents = self.parts, self.extents
        if self._held or (unsynced and _depend(extents, unsynced)):
            if parts:
                self._held.append((sync, parts.copy(), extents.copy()))
                parts.clear()
                extents.clear()
            return None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        extents.clear()
        return data

    def synced(
        self,
        sync: int,
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> bytes:
        """Return what waited for syncs up to number `sync`; `failures` are those of the last."""
        due: list[bytes] = []
        while self._held and self._held[0][0] <= sync:
            _, parts, extents = self._held.popleft()
            self._replace(parts, extents, failures, failure_reply)
            due += parts
        return b"".join(due)

    def _replace(
        self,
        parts: list[bytes],
        extents: list[Extent],
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> None:
        for first, end, queues in extents:
            for queue in _each(queues):
                if queue in failures:
                    self.failure = failures[queue]
            reply = b"".join(parts[first:end])
            if reply and self.failure is not None:
                parts[first:end] = [failure_reply(self.failure, reply), *[b""] * (end - first - 1)]
                self.failure = None

    def clear(self) -> None:
        """Forget everything: nobody is there to be told."""
        self.parts.clear()
        self.extents.clear()
        self._held.clear()
        self.failure = None


def _each(queues: Queues) -> tuple[Committable, ...]:
    if queues is None:
        return ()
    return queues if isinstance(queues, tuple) else (queues,)


def _depend(extents: list[Extent], queues: Collection[Committable]) -> bool:
    """Whether any of the replies depends on one of `queues`."""
    return any(queue in queues for _, _, some in extents for queue in _each(some))
