"""Moving items from the head of one queue to another, and copying them, a slice at a time.

A slice: add each item to the target, as a client would, and open a read of it in the source, so
that no reader gets it. Write the target, and wait until that is as durable as the settings of both
ask for. Then confirm the reads. So a crash leaves an item in the source, in the target, or in both,
but never in neither. Reads that were not confirmed are given back.

The first item that the target refuses ends the move, and stays at the head of the source.

A redrive moves each dead letter to the queue that it came from, and to no fanout child of that.
Letters that cannot go there are passed over: their reads are given back at the end.

A large item is a slice by itself. A thread copies it, while an open read keeps it in the source.

A copy holds nothing in the source: what is read there meanwhile may make it leave out or repeat
some items.

Neither waits by itself: `slices` yields each `Step` that is to be done before it goes on.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from kestrelmq.clock import Pause
from kestrelmq.errors import InvalidQueueName, JournalError, KestrelError, QueueUnavailable
from kestrelmq.format.notes import dead_letter
from kestrelmq.format.records import (
    ADDX_HEADER,
    Item,
    item,
    item_expiry,
    item_in_pieces,
    record_of,
)
from kestrelmq.names import queue_name_error
from kestrelmq.queue.adding import Put
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.browsing import Look
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.worker import LARGE_ITEM, Job

SLICE_ITEMS: Final = 200
"""The most items of a slice; moving so many takes about a millisecond."""
SLICE_BYTES: Final = 1 << 20
"""Bytes of data after which a slice ends."""
_MAX_STAYING: Final = 100_000
"""The most dead letters that a redrive passes over; each is an open read meanwhile."""
_REASONS: Final = 3
"""The most reasons that a redrive tells for those."""


Step = tuple[Queue, ...] | Job | Look
"""Queues that must be durable; or a job, which may raise an OSError; or a look to be loaded."""


def is_large(record: bytes) -> bool:
    """Whether a thread copies an item."""
    return len(record) >= LARGE_ITEM


@dataclass(frozen=True, slots=True)
class Moved:
    """How many items were moved or copied, and why it ended early; None if it did not."""

    count: int
    stopped: str | None


def sources_of_dead_letters(queues: Iterable[Queue], name: str) -> list[Queue]:
    """Return those of `queues` whose dead letters go to the queue `name`."""
    return [queue for queue in queues if queue.config.dead_letter_queue == name]


class Target:
    """The queue, or the queues of an alias, that gets the items.

    Attributes:
        added: how many items it accepted.
        refusal: why it refused one; None while it accepted all.
    """

    def __init__(
        self, collection: QueueCollection, name: str, source: Queue, *, is_alone: bool = False
    ) -> None:
        """Prepare to add items of `source` to `name`; `is_alone`: and not to fanout children.

        Raises:
            InvalidQueueName: items that are added to `name` would come back to `source`, or no
                queue can have that name.
        """
        problem = queue_name_error(name)
        if problem is not None:
            raise InvalidQueueName(problem)
        self.added = 0
        self.refusal: str | None = None
        self._collection = collection
        self._name = name
        self._is_alone = is_alone
        if source.name == name or source in self.queues:
            raise InvalidQueueName(f"what is added to {name} comes to {source.name}, too")

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The loaded queues that get the items."""
        found = self._collection.destinations(self._name)
        leaves = self._collection.leaves(self._name)
        return tuple(one for one in found if not self._is_alone or one.name in leaves)

    def adding(self, record: bytes) -> Generator[Job, None, bool]:
        """Add an item with its expiry; return False, and set `refusal`, if it is refused.

        For a large one it first yields the job that copies it.
        """
        added, expiry = self._collection.clock.now(), item_expiry(record)
        if is_large(record):
            copies: list[bytes] = []
            data = memoryview(record)[ADDX_HEADER:]
            yield lambda pause: copies.append(item_in_pieces(added, expiry, data, pause))
            copy = copies.pop()
        else:
            copy = item(added, expiry, record[ADDX_HEADER:])
        try:
            queues = self._takers(len(copy) - ADDX_HEADER)
            put = Put(copy)
            stored = [queue.accept(put, alone=self._is_alone) for queue in queues]
            accepted = len(stored) > 0 and all(stored)
        except KestrelError as error:
            self.refusal = str(error)
            return False
        if not accepted:
            self.refusal = f"{self._name} is full, or the item is too large for it"
            return False
        self.added += 1
        return True

    def _takers(self, size: int) -> list[Queue]:
        """Return the queues to add an item of `size` bytes to. Raises as `QueueCollection.add`."""
        queues = self._collection.takers(self._name, size)
        if self._is_alone:
            for queue in queues:
                if queue.config.fanout_only:
                    raise QueueUnavailable(f"queue {queue.name} keeps no items: it is fanout_only")
        return queues

    def write(self) -> tuple[Queue, ...]:
        """Write what was added, or begin to; return who has it. Raises JournalError."""
        queues = self.queues
        for queue in queues:
            queue.core.write_now()
        return queues

    def syncing(self) -> Generator[Job, None, None]:
        """Yield jobs that sync what was written, where the target's own settings do not; run them.

        If a job raises an OSError, throw it into this. Raises JournalError then.
        """
        for queue in self.queues:
            if queue.config.sync_journal != 0:
                try:
                    yield partial(_sync, queue)
                except OSError as error:
                    raise queue.failed(error) from error


