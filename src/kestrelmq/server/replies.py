"""The replies of a client, in order, until they may be sent.

A reply may be sent once the queues that it depends on are written and, where their settings demand
it, synced. If that fails, an error from the session replaces it.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast

from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError

Queues = Committable | tuple[Committable, ...] | None
"""The queues that a reply depends on: one, several, or none."""
Part = bytes | memoryview
"""Part of a reply. A memoryview has more than `OUTPUT_LIMIT` bytes, and is not copied."""
Extent = tuple[int, int, Queues]
"""A reply: the index of its first part, the index after its last, and the queues it depends on."""

FailureReply = Callable[[JournalError, bytes], bytes]
"""Returns the error that replaces the given reply when the operation was undone."""

OUTPUT_LIMIT: Final = 1 << 20
"""When a connection has more bytes of replies than this, no further request is applied."""


def rest_of(record: bytes, begin: int) -> Part:
    """Return what begins at `begin` in a record, as a part of a reply."""
    if len(record) - begin > OUTPUT_LIMIT:
        return memoryview(record)[begin:]
    return record[begin:]


class Replies:
    """The replies of one connection that were not sent.

    An empty reply passes its queues on to the next reply: if one of them fails, the next reply is
    replaced. So a request that takes several turns has one reply, which depends on all its changes.

    A reply may have several parts, which are joined when it is sent; but those that are too large
    to be copied are sent by themselves.

    Attributes:
        parts: the parts of this turn's replies.
        rest: what is to be sent after what `take` or `synced` returned: a large part, and what
            follows it.
        extents: the place of each of these replies in `parts`, and the queues it depends on.
        failure: why the next reply must be replaced, if an empty one before it failed.
    """

    __slots__ = ("_has_large", "_held", "extents", "failure", "parts", "rest")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.rest: list[Part] = []
        self._has_large = False
        self.extents: list[Extent] = []
        self.failure: JournalError | None = None
        self._held: deque[tuple[int, list[Part], list[Extent]]] = deque()

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
        """Add a reply in three parts; they are copied only once, with all replies of the turn."""
        parts = self.parts
        first = len(parts)
        self.extents.append((first, first + 3, queues))
        parts.append(begin)
        parts.append(middle)
        parts.append(end)

    def add_large(self, parts: Sequence[Part], queues: Queues) -> None:
        """Add a reply that may have large parts; the client must be paused until it has read it."""
        first = len(self.parts)
        self.extents.append((first, first + len(parts), queues))
        self.parts += parts
        self._has_large = True

    def fail(
        self, failures: Mapping[Committable, JournalError], failure_reply: FailureReply
    ) -> None:
        """Replace this turn's replies that depend on a queue in `failures`."""
        self._replace(self.parts, self.extents, failures, failure_reply)

    def take(self, unsynced: Collection[Committable], sync: int) -> bytes | None:
        """Take this turn's replies, whose changes were written.

        Args:
            unsynced: queues whose replies wait until round `sync` of the syncs is done.
            sync: see `unsynced`.

        Returns:
            The bytes to send now; None when all replies wait, for that round or an earlier one.
        """
        parts, extents = self.parts, self.extents
        if self._held or (unsynced and _depend(extents, unsynced)):
            if parts:
                self._held.append((sync, parts.copy(), extents.copy()))
                parts.clear()
                extents.clear()
            return None
        if self._has_large:
            data = self._up_to_large(parts)
        else:
            data = cast(bytes, parts[0]) if len(parts) == 1 else b"".join(parts)
        parts.clear()
        extents.clear()
        return data

    def _up_to_large(self, parts: list[Part]) -> bytes:
        """Return what comes before the first large part, and keep the others as `rest`."""
        count = len(parts)
        large = [place for place in range(count) if isinstance(parts[place], memoryview)]
        if not self._held:
            self._has_large = False
        first = large[0] if large else count
        self.rest += parts[first:]
        return b"".join(parts[:first])

    def synced(
        self,
        sync: int,
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> bytes:
        """Return the replies that waited for rounds up to `sync`, which had these `failures`."""
        due: list[Part] = []
        while self._held and self._held[0][0] <= sync:
            _, parts, extents = self._held.popleft()
            self._replace(parts, extents, failures, failure_reply)
            due += parts
        return self._up_to_large(due) if self._has_large else b"".join(due)

    def _replace(
        self,
        parts: list[Part],
        extents: list[Extent],
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> None:
        for first, end, queues in extents:
            for queue in _each(queues):
                if queue in failures:
                    self.failure = failures[queue]
            reply = b"" if self.failure is None else b"".join(parts[first:end])
            if reply and self.failure is not None:
                parts[first:end] = [failure_reply(self.failure, reply), *[b""] * (end - first - 1)]
                self.failure = None

    def clear(self) -> None:
        """Drop all replies: the client is gone."""
        self.parts.clear()
        self.rest.clear()
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
