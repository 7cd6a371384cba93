"""Replies that take long to make, such as a listing of all queues, and long work in slices.

A long reply is made in slices. Other clients are served between two slices, and the next slice is
made only when the client has read the last. So a long reply delays others little and needs little
memory.
"""

import asyncio
import logging
from collections.abc import Generator, Iterator
from typing import Any, Final, TypeVar

from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.loop.turns import TurnConnection, TurnLoop

SLICE: Final = 65_536
"""Bytes of a reply after which a slice ends."""

log = logging.getLogger(__name__)

Pieces = Iterator[bytes | None]
"""The pieces of a reply, each made in well below a millisecond; None is work without a piece."""
Result = TypeVar("Result")


class LongReply(PendingRequest):
    """A reply that is made in slices; the input after its request waits."""

    __slots__ = ("_connection", "_pieces", "_turns")

    def __init__(self, connection: Connection, turns: TurnLoop, pieces: Pieces) -> None:
        """Begin; the first slice is made after the other clients of this turn."""
        self._connection = connection
        self._turns = turns
        self._pieces = pieces
        connection.resume_later(self)

    def resume(self) -> None:
        """Make a slice of about `SLICE` bytes, or as much as there is time for in this turn."""
        connection = self._connection
        slice_: list[bytes] = []
        size = 0
        is_done = False
        while size < SLICE and not self._turns.slow_share_is_over():
            try:
                piece = next(self._pieces)
            except StopIteration:
                is_done = True
                break
            if piece:
                slice_.append(piece)
                size += len(piece)
        if slice_:
            connection.push(b"".join(slice_))
        if is_done:
            connection.request_done()
            return
        if slice_:
            connection.stall()
        connection.resume_later(self)

    def cancel(self) -> None:
        """Nothing to give back."""


class TaskRequest(PendingRequest):
    """A request that a task serves; the task goes on when the client is gone."""

    __slots__ = ()

    def resume(self) -> None:
        """Nothing to do here."""

    def cancel(self) -> None:
        """Nothing to give back."""


class SearchRequest(PendingRequest):
    """A request that a task serves, and which ends when the client is gone, or has ended its side.

    As for a request that waits for an item, the connection looks out for that.
    """

    __slots__ = ("_connection", "_task")

    def __init__(self, connection: Connection, task: asyncio.Task[Any]) -> None:
        self._connection = connection
        self._task = task

    def resume(self) -> None:
        """Wait for the end of the task."""
        self._connection.wait_for_item(self)

    def input_ended(self) -> None:
        """End without an answer."""
        self._task.cancel()
        self._connection.request_done()
        self._connection.push(b"")

    def cancel(self) -> None:
        """End."""
        self._task.cancel()


class SlicedWork(TurnConnection):
    """Work that nobody waits for: it is done in each turn's time for slow requests."""

    def __init__(self, turns: TurnLoop, work: Generator[None, None, None]) -> None:
        """Prepare; `resume` begins."""
        self._turns = turns
        self._work = work

    def resume(self) -> None:
        """Do at least one piece of the work; if there is more to do, go on in the next turn."""
        try:
            for _ in self._work:
                if self._turns.slow_share_is_over():
                    self._turns.resuming.append(self)
                    return
        except Exception:
            # A bug here must not end the loop.
            log.exception("work that was put off failed")


async def in_slices(work: Generator[None, None, Result], turns: TurnLoop | None = None) -> Result:
    """Run `work` to its end, and let others run where it yields; return its result.

    With `turns`, others run only once the turn's time for slow requests is used up; this is for
    work that yields several times a turn. Raises what `work` raises.
    """
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
        if turns is None or turns.slow_share_is_over():
            await asyncio.sleep(0)
