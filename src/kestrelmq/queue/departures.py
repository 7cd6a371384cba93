"""The items of a queue that go to another queue by themselves: dead letters, and expired items.

    small   added to the other queue and written there; then it is removed here
    synced  an expired item of a queue that syncs each change: set aside; many are added to the
            other queue, and synced there at once; then they are removed here
    large   set aside, and written ahead for the other queue, while others are served; then it is
            added there, and removed here

If the other queue cannot take it now, a dead letter stays where it was. An expired item is set
aside, so that it holds nobody up, and is tried again with every sweep. An item that is set aside is
an open read that no reader has: after a restart it is given back, and moves once more. So a crash
leaves an item here, there, or in both queues, but never in neither.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from kestrelmq.clock import Clock, Pause, Throttle
from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.format.notes import DeadLetter
from kestrelmq.format.records import ADDX_HEADER, Item, item_deliveries, record_of
from kestrelmq.journal.open_read import ASIDE, LEAVING, OpenRead
from kestrelmq.queue.backlog import Backlog
from kestrelmq.queue.reads import OpenReads
from kestrelmq.queue.refusals import LOG_INTERVAL
from kestrelmq.scheduling.durability import GroupCommit
from kestrelmq.scheduling.worker import WRITE_AHEAD_SIZE

MIN_ASIDE_LIMIT: Final = 1 << 20
"""Bytes of memory that items set aside may take, however small `max_memory_size` is."""
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


class LargeMove(Protocol):
    """A large item that moves to another queue; `LargePut` is one."""

    def has_room(self, size: int) -> bool:
        """Whether an item of `size` bytes would be accepted now."""

    def write(self, data: bytes | memoryview, pause: Pause) -> None:
        """Write the item ahead; from any thread. Raises OSError."""

    def move(self, size: int, *, durable: bool) -> bool:
        """Do what `MoveTo` does, with the item that was written."""

    def discard(self) -> None:
        """Remove what was written and not moved."""


class MoveTo(Protocol):
    """Adds an item's data to the queue of that name, and writes it there."""

    def __call__(
        self, name: str, data: bytes, deliveries: int, letter: bytes, *, durable: bool
    ) -> bool:
        """Return False or raise a KestrelError if it cannot be added now.

        Args:
            name: the queue that gets the item.
            data: the item.
            deliveries: how often it was handed out.
            letter: its packed `DeadLetter`, if it is one.
            durable: whether it must be on disk when this returns.
        """

    def sync(self, name: str) -> JournalError | None:
        """Force to disk what was added to the queue of that name; return a failure."""

    def prepare(self, name: str, size: int, deliveries: int, letter: bytes) -> LargeMove | None:
        """Prepare to do so with a large item, of `size` bytes.

        Return None or raise a KestrelError if it cannot be added now.
        """


class Origin(Protocol):
    """What is needed of the queue that the items leave; `Queue` has it."""

    name: str
    config: QueueConfig
    backlog: Backlog
    reads: OpenReads
    failure: JournalError | None
    expired_items: int
    dead_lettered: int

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""

    def put_aside(self, item: Item) -> OpenRead:
        """Set `item`, which was the head, aside; return its read."""

    def take_over(self, read: OpenRead, *, counted: bool) -> OpenRead:
        """Set the item of an open read aside, which its reader does not have any more."""

    def drop_taken(self, item: Item) -> None:
        """Drop `item`, which was the head and is already taken."""

    def confirm(self, xid: int) -> bool:
        """Confirm the open read `xid`."""

    def retry(self, read: OpenRead, *, counted: bool) -> None:
        """Let the item of an open read be read again, after its retry delay if it has one.

        `counted` is whether it was delivered.
        """

    def write_now(self) -> None:
        """Write what was changed. Raises JournalError."""

    def serve_waiting(self) -> None:
        """Serve the readers that wait."""


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
        """Whether it must be on disk there before it is written here that it has gone."""
        return config.sync_journal == 0 or (self.is_dead and config.sync_journal is not None)


