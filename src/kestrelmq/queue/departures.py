"""The items of a queue that go to another queue by themselves: dead letters, and expired items.

    small   added to the other queue and written there; then it is removed here
    synced  an expired item of a queue that syncs each change: set aside; many are added to the
            other queue, and synced there at once; then they are removed here
    large   set aside, while a thread copies it; then it is added to the other queue, and removed
            here when the round that writes it there has ended
    behind  an item that is added while the other queue is in such a round: likewise

If the other queue cannot take it now, a dead letter stays where it was. An expired item is set
aside, so that it holds nobody up, and is tried again with every sweep. An item that is set aside is
an open read that no reader has: after a restart it is given back, and moves once more. So a crash
leaves an item here, there, or in both queues, but never in neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from kestrelmq.clock import Pause, Throttle
from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError, KestrelError
from kestrelmq.format.notes import DeadLetter
from kestrelmq.format.records import (
    ADDX_HEADER,
    Item,
    item,
    item_deliveries,
    item_in_pieces,
    noted,
    record_of,
)
from kestrelmq.journal.life import ASIDE, LEAVING
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.queue.core import Core
from kestrelmq.queue.reads import MIN_ASIDE_LIMIT
from kestrelmq.queue.refusals import LOG_INTERVAL
from kestrelmq.scheduling.durability import Committable, SyncRound
from kestrelmq.scheduling.worker import LARGE_ITEM

_MAX_MOVES: Final = 500
"""Most items set aside that one sweep tries to move."""
_MAX_REFUSALS: Final = 16
"""Refusals after which a sweep stops trying to move items."""
_RETRY: Final = 1.0
"""Seconds after a failure until another large item may be written for its new queue."""

_REFUSED: Final = "it refuses them"
_UNWRITABLE: Final = "its own queue cannot be written"
"""Its removal could not be written, so it would be moved repeatedly."""

log = get_logger(__name__)


class MoveTo(Protocol):
    """Adds an item to the queue of that name, and writes it there."""

    def __call__(self, name: str, one: Item, *, durable: bool) -> bool:
        """Return False or raise a KestrelError if it cannot be added now.

        It may still have to be written when this returns: see `being_written`.

        Args:
            name: the queue that gets the item.
            one: the item.
            durable: whether it must be on disk when this returns, unless it is being written.
        """

    def has_room(self, name: str, size: int) -> bool:
        """Whether an item of `size` bytes would be accepted now. Raises KestrelError: no item."""

    def being_written(self, name: str) -> Sequence[Committable]:
        """Return the queues that have what was added to `name`, if a round has to write it."""

    def sync(self, name: str) -> JournalError | None:
        """Force to disk what was added to the queue of that name; return a failure."""

    def syncing(self, name: str) -> SyncRound:
        """Return the round that syncs the queue of that name; it is to be run, and ended."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Why an item goes to another queue.

    Attributes:
        target: the name of that queue.
        deliveries: how often a dead letter was handed out; 0 for an item that expired.
        why: why a dead letter was given back the last time; empty for an item that expired.
        counted: whether that was a delivery.
    """

    target: str
    deliveries: int = 0
    why: str = ""
    counted: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return bool(self.why)

    def must_be_durable(self, config: QueueConfig) -> bool:
        """Whether the target must be synced before the removal is written here."""
        return config.sync_journal == 0 or (self.is_dead and config.sync_journal is not None)


class Departures:
    """What goes from one queue to others."""

    __slots__ = ("_core", "_leave_at", "_log_throttle", "_move_to", "_state")

    def __init__(self, core: Core, move_to: MoveTo | None) -> None:
        """`move_to` adds an item to another queue; None if there is no other."""
        self._core = core
        self._state = core.state
        self._move_to = move_to
        self._log_throttle = Throttle(core.state.clock, LOG_INTERVAL)
        # From when on (monotonic seconds) large items may leave, because one could not.
        self._leave_at = 0.0

    # --- dead letters ---

    def bury(self, read: OpenRead, why: str, *, counted: bool, even_alive: bool) -> bool:
        """Move the item of an open read to the dead-letter queue if it was delivered enough.

        With `even_alive`, however often it was delivered. `counted` is whether this was a delivery.

        Returns:
            False if it stays, also because the dead-letter queue cannot take it.
        """
        config = self._state.config
        deliveries, target = read.deliveries + counted, config.dead_letter_queue
        if target is None or not (even_alive or _is_dead(config, deliveries)):
            return False
        departure = Departure(target, deliveries, why, counted=counted)
        if self._is_large(read.record):
            if not self._can_bury(departure, read.record):
                return False
            self._begin(self._core.reads.take_over(read, counted=counted), departure)
            return True
        if not self._bury_now(read.record, departure):
            return False
        if self._is_being_written(target):
            self._wait(self._core.reads.take_over(read, counted=counted), departure)
        else:
            self._core.reads.confirm(read.xid)
            self._have_buried(departure, read.record)
        return True

    def has_dead_head(self) -> bool:
        """Whether the head, if it is in memory, was delivered `max_deliveries` times."""
        head, config = self._core.backlog.head, self._state.config
        return (
            head is not None
            and config.dead_letter_queue is not None
            and _is_dead(config, item_deliveries(head))
        )

    def bury_head(self) -> bool:
        """Move the head if it was delivered `max_deliveries` times before a restart.

        Returns:
            False if it stays, also because the dead-letter queue cannot take it.
        """
        target = self._state.config.dead_letter_queue
        if target is None or not self.has_dead_head():
            return False
        item = self._core.backlog.take()
        record = record_of(item)
        departure = Departure(target, item_deliveries(item), "the server was stopped")
        if self._is_large(record):
            if self._can_bury(departure, record):
                self._begin(self._core.reads.put_aside(item), departure)
                return True
        elif self._bury_now(record, departure):
            if self._is_being_written(target):
                self._wait(self._core.reads.put_aside(item), departure)
            else:
                self._core.changes.drop(item)
                self._have_buried(departure, record)
            return True
        self._core.backlog.put_back(item)
        return False

    def _bury_now(self, record: bytes, departure: Departure) -> bool:
        """Add an item to the dead-letter queue; return False if that cannot take it now."""
        durable = departure.must_be_durable(self._state.config)
        problem = self._copy_and_move(departure, record, durable=durable)
        if problem is not None:
            self._log_stays(departure, problem)
        return problem is None

    def _can_bury(self, departure: Departure, record: bytes) -> bool:
        """Whether a large item can move to the dead-letter queue now; otherwise it stays."""
        problem = self._large_problem(departure, record)
        if problem is not None:
            self._log_stays(departure, problem)
        return problem is None

    def _log_stays(self, departure: Departure, problem: str) -> None:
        self._log_now_and_then(
            f"an item was delivered {departure.deliveries} times, and cannot go to "
            f"{departure.target}: {problem}; it stays",
        )

    # --- expired items ---

    def expire_head(self) -> bool:
        """Move the head, which has expired, or set it aside; return False if neither works."""
        backlog, target = self._core.backlog, self._state.config.expire_to_queue
        item = backlog.take()
        record = record_of(item)
        is_large = target is not None and self._is_large(record)
        is_synced = target is not None and Departure(target).must_be_durable(self._state.config)
        try:
            has_gone = not (is_large or is_synced) and self._expire_now(record)
        except BaseException:
            backlog.put_back(item)
            raise
        if has_gone:
            if target is not None and self._is_being_written(target):
                self._wait(self._core.reads.put_aside(item), Departure(target))
            else:
                self._core.changes.drop(item)
                self._state.counts.expired_items += 1
            return True
        aside, most = self._core.reads, backlog.max_memory_bytes // (1 if is_large else 4)
        if aside.aside and aside.aside_bytes + len(record) > max(MIN_ASIDE_LIMIT, most):
            backlog.put_back(item)
            return False
        read = self._core.reads.put_aside(item)
        if target is not None and is_large:
            self._begin_expiring(read, target)
        return True

    def move_aside(self) -> None:
        """Try to move some of the items that are set aside."""
        reads, target = self._core.reads, self._state.config.expire_to_queue
        moved: list[OpenRead] = []
        refused = 0
        most = min(self._state.config.max_expire_sweep or _MAX_MOVES, _MAX_MOVES)
        for read in list(islice(reads.aside.values(), most)):
            if read.is_over:
                reads.forget_aside(read)  # a client that guessed its xid confirmed it
            elif read.state == LEAVING:
                continue
            elif target is not None and self._is_large(read.record):
                self._begin_expiring(read, target)
            elif self._expire_now(read.record):
                moved.append(read)
            else:
                # Try the others before this one again.
                del reads.aside[read.xid]
                reads.aside[read.xid] = read
                refused += 1
                if refused == _MAX_REFUSALS:
                    break
        if target is not None and moved and self._is_being_written(target):
            for read in moved:
                self._wait(read, Departure(target))
        elif not moved or self._are_durable(target):
            self._remove_moved(moved)

    def _remove_moved(self, moved: Sequence[OpenRead]) -> None:
        """Remove items that were set aside and are in their new queue."""
        reads = self._core.reads
        for read in moved:
            self._core.reads.confirm(read.xid)
        try:
            self._core.write_now()
        except JournalError:
            return  # they are still open and set aside
        for read in moved:
            reads.forget_aside(read)
        self._state.counts.expired_items += len(moved)

    def _expire_now(self, record: bytes) -> bool:
        """Add an expired item to `expire_to_queue`, if set; return False if it cannot be now."""
        target = self._state.config.expire_to_queue
        if target is None or self._move_to is None:
            return True
        problem = self._copy_and_move(Departure(target), record, durable=False)
        if problem is not None:
            self._log_set_aside(target, problem)
        return problem is None

    def _are_durable(self, target: str | None) -> bool:
        """Sync the items that `target` just got, if they must be; return False if that fails."""
        if target is None or not Departure(target).must_be_durable(self._state.config):
            return True
        assert self._move_to is not None  # noqa: S101 # it has moved them
        failure = self._move_to.sync(target)
        if failure is not None:
            self._log_set_aside(target, str(failure))
        return failure is None

    def _begin_expiring(self, read: OpenRead, target: str) -> None:
        """Begin to move a large item that is set aside because it expired."""
        departure = Departure(target)
        problem = self._large_problem(departure, read.record)
        if problem is not None:
            self._log_set_aside(target, problem)
        else:
            self._begin(read, departure)

    def _log_set_aside(self, target: str, problem: str) -> None:
        self._log_now_and_then(
            f"expired items cannot go to {target}: {problem}; they are set aside, and tried again "
            "with every sweep",
        )

    # --- adding to the other queue ---

    def _copy_and_move(self, departure: Departure, record: bytes, *, durable: bool) -> str | None:
        """Add a small item to another queue; return why that cannot be done now."""
        plain = item(self._state.clock.now(), 0, record[ADDX_HEADER:])
        return self._move(departure, plain, durable=durable)

    def _move(self, departure: Departure, plain: bytes, *, durable: bool) -> str | None:
        """Add an item, by its record there, to another queue; return why that cannot be done."""
        if self._move_to is None:
            return "there is no other queue"
        if self._core.failure is not None:
            return _UNWRITABLE
        self._state.is_moving = True
        try:
            own = noted(plain, departure.deliveries, self._letter(departure))
            if self._move_to(departure.target, own, durable=durable):
                return None
        except KestrelError as error:
            return str(error)
        finally:
            self._state.is_moving = False
        return _REFUSED

    def _letter(self, departure: Departure) -> bytes:
        """Return what a dead letter keeps of where it was; empty for an item that expired."""
        if not departure.is_dead:
            return b""
        return DeadLetter(self._state.name, self._state.clock.now(), departure.why).packed()

    def _is_being_written(self, target: str) -> bool:
        """Whether what was added to `target` just now is not written there yet."""
        return self._move_to is not None and len(self._move_to.being_written(target)) > 0

    # --- items that are set aside until they are written there ---

    def _is_large(self, record: bytes) -> bool:
        """Whether a thread copies an item."""
        return len(record) >= LARGE_ITEM and self._move_to is not None

    def _large_problem(self, departure: Departure, record: bytes) -> str | None:
        """Return why a large item cannot move now."""
        assert self._move_to is not None  # noqa: S101 # see `_is_large`
        if self._core.failure is not None:
            return _UNWRITABLE
        if self._state.clock.monotonic() < self._leave_at:
            return "another one could not be written a moment ago"
        try:
            has_room = self._move_to.has_room(departure.target, len(record) - ADDX_HEADER)
        except KestrelError as error:
            return str(error)
        return None if has_room else _REFUSED

    def _begin(self, read: OpenRead, departure: Departure) -> None:
        """Have the writer copy a large item that is set aside; then move it."""
        read.state = LEAVING
        copies: list[bytes] = []

        def copy(pause: Pause) -> None:
            data = memoryview(read.record)[ADDX_HEADER:]
            copies.append(item_in_pieces(self._state.clock.now(), 0, data, pause))

        def copied(error: BaseException | None) -> None:
            problem = None if error is None else str(error)
            if problem is None and self._is_leaving(read):
                problem = self._move_copy(departure, copies.pop())
            if problem is None:
                self._wait(read, departure)
            else:
                self._have_moved(read, departure, problem)

        self._state.commits.writer.run(copy, copied)

    def _move_copy(self, departure: Departure, plain: bytes) -> str | None:
        try:
            self._core.write_now()  # before the target has it, it must be certain that it leaves
        except JournalError as error:
            return str(error)
        return self._move(departure, plain, durable=False)

    def _wait(self, read: OpenRead, departure: Departure) -> None:
        """Remove an item that is set aside and was moved, as soon as it is written there."""
        assert self._move_to is not None  # noqa: S101 # it has moved it
        if read.state == ASIDE:
            read.state = LEAVING

        def written(failure: JournalError | None) -> None:
            if failure is None and departure.must_be_durable(self._state.config):
                self._sync(read, departure)
            else:
                problem = None if failure is None else str(failure)
                self._have_moved(read, departure, problem)

        self._state.commits.after_writing(self._move_to.being_written(departure.target), written)

    def _sync(self, read: OpenRead, departure: Departure) -> None:
        """Have the writer sync the other queue; then remove the item."""
        assert self._move_to is not None  # noqa: S101 # it has moved it
        sync = self._move_to.syncing(departure.target)

        def synced(error: BaseException | None) -> None:
            sync.end(error)
            failures = [str(failure) for failure in sync.failures.values()]
            self._have_moved(read, departure, failures[0] if failures else None)

        self._state.commits.writer.run(sync.run, synced)

    def _is_leaving(self, read: OpenRead) -> bool:
        """Whether an item still leaves: its change was not taken back, and its read not ended."""
        return not self._state.is_closed and read.state == LEAVING and not read.is_over

    def _have_moved(self, read: OpenRead, departure: Departure, problem: str | None) -> None:
        """Remove an item that is set aside and is in its new queue; `problem` is why it is not."""
        reads = self._core.reads
        if self._state.is_closed or read.state != LEAVING:
            return  # its change was taken back
        if read.is_over:
            reads.forget_aside(read)  # its reader has confirmed it
        elif problem is not None:
            self._has_not_moved(read, departure, problem)
        else:
            self._core.reads.confirm(read.xid)
            reads.forget_aside(read)
            if departure.is_dead:
                self._have_buried(departure, read.record)
            else:
                self._state.counts.expired_items += 1
            self._core.waiters.serve()
        if read.state == LEAVING:
            read.state = ASIDE

    def _has_not_moved(self, read: OpenRead, departure: Departure, problem: str) -> None:
        self._leave_at = self._state.clock.monotonic() + _RETRY
        if not departure.is_dead:
            self._log_set_aside(departure.target, problem)
            return
        self._log_stays(departure, problem)
        self._core.reads.forget_aside(read)
        self._core.reads.retry(read, counted=departure.counted)
        self._core.waiters.serve()

    def _have_buried(self, departure: Departure, record: bytes) -> None:
        """Count and log that an item went to the dead-letter queue."""
        name, target, deliveries = self._state.name, departure.target, departure.deliveries
        why = departure.why
        self._state.counts.dead_lettered += 1
        log.warning(
            "queue %s: an item of %d bytes goes to %s after %d deliveries: %s",
            name,
            len(record) - ADDX_HEADER,
            target,
            deliveries,
            why,
            extra={"queue": name, "deliveries": deliveries, "target": target, "why": why},
        )

    def _log_now_and_then(self, problem: str) -> None:
        """Log a problem, unless one was logged a short time ago."""
        name = self._state.name
        if self._log_throttle.passes():
            log.warning("queue %s: %s", name, problem, extra={"queue": name})


def _is_dead(config: QueueConfig, deliveries: int) -> bool:
    """Whether an item that was delivered so often goes to the dead-letter queue."""
    most = config.max_deliveries
    return most is not None and deliveries >= most
