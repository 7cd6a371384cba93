"""Moving items from the head of one queue to another, and copying them, a slice at a time.

A slice: add each item to the target, as a client would, and open a read of it in the source, so
that no reader gets it. Write the target, and wait until that is as durable as the settings of both
ask for. Then confirm the reads. So a crash leaves an item in the source, in the target, or in both,
but never in neither. Reads that were not confirmed are given back.

The first item that the target refuses ends the move, and stays at the head of the source.

A large item is a slice by itself. It is written ahead for the target (`WrittenAhead`), while an
open read keeps it in the source.

A copy holds nothing in the source: what is read there meanwhile may make it leave out or repeat
some items.
"""

import contextlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kestrelmq.clock import Pause, no_pause
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import WRITE_AHEAD_SIZE, Job
from kestrelmq.errors import InvalidQueueName, JournalError, KestrelError, QueueUnavailable
from kestrelmq.journal.records import ADDX_HEADER, item_expiry
from kestrelmq.names import queue_name_error

SLICE_ITEMS: Final = 200
"""The most items of a slice; moving so many takes about a millisecond."""
SLICE_BYTES: Final = 1 << 20
"""Bytes of data after which a slice ends."""


Step = tuple[Queue, ...] | Job
"""The queues that must be durable before it goes on; or a job, which may raise an OSError."""


def is_large(record: bytes) -> bool:
    """Whether an item is written ahead."""
    return len(record) >= WRITE_AHEAD_SIZE + ADDX_HEADER


@dataclass(frozen=True, slots=True)
class Moved:
    """How many items were moved or copied, and why it ended early; None if it did not."""

    count: int
    stopped: str | None


def source_of_dead_letters(collection: QueueCollection, name: str) -> str:
    """Return the queue whose `dead_letter_queue` is `name`.

    Raises:
        InvalidQueueName: there is none, or there are several.
    """
    found = sources_of_dead_letters(collection.queues.values(), name)
    if len(found) != 1:
        which = "several queues have" if found else "no queue has"
        raise InvalidQueueName(f"{which} {name} as dead_letter_queue: name the target")
    return found[0].name


def sources_of_dead_letters(queues: Iterable[Queue], name: str) -> list[Queue]:
    """Return those of `queues` whose dead letters go to the queue `name`."""
    return [queue for queue in queues if queue.config.dead_letter_queue == name]


