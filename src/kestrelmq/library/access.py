"""Access to queues from threads: one thread at a time changes them, then waits for durability.

`QueueAccess.change` holds the lock while it applies an operation and writes its records. If an
fsync is needed, it happens after the lock is released: the first of the threads that wait for one
syncs for all of them (see `SyncScheduler`). Readers that the operation served are woken last.

A thread that is in an operation cannot begin another: a signal handler, or a finalizer, that tries
to is told so, where it would wait for its own thread. What is logged during an operation is logged
when that is over, because a handler may use the queue (`kestrelmq.deferred_logs`).

An exception that is no refusal, such as a Ctrl-C, may leave a queue half changed. From then on all
operations raise QueueUnavailable, until the queues are set up again (see `GroupCommit.apply`).

The upkeep of a journal runs in a thread of its own and reports its results. Reports are processed
under the same lock, by whichever thread holds it. The upkeep thread never waits for the lock, so a
thread that holds the lock may wait for the upkeep thread.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Final, TypeVar
from weakref import WeakMethod

from kestrelmq.clock import SystemClock, Throttle
from kestrelmq.deferred_logs import get_logger, log_afterwards
from kestrelmq.errors import JournalError, KestrelError, NotSynced, QueueUnavailable
from kestrelmq.forks import UserProcess
from kestrelmq.format.records import Item as QueueItem
from kestrelmq.library.items import Item
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.browsing import Look
from kestrelmq.scheduling.durability import Committable, GroupCommit, SyncRound, nothing

T = TypeVar("T")

UPKEEP_PERIOD: Final = 1.0
"""Seconds between two runs of the upkeep that depends on time."""
_LOG_PERIOD: Final = 60.0
"""Seconds between two lines in the log about a thread that cannot start."""

log = get_logger(__name__)


class WaitingThread:
    """A thread that waits for an item of a queue.

    Attributes:
        waiter: the waiter that represents it in the queue.
        woken: set when the wait has ended, with or without an item.
        queue: the queue.
    """

    def __init__(self, access: "QueueAccess", queue: Queue, mode: ReadMode) -> None:
        self.waiter = Waiter(mode, self._serve, self._fail)
        self.woken = threading.Event()
        self.queue = queue
        self._access = access
        self._item: Item | None = None
        self._failure: KestrelError | None = None

    def _serve(self, one: QueueItem | None, xid: int) -> None:
        self._item = None if one is None else Item.of(one, xid)
        self._access.served.append(self)

    def _fail(self, error: KestrelError) -> None:
        self._failure = error
        self._access.served.append(self)

    def wake(self, failure: JournalError | None) -> None:
        """Wake the thread; with a `failure` to write the read, `item` raises that.

        If only the sync failed, it gets its item: nobody else would.
        """
        if not isinstance(failure, NotSynced):
            self._failure = self._failure or failure
        self.woken.set()

    def item(self) -> Item:
        """Wait for the end of the read, and return the item.

        Raises:
            JournalError: the journal could not be written; the item stayed in the queue.
            QueueUnavailable: the queue was closed, or its items could not be read.
        """
        self.woken.wait()
        if self._failure is not None:
            raise self._failure
        if self._item is None:
            raise QueueUnavailable(f"queue {self.queue.name} was closed")
        return self._item


class Ticker:
    """Calls a method periodically in a daemon thread, which does not keep the program alive.

    Nor does it keep the method's object alive: it ends when that was forgotten.

    `start` and `stop` must not be called by two threads at once.
    """

    def __init__(self, period: float, method: Callable[[], None], name: str) -> None:
        """`period` is in seconds. Nothing runs before `start`."""
        self._period = min(period, threading.TIMEOUT_MAX)
        self._method = WeakMethod(method)
        self._began = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was started before.

        Raises RuntimeError: the system has no room for a thread; a later call tries again.
        """
        if not self._began:
            self._thread.start()
            self._began = True

    def _run(self) -> None:
        while not self._stopped.wait(self._period) and self._call():
            pass

    def _call(self) -> bool:
        """Call the method; return False if its object was forgotten or cannot be used any more."""
        method = self._method()
        try:
            if method is not None:
                method()
        except QueueUnavailable:
            return False
        except Exception:
            log.exception("%s failed", self._thread.name)
        return method is not None

    def stop(self) -> None:
        """Stop the thread, and wait for a call that is running."""
        self._stopped.set()
        if self._began:
            self._thread.join()


