"""A large item that is written before it is added, so that other clients need not wait for that.

A thread writes it to a new file for each queue that gets it: the queue it is for, and its fanout
children. The files are not part of their journals yet. When the item is added, each becomes the
current file of its journal. A crash in between leaves the files, which replay ignores; the item was
not acknowledged.
"""

from kestrelmq.clock import Pause
from kestrelmq.engine.queue import Queue
from kestrelmq.errors import JournalError
from kestrelmq.journal.records import ADDX_HEADER, item_expiry, item_in_pieces
from kestrelmq.marks import PutMark


class WrittenAhead:
    """An item for a queue and its children.

    Attributes:
        record: the item, once it is written.
    """

    __slots__ = (
        "_added",
        "_expiries",
        "_expiry",
        "_files",
        "_mark",
        "_queue",
        "_records",
        "record",
    )

    def __init__(self, queue: Queue, added: int, expiry: int, mark: PutMark | None = None) -> None:
        """Prepare; `write` is to follow.

        Args:
            queue: the queue.
            added: when the item is added (ms since the epoch).
            expiry: when it expires (ms since the epoch), 0 for never.
            mark: that of its producer, if it has one.
        """
        self.record = b""
        self._queue = queue
        self._added = added
        self._expiry = expiry
        self._mark = mark
        self._files = {one: one.new_file_name() for one in queue.targets if one.can_write_ahead}
        self._expiries = {one: one.limited_expiry(added, expiry) for one in self._files}
        self._records: dict[int, bytes] = {}

    @property
    def is_useful(self) -> bool:
        """Whether there is anything to write."""
        return len(self._files) > 0

    def write(self, data: bytes | memoryview, pause: Pause) -> None:
        """Write an item of `data`; from any thread. Raises OSError.

        `pause` is called after each short piece.
        """
        self.write_record(item_in_pieces(self._added, self._expiry, data, pause), pause)

    def write_record(self, record: bytes, pause: Pause) -> None:
        """Do what `write` does, for an item that is already a record."""
        self.record = record
        self._records[item_expiry(record)] = record
        for one, file in list(self._files.items()):
            try:
                one.write_ahead(file, self._record_for(one, pause), pause, self._mark_for(one))
            except OSError:
                if one is self._queue:
                    raise
                del self._files[one]  # it gets the item as any other, and has the error again

    def _record_for(self, one: Queue, pause: Pause) -> bytes:
        """Return the record with the expiry that the item has in one of the queues."""
        expiry = self._expiries[one]
        record = self._records.get(expiry)
        if record is None:
            data = memoryview(self.record)[ADDX_HEADER:]
            record = self._records[expiry] = item_in_pieces(self._added, expiry, data, pause)
        return record

    def _mark_for(self, one: Queue) -> PutMark | None:
        if self._mark is None or one is self._queue:
            return self._mark
        return self._mark.by_master()

    def add(self) -> bool:
        """Do what `Queue.add_record` or `add_record_once` does, in the thread of the queues.

        If a child cannot be written, the others and the queue get the item all the same.

        Raises:
            QueueUnavailable: as these.
            JournalError: a journal could not be written.
        """
        queue, mark = self._queue, self._mark
        if mark is not None and not queue.is_next(mark):
            self.discard()
            return queue.add_record_once(self.record, mark)
        queue.check_writes()
        failure: JournalError | None = None
        for child in queue.children:
            try:
                self._accept(child)
            except JournalError as error:
                failure = failure or error
        is_stored = self._accept(queue)
        if failure is not None:
            raise failure
        return is_stored

    def _accept(self, one: Queue) -> bool:
        mark = self._mark_for(one)
        file = self._files.get(one)
        if file is not None:
            record = self._records[self._expiries[one]]
            return one.accept_written_ahead(record, file, self._expiry, mark)
        if mark is not None:
            return one.accept_once(self.record, mark, is_delayed=False)
        return one.accept(self.record, self._expiry)

    def discard(self) -> None:
        """Remove the files whose item was not added; the others have new names."""
        for one, file in self._files.items():
            one.discard_file(file)
