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
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.browsing import Tour
from kestrelmq.engine.durability import GroupCommit, sync_now
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import ReadMode
from kestrelmq.engine.worker import ThreadWorker
from kestrelmq.errors import JournalError, KestrelError, NotSynced, QueueUnavailable
from kestrelmq.library.access import UPKEEP_PERIOD, QueueAccess, QueueTickers, Ticker, WaitingThread
from kestrelmq.library.items import (
    Delay,
    Expiry,
    FoundItems,
    Held,
    Item,
    adding,
    alone,
    check_held,
    confirming,
    exported,
    extending,
    finishing,
    found_page,
    importing,
    longest_wait,
    looking,
    releasing,
    reserving,
    retiring,
    searching,
    turns,
)
from kestrelmq.library.opening import check_queue, open_queue

T = TypeVar("T")
U = TypeVar("U")

log = logging.getLogger(__name__)


class BlockingQueue(ABC):
    """The operations of a queue. Every method may be called from several threads at once.

    Every method may raise these errors:

    - QueueUnavailable: the queue is not set up or was closed, or its items cannot be read.
    - JournalError: the journal could not be written, and nothing was changed. If it was an fsync
      (`sync_journal`) that failed, the change is made but may not survive a crash of the machine.
    """

    def __init__(self, name: str, access: QueueAccess, clock: Clock) -> None:
        self._name = name
        self._access = access
        self._clock = clock

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @abstractmethod
    def _queue(self) -> Queue:
        """Return the queue; called with the lock held. Raises QueueUnavailable."""

    @abstractmethod
    def _start_upkeep(self) -> None:
        """Start the upkeep that depends on time; called with the lock held."""

    def _existing(self) -> Queue | None:
        """Return the queue if it exists; called with the lock held. Raises as `_queue`."""
        return self._queue()

    def _change(
        self,
        operation: Callable[[Queue], T],
        *,
        written: Callable[[Queue], Iterable[Queue]] = alone,
        reads: bool = False,
    ) -> T:
        """Apply an operation.

        Args:
            operation: what is done to the queue.
            written: tells on whose journals the result depends.
            reads: whether it reads an item, which nobody would get if a failed sync were an error.
        """

        def apply() -> tuple[Queue, T]:
            queue = self._queue()
            return queue, self._applied(queue, operation)

        (queue, result), failures = self._access.change(apply)
        for one in written(queue):
            failure = failures.get(one)
            if failure is not None and not (reads and isinstance(failure, NotSynced)):
                raise failure
        return result

    def _ask(self, operation: Callable[[Queue], T], absent: U) -> T | U:
        """Apply an operation that does not create the queue; return `absent` if there is none."""

        def apply() -> tuple[Queue | None, T | U]:
            queue = self._existing()
            return queue, absent if queue is None else self._applied(queue, operation)

        (queue, result), failures = self._access.change(apply)
        if queue is not None and queue in failures:
            raise failures[queue]
        return result

    def _applied(self, queue: Queue, operation: Callable[[Queue], T]) -> T:
        """Do an operation, and what is due before and afterwards; called with the lock held."""
        queue.check_deadlines()
        try:
            return operation(queue)
        finally:
            if queue.has_background_work:
                self._start_upkeep()

    def add(
        self,
        data: bytes | str,
        expiry: Expiry = None,
        *,
        delay: Delay = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> bool:
        """Add an item at the end; False if it was refused: the queue is full or the item too large.

        Args:
            data: the data of the item; it may be empty. Text is encoded as UTF-8.
            expiry: seconds from now, a `timedelta`, a `datetime` with a time zone, or None for
                never. Seconds count from when the item is due.
            delay: when the item is due, that is, when it is put at the end; likewise. None is now.
                A thread that waits may get it up to a second late.
            producer: whose item it is, if the add may be repeated: it is stored only if its number
                is above that of the producer's last item, and True is returned in any case.
            sequence: that number.
        """
        add, written = adding(data, expiry, delay, producer, sequence, self._clock.now())
        return self._change(add, written=written)

    def peek(self) -> Item | None:
        """Return the item at the head without removing it; None if the queue is empty."""
        return self._take(ReadMode.PEEK)

    def remove(self, *, transaction: bool = False) -> Item | None:
        """Remove the item at the head; None if the queue is empty.

        With `transaction`, open a read instead: the item is kept until `confirm_remove` confirms
        it. It goes back to the head with `unremove`, after the `open_transaction_timeout`, or when
        the queue is set up again.
        """
        return self._take(ReadMode.OPEN if transaction else ReadMode.REMOVE)

    def _take(self, mode: ReadMode) -> Item | None:
        record, xid = self._change(lambda queue: queue.take_as(mode), reads=True)
        return None if record is None else Item.of(record, xid)

    def unremove(self, xid: int) -> bool:
        """Give the open read `xid` back to the head; False if it is not open."""
        return self._ask(lambda queue: queue.unremove(xid), absent=False)

    def confirm_remove(self, xid: int) -> bool:
        """Confirm the open read `xid`; False if it is not open."""
        return self._ask(confirming(xid), absent=False)

    def release(
        self, xid: int, delay: float | None = None, *, counted: bool = True, dead: bool = False
    ) -> bool:
        """Give the open read `xid` back; False if it is not open.

        Args:
            xid: the open read.
            delay: seconds until the item may be read again; None for `retry_delay`.
            counted: whether this was a delivery, of those that `max_deliveries` counts.
            dead: whether the item goes to the dead-letter queue at once.

        Raises:
            ValueError: the delay is no number of seconds from 0 on, or
                there is no dead-letter queue.
        """
        return self._ask(releasing(xid, delay, counted=counted, dead=dead), absent=False)

    def extend(self, xid: int, seconds: float) -> bool:
        """Give the open read `xid` back only `seconds` from now; False if it is not open.

        Without `open_transaction_timeout`, and until this is called, a read is open until it ends.

        Raises:
            ValueError: `seconds` is no number of seconds from 0 on.
        """
        return self._ask(extending(xid, seconds), absent=False)

    @contextmanager
    def reserve(self, timeout: float | None = 0.0) -> Iterator[HeldItem | None]:
        """Hold an item during a `with` block; it is None if none came within `timeout` seconds.

        The item is confirmed when the block ends, and goes back to the head when it raises. When
        the program ends, it is back after the next `setup`.

        Raises:
            LeaseEnded: at the end of the block. The item was given back before
                (`open_transaction_timeout`), or its queue was deleted.
        """
        item = self.wait_remove(timeout, transaction=True)
        if item is None:
            yield None
            return
        held = HeldItem(item, partial(self._ask, absent=False))
        try:
            yield held
        except BaseException:
            if not held.is_over:
                with suppress(KestrelError):
                    held.release()
            raise
        if not held.is_over:
            held.finish()

    def consume(
        self, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> Generator[Item, None, None]:
        """Iterate over items; each is confirmed when the next is requested.

        An item goes back to the head if the loop ends before that. To have the last one confirmed,
        end the loop by `max_items`, or by `idle_timeout`: no item came for that many seconds.
        Without either, it never ends.
        """
        for _ in turns(max_items):
            with self.reserve(idle_timeout) as held:
                if held is None:
                    return
                yield held.item

    def reserve_many(
        self, count: int, lease: float, timeout: float | None = 0.0, *, tag: str = ""
    ) -> list[Item] | None:
        """Reserve up to `count` items for `lease` seconds, with the xids of their open reads.

        They stay reserved when the program ends: after the next `setup` each lease begins anew. A
        read ends by `confirm_remove`, by `release` or `unremove`, or when its lease does; `extend`
        lets that end later.

        With a `tag`, `NAME:EPOCH:PART`, the step can be repeated, also by the next run of the
        program: while the tag is open, the same items are returned again, with a new lease.
        `finish` ends it.

        Args:
            count: the most items, up to 1000; beyond about 16 MiB it returns fewer.
            lease: how many seconds they are reserved for.
            timeout: how many seconds to wait for an item; None is for as long as it takes.
            tag: the step that they belong to.

        Returns:
            The items that are there, at least one unless none came; None if the tag is done.

        Raises:
            ValueError: the count or the lease is out of range.
            TagRefused: this is no tag, or its epoch was retired.
        """
        reserve = reserving(count, lease, tag)
        longest = longest_wait(timeout)
        deadline = None if longest is None else time.monotonic() + longest
        while True:
            found = self._change(reserve)
            remaining = None if deadline is None else deadline - time.monotonic()
            if found != [] or (remaining is not None and remaining <= 0):
                return found
            self.wait_peek(remaining)

    def finish(self, tag: str) -> int:
        """Confirm the items of a tag, which is done then; return how many, also when repeated.

        Raises:
            TagRefused: this is no tag, or its epoch was retired.
        """
        return self._ask(finishing(tag), absent=0)

    def retire(self, name: str, epoch: int) -> int:
        """Forget the tags of `name` up to an epoch, and refuse them from now on; return how many.

        The items of those that are open go back.

        Raises:
            TagRefused: no tag can have this name or epoch.
        """
        return self._change(retiring(name, epoch))

    def wait_remove(
        self, timeout: float | None = None, *, transaction: bool = False
    ) -> Item | None:
        """Do as `remove`, but wait for an item; None if none came within `timeout` seconds.

        Threads are served in the order in which they began to wait. With a `timeout` of None the
        wait is unlimited; if the queue is closed meanwhile, it ends with QueueUnavailable.
        """
        return self._wait(ReadMode.OPEN if transaction else ReadMode.REMOVE, timeout)

    def wait_peek(self, timeout: float | None = None) -> Item | None:
        """Do as `peek`, but wait for an item; see `wait_remove`."""
        return self._wait(ReadMode.PEEK, timeout)

    def _wait(self, mode: ReadMode, timeout: float | None) -> Item | None:
        longest = longest_wait(timeout)
        deadline = None if longest is None else time.monotonic() + longest

        def begin(queue: Queue) -> Item | WaitingThread:
            record, xid = queue.take_as(mode)
            if record is not None:
                return Item.of(record, xid)
            waiting = WaitingThread(self._access, queue, mode)
            queue.wait(waiting.waiter)
            return waiting

        begun = self._change(begin, reads=True)
        if isinstance(begun, Item):
            return begun
        failure: KestrelError | None = None
        try:
            while not begun.woken.wait(self._longest_sleep(begun.queue, deadline)):
                if deadline is not None and time.monotonic() >= deadline:
                    break
                self._change(lambda _: None)  # gives back overdue reads, perhaps to this thread
        except KestrelError as error:  # such as: it was closed, perhaps just after an item came
            failure = error
        except BaseException:
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
        return self._access.change(lambda: waiting.queue.cancel_wait(waiting.waiter))[0]

    def _give_back(self, waiting: WaitingThread) -> None:
        """Give back the item of a thread that a signal interrupted just as it was served."""
        with suppress(KestrelError):
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

    def browse(self, offset: int = 0, count: int = 100) -> list[Item]:
        """Return up to `count` items from `offset` on, which stay in the queue; 0 is the head.

        They are the waiting items, in memory or on disk, the expired ones too until they are
        dropped. What is read or added meanwhile may move them by some places.

        Raises:
            ValueError: a number is below 0.
        """
        look = self._ask(looking(offset, count), absent=None)
        return [] if look is None else [Item.of(record, 0) for record in self._access.read(look)]

    def search(
        self,
        text: str | bytes | None = None,
        *,
        pattern: str | bytes | None = None,
        offset: int = 0,
        count: int = 100,
    ) -> FoundItems:
        """Return up to `count` items from `offset` on that have `text`, or a match of `pattern`.

        They stay in the queue. One search looks at 10,000 items, or about 16 MiB, so go on from its
        `next_offset`, even if it found nothing, until that is None. A pattern is a regular
        expression on bytes, which a process of its own evaluates, for 5 seconds at most.

        Raises:
            ValueError: not exactly one of the two is given, or a number is below 0.
            PatternRefused: the pattern is no regular expression, or takes too long.
        """
        search, begin = searching(text, pattern, offset, count)
        look = self._ask(begin, absent=None)
        if look is None:
            return FoundItems([], None)
        self._access.read(look)
        return found_page(search, look, offset, count)

    def export(self) -> Generator[str, None, None]:
        """Iterate over the waiting items as lines of JSON, which `import_items` takes.

        They stay in the queue. What is read meanwhile may make it leave out or repeat some items.
        """
        looks = self._ask(lambda queue: Tour(queue).looks(), absent=None)
        if looks is None:
            return
        place = 0
        try:
            while (look := self._access.change(lambda: next(looks, None))[0]) is not None:
                records = self._access.read(look)
                yield from exported(self._name, place, records)
                place += len(records)
        finally:
            looks.close()

    def import_items(self, lines: Iterable[str | bytes]) -> int:
        """Add the items of lines of JSON, as `export` returns them; return how many.

        They keep their expiry, but not the time when they were added. Those that have expired are
        left out; those that are not due are delayed.

        Raises:
            ImportStopped: a line is wrong, or an item was refused; those before it are added.
        """
        with importing(self._name, lines, self._clock.now) as found:
            for add, written in found:
                found.count(stored=self._change(add, written=written))
        return found.added

    def flush(self) -> int:
        """Drop all waiting items, but not those of open reads; return how many there were."""
        return self._ask(lambda queue: queue.flush(), absent=0)

    def __len__(self) -> int:
        """Number of waiting items, without those of open reads."""
        return self._ask(len, absent=0)

    def __bool__(self) -> bool:
        """Return True, even if the queue is empty."""
        return True

    @property
    def bytes(self) -> int:
        """Bytes of data in the waiting items."""
        return self._ask(lambda queue: queue.size, absent=0)

    @property
    def journal_size(self) -> int:
        """Size of the journal's files in bytes; 0 without a journal."""
        return self._ask(lambda queue: queue.journal.size, absent=0)


class HeldItem(Held):
    """An item that `reserve` holds during its block."""

    def __init__(self, item: Item, ask: Callable[[Callable[[Queue], bool]], bool]) -> None:
        """Hold `item`; `ask` changes its queue, and returns the result."""
        super().__init__(item)
        self._ask = ask

    def finish(self) -> None:
        """Confirm the item now; an error later in the block does not bring it back.

        Raises:
            LeaseEnded: it was given back before, or its queue deleted.
        """
        self._end()
        check_held(ended=self._ask(self._if_open(confirming(self.item.xid))))

    def release(
        self, delay: float | None = None, *, counted: bool = True, dead: bool = False
    ) -> None:
        """Give the item back now, as `BlockingQueue.release` does. Raises as `finish`."""
        self._end()
        release = releasing(self.item.xid, delay, counted=counted, dead=dead)
        check_held(ended=self._ask(self._if_open(release)))

    def extend(self, seconds: float) -> bool:
        """Give the item back only `seconds` from now; False if it is not held any more."""
        return not self.is_over and self._ask(self._if_open(extending(self.item.xid, seconds)))


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
        self._commits = GroupCommit()
        super().__init__(name, QueueAccess(self._commits), clock or SystemClock())
        self._path = Path(path)
        self._opened: Queue | None = None
        self._lock: ExitStack | None = None
        self._commits.worker = ThreadWorker(self._access.report)
        self._tickers = QueueTickers(self._access)

    def setup(self) -> None:
        """Load the queue; items of reads that were open when it was last used are at the head.

        Raises:
            QueuePathLocked: a server uses the path, or another object uses the queue.
            DamagedJournal: a file has bytes that are not a record.
            QueueUnavailable: the system has no room for a thread that is needed.
            OSError: a file could not be created or read.
        """
        self._access.change(self._open)

    def _open(self) -> None:
        if self._opened is not None:
            return
        self._opened, self._lock = open_queue(
            self.name, self._path, self._config, self._clock, self._commits
        )
        self._access.process.begin()
        try:
            self._tickers.begin(
                self._do_upkeep, UPKEEP_PERIOD, self._config.sync_journal, f"-{self.name}"
            )
        except QueueUnavailable:
            self._shut()
            raise
        if self._opened.has_background_work:
            self._start_upkeep()

    def _queue(self) -> Queue:
        if self._opened is None:
            raise QueueUnavailable(f"queue {self.name} is not set up, or was closed")
        return self._opened

    def _start_upkeep(self) -> None:
        self._tickers.start_upkeep()

    def _do_upkeep(self) -> None:
        """Do the upkeep that depends on time."""
        for work in (Queue.sweep, Queue.tick):
            try:
                self._change(work)
            except KestrelError as error:
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
        (tickers, failure), _ = self._access.change(self._shut)
        for ticker in tickers:
            ticker.stop()
        if failure is not None:
            raise failure

    def _shut(self) -> tuple[list[Ticker], JournalError | None]:
        queue, self._opened = self._opened, None
        self._access.process.end()
        tickers = self._tickers.end()
        failure = None
        if queue is None:
            return tickers, failure
        if self._config.sync_journal is not None:
            failure = sync_now(*queue.with_companion)
        queue.close()
        self._commits.worker.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        return tickers, failure

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