def _sync(queue: Queue, _pause: Pause) -> None:
    queue.sync()


class Move:
    """One move.

    Attributes:
        moved: how many items are in the target now, and not in the source.
        stopped: why it ended early, or left some out; None if it did not.
    """

    def __init__(
        self, collection: QueueCollection, source: Queue, target: str, count: int | None = None
    ) -> None:
        """Prepare to move `count` items; None is all that wait now.

        Raises:
            InvalidQueueName: see `Target`.
        """
        self._begin(collection, source, Target(collection, target, source), count)

    def _begin(
        self, collection: QueueCollection, source: Queue, target: Target | None, count: int | None
    ) -> None:
        self.moved = 0
        self.stopped: str | None = None
        self._commits = collection.commits
        self._source = source
        self._target = target
        self._left = len(source) if count is None else count
        # The reads of the items that stay: they were refused, or the move failed.
        self._staying: list[int] = []

    def slices(self) -> Generator[Step, None, None]:
        """Move the items.

        Yields:
            What must be done before it goes on. If that fails, throw the JournalError or OSError
            into it, which ends it.

        Raises:
            JournalError: a queue could not be written; items may be in both queues.
            QueueUnavailable: the source was closed, or cannot be read.
        """
        try:
            while self._left > 0:
                yield from self._slice()
        except (Exception, GeneratorExit) as error:
            if isinstance(error, GeneratorExit) or self._commits.survives(error):
                self._give_back()
            raise
        self._give_back()
        self.stopped = self._problem()

    def _slice(self) -> Generator[Step, None, None]:
        held: list[int] = []
        targets: list[Target] = []
        try:
            yield from self._hold_slice(held, targets)
            written = [queue for target in targets for queue in target.write()]
            yield tuple(written) or (self._source,)
            if self._source.config.sync_journal == 0:
                for target in targets:
                    yield from target.syncing()
            for xid in held:
                self._source.reads.confirm(xid)
            self._source.core.write_now()
            if self._source.core.is_writing:
                yield (self._source,)
            self.moved += len(held)
        except BaseException:
            self._staying = sorted([*self._staying, *held])
            raise

    def _hold_slice(self, held: list[int], targets: list[Target]) -> Generator[Job, None, None]:
        """Add the next items to their `targets`, and append to `held` the xids of their reads."""
        source, opened, size, is_noted = self._source, list[int](), 0, False
        while self._left > 0 and len(opened) < SLICE_ITEMS and size < SLICE_BYTES:
            head = source.line.head()
            if head is None:
                self._left = 0
                break
            record = record_of(head)
            if opened and is_large(record):
                break
            target = self._target_of(head)
            self._left -= 1
            held.append(source.line.hold_head())
            opened.append(held[-1])
            size += len(record)
            if is_large(record):  # others run before it is added
                source.reads.hold_back(opened)
                is_noted = True
            if target is None or not (yield from target.adding(record)):
                self._refuse(held.pop())
            elif target not in targets:
                targets.append(target)
            self._check_source()
        if opened and not is_noted:
            source.reads.hold_back(opened)

    def _refuse(self, xid: int) -> None:
        """Keep the item of a read in the source: that ends the move."""
        self._staying.append(xid)
        self._left = 0

    def _target_of(self, head: Item) -> Target | None:  # noqa: ARG002 # a redrive looks at it
        """Return where an item goes; None if it stays."""
        return self._target

    def _problem(self) -> str | None:
        return None if self._target is None else self._target.refusal

    def _check_source(self) -> None:
        """Raise QueueUnavailable if the source was deleted."""
        if self._source.state.is_closed:
            raise QueueUnavailable(f"queue {self._source.name} is closed")

    def _give_back(self) -> None:
        """Give back the reads of what stays; if that cannot be written, later."""
        source = self._source
        if source.state.is_closed or self._commits.fault is not None or not self._staying:
            return
        source.returns.give_back(self._staying, counted=False)
        with contextlib.suppress(JournalError):
            source.core.write_now()


