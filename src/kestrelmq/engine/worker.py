"""Where long work on journals runs, so that queues go on meanwhile."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

Pause = Callable[[], None]
Job = Callable[[Pause], None]
"""Long work; it calls what it is given after each short piece."""
Done = Callable[[BaseException | None], None]

_PAUSE: Final = 100e-6
"""Seconds; long enough that a thread that waits for the interpreter gets it."""


class Worker(Protocol):
    """Runs one job after the other."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`, now or later; then call `done` in the owner's thread with its exception."""

    def close(self) -> None:
        """Finish the jobs there are; what they report may be lost."""


class InlineWorker:
    """Runs each job at once, in the caller's thread."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`, then call `done`."""
        error: BaseException | None = None
        try:
            job(_no_pause)
        except Exception as failure:  # noqa: BLE001 # it is passed on
            error = failure
        done(error)

    def close(self) -> None:
        """Nothing is left to finish."""


class ThreadWorker:
    """Runs jobs in a thread of its own, which takes care to let others run."""

    def __init__(self, call: Callable[[Callable[[], None]], object]) -> None:
        """`call`, from any thread, has its argument called in the thread of the queues."""
        self._call = call
        self._executor: ThreadPoolExecutor | None = None

    def run(self, job: Job, done: Done) -> None:
        """Run `job` in the thread, then have `done` called by the owner."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "journal")

        def finished(future: Future[None]) -> None:
            if not future.cancelled():
                self._call(lambda: done(future.exception()))

        self._executor.submit(job, lambda: time.sleep(_PAUSE)).add_done_callback(finished)

    def close(self) -> None:
        """Finish the jobs there are; what they report may be lost."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None


def _no_pause() -> None:
    """Nobody waits."""