class Departures:
    """What goes from one queue to others. The queue passes itself to the methods, as `origin`.

    Attributes:
        is_moving: whether an item is just being added to another queue. Nothing may be taken here
            meanwhile: in the journal, that item may still be the head.
    """

    def __init__(self, move_to: MoveTo | None, commits: GroupCommit, clock: Clock) -> None:
        """`move_to` adds an item to another queue; None if there is no other."""
        self.is_moving = False
        self._move_to = move_to
        self._commits = commits
        self._clock = clock
        self._log_throttle = Throttle(clock, LOG_INTERVAL)
        # From when on (monotonic seconds) large items may be written, because one could not be.
        self._leave_at = 0.0

    # --- dead letters ---

    def bury(
        self, origin: Origin, read: OpenRead, why: str, *, counted: bool, even_alive: bool
    ) -> bool:
        """Move the item of an open read to the dead-letter queue if it was delivered enough.

        With `even_alive`, however often it was delivered. `counted` is whether this was a delivery.

        Returns:
            False if it stays, also because the dead-letter queue cannot take it.
        """
        config = origin.config
        deliveries, target = read.deliveries + counted, config.dead_letter_queue
        if target is None or not (even_alive or _is_dead(config, deliveries)):
            return False
        departure = Departure(target, deliveries, why, counted=counted)
        if self._is_large(read.record):
            large = self._prepare_to_bury(origin, len(read.record), departure)
            if large is None:
                return False
            self._write(origin, origin.take_over(read, counted=counted), departure, large)
            return True
        if not self._bury_now(origin, read.record, departure):
            return False
        origin.confirm(read.xid)
        return True

    def has_dead_head(self, origin: Origin) -> bool:
        """Whether the head, if it is in memory, was delivered `max_deliveries` times."""
        head, config = origin.backlog.head, origin.config
        return (
            head is not None
            and config.dead_letter_queue is not None
            and _is_dead(config, item_deliveries(head))
        )

    def bury_head(self, origin: Origin) -> bool:
        """Move the head if it was delivered `max_deliveries` times before a restart.

        Returns:
            False if it stays, also because the dead-letter queue cannot take it.
        """
        target = origin.config.dead_letter_queue
        if target is None or not self.has_dead_head(origin):
            return False
        item = origin.backlog.take()
        record = record_of(item)
        departure = Departure(target, item_deliveries(item), "the server was stopped")
        if self._is_large(record):
            large = self._prepare_to_bury(origin, len(record), departure)
            if large is not None:
                self._write(origin, origin.put_aside(item), departure, large)
                return True
        elif self._bury_now(origin, record, departure):
            origin.drop_taken(item)
            return True
        origin.backlog.put_back(item)
        return False

    def _bury_now(self, origin: Origin, record: bytes, departure: Departure) -> bool:
        """Add an item to the dead-letter queue; return False if that cannot take it now."""
        durable = departure.must_be_durable(origin.config)
        problem = self._move(origin, departure, record, durable=durable)
        if problem is None:
            _have_buried(origin, departure, record)
        else:
            self._log_stays(origin, departure, problem)
        return problem is None

    def _prepare_to_bury(
        self, origin: Origin, length: int, departure: Departure
    ) -> LargeMove | None:
        """Prepare to move a large item, of `length` bytes of record; return None if it stays."""
        size = length - ADDX_HEADER
        try:
            large = self._prepare(origin, departure, size)
            if not large.has_room(size):
                raise QueueUnavailable(_REFUSED)
        except KestrelError as error:
            self._log_stays(origin, departure, str(error))
            return None
        return large

    def _log_stays(self, origin: Origin, departure: Departure, problem: str) -> None:
        self._log_now_and_then(
            origin,
            f"an item was delivered {departure.deliveries} times, and cannot go to "
            f"{departure.target}: {problem}; it stays",
        )

    # --- expired items ---

    def expire_head(self, origin: Origin) -> bool:
        """Move the head, which has expired, or set it aside; return False if neither works."""
        backlog, target = origin.backlog, origin.config.expire_to_queue
        item = backlog.take()
        record = record_of(item)
        is_large = target is not None and self._is_large(record)
        is_synced = target is not None and Departure(target).must_be_durable(origin.config)
        try:
            has_gone = not (is_large or is_synced) and self._expire_now(origin, record)
        except BaseException:
            backlog.put_back(item)
            raise
        if has_gone:
            origin.drop_taken(item)
            origin.expired_items += 1
            return True
        aside, most = origin.reads, backlog.max_memory_bytes // (1 if is_large else 4)
        if aside.aside and aside.aside_bytes + len(record) > max(MIN_ASIDE_LIMIT, most):
            backlog.put_back(item)
            return False
        read = origin.put_aside(item)
        if target is not None and is_large:
            self._begin_expiring(origin, read, target)
        return True

    def move_aside(self, origin: Origin) -> None:
        """Try to move some of the items that are set aside."""
        reads, target = origin.reads, origin.config.expire_to_queue
        moved: list[OpenRead] = []
        refused = 0
        most = min(origin.config.max_expire_sweep or _MAX_MOVES, _MAX_MOVES)
        for read in list(islice(reads.aside.values(), most)):
            if read.is_over:
                reads.forget_aside(read)  # a client that guessed its xid confirmed it
            elif read.state == LEAVING:
                continue
            elif target is not None and self._is_large(read.record):
                self._begin_expiring(origin, read, target)
            elif self._expire_now(origin, read.record):
                moved.append(read)
            else:
                # Try the others before this one again.
                del reads.aside[read.xid]
                reads.aside[read.xid] = read
                refused += 1
                if refused == _MAX_REFUSALS:
                    break
        if moved and not self._are_durable(origin, target):
            return
        for read in moved:
            origin.confirm(read.xid)
        try:
            origin.write_now()
        except JournalError:
            return  # they are still open and set aside
        for read in moved:
            reads.forget_aside(read)
        origin.expired_items += len(moved)

    def _expire_now(self, origin: Origin, record: bytes) -> bool:
        """Add an expired item to `expire_to_queue`, if set; return False if it cannot be now."""
        target = origin.config.expire_to_queue
        if target is None or self._move_to is None:
            return True
        problem = self._move(origin, Departure(target), record, durable=False)
        if problem is not None:
            self._log_set_aside(origin, target, problem)
        return problem is None

    def _are_durable(self, origin: Origin, target: str | None) -> bool:
        """Sync the items that `target` just got, if they must be; return False if that fails."""
        if target is None or not Departure(target).must_be_durable(origin.config):
            return True
        assert self._move_to is not None  # noqa: S101 # it has moved them
        failure = self._move_to.sync(target)
        if failure is not None:
            self._log_set_aside(origin, target, str(failure))
        return failure is None

    def _begin_expiring(self, origin: Origin, read: OpenRead, target: str) -> None:
        """Begin to move a large item that is set aside because it expired."""
        departure = Departure(target)
        try:
            large = self._prepare(origin, departure, len(read.record) - ADDX_HEADER)
        except KestrelError as error:
            self._log_set_aside(origin, target, str(error))
            return
        self._write(origin, read, departure, large)

    def _log_set_aside(self, origin: Origin, target: str, problem: str) -> None:
        self._log_now_and_then(
            origin,
            f"expired items cannot go to {target}: {problem}; they are set aside, and tried again "
            "with every sweep",
        )

    # --- small items ---

    def _move(
        self, origin: Origin, departure: Departure, record: bytes, *, durable: bool
    ) -> str | None:
        """Add an item to another queue; return why that cannot be done now."""
        if self._move_to is None:
            return "there is no other queue"
        if origin.failure is not None:
            return _UNWRITABLE
        self.is_moving = True
        try:
            data, letter = record[ADDX_HEADER:], self._letter(origin, departure)
            if self._move_to(departure.target, data, departure.deliveries, letter, durable=durable):
                return None
        except KestrelError as error:
            return str(error)
        finally:
            self.is_moving = False
        return _REFUSED

    def _letter(self, origin: Origin, departure: Departure) -> bytes:
        """Return what a dead letter keeps of its origin; empty for an item that expired."""
        if not departure.is_dead:
            return b""
        return DeadLetter(origin.name, self._clock.now(), departure.why).packed()

    # --- large items ---

    def _is_large(self, record: bytes) -> bool:
        """Whether an item is written ahead for the queue that it moves to."""
        return len(record) >= WRITE_AHEAD_SIZE + ADDX_HEADER and self._move_to is not None

    def _prepare(self, origin: Origin, departure: Departure, size: int) -> LargeMove:
        """Prepare to move a large item. Raises KestrelError: it cannot move now."""
        assert self._move_to is not None  # noqa: S101 # see `_is_large`
        if origin.failure is not None:
            raise JournalError(_UNWRITABLE)
        if self._clock.monotonic() < self._leave_at:
            raise QueueUnavailable("another one could not be written a moment ago")
        letter = self._letter(origin, departure)
        large = self._move_to.prepare(departure.target, size, departure.deliveries, letter)
        if large is None:
            raise QueueUnavailable(_REFUSED)
        return large

    def _write(
        self, origin: Origin, read: OpenRead, departure: Departure, large: LargeMove
    ) -> None:
        """Have the writer write a large item that is set aside for its new queue; then move it."""
        read.state = LEAVING

        def write(pause: Pause) -> None:
            large.write(memoryview(read.record)[ADDX_HEADER:], pause)

        def written(error: BaseException | None) -> None:
            try:
                self._written(origin, read, departure, large, error)
                if read.state == LEAVING:
                    read.state = ASIDE
            finally:
                large.discard()

        self._commits.writer.run(write, written)

    def _written(
        self,
        origin: Origin,
        read: OpenRead,
        departure: Departure,
        large: LargeMove,
        error: BaseException | None,
    ) -> None:
        """Move a large item that was written for its new queue; `error` is why it was not."""
        reads = origin.reads
        if origin.is_closed or read.state != LEAVING:
            return  # its change was taken back
        if read.is_over:
            reads.forget_aside(read)  # whoever had read it has confirmed it
            return
        problem = self._move_written(origin, read.record, departure, large, error)
        if problem is None:
            origin.confirm(read.xid)
            reads.forget_aside(read)
            if departure.is_dead:
                _have_buried(origin, departure, read.record)
            else:
                origin.expired_items += 1
            origin.serve_waiting()
            return
        self._leave_at = self._clock.monotonic() + _RETRY
        if not departure.is_dead:
            self._log_set_aside(origin, departure.target, problem)
            return
        self._log_stays(origin, departure, problem)
        if read.state == LEAVING:  # its change was not taken back just now
            reads.forget_aside(read)
            origin.retry(read, counted=departure.counted)
            origin.serve_waiting()

    def _move_written(
        self,
        origin: Origin,
        record: bytes,
        departure: Departure,
        large: LargeMove,
        error: BaseException | None,
    ) -> str | None:
        """Move a large item that was written; return why that cannot be done now."""
        if error is not None:
            return str(error)
        size, durable = len(record) - ADDX_HEADER, departure.must_be_durable(origin.config)
        self.is_moving = True
        try:
            origin.write_now()  # before the target has it, it must be certain that it leaves
            return None if large.move(size, durable=durable) else _REFUSED
        except KestrelError as failure:
            return str(failure)
        finally:
            self.is_moving = False

    def _log_now_and_then(self, origin: Origin, problem: str) -> None:
        """Log a problem, unless one was logged a short time ago."""
        if self._log_throttle.passes():
            log.warning("queue %s: %s", origin.name, problem, extra={"queue": origin.name})


def _is_dead(config: QueueConfig, deliveries: int) -> bool:
    """Whether an item that was delivered so often goes to the dead-letter queue."""
    most = config.max_deliveries
    return most is not None and deliveries >= most


def _have_buried(origin: Origin, departure: Departure, record: bytes) -> None:
    """Count and log that an item went to the dead-letter queue."""
    target, deliveries, why = departure.target, departure.deliveries, departure.why
    origin.dead_lettered += 1
    log.warning(
        "queue %s: an item of %d bytes goes to %s after %d deliveries: %s",
        origin.name,
        len(record) - ADDX_HEADER,
        target,
        deliveries,
        why,
        extra={"queue": origin.name, "deliveries": deliveries, "target": target, "why": why},
    )
