"""`PersistentQueue`: a durable queue for the threads of one process.

Every method may be called from any thread. When a method returns, its change is in the journal. A
crash may leave a record cut short after that, which the next `setup` sets aside.

Background threads start when they are first needed and end with `close`. One rewrites and packs
journals. One does the upkeep that depends on time, about once a second. One syncs the journal if
`sync_journal` is a period.
"""

from __future__ import annotations  # nested functions would evaluate theirs in each call

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.config import QueueConfig
from kestrelmq.errors import KestrelError, NotSynced, QueueUnavailable
from kestrelmq.format.records import Item as QueueItem
from kestrelmq.library.access import UPKEEP_PERIOD, QueueAccess, WaitingThread
from kestrelmq.library.items import Item, longest_wait
from kestrelmq.library.opening import check_queue, open_queue
from kestrelmq.library.operations import AsyncHeldItem, Held, QueueOperations, QueueUse
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode
from kestrelmq.queues.browsing import Look
from kestrelmq.scheduling.durability import GroupCommit, sync_now
from kestrelmq.scheduling.worker import ThreadWorker
from kestrelmq.unsuspended import blocking, entered, iterated, run

# ruff: noqa: ASYNC109 # these coroutines block their thread

T = TypeVar("T")

log = logging.getLogger(__name__)


class HeldItem(Held):
    """An item that `reserve` holds during its block."""

    finish = blocking(AsyncHeldItem.finish)
    release = blocking(AsyncHeldItem.release)
    extend = blocking(AsyncHeldItem.extend)


