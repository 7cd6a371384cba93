"""Replies that take long to make: a listing of all queues.

They are made a slice at a time: others are served between two slices, and a client that does not
read gets no further slice. So they cost others little, and little memory.
"""

import asyncio
from collections.abc import Generator, Iterator
from typing import Final, TypeVar

from kestrelmq.server.connection import Connection, Unfinished
from kestrelmq.server.turns import Turns

SLICE: Final = 65_536
"""Bytes of a reply from which on a slice is sent."""

Pieces = Iterator[bytes | None]
"""The pieces of a reply, each made in a small part of a millisecond; None is work without one."""
Result = TypeVar("Result")


class LongReply(Unfinished):
    """A reply on its way; what follows its request waits."""

    __slots__ = ("_connection", "_pieces", "_turns")

    def __init__(self, connection: Connection, turns: Turns, pieces: Pieces) -> None:
        """Have the first slice made when everybody else was served in this turn."""
        self._connection = connection
        self._turns = turns
        self._pieces = pieces
        connection.interrupt(self)

    def resume(self) -> None:
        """Make a slice: as much as there is time for in this turn, `SLICE` bytes at most."""
        connection = self._connection
        slice_: list[bytes] = []
        size = 0
        is_done = False
        while size < SLICE and not self._turns.share_is_over():
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
            connection.done()
            return
        if slice_:
            connection.stall()
        connection.interrupt(self)

    def cancel(self) -> None:
        """Nothing was taken for it."""


class AwaitedReply(Unfinished):
    """A reply that is made elsewhere, by something that goes on when the client is gone."""

    __slots__ = ()

    def resume(self) -> None:
        """Nothing is left to do here."""

    def cancel(self) -> None:
        """Nothing was taken for it."""


async def in_slices(work: Generator[None, None, Result], turns: Turns | None = None) -> Result:
    """Do `work`, and let others be served where it yields; return its result.

    With `turns`, they are served only when the share of the turn is used up: for work that yields
    more often than a turn is long. Raises what `work` raises.
    """
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
        if turns is None or turns.share_is_over():
            await asyncio.sleep(0)
