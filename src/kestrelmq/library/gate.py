"""Queues for threads: one at a time changes them, and hears of it when the change is durable.

`Gate.change` holds the lock while it applies an operation and writes its records. An fsync, where
one is wanted, happens after the lock is given up: of the threads that wait for one, the first to
come syncs for all (see `durability.Syncs`). Readers that were served by the operation hear of it
last.

What a journal's upkeep reports from its thread is taken note of under the same lock, by whoever has
it: the thread never waits for it, and so whoever has it may wait for the thread.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from kestrelmq.engine.durability import Commits, Committable, SyncRound
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Waiter, Wanted
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.library.items import Item

T = TypeVar("T")

UPKEEP_PERIOD: Final = 1.0
"""Seconds between looks for what only the passing of time brings about."""

log = logging.getLogger(__name__)


class Waiting:
    """A thread that waits for an item of a queue.

    Attributes:
        waiter: its place in the queue's line.
        settled: set when there is an item, or there will be none.
    """

    def __init__(self, gate: "Gate", queue: Queue, wanted: Wanted) -> None:
        self.waiter = Waiter(wanted, self._serve, self._fail)
        self.settled = threading.Event()
        self.queue = queue
        self._gate = gate
        self._item: Item | None = None
        self._failure: KestrelError | None = None

    def _serve(self, record: bytes | None, xid: int) -> None:
        self._item = None if record is None else Item.of(record, xid)
        self._gate.served.append(self)

    def _fail(self, error: KestrelError) -> None:
        self._failure = error
        self._gate.served.append(self)

    def settle(self, failure: JournalError | None) -> None:
        """Wake the thread; the item is in no journal if there is a `failure`."""
        self._failure = self._failure or failure
        self.settled.set()

    def item(self) -> Item:
        """Return the item; it may still have to be forced to disk, which is waited for.

        Raises:
            JournalError: the journal could not be written; the item stayed in the queue.
            QueueUnavailable: the queue was closed, or its items could not be read.
        """
        self.settled.wait()
        if self._failure is not None:
            raise self._failure
        if self._item is None:
            raise QueueUnavailable(f"queue {self.queue.name} was closed")
        return self._item


class Gate:
    """The way to the queues that one `Commits` belongs to.

    Attributes:
        served: waiting threads that the operation at hand served.
    """

    def __init__(self, commits: Commits) -> None:
        self.served: list[Waiting] = []
        self._commits = commits
        self._syncs = commits.syncs
        self._lock = threading.Lock()
        self._reports: deque[Callable[[], None]] = deque()
        self._syncing = threading.Lock()

    def change(self, operation: Callable[[], T]) -> tuple[T, dict[Committable, JournalError]]:
        """Apply `operation` and write it; return its result, and the queues that failed and why.

        An operation that raises may have changed something before; that is written all the same.
        """
        failures: dict[Committable, JournalError] = {}
        served: list[Waiting] = []
        covering: SyncRound | None = None
        try:
            with self._lock:
                try:
                    result = operation()
                finally:
                    failures |= self._commits.commit()
                    served, self.served = self.served, []
                    covering = self._syncs.request(self._syncs.take_unsynced())
        finally:
            self._catch_up()
            failures |= self._wait_for(covering)
            for waiting in served:
                waiting.settle(failures.get(waiting.queue))
        return result, failures

    def sync_written(self) -> dict[Committable, JournalError]:
        """Sync what was written to queues whose period is not over yet, too; return what failed."""
        with self._lock:
            covering = self._syncs.request(self._syncs.take_due(math.inf))
        self._catch_up()
        return self._wait_for(covering)

    def _wait_for(self, covering: SyncRound | None) -> dict[Committable, JournalError]:
        """Return what failed of a round of fsyncs when it has ended; run it if nobody else does."""
        if covering is None:
            return {}
        with self._syncing:
            while not covering.has_ended:
                with self._lock:
                    # One that runs was interrupted (by a signal, in the thread that had it).
                    begun = self._syncs.running or self._syncs.begin()
                    assert begun is not None  # noqa: S101 # `covering` at the latest
                self._catch_up()
                begun.run()
                with self._lock:
                    self._syncs.end()
                self._catch_up()
        return covering.failures

    # --- what upkeep reports ---

    def report(self, callback: Callable[[], None]) -> None:
        """Have `callback` called with the queues to itself; from any thread, and never waits."""
        self._reports.append(callback)
        self._catch_up()

    def _catch_up(self) -> None:
        """Take note of the reports, unless another thread has the lock; it will when it is done."""
        while self._reports and self._lock.acquire(blocking=False):
            try:
                self._take_note()
            finally:
                self._lock.release()

    def _take_note(self) -> None:
        while self._reports:
            try:
                self._reports.popleft()()
            except Exception:
                log.exception("the upkeep of a journal failed")


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
