"""A heap of deadlines of which most are over before they are reached, and which may be millions.

An entry that is over stays in the heap until it is reached, or until there are too many such
entries. Then this heap becomes the old one, and a new one begins. Each push moves a few entries
from the old to the new one, without those that are over; so no step takes long.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

_SLACK: Final = 64
"""How many entries that are over to keep, beyond one for each that is not."""
_MOVED_AT_ONCE: Final = 2
"""Entries that each push moves from the old heap; more than one, so that it gets empty."""

_EMPTY: Final[list[Any]] = []
"""An empty heap that nobody changes; it is shared, because there are very many."""

Entry = TypeVar("Entry", bound=tuple[Any, ...])


class DeadlineHeap(Generic[Entry]):
    """Entries by deadline; an entry is a tuple of it and a number of its own, and what else."""

    __slots__ = ("_heap", "_old")

    def __init__(self) -> None:
        """Start with none."""
        self._heap: list[Entry] = _EMPTY
        self._old: list[Entry] = _EMPTY

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    @property
    def first(self) -> float | None:
        """The earliest deadline, of an entry that may be over; None if there is no entry."""
        found: float | None = self._heap[0][0] if self._heap else None
        if self._old:
            first: float = self._old[0][0]
            if found is None or first < found:
                return first
        return found

    def push(self, entry: Entry, live: int, is_live: Callable[[Entry], bool]) -> None:
        """Add an entry; about `live` entries are not over, and `is_live` tells which."""
        if self._heap is _EMPTY:
            self._heap = []
        if self._old:
            for _ in range(min(_MOVED_AT_ONCE, len(self._old))):
                moved = heapq.heappop(self._old)
                if is_live(moved):
                    heapq.heappush(self._heap, moved)
        elif len(self._heap) > 2 * live + _SLACK:
            self._old, self._heap = self._heap, []
        heapq.heappush(self._heap, entry)

    def pop(self) -> Entry:
        """Remove the first entry and return it; it may be over."""
        old = self._old
        if old and not (self._heap and self._heap[0] <= old[0]):
            return heapq.heappop(old)
        return heapq.heappop(self._heap)

    def take_all(self) -> list[list[Entry]]:
        """Remove all entries; return lists of them, which may be long to free."""
        taken = [self._heap, self._old]
        self._heap, self._old = _EMPTY, _EMPTY
        return taken
