"""Waiting for events: a moment of looking before the sleep, for as long as that pays.

To fall asleep and be woken costs a process tens of microseconds of CPU on a virtual machine, and
the processor's caches are cold then. The request of a client that asks again as soon as it is
answered is there sooner than that. Looking for as long as a sleep costs takes at most twice the CPU
of the best choice (A. Karlin, K. Li, M. Manasse, S. Owicki, "Empirical Studies of Competitive
Spinning for a Shared-Memory Multiprocessor", SOSP 1991); looking only where it helped before takes
less.
"""

import os
import time
from collections.abc import Callable
from typing import Final

LOOK: Final = 60e-6
"""Seconds to look for events before sleeping: about what a sleep costs."""
_SHORT: Final = 200e-6
"""Seconds of sleep, with falling asleep and waking, that looking could have saved."""
_MOST_SLEEPS: Final = 512
"""Short sleeps between two tries, at most, while looking does not pay."""

Events = list[tuple[int, int]]
Poll = Callable[[float, int], Events]
"""Waits so many seconds at most (below 0: for ever) for so many events at most."""

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class BusyPoll:
    """Waits for events.

    Each time that looking was in vain, it is left out for twice as many short sleeps as the time
    before; each time that it was not, that number is halved. Long sleeps do not count: an idle
    server does not look at all.
    """

    def __init__(self, poll: Poll, clock: Callable[[], float] = time.perf_counter) -> None:
        """Wait with `poll`; `clock` tells seconds."""
        self._poll = poll
        self._clock = clock
        self._sleeps = 1
        self._left = 0

    def wait(self, timeout: float, most: int) -> Events:
        """Return at most so many events, after so many seconds at most (below 0: for ever)."""
        poll = self._poll
        if timeout == 0:
            return poll(timeout, most)
        if not self._left:
            events = poll(0.0, most)
            if events:
                return events
            began = self._clock()
            while self._clock() - began < LOOK:
                # Who shares the processor goes first: it may be the client.
                _give_way()
                events = poll(0.0, most)
                if events:
                    self._sleeps = max(1, self._sleeps // 2)
                    return events
            self._left = self._sleeps
            self._sleeps = min(self._sleeps * 2, _MOST_SLEEPS)
            return poll(timeout, most)
        began = self._clock()
        events = poll(timeout, most)
        if self._clock() - began < _SHORT:
            self._left -= 1
        return events
