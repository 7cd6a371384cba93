"""How long operations take: histograms of bounded size, for the server and for each queue.

Measuring every operation would cost more than some operations themselves, so at most one in each
millisecond is measured. Its time is that of its turn: from when its request could be received to
when its reply was sent. Counts in a histogram are therefore numbers of samples, not of operations.

The histograms of a queue exist as long as the queue.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final

from kestrelmq.format.records import ADDX, REMOVE, REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.durability import Committable

_PARTS: Final = 8
"""Cells for each power of two, so that a cell is at most 12.5 % wide."""
_PART_BITS: Final = 4  # bits of a value that select its cell: the leading 1 and the part number
_MAX_VALUE: Final = 2**40 - 1  # 12 days

PERCENTILES: Final[tuple[float, ...]] = (50.0, 90.0, 95.0, 99.0, 99.9)
_READS: Final = frozenset({REMOVE, REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID})


class Latency(StrEnum):
    """What is measured; the value is its name in the statistics."""

    SET = "set_latency_usec"
    GET_HIT = "get_hit_latency_usec"
    GET_MISS = "get_miss_latency_usec"
    DELIVERY = "delivery_latency_usec"
    GET_TIMEOUT = "get_timeout_usec"

    @property
    def meaning(self) -> str:
        """What the histogram measures, in words."""
        return _MEANINGS[self]


_MEANINGS: Final = {
    Latency.SET: "time to serve an add",
    Latency.GET_HIT: "time to serve a read that got an item",
    Latency.GET_MISS: "time to serve a read that found none",
    Latency.DELIVERY: "time an item waited, from its add to its read",
    Latency.GET_TIMEOUT: "time a read waited in vain",
}


class Histogram:
    """Counts of values in cells; a cell is an eighth as wide as the power of two below it.

    The counts are in an array, from the first cell to the last that have any: as objects, they
    would keep memory of the times when they were made from being given back to the system.

    Attributes:
        total: sum of the values.
    """

    __slots__ = ("_counts", "_first", "total")

    def __init__(self) -> None:
        self._counts = array("Q")
        self._first = 0
        self.total = 0

    @property
    def cells(self) -> dict[int, int]:
        """The count of each cell that is not empty, in order; at most 304 cells."""
        return {cell: count for cell, count in enumerate(self._counts, self._first) if count}

    def record(self, value: int) -> None:
        """Count `value`; less than 0 counts as 0, and more than 2^40 - 1 as 2^40 - 1."""
        value = min(max(value, 0), _MAX_VALUE)
        cell = cell_of(value)
        if not 0 <= cell - self._first < len(self._counts):
            self._reach(cell)
        self._counts[cell - self._first] += 1
        self.total += value

    def _reach(self, cell: int) -> None:
        """Have a count for `cell`."""
        counts = self._counts
        if not counts:
            self._first = cell
        before = max(0, self._first - cell)
        behind = max(0, cell + 1 - self._first - len(counts))
        self._counts = _zeros(before) + counts + _zeros(behind)
        self._first -= before

    def copy(self) -> "Histogram":
        """Return a copy, which later values do not change."""
        other = Histogram()
        other._counts, other._first, other.total = self._counts[:], self._first, self.total
        return other

    def since(self, earlier: "Histogram | None") -> "Histogram":
        """Return what was counted after the copy `earlier` was made; everything if it is None."""
        if earlier is None:
            return self
        other = Histogram()
        other._counts, other._first = self._counts[:], self._first
        other.total = self.total - earlier.total
        for cell, count in earlier.cells.items():
            other._counts[cell - other._first] -= count
        return other

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def up_to(self, bounds: Sequence[int]) -> list[int]:
        """Return for each of the ascending `bounds` how many values are not above it."""
        counts = []
        cells = list(self.cells.items())
        index = running = 0
        for bound in bounds:
            while index < len(cells) and cell_end(cells[index][0]) - 1 <= bound:
                running += cells[index][1]
                index += 1
            counts.append(running)
        return counts

    def summary(self) -> "Summary":
        """Return the usual summary numbers, accurate to the width of a cell."""
        count = self.count
        if not count:
            return Summary(0, 0, 0, 0, dict.fromkeys(PERCENTILES, 0))
        cells = list(self.cells.items())
        values = {percent: _value_at(cells, percent / 100 * count) for percent in PERCENTILES}
        return Summary(
            count,
            cell_start(cells[0][0]),
            cell_end(cells[-1][0]) - 1,
            round(self.total / count),
            values,
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A histogram in a few numbers.

    Attributes:
        count: number of values.
        minimum, maximum, average: of the values.
        percentiles: the value at each percentage.
    """

    count: int
    minimum: int
    maximum: int
    average: int
    percentiles: dict[float, int]


