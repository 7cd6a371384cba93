"""Looking at items anywhere in a queue, in memory or on disk, without taking them.

A `View` is made in the owner's thread, and read in any. It has the items that are in memory, and a
reader of its own for those that are on disk only. Upkeep may replace the journal's files meanwhile;
the owner's thread sees that afterwards (`is_current`), and makes another view (`Look`). A `Tour` is
a look after the other at a whole queue; each goes on reading where the last one ended.
"""

import os
import re
import time
from collections.abc import Callable, Generator
from typing import Final

from kestrelmq.errors import JournalError, PlaceRefused, QueueUnavailable
from kestrelmq.format.records import ADDX_HEADER, Item, item_size
from kestrelmq.journal.reader import JournalReader, too_few_items
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queue.queue import Queue

_SKIPPED_AT_ONCE: Final = 10_000
"""Items on disk that are skipped between two pauses."""
_READ_AT_ONCE: Final = 256 << 10
"""Bytes of items that are read from disk between two pauses."""
_LONGEST: Final = 20.0
"""Seconds that reading may take; skipping many millions of items on disk takes longer."""
_TOURED_ITEMS: Final = 10_000
"""The most items of each look of a tour; finding a place among very many items takes time."""
_TOURED_BYTES: Final = 1 << 20
"""After so many bytes of data, a look of a tour ends."""
_PLACE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_TRIES: Final = 5
"""How often files may be replaced while they are read."""


class View:
    """A part of a queue as it was at one moment.

    Attributes:
        total: how many items waited then.
        records: the items' records, once `load` has read them.
        failure: why it could not read them; None if it could.
    """

    def __init__(
        self,
        queue: Queue,
        offset: int,
        most: int,
        most_bytes: int,
        tour: "Tour | None" = None,
    ) -> None:
        """Look at the items from `offset` on; 0 is the head.

        Args:
            queue: the queue.
            offset: how many items to pass over.
            most: the most items to read.
            most_bytes: read no more after so many bytes of data; the last item may exceed it.
            tour: what this is a view of, if it is one; it goes on where the last one ended.
        """
        backlog = queue.backlog
        self.total = len(backlog)
        self.records: list[Item] = []
        self.failure: Exception | None = None
        self._queue = queue
        self._most_bytes = most_bytes
        held = len(backlog.memory)
        self._items = backlog.browse(most, offset)
        self._skip = max(0, offset - held)
        self._left = min(most, max(0, self.total - offset)) - len(self._items)
        self._reader = None
        self._files: list[str] = []
        self._state = _state(queue)
        self._are_written = queue.changes.are_written
        self._tour, self._place = tour, first_place(queue) + offset
        # Whether the reader is at the item behind those that were read.
        self._ends_on_disk = False
        journal = queue.journal
        if not isinstance(journal, FileJournal):
            return
        self._files = journal.files
        if tour is not None:
            self._reader = tour.take_reader(self._place, self._state)
            if self._reader is not None:
                self._items, self._skip = [], 0
                self._left = min(most, max(0, self.total - offset))
        if self._reader is None and self._left and backlog.behind is not None:
            self._reader = backlog.behind.reader.copy()

    @property
    def is_on_disk(self) -> bool:
        """Whether some of the items must be read from disk, which takes time."""
        return self._reader is not None

    @property
    def is_current(self) -> bool:
        """Whether no file was replaced since the view was made, so that what was read is right."""
        return self._reader is None or self._state == _state(self._queue)

    def load(self) -> None:
        """Read the items and keep them, or why they cannot be read; from any thread, once.

        Raises:
            QueueUnavailable: it takes too long.
        """
        try:
            self.records = self.read()
        except (OSError, JournalError) as error:
            self.failure = error

    def read(self, pause: Callable[[float], object] = time.sleep) -> list[Item]:
        """Return the items' records, in order; may be called from any thread, once.

        `pause` is called with a number of seconds after each piece of work.

        Raises:
            JournalError, OSError: the files cannot be read, or are not what they were.
            QueueUnavailable: it takes too long.
        """
        found, size = [], 0
        for record in self._items:
            found.append(record)
            size += item_size(record)
            if size >= self._most_bytes:
                return found
        if self._reader is not None:
            found += self._read_from_disk(self._most_bytes - size, pause)
        return found

    def _read_from_disk(self, most_bytes: int, pause: Callable[[float], object]) -> list[Item]:
        reader, files = self._reader, self._files
        assert reader is not None  # noqa: S101 # the caller looked
        began = worked_from = time.monotonic()
        found: list[Item] = []
        while most_bytes > 0 and len(found) < self._left:
            if self._skip:
                passed = reader.skip(files, min(self._skip, _SKIPPED_AT_ONCE))
                self._skip -= passed
            else:
                before = reader.item_bytes
                wanted = min(most_bytes, _READ_AT_ONCE)
                items = reader.read(files, self._left - len(found), wanted)
                found += items
                passed = len(items)
                most_bytes -= reader.item_bytes - before - ADDX_HEADER * passed
            if not passed:
                if self._are_written:  # another program has cut files short
                    raise too_few_items(files)
                break
            now = time.monotonic()
            if now - began > _LONGEST:
                raise QueueUnavailable(
                    f"queue {self._queue.name}: so many items cannot be passed over in "
                    f"{_LONGEST:g} s; look nearer to the head"
                )
            pause(min(now - worked_from, 1e-3))
            worked_from = time.monotonic()
        self._ends_on_disk = not self._skip
        return found

    def close(self) -> None:
        """Release the file, or leave it to the next view of the tour."""
        reader = self._reader
        is_right = self.failure is None and self.is_current
        if reader is not None and not (is_right and self._ends_on_disk and self._tour):
            reader.close()
            reader = None
        if self._tour is not None and is_right:
            self._tour.keep(self._place + len(self.records), reader, self._state)


