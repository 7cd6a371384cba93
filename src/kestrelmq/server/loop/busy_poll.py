"""Waiting for events: polls for a moment before it sleeps, as long as that saves CPU.

On a virtual machine, a sleep and the wake-up after it cost a process tens of microseconds of CPU
and leave the processor's caches cold. A client that sends its next request as soon as it has its
reply sends it sooner than that. Polling for as long as a sleep costs takes at most twice the CPU of
the best choice (A. Karlin, K. Li, M. Manasse, S. Owicki, "Empirical Studies of Competitive Spinning
for a Shared-Memory Multiprocessor", SOSP 1991); polling only where it helped before takes less.
"""

import os
import time
from collections.abc import Callable
from typing import Final

POLL_TIME: Final = 60e-6
"""Seconds to poll before sleeping: about the cost of a sleep."""
_SHORT_SLEEP: Final = 200e-6
"""A sleep shorter than this, in seconds, is one that polling could have avoided."""
_MOST_SLEEPS: Final = 512
"""The most short sleeps between two attempts at polling, while polling finds nothing."""

Events = list[tuple[int, int]]
Poll = Callable[[float, int], Events]
"""Waits at most so many seconds (below 0: for ever) for at most so many events."""

_yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class BusyPoll:
    """Waits for events.

    After polling in vain, it sleeps without polling for a number of short sleeps. That number
    doubles each time polling finds nothing, and is halved each time it finds an event. Long sleeps
    do not count, so an idle server does not poll at all.
    """

    def __init__(self, poll: Poll, clock: Callable[[], float] = time.perf_counter) -> None:
        """Wait with `poll`; `clock` returns seconds."""
        self._poll = poll
        self._clock = clock
        self._next_sleeps = 1
        self._sleeps_left = 0

    def wait(self, timeout: float, most: int) -> Events:
        """Return at most `most` events, after at most `timeout` seconds (below 0: for ever)."""
        poll = self._poll
        if timeout == 0:
            return poll(timeout, most)
        if not self._sleeps_left:
            events = poll(0.0, most)
            if events:
                return events
            began = self._clock()
            while self._clock() - began < POLL_TIME:
                # Let other processes on this processor run: one may be the client.
                _yield_processor()
                events = poll(0.0, most)
                if events:
                    self._next_sleeps = max(1, self._next_sleeps // 2)
                    return events
            self._sleeps_left = self._next_sleeps
            self._next_sleeps = min(self._next_sleeps * 2, _MOST_SLEEPS)
            return poll(timeout, most)
        began = self._clock()
        events = poll(timeout, most)
        if self._clock() - began < _SHORT_SLEEP:
            self._sleeps_left -= 1
        return events
