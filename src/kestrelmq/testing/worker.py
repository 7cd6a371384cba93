"""A worker whose jobs run when the test tells it to."""

from collections import deque

from kestrelmq.engine.worker import Done, InlineWorker, Job


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

    def free(self, items: deque[bytes]) -> None:
        """Free `items` at once."""
        items.clear()

    def close(self) -> None:
        """Run the jobs that are left, without reporting their results."""
        while self._jobs:
            InlineWorker().run(self._jobs.popleft()[0], lambda _error: None)
