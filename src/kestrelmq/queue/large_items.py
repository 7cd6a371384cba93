"""A large item that is written before it is added, so that other clients need not wait for that.

A thread writes it to a new file for each queue that gets it: the queue it is for, and its fanout
children; if it is delayed, for their companions. The files are not part of their journals yet. When
the item is added, each becomes the current file of its journal. A crash in between leaves the
files, which replay ignores; the item was not acknowledged. For a queue without a journal, the
thread only makes the record.
"""

from collections.abc import Callable, Iterable, Sequence

from kestrelmq.clock import Pause
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.notes import ItemNote, item_note
from kestrelmq.format.records import ADDX_HEADER, Item, item_expiry, item_in_pieces, noted
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.durability import sync_now


class WrittenAhead:
    """An item for a queue and its children.

    Attributes:
        queue: the queue.
        record: the item, once it is written.
    """

    __slots__ = (
        "_added",
        "_deliveries",
        "_expiries",
        "_expiry",
        "_files",
        "_is_alone",
        "_is_delayed",
        "_letter",
        "_mark",
        "_records",
        "_writers",
        "queue",
        "record",
    )

    def __init__(
        self,
        queue: Queue,
        added: int,
        expiry: int,
        mark: PutMark | None = None,
        *,
        is_delayed: bool = False,
        deliveries: int = 0,
        letter: bytes = b"",
        is_alone: bool = False,
    ) -> None:
        """Prepare; `write` is to follow.

        Args:
            queue: the queue.
            added: when the item is added, or when it is due (ms since the epoch).
            expiry: when it expires (ms since the epoch), 0 for never.
            mark: that of its producer, if it has one.
            is_delayed: whether it is delayed until then.
            deliveries: how often it was handed out before.
            letter: its packed `DeadLetter`, if it is one.
            is_alone: whether the children of the queue do not get it.
        """
        self.record = b""
        self.queue = queue
        self._added = added
        self._expiry = expiry
        self._mark = mark
        self._is_delayed = is_delayed
        self._deliveries = deliveries
        self._letter = letter
        self._is_alone = is_alone
        queues = (queue,) if is_alone else queue.targets
        writers = {one: one.writes_ahead(is_delayed=is_delayed) for one in queues}
        # Who writes the item for which queue, and the files.
        self._writers = {one: writer for one, writer in writers.items() if writer is not None}
        self._files = {one: one.new_file_name() for one in self._writers}
        self._expiries = {one: one.limited_expiry(added, expiry) for one in queues}
        self._records: dict[int, bytes] = {}

    @property
    def is_useful(self) -> bool:
        """Whether there is anything to write to a file, or an expiry to limit, which copies it."""
        return len(self._files) > 0 or set(self._expiries.values()) != {self._expiry}

    @property
    def targets(self) -> tuple[Queue, ...]:
        """The queues whose journals it is written to, as far as is known yet."""
        if self._is_alone:
            return (self.queue,)
        due = self._added if self._is_delayed else 0
        return self.queue.all_written_by(due, self._mark)

    def write(self, data: bytes | memoryview, pause: Pause) -> None:
        """Write an item of `data`; from any thread. Raises OSError.

        `pause` is called after each short piece.
        """
        self.write_record(item_in_pieces(self._added, self._expiry, data, pause), pause)

    def write_record(self, record: bytes, pause: Pause) -> None:
        """Do what `write` does, for an item that is already a record."""
        self.record = record
        self._records[item_expiry(record)] = record
        for one in self._expiries:
            own = self._record_for(one, pause)
            file = self._files.get(one)
            if file is None:
                continue
            try:
                self._writers[one].write_ahead(file, own, pause, self._note_for(one))
            except OSError:
                if one is self.queue:
                    raise
                del self._files[one]  # it gets the item as any other, and has the error again

    def _record_for(self, one: Queue, pause: Pause) -> bytes:
        """Return the record with the expiry that the item has in one of the queues."""
        expiry = self._expiries[one]
        record = self._records.get(expiry)
        if record is None:
            data = memoryview(self.record)[ADDX_HEADER:]
            made = item_in_pieces(self._added, expiry, data, pause)
            record = self._records[expiry] = made
        return record

    def _noted(self, record: bytes) -> Item:
        return noted(record, self._deliveries, self._letter)

    def _note_for(self, one: Queue) -> ItemNote | None:
        mark = self._mark_for(one)
        if mark is not None:
            return self._writers[one].mark_note(mark)
        return self._note if self._deliveries or self._letter else None

    def _note(self, record: bytes, last_xid: int) -> bytes:
        return item_note(self._noted(record), last_xid)

    def _mark_for(self, one: Queue) -> PutMark | None:
        if self._mark is None or one is self.queue:
            return self._mark
        return self._mark.by_master()

    def add(self) -> bool:
        """Do what the queue's `put` does, in the thread of the queues.

        Raises:
            QueueUnavailable: as these.
            JournalError: a journal could not be written.
        """
        queue, mark = self.queue, self._mark
        if mark is not None and not queue.is_next(mark):
            self.discard()
            return queue.add_record_once(self.record, mark, is_delayed=self._is_delayed)
        queue.check_writes()
        if self._is_alone:
            return self._accept(queue)
        return queue.accept_in_all(self._accept, is_delayed=self._is_delayed)

    def _accept(self, one: Queue) -> bool:
        mark, file = self._mark_for(one), self._files.get(one)
        record = self._records.get(self._expiries.get(one, self._expiry), self.record)
        if self._is_delayed:
            if mark is not None:
                return one.accept_once(record, mark, is_delayed=True, file=file)
            return one.accept_delayed(record, file=file)
        if file is not None:
            return one.accept_written_ahead(self._noted(record), file, self._expiry, mark)
        # Whatever is written together with it would be joined with it, which copies it.
        one.write_now()
        if mark is not None:
            is_stored = one.accept_once(record, mark, is_delayed=False)
        else:
            is_stored = one.accept(self._noted(record), self._expiry)
        one.write_now()
        return is_stored

    def discard(self) -> None:
        """Remove the files whose item was not added; the others have new names."""
        for one, file in self._files.items():
            one.discard_file(file)