class Redrive(Move):
    """One redrive: a move of dead letters, each to the queue that it came from, or all to one.

    The fanout children of that queue do not get them. Attributes: those of `Move`.
    """

    def __init__(
        self,
        collection: QueueCollection,
        source: Queue,
        target: str | None,
        check: Callable[[str], object],
    ) -> None:
        """Prepare; without a `target`, items whose origin is unknown or gone stay.

        `check` raises a KestrelError if nothing may be added to the queue of that name.

        Raises:
            InvalidQueueName: see `Target`.
        """
        named = None if target is None else Target(collection, target, source, is_alone=True)
        self._begin(collection, source, named, None)
        self._collection = collection
        self._check = check
        self._origins: dict[str, Target | None] = {}
        self._reasons: dict[str, None] = {}

    def _target_of(self, head: Item) -> Target | None:
        if self._target is not None:
            return self._target
        letter = dead_letter(head)
        if letter is None:
            self._reasons["where they came from is not known"] = None
            return None
        if letter.origin not in self._origins:
            self._origins[letter.origin] = self._origin(letter.origin)
        target = self._origins[letter.origin]
        return None if target is None or target.refusal is not None else target

    def _origin(self, name: str) -> Target | None:
        """Return the queue that a dead letter came from; None if nothing can go there."""
        try:
            if self._collection.existing(name) is None:
                raise InvalidQueueName(f"queue {name} is gone")
            self._check(name)
            return Target(self._collection, name, self._source, is_alone=True)
        except KestrelError as error:
            self._reasons[str(error)] = None
            return None

    def _refuse(self, xid: int) -> None:
        if self._target is not None or len(self._staying) + 1 >= _MAX_STAYING:
            super()._refuse(xid)
        else:
            self._staying.append(xid)

    def _problem(self) -> str | None:
        if self._target is not None:
            return self._target.refusal
        if not self._staying:
            return None
        refusals = [one.refusal for one in self._origins.values() if one and one.refusal]
        reasons = [*self._reasons, *refusals][:_REASONS]
        return f"{len(self._staying)} stay: {'; '.join(reasons)}"


class Copy:
    """One copy.

    Attributes:
        moved: how many items are in the target now, too.
        stopped: why it ended early; None if it did not.
    """

    def __init__(
        self, collection: QueueCollection, source: Queue, target: str, count: int | None = None
    ) -> None:
        """Prepare to copy `count` items; None is all that wait now. Raises as `Move`."""
        self.moved = 0
        self.stopped: str | None = None
        self._source = source
        self._target = Target(collection, target, source)
        self._left = len(source) if count is None else count

    def slices(self) -> Generator[Step, None, None]:
        """Copy the items; yields as `Move.slices`. Raises JournalError."""
        offset = 0
        while self._left > 0 and self.stopped is None:
            look = Look(self._source, offset, min(self._left, SLICE_ITEMS), SLICE_BYTES)
            yield look
            records = look.records
            offset += len(records)
            self._left = self._left - len(records) if records else 0
            for record in records:
                if not (yield from self._target.adding(record_of(record))):
                    break
            yield self._target.write() or (self._source,)
            self.moved, self.stopped = self._target.added, self._target.refusal
