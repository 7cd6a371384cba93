"""A worker whose jobs run when the test tells it to."""

from collections import deque
from collections.abc import Callable
from functools import partial

from kestrelmq.clock import Pause
from kestrelmq.scheduling.worker import Done, InlineWorker, Job, Useless


class HeldWorker:
    """Keeps its jobs until `step` runs one, so that a test decides what happens before."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, Done]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def run(self, job: Job, done: Done) -> None:
        """Keep `job` for later."""
        self._jobs.append((job, done))

    def step(self) -> bool:
        """Run the oldest job and report its result; return False if there is none."""
        if not self._jobs:
            return False
        InlineWorker().run(*self._jobs.popleft())
        return True

    def free(self, useless: Useless) -> None:
        """Free it at once."""
        useless.clear()

    def tell(self, call: Callable[[], None]) -> None:
        """Call it at once."""
        call()

    def close(self) -> None:
        """Run the jobs that are left, without reporting their results."""
        while self._jobs:
            InlineWorker().run(self._jobs.popleft()[0], lambda _error: None)


class LateWorker(HeldWorker):
    """Runs each job at once, and keeps the report until `step`, even if it is closed before."""

    def run(self, job: Job, done: Done) -> None:
        """Run `job`; report it later."""
        InlineWorker().run(job, lambda error: self._keep(error, done))

    def tell(self, call: Callable[[], None]) -> None:
        """Call it later."""
        super().run(lambda _pause: call(), lambda _error: None)

    def close(self) -> None:
        """Do nothing: every job has run."""

    def _keep(self, error: BaseException | None, done: Done) -> None:
        super().run(partial(_end_with, error), done)


def _end_with(error: BaseException | None, _pause: Pause) -> None:
    """End as a job did that ran before. Raises its error."""
    if error is not None:
        raise error
