"""`QueueCollection`: all queues of a path, with fanouts, aliases and `expire_to_queue`.

It locks the whole path, as a server does. While it is set up, threads work in the background: one
drops or moves expired items and does other upkeep that depends on time, one syncs journals if
`sync_journal` is a period, and one rewrites and packs journals when needed.
"""

from __future__ import annotations  # nested functions would evaluate theirs in each call

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Self, TypeVar

from kestrelmq.arguments import given_count, given_number, item_bytes
from kestrelmq.clock import Clock, SystemClock, no_pause
from kestrelmq.config import QueueConfig, ServerConfig, validated_config
from kestrelmq.errors import InvalidQueueName, JournalError, QueueUnavailable
from kestrelmq.idempotent_producers import put_mark
from kestrelmq.library.access import UPKEEP_PERIOD, QueueAccess
from kestrelmq.library.blocking import BlockingQueue
from kestrelmq.library.items import Delay, Expiry, item_times
from kestrelmq.library.opening import check_settings, given_name
from kestrelmq.names import queue_name_error
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.browsing import Look
from kestrelmq.queues.collection import QueueCollection as Queues
from kestrelmq.queues.moving import Copy, Move, Moved, Redrive, Step
from kestrelmq.scheduling.durability import GroupCommit, sync_now
from kestrelmq.scheduling.worker import ThreadWorker

T = TypeVar("T")
Work = TypeVar("Work", Move, Copy)


