"""Where long work on journals runs, so that queues can be used meanwhile.

A job is work without a queue: the worker runs it in a thread of its own.
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from kestrelmq.clock import Pause, no_pause

Job = Callable[[Pause], None]
"""Long work; it calls its argument after each short piece."""
Done = Callable[[BaseException | None], None]
Useless = deque[Any] | list[Any]
"""Items, or dicts of a few thousand items."""
Result = TypeVar("Result")

LARGE_ITEM: Final = 1 << 20
"""Bytes of a record that takes long to be copied or written: a worker does that."""
_PAUSE: Final = 100e-6
"""Seconds; long enough for a thread that waits for the interpreter to get it."""
_LONGEST_PAUSE: Final = 1e-3
_FREED_AT_ONCE: Final = 1000
"""Items that are freed at once; that takes a negligible time."""


class JobRunner(Protocol):
    """Runs jobs one after the other."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`, now or later; then call `done` in the owner's thread with its exception."""

    def close(self) -> None:
        """Finish the running job; what it reports may be lost, and no other job runs any more.

        What a job reports may begin the next one, so an owner that stops cannot avoid later jobs.
        """


class Worker(JobRunner, Protocol):
    """Runs long work on journals."""

    def free(self, useless: Useless) -> None:
        """Free what is no longer needed; there may be millions of items."""

    def tell(self, call: Callable[[], None]) -> None:
        """From within a job, let the owner's thread call `call`: before the job is reported."""


class InlineWorker:
    """Runs each job at once, in the caller's thread."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`, then call `done`."""
        error: BaseException | None = None
        try:
            job(no_pause)
        except Exception as failure:  # noqa: BLE001 # it is passed on
            error = failure
        done(error)

    def free(self, useless: Useless) -> None:
        """Free it at once."""
        useless.clear()

    def tell(self, call: Callable[[], None]) -> None:
        """Call it at once."""
        call()

    def close(self) -> None:
        """Do nothing: no job is left."""


class ThreadWorker:
    """Runs jobs in a thread of its own, which lets other threads run.

    The thread starts with the first job. After each piece of work it pauses for as long as that
    took, so that the owner's thread, which needs the interpreter too, has it at least half of the
    time. After a pause it waits until the owner's thread leaves a processor free.
    """

    def __init__(
        self,
        call: Callable[[Callable[[], None]], object],
        name: str = "journal",
        *,
        in_background: bool = True,
    ) -> None:
        """Prepare; no thread starts yet.

        Args:
            call: from any thread, makes the owner's thread call its argument.
            name: the thread's name.
            in_background: whether the thread may be scheduled late; False if clients wait for each
                job.
        """
        self._call = call
        self._name = name
        self._initializer = _use_batch_scheduling if in_background else None
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._useless: deque[Useless] = deque()
        self._worked_from = 0.0

    def run(self, job: Job, done: Done) -> None:
        """Run `job` in the thread, then let the owner's thread call `done`.

        That gets an OSError if the system has no room for the thread.
        """
        if self._is_closed:
            return

        def finished(future: Future[None]) -> None:
            if not future.cancelled():
                self._call(lambda: done(future.exception()))

        try:
            begun = self._submit(job)
        except RuntimeError as error:  # the system has no room for a thread
            self._call(partial(done, OSError(str(error))))
            return
        begun.add_done_callback(finished)

    def _submit(self, job: Job) -> Future[None]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, self._name, self._initializer)
        try:
            return self._executor.submit(self._work, job)
        except RuntimeError:
            # The job waits for a thread all the same, and would run before the next one.
            self._executor = None
            raise

    def free(self, useless: Useless) -> None:
        """Free it in the thread, in the pauses of its jobs."""
        if self._is_closed:
            return
        if len(useless) > _FREED_AT_ONCE or (useless and isinstance(useless[0], dict)):
            self._useless.append(useless)
            # Without a thread, they are freed in the pauses of the next job.
            with contextlib.suppress(RuntimeError):
                self._submit(self._free_all)

    def tell(self, call: Callable[[], None]) -> None:
        """From within a job, let the owner's thread call `call`."""
        self._call(call)

    def close(self) -> None:
        """Finish the running job, and drop the others and all later ones."""
        self._is_closed = True
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
            useless, freed = self._useless[0], 0
            while useless and freed < _FREED_AT_ONCE:
                one = useless.pop()
                freed += len(one) if isinstance(one, dict) else 1
            one = None
            if not useless:
                self._useless.popleft()


def _use_batch_scheduling() -> None:
    """Tell the system not to preempt other threads whenever this one wakes."""
    if sys.platform == "linux":
        # Where the system forbids it, the thread has to run all the same.
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_to_end(work: Generator[object, None, Result]) -> Result:
    """Run a generator to its end, without letting others run at its yields; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