def _zeros(count: int) -> "array[int]":
    return array("Q", bytes(8 * count))


def cell_of(value: int) -> int:
    """Return the cell that counts `value`, which must not be negative."""
    shift = max(0, value.bit_length() - _PART_BITS)
    return shift * _PARTS + (value >> shift)


def cell_start(cell: int) -> int:
    """Return the least value that a cell counts."""
    if cell < 2 * _PARTS:
        return cell
    shift = cell // _PARTS - 1
    return (cell - shift * _PARTS) << shift


def cell_end(cell: int) -> int:
    """Return the least value above a cell."""
    return cell_start(cell + 1)


def _value_at(cells: list[tuple[int, int]], rank: float) -> int:
    running = list(accumulate(count for _, count in cells))
    return cell_end(cells[bisect_left(running, rank)][0]) - 1


Histograms = dict[Latency, Histogram]
"""Histograms by what they measure; those without a value are missing."""


Sample = tuple[Queue, Latency]
"""An operation of this turn that is being measured: on which queue, and as what."""


class Latencies:
    """The server's histograms.

    Attributes:
        server: the histograms of all queues together.
        last_look: when `choose_sample` was last called (ms); the loop calls it once a millisecond.
        missed: a queue that a read found empty since the last call of `choose_sample`.
    """

    def __init__(self) -> None:
        self.server: Histograms = {}
        self.last_look = 0
        self.missed: Queue | None = None
        self._number = 0

    def choose_sample(self, now: int, dirty: Sequence[Committable]) -> Sample | None:
        """Choose an operation of this turn to measure, before the commit; None if there is none.

        Args:
            now: the time in milliseconds.
            dirty: the queues that were changed in this turn.
        """
        self.last_look = now
        missed, self.missed = self.missed, None
        self._number = number = self._number + 1
        if dirty:
            queue = dirty[number % len(dirty)]
            assert isinstance(queue, Queue)  # noqa: S101 # nothing else collects changes
            opcode = queue.changes.sample(number)
            if opcode == ADDX:
                return queue, Latency.SET
            if opcode in _READS:
                return queue, Latency.GET_HIT
        return (missed, Latency.GET_MISS) if missed is not None else None

    def record_sample(self, sample: Sample, microseconds: int) -> None:
        """Record the time of a chosen operation, up to its reply."""
        queue, kind = sample
        self.record(queue, kind, microseconds)
        if kind is Latency.GET_HIT:
            self.record(queue, Latency.DELIVERY, queue.changes.last_wait * 1000)

    def timed_out(self, queue: Queue, seconds: float) -> None:
        """Record how long a read waited in vain."""
        self.record(queue, Latency.GET_TIMEOUT, round(seconds * 1e6))

    def record(self, queue: Queue, kind: Latency, microseconds: int) -> None:
        """Record a time, for the queue and for the server."""
        for place in (self.server, self.histograms_of(queue)):
            histogram = place.get(kind)
            if histogram is None:
                histogram = place[kind] = Histogram()
            histogram.record(microseconds)

    @staticmethod
    def histograms_of(queue: Queue) -> Histograms:
        """Return a queue's histograms."""
        histograms = queue.histograms
        if not isinstance(histograms, dict):
            histograms = queue.histograms = {}
        return histograms
