"""Run jobs concurrently, each in a thread with its own connection; the first error stops all."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from kestrelmq.loadtests.connections import Connect, LoadConnection

WAIT_SECONDS: Final = 1.0
"""How long a blocking read waits before it checks whether the test is over."""

_CHECK_SECONDS: Final = 0.05


class WorkerTally:
    """The counts of one worker. Only that worker changes them.

    Attributes:
        put: items added.
        received: items read.
        empty: reads that found no item.
        last: when an item was last added or read (`time.perf_counter`).
    """

    __slots__ = ("empty", "last", "put", "received")

    def __init__(self) -> None:
        self.put = self.received = self.empty = 0
        self.last = 0.0

    def note_put(self, items: Sequence[bytes]) -> None:
        """Count added items."""
        self.put += len(items)
        self.last = time.perf_counter()

    def note_read(self, items: Sequence[bytes]) -> None:
        """Count the items of a read, or an empty read."""
        if items:
            self.received += len(items)
            self.last = time.perf_counter()
        else:
            self.empty += 1


Show = Callable[[int, str], None]
"""Shows how many items of a phase have been moved, and a note; empty, the last one stays."""
ShowProgress = Callable[[str, int], AbstractContextManager[Show]]
"""Shows the progress of a phase during a `with` block; takes its name and its number of items."""

Job = Callable[[LoadConnection, WorkerTally], None]


@dataclass(frozen=True, slots=True)
class PoolResult:
    """The counts of jobs that ran concurrently.

    Attributes:
        begun: when they began (`time.perf_counter`).
        tallies: the counts of each job.
    """

    begun: float
    tallies: Sequence[WorkerTally]

    def seconds(self, first: int = 0, end: int | None = None) -> float:
        """Return the time from the start until the last of jobs `first` to `end` moved an item."""
        return max(tally.last for tally in self.tallies[first:end]) - self.begun


class WorkerPool:
    """Runs jobs concurrently, in a thread each.

    Attributes:
        readers_done: tells readers to end: the goal is reached, or no more items are expected.
        failed: tells all jobs to end: a job failed, the test was interrupted, or no item was moved
            for `patience` seconds. Missing items are then lost, unless a producer had not finished.
        patience: seconds without progress after which the jobs are told to end.
    """

    def __init__(self, connect: Connect, patience: float) -> None:
        self.readers_done = threading.Event()
        self.failed = threading.Event()
        self.patience = patience
        self._connect = connect
        self._errors: list[BaseException] = []

    def run(self, jobs: Sequence[Job], show: Show, goal: int | None = None) -> "PoolResult":
        """Run the jobs until all have ended, and return their counts.

        With a `goal`, they are told to end when they have received that many items together.

        Raises:
            LoadTestError: a job raised it, or a connection could not be made.
        """
        tallies = [WorkerTally() for _ in jobs]
        with open_connections(self._connect, len(jobs)) as connected:
            threads = [
                threading.Thread(target=self._work, args=work)
                for work in zip(jobs, connected, tallies, strict=True)
            ]
            begun = time.perf_counter()
            started = []
            try:
                for thread in threads:
                    thread.start()
                    started.append(thread)
                self._supervise(threads, tallies, show, goal)
            except BaseException:
                self.failed.set()  # the user has interrupted it
                raise
            finally:
                self.readers_done.set()
                for thread in started:
                    thread.join()
        if self._errors:
            raise self._errors[0]
        show(_moved(tallies), "")
        return PoolResult(begun, tallies)

    def _work(self, job: Job, connection: LoadConnection, tally: WorkerTally) -> None:
        try:
            job(connection, tally)
        except BaseException as error:  # noqa: BLE001 # `run` raises it
            self._errors.append(error)
            self.failed.set()
            self.readers_done.set()

    def _supervise(
        self,
        threads: list[threading.Thread],
        tallies: list[WorkerTally],
        show: Show,
        goal: int | None,
    ) -> None:
        moved, since = 0, time.monotonic()
        while any(thread.is_alive() for thread in threads) and not self.readers_done.wait(
            _CHECK_SECONDS
        ):
            now = _moved(tallies)
            if now != moved:
                moved, since = now, time.monotonic()
                show(moved, "")
            if goal is not None and sum(tally.received for tally in tallies) >= goal:
                return
            if time.monotonic() - since > self.patience:
                self.failed.set()
                return


@contextmanager
def open_connections(connect: Connect, count: int) -> Iterator[list[LoadConnection]]:
    """Make `count` connections, and close them at the end of the `with` block."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            connection = connect()
            stack.callback(connection.close)
            made.append(connection)
        yield made


def _moved(tallies: Sequence[WorkerTally]) -> int:
    return sum(tally.put + tally.received for tally in tallies)
