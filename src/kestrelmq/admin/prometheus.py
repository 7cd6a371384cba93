"""`/metrics`: the statistics in the text format of Prometheus.

Cardinality is bounded: the first `QUEUES` queues have series of their own. All others are added up
under the queue `~other`, a name that no queue can have. A queue that has its own series keeps them
until it is deleted. A request may ask for some queues only, by patterns of their names; then the
others are left out, and not added up. Rendering pauses between slices, so that it never blocks the
event loop.
"""

import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kestrelmq.admin.sampling import state_of
from kestrelmq.admin.slices import batches
from kestrelmq.protocol.stats import QUEUE_STATS, SERVER_STATS, Metric, Statistic
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.metrics import Histogram, Latency
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.status import Status
from kestrelmq.version import BUILD, VERSION

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
QUEUES: Final = 1000
OTHER: Final = "~other"
_SLICE: Final = 200
_MATCHED: Final = 200
"""Names that are compared with patterns at a time; long patterns take 60 us for a long name."""
_LOOKED_UP: Final = 2000
"""Names that are looked up at a time."""
_SUMMED: Final = 200
"""Queues that are counted or added up at a time."""
_PREFIX: Final = "kestrelmq_"
_ADDED_UP: Final = [stat for stat in QUEUE_STATS if stat.metric is not None and stat.adds_up]

# Bucket bounds of the histograms (microseconds): for the server's own work, and for waiting items.
_SERVICE: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 100_000, 1_000_000)
_WAITING: Final = (
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
    86_400_000_000,
)


Samples = CounterMetricFamily | GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class _SingleFamily(Collector):
    """A collector of one family."""

    family: Family

    def collect(self) -> Iterable[Family]:
        """Return the family."""
        return [self.family]


