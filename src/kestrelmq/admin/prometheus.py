"""`/metrics`: the statistics as Prometheus wants them.

Cardinality is bounded: the first `QUEUES` queues that were seen have series of their own, all
others are added up under the queue `~other`, a name that no queue can have. A queue keeps its
place for as long as it lives. Rendering pauses between slices, so it never holds the loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kestrelmq.engine.metrics import Histogram, Latency
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.stats import QUEUE_STATS, QueueStat
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.status import Status
from kestrelmq.version import VERSION

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
QUEUES: Final = 1000
OTHER: Final = "~other"
_SLICE: Final = 200
_PREFIX: Final = "kestrelmq_"

# Bounds of the histograms in microseconds: what a server does itself, and what items wait.
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

# Statistics of a queue by their metric, with what one unit is there.
_NAMES: Final[dict[str, tuple[str, float]]] = {
    "items": ("queue_items", 1),
    "bytes": ("queue_bytes", 1),
    "put_items": ("queue_added_items", 1),
    "put_bytes": ("queue_added_bytes", 1),
    "logsize": ("queue_journal_bytes", 1),
    "expired_items": ("queue_expired_items", 1),
    "expired_set_aside": ("queue_expired_set_aside", 1),
    "mem_items": ("queue_memory_items", 1),
    "mem_bytes": ("queue_memory_bytes", 1),
    "age_msec": ("queue_last_wait_seconds", 1e-3),
    "discarded": ("queue_discarded_items", 1),
    "waiters": ("queue_waiters", 1),
    "open_transactions": ("queue_open_reads", 1),
    "transactions": ("queue_transactions", 1),
    "canceled_transactions": ("queue_canceled_transactions", 1),
    "total_flushes": ("queue_flushes", 1),
    "create_time": ("queue_created_timestamp_seconds", 1e-3),
    "get_items_hit": ("queue_get_hits", 1),
    "get_items_miss": ("queue_get_misses", 1),
    "journal_rewrites": ("queue_journal_rewrites", 1),
    "journal_syncs": ("queue_journal_syncs", 1),
    "journal_rotations": ("queue_journal_rotations", 1),
}
LEFT_OUT: Final = frozenset({"total_items", "age"})
"""Statistics of a queue that are second names of others."""

# Of queues that are added up, these have no sum.
_NO_SUM: Final = frozenset({"age_msec", "create_time"})

_SERVER: Final = (
    ("curr_connections", "connections", "gauge", "clients connected"),
    ("total_connections", "accepted_connections", "counter", "clients ever connected"),
    ("bytes_read", "received_bytes", "counter", "bytes read from clients"),
    ("bytes_written", "sent_bytes", "counter", "bytes written to clients"),
    ("queue_creates", "queue_creates", "counter", "queues created"),
    ("queue_deletes", "queue_deletes", "counter", "queues deleted, those that expired included"),
    ("queue_expires", "queue_expires", "counter", "queues that expired"),
    ("total_items", "added_items", "counter", "items added"),
    ("cmd_monitor_get", "monitored_items", "counter", "items sent to monitors"),
)
_COMMANDS: Final = ("get", "set", "peek", "monitor")


@dataclass(frozen=True, slots=True)
class _One(Collector):
    """A collector of one family."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        """Return the family."""
        return [self.family]


class Exposition:
    """Renders `/metrics`."""

    __slots__ = ("_chosen", "_context", "_others", "_process")

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._chosen: dict[str, None] = {}
        # By counter: what queues that left the others had added, and the sum at the last look.
        self._others: dict[str, tuple[float, float]] = {}
        self._process = ProcessCollector(namespace="kestrelmq", registry=None)

    async def render(self) -> list[bytes]:
        """Return all metrics as text, in parts."""
        parts = []
        stats = dict(await in_slices(self._context.server_stats()))
        for family in self._families(stats):
            parts.append(generate_latest(_One(family)))
            await asyncio.sleep(0)
        for family in self._queue_families():
            text = generate_latest(_One(family))
            parts.append(text if family.documentation else _without_header(text))
            await asyncio.sleep(0)
        return parts

    # --- the server ---

    def _families(self, stats: Mapping[str, object]) -> Iterator[Metric]:
        context = self._context
        yield InfoMetricFamily(_PREFIX + "build", "the server", {"version": VERSION})
        yield from self._process.collect()
        uptime = float(str(stats["uptime"]))
        yield GaugeMetricFamily(_PREFIX + "uptime_seconds", "seconds since the start", uptime)
        for name, metric, kind, meaning in _SERVER:
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(_PREFIX + metric, meaning, float(str(stats[name])))
        commands = CounterMetricFamily(_PREFIX + "commands", "requests", labels=["command"])
        for command in _COMMANDS:
            commands.add_metric([command], float(str(stats[f"cmd_{command}"])))
        yield commands
        reads = CounterMetricFamily(_PREFIX + "gets", "reads, by result", labels=["result"])
        reads.add_metric(["hit"], float(str(stats["get_hits"])))
        reads.add_metric(["miss"], float(str(stats["get_misses"])))
        yield reads
        status = GaugeMetricFamily(
            _PREFIX + "status", "1 for the status the server is in", labels=["status"]
        )
        for value in Status:
            status.add_metric([value.value], float(value is context.status.status))
        yield status
        states = GaugeMetricFamily(_PREFIX + "queues", "queues, by state", labels=["state"])
        collection = context.collection
        failing = sum(queue.failure is not None for queue in collection.queues.values())
        states.add_metric(["up"], len(collection.queues) - failing)
        states.add_metric(["failing"], failing)
        states.add_metric(["damaged"], len(collection.damaged))
        states.add_metric(["loading"], len(collection.loading))
        yield states
        for latency, histogram in context.latencies.server.items():
            yield _histogram(latency, "", [("", histogram)])

    # --- queues ---

    def _queue_families(self) -> Iterator[Metric]:
        own, others = self._chosen_queues()
        for stat in QUEUE_STATS:
            if stat.name in _NAMES:
                yield from self._of_stat(stat, own, others)
        yield from _gauge("queue_oldest_item_timestamp_seconds", _OLDEST, own, _oldest)
        yield from _gauge("queue_read_behind", _BEHIND, own, lambda q: float(q.read_behind))
        yield from _gauge("queue_failing", _FAILING, own, lambda q: float(q.failure is not None))
        latencies = self._context.latencies
        measured = [
            (queue.name, histograms[Latency.DELIVERY])
            for queue in own
            if Latency.DELIVERY in (histograms := latencies.of(queue))
        ]
        for slice_, first in _slices(measured):
            family = _histogram(Latency.DELIVERY, "queue_", slice_)
            family.documentation = family.documentation if first else ""
            yield family

    def _of_stat(self, stat: QueueStat, own: list[Queue], others: list[Queue]) -> Iterator[Metric]:
        name, unit = _NAMES[stat.name]
        is_counter = stat.kind == "counter"
        kind = CounterMetricFamily if is_counter else GaugeMetricFamily
        meaning = stat.meaning.replace("(ms)", "(seconds)")
        for start in range(0, len(own) or 1, _SLICE):
            family = kind(_PREFIX + name, "" if start else meaning, labels=["queue"])
            for queue in own[start : start + _SLICE]:
                family.add_metric([queue.name], stat.read(queue) * unit)
            if others and not start and stat.name not in _NO_SUM:
                total: float = sum(map(stat.read, others))
                if is_counter:
                    total = self._never_less(stat.name, total)
                family.add_metric([OTHER], total * unit)
            yield family

    def _never_less(self, name: str, total: float) -> float:
        """Return `total` and what queues that are no longer among the others had added to it.

        A counter that falls would be taken for one that began anew.
        """
        gone, before = self._others.get(name, (0, 0))
        gone += max(before - total, 0)
        self._others[name] = gone, total
        return gone + total

    def _chosen_queues(self) -> tuple[list[Queue], list[Queue]]:
        """Return the queues with series of their own, and the others."""
        queues = self._context.collection.queues
        self._chosen = {name: None for name in self._chosen if name in queues}
        for name in queues:
            if len(self._chosen) >= QUEUES:
                break
            self._chosen.setdefault(name)
        own = [queues[name] for name in self._chosen]
        others = [queue for name, queue in queues.items() if name not in self._chosen]
        return own, others


_OLDEST: Final = "when the oldest waiting item was added; 0 when there is none"
_BEHIND: Final = "1 while part of the queue is on disk only"
_FAILING: Final = "1 while the queue's journal cannot be written"


def _oldest(queue: Queue) -> float:
    return queue.oldest / 1000


def _slices(
    entries: list[tuple[str, Histogram]],
) -> Iterator[tuple[list[tuple[str, Histogram]], bool]]:
    for start in range(0, len(entries), _SLICE // 4):
        yield entries[start : start + _SLICE // 4], start == 0


def _gauge(
    name: str, meaning: str, own: list[Queue], read: Callable[[Queue], float]
) -> Iterator[Metric]:
    for start in range(0, len(own) or 1, _SLICE):
        family = GaugeMetricFamily(_PREFIX + name, "" if start else meaning, labels=["queue"])
        for queue in own[start : start + _SLICE]:
            family.add_metric([queue.name], read(queue))
        yield family


def _histogram(kind: Latency, scope: str, entries: list[tuple[str, Histogram]]) -> Metric:
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
    """Return the samples of a slice: a family is introduced once."""
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