class Target:
    """The queue, or the queues of an alias, that gets the items.

    Attributes:
        added: how many items it accepted.
        refusal: why it refused one; None while it accepted all.
    """

    def __init__(self, collection: QueueCollection, name: str, source: Queue) -> None:
        """Prepare to add items of `source` to `name`.

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
        if source.name == name or source in collection.destinations(name):
            raise InvalidQueueName(f"what is added to {name} comes to {source.name}, too")

    def add(self, record: bytes) -> bool:
        """Add an item with its expiry; return False, and set `refusal`, if it is refused.

        A large one should be written ahead: see `adding`.
        """
        data, expiry = record[ADDX_HEADER:], item_expiry(record)
        try:
            queues = self._collection.takers(self._name, len(data))
            accepted = sum(queue.add(data, expiry) for queue in queues) == len(queues) > 0
        except KestrelError as error:
            self.refusal = str(error)
            return False
        return self._has_taken(is_accepted=accepted)

    def _has_taken(self, *, is_accepted: bool) -> bool:
        if not is_accepted:
            self.refusal = f"{self._name} is full, or the item is too large for it"
            return False
        self.added += 1
        return True

    def adding(self, record: bytes) -> Generator[Job, None, bool]:
        """Do what `add` does, but yield the job that writes a large item ahead; run it then.

        If the job raises an OSError, throw it into this.

        Raises:
            JournalError: the target could not be written.
        """
        if not is_large(record):
            return self.add(record)
        data = memoryview(record)[ADDX_HEADER:]
        try:
            large = self._collection.prepare_large(self._name, len(data), item_expiry(record))
            if large is None:
                return self._has_taken(is_accepted=False)
            try:
                yield partial(large.write, data)
                return self._has_taken(is_accepted=large.move(len(data), durable=False))
            except OSError as error:
                raise large.writing.failed(error) from error
            finally:
                large.discard()
        except (QueueUnavailable, InvalidQueueName) as error:
            self.refusal = str(error)
            return False

    def write(self) -> tuple[Queue, ...]:
        """Write what was added; return the queues that have it. Raises JournalError."""
        queues = tuple(self._collection.destinations(self._name))
        for queue in queues:
            queue.write_now()
        return queues

    def syncing(self) -> Generator[Job, None, None]:
        """Yield jobs that sync what was written, where the target's own settings do not; run them.

        If a job raises an OSError, throw it into this. Raises JournalError then.
        """
        for queue in self._collection.destinations(self._name):
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
        stopped: why it ended early; None if it did not.
    """

    def __init__(
        self, collection: QueueCollection, source: Queue, target: str, count: int | None = None
    ) -> None:
        """Prepare to move `count` items; None is all that wait now.

        Raises:
            InvalidQueueName: see `Target`.
        """
        self.moved = 0
        self.stopped: str | None = None
        self._source = source
        self._target = Target(collection, target, source)
        self._left = len(source) if count is None else count

    def slices(self) -> Generator[Step, None, None]:
        """Move the items.

        Yields:
            What must be done before it goes on. If that fails, throw the JournalError or OSError
            into it.

        Raises:
            JournalError: a queue could not be written; items may be in both queues.
            QueueUnavailable: the source was closed, or cannot be read.
        """
        while self._left > 0:
            held: list[int] = []
            try:
                record = self._source.head()
                if record is not None and is_large(record):
                    held.append(self._source.hold_head())
                    self._source.hold_back(held)
                    self._left -= 1
                    if not (yield from self._target.adding(record)):
                        self._give_back(held)
                        break
                    self._check_source()
                else:
                    self._hold_slice(held)
                    if not held:
                        break
                    self._source.hold_back(held)
                yield self._target.write()
                if self._source.config.sync_journal == 0:
                    yield from self._target.syncing()
                for xid in held:
                    self._source.confirm(xid)
                self._source.write_now()
                self.moved += len(held)
            except BaseException:
                self._give_back(held)
                raise
            if self._target.refusal is not None:
                break
        self.stopped = self._target.refusal

    def _hold_slice(self, held: list[int]) -> None:
        """Add the next items to the target, and append to `held` the xids of their reads."""
        size = 0
        while self._left > 0 and len(held) < SLICE_ITEMS and size < SLICE_BYTES:
            record = self._source.head()
            if record is None:
                self._left = 0
                return
            if is_large(record):
                return
            if not self._target.add(record):
                return
            held.append(self._source.hold_head())
            self._left -= 1
            size += len(record)

    def _check_source(self) -> None:
        """Raise QueueUnavailable if the source was deleted."""
        if self._source.is_closed:
            raise QueueUnavailable(f"queue {self._source.name} is closed")

    def _give_back(self, held: list[int]) -> None:
        """Give reads back; if that cannot be written, later."""
        source = self._source
        if source.is_closed:
            return
        source.give_back(held, counted=False)
        with contextlib.suppress(JournalError):
            source.write_now()


class Copy:
    """One copy: of what is read in the source, a slice at a time, outside of this module."""

    def __init__(
        self, collection: QueueCollection, source: Queue, target: str, count: int | None = None
    ) -> None:
        """Prepare to copy `count` items; None is all that wait now. Raises as `Move`."""
        self._target = Target(collection, target, source)
        self._offset = 0
        self._left = len(source) if count is None else count

    @property
    def next_slice(self) -> tuple[int, int] | None:
        """The offset of the next items to read, and the most of them; None at the end."""
        if self._left <= 0 or self._target.refusal is not None:
            return None
        return self._offset, min(self._left, SLICE_ITEMS)

    def add(self, records: Sequence[bytes]) -> tuple[Queue, ...]:
        """Do all of `adding`. Raises JournalError: a queue could not be written."""
        work = self.adding(records)
        while True:
            try:
                next(work)(no_pause)
            except StopIteration as end:
                written: tuple[Queue, ...] = end.value
                return written
            except OSError as error:
                work.throw(error)

    def adding(self, records: Sequence[bytes]) -> Generator[Job, None, tuple[Queue, ...]]:
        """Add the records of the next items; none is the end of the source.

        Yields:
            Jobs, as `Target.adding`.

        Returns:
            The queues that must be durable before it goes on.

        Raises:
            JournalError: a queue could not be written.
        """
        self._offset += len(records)
        self._left = self._left - len(records) if records else 0
        for record in records:
            if not (yield from self._target.adding(record)):
                break
        return self._target.write()

    @property
    def copied(self) -> Moved:
        """What was done so far."""
        return Moved(self._target.added, self._target.refusal)