class Exposition:
    """Renders `/metrics`."""

    __slots__ = ("_chosen", "_context", "_others", "_process")

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._chosen: dict[str, None] = {}
        # By counter of `~other`: the total of the queues that left it, and its sum last time.
        self._others: dict[str, tuple[float, float]] = {}
        self._process = ProcessCollector(namespace="kestrelmq", registry=None)

    async def render(self, patterns: Sequence[str] = ()) -> list[bytes]:
        """Render all metrics as text, in parts.

        Args:
            patterns: only queues whose names match one of these (as file names in a shell) have
                series; without patterns, every queue.
        """
        stats = dict(await in_slices(self._context.server_stats()))
        return await in_slices(self._rendered(stats, patterns))

    def _rendered(
        self, stats: Mapping[str, Any], patterns: Sequence[str]
    ) -> Generator[None, None, list[bytes]]:
        """Render one family after the other."""
        parts = []
        if patterns:
            own: list[Queue] = yield from self._matching(patterns)
            others: list[Queue] = []
        else:
            own, others = yield from self._chosen_queues()
        states = yield from self._states()
        sums = yield from self._sums(others)
        for family in chain(self._families(stats, states), self._queue_families(own, sums)):
            text = generate_latest(_SingleFamily(family))
            parts.append(text if family.documentation else _without_header(text))
            yield
        return parts

    # --- the server ---

    def _states(self) -> Generator[None, None, Counter[str]]:
        """Count the queues by state."""
        collection = self._context.collection
        states = Counter(
            up=0, failing=0, damaged=len(collection.damaged), loading=len(collection.loading)
        )
        for queues in batches(list(collection.queues.values()), _SUMMED):
            for queue in queues:
                state = state_of(queue)
                states[state if state in states else "up"] += 1
            yield
        return states

    def _families(self, stats: Mapping[str, Any], states: Mapping[str, int]) -> Iterator[Family]:
        context = self._context
        build = {"version": VERSION, "build": BUILD}
        yield InfoMetricFamily(_PREFIX + "build", "the server", build)
        yield from self._process.collect()
        families: dict[Metric, Samples] = {}
        for stat in SERVER_STATS:
            if stat.metric is not None:
                family = families.setdefault(stat.metric, _family(stat))
                family.add_metric(_labels(None, stat), float(stats[stat.name]))
        yield from families.values()
        status = GaugeMetricFamily(
            _PREFIX + "status", "1 for the status the server is in", labels=["status"]
        )
        for value in Status:
            status.add_metric([value.value], float(value is context.status.status))
        yield status
        queues = GaugeMetricFamily(_PREFIX + "queues", "queues, by state", labels=["state"])
        for state, count in states.items():
            queues.add_metric([state], count)
        yield queues
        for latency, histogram in context.latencies.server.items():
            yield _histogram(latency, "", [("", histogram)])

    # --- queues ---

    def _sums(self, others: list[Queue]) -> Generator[None, None, dict[str, float]]:
        """Add up the statistics of queues without series of their own, by name."""
        if not others:
            return {}
        read = attrgetter(*(stat.source for stat in _ADDED_UP))
        sums = [0.0] * len(_ADDED_UP)
        for queues in batches(others, _SUMMED):
            sums = list(map(sum, zip(sums, *map(read, queues), strict=True)))
            yield
        return {
            stat.name: self._monotonic_total(stat.name, total) if stat.kind == "counter" else total
            for stat, total in zip(_ADDED_UP, sums, strict=True)
        }

    def _queue_families(self, own: list[Queue], sums: Mapping[str, float]) -> Iterator[Family]:
        by_metric: dict[Metric, list[Statistic]] = {}
        for stat in QUEUE_STATS:
            if stat.metric is not None:
                by_metric.setdefault(stat.metric, []).append(stat)
        for stats in by_metric.values():
            for number, stat in enumerate(stats):
                for family in self._of_stat(stat, own, sums):
                    if number:
                        family.documentation = ""
                    yield family
        latencies = self._context.latencies
        measured = [
            (queue.name, histograms[Latency.DELIVERY])
            for queue in own
            if Latency.DELIVERY in (histograms := latencies.histograms_of(queue))
        ]
        for number, slice_ in enumerate(batches(measured, _SLICE // 4)):
            family = _histogram(Latency.DELIVERY, "queue_", slice_)
            family.documentation = "" if number else family.documentation
            yield family

    def _matching(self, patterns: Sequence[str]) -> Generator[None, None, list[Queue]]:
        """Return the first queues, by name, that match one of the patterns."""
        matches = re.compile("|".join(map(translate, patterns))).match
        queues = dict(self._context.collection.queues)
        found: list[str] = []
        for names in batches(queues, _MATCHED):
            found = sorted([*found, *filter(matches, names)])[:QUEUES]
            yield
        return [queues[name] for name in found if not queues[name].state.is_closed]

    def _of_stat(
        self, stat: Statistic, own: list[Queue], sums: Mapping[str, float]
    ) -> Iterator[Family]:
        read = attrgetter(stat.source)
        for number, queues in enumerate(list(batches(own, _SLICE)) or [[]]):
            family = _family(stat, "queue")
            if number:
                family.documentation = ""
            for queue in queues:
                value = read(queue)
                if value is not None or stat.kind != "limit":
                    family.add_metric(_labels(queue.name, stat), _sample(stat, value))
            if not number and stat.name in sums:
                family.add_metric(_labels(OTHER, stat), sums[stat.name])
            yield family

    def _monotonic_total(self, name: str, total: float) -> float:
        """Return `total` plus what queues that are no longer in `~other` had counted.

        Without it the counter could fall, and Prometheus would take that for a restart.
        """
        gone, before = self._others.get(name, (0, 0))
        gone += max(before - total, 0)
        self._others[name] = gone, total
        return gone + total

    def _chosen_queues(self) -> Generator[None, None, tuple[list[Queue], list[Queue]]]:
        """Return the queues with series of their own, and the others."""
        queues = self._context.collection.queues
        self._chosen = {name: None for name in self._chosen if name in queues}
        for name in queues:
            if len(self._chosen) >= QUEUES:
                break
            self._chosen.setdefault(name)
        own = [queues[name] for name in self._chosen]
        others: list[Queue] = []
        for some in batches(list(queues.values()), _LOOKED_UP):
            others += [queue for queue in some if queue.name not in self._chosen]
            yield
        return own, others


def _family(stat: Statistic, *labels: str) -> Samples:
    """Return the empty family of a statistic that has one; `labels` come before its own."""
    if stat.metric is None:
        raise ValueError(f"{stat.name} has no metric")
    unit = " (seconds)" if stat.unit == "ms" else ""
    kind = CounterMetricFamily if stat.kind == "counter" else GaugeMetricFamily
    labels = (*labels, stat.metric.label) if stat.metric.label else labels
    return kind(_PREFIX + stat.metric.name, stat.metric.help or stat.help + unit, labels=labels)


def _labels(queue: str | None, stat: Statistic) -> list[str]:
    """Return the labels of a statistic, of the server or of a queue."""
    owner = [] if queue is None else [queue]
    return [*owner, stat.label] if stat.label else owner


def _sample(stat: Statistic, value: Any) -> float:
    if stat.kind == "flag":
        return float(bool(value))
    return float(value / 1000 if stat.unit == "ms" else value)


def _histogram(kind: Latency, scope: str, entries: list[tuple[str, Histogram]]) -> Family:
    waits = kind in {Latency.DELIVERY, Latency.GET_TIMEOUT}
    bounds = _WAITING if waits else _SERVICE
    family = HistogramMetricFamily(
        _PREFIX + scope + kind.value.removesuffix("_usec") + "_seconds",
        f"{kind.meaning}, sampled",
        labels=["queue"] if scope else [],
    )
    for name, histogram in entries:
        counts = histogram.up_to(bounds)
        buckets = [(str(bound / 1e6), float(n)) for bound, n in zip(bounds, counts, strict=True)]
        buckets.append(("+Inf", float(histogram.count)))
        family.add_metric([name] if scope else [], buckets, histogram.total / 1e6)
    return family


def _without_header(text: bytes) -> bytes:
    """Remove the comment lines of a slice: only the first slice of a family has them."""
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
