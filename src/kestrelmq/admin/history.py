"""The recent history of the queues, in bounded memory.

A point is valid until the next one, so a queue that does not change adds none. A queue has at most
about `POINTS_PER_QUEUE` points. All queues together have at most `MAX_POINTS` points of 40 bytes
each; above that, the queues that have not changed for the longest time are forgotten.
"""

from array import array
from collections import OrderedDict
from typing import Final, NamedTuple

POINTS_PER_QUEUE: Final = 360
MAX_POINTS: Final = 400_000
_SPARE: Final = 40
"""A queue may have this many points over `POINTS_PER_QUEUE`; then as many are dropped at once."""


class Point(NamedTuple):
    """The state of a queue from `time` on.

    Attributes:
        time: milliseconds since the epoch.
        items: number of waiting items.
        put_rate, get_rate: items added and read per second since the sample before.
        oldest: when the oldest item was added (ms since the epoch); 0 if there was none.
    """

    time: int
    items: int
    put_rate: float
    get_rate: float
    oldest: int


_FIELDS: Final = len(Point._fields)


class History:
    """The recent points of each queue."""

    __slots__ = ("_count", "_points")

    def __init__(self) -> None:
        self._points: OrderedDict[str, array[float]] = OrderedDict()
        self._count = 0

    def add(self, name: str, point: Point) -> None:
        """Append a point to the history of queue `name`."""
        points = self._points.get(name)
        if points is None:
            points = self._points[name] = array("d")
        self._points.move_to_end(name)
        points.extend(point)
        self._count += 1
        if len(points) > (POINTS_PER_QUEUE + _SPARE) * _FIELDS:
            del points[: _SPARE * _FIELDS]
            self._count -= _SPARE
        while self._count > MAX_POINTS:
            self.forget(next(iter(self._points)))

    def forget(self, name: str) -> None:
        """Drop the history of a queue."""
        points = self._points.pop(name, None)
        if points is not None:
            self._count -= len(points) // _FIELDS

    def points(self, name: str) -> list[Point]:
        """Return the points of a queue, oldest first."""
        known = self._points.get(name, array("d"))
        return [
            Point(int(time), int(items), put_rate, get_rate, int(oldest))
            for time, items, put_rate, get_rate, oldest in zip(
                *(known[field::_FIELDS] for field in range(_FIELDS)), strict=True
            )
        ]
