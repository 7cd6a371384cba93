"""`PersistentQueue`: a durable queue for the threads of one process.

Every method may be called from any thread. What a method returned from is in the journal; a crash
may leave a record cut short behind it, which the next `setup` sets aside. Nothing runs in the
background, except that a `sync_journal` period has a thread.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.commits import Commits
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Wanted
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.library.gate import Gate, Waiting
from kestrelmq.library.items import Expiry, Item, expiry_time
from kestrelmq.library.opening import QueueLock, check_queue, open_queue
from kestrelmq.library.syncing import Ticker

T = TypeVar("T")


class BlockingQueue(ABC):
    """What can be done with a queue; every method is safe to call from several threads.

    Every method raises QueueUnavailable when the queue is not set up or was closed, or when its
    items cannot be read, and JournalError when the journal could not be written; then nothing was
    changed. Where an fsync was asked for (`sync_journal`) and failed, JournalError is raised too,
    and the change may or may not outlive the machine.
    """

    def __init__(self, name: str, gate: Gate, clock: Clock) -> None:
        self._name = name
        self._gate = gate
        self._clock = clock

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @abstractmethod
    def _queue(self) -> Queue:
        """Return the queue; the gate's lock is held. Raises QueueUnavailable."""

    def _change(self, operation: Callable[[Queue], T]) -> T:
        def apply() -> tuple[Queue, T]:
            queue = self._queue()
            queue.abort_overdue()
            return queue, operation(queue)

        (queue, result), failures = self._gate.change(apply)
        if queue in failures:
            raise failures[queue]
        return result

    def add(self, data: bytes, expiry: Expiry = None) -> bool:
        """Add an item at the end; False when it was refused: the queue is full, it is too large.

        Args:
            data: the item; empty is fine.
            expiry: seconds from now, or a `datetime` with a time zone; None is never.
        """
        due = expiry_time(expiry, self._clock.now())
        return self._change(lambda queue: queue.add(data, due))

    def peek(self) -> Item | None:
        """Return the item at the head and leave it there; None when the queue is empty."""
        return self._take(Wanted.PEEK)

    def remove(self, *, transaction: bool = False) -> Item | None:
        """Take the item at the head; None when the queue is empty.

        With `transaction` the item is set aside until `confirm_remove` finishes it, `unremove`
        gives it back, its `open_transaction_timeout` passes, or the queue is set up again.
        """
        return self._take(Wanted.OPEN if transaction else Wanted.REMOVE)

    def _take(self, wanted: Wanted) -> Item | None:
        record, xid = self._change(lambda queue: queue.take_as(wanted))
        return None if record is None else Item.of(record, xid)

    def unremove(self, xid: int) -> bool:
        """Give the open read `xid` back to the head; False when it is not open."""
        return self._change(lambda queue: queue.unremove(xid))

    def confirm_remove(self, xid: int) -> bool:
        """Finish the open read `xid`; False when it is not open."""
        return self._change(lambda queue: queue.confirm(xid))

    def wait_remove(
        self, timeout: float | None = None, *, transaction: bool = False
    ) -> Item | None:
        """As `remove`, but wait for an item; None when none came in `timeout` seconds.

        Those who wait are served in the order in which they began. A `timeout` of None waits for
        as long as it takes; QueueUnavailable ends the wait when the queue is closed.
        """
        return self._wait(Wanted.OPEN if transaction else Wanted.REMOVE, timeout)

    def wait_peek(self, timeout: float | None = None) -> Item | None:
        """As `peek`, but wait for an item; see `wait_remove`."""
        return self._wait(Wanted.PEEK, timeout)

    def _wait(self, wanted: Wanted, timeout: float | None) -> Item | None:
        deadline = None if timeout is None else time.monotonic() + timeout

        def begin(queue: Queue) -> Item | Waiting:
            record, xid = queue.take_as(wanted)
            if record is not None:
                return Item.of(record, xid)
            waiting = Waiting(self._gate, queue, wanted)
            queue.wait(waiting.waiter)
            return waiting

        begun = self._change(begin)
        if isinstance(begun, Item):
            return begun
        try:
            while not begun.settled.wait(self._nap(begun.queue, deadline)):
                if deadline is not None and time.monotonic() >= deadline:
                    break
                self._change(lambda _: None)  # overdue reads come back, perhaps to this thread
        finally:
            waits_still, _ = self._gate.change(lambda: begun.queue.waiters.cancel(begun.waiter))
        return None if waits_still else begun.item()

    @staticmethod
    def _nap(queue: Queue, deadline: float | None) -> float | None:
        """Return for how many seconds nothing can happen that nobody wakes a waiting thread for."""
        now = time.monotonic()
        ends = [] if deadline is None else [deadline - now]
        if queue.next_deadline is not None:
            ends.append(queue.next_deadline - now)
        if queue.config.open_transaction_timeout is not None:
            ends.append(queue.config.open_transaction_timeout)
        return max(0.0, min(ends)) if ends else None

    def flush(self) -> int:
        """Drop every waiting item, not the open ones; return how many there were."""
        return self._change(lambda queue: queue.flush())

    def __len__(self) -> int:
        """Items waiting, without the open ones."""
        return self._change(len)

    def __bool__(self) -> bool:
        """True, also when the queue is empty."""
        return True

    @property
    def bytes(self) -> int:
        """Bytes of data in the items that wait."""
        return self._change(lambda queue: queue.size)

    @property
    def journal_size(self) -> int:
        """Bytes in the journal's files; 0 without a journal."""
        return self._change(lambda queue: queue.journal.size)


