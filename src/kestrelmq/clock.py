"""The clock that is passed in everywhere, and the pauses that long work makes.

Two readings: `now`, wall time in whole milliseconds since the epoch, which journals and expiry
use and which may step; and `monotonic`, seconds that only go forward, which time-outs use.
"""

import time
from collections.abc import Callable
from typing import Protocol

Pause = Callable[[], None]
"""Called after each short piece of long work, to let others run; what it raises ends the work."""


def no_pause() -> None:
    """Let nobody run: nobody waits."""


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
    """Wall time that stands still within one turn of the server's loop: `tick` reads it anew.

    Reading the time once for all the requests of a turn is part of the hot path.
    """

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = time.time_ns() // 1_000_000

    def tick(self) -> None:
        """Read the machine's clock."""
        self._now = time.time_ns() // 1_000_000

    def now(self) -> int:
        """Return milliseconds since the epoch, as of the last tick."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds from some fixed point; never goes back."""
        return time.monotonic()
