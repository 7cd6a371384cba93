"""The recent past of the queues that change, in bounded memory.

A point holds until the next one: a queue that does not change costs nothing. At most `QUEUES`
queues are remembered, those that changed last, with at most `POINTS` points of 40 bytes each.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

QUEUES: Final = 1000
POINTS: Final = 360
_FIELDS: Final = 5
_SPARE: Final = 40
"""Points dropped at once when there are too many."""


@dataclass(frozen=True, slots=True)
class Point:
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


class History:
    """Points by queue name."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: OrderedDict[str, array[float]] = OrderedDict()

    def add(  # the fields of a point
        self, name: str, time: int, items: int, put_rate: float, get_rate: float, oldest: int
    ) -> None:
        """Remember how queue `name` is from `time` on."""
        points = self._points.get(name)
        if points is None:
            points = self._points[name] = array("d")
            if len(self._points) > QUEUES:
                self._points.popitem(last=False)
        self._points.move_to_end(name)
        points.extend((time, items, put_rate, get_rate, oldest))
        if len(points) > (POINTS + _SPARE) * _FIELDS:
            del points[: _SPARE * _FIELDS]

    def forget(self, name: str) -> None:
        """Drop what is known of a queue."""
        self._points.pop(name, None)

    def points(self, name: str) -> list[Point]:
        """Return what is known of a queue, oldest first."""
        known = self._points.get(name, array("d"))
        return [
            Point(int(time), int(items), put_rate, get_rate, int(oldest))
            for time, items, put_rate, get_rate, oldest in zip(
                *(known[field::_FIELDS] for field in range(_FIELDS)), strict=True
            )
        ]