class _Done:
    """What is left to do when an operation was applied and its records are written.

    Attributes:
        commits: what has written them.
        failures: the queues that could not be written or synced, and why.
        served: the waiting threads that it has served.
        covering: the round of fsyncs to wait for, if any.
    """

    def __init__(self, commits: GroupCommit) -> None:
        self.commits = commits
        self.failures: dict[Committable, JournalError] = {}
        self.served: list[WaitingThread] = []
        self.covering: SyncRound | None = None


class QueueAccess:
    """Gives threads access to the queues that share one `GroupCommit`, and does their upkeep.

    Attributes:
        process: the process that has set the queues up.
        served: the waiting threads that the current operation has served.
        waiting: the threads that wait for an item.
    """

    def __init__(self) -> None:
        self.process = UserProcess()
        self.served: list[WaitingThread] = []
        self.waiting: set[WaitingThread] = set()
        self._commits = GroupCommit()
        self._lock = threading.Lock()
        self._reports: deque[Callable[[], None]] = deque()
        self._syncing = threading.Lock()
        self._users: set[int] = set()  # the threads that are in an operation
        self._tickers: list[Ticker] = []
        self._may_log = Throttle(SystemClock(), _LOG_PERIOD)

    def change(self, operation: Callable[[], T]) -> tuple[T, dict[Committable, JournalError]]:
        """Apply `operation` and write its records.

        Return its result, and the queues that could not be written or synced, with the reasons. If
        `operation` raises, the changes it made before are still written.

        Raises:
            QueueUnavailable: another process has set the queues up, and this one was forked; or
                this thread is in an operation already; or an earlier one was left half-way.
        """
        self.process.check()
        return self._alone(lambda: self._apply(operation))

    def _alone(self, work: Callable[[], T]) -> T:
        """Do an operation; log what it logs afterwards. Raises QueueUnavailable as `change`."""
        thread = threading.get_ident()
        if thread in self._users:
            raise QueueUnavailable(
                "a signal handler or finalizer cannot use a queue whose operation it interrupts"
            )

        def marked() -> T:
            try:
                self._users.add(thread)
                return work()
            finally:
                self._users.discard(thread)

        return log_afterwards(marked)

    def _apply(self, operation: Callable[[], T]) -> tuple[T, dict[Committable, JournalError]]:
        done = _Done(self._commits)
        try:
            with self._lock:
                done.commits = self._commits
                result = done.commits.apply(operation, lambda: self._finish(done))
        finally:
            try:
                self._process_reports()
                done.failures |= self._wait_for(done.covering, done.commits)
            finally:  # also if a signal interrupts the wait: nobody else would wake them
                for waiting in done.served:
                    waiting.wake(done.failures.get(waiting.queue))
        return result, done.failures

    def _finish(self, done: _Done) -> None:
        """Write what an operation has changed, with the lock held."""
        commits = done.commits
        done.failures |= commits.commit()
        if done.failures:
            # Upkeep gives back what nobody holds any more.
            self.start_upkeep()
        done.covering = commits.syncs.request(commits.syncs.take_unsynced())
        self.waiting.difference_update(self.served)
        done.served, self.served = self.served, []

    def read(self, look: Look) -> list[QueueItem]:
        """Return the records of the items at which `look` looks; from disk without the lock.

        Raises:
            QueueUnavailable: the items cannot be read.
        """
        with closing(look.views()) as views:
            while (view := self.change(lambda: next(views, None))[0]) is not None:
                view.load()
        return look.records

    def sync_written(self) -> None:
        """Sync all queues with unsynced writes, due or not. Raises QueueUnavailable as `change`."""

        def sync() -> None:
            with self._lock:
                commits, syncs = self._commits, self._commits.syncs
                covering = commits.apply(lambda: syncs.request(syncs.take_due(math.inf)), nothing)
            self._process_reports()
            self._wait_for(covering, commits)

        self._alone(sync)

    def _wait_for(
        self, covering: SyncRound | None, commits: GroupCommit
    ) -> dict[Committable, JournalError]:
        """Wait until a round of fsyncs has ended, or run it; return the queues that failed."""
        if covering is None:
            return {}
        syncs = commits.syncs
        with self._syncing:
            while not covering.has_ended:
                with self._lock:
                    commits.check_whole()
                    # A round that is still marked as running was interrupted by a signal, in the
                    # thread that ran it: run it again.
                    begun = syncs.running or syncs.begin()
                    assert begun is not None  # noqa: S101 # `covering` at the latest
                self._process_reports()
                begun.run()
                with self._lock:
                    if commits.apply(syncs.end, nothing).failures:
                        self.start_upkeep()  # the journal has to be written anew
                self._process_reports()
        return covering.failures

    # --- start and stop ---

    def open(self, work: Callable[[], None]) -> None:
        """Open the queues by `work`, which calls `begin`. Raises QueueUnavailable as `change`."""
        self.process.check()
        self._alone(lambda: self._locked(work))

    def _locked(self, work: Callable[[], T]) -> T:
        with self._lock:
            return work()

    def check_whole(self) -> None:
        """Raise QueueUnavailable: an operation was left half-way."""
        self._commits.check_whole()

    def begin(
        self,
        commits: GroupCommit,
        upkeep: Callable[[], None],
        period: float,
        sync_period: float | None,
        suffix: str = "",
    ) -> None:
        """Begin to commit and sync, with the lock held; `start_upkeep` begins to call `upkeep`.

        Args:
            commits: commits and syncs what the queues have changed.
            upkeep: does the upkeep that depends on time.
            period: seconds between its calls.
            sync_period: seconds between two syncs; None or 0 for none.
            suffix: the end of the threads' names.

        Raises:
            QueueUnavailable: the system has no room for the thread that syncs.
        """
        tickers = [Ticker(period, upkeep, f"kestrelmq-upkeep{suffix}")]
        if sync_period:
            sync = Ticker(sync_period, self.sync_written, f"kestrelmq-sync{suffix}")
            try:
                sync.start()
            except RuntimeError as error:
                raise QueueUnavailable(f"there is no thread for periodic syncs: {error}") from error
            tickers.append(sync)
        self._tickers = tickers
        self.process.begin()
        self._commits = commits
        commits.on_fault = self._end_waits

    def start_upkeep(self) -> None:
        """Start the upkeep, with the lock held, unless it was started before, or `end` was called.

        If the system has no room for its thread, the next call tries again.
        """
        if not self._tickers:
            return
        try:
            self._tickers[0].start()
        except RuntimeError as error:
            if self._may_log.passes():
                log.warning("there is no thread for the upkeep of queues yet: %s", error)

    def end(self, close: Callable[[], None]) -> None:
        """Close the queues by `close`, and end the threads, even if some of it fails."""
        tickers: list[Ticker] = []
        try:
            self._alone(lambda: self._locked(lambda: self._shut(close, tickers)))
        finally:
            for ticker in tickers:  # without the lock: it may need that first
                ticker.stop()

    def _shut(self, close: Callable[[], None], tickers: list[Ticker]) -> None:
        tickers += self._tickers
        self._tickers = []
        self.process.end()
        commits = self._commits
        with ExitStack() as last:
            last.callback(self._forget_users)
            last.callback(close)
            if commits.fault is None:
                commits.apply(commits.commit, nothing)

    def _forget_users(self) -> None:
        self._reports.clear()
        self.served = []
        self._end_waits()

    def _end_waits(self) -> None:
        for waiting in list(self.waiting):
            waiting.woken.set()

    def report(self, callback: Callable[[], None]) -> None:
        """Have `callback` called under the lock; may be called from any thread, and never waits."""
        self._reports.append(callback)
        if threading.get_ident() in self._users:
            self._process_reports()
        else:
            self._alone(self._process_reports)

    def _process_reports(self) -> None:
        """Process reports, unless another thread has the lock: it does when it releases it."""
        while self._reports and self._lock.acquire(blocking=False):
            try:
                self._run_reports()
            finally:
                self._lock.release()

    def _run_reports(self) -> None:
        while self._reports:
            report = self._reports.popleft()
            if self._commits.fault is not None:
                continue  # it would write what is half changed
            try:
                self._commits.apply(report, nothing)
            except Exception:
                log.exception("the upkeep of a journal failed")
