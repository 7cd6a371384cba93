"""Reads that wait, for an item or in vain: the same for every protocol."""

import asyncio
from collections.abc import Callable

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Waiter, Wanted
from kestrelmq.errors import KestrelError
from kestrelmq.server.connection import WAITING, Connection


class WaitingRead:
    """A connection's place in the line of a queue, with a deadline.

    Exactly one of `served`, `timed_out` and `failed` is called, unless it is cancelled. What they
    raise ends the connection, with an error as the reply.
    """

    __slots__ = (
        "_connection",
        "_failed",
        "_queue",
        "_served",
        "_timed_out",
        "_timer",
        "_waiter",
        "_wanted",
    )

    def __init__(
        self,
        connection: Connection,
        queue: Queue,
        wanted: Wanted,
        served: Callable[[bytes, int], None],
        timed_out: Callable[[], None],
        failed: Callable[[KestrelError], None],
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._served = served
        self._timed_out = timed_out
        self._failed = failed
        self._wanted = wanted
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Get in line, for so long at most."""
        self._waiter = Waiter(self._wanted, self._serve, self._fail)
        self._queue.wait(self._waiter)
        self._timer = loop.call_later(seconds, self._time_out)
        self._connection.paused |= WAITING

    def cancel(self) -> None:
        """Leave the line; nothing is called any more."""
        if self._waiter is not None:
            self._queue.waiters.cancel(self._waiter)
        self._end()

    def _end(self) -> None:
        self._waiter = None  # it refers back to here
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_on(self) -> None:
        """Wait no longer; whatever is called next may wait again."""
        self._end()
        self._connection.unpause(WAITING)

    def _serve(self, record: bytes | None, xid: int) -> None:
        self._go_on()
        if record is None:
            self._connection.guard(self._timed_out)  # the queue went away
        else:
            self._connection.guard(lambda: self._served(record, xid))

    def _fail(self, error: KestrelError) -> None:
        self._go_on()
        self._connection.guard(lambda: self._failed(error))

    def _time_out(self) -> None:
        waiter = self._waiter
        self._go_on()
        if waiter is not None and self._queue.waiters.cancel(waiter):
            self._connection.guard(self._timed_out)


class EmptyWait:
    """A read of what never has an item, as an alias: it holds no queue, and ends in time."""

    __slots__ = ("_connection", "_timed_out", "_timer")

    def __init__(self, connection: Connection, timed_out: Callable[[], None]) -> None:
        self._connection = connection
        self._timed_out = timed_out
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Wait for so long."""
        self._timer = loop.call_later(seconds, self._time_out)
        self._connection.paused |= WAITING

    def cancel(self) -> None:
        """Wait no longer; nothing is called any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        self._connection.unpause(WAITING)
        self._connection.guard(self._timed_out)