class QueueCollection:
    """The queues of a path: `with QueueCollection("/var/spool/app") as queues`.

    It may be used from several threads. A queue is created when an add or a read first refers to
    it. Methods raise the errors of `PersistentQueue`, InvalidQueueName if a name is not valid, and
    QueueUnavailable if a queue could not be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        default: QueueConfig | None = None,
        queues: Mapping[str, QueueConfig] | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        sweep_period: float | None = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the collection; nothing is opened before `setup`.

        Args:
            path: the queue path; it is created if necessary.
            default: the settings of every queue that does not set its own.
            queues: the settings of single queues; a fanout child (`orders+audit`) inherits those of
                its master.
            aliases: for each alias, the queues that every item added to it goes to.
            sweep_period: seconds between sweeps for expired items; with None, expired items of a
                queue are found only when it is used.
            clock: the source of time; by default the machine's clock.

        Raises:
            ConfigError: a name is not valid, or an alias leads back to itself.
            ValueError: `sweep_period` is not above 0.
        """
        if sweep_period is not None and not given_number(sweep_period, "sweep_period") > 0:
            raise ValueError("sweep_period is a number of seconds above 0, or None")
        self._config = _config(Path(path), default, queues or {}, aliases or {})
        self._clock = clock or SystemClock()
        self._sweep_period = sweep_period
        self._queues = Queues(self._config, self._clock)
        self._access = QueueAccess()
        self._is_open = False

    # --- start and stop ---

    def setup(self) -> None:
        """Lock the path and load every queue in it; `damaged` returns those that cannot be loaded.

        Raises:
            QueuePathLocked: a server or another user of the library uses the path.
            QueueUnavailable: the system has no room for a thread that is needed.
            OSError: the path cannot be created or read.
        """
        self._access.open(self._open)

    def _open(self) -> None:
        if self._is_open:
            return
        self._is_open = True
        period = UPKEEP_PERIOD if self._sweep_period is None else self._sweep_period
        configured = (self._config.default, *self._config.queues.values())
        periods = [config.sync_journal for config in configured if config.sync_journal]
        self._queues = Queues(self._config, self._clock)
        commits = self._queues.commits
        commits.isolates_faults = False
        commits.worker = ThreadWorker(self._access.report)
        try:
            self._queues.open()
            self._access.begin(commits, self._do_upkeep, period, min(periods, default=None))
            if (
                self._sweep_period is not None
                or self._queues.commits.deadlines
                or any(queue.upkeep_waits for queue in self._queues.queues.values())
            ):
                self._access.start_upkeep()
        except BaseException:  # also a Ctrl-C
            self._shut()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether the queues cannot be used because they were closed or are not set up yet."""
        return not self._is_open

    def close(self) -> None:
        """Close every queue and unlock the path; waiting readers get QueueUnavailable.

        In a process that was forked from the one that uses the queues, this does nothing.
        """
        if self._access.process.is_another:
            return
        self._access.end(self._shut)

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            with closing(self._queues):
                sync_now(*self._queues.commits.syncs.take_due(inf))

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- queues ---

    def queue(self, name: str) -> BlockingQueue:
        """Return the queue called `name`; it is created when it is first added to or read from.

        Raises:
            InvalidQueueName: the name is not valid, or it is an alias, which has no items.
        """
        problem = queue_name_error(given_name(name))
        if problem is None and name in self._config.aliases:
            problem = f"{name} is an alias; it can only be added to, by the collection's `add`"
        if problem is not None:
            raise InvalidQueueName(problem)
        return _CollectionQueue(name, self._access, self._clock, self._collection)

    def add(
        self,
        name: str,
        data: bytes | str,
        expiry: Expiry = None,
        *,
        delay: Delay = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> bool:
        """Add an item to a queue and its fanout children, or to every destination of an alias.

        The other parameters are as for `PersistentQueue.add`.

        Returns:
            False if the item was refused; for an alias, if any destination refused it.
        """
        given_name(name)
        item = item_bytes(data)
        expires, due = item_times(expiry, delay, self._clock.now())
        mark = put_mark(producer, sequence)

        def add() -> tuple[bool, list[Queue]]:
            accepted = self._collection().add(name, item, expires, due=due, mark=mark)
            destinations = self._queues.destinations(name)
            if due or any(queue.upkeep_waits for queue in destinations):
                self._access.start_upkeep()
            return accepted, destinations

        (accepted, destinations), failures = self._access.change(add)
        for queue in destinations:
            if queue in failures:
                raise failures[queue]
        return accepted

    def flush(self, name: str) -> int:
        """Drop all waiting items of a queue; return how many; 0 for an alias or unknown name."""
        given_name(name)
        return self._change(lambda queues: queues.flush(name))

    def delete(self, name: str) -> bool:
        """Delete a queue with its items and its journal; False if there is no such queue."""
        given_name(name)
        return self._change(lambda queues: queues.delete(name))

    def declare(self, name: str, settings: QueueConfig) -> None:
        """Create a queue with settings of its own, or give it others; a restart keeps them.

        They stand between what the queue inherits and what `queues` of this collection has for it.
        Deleting the queue forgets them.

        Args:
            name: the queue's name.
            settings: `fanout_only`, `keep_journal`, `max_queue_age`, `max_age` or `max_items`.

        Raises:
            ConfigError: others are given; or the queue exists, and `keep_journal` is not as it is.
            JournalError: it is done, but could not be saved, and is undone by a restart.
        """
        given_name(name)
        check_settings(settings)
        self._saved(lambda queues: queues.declare(name, settings))

    def pause(self, name: str, operations: str = "all") -> bool:
        """Pause `reads`, `writes` or `all` of a queue until `resume`; False if there is none.

        Readers find a queue whose reads are paused empty, or wait; adding to one whose writes are
        paused raises QueueUnavailable; open reads can be ended. It survives a restart.

        Raises:
            ValueError: `operations` is something else.
            JournalError: it is paused, but that could not be saved, and ends with a restart.
        """
        given_name(name)
        paused = Paused.parse(operations)
        return self._saved(lambda queues: queues.pause(name, paused))

    def resume(self, name: str, operations: str = "all") -> bool:
        """Resume `reads`, `writes` or `all` of a queue; as `pause`."""
        given_name(name)
        paused = Paused.parse(operations)
        return self._saved(lambda queues: queues.resume(name, paused))

    # --- moving items ---

    def move(self, name: str, target: str, count: int | None = None) -> Moved | None:
        """Move the first items of a queue to the end of another one, in order.

        An item is written to the target, and synced where `sync_journal` asks for it, before it
        leaves its queue: a crash may leave it in both. Other threads may use the queues meanwhile;
        readers do not get what is being moved. The items keep their expiry, and are added anew.

        Args:
            name: the queue.
            target: another queue, or an alias.
            count: how many; None is all that wait.

        Returns:
            How many were moved, and why no more if the target refused one; None if there is no
            queue `name`.

        Raises:
            ValueError: `count` is below 0.
            InvalidQueueName: what is added to the target comes to the queue, too.
            JournalError: a queue could not be written; items may be in both.
        """
        return self._moved(*self._begun(Move, name, target, count))

    def _moved(self, queue: Queue | None, work: Move | Copy | None) -> Moved | None:
        """Move or copy items of `queue`; None if there is no such queue."""
        if queue is None or work is None:
            return None
        slices, failure = work.slices(), None
        try:
            while True:
                written, failures = self._access.change(partial(self._step, slices, failure))
                if isinstance(written, Look):
                    self._access.read(written)
                    continue
                failed = [failures[one] for one in (*written, queue) if one in failures]
                failure = failed[0] if failed else None
                if not written:
                    break
        finally:
            with suppress(QueueUnavailable):  # what cannot be given back now is back after `setup`
                self._access.change(slices.close)
        if failure is not None:
            raise failure
        return Moved(work.moved, work.stopped)

    def redrive(self, name: str, target: str | None = None) -> Moved | None:
        """Move all dead letters of a queue to where they came from, or to another queue; as `move`.

        No fanout children get them. Without a target, those from unknown queues, or from such that
        are gone, stay; `Moved.stopped` says how many.
        """
        given_name(name)
        if target is not None:
            given_name(target)

        def begin(queues: Queues) -> tuple[Queue | None, Redrive | None]:
            queue = queues.existing(name)
            return queue, None if queue is None else Redrive(queues, queue, target, bool)

        return self._moved(*self._change(begin))

    def copy(self, name: str, target: str, count: int | None = None) -> Moved | None:
        """Copy the first items of a queue to the end of another one; as `move`.

        What is read from the queue meanwhile may make it leave out or repeat some items.
        """
        return self._moved(*self._begun(Copy, name, target, count))

    def _begun(
        self,
        kind: Callable[[Queues, Queue, str, int | None], Work],
        name: str,
        target: str,
        count: int | None,
    ) -> tuple[Queue | None, Work | None]:
        """Return the queue and what moves or copies its items; None if there is no such queue."""
        given_name(name)
        given_name(target)
        if count is not None:
            given_count(count, "a number of items")

        def begin(queues: Queues) -> tuple[Queue | None, Work | None]:
            queue = queues.existing(name)
            return queue, None if queue is None else kind(queues, queue, target, count)

        return self._change(begin)

    def _step(
        self, slices: Generator[Step, None, None], failure: JournalError | None
    ) -> tuple[Queue, ...] | Look:
        """Go on, or fail; return the queues that were written, none at the end, or a next look."""
        written = next(slices, ()) if failure is None else slices.throw(failure)
        while not isinstance(written, tuple | Look):
            try:
                written(no_pause)
            except OSError as error:
                slices.throw(error)
            written = next(slices, ())
        if isinstance(written, Look):
            return written
        if any(queue.upkeep_waits for queue in written):
            self._access.start_upkeep()
        return written

    # --- queues, all of them ---

    def names(self) -> list[str]:
        """Return the names of the loaded queues, sorted."""
        return self._change(lambda queues: sorted(queues.queues))

    def damaged(self) -> dict[str, str]:
        """Return the queues that could not be loaded, and the reason for each."""
        return self._change(
            lambda queues: {name: str(error) for name, error in queues.damaged.items()}
        )

    def sweep(self) -> None:
        """Drop or move expired items and give back overdue reads now; it also happens by itself."""
        self._change(lambda queues: queues.sweep())

    # --- with the lock held ---

    def _collection(self) -> Queues:
        if not self._is_open:
            raise QueueUnavailable("the queues are not set up, or were closed")
        return self._queues

    def _change(self, operation: Callable[[Queues], T]) -> T:
        result, failures = self._access.change(lambda: operation(self._collection()))
        for failure in failures.values():
            raise failure
        return result

    def _saved(self, operation: Callable[[Queues], T]) -> T:
        """Change queues, as `_change`, and save what was set for them."""

        def change(queues: Queues) -> tuple[T, list[JournalError | None]]:
            failures: list[JournalError | None] = []
            result = operation(queues)
            queues.registry.save(failures.append)
            return result, failures

        result, failures = self._change(change)
        for failure in failures:
            if failure is not None:
                raise failure
        return result

    def _do_upkeep(self) -> None:
        """Do the upkeep that depends on time; a queue that fails does not keep it from others."""
        sweep = [] if self._sweep_period is None else [Queues.sweep]
        for work in (*sweep, Queues.check_deadlines, Queues.tick):
            self._access.change(partial(self._do_if_open, work))  # queues that fail are logged

    def _do_if_open(self, work: Callable[[Queues], None]) -> None:
        if self._is_open:
            work(self._queues)


class _CollectionQueue(BlockingQueue):
    """One queue of a collection."""

    def __init__(
        self, name: str, access: QueueAccess, clock: Clock, collection: Callable[[], Queues]
    ) -> None:
        super().__init__(name, access, clock)
        self._collection = collection

    def _queue(self, *, creates: bool = True) -> Queue:
        if creates:
            return self._collection().obtain(self._name)
        queue = self._collection().existing(self._name)
        if queue is None:
            nothing_kept = QueueConfig(keep_journal=False)
            queue = Queue(self._name, nothing_kept, self._clock, GroupCommit())
        return queue


def _config(
    path: Path,
    default: QueueConfig | None,
    queues: Mapping[str, QueueConfig],
    aliases: Mapping[str, Sequence[str]],
) -> ServerConfig:
    settings: dict[str, Any] = {
        "queue_path": path.absolute(),
        "queues": dict(queues),
        "aliases": {
            name: {"destination_queues": destinations} for name, destinations in aliases.items()
        },
    }
    if default is not None:
        settings["default"] = default
    return validated_config(settings, "QueueCollection")
