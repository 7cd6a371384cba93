"""Reading the statistics that `protocol.stats` declares, from queues and from the server."""

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from kestrelmq.errors import QueueUnavailable
from kestrelmq.protocol.stats import QUEUE_STATS, SERVER_STATS, Statistic
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.counters import Counters

Pairs = Iterable[tuple[str, Any]]
"""Names and values."""

_SLICE: Final = 200
"""Queues that are summed up at once."""
_SORTED: Final = 1000
"""Names that are sorted at once."""


def reader(stats: Iterable[Statistic]) -> Callable[[object], Pairs]:
    """Return a function that reads `stats`, at least two, from a queue or from `ServerNumbers`."""
    names, sources = zip(*((stat.name, stat.source) for stat in stats), strict=True)
    read = attrgetter(*sources)
    return lambda owner: zip(names, read(owner), strict=True)


_NUMBERS: Final = [
    stat
    for stat in QUEUE_STATS
    if stat.kind in {"counter", "gauge", "limit"} and stat.shown != "metrics"
]
_read_numbers: Final = reader(_NUMBERS)
read_counters: Final = reader(stat for stat in _NUMBERS if stat.kind == "counter")
_read_gauges: Final = reader(stat for stat in _NUMBERS if stat.kind != "counter")
_read_public: Final = reader(stat for stat in _NUMBERS if stat.shown == "everywhere")
_read_texts: Final = reader(stat for stat in QUEUE_STATS if stat.kind == "text")
_read_server: Final = reader(SERVER_STATS)


def read_numbers(queue: Queue) -> Pairs:
    """Return the statistics of a queue that are numbers, without limits that are not set."""
    return [pair for pair in _read_numbers(queue) if pair[1] is not None]


def read_gauges(queue: Queue) -> Pairs:
    """Return those numbers that may also fall."""
    return [pair for pair in _read_gauges(queue) if pair[1] is not None]


def queue_texts(queue: Queue) -> list[tuple[str, str]]:
    """Return the statistics of a queue that are text, without the empty ones."""
    return [(name, _text(value)) for name, value in _read_texts(queue) if value]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(queue.name for queue in value)
    return " ".join(str(value).split())


def stats_of(collection: QueueCollection, name: str) -> list[tuple[str, Any]]:
    """Return a queue's statistics; only `failure` if it could not be loaded; none if unknown."""
    queue = collection.queues.get(name)
    if queue is not None:
        return [*_read_public(queue), *queue_texts(queue)]
    error = collection.damaged.get(name)
    return [] if error is None else damage_texts(error)


def damage_texts(error: QueueUnavailable) -> list[tuple[str, str]]:
    """Return the statistics of a queue that could not be loaded because of `error`."""
    return [("failure", _text(error))]


@dataclass(slots=True)
class ServerNumbers:
    """The numbers from which the server's statistics are read.

    Attributes:
        collection: the queues.
        counters: what the sessions counted.
        uptime: in seconds.
        time: in seconds since the epoch.
        version: the server's version.
        items, bytes, memory_bytes, memory_limit: sums over all queues.
        total_items, get_hits, get_misses: sums over all queues, including deleted ones.
    """

    collection: QueueCollection
    counters: Counters
    uptime: int
    time: int
    version: str
    items: int = 0
    bytes: int = 0
    memory_bytes: int = 0
    memory_limit: int = 0
    total_items: int = 0
    get_hits: int = 0
    get_misses: int = 0

    def add(self, queue: Queue) -> None:
        """Add a queue to the sums."""
        self.items += len(queue)
        self.bytes += queue.backlog.size
        self.memory_bytes += queue.backlog.memory_bytes
        self.memory_limit += queue.config.max_memory_size
        self.total_items += queue.backlog.total_items
        self.get_hits += queue.counts.get_hits
        self.get_misses += queue.counts.get_misses

    @property
    def gets(self) -> int:
        """Number of reads."""
        return self.get_hits + self.get_misses

    @property
    def loading(self) -> int:
        """Number of queues still to be loaded."""
        return len(self.collection.loading)

    @property
    def memory_ratio(self) -> str:
        """The fraction of the queues' memory limits that is used, with three decimals."""
        used = self.memory_bytes / self.memory_limit if self.memory_limit else 0
        return f"{used:.3f}"


def server_stats(numbers: ServerNumbers) -> Generator[None, None, list[tuple[str, Any]]]:
    """Sum up all queues and return the server's statistics; yield after each small piece of work.

    A queue that is deleted meanwhile still counts, and one that was deleted before counts exactly
    once. So a counter never decreases between two calls.
    """
    queues = list(numbers.collection.queues.values())
    retired = numbers.collection.retired
    numbers.total_items = retired.total_items
    numbers.get_hits, numbers.get_misses = retired.get_hits, retired.get_misses
    for start in range(0, len(queues), _SLICE):
        for queue in queues[start : start + _SLICE]:
            numbers.add(queue)
        yield
    return list(_read_server(numbers))


def sorted_names(collection: QueueCollection) -> Generator[None, None, Iterator[str]]:
    """Return the names of all queues in order, with the damaged ones; yield between pieces of work.

    Sorting 100,000 names at once would take 50 ms.
    """
    names = [*collection.queues, *collection.damaged]
    runs = []
    for start in range(0, len(names), _SORTED):
        runs.append(sorted(names[start : start + _SORTED]))
        yield
    return heapq.merge(*runs)


def damaged_queues(collection: QueueCollection) -> Generator[None, None, dict[str, str]]:
    """Return the queues that could not be loaded, and why.

    Yield after each small piece of work.
    """
    damaged: dict[str, str] = {}
    errors = list(collection.damaged.items())
    for start in range(0, len(errors), _SLICE):
        damaged.update((name, str(error)) for name, error in errors[start : start + _SLICE])
        yield
    return damaged
