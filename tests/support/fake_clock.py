"""A clock that moves only when it is told to, and timers that depend on it."""

import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    """A call that is due at some time. `cancel` drops it, unless it was made already."""

    __slots__ = ("callback", "cancelled", "due")

    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Drop the call."""
        self.cancelled = True


class FakeClock:
    """Wall and monotonic time that `advance` moves; timers that become due run in order."""

    __slots__ = ("_elapsed", "_order", "_start", "_timers")

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._start = now
        self._elapsed = 0.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return self._start + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        """Return seconds since the clock was made."""
        return self._elapsed

    def step(self, milliseconds: int) -> None:
        """Move wall time only, forwards or backwards, as an administrator may."""
        self._start += milliseconds

    def call_later(self, delay: float, callback: Callable[[], object]) -> FakeTimer:
        """Call `callback` when `delay` more seconds have passed."""
        timer = FakeTimer(self._elapsed + max(delay, 0.0), callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; each timer sees the time at which it was due."""
        end = self._elapsed + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._elapsed = max(self._elapsed, due)
            if not timer.cancelled:
                timer.cancelled = True
                timer.callback()
        self._elapsed = end
