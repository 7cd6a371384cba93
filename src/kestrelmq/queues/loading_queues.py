"""Which queues are still to be loaded, and in which order.

Until a queue is loaded, it can neither be used nor be created anew. Nor can the master of a fanout
child that is still loading, because items added to the master must reach the child.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.names import QueueFiles
from kestrelmq.names import master_of


class LoadingQueues:
    """The queues that are still to be loaded."""

    __slots__ = ("_expected", "_families", "_names")

    def __init__(self) -> None:
        self._forget_all()

    def _forget_all(self) -> None:
        """Expect none, and keep no memory: a set does not shrink."""
        self._names: set[str] = set()
        # The names among these that have a journal: a master may be here only for its children.
        self._expected: set[str] = set()
        # How many queues of a family are still to be loaded, by the master's name.
        self._families: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        """Their names, and those of masters that wait for a child."""
        return iter(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def expected(self) -> frozenset[str]:
        """The names of those that have a journal themselves."""
        return frozenset(self._expected)

    def expect(self, names: Collection[str]) -> None:
        """Expect the queues `names`: they are to be loaded."""
        for name in names:
            family = family_of(name)
            self._families[family] = self._families.get(family, 0) + 1
        self._expected.update(names)
        self._names.update(names, self._families)

    def loaded(self, name: str) -> None:
        """Note that `name` is loaded, or damaged; a master comes after its children."""
        family = family_of(name)
        self._families[family] -= 1
        self._expected.discard(name)
        if name != family:
            self._names.discard(name)
        if not self._families[family]:
            del self._families[family]
            self._names.discard(family)
        if not self._names:
            self._forget_all()

    def check(self, names: Iterable[str]) -> None:
        """Raise QueueUnavailable if one of `names` is still to be loaded."""
        if self._names:
            for name in names:
                if name in self._names:
                    raise QueueUnavailable(still_loading(name))


def still_loading(name: str) -> str:
    """Return the error message for a queue that is still loading."""
    return f"queue {name} is still loading"


def family_of(name: str) -> str:
    """Return the name of the master, which stands for a queue and its fanout children."""
    return master_of(name) or name


def in_order(queues: Collection[QueueFiles], size_of: Callable[[str], int]) -> list[QueueFiles]:
    """Return queues in the order of loading: short ones first, children before their master.

    A master and its children count as one, because they can only be used together. `size_of`
    returns the bytes in a file.
    """
    family_sizes: dict[str, int] = {}
    for files in queues:
        family = family_of(files.queue)
        size = sum([size_of(name) for name in files.present])
        family_sizes[family] = family_sizes.get(family, 0) + size

    def place(files: QueueFiles) -> tuple[int, str, bool]:
        family = family_of(files.queue)
        return family_sizes[family], family, files.queue == family

    return sorted(queues, key=place)