class PersistentQueue(BlockingQueue):
    """A durable queue of its own: `with PersistentQueue("work", "/var/spool/app") as queue`.

    Several of one queue path work side by side, in one process or in several; each queue is used
    by one object at a time.
    """

    def __init__(
        self,
        name: str,
        path: str | Path,
        config: QueueConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; nothing is opened before `setup`.

        Args:
            name: the queue's name.
            path: directory of the journals; made if need be.
            config: the queue's settings.
            clock: tells the time; the machine's by default.

        Raises:
            InvalidQueueName: no queue can have that name.
            ConfigError: the settings need other queues; use a `QueueCollection`.
        """
        self._config = config or QueueConfig()
        check_queue(name, self._config)
        self._commits = Commits()
        super().__init__(name, Gate(self._commits), clock or SystemClock())
        self._path = Path(path)
        self._opened: Queue | None = None
        self._lock: QueueLock | None = None
        self._ticker: Ticker | None = None

    def setup(self) -> None:
        """Load the queue; reads that were open when it was last in use are back at the head.

        Raises:
            QueuePathLocked: a server has the path, or somebody else has the queue.
            DamagedJournal: a file has bytes that are no record.
            OSError: a file could not be created or read.
        """
        self._gate.change(self._open)
        period = self._config.sync_journal
        if self._ticker is None and period:
            self._ticker = Ticker(period, self._sync, f"kestrelmq-sync-{self.name}")
            self._ticker.start()

    def _open(self) -> None:
        if self._opened is None:
            self._opened, self._lock = open_queue(
                self.name, self._path, self._config, self._clock, self._commits
            )

    def _queue(self) -> Queue:
        if self._opened is None:
            raise QueueUnavailable(f"queue {self.name} is not set up, or was closed")
        return self._opened

    def _sync(self) -> None:
        queue = self._opened
        if queue is not None:
            try:
                queue.sync()
            except OSError as error:
                queue.sync_failed(error)  # logs it

    @property
    def is_closed(self) -> bool:
        """Whether the queue cannot be used: it was closed, or not set up yet."""
        return self._opened is None

    def close(self) -> None:
        """Stop; those who wait get QueueUnavailable, open reads are back after the next setup.

        Raises:
            JournalError: `sync_journal` is set and the journal could not be forced to disk.
        """
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None
        failure, _ = self._gate.change(self._shut)
        if failure is not None:
            raise failure

    def _shut(self) -> JournalError | None:
        queue, self._opened = self._opened, None
        if queue is None:
            return None
        failure = None
        if self._config.sync_journal is not None:
            try:
                queue.sync()
            except OSError as error:
                failure = queue.sync_failed(error)
        queue.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        return failure

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
