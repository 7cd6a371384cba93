"""The history of the queues, in bounded memory: in detail, and in steps for an hour and a day.

A point is valid until the next one, so a queue that does not change adds none. A queue has at most
about `POINTS_PER_QUEUE` points in each. All queues together have at most `MAX_POINTS` points of 40
bytes each, 16 MB; above that, the queues that have not changed for the longest time are forgotten.
In steps it is kept of `MAX_STEPPED` queues: an hour and a day take at most 9 MB each, however many
queues there are.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

POINTS_PER_QUEUE: Final = 360
MAX_POINTS: Final = 400_000
MAX_STEPPED: Final = 500
Range = Literal["minutes", "hour", "day"]
"""Which history: in detail, or in steps for an hour or a day."""
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


class Totals(NamedTuple):
    """What a queue has counted at a time.

    Attributes:
        time: milliseconds since the epoch.
        items: number of waiting items.
        added, taken: items ever added and read.
        oldest: when the oldest item was added (ms since the epoch); 0 if there was none.
    """

    time: int
    items: int
    added: float
    taken: float
    oldest: int


@dataclass(slots=True)
class _Step:
    """The step in which a queue changed last; `before` is what was known when it began."""

    begun: int
    before: Totals
    last: Totals

    def point(self, milliseconds: int) -> Point:
        """Return the point of the step, with rates over so much of it."""
        put_rate, get_rate = (
            max(0.0, round(1000 * (after - before) / milliseconds, 3))
            for before, after in (
                (self.before.added, self.last.added),
                (self.before.taken, self.last.taken),
            )
        )
        return Point(self.begun, self.last.items, put_rate, get_rate, self.last.oldest)


class SteppedHistory:
    """A point for each step in which a queue changed; its rates are the averages over the step."""

    __slots__ = ("_history", "_span", "_step", "_steps")

    def __init__(self, step: int, span: int) -> None:
        """`step` and `span` are in milliseconds: how long a step is, and how much is shown."""
        self._step = step
        self._span = span
        self._history = History()
        self._steps: OrderedDict[str, _Step] = OrderedDict()

    def add(self, name: str, now: Totals, added: float, taken: float) -> None:
        """Take what a queue has counted, changed or not; before, it was `added` and `taken`."""
        begun = now.time - now.time % self._step
        step = self._steps.get(name)
        if step is None:
            if self._has_room(begun):
                self._steps[name] = _Step(begun, now._replace(added=added, taken=taken), now)
            return
        if begun > step.begun:
            for point in self._ended(step, begun):
                self._history.add(name, point)
            step.begun, step.before = begun, step.last
            self._steps.move_to_end(name)
        step.last = now

    def _has_room(self, begun: int) -> bool:
        """Whether another queue may be kept; one that has not changed in this step makes room."""
        if len(self._steps) < MAX_STEPPED:
            return True
        oldest, step = next(iter(self._steps.items()))
        if step.begun >= begun:
            return False
        self.forget(oldest)
        return True

    def _ended(self, step: _Step, now: int) -> list[Point]:
        """Return the point of a step that has ended, and one for the idle time after it, if any."""
        point = step.point(self._step)
        if now <= step.begun + self._step:
            return [point]
        idle = point._replace(time=step.begun + self._step, put_rate=0.0, get_rate=0.0)
        return [point, idle]

    def forget(self, name: str) -> None:
        """Drop the history of a queue."""
        self._history.forget(name)
        self._steps.pop(name, None)

    def points(self, name: str, now: int) -> list[Point]:
        """Return the points of a queue, oldest first: from the one that was valid `span` ago."""
        step = self._steps.get(name)
        if step is None:
            return []
        points = self._history.points(name)
        if now - step.begun < 2 * self._step:
            points.append(step.point(min(self._step, max(1000, now - step.begun))))
        else:
            points += self._ended(step, now)
        before = sum(point.time < now - self._span for point in points)
        return points[max(0, before - 1) :]


class Histories:
    """The history of each queue, in detail and in steps."""

    __slots__ = ("_recent", "_stepped")

    def __init__(self) -> None:
        self._recent = History()
        self._stepped: dict[Range, SteppedHistory] = {
            "hour": SteppedHistory(15_000, 3_600_000),
            "day": SteppedHistory(300_000, 86_400_000),
        }

    def add(self, name: str, point: Point) -> None:
        """Append a point to the detailed history of queue `name`."""
        self._recent.add(name, point)

    def count(self, name: str, now: Totals, added: float, taken: float) -> None:
        """Take what queue `name` has counted, for the history in steps; see `SteppedHistory`."""
        for stepped in self._stepped.values():
            stepped.add(name, now, added, taken)

    def forget(self, name: str) -> None:
        """Drop the history of a queue."""
        self._recent.forget(name)
        for stepped in self._stepped.values():
            stepped.forget(name)

    def points(self, name: str, wanted: Range = "minutes", now: int = 0) -> list[Point]:
        """Return the points of a queue, oldest first; in detail if it has none in steps."""
        stepped = self._stepped.get(wanted)
        return (stepped and stepped.points(name, now)) or self._recent.points(name)
