"""Which queues have something to do at some time, found in the order of time.

There may be a hundred thousand of them, so nobody looks at all regularly. One that may have got an
earlier deadline is `watch`ed: it is looked at in the next round, and says when to look again.
"""

from collections import deque
from typing import Generic, TypeVar

from kestrelmq.scheduling.deadline_heap import DeadlineHeap


class Timed:  # pragma: no cover: it only declares what a queue does
    """Something that has deadlines."""

    def check_deadlines(self) -> float | None:
        """Do what is due by now; return when to call this again, None if not before a change."""
        raise NotImplementedError


One = TypeVar("One")


class DeadlineWatch(Generic[One]):
    """Finds the queues to look at; all times are of one clock, and in one unit."""

    __slots__ = ("_entries", "_heap", "_new", "_number", "_numbered", "_ready")

    def __init__(self) -> None:
        """Start with none."""
        self._new: dict[One, None] = {}
        self._ready: deque[One] = deque()
        # The heap knows numbers, not queues: an entry that is over must not keep one in memory.
        self._heap: DeadlineHeap[tuple[float, int]] = DeadlineHeap()
        self._numbered: dict[int, One] = {}
        self._entries: dict[One, tuple[float, int]] = {}
        self._number = 0

    def __bool__(self) -> bool:
        """Whether there will be anything to do, now or later."""
        return bool(self._new or self._ready or self._entries)

    def watch(self, one: One) -> bool:
        """Look at `one` in the next round; return False if that is so already."""
        if one in self._new:
            return False
        self._new[one] = None
        return True

    def look_now(self, one: One) -> None:
        """Look at `one` in this round."""
        self._ready.append(one)

    def watch_all(self) -> None:
        """Look at everything in the next round."""
        self._new.update(dict.fromkeys(self._entries))

    def forget(self, one: One) -> None:
        """Do not look at `one` again, unless it is watched."""
        entry = self._entries.pop(one, None)
        if entry is not None:
            del self._numbered[entry[1]]

    def begin_round(self) -> None:
        """Begin a round: it is for all that are watched by now."""
        new, self._new = self._new, {}
        self._ready.extend(new)

    def take(self, now: float) -> One | None:
        """Return a queue to look at in this round, or None. `later` must follow."""
        if self._ready:
            return self._ready.popleft()
        while (first := self._heap.first) is not None and first <= now:
            one = self._numbered.get(self._heap.pop()[1])
            if one is not None:
                self.forget(one)
                return one
        return None

    def later(self, one: One, at: float | None, now: float) -> None:
        """Look at `one` again `at` that time; None for never.

        If that is `now`, in this round, but after all others.
        """
        if at is not None and at <= now:
            self._ready.append(one)
            return
        entry = self._entries.get(one)
        if at is None:
            self.forget(one)
        elif entry is None or at < entry[0]:
            self.forget(one)
            self._number += 1
            entry = self._entries[one] = (at, self._number)
            self._numbered[self._number] = one
            self._heap.push(entry, len(self._entries), self._is_live)

    def _is_live(self, entry: tuple[float, int]) -> bool:
        return entry[1] in self._numbered
