"""The statistics endpoints of Ostrich, the admin service of the original Kestrel.

`counters` only grow and `metrics` are distributions. Without `period` both cover the time since
the start; with `period=N` they cover the last finished window of at least N seconds. `gauges` are
current values. The statistics of a queue are named `q/NAME/stat`.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.slices import clear_in_slices, slices
from kestrelmq.protocol.stats import SERVER_STATS
from kestrelmq.queues.metrics import Histogram, Histograms, Summary
from kestrelmq.queues.stats import damage_texts, queue_texts, read_counters, read_gauges
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.version import BUILD, VERSION

_SLICE: Final = 50
_MOST_PERIODS: Final = 4
LONGEST_PERIOD: Final = 86_400
_KINDS: Final = {stat.name: stat.kind for stat in SERVER_STATS}


Value = TypeVar("Value")
Section = dict[str, dict[str, Value]]
"""Values by name, by what is before the names: nothing for the server's, `q/NAME/` for a queue's.

One dictionary of all names would be so large that the loop would wait each time it grows.
"""


@dataclass(slots=True)
class StatisticsSnapshot:
    """Every statistic at one time, or over one window of time."""

    counters: Section[int] = field(default_factory=dict)
    metrics: Section[Histogram] = field(default_factory=dict)
    gauges: Section[float] = field(default_factory=dict)
    labels: Section[str] = field(default_factory=dict)

    async def since(self, earlier: "StatisticsSnapshot") -> "StatisticsSnapshot":
        """Return the counters and metrics counted since `earlier`."""
        between = StatisticsSnapshot()
        async for some in slices(self.counters.items(), _SLICE):
            for owner, counters in some:
                before = earlier.counters.get(owner, {})
                # The counters of a queue that was deleted and created again start from 0.
                between.counters[owner] = {
                    name: value - before.get(name, 0) if value >= before.get(name, 0) else value
                    for name, value in counters.items()
                }
        async for parts in slices(self.metrics.items(), _SLICE):
            for owner, histograms in parts:
                old = earlier.metrics.get(owner, {})
                between.metrics[owner] = {
                    name: histogram.since(old.get(name)) for name, histogram in histograms.items()
                }
        return between


Render = Callable[[StatisticsSnapshot], Awaitable[list[bytes]]]


@dataclass(slots=True)
class _Window:
    """The windows of one period.

    Attributes:
        begun: when the current window began (seconds of the clock).
        start: the statistics at that time.
        finished: what was counted in the last finished window.
    """

    begun: float
    start: StatisticsSnapshot
    finished: StatisticsSnapshot


class Ostrich:
    """Reads the statistics and keeps the windows of the periods that clients ask for."""

    __slots__ = ("_clock", "_context", "_windows")

    def __init__(self, context: ServerContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._windows: OrderedDict[int, _Window] = OrderedDict()

    async def rendered(self, period: int | None, render: Render) -> list[bytes]:
        """Render the statistics over `period` seconds, or since the start if it is None."""
        now = await self._read()
        if period is None:
            parts = await render(now)
            await clear_in_slices(now.counters, now.metrics)
        else:
            found = await self._over(period, now)
            parts = await render(
                StatisticsSnapshot(found.counters, found.metrics, now.gauges, now.labels)
            )
        await clear_in_slices(now.gauges, now.labels)
        return parts

    async def _over(self, period: int, now: StatisticsSnapshot) -> StatisticsSnapshot:
        begun = self._clock()
        window = self._windows.get(period)
        if window is None:
            kept = StatisticsSnapshot(now.counters, now.metrics)
            self._windows[period] = _Window(begun, kept, kept)
            while len(self._windows) > _MOST_PERIODS:
                _, window = self._windows.popitem(last=False)
                await _drop(window.start, window.finished)
            return now
        self._windows.move_to_end(period)
        if begun >= window.begun + period:
            start, finished = window.start, window.finished
            window.begun, window.start = begun, StatisticsSnapshot(now.counters, now.metrics)
            window.finished = await now.since(start)
            await _drop(start, finished)
        return window.finished

    async def _read(self) -> StatisticsSnapshot:
        context = self._context
        snapshot = StatisticsSnapshot()
        counters: dict[str, int] = {}
        gauges: dict[str, float] = {}
        labels: dict[str, str] = {}
        for name, value in await in_slices(context.server_stats()):
            match _KINDS[name]:
                case "counter":
                    counters[name] = value
                case "text":
                    labels[name] = value
                case _:
                    gauges[name] = float(value)
        labels["status"] = context.status.status.value
        snapshot.counters[""], snapshot.gauges[""], snapshot.labels[""] = counters, gauges, labels
        _add_metrics(snapshot, "", context.latencies.server)
        async for queues in slices(list(context.collection.queues.values()), _SLICE):
            for queue in queues:
                owner = f"q/{queue.name}/"
                snapshot.counters[owner] = dict(read_counters(queue))
                snapshot.gauges[owner] = dict(read_gauges(queue))
                snapshot.labels[owner] = dict(queue_texts(queue))
                _add_metrics(snapshot, owner, context.latencies.histograms_of(queue))
        async for damaged in slices(list(context.collection.damaged.items()), _SLICE):
            for name, error in damaged:
                snapshot.labels[f"q/{name}/"] = dict(damage_texts(error))
        return snapshot


def _add_metrics(snapshot: StatisticsSnapshot, owner: str, histograms: Histograms) -> None:
    snapshot.metrics[owner] = {
        kind.value: histogram.copy() for kind, histogram in histograms.items()
    }


async def _drop(*snapshots: StatisticsSnapshot) -> None:
    """Free the parts of the windows that are no longer needed."""
    for snapshot in snapshots:
        await clear_in_slices(snapshot.counters, snapshot.metrics)


def read_period(text: str | None) -> int | None:
    """Parse the `period` parameter (seconds). Raises ApiError: it is not valid."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= LONGEST_PERIOD:
        return int(text)
    raise ApiError(400, "invalid_query", f"period: allowed: 1 to {LONGEST_PERIOD} seconds")


