"""The recent past of the queues that change, in bounded memory.

A point holds until the next one: a queue that does not change costs nothing. A queue has at most
`POINTS` points and a bit, and all together `MOST` of 40 bytes each; then the queues that did not
change for longest are forgotten.
"""

from array import array
from collections import OrderedDict
from typing import Final, NamedTuple

POINTS: Final = 360
MOST: Final = 400_000
_SPARE: Final = 40
"""Points dropped at once when there are too many."""


class Point(NamedTuple):
    """How a queue was from `time` on.

    Attributes:
        time: milliseconds since the epoch.
        items: waiting.
        put_rate, get_rate: adds and reads a second, since the point before.
        oldest: when the oldest item had been added (ms), 0 when there was none.
    """

    time: int
    items: int
    put_rate: float
    get_rate: float
    oldest: int


_FIELDS: Final = len(Point._fields)


class History:
    """Points by queue name."""

    __slots__ = ("_count", "_points")

    def __init__(self) -> None:
        self._points: OrderedDict[str, array[float]] = OrderedDict()
        self._count = 0

    def add(self, name: str, point: Point) -> None:
        """Remember how queue `name` is from a time on."""
        points = self._points.get(name)
        if points is None:
            points = self._points[name] = array("d")
        self._points.move_to_end(name)
        points.extend(point)
        self._count += 1
        if len(points) > (POINTS + _SPARE) * _FIELDS:
            del points[: _SPARE * _FIELDS]
            self._count -= _SPARE
        while self._count > MOST:
            self.forget(next(iter(self._points)))

    def forget(self, name: str) -> None:
        """Drop what is known of a queue."""
        points = self._points.pop(name, None)
        if points is not None:
            self._count -= len(points) // _FIELDS

    def points(self, name: str) -> list[Point]:
        """Return what is known of a queue, oldest first."""
        known = self._points.get(name, array("d"))
        return [
            Point(int(time), int(items), put_rate, get_rate, int(oldest))
            for time, items, put_rate, get_rate, oldest in zip(
                *(known[field::_FIELDS] for field in range(_FIELDS)), strict=True
            )
        ]
