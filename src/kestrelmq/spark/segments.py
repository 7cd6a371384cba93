"""Replay in parallel: summaries of journal segments, and the fold that joins them.

A queue is not a stack, so a segment of a journal cannot be replayed without knowing what came
before it; but what it does can be said in references, not in items:

    T(i)     the i-th of: the queue at the segment's start, followed by the segment's own adds
    O(xid)   the item that was open under `xid` at the segment's start

`summarising.Summariser` reduces a segment to a `Segment`: how many T it takes, what it puts back on
the head, what it opens and closes, and what it had to assume about its start. `State` is the queue
after a prefix of the journal, in ordinals: item n is the n-th that was ever added. `replay` folds
segments into states in order, and asks for those again, with the exact start, whose assumptions
turn out wrong. No item data is looked at.

References are plain integers: T(i) is i, O(xid) is negative.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kestrelmq.journal.records import MIN_XID


def opened(xid: int) -> int:
    """Return the reference O(xid)."""
    return 2 * MIN_XID - 1 - xid


def xid_of(reference: int) -> int:
    """Return the xid of a reference O(xid)."""
    return 2 * MIN_XID - 1 - reference


@dataclass(frozen=True, slots=True)
class Start:
    """The state of a queue where a segment begins, as far as the segment can tell.

    Attributes:
        length: items in the queue, without open ones.
        open: xids of the open reads.
        last_xid: the last-used xid.
        named: xids that items keep when they are opened (ADD_XID), by reference.
    """

    length: int = 0
    open: frozenset[int] = frozenset()
    last_xid: int = 0
    named: Mapping[int, int] = field(default_factory=dict)


EMPTY = Start()


class Runs:
    """A set of integers that mostly come in runs, kept as the runs."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[list[int]] = []

    def append(self, number: int) -> None:
        """Put in `number`; cheap when it is one more than the number before."""
        if self._runs and number == self._runs[-1][1] + 1:
            self._runs[-1][1] = number
        else:
            self._runs.append([number, number])

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(low <= number <= high for low, high in self._runs)


@dataclass(frozen=True, slots=True)
class Segment:
    """What a segment does to any queue for which its assumptions hold.

    Attributes:
        adds: items it adds.
        taken: how many T it takes.
        head: references it put back on the head and left there, first one first.
        open: references of the reads it opened and left open, by xid.
        closed: xids that were open at its start, if at all, and are no more.
        named: xids its own ADD_XID items keep, by reference.
        last_xid: the last-used xid at its end; None when it leaves it alone.
        relative: whether `last_xid` was counted on from the assumed one.
        least: assumed: the queue holds so many items at least.
        length: assumed: it holds exactly so many; None for no such assumption.
        need: assumed to be open.
        absent: assumed not to be open.
        unnamed: references assumed to have no xid of their own.
        assumed_last_xid: assumed last-used xid; None when it does not matter.
    """

    adds: int
    taken: int
    head: tuple[int, ...]
    open: dict[int, int]
    closed: frozenset[int]
    named: dict[int, int]
    last_xid: int | None
    relative: bool
    least: int
    length: int | None
    need: frozenset[int]
    absent: Runs
    unnamed: Runs
    assumed_last_xid: int | None

    def holds(self, start: Start) -> bool:
        """Whether everything it assumed is true of `start`."""
        return (
            self.least <= start.length
            and self.length in {None, start.length}
            and self.need <= start.open
            and self.assumed_last_xid in {None, start.last_xid}
            and not any(xid in self.absent for xid in start.open)
            and not any(reference in self.unnamed for reference in start.named)
        )


@dataclass(frozen=True, slots=True)
class Live:
    """What is in a queue when it is loaded, head first, in ordinals.

    Attributes:
        given_back: items of open reads, ascending by xid, as (ordinal, xid).
        head: items that were put back on the head and are still there.
        first: ordinal of the first of the rest.
        end: ordinal after the last of the rest.
    """

    given_back: tuple[tuple[int, int], ...]
    head: tuple[int, ...]
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class State:
    """A queue after a prefix of its journal. Items are ordinals.

    Attributes:
        adds: items added so far.
        head: items that were put back on the head, first one first.
        first: ordinal of the first item behind them; those from here to `adds` are in the queue.
        open: items of open reads, by xid.
        last_xid: the last-used xid.
        named: xids that items keep when they are opened, by ordinal.
    """

    adds: int = 0
    head: tuple[int, ...] = ()
    first: int = 0
    open: Mapping[int, int] = field(default_factory=dict)
    last_xid: int = 0
    named: Mapping[int, int] = field(default_factory=dict)

    def start(self) -> Start:
        """Return this state as a segment sees it that begins here."""
        length = len(self.head) + self.adds - self.first
        named = {}
        if self.named:
            places = {ordinal: place for place, ordinal in enumerate(self.head)}
            places |= {ordinal: opened(xid) for xid, ordinal in self.open.items()}
            named = {
                places.get(ordinal, ordinal - self.first + len(self.head)): xid
                for ordinal, xid in self.named.items()
            }
        return Start(length, frozenset(self.open), self.last_xid, named)

    def ordinal(self, reference: int) -> int:
        """Return which item a segment that begins here means by `reference`."""
        if reference < 0:
            return self.open[xid_of(reference)]
        if reference < len(self.head):
            return self.head[reference]
        return self.first + reference - len(self.head)

    def after(self, segment: Segment) -> "State":
        """Return the state after `segment`, whose assumptions must hold here."""
        head = (*map(self.ordinal, segment.head), *self.head[segment.taken :])
        first = self.first + max(0, segment.taken - len(self.head))
        reads = {xid: item for xid, item in self.open.items() if xid not in segment.closed}
        reads |= {xid: self.ordinal(reference) for xid, reference in segment.open.items()}
        named = dict(self.named)
        named |= {self.ordinal(reference): xid for reference, xid in segment.named.items()}
        if named:
            kept = {*head, *reads.values()}
            named = {item: xid for item, xid in named.items() if item >= first or item in kept}
        last_xid = self.last_xid if segment.last_xid is None else segment.last_xid
        return State(self.adds + segment.adds, head, first, reads, last_xid, named)

    def live(self) -> Live:
        """Return what a queue that is loaded in this state holds: open reads are given back."""
        given_back = tuple((item, xid) for xid, item in sorted(self.open.items()))
        return Live(given_back, self.head, self.first, self.adds)


def last_xids(segments: Iterable[Segment]) -> list[int]:
    """Return the last-used xid at the start of each segment, as far as the summaries tell."""
    found = []
    last = 0
    for segment in segments:
        found.append(last)
        if segment.last_xid is not None:
            shift = last - (segment.assumed_last_xid or 0) if segment.relative else 0
            last = segment.last_xid + shift
    return found


def replay(
    segments: Sequence[Segment], again: Callable[[int, Start], Segment]
) -> tuple[list[State], State]:
    """Fold the segments of a whole journal.

    Args:
        segments: their summaries, in order; they are validated here.
        again: summarises the segment of an index anew, with the exact start.

    Returns:
        The state at the start of each segment, and the one at the end.
    """
    states = []
    state = State()
    for index, summary in enumerate(segments):
        states.append(state)
        start = state.start()
        segment = summary if summary.holds(start) else again(index, start)
        state = state.after(segment)
    return states, state
