"""The clocks, which every part is given, the pauses of long work, and how often a log repeats.

A clock has two readings. `now` is wall time in whole milliseconds since the epoch; journals and
expiry use it, and it may jump. `monotonic` is in seconds and never goes back; time-outs use it.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

Pause = Callable[[], None]
"""Called after each short piece of long work, to let others run; its exceptions end the work."""


def no_pause() -> None:
    """Do nothing: no other work is waiting."""


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> int:
        """Return milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds from some fixed point; never goes back."""


class SystemClock:
    """The machine's clocks, read at every call."""

    __slots__ = ()

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds from some fixed point; never goes back."""
        return time.monotonic()


class TurnClock:
    """A clock whose wall time stays the same during one turn of the server's loop.

    `tick` reads it once for all requests of the turn, which keeps the hot path short.
    """

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = time.time_ns() // 1_000_000

    def tick(self) -> None:
        """Read the machine's wall clock."""
        self._now = time.time_ns() // 1_000_000

    def now(self) -> int:
        """Return milliseconds since the epoch, as of the last tick."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds from some fixed point; never goes back."""
        return time.monotonic()


class Throttle:
    """Lets something happen at most once in so many seconds, such as a log line."""

    __slots__ = ("_clock", "_next", "_seconds")

    def __init__(self, clock: Clock, seconds: float, *, waits: bool = False) -> None:
        """Let it happen at once and then every `seconds`; with `waits`, not at once either."""
        self._clock = clock
        self._seconds = seconds
        self._next = clock.monotonic() + seconds if waits else -inf

    def passes(self) -> bool:
        """Return whether it may happen now; if so, it may not again for `seconds`."""
        now = self._clock.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
