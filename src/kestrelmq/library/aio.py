"""`AsyncPersistentQueue`: a durable queue for the tasks of one event loop.

Short writes of the journal happen on the event loop. Large items are written in a thread, and so is
what is forced to disk; both in rounds, which serve all tasks that wait for them (see `Round`).
Journals are rewritten and packed in another thread. Both threads start when they are first needed
and end with `close`.

An exception that is no refusal, such as a Ctrl-C, may leave the queue half changed. From then on
all operations raise QueueUnavailable, until it is set up again (see `GroupCommit.apply`). A task is
never cancelled within a change.

A task that is cancelled while it waits for an item removes none: until the task has the item, it is
an open read.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.config import QueueConfig
from kestrelmq.errors import JournalError, KestrelError, NotSynced, QueueUnavailable
from kestrelmq.forks import UserProcess
from kestrelmq.format.records import Item as QueueItem
from kestrelmq.library.access import UPKEEP_PERIOD
from kestrelmq.library.items import Item, longest_wait
from kestrelmq.library.opening import check_queue, open_queue
from kestrelmq.library.operations import AsyncHeldItem, QueueOperations
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.browsing import Look
from kestrelmq.scheduling.durability import (
    Committable,
    GroupCommit,
    Round,
    failures_of,
    nothing,
    sync_now,
)
from kestrelmq.scheduling.worker import InlineWorker, ThreadWorker, Worker

# ruff: noqa: ASYNC109 # a time-out of a wait is an answer here, not an error

T = TypeVar("T")
_ServedFuture = asyncio.Future[tuple[QueueItem | None, int]]
_Delivery = tuple[_ServedFuture, QueueItem | None, int]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _PendingRounds:
    """What waits for rounds.

    Attributes:
        on_disk: done when the rounds are over; has a JournalError if one failed.
        served: items for waiting tasks, which get them then.
    """

    on_disk: asyncio.Future[None]
    served: list[_Delivery]


class AsyncPersistentQueue(QueueOperations):
    """A single durable queue: `async with AsyncPersistentQueue("work", path) as queue`.

    The methods do the same as those of `PersistentQueue` and raise the same errors. They belong to
    one event loop and must not be called from another thread.
    """

    def __init__(
        self,
        name: str,
        path: str | Path,
        config: QueueConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the queue; nothing is opened before `setup`. See `PersistentQueue`."""
        self._config = config or QueueConfig()
        check_queue(name, self._config)
        super().__init__(name, clock or SystemClock())
        self._path = Path(path)
        self._commits = GroupCommit()
        self._opened: Queue | None = None
        self._process = UserProcess()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: ExitStack | None = None
        self._served: list[_Delivery] = []
        self._waiting: set[_ServedFuture] = set()
        self._syncs = self._commits.syncs
        self._sync_worker: Worker = InlineWorker()
        self._pending: dict[frozenset[Round], _PendingRounds] = {}
        self._periodic: asyncio.Task[None] | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._upkeep_timer: asyncio.TimerHandle | None = None

    # --- start and stop ---

    async def setup(self) -> None:
        """Load the queue, as `PersistentQueue.setup` does."""
        if self._opened is not None:
            return
        self._loop = asyncio.get_running_loop()
        commits = self._commits = GroupCommit(isolates_faults=False)
        call = _call_in(self._loop, partial(self._report, commits))
        commits.worker = ThreadWorker(call)
        self._syncs = commits.syncs
        self._sync_worker = commits.writer = ThreadWorker(call, "fsync", in_background=False)
        commits.on_written = self._go_on
        commits.on_fault = self._give_up
        queue, self._lock = open_queue(self._name, self._path, self._config, self._clock, commits)
        try:
            self._schedule_check(queue)
            self._schedule_upkeep(queue)
            if (period := self._config.sync_journal) is not None and period > 0:
                self._periodic = asyncio.create_task(self._sync_periodically(period))
        except BaseException:  # also a Ctrl-C
            self._stop_timers()
            with self._lock:
                queue.close()
            raise
        self._opened = queue
        self._process.begin()

    @property
    def is_closed(self) -> bool:
        """Whether the queue cannot be used because it was closed or is not set up yet."""
        return self._opened is None

    async def close(self) -> None:
        """Close the queue, as `PersistentQueue.close` does.

        A task that is cancelled meanwhile waits for its end.
        """
        if self._opened is None or self._process.is_another:
            return
        self._check_loop()
        queue, self._opened = self._opened, None
        self._process.end()
        self._stop_timers()
        await _to_its_end(self._shut(queue))

    def _stop_timers(self) -> None:
        for timer in (self._deadline_timer, self._upkeep_timer, self._periodic):
            if timer is not None:
                timer.cancel()
        self._deadline_timer = self._upkeep_timer = self._periodic = None

    async def _shut(self, queue: Queue) -> None:
        try:
            if self._commits.fault is None:
                self._commits.finish_writing()
            if self._config.sync_journal is None:
                return
            if self._commits.fault is not None:
                if (failure := sync_now(queue)) is not None:
                    raise failure
            else:
                # This is the last round. When it has ended, all rounds that tasks wait for have.
                await self._sync({queue})
        finally:
            assert self._lock is not None  # noqa: S101 # it is open
            end = partial(_end_threads, self._sync_worker, self._commits.worker, self._lock)
            try:
                queue.close()
                _deliver(self._take_served(), None)
            finally:
                try:
                    await asyncio.to_thread(end)
                except RuntimeError:  # the system has no room for a thread; it may run `end` later
                    end()

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def reserve(
        self, timeout: float | None = 0.0
    ) -> AbstractAsyncContextManager[AsyncHeldItem | None]:
        """Hold an item during an `async with` block, as `PersistentQueue.reserve` does."""
        return self._holding(timeout, AsyncHeldItem)

    # --- waiting ---

    async def _take(self, mode: ReadMode) -> Item | None:
        queue = self._queue()
        (record, xid), syncing = self._apply(queue, lambda _: queue.line.take_as(mode))
        await self._hand_over(queue, mode, xid, syncing)
        return None if record is None else Item.of(record, xid)

    async def _hand_over(
        self, queue: Queue, mode: ReadMode, xid: int, syncing: asyncio.Future[None] | None
    ) -> None:
        """Wait for the sync of a read, if any, without losing the item if the task is cancelled.

        On cancellation an open read is given back. A removal cannot be undone: the task gets its
        item first, and is cancelled when it next waits. If this was all that it had to do, the item
        is its result. It also gets it if the sync fails: nobody else would.
        """
        if syncing is None:
            return
        task = asyncio.current_task()
        try:
            with suppress(NotSynced):
                await asyncio.shield(syncing)
        except asyncio.CancelledError:
            if mode is ReadMode.OPEN:
                self._give_back(queue, xid)
            if mode is not ReadMode.REMOVE or task is None or syncing.cancelled():
                raise
            while not syncing.done():
                with suppress(asyncio.CancelledError, NotSynced):
                    await asyncio.shield(syncing)
            # Not at once: a task that ends with a cancellation pending loses its result.
            asyncio.get_running_loop().call_soon(_cancel_again, task, task.cancelling())

    async def _wait(self, mode: ReadMode, timeout: float | None) -> Item | None:
        longest = longest_wait(timeout)
        item = await self._take(mode)
        if item is not None or (longest is not None and longest <= 0):
            return item
        queue = self._queue()
        served: _ServedFuture = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            ReadMode.PEEK if mode is ReadMode.PEEK else ReadMode.OPEN,
            lambda record, xid: self._served.append((served, record, xid)),
            lambda error: _fail(served, error),
        )

        def begin(queue: Queue) -> None:
            queue.waiters.add(waiter)
            self._waiting.add(served)

        self._apply(queue, begin)
        try:
            await asyncio.wait([served], timeout=longest)
            if not served.done() and queue.waiters.cancel(waiter):
                return None
            record, xid = await asyncio.shield(served)
        except BaseException:
            if not queue.waiters.cancel(waiter):
                served.add_done_callback(lambda _: self._give_back_served(queue, served))
            raise
        finally:
            self._waiting.discard(served)
        if record is None:
            raise QueueUnavailable(f"queue {self._name} was closed")
        if mode is ReadMode.REMOVE:
            _, syncing = self._apply(queue, lambda _: queue.reads.confirm(xid))
            await self._hand_over(queue, mode, xid, syncing)
            xid = 0
        return Item.of(record, xid)

    def _give_back_served(self, queue: Queue, served: _ServedFuture) -> None:
        """Give back the item that a cancelled task was served with, if any."""
        if served.exception() is None:
            self._give_back(queue, served.result()[1])

    def _give_back(self, queue: Queue, xid: int) -> None:
        if self._opened is not queue or self._commits.fault is not None:
            return
        try:
            self._apply(queue, lambda _: queue.returns.give_back([xid]))
        except KestrelError:
            log.exception("queue %s: an item was not given back; that is tried again", self._name)

    # --- changes, and when they are durable ---

    def _queue(self) -> Queue:
        if self._opened is None:
            raise QueueUnavailable(f"queue {self._name} is not set up, or was closed")
        self._process.check()
        self._commits.check_whole()
        return self._opened

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise QueueUnavailable(f"queue {self._name} belongs to another event loop")

    def _measure(self, what: Callable[[Queue], int]) -> int:
        return what(self._queue())

    async def _next(self, steps: Generator[T, None, None]) -> T | None:
        return self._apply(self._queue(), lambda _: next(steps, None))[0]

    async def _read(self, look: Look) -> list[QueueItem]:
        with closing(look.views()) as views:
            for view in views:
                if view.is_on_disk:  # it must not be closed before the thread has ended
                    await _to_its_end(asyncio.to_thread(view.load))
                else:
                    view.load()
        return look.records

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    async def _change(
        self,
        operation: Callable[[Queue], T],
        *,
        creates: bool = True,  # noqa: ARG002 # it exists
    ) -> T:
        result, syncing = self._apply(self._queue(), operation)
        if syncing is not None:
            # Other tasks may wait for the same sync, so it continues if this task is cancelled.
            await asyncio.shield(syncing)
        return result

    def _apply(
        self, queue: Queue, operation: Callable[[Queue], T]
    ) -> tuple[T, asyncio.Future[None] | None]:
        """Apply `operation` and write its records.

        Return its result, and the sync to wait for, or None if there is none.
        """
        self._check_loop()
        syncing: asyncio.Future[None] | None = None
        failure: JournalError | None = None

        def finish() -> None:
            nonlocal syncing, failure
            failures = self._commits.commit()
            failure = failures.get(queue)
            if rounds := self._commits.take_rounds():
                syncing = self._wait_for(frozenset(rounds.values()))
            else:
                _deliver(self._take_served(), failures.get(queue))
            self._schedule_upkeep(queue)
            # After a failure, upkeep gives back what nobody holds: this would try at once.
            if failure is None:
                self._schedule_check(queue)

        result = self._commits.apply(lambda: operation(queue), finish)
        if failure is not None:
            raise failure
        return result, syncing

    def _give_up(self) -> None:
        """After a fault nothing goes on, and nobody waits on."""
        self._stop_timers()
        self._served = []
        failure = QueueUnavailable(f"a change of queue {self._name} was left half-way")
        waiting: list[asyncio.Future[Any]] = []
        while self._pending:
            _, pending = self._pending.popitem()
            _deliver(pending.served, None)
            waiting.append(pending.on_disk)
        for future in (*waiting, *self._waiting):
            _resolve(future, None, failure)

    def _report(self, commits: GroupCommit, report: Callable[[], None]) -> None:
        """Process what a thread reports, or go on with syncs."""
        if commits.fault is None:  # it would write what is half changed
            commits.apply(report, nothing)

    def _take_served(self) -> list[_Delivery]:
        served, self._served = self._served, []
        return served

    def _sync(self, queues: set[Committable]) -> asyncio.Future[None]:
        """Request a sync of the queue; as `_wait_for`."""
        covering = self._syncs.request(queues)
        assert covering is not None  # noqa: S101 # it covers the queues
        return self._wait_for(frozenset((covering,)))

    def _wait_for(self, rounds: frozenset[Round]) -> asyncio.Future[None]:
        """Return a future that is done when rounds are over.

        It has a JournalError if one failed. A round of syncs begins only after the tasks that are
        ready have run, because they may have something to sync, too.
        """
        loop = asyncio.get_running_loop()
        pending = self._pending.get(rounds)
        if pending is None:
            pending = self._pending[rounds] = _PendingRounds(loop.create_future(), [])
            loop.call_soon(self._report, self._commits, self._begin_round)
        pending.served.extend(self._take_served())
        return pending.on_disk

    def _begin_round(self) -> None:
        begun = self._syncs.begin()
        if begun is not None:
            self._sync_worker.run(begun.run, self._end_round)

    def _end_round(self, error: BaseException | None) -> None:
        self._syncs.end(error)
        self._go_on()

    def _go_on(self) -> None:
        """Tell those whose rounds are over, and begin the next round of syncs."""
        failed = False
        for rounds, pending in list(self._pending.items()):
            if not all(one.is_over for one in rounds):
                continue
            del self._pending[rounds]
            failure = next(iter(failures_of(rounds).values()), None)
            failed |= failure is not None
            # If they are not synced, they get them: nobody else would.
            _deliver(pending.served, None if isinstance(failure, NotSynced) else failure)
            _resolve(pending.on_disk, None, failure)
        if failed and self._opened is not None:
            self._schedule_upkeep(self._opened)  # the journal has to be rewritten
        self._begin_round()

    async def _sync_periodically(self, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            # Sync everything written since the last time, without checking whether it is due.
            await self._commits.apply(self._sync_due, nothing)

    def _sync_due(self) -> Awaitable[object]:
        due = self._syncs.take_due(math.inf)
        return asyncio.wait([self._sync(due)]) if due else asyncio.sleep(0)

    def _schedule_check(self, queue: Queue) -> None:
        """Schedule the next overdue read to be given back in time, and the next delayed item."""
        due = queue.next_deadline
        if due is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, due - self._clock.monotonic())
        timer = self._deadline_timer
        if timer is not None and not timer.cancelled():
            if timer.when() <= at:
                return
            timer.cancel()
        self._deadline_timer = loop.call_at(at, self._check_deadlines, queue)

    def _check_deadlines(self, queue: Queue) -> None:
        self._deadline_timer = None
        try:
            self._apply(queue, lambda _: queue.check_deadlines())
        except Exception:
            log.exception("queue %s: what is due could not be done", self._name)
            if self._commits.fault is None:
                self._schedule_check(queue)

    def _schedule_upkeep(self, queue: Queue) -> None:
        """Schedule upkeep in about a second, if the queue has anything that depends on time."""
        if self._upkeep_timer is None and queue.has_background_work:
            loop = asyncio.get_running_loop()
            self._upkeep_timer = loop.call_later(UPKEEP_PERIOD, self._do_upkeep, queue)

    def _do_upkeep(self, queue: Queue) -> None:
        self._upkeep_timer = None
        for work in (Queue.sweep, Queue.tick):
            try:
                self._apply(queue, work)
            except KestrelError as error:
                log.error("queue %s: %s", self._name, error)  # noqa: TRY400
            except Exception:
                log.exception("queue %s: upkeep failed", self._name)
                return
        self._schedule_upkeep(queue)


