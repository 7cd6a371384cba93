"""Which queues are still to be loaded, and in which order.

Until a queue is loaded it can neither be used nor made anew. No more can the master of a fanout
child that still loads: what is added to the master must reach the child.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from kestrelmq.errors import QueueUnavailable
from kestrelmq.journal.names import QueuePlan
from kestrelmq.names import master_of


class Late:
    """The queues that are still to be loaded."""

    __slots__ = ("_expected", "_families", "_names")

    def __init__(self) -> None:
        self._names: set[str] = set()
        # Of these, the queues that are there: a master may be late for its children alone.
        self._expected: set[str] = set()
        # By master: how many queues of the family are to be loaded.
        self._families: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        """Their names; with them go masters whose children they are."""
        return iter(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def expected(self) -> frozenset[str]:
        """The names of those that have a journal."""
        return frozenset(self._expected)

    def expect(self, name: str) -> None:
        """Know that the queue `name` is to be loaded."""
        family = family_of(name)
        self._families[family] += 1
        self._expected.add(name)
        self._names.update((name, family))

    def arrived(self, name: str) -> None:
        """Know that `name` is loaded, or damaged; a master comes after its children."""
        family = family_of(name)
        self._families[family] -= 1
        self._expected.discard(name)
        if name != family:
            self._names.discard(name)
        if not self._families[family]:
            del self._families[family]
            self._names.discard(family)

    def check(self, names: Iterable[str]) -> None:
        """Refuse the use of queues if one of them is late. Raises QueueUnavailable."""
        if self._names:
            for name in names:
                if name in self._names:
                    raise QueueUnavailable(still_loading(name))


def still_loading(name: str) -> str:
    """Return what is said of a queue that is late."""
    return f"queue {name} is still loading"


def family_of(name: str) -> str:
    """Return the master's name, which is what a queue and its fanouts have in common."""
    return master_of(name) or name


def in_order(path: Path, plans: Iterable[QueuePlan]) -> list[QueuePlan]:
    """Return queues as they are to be loaded: the short ones first, children before their master.

    A fanout and its master count as one, for they are of use together.
    """
    size: Counter[str] = Counter()
    queues = list(plans)
    for plan in queues:
        for name in plan.present:
            with contextlib.suppress(OSError):  # its loading will say what is wrong
                size[family_of(plan.queue)] += (path / name).stat().st_size

    def place(plan: QueuePlan) -> tuple[int, str, bool]:
        family = family_of(plan.queue)
        return size[family], family, plan.queue == family

    return sorted(queues, key=place)
