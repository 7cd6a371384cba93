"""One thread at a time changes queues, and nobody hears of a change before it is in the journal.

`Gate.change` holds the lock while it applies an operation and writes its records. An fsync, where
one is wanted, happens after the lock is given up, and one serves every thread that waits. Readers
that were served by the operation hear of it last.

What a journal's upkeep reports from its thread is taken note of under the same lock, by whoever has
it: the thread never waits for it, and so whoever has it may wait for the thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kestrelmq.engine.commits import Commits, Committable
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Waiter, Wanted
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.library.items import Item
from kestrelmq.library.syncing import SyncRound

T = TypeVar("T")

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
        self._lock = threading.Lock()
        self._reports: deque[Callable[[], None]] = deque()
        self._syncing = threading.Lock()
        self._round = SyncRound()

    def change(self, operation: Callable[[], T]) -> tuple[T, dict[Committable, JournalError]]:
        """Apply `operation` and write it; return its result, and the queues that failed and why.

        An operation that raises may have changed something before; that is written all the same.
        """
        failures: dict[Committable, JournalError] = {}
        served: list[Waiting] = []
        waits_for: SyncRound | None = None
        try:
            with self._lock:
                try:
                    result = operation()
                finally:
                    failures |= self._commits.commit()
                    served, self.served = self.served, []
                    unsynced = self._commits.take_unsynced()
                    if unsynced:
                        waits_for = self._round
                        waits_for.queues |= unsynced
        finally:
            self._catch_up()
            if waits_for is not None:
                self._sync(waits_for)
                failures |= waits_for.failures
            for waiting in served:
                waiting.settle(failures.get(waiting.queue))
        return result, failures

    def _sync(self, waits_for: SyncRound) -> None:
        with self._syncing:
            if waits_for.is_done:
                return
            with self._lock:
                self._round = SyncRound()
            self._catch_up()
            waits_for.run()

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
