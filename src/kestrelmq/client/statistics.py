"""The statistics of queues, out of the `STAT` lines of a server.

A line is `queue_NAME_stat`, and both the name and the stat may hold underscores, so
`queue_a_mem_items` may be of queue `a` or of queue `a_mem`. Names are found by a stat that no other
one ends in, and that ends in no other; a line that fits two queues goes to the queue whose lines it
stands among.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelmq.protocol.stats import QUEUE_STATS

_PREFIX: Final = "queue_"
_DIGITS: Final = 20
# Those of the admin service too: other servers of this protocol report them.
_STATS: Final = {stat.name: stat for stat in QUEUE_STATS if stat.shown != "metrics"}
# Kestrels have the first, others of the protocol one of the rest; the last is no sure sign where
# there is a stat `transactions`, too.
_MARKS: Final = ("_logsize", "_waiters", "_open_transactions")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue on one server; `values` has every stat of it, as text.

    Attributes:
        server: the server's address.
        name: the queue's name.
        values: stat name to value.
    """

    server: str
    name: str
    values: Mapping[str, str]

    def number(self, stat: str) -> int:
        """Return a stat as a number, 0 when the server does not report it as one."""
        if stat == "age_msec" and stat not in self.values:
            stat = "age"  # the name that all servers of this protocol know
        return number(self.values.get(stat, ""))

    @property
    def items(self) -> int:
        """Items waiting."""
        return self.number("items")

    @property
    def bytes(self) -> int:
        """Bytes of the items waiting."""
        return self.number("bytes")

    @property
    def age_msec(self) -> int:
        """How long the last item taken had waited, in milliseconds."""
        return self.number("age_msec")


def over_servers(stat: str, same: Sequence[QueueStats]) -> int:
    """Return a stat of one queue on several servers: the sum, or the longest time."""
    values = [queue.number(stat) for queue in same]
    return sum(values) if _STATS[stat].adds_up else max(values)


def number(text: str) -> int:
    """Return a statistic as a number, 0 when it is none or longer than any counter is."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else 0


def queue_stats(server: str, pairs: Iterable[tuple[str, str]]) -> list[QueueStats]:
    """Return the queues of a server from its `STAT` lines, sorted by name."""
    lines = [(name, value) for name, value in pairs if name.startswith(_PREFIX)]
    queues = _named(name.removeprefix(_PREFIX) for name, _ in lines)
    current = ""
    for name, value in lines:
        candidates = _candidates(name, queues)
        fresh = [(q, stat) for q, stat in candidates if stat not in queues[q]]
        # A queue's lines stand together, so one that fits the queue of the line before is its own.
        for queue, stat in sorted(fresh, key=lambda candidate: candidate[0] != current)[:1]:
            queues[queue][stat] = value
            current = queue
    return [QueueStats(server, name, values) for name, values in sorted(queues.items())]


def _named(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the names of the queues that lines of `NAME_stat` are about, each without stats."""
    found: dict[str, list[str]] = {mark: [] for mark in _MARKS}
    for line in lines:
        for mark in _MARKS:
            if line.endswith(mark) and line != mark:
                found[mark].append(line.removesuffix(mark))
    names = next((found[mark] for mark in _MARKS if found[mark]), [])
    return {name: {} for name in names}


def _candidates(line: str, queues: Mapping[str, object]) -> list[tuple[str, str]]:
    rest = line.removeprefix(_PREFIX)
    return [
        (rest.removesuffix(f"_{stat}"), stat)
        for stat in _STATS
        if rest.endswith(f"_{stat}") and rest.removesuffix(f"_{stat}") in queues
    ]
