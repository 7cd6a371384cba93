"""The delayed items of a queue: those that are not due yet.

Each is in the queue's journal as a note, which has its record; the add time of the record is when
the item is due. When it is due it joins the queue: it is added as any item, with a note of its
number before it (see `notes`). They join in the order of their due times, those of one time in that
of their numbers; so the next to join is always the first of a heap.
"""

import heapq
from collections.abc import Iterator
from struct import Struct
from typing import Final

from kestrelmq.format.notes import DelayedPart, delayed_notes
from kestrelmq.format.records import ADDX_HEADER, item_add_time
from kestrelmq.journal.memory_budget import OVERHEAD

Entry = tuple[int, bytes]
"""When an item is due (ms) and its number, as one integer; and its record."""
_NUMBER_BITS: Final = 64
_SIZE: Final = Struct("<i")
_NOTE_OVERHEAD: Final = 65
"""Bytes that a delayed item takes in a file besides five for each four of its data."""


class DelayedItems:
    """The delayed items of a queue.

    Attributes:
        size: bytes of data in them.
        last_number: the number of the last item that was delayed.
    """

    __slots__ = ("_heap", "_late", "_part", "_part_number", "_undone", "last_number", "size")

    def __init__(self) -> None:
        """Start with none."""
        self.size = self.last_number = 0
        self._heap: list[Entry] = []
        # The keys of entries whose adding was taken back.
        self._undone: set[int] = set()
        # What replay has of an item that takes several notes, and its number.
        self._part, self._part_number = bytearray(), 0
        # Entries that replay passed over, because damage has taken the note that they have joined.
        self._late: list[Entry] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self._heap) - len(self._undone)

    def has_room(self, size: int, most: int) -> bool:
        """Whether `size` bytes more fit in `most` bytes of memory; the first item always does."""
        return not len(self) or self.size + size + OVERHEAD * (len(self) + 1) <= most

    @property
    def next_due(self) -> int | None:
        """When the next item is due (ms); None if there is none."""
        self._drop_undone()
        return self._heap[0][0] >> _NUMBER_BITS if self._heap else None

    def _drop_undone(self) -> None:
        while self._undone and self._heap[0][0] in self._undone:
            self._undone.remove(heapq.heappop(self._heap)[0])

    def add(self, number: int, record: bytes) -> int:
        """Add an item, whose add time is when it is due; return its key, for `take_back`."""
        key = _key(number, record)
        heapq.heappush(self._heap, (key, record))
        self.size += len(record) - ADDX_HEADER
        self.last_number = max(self.last_number, number)
        return key

    def take_back(self, key: int, size: int) -> None:
        """Undo `add` of an item with `size` bytes of data."""
        self._undone.add(key)
        self.size -= size

    def take(self) -> Entry:
        """Take the next item."""
        self._drop_undone()
        entry = heapq.heappop(self._heap)
        self.size -= len(entry[1]) - ADDX_HEADER
        return entry

    def restore(self, entry: Entry) -> None:
        """Undo `take`."""
        heapq.heappush(self._heap, entry)
        self.size += len(entry[1]) - ADDX_HEADER

    def drop_all(self) -> list[Entry]:
        """Drop all items; return what is to be freed: there may be millions."""
        useless, self._heap = self._heap, []
        self._undone.clear()
        self._late.clear()
        self.size = 0
        return useless

    @property
    def note_bytes(self) -> int:
        """About how many bytes of a file their notes take."""
        return self.size + self.size // 4 + _NOTE_OVERHEAD * len(self)

    # --- the journal ---

    def apply(self, found: DelayedPart) -> bytes | None:
        """Apply a note of kind DELAYED; return the item's record if that is complete."""
        number, offset, record = found
        if offset:
            if number != self._part_number or offset != len(self._part):
                return None
            self._part += record
            if not _is_whole(self._part):
                return None
            record, self._part = bytes(self._part), bytearray()
        elif not _is_whole(record):
            self._part, self._part_number = bytearray(record), number
            return None
        self.add(number, record)
        return record

    def joined(self, number: int, due: int) -> None:
        """Remove the item `number`, due at `due` (ms): it was added to the queue."""
        key = due << _NUMBER_BITS | number
        heap = self._heap
        while heap and heap[0][0] < key:
            self._late.append(heapq.heappop(heap))
        if heap and heap[0][0] == key:
            self.take()

    def end(self) -> None:
        """Finish: there are no more records."""
        self._part = bytearray()
        for entry in self._late:
            heapq.heappush(self._heap, entry)
        self._late = []

    def snapshot(self) -> list[Entry]:
        """Return the items, to be written later."""
        undone = self._undone
        if not undone:
            return self._heap.copy()
        return [entry for entry in self._heap if entry[0] not in undone]

    def in_order(self) -> list[bytes]:
        """Return the records in the order in which they join."""
        return [record for _, record in sorted(self.snapshot())]


def entry_number(entry: Entry) -> int:
    """Return the number of an item."""
    return entry[0] & (1 << _NUMBER_BITS) - 1


def _is_whole(record: bytes | bytearray) -> bool:
    """Whether the bytes of a record are all there."""
    length = len(record)
    return length >= ADDX_HEADER and length == _SIZE.unpack_from(record, 1)[0] + 5


def key_of(found: DelayedPart) -> int | None:
    """Return the key of the delayed item whose beginning a note has; None if it has none."""
    number, offset, part = found
    return None if offset or len(part) < ADDX_HEADER else _key(number, part)


def _key(number: int, record: bytes) -> int:
    return item_add_time(record) << _NUMBER_BITS | number


def notes_of(items: list[Entry], last_xid: int) -> Iterator[bytes]:
    """Yield the notes of items; this empties the list, because it may be the last to have them."""
    while items:
        entry = items.pop()
        yield delayed_notes(entry_number(entry), entry[1], last_xid)
