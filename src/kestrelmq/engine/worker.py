"""Where long work on journals runs, so that queues go on meanwhile."""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from kestrelmq.clock import Pause, no_pause

Job = Callable[[Pause], None]
"""Long work; it calls what it is given after each short piece."""
Done = Callable[[BaseException | None], None]
Result = TypeVar("Result")

_PAUSE: Final = 100e-6
"""Seconds; long enough that a thread that waits for the interpreter gets it."""
_LONGEST_PAUSE: Final = 1e-3
_FREED: Final = 1000
"""Items that are freed at once, in less time than anybody notices."""


class Worker(Protocol):
    """Runs one job after the other."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`, now or later; then call `done` in the owner's thread with its exception."""

    def let_go(self, items: deque[bytes]) -> None:
        """Free items that nobody needs any more; there may be millions."""

    def close(self) -> None:
        """Finish the jobs there are; what they report may be lost."""


class InlineWorker:
    """Does everything at once, in the caller's thread."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`, then call `done`."""
        error: BaseException | None = None
        try:
            job(no_pause)
        except Exception as failure:  # noqa: BLE001 # it is passed on
            error = failure
        done(error)

    def let_go(self, items: deque[bytes]) -> None:
        """Free them."""
        items.clear()

    def close(self) -> None:
        """Nothing is left to finish."""


class ThreadWorker:
    """Runs jobs in a thread of its own, which takes care to let others run.

    The thread begins with the first job. It pauses after each piece of work for as long as that
    took, so that the owner's thread, which needs the interpreter too, has at least half of it. When
    a pause ends, it waits for a processor until the owner's thread leaves one.
    """

    def __init__(
        self,
        call: Callable[[Callable[[], None]], object],
        name: str = "journal",
        *,
        in_background: bool = True,
    ) -> None:
        """Prepare; no thread begins yet.

        Args:
            call: from any thread, has its argument called in the thread of the queues.
            name: the thread's.
            in_background: whether its waking may wait; False where clients wait for each job.
        """
        self._call = call
        self._name = name
        self._initializer = _interrupt_nobody if in_background else None
        self._executor: ThreadPoolExecutor | None = None
        self._useless: deque[deque[bytes]] = deque()
        self._worked_from = 0.0

    def run(self, job: Job, done: Done) -> None:
        """Run `job` in the thread, then have `done` called by the owner."""

        def finished(future: Future[None]) -> None:
            if not future.cancelled():
                self._call(lambda: done(future.exception()))

        try:
            begun = self._submit(job)
        except RuntimeError as error:  # the system has no room for a thread
            self._call(partial(done, error))
            return
        begun.add_done_callback(finished)

    def _submit(self, job: Job) -> Future[None]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, self._name, self._initializer)
        return self._executor.submit(self._work, job)

    def let_go(self, items: deque[bytes]) -> None:
        """Free them in the thread, in the pauses of what runs there."""
        if len(items) > _FREED:
            self._useless.append(items)
            # Without a thread, they are freed in the pauses of the next job.
            with contextlib.suppress(RuntimeError):
                self._submit(self._free_all)

    def close(self) -> None:
        """Finish the jobs there are; what they report may be lost."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    # --- in the thread ---

    def _work(self, job: Job) -> None:
        self._worked_from = time.perf_counter()
        job(self._pause)

    def _pause(self) -> None:
        self._free_some()
        worked = time.perf_counter() - self._worked_from
        time.sleep(min(max(worked, _PAUSE), _LONGEST_PAUSE))
        self._worked_from = time.perf_counter()

    def _free_all(self, pause: Pause) -> None:
        while self._useless:
            pause()

    def _free_some(self) -> None:
        if self._useless:
            items = self._useless[0]
            for _ in range(min(len(items), _FREED)):
                items.popleft()
            if not items:
                self._useless.popleft()


def _interrupt_nobody() -> None:
    """Have the system not take a processor from others whenever this thread wakes."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def at_once(work: Generator[object, None, Result]) -> Result:
    """Do work that yields where others may go on, without letting them; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
