"""Read the statistics of queues from the `STAT` lines of a server.

A line is named `queue_NAME_stat`. Both the name and the stat may contain underscores, so
`queue_a_mem_items` may belong to queue `a` or to queue `a_mem`. The names are found first, from the
lines of one stat: a stat whose name is not the end of another's and does not end in another's. A
line that could belong to two queues goes to the queue of the line before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelmq.protocol.memcache_client import MAX_DIGITS
from kestrelmq.protocol.stats import QUEUE_STATS

_PREFIX: Final = "queue_"
# Our server shows these only in its admin service, but other servers of this protocol report them.
_OF_OTHER_SERVERS: Final = {"put_items", "put_bytes"}
_STATS: Final = {
    stat.name: stat
    for stat in QUEUE_STATS
    if stat.shown == "everywhere" or stat.name in _OF_OTHER_SERVERS
}
_MOST_WORDS: Final = 1 + max(name.count("_") for name in _STATS)
_ORDER: Final = {name: place for place, name in enumerate(_STATS)}
# The stats that queue names are found from. Kestrel servers report the first, other servers of this
# protocol one of the others. The last is ambiguous if there is also a stat `transactions`.
_MARKS: Final = ("_logsize", "_waiters", "_open_transactions")
_FAILURE: Final = "failure"
_SIGNS: Final = frozenset({"items", _FAILURE})
"""Statistics of a queue, one of which every server sends, and sends for queues only."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The statistics of one queue on one server.

    Attributes:
        server: the server's address.
        name: the queue's name.
        values: the value of each statistic by name: a number, or text where it is no number.
    """

    server: str
    name: str
    values: Mapping[str, int | str]

    def number(self, stat: str) -> int:
        """Return a statistic as a number; 0 if the server does not report it as a number."""
        if stat == "age_msec" and stat not in self.values:
            stat = "age"  # the name that all servers of this protocol use
        value = self.values.get(stat, 0)
        return value if isinstance(value, int) else number(value)

    @property
    def items(self) -> int:
        """Number of waiting items."""
        return self.number("items")

    @property
    def bytes(self) -> int:
        """Bytes of data in the waiting items."""
        return self.number("bytes")

    @property
    def paused(self) -> str:
        """What is paused: `reads`, `writes` or `all`; empty for nothing."""
        return str(self.values.get("paused", ""))

    @property
    def age_msec(self) -> int:
        """How long the last item that was read had waited, in milliseconds."""
        return self.number("age_msec")


def over_servers(stat: str, same: Sequence[QueueStats]) -> int:
    """Combine a statistic of one queue on several servers: the sum, or the longest time."""
    values = [queue.number(stat) for queue in same]
    return sum(values) if _STATS[stat].adds_up else max(values)


def number(text: str) -> int:
    """Parse a statistic as a number; return 0 if it is not one, or longer than any counter is."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS else 0


def queue_stats(server: str, pairs: Iterable[tuple[str, str]]) -> list[QueueStats]:
    """Return the statistics of each queue from a server's `STAT` lines, sorted by queue name."""
    lines = [(name, value) for name, value in pairs if name.startswith(_PREFIX)]
    queues = _named(name.removeprefix(_PREFIX) for name, _ in lines)
    current = ""
    for name, value in lines:
        candidates = _candidates(name, queues)
        fresh = [(q, stat) for q, stat in candidates if stat not in queues[q]]
        # The lines of a queue stand together, so prefer the queue of the line before.
        for queue, stat in sorted(fresh, key=lambda candidate: candidate[0] != current)[:1]:
            queues[queue][stat] = _typed(stat, value)
            current = queue
    return [QueueStats(server, name, values) for name, values in sorted(queues.items())]


def stats_of_queue(server: str, name: str, pairs: Sequence[tuple[str, str]]) -> QueueStats | None:
    """Return the statistics of a queue from the answer to `stats NAME`; None if it has none.

    Some servers answer with the statistics of the queue, others with those of all queues.
    """
    for listed in queue_stats(server, pairs):
        if listed.name == name:
            return listed
    failure = f"{_PREFIX}{name}_{_FAILURE}"
    given = {_FAILURE if stat == failure else stat: value for stat, value in pairs}
    if not _SIGNS & given.keys():
        return None
    values = {stat: _typed(stat, value) for stat, value in given.items() if stat in _STATS}
    return QueueStats(server, name, values)


def damaged_queues(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the queues that a server could not load, with the reasons, from its `STAT` lines."""
    lines = list(pairs)
    loaded = _named(name.removeprefix(_PREFIX) for name, _ in lines if name.startswith(_PREFIX))
    failures = {
        name.removeprefix(_PREFIX).removesuffix(f"_{_FAILURE}"): value
        for name, value in lines
        if name.startswith(_PREFIX) and name.endswith(f"_{_FAILURE}")
    }
    return {name: reason for name, reason in failures.items() if name and name not in loaded}


def _typed(stat: str, value: str) -> int | str:
    """Return the value of a statistic as its kind says; as text if a server sends no number."""
    if _STATS[stat].kind == "text":
        return value
    parsed = number(value)
    return parsed if str(parsed) == value else value


def _named(lines: Iterable[str]) -> dict[str, dict[str, int | str]]:
    """Find the queue names in lines of `NAME_stat`; return an empty dict of stats for each."""
    found: dict[str, list[str]] = {mark: [] for mark in _MARKS}
    for line in lines:
        for mark in _MARKS:
            if line.endswith(mark) and line != mark:
                found[mark].append(line.removesuffix(mark))
    names = next((found[mark] for mark in _MARKS if found[mark]), [])
    return {name: {} for name in names}


def _candidates(line: str, queues: Mapping[str, object]) -> list[tuple[str, str]]:
    rest = line.removeprefix(_PREFIX)
    found = []
    at = len(rest)
    for _ in range(_MOST_WORDS):
        at = rest.rfind("_", 0, at)
        if at < 0:
            break
        queue, stat = rest[:at], rest[at + 1 :]
        if stat in _STATS and queue in queues:
            found.append((queue, stat))
    if len(found) > 1:
        found.sort(key=lambda candidate: _ORDER[candidate[1]])
    return found


def paused_over_servers(queues: Iterable[QueueStats]) -> str:
    """Return what is paused of a queue on any of the servers, such as `reads`; perhaps nothing."""
    return ", ".join(sorted({queue.paused for queue in queues} - {""}))
