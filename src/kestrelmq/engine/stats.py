"""Statistics of the server and of each queue: every one is declared once, here."""

import heapq
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.counters import COUNTERS, Counters
from kestrelmq.engine.queue import Queue

Kind = Literal["counter", "gauge"]
_SLICE: Final = 200
"""Queues that are added up at once."""
_SORTED: Final = 1000
"""Names that are sorted at once."""


@dataclass(frozen=True, slots=True)
class QueueStat:
    """One statistic of a queue.

    Attributes:
        name: as in `stats`, if it is there.
        kind: whether it only grows or goes up and down.
        read: reads it from a queue.
        meaning: what it says, with its unit.
        admin_only: whether `stats` leaves it out: clients find the queue's name in
            `queue_NAME_stat` by the ends that they know, and `queue_work_put_items` ends like the
            `items` of a queue `work_put`.
    """

    name: str
    kind: Kind
    read: Callable[[Queue], int]
    meaning: str
    admin_only: bool = False


QUEUE_STATS: Final[tuple[QueueStat, ...]] = (
    QueueStat("items", "gauge", len, "items waiting"),
    QueueStat("bytes", "gauge", lambda q: q.size, "bytes of data waiting"),
    QueueStat("total_items", "counter", lambda q: q.total_items, "items ever added"),
    QueueStat("logsize", "gauge", lambda q: q.journal.size, "bytes of journal"),
    QueueStat("expired_items", "counter", lambda q: q.expired_items, "items expired"),
    QueueStat(
        "expired_set_aside",
        "gauge",
        lambda q: q.set_aside,
        "expired items that expire_to_queue could not take yet",
    ),
    QueueStat("mem_items", "gauge", lambda q: q.memory_items, "items held in memory"),
    QueueStat("mem_bytes", "gauge", lambda q: q.memory_bytes, "bytes of data held in memory"),
    QueueStat("age", "gauge", lambda q: q.age, "wait of the item read last (ms)"),
    QueueStat("discarded", "counter", lambda q: q.discarded, "items dropped from a full queue"),
    QueueStat("waiters", "gauge", lambda q: len(q.waiters.line), "readers waiting"),
    QueueStat("open_transactions", "gauge", lambda q: len(q.open) - q.set_aside, "reads open"),
    QueueStat("transactions", "counter", lambda q: q.transactions, "transactional reads"),
    QueueStat(
        "canceled_transactions", "counter", lambda q: q.canceled_transactions, "reads given back"
    ),
    QueueStat("total_flushes", "counter", lambda q: q.total_flushes, "times flushed"),
    QueueStat("age_msec", "gauge", lambda q: q.age, "wait of the item read last (ms)"),
    QueueStat("create_time", "gauge", lambda q: q.create_time, "when it came into being (ms)"),
    QueueStat("put_items", "counter", lambda q: q.total_items, "items added", admin_only=True),
    QueueStat(
        "put_bytes", "counter", lambda q: q.put_bytes, "bytes of data added", admin_only=True
    ),
    QueueStat("get_items_hit", "counter", lambda q: q.get_hits, "reads that got an item"),
    QueueStat("get_items_miss", "counter", lambda q: q.get_misses, "reads that found none"),
    QueueStat(
        "journal_rewrites",
        "counter",
        lambda q: q.journal.rewrites,
        "times the journal, or what comes before a checkpoint in it, was rewritten to what lives",
    ),
    QueueStat("journal_syncs", "counter", lambda q: q.journal.syncs, "times forced to disk"),
    QueueStat("journal_rotations", "counter", lambda q: q.journal.rotations, "journal files begun"),
)


def queue_stats(queue: Queue) -> list[tuple[str, object]]:
    """Return a queue's statistics for `stats`, as (name, value), and its children's names."""
    pairs: list[tuple[str, object]] = [
        (stat.name, stat.read(queue)) for stat in QUEUE_STATS if not stat.admin_only
    ]
    if queue.children:
        pairs.append(("children", ",".join(child.name for child in queue.children)))
    if queue.failure is not None:
        pairs.append(("failure", _one_line(str(queue.failure))))
    return pairs


@dataclass(slots=True)
class _Totals:
    """All queues together, and those that were deleted."""

    items: int = 0
    bytes: int = 0
    memory_bytes: int = 0
    memory_limit: int = 0
    total_items: int = 0
    hits: int = 0
    misses: int = 0


def _totals(collection: QueueCollection) -> Generator[None, None, _Totals]:
    """Add all queues up; yield now and then.

    A queue that is deleted meanwhile still counts, and one that was before counts once: what only
    grows never falls from one time to the next.
    """
    retired = collection.retired
    totals = _Totals(
        total_items=retired.total_items, hits=retired.get_hits, misses=retired.get_misses
    )
    queues = list(collection.queues.values())
    for start in range(0, len(queues), _SLICE):
        for queue in queues[start : start + _SLICE]:
            totals.items += len(queue)
            totals.bytes += queue.size
            totals.memory_bytes += queue.memory_bytes
            totals.memory_limit += queue.config.max_memory_size
            totals.total_items += queue.total_items
            totals.hits += queue.get_hits
            totals.misses += queue.get_misses
        yield
    return totals


def server_stats(
    collection: QueueCollection, counters: Counters, *, uptime: int, now: int, version: str
) -> Generator[None, None, list[tuple[str, object]]]:
    """Return the global statistics, as (name, value); yield after each small piece of work.

    Args:
        collection: the queues.
        counters: what the server counts.
        uptime: in seconds.
        now: in seconds since the epoch.
        version: the server's.
    """
    totals = yield from _totals(collection)
    memory_used = totals.memory_bytes / totals.memory_limit if totals.memory_limit else 0
    return [
        ("uptime", uptime),
        ("time", now),
        ("version", version),
        ("curr_items", totals.items),
        ("total_items", totals.total_items),
        ("bytes", totals.bytes),
        ("reserved_memory_ratio", f"{memory_used:.3f}"),
        ("cmd_get", totals.hits + totals.misses),
        ("get_hits", totals.hits),
        ("get_misses", totals.misses),
        *((name, getattr(counters, name)) for name in COUNTERS),
        ("queue_creates", collection.creates),
        ("queue_deletes", collection.deletes),
        ("queue_expires", collection.expires),
        ("queues_loading", len(collection.loading)),
    ]


def sorted_names(collection: QueueCollection) -> Generator[None, None, Iterator[str]]:
    """Return the names of all queues in order, the damaged ones too; yield now and then.

    Sorting 100,000 names at once would take 50 ms.
    """
    names = [*collection.queues, *collection.damaged]
    runs = []
    for start in range(0, len(names), _SORTED):
        runs.append(sorted(names[start : start + _SORTED]))
        yield
    return heapq.merge(*runs)


def stats_of(collection: QueueCollection, name: str) -> list[tuple[str, object]]:
    """Return a queue's statistics; of one that could not be loaded, its failure; of none, none."""
    queue = collection.queues.get(name)
    if queue is not None:
        return queue_stats(queue)
    error = collection.damaged.get(name)
    return [] if error is None else [("failure", _one_line(str(error)))]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def damaged_queues(collection: QueueCollection) -> Mapping[str, str]:
    """Return the queues that could not be loaded, and why."""
    return {name: str(error) for name, error in collection.damaged.items()}
