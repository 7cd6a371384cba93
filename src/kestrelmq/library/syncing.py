"""For the library: one fsync serves every caller that waits, and threads that work now and then."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from kestrelmq.engine.commits import Committable
from kestrelmq.errors import JournalError

UPKEEP_PERIOD: Final = 1.0
"""Seconds between looks for what only the passing of time brings about."""

log = logging.getLogger(__name__)


class SyncRound:
    """Queues that the next fsync covers.

    Attributes:
        queues: which.
        is_done: whether the fsync was tried.
        failures: queues for which it failed, and why.
    """

    __slots__ = ("failures", "is_done", "queues")

    def __init__(self) -> None:
        self.queues: set[Committable] = set()
        self.is_done = False
        self.failures: dict[Committable, JournalError] = {}

    def run(self) -> None:
        """Force to disk what the queues have written; `queues` must not change any more."""
        for queue in self.queues:
            try:
                queue.sync()
            except OSError as error:
                self.failures[queue] = queue.failed(error)
            except Exception as error:
                # The round must end whatever happens: threads wait for it.
                log.exception("a journal was not synced")
                self.failures[queue] = queue.failed(OSError(repr(error)))
        self.is_done = True


class Ticker:
    """Calls a function now and then, in a thread of its own that never keeps a program alive.

    `start` and `stop` are for one thread at a time.
    """

    def __init__(self, period: float, function: Callable[[], None], name: str) -> None:
        """`period` is in seconds. Nothing runs before `start`."""
        self._period = period
        self._function = function
        self._began = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, unless it has begun."""
        if not self._began:
            self._began = True
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            try:
                self._function()
            except Exception:
                log.exception("%s failed", self._thread.name)

    def stop(self) -> None:
        """End; a call that runs is waited for."""
        self._stopped.set()
        if self._began:
            self._thread.join()