def add_to_each(adds: Iterable[Callable[[], bool]], unavailable: str | None = None) -> bool:
    """Add an item to each of several queues; a failure of one does not stop the others.

    Args:
        adds: each adds the item to one queue, and returns whether the queue accepted it.
        unavailable: why a further queue cannot take it; None if all can.

    Returns:
        False if any queue refused it.

    Raises:
        QueueUnavailable: a queue cannot take it; the others have it, or have refused it.
        JournalError: a journal could not be written; likewise.
    """
    accepted = True
    failure: str | None = None  # keeping the exception itself would be a reference cycle
    for add in adds:
        try:
            accepted &= add()
        except QueueUnavailable as error:
            unavailable = str(error)
        except JournalError as error:
            failure = str(error)
    if failure is not None:
        raise JournalError(failure)
    if unavailable is not None:
        raise QueueUnavailable(unavailable)
    return accepted


class LargePut:
    """A large item for the queues of a name, each with its children: a queue, or an alias.

    Attributes:
        writing: the queue whose files are written, or were last.
    """

    __slots__ = ("_failure", "_parts", "writing")

    def __init__(self, parts: Sequence[WrittenAhead], failure: str | None = None) -> None:
        """Prepare; `write` is to follow.

        Args:
            parts: the item for each of the queues, of which there is at least one.
            failure: why another queue cannot take it; None if all can.
        """
        self._parts = parts
        self._failure = failure
        self.writing = parts[0].queue

    @property
    def is_useful(self) -> bool:
        """Whether there is anything to write to a file, or to copy."""
        return any(part.is_useful for part in self._parts)

    @property
    def targets(self) -> list[Queue]:
        """The queues whose journals it is written to."""
        return [queue for part in self._parts for queue in part.targets]

    def write(self, data: bytes | memoryview, pause: Pause) -> None:
        """Write an item of `data`; from any thread. Raises OSError. See `WrittenAhead.write`."""
        first = self._parts[0]
        self.writing = first.queue
        first.write(data, pause)
        self._write_others(first.record, pause)

    def write_record(self, record: bytes, pause: Pause) -> None:
        """Do what `write` does, for an item that is already a record."""
        first = self._parts[0]
        self.writing = first.queue
        first.write_record(record, pause)
        self._write_others(record, pause)

    def _write_others(self, record: bytes, pause: Pause) -> None:
        for part in self._parts[1:]:
            self.writing = part.queue
            part.write_record(record, pause)

    def add(self) -> bool:
        """Add it to every queue; return False if any refused it.

        Raises:
            QueueUnavailable: a queue cannot take it; the others have it, or have refused it.
            JournalError: a journal could not be written; likewise.
        """
        return add_to_each([part.add for part in self._parts], self._failure)

    def has_room(self, size: int) -> bool:
        """Whether every queue would accept an item of `size` bytes now."""
        return all(part.queue.has_room(size) for part in self._parts)

    def move(self, size: int, *, durable: bool) -> bool:
        """Do what `QueueCollection.move_to` does with an item of `size` bytes."""
        if len(self._parts) > 1 and not self.has_room(size):
            return False
        accepted = self.add()
        for queue in self.targets:
            queue.write_now()
        failure = sync_now(*self.targets) if durable else None
        if failure is not None:
            raise failure
        return accepted

    def discard(self) -> None:
        """Remove the files whose item was not added; the others have new names."""
        for part in self._parts:
            part.discard()