async def as_json(snapshot: StatisticsSnapshot) -> list[bytes]:
    """Render the statistics as Ostrich's JSON, in parts."""
    parts: list[bytes] = []
    for title, section in _sections(snapshot):
        parts.append(("," if parts else "{").encode() + json.dumps(title).encode() + b":{")
        comma = b""
        async for owners in slices(section.items(), _SLICE):
            told = {name: _json_value(value) for name, value in _named(owners)}
            if told:
                parts.append(comma + json.dumps(told, ensure_ascii=False)[1:-1].encode())
                comma = b","
        parts.append(b"}")
    return [*parts, b"}\n"]


async def as_text(snapshot: StatisticsSnapshot) -> list[bytes]:
    """Render the statistics as Ostrich's text, in parts."""
    parts: list[bytes] = []
    for title, section in _sections(snapshot):
        parts.append(f"{title}:\n".encode())
        async for owners in slices(section.items(), _SLICE):
            lines = [f"  {name}: {_line(_json_value(value))}\n" for name, value in _named(owners)]
            parts.append("".join(lines).encode())
    return parts


def _named(owners: Iterable[tuple[str, Mapping[str, object]]]) -> Iterator[tuple[str, object]]:
    """Yield every value with its whole name."""
    for owner, values in owners:
        for name, value in values.items():
            yield owner + name, value


def _sections(
    snapshot: StatisticsSnapshot,
) -> tuple[tuple[str, Mapping[str, Mapping[str, object]]], ...]:
    return (
        ("counters", snapshot.counters),
        ("metrics", snapshot.metrics),
        ("gauges", snapshot.gauges),
        ("labels", snapshot.labels),
    )


def _json_value(value: object) -> object:
    return _distribution(value.summary()) if isinstance(value, Histogram) else value


def _line(value: object) -> str:
    if isinstance(value, dict):
        return f"({', '.join(f'{key}={number}' for key, number in value.items())})"
    return str(value)


def _distribution(summary: Summary) -> dict[str, int]:
    names = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p999"}
    return {
        "count": summary.count,
        "minimum": summary.minimum,
        "maximum": summary.maximum,
        "average": summary.average,
    } | {names[percent]: value for percent, value in summary.percentiles.items()}


def server_info(context: ServerContext) -> dict[str, object]:
    """Return the content of `/server_info.json`."""
    uptime = time.monotonic() - context.started
    started = time.time() - uptime
    return {
        "name": "kestrelmq",
        "version": VERSION,
        "build": BUILD,
        "start_time": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(started)),
        "uptime": int(uptime * 1000),
    }
