"""Replay a journal in parallel: summaries of its segments, and the fold that joins them.

A segment of a journal cannot be replayed without knowing what came before it: a queue is not a
stack, so the items a segment takes may come from earlier segments. But its effect can be described
with references in place of items:

    T(i)     item i of the queue at the segment's start followed by the segment's own adds
    O(xid)   the item that was open under `xid` at the segment's start

`summarising.Summariser` reduces a segment to a `SegmentSummary`: how many T it takes, what it puts
back on the head, which reads it opens and closes, and what it had to assume about its start.
`ReplayState` is the queue after a prefix of the journal, in ordinals: item n is the n-th that was
ever added. `replay` folds summaries into states, in order. If a summary's assumptions turn out
wrong, it has that segment summarised again with the exact start. Item data is never read.

References are plain integers: T(i) is i, O(xid) is negative.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestrelmq.format.records import MIN_XID


def reference_of(xid: int) -> int:
    """Return the reference O(xid)."""
    return 2 * MIN_XID - 1 - xid


def xid_of(reference: int) -> int:
    """Return the xid of a reference O(xid)."""
    return 2 * MIN_XID - 1 - reference


SAME_XIDS: Final[tuple[int | None, Mapping[int, int]]] = (None, {})
"""No Kestrel has other xids, see `journal.replay.CounterXids`."""


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """The state of a queue where a segment begins, in references.

    Attributes:
        length: number of items in the queue, without those of open reads.
        open: xids of the open reads.
        last_xid: the last-used xid.
        named: xids of ADD_XID that waiting items still have, by reference.
        counter: `last` and `reads` of `journal.replay.CounterXids`.
    """

    length: int = 0
    open: frozenset[int] = frozenset()
    last_xid: int = 0
    named: Mapping[int, int] = field(default_factory=dict)
    counter: tuple[int | None, Mapping[int, int]] = SAME_XIDS


EMPTY_START = SegmentStart()


class RunSet:
    """A set of integers that mostly come in runs of consecutive numbers, stored as those runs."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[list[int]] = []

    def append(self, number: int) -> None:
        """Add `number`; cheap when it is one more than the number before."""
        if self._runs and number == self._runs[-1][1] + 1:
            self._runs[-1][1] = number
        else:
            self._runs.append([number, number])

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(low <= number <= high for low, high in self._runs)


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The effect of a segment on any queue for which its assumptions hold.

    Attributes:
        adds: number of items it adds.
        taken: number of T it takes.
        head: references that it put back on the head and left there, the head first.
        open: references of the reads that it opened and left open, by xid.
        closed: xids of reads that are not open any more, if they were open at its start.
        named: as in `SegmentStart`, at its end, likewise:
        counter: None of either is assumed at its start.
        last_xid: the last-used xid at its end; None if it does not change it.
        relative: whether `last_xid` was counted up from the assumed one.
        least: assumed minimum number of items in the queue.
        length: assumed exact number of items in the queue; None without that assumption.
        need: xids assumed to be open.
        absent: xids assumed not to be open.
        assumed_last_xid: assumed last-used xid; None if it does not matter.
        delays: whether it has notes of delayed items.
    """

    adds: int
    taken: int
    head: tuple[int, ...]
    open: dict[int, int]
    closed: frozenset[int]
    named: dict[int, int]
    counter: tuple[int | None, dict[int, int]]
    last_xid: int | None
    relative: bool
    least: int
    length: int | None
    need: frozenset[int]
    absent: RunSet
    assumed_last_xid: int | None
    delays: bool = False

    def holds(self, start: SegmentStart) -> bool:
        """Whether all its assumptions are true of `start`."""
        return (
            self.least <= start.length
            and self.length in {None, start.length}
            and self.need <= start.open
            and self.assumed_last_xid in {None, start.last_xid}
            and not any(xid in self.absent for xid in start.open)
            and not start.named
            and start.counter == SAME_XIDS
        )


@dataclass(frozen=True, slots=True)
class LiveItems:
    """The contents of a queue when it is loaded, in ordinals, head first.

    Attributes:
        given_back: items of open reads, ascending by xid, as (ordinal, xid).
        head: items that were put back on the head and are still in the queue.
        first: ordinal of the first of the remaining items, which are consecutive.
        end: ordinal after the last of them.
    """

    given_back: tuple[tuple[int, int], ...]
    head: tuple[int, ...]
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplayState:
    """A queue after a prefix of its journal. Items are ordinals.

    Attributes:
        adds: number of items added so far.
        head: items that were put back on the head, the head first.
        first: ordinal of the first item behind them; the items from here up to `adds` are in the
            queue.
        open: items of open reads, by xid.
        last_xid: the last-used xid.
        named: xids of ADD_XID that waiting items still have, by ordinal.
        counter: as in `SegmentStart`.
        delays: whether there were notes of delayed items.
    """

    adds: int = 0
    head: tuple[int, ...] = ()
    first: int = 0
    open: Mapping[int, int] = field(default_factory=dict)
    last_xid: int = 0
    named: Mapping[int, int] = field(default_factory=dict)
    counter: tuple[int | None, Mapping[int, int]] = SAME_XIDS
    delays: bool = False

    def start(self) -> SegmentStart:
        """Return this state in the references of a segment that begins here."""
        before = len(self.head) - self.first
        named = {ordinal + before: xid for ordinal, xid in self.named.items()}
        return SegmentStart(
            before + self.adds, frozenset(self.open), self.last_xid, named, self.counter
        )

    def ordinal(self, reference: int) -> int:
        """Return the item that `reference` means in a segment that begins here."""
        if reference < 0:
            return self.open[xid_of(reference)]
        if reference < len(self.head):
            return self.head[reference]
        return self.first + reference - len(self.head)

    def after(self, segment: SegmentSummary) -> "ReplayState":
        """Return the state after `segment`, whose assumptions must hold here."""
        head = (*map(self.ordinal, segment.head), *self.head[segment.taken :])
        first = self.first + max(0, segment.taken - len(self.head))
        reads = {xid: item for xid, item in self.open.items() if xid not in segment.closed}
        reads |= {xid: self.ordinal(reference) for xid, reference in segment.open.items()}
        named = {self.ordinal(reference): xid for reference, xid in segment.named.items()}
        last_xid = self.last_xid if segment.last_xid is None else segment.last_xid
        adds = self.adds + segment.adds
        delays = self.delays or segment.delays
        return ReplayState(adds, head, first, reads, last_xid, named, segment.counter, delays)

    def live(self) -> LiveItems:
        """Return what a queue that is loaded in this state holds; open reads are given back."""
        given_back = tuple((item, xid) for xid, item in sorted(self.open.items()))
        return LiveItems(given_back, self.head, self.first, self.adds)


def last_xids(segments: Iterable[SegmentSummary]) -> list[int]:
    """Return the last-used xid at the start of each segment, computed from the summaries alone."""
    found = []
    last = 0
    for segment in segments:
        found.append(last)
        if segment.last_xid is not None:
            shift = last - (segment.assumed_last_xid or 0) if segment.relative else 0
            last = segment.last_xid + shift
    return found


def replay(
    segments: Sequence[SegmentSummary], again: Callable[[int, SegmentStart], SegmentSummary]
) -> tuple[list[ReplayState], ReplayState]:
    """Fold the segments of a whole journal.

    Args:
        segments: their summaries, in order; their assumptions are checked here.
        again: summarises the segment with this index again, with the exact start.

    Returns:
        The state at the start of each segment, and the state at the end.
    """
    states = []
    state = ReplayState()
    for index, summary in enumerate(segments):
        states.append(state)
        start = state.start()
        segment = summary if summary.holds(start) else again(index, start)
        state = state.after(segment)
    return states, state
