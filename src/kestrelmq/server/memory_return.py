"""Giving memory that is free again back to the system, after bursts of items, queues or clients.

The C library keeps what was freed in the middle of its heap, and the interpreter keeps an arena of
small objects while any object is in it. A burst leaves such holes, and a few caches whose entries
are spread over all of the burst's arenas. So now and then, if the process is larger than it was:

- the heap is trimmed, by a thread: that takes 0.1 ms for each MiB that it gives back;
- if clients are quiet, caches are dropped before, and what the interpreter keeps for reuse.

Only glibc can be asked to trim its heap; elsewhere nothing is done.
"""

import asyncio
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kestrelmq.server.loop.threads import NoThread, in_thread

PERIOD: Final = 3.0
"""Seconds between two looks at how large the process is."""
_BUSY_PERIOD: Final = 30.0
"""Least seconds between two trims while clients are busy."""
_QUIET_EVENTS: Final = 1000
"""Events of connections in a period, below which clients are quiet."""
_TRIES: Final = 2
"""Trims after the last event: threads may free memory after that."""
_GROWN: Final = 1.05
"""The process is larger than it was if it has more than so many times its least memory."""
MOST_COLLECTED: Final = 1000
"""Most queues, connections and items with which a collection of all objects takes milliseconds."""
_SHARE: Final = 0.01
"""Most of the time that trims may take."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


def find_trim() -> Callable[[int], int] | None:
    """Return the function of the C library that trims its heap; None if it has none."""
    if sys.platform != "linux":
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def resident_memory() -> int:
    """Return the bytes of memory that the process has."""
    return int(_STATM.read_text().split()[1]) * _PAGE


class MemoryReturn:
    """Decides when to give memory back, and does it."""

    def __init__(
        self,
        trim: Callable[[int], int],
        served: Callable[[], int],
        living: Callable[[], int],
        forget: Callable[[], None],
        resident: Callable[[], int] = resident_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            trim: trims the heap; it is called in a thread.
            served: returns how many events of connections, and turns, there were so far.
            living: returns how many queues, connections and items there are in memory.
            forget: drops caches.
            resident: returns how large the process is, in bytes.
            clock: returns the time, in seconds.
        """
        self._trim = trim
        self._served = served
        self._living = living
        self._forget = forget
        self._resident = resident
        self._clock = clock
        self._least = resident()
        self._seen = served()
        self._tries = 0
        self._not_before = 0.0

    async def run(self) -> None:
        """Give memory back now and then, for ever."""
        while True:
            await asyncio.sleep(PERIOD)
            await self.look()

    async def look(self) -> None:
        """Give memory back if there may be any."""
        now = self._clock()
        events = self._served() - self._seen
        self._seen += events
        if events:
            self._tries = _TRIES
        try:
            resident = self._resident()
        except OSError:
            return  # no descriptor is left to look with
        self._least = min(self._least, resident)
        is_quiet = events < _QUIET_EVENTS
        if not self._tries or resident <= _GROWN * self._least:
            return
        if now < self._not_before - (_BUSY_PERIOD if is_quiet else 0.0):
            return
        self._tries -= 1
        if is_quiet:
            self._forget()
            if self._living() <= MOST_COLLECTED:
                gc.collect()
        with suppress(NoThread):  # there is another try later
            await in_thread(self._trim, 0)
        took = self._clock() - now
        self._not_before = now + _BUSY_PERIOD + took / _SHARE
