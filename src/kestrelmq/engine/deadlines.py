"""Deadlines of open reads: which ones are overdue."""

import heapq
from collections.abc import Mapping
from typing import Final

_SLACK: Final = 64


class Deadlines:
    """When open reads end by themselves; holds at most a small multiple of the reads still open."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, xid: int, item: bytes, deadline: float, open_reads: Mapping[int, bytes]) -> None:
        """Let the read `xid` of `item` end at `deadline` (monotonic seconds)."""
        if len(self._heap) > 2 * len(open_reads) + _SLACK:
            self._heap = [entry for entry in self._heap if open_reads.get(entry[2]) is entry[3]]
            heapq.heapify(self._heap)
        self._sequence += 1
        heapq.heappush(self._heap, (deadline, self._sequence, xid, item))

    def next(self) -> float | None:
        """Return the earliest deadline, which may be that of a read that ended meanwhile."""
        return self._heap[0][0] if self._heap else None

    def overdue(self, now: float, open_reads: Mapping[int, bytes]) -> list[int]:
        """Return the xids of open reads whose deadline is not after `now`, and forget them.

        A read counts with its last deadline: one that was extended is not overdue by its first.
        """
        due: dict[int, bytes] = {}
        while self._heap and self._heap[0][0] <= now:
            _, _, xid, item = heapq.heappop(self._heap)
            if open_reads.get(xid) is item:
                due[xid] = item
        if due:
            later = {xid for _, _, xid, item in self._heap if due.get(xid) is item}
            return [xid for xid in due if xid not in later]
        return []