class Look:
    """A look at items of a queue, which is repeated if its files are replaced meanwhile.

    Attributes:
        total: how many items waited, once `views` has ended; likewise:
        records: the items' records, in order.
        offset: how many items were passed over.
        behind: the place behind the last of the items.
    """

    def __init__(
        self,
        queue: Queue,
        offset: int,
        most: int,
        most_bytes: int,
        tour: "Tour | None" = None,
        *,
        place: int | None = None,
    ) -> None:
        """Prepare to look, perhaps from a place on; the other parameters are those of `View`."""
        self.total = self.behind = 0
        self.records: list[Item] = []
        self.offset = offset
        self._queue = queue
        self._part = (most, most_bytes, tour)
        self._place = place

    def views(self) -> Generator[View, None, None]:
        """Yield views; have each loaded before the next. To be run in the owner's thread.

        Raises:
            QueueUnavailable: the items cannot be read.
        """
        queue = self._queue
        for _ in range(_TRIES):
            if queue.state.is_closed:
                break
            if self._place is not None:
                self.offset = max(0, self._place - first_place(queue))
            behind = first_place(queue) + min(self.offset, len(queue))
            view = View(queue, self.offset, *self._part)
            try:
                yield view
            finally:
                view.close()
            if view.is_current:
                if view.failure is not None:
                    reason = f"queue {queue.name} cannot be read: {view.failure}"
                    raise QueueUnavailable(reason)
                self.total, self.records = view.total, view.records
                self.behind = behind + len(view.records)
                return
        raise QueueUnavailable(f"queue {queue.name}: its journal is being rewritten; try again")


class Tour:
    """Looks at all items that wait in a queue when it begins, some at a time.

    What is read from the queue meanwhile may make it leave out or repeat some items.
    """

    def __init__(
        self, queue: Queue, most: int = _TOURED_ITEMS, most_bytes: int = _TOURED_BYTES
    ) -> None:
        """Begin; `most` and `most_bytes` are those of each look, as of `View`."""
        self._queue = queue
        self._most, self._most_bytes = most, most_bytes
        # The place behind the last view. That of an item stays the same while it waits.
        self._place = first_place(queue)
        self._end = self._place + len(queue)
        # The reader of that view, if it is there, and the files that it reads.
        self._reader: JournalReader | None = None
        self._state: tuple[object, ...] = ()

    def looks(self) -> Generator[Look, None, None]:
        """Yield looks; each must have ended before the next. To be run in the owner's thread.

        Raises:
            QueueUnavailable: the queue was closed before the end.
        """
        queue = self._queue
        try:
            while self._place < self._end:
                if queue.state.is_closed:
                    raise QueueUnavailable(f"queue {queue.name} was deleted or closed meanwhile")
                begin = first_place(queue)
                offset = max(0, self._place - begin)
                left = min(self._end - begin, len(queue)) - offset
                if left <= 0:
                    return
                look = Look(queue, offset, min(self._most, left), self._most_bytes, self)
                yield look
                if not look.records:
                    return  # the rest is not written yet
        finally:
            self._close()

    def take_reader(self, place: int, state: tuple[object, ...]) -> JournalReader | None:
        """Return the reader, if it is at `place` of the same files; otherwise close it."""
        if place != self._place or state != self._state:
            self._close()
        reader, self._reader = self._reader, None
        return reader

    def keep(self, place: int, reader: JournalReader | None, state: tuple[object, ...]) -> None:
        """Keep the reader of a view that ended at `place`."""
        self._place, self._reader, self._state = place, reader, state

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def first_place(queue: Queue) -> int:
    """Return the place of the head of a queue."""
    return queue.backlog.total_items - len(queue)


def place_text(queue: Queue, place: int) -> str:
    """Return a place as clients know it; it is of use only while the queue stays loaded."""
    if not queue.browsed_as:
        queue.browsed_as = int.from_bytes(os.urandom(6)) + 1
    return f"{queue.browsed_as:x}:{place}"


def parse_place(queue: Queue, text: str) -> int:
    """Return the place that a text means. Raises PlaceRefused."""
    run, _, number = text.partition(":")
    if not queue.browsed_as or run != f"{queue.browsed_as:x}" or not _PLACE.fullmatch(number):
        raise PlaceRefused(f"{text!r:.60} is not a place in queue {queue.name}: begin at its head")
    return int(number)


def _state(queue: Queue) -> tuple[object, ...]:
    """Return what changes when a file of the journal is replaced, or is about to be."""
    journal = queue.journal
    if not isinstance(journal, FileJournal):
        return ()
    return tuple(journal.files), journal.rotations, journal.rewrites, queue.state.is_closed
