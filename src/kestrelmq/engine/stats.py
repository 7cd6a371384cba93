"""Statistics of the server and of each queue: every one is declared once, here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.counters import COUNTERS, Counters
from kestrelmq.engine.queue import Queue

Kind = Literal["counter", "gauge"]


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


class QueueSums:
    """What the global statistics need of all queues together; they may be added in slices.

    Attributes:
        items, total_items, size: waiting, ever added, and bytes waiting.
        hits, misses: reads that got an item, and that found none.
        memory, memory_limit: bytes of data held in memory, and allowed to be.
    """

    __slots__ = ("hits", "items", "memory", "memory_limit", "misses", "size", "total_items")

    def __init__(self) -> None:
        self.items = self.total_items = self.size = 0
        self.hits = self.misses = 0
        self.memory = self.memory_limit = 0

    def add(self, queues: Iterable[Queue]) -> Self:
        """Add up `queues`, too; return these sums."""
        for queue in queues:
            self.items += len(queue)
            self.total_items += queue.total_items
            self.size += queue.size
            self.hits += queue.get_hits
            self.misses += queue.get_misses
            self.memory += queue.memory_bytes
            self.memory_limit += queue.config.max_memory_size
        return self


def server_stats(
    collection: QueueCollection,
    counters: Counters,
    sums: QueueSums,
    *,
    uptime: int,
    now: int,
    version: str,
) -> list[tuple[str, object]]:
    """Return the global statistics, as (name, value); `uptime` and `now` in seconds."""
    hits = collection.retired.get_hits + sums.hits
    misses = collection.retired.get_misses + sums.misses
    ratio = sums.memory / sums.memory_limit if sums.memory_limit else 0
    return [
        ("uptime", uptime),
        ("time", now),
        ("version", version),
        ("curr_items", sums.items),
        ("total_items", collection.retired.total_items + sums.total_items),
        ("bytes", sums.size),
        ("reserved_memory_ratio", f"{ratio:.3f}"),
        ("cmd_get", hits + misses),
        ("get_hits", hits),
        ("get_misses", misses),
        *((name, getattr(counters, name)) for name in COUNTERS),
        ("queue_creates", collection.creates),
        ("queue_deletes", collection.deletes),
        ("queue_expires", collection.expires),
        ("queues_loading", len(collection.loading)),
    ]


def all_stats(
    collection: QueueCollection, server: list[tuple[str, object]]
) -> list[tuple[str, object]]:
    """Return `server` and every queue's statistics, named `queue_NAME_stat`.

    A queue that could not be loaded has one only: its failure.
    """
    return server + [
        (f"queue_{name}_{stat}", content)
        for name in sorted({*collection.queues, *collection.damaged})
        for stat, content in stats_of(collection, name)
    ]


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
