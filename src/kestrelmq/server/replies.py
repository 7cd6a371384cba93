"""The replies of a client, in order, until they may be sent.

A reply may be sent once the queues that it depends on are written and, where their settings demand
it, synced: when the rounds that do so are over. If that fails, an error from the session replaces
it; but one that hands out items which were removed is sent although they are not synced, because
nobody else would get them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from kestrelmq.errors import JournalError, NotSynced
from kestrelmq.format.records import ADDX_HEADER
from kestrelmq.scheduling.durability import Committable, Round, failures_of

Queues = Committable | tuple[Committable, ...] | None
"""The queues that a reply depends on: one, several, or none."""


Part = bytes | memoryview
"""Part of a reply. A memoryview has more than `OUTPUT_LIMIT` bytes, and is not copied."""
Extent = tuple[int, int, Queues, bool]
"""A reply: the index of its first part, the index after its last, the queues it depends on, and
whether it hands out items that were removed: these would be lost with it."""

FailureReply = Callable[[JournalError, bytes, Sequence[Committable]], bytes]
"""Returns the error that replaces the given reply, of which large parts are missing, when the
operation was undone, or could not be synced; and is given the queues that the reply depends on."""

OUTPUT_LIMIT: Final = 1 << 20
"""When a connection has more bytes of replies than this, no further request is applied."""


def data_of(record: bytes) -> bytes | memoryview:
    """Return an item's data, as a part of a reply."""
    if len(record) - ADDX_HEADER > OUTPUT_LIMIT:
        return memoryview(record)[ADDX_HEADER:]
    return record[ADDX_HEADER:]


class Replies:
    """The replies of one connection that were not sent.

    An empty reply passes its queues on to the next reply: if one of them fails, the next reply is
    replaced. So a request that takes several turns has one reply, which depends on all its changes.

    A reply may have several parts, which are joined when it is sent; but those that are too large
    to be copied are sent by themselves.

    Attributes:
        parts: the parts of this turn's replies.
        rest: what is to be sent after what `take` or `take_held` returned: a large part, and what
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
        self._held: deque[tuple[list[Round], list[Part], list[Extent]]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a round."""
        return bool(self._held)

    def add(self, reply: bytes, queues: Queues) -> None:
        """Add a reply of this turn."""
        first = len(self.parts)
        self.extents.append((first, first + 1, queues, False))
        self.parts.append(reply)

    def add_item(self, begin: bytes, item: bytes, end: bytes, queues: Queues) -> None:
        """Add a reply that hands out an item which was removed.

        Its parts are copied only once, with all replies of the turn.
        """
        parts = self.parts
        first = len(parts)
        self.extents.append((first, first + 3, queues, True))
        parts.append(begin)
        parts.append(item)
        parts.append(end)

    def add_all(
        self, parts: Sequence[Part], queues: Queues, *, may_be_large: bool, hands_out: bool
    ) -> None:
        """Add a reply in parts; if any may be large, the client must be paused until it read it.

        `hands_out` is whether it has items that were removed.
        """
        first = len(self.parts)
        self.extents.append((first, first + len(parts), queues, hands_out))
        self.parts += parts
        self._has_large |= may_be_large

    def fail(
        self, failures: Mapping[Committable, JournalError], failure_reply: FailureReply
    ) -> None:
        """Replace this turn's replies that depend on a queue in `failures`."""
        self._replace(self.parts, self.extents, failures, failure_reply)

    def take(self, rounds: Mapping[Committable, Round]) -> bytes | None:
        """Take this turn's replies.

        Args:
            rounds: by queue, the round that replies wait for if they depend on that.

        Returns:
            The bytes to send now; None when all replies wait, for such rounds or earlier ones.
        """
        parts, extents = self.parts, self.extents
        waits_for = _rounds_of(extents, rounds) if rounds else []
        if self._held or waits_for:
            if parts:
                self._held.append((waits_for, parts.copy(), extents.copy()))
                parts.clear()
                extents.clear()
            return None
        if self._has_large:
            data = self._up_to_large(parts)
        else:
            data = cast(bytes, parts[0]) if len(parts) == 1 else b"".join(cast(list[bytes], parts))
        parts.clear()
        extents.clear()
        return data

    def _up_to_large(self, parts: list[Part]) -> bytes:
        """Return what comes before the first large part, and keep the others as `rest`."""
        count = len(parts)
        large = [place for place in range(count) if not isinstance(parts[place], bytes)]
        if not self._held:
            self._has_large = False
        first = large[0] if large else count
        self.rest += parts[first:]
        return b"".join(cast(list[bytes], parts[:first]))

    def take_held(self, failure_reply: FailureReply) -> bytes:
        """Return the replies that waited for rounds which are over; errors replace some of them."""
        due: list[Part] = []
        while self._held and _are_over(self._held[0][0]):
            rounds, parts, extents = self._held.popleft()
            self._replace(parts, extents, failures_of(rounds), failure_reply)
            due += parts
        return self._up_to_large(due) if self._has_large else b"".join(cast(list[bytes], due))

    def _replace(
        self,
        parts: list[Part],
        extents: list[Extent],
        failures: Mapping[Committable, JournalError],
        failure_reply: FailureReply,
    ) -> None:
        for first, end, queues, hands_out in extents:
            for queue in _each(queues):
                if queue in failures:
                    self.failure = failures[queue]
            failure = self.failure
            if failure is None:
                continue
            # Who looks at the reply needs its beginning only.
            reply = b"".join([part for part in parts[first:end] if isinstance(part, bytes)])
            if not reply:
                continue
            self.failure = None
            if not (hands_out and isinstance(failure, NotSynced)):
                error = failure_reply(failure, reply, _each(queues))
                parts[first:end] = [error, *[b""] * (end - first - 1)]

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


def _rounds_of(extents: list[Extent], rounds: Mapping[Committable, Round]) -> list[Round]:
    """Return the rounds that these replies wait for."""
    found: dict[Round, None] = {}
    for _, _, queues, _ in extents:
        for queue in _each(queues):
            if queue in rounds:
                found[rounds[queue]] = None
    return list(found)


def _are_over(rounds: list[Round]) -> bool:
    return all(one.is_over for one in rounds)