class BlockingQueue(QueueUse):
    """The operations of a queue. Every method may be called from several threads at once.

    Every method may raise these errors:

    - QueueUnavailable: the queue is not set up or was closed, or its items cannot be read.
    - JournalError: the journal could not be written, and nothing was changed. If it was an fsync
      (`sync_journal`) that failed, the change is made but may not survive a crash of the machine.
    """

    def __init__(self, name: str, access: QueueAccess, clock: Clock) -> None:
        super().__init__(name, clock)
        self._access = access

    add = blocking(QueueOperations.add)
    peek = blocking(QueueOperations.peek)
    remove = blocking(QueueOperations.remove)
    unremove = blocking(QueueOperations.unremove)
    confirm_remove = blocking(QueueOperations.confirm_remove)
    release = blocking(QueueOperations.release)
    extend = blocking(QueueOperations.extend)
    reserve_many = blocking(QueueOperations.reserve_many)
    finish = blocking(QueueOperations.finish)
    retire = blocking(QueueOperations.retire)
    wait_remove = blocking(QueueOperations.wait_remove)
    wait_peek = blocking(QueueOperations.wait_peek)
    browse = blocking(QueueOperations.browse)
    search = blocking(QueueOperations.search)
    import_items = blocking(QueueOperations.import_items)
    flush = blocking(QueueOperations.flush)

    @contextmanager
    def reserve(self, timeout: float | None = 0.0) -> Iterator[HeldItem | None]:
        """Hold an item during a `with` block; it is None if none came within `timeout` seconds.

        The item is confirmed when the block ends, and goes back to the head when it raises. When
        the program ends, it is back after the next `setup`.

        Raises:
            LeaseEnded: at the end of the block. The item was given back before
                (`open_transaction_timeout`), or its queue was deleted.
        """
        with entered(self._holding(timeout, HeldItem)) as held:
            yield held

    def consume(
        self, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> Generator[Item, None, None]:
        """Iterate over items; each is confirmed when the next is requested.

        An item goes back to the head if the loop ends before that. To have the last one confirmed,
        end the loop by `max_items`, or by `idle_timeout`: no item came for that many seconds.
        Without either, it never ends.
        """
        return iterated(
            QueueOperations.consume(self, idle_timeout=idle_timeout, max_items=max_items)
        )

    def export(self) -> Generator[str, None, None]:
        """Iterate over the waiting items as lines of JSON, which `import_items` takes.

        They stay in the queue. What is read meanwhile may make it leave out or repeat some items.
        """
        return iterated(QueueOperations.export(self))

    # --- changes, and when they are durable ---

    @abstractmethod
    def _queue(self, *, creates: bool = True) -> Queue:
        """Return the queue; called with the lock held. Raises QueueUnavailable."""

    async def _change(
        self,
        operation: Callable[[Queue], T],
        *,
        creates: bool = True,
        reads: bool = False,
    ) -> T:
        """Apply an operation.

        With `reads` it reads an item, which nobody would get if a failed sync were an error.
        """

        def apply() -> tuple[Queue, T]:
            queue = self._queue(creates=creates)
            queue.check_deadlines()
            try:
                return queue, operation(queue)
            finally:
                if queue.has_background_work:
                    self._access.start_upkeep()

        (queue, result), failures = self._access.change(apply)
        failure = failures.get(queue)
        if failure is not None and not (reads and isinstance(failure, NotSynced)):
            raise failure
        return result

    def _measure(self, what: Callable[[Queue], int]) -> int:
        return run(self._change(what, creates=False))

    async def _next(self, steps: Generator[T, None, None]) -> T | None:
        return self._access.change(lambda: next(steps, None))[0]

    async def _read(self, look: Look) -> list[QueueItem]:
        return self._access.read(look)

    async def _aside(self, work: Callable[[], T]) -> T:
        return work()

    # --- waiting ---

    async def _take(self, mode: ReadMode) -> Item | None:
        record, xid = await self._change(lambda queue: queue.line.take_as(mode), reads=True)
        return None if record is None else Item.of(record, xid)

    async def _wait(self, mode: ReadMode, timeout: float | None) -> Item | None:
        longest = longest_wait(timeout)
        deadline = None if longest is None else time.monotonic() + longest

        def begin(queue: Queue) -> Item | WaitingThread:
            record, xid = queue.line.take_as(mode)
            if record is not None:
                return Item.of(record, xid)
            waiting = WaitingThread(self._access, queue, mode)
            queue.waiters.add(waiting.waiter)
            self._access.waiting.add(waiting)
            return waiting

        begun = await self._change(begin, reads=True)
        if isinstance(begun, Item):
            return begun
        try:
            return await self._served(begun, deadline)
        finally:
            self._access.waiting.discard(begun)

    async def _served(self, begun: WaitingThread, deadline: float | None) -> Item | None:
        """Wait until the deadline, if any, for the item of a thread; return it."""
        failure: KestrelError | None = None
        try:
            while not begun.woken.wait(self._longest_sleep(begun.queue, deadline)):
                if deadline is not None and time.monotonic() >= deadline:
                    break
                # This gives back overdue reads, perhaps to this thread.
                await self._change(lambda _: None)
        except KestrelError as error:  # such as: it was closed, perhaps just after an item came
            failure = error
        except BaseException:
            with suppress(KestrelError):
                if not self._ends_wait(begun):
                    self._give_back(begun)
            raise
        if not self._ends_wait(begun):
            return begun.item()
        if failure is not None:
            raise failure
        return None

    def _ends_wait(self, waiting: WaitingThread) -> bool:
        """End a wait; return False if it has ended already."""
        return self._access.change(lambda: waiting.queue.waiters.cancel(waiting.waiter))[0]

    def _give_back(self, waiting: WaitingThread) -> None:
        """Give back the item of a thread that a signal interrupted just as it was served."""
        item = waiting.item()
        if item.xid:
            self.unremove(item.xid)

    @staticmethod
    def _longest_sleep(queue: Queue, deadline: float | None) -> float | None:
        """Return how many seconds a waiting thread may sleep before it must check the time again.

        It must wake up for its own deadline and for overdue reads; for anything else it is woken.
        """
        now = time.monotonic()
        ends = [] if deadline is None else [deadline - now]
        if queue.next_deadline is not None:
            ends.append(queue.next_deadline - now)
        if queue.config.open_transaction_timeout is not None:
            ends.append(queue.config.open_transaction_timeout)
        return max(0.0, min(ends)) if ends else None


class PersistentQueue(BlockingQueue):
    """A single durable queue: `with PersistentQueue("work", "/var/spool/app") as queue`.

    Different queues of one queue path can be used at the same time, in one process or in several.
    Each queue is used by one object at a time.
    """

    def __init__(
        self,
        name: str,
        path: str | Path,
        config: QueueConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the queue; nothing is opened before `setup`.

        Args:
            name: the queue's name.
            path: the queue path; it is created if necessary.
            config: the queue's settings.
            clock: the source of time; by default the machine's clock.

        Raises:
            InvalidQueueName: the name is not valid.
            ConfigError: the settings need other queues; use a `QueueCollection`.
        """
        self._config = config or QueueConfig()
        check_queue(name, self._config)
        super().__init__(name, QueueAccess(), clock or SystemClock())
        self._path = Path(path)
        self._opened: Queue | None = None
        self._lock: ExitStack | None = None

    def setup(self) -> None:
        """Load the queue; items of reads that were open when it was last used are at the head.

        Raises:
            QueuePathLocked: a server uses the path, or another object uses the queue.
            DamagedJournal: a file has bytes that are not a record.
            QueueUnavailable: the system has no room for a thread that is needed.
            OSError: a file could not be created or read.
        """
        self._access.open(self._open)

    def _open(self) -> None:
        if self._opened is not None:
            return
        commits = GroupCommit(ThreadWorker(self._access.report), isolates_faults=False)
        self._opened, self._lock = open_queue(
            self.name, self._path, self._config, self._clock, commits
        )
        try:
            self._access.begin(
                commits, self._do_upkeep, UPKEEP_PERIOD, self._config.sync_journal, f"-{self.name}"
            )
            if self._opened.has_background_work:
                self._access.start_upkeep()
        except BaseException:  # also a Ctrl-C
            self._shut()
            raise

    def _queue(self, *, creates: bool = True) -> Queue:  # noqa: ARG002 # it exists
        if self._opened is None:
            raise QueueUnavailable(f"queue {self.name} is not set up, or was closed")
        return self._opened

    def _do_upkeep(self) -> None:
        """Do the upkeep that depends on time."""
        for work in (Queue.sweep, Queue.tick):
            try:
                run(self._change(work))
            except KestrelError as error:
                self._access.check_whole()
                if not self.is_closed:
                    log.error("queue %s: %s", self.name, error)  # noqa: TRY400
            except Exception:
                log.exception("queue %s: upkeep failed", self.name)

    @property
    def is_closed(self) -> bool:
        """Whether the queue cannot be used because it was closed or is not set up yet."""
        return self._opened is None

    def close(self) -> None:
        """Close the queue. Waiting readers get QueueUnavailable.

        Items of open reads are back at the head after the next `setup`. In a process that was
        forked from the one that uses the queue, this does nothing.

        Raises:
            JournalError: `sync_journal` is set and the journal could not be synced.
        """
        if self._access.process.is_another:
            return
        self._access.end(self._shut)

    def _shut(self) -> None:
        queue, lock = self._opened, self._lock
        if queue is None or lock is None:
            return
        self._opened = self._lock = None
        with lock:
            lock.callback(queue.state.commits.worker.close)
            lock.callback(queue.close)
            failure = None
            if self._config.sync_journal is not None:
                failure = sync_now(queue)
            if failure is not None:
                raise failure

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