def _end_threads(sync_worker: Worker, worker: Worker, lock: ExitStack) -> None:
    """End the threads, then release the lock: they may still be writing the queue's files."""
    try:
        sync_worker.close()
        worker.close()
    finally:
        lock.close()


def _call_in(
    loop: asyncio.AbstractEventLoop, process: Callable[[Callable[[], None]], None]
) -> Callable[[Callable[[], None]], None]:
    """Return a function that, from any thread, has `loop` process what it is given."""

    def call(function: Callable[[], None]) -> None:
        # The event loop may have been closed before the queue was.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(process, function)

    return call


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do `work`; a task that is cancelled meanwhile waits for its end."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        _ = doing.cancelled() or doing.exception()  # mark it as retrieved
        raise


def _cancel_again(task: asyncio.Task[Any], requests: int) -> None:
    """Cancel a task that put its cancellation off, unless a time-out has ended its block since."""
    if task.cancelling() >= requests:
        task.uncancel()
        task.cancel()


def _fail(future: asyncio.Future[Any], error: KestrelError) -> None:
    future.set_exception(error)
    future.exception()  # mark it as retrieved: a cancelled task never does


def _deliver(served: list[_Delivery], failure: JournalError | None) -> None:
    """Give waiting tasks the items they were served with, or the failure that undid it."""
    for future, record, xid in served:
        _resolve(future, (record, xid), failure)


def _resolve(future: asyncio.Future[T], result: T, failure: KestrelError | None) -> None:
    if future.done():  # the queue was given up
        return
    if failure is None:
        future.set_result(result)
    else:
        _fail(future, failure)
