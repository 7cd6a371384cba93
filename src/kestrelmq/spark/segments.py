"""Replay in parallel: summaries of journal segments, and the fold that joins them.

A queue is not a stack, so a segment of a journal cannot be replayed without knowing what came
before it; but what it does can be said in references, not in items:

    T(i)     the i-th of: the queue at the segment's start, followed by the segment's own adds
    O(xid)   the item that was open under `xid` at the segment's start

`Summariser` reduces a segment to a `Segment`: how many T it takes, what it puts back on the head,
what it opens and closes, and what it had to assume about its start. `State` is the queue after a
prefix of the journal, in ordinals: item n is the n-th that was ever added. `replay` folds
segments into states in order and asks for those again, with the exact start, whose assumptions
turn out wrong. No item data is looked at.

References are plain integers: T(i) is i, O(xid) is negative.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kestrelmq.journal.records import (
    ADD_XID,
    CONFIRM_REMOVE,
    MIN_XID,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
    next_xid,
)


def opened(xid: int) -> int:
    """Return the reference O(xid)."""
    return 2 * MIN_XID - 1 - xid


def xid_of(reference: int) -> int:
    """Return the xid of a reference O(xid)."""
    return 2 * MIN_XID - 1 - reference


@dataclass(frozen=True, slots=True)
class Events:
    """What a run of records does, apart from plain adds, which are only counted.

    Attributes:
        kinds: opcodes, without ADD and ADDX; 8 is a CONTINUE, STATE_DUMPs are left out.
        xids: the records' xids, 0 where there is none.
        adds_before: how many adds of this run come before each.
        adds: how many adds there are in all; ADD_XID and CONTINUE are adds too.
    """

    kinds: NDArray[np.uint8]
    xids: NDArray[np.int32]
    adds_before: NDArray[np.int64]
    adds: int


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


class Fate(IntEnum):
    """What a record did to an item."""

    REMOVED = 1
    CONFIRMED = 2
    GIVEN_BACK = 3


Trace = Callable[[Fate, int, int], None]
"""Called with what was done, the item's reference, and the index of the event in its run."""


class _OpenReads:
    """The open reads as a segment sees them: its own, and what it assumes of its start."""

    __slots__ = ("_at_start", "absent", "closed", "here", "need")

    def __init__(self, at_start: frozenset[int] | None) -> None:
        self._at_start = at_start
        self.here: dict[int, int] = {}
        self.closed: set[int] = set()
        self.need: set[int] = set()
        self.absent = Runs()

    def __contains__(self, xid: object) -> bool:
        """Whether a read that is about to be opened under `xid` would find it taken."""
        if xid in self.here:
            return True
        if xid in self.closed or not isinstance(xid, int):
            return False
        if self._at_start is not None:
            return xid in self._at_start
        self.absent.append(xid)
        return False

    def give_back(self, xid: int) -> int | None:
        """Close `xid` and return what was open; None when nothing was."""
        reference = self.here.pop(xid, None)
        if reference is not None or xid in self.closed:
            return reference
        if self._at_start is None:
            if xid in self.absent:
                return None
            self.need.add(xid)
        elif xid not in self._at_start:
            return None
        self.closed.add(xid)
        return opened(xid)

    def confirm(self, xid: int) -> int | None:
        """Close `xid`; return what was open, or None when nothing was or that is not known."""
        reference = self.here.pop(xid, None)
        if reference is not None or xid in self.closed:
            return reference
        self.closed.add(xid)
        known = self._at_start is not None and xid in self._at_start
        return opened(xid) if known else None


class Summariser:
    """Reduces the events of a segment to its `Segment`."""

    def __init__(
        self, start: Start | None = None, *, last_xid: int = 0, trace: Trace | None = None
    ) -> None:
        """Begin a segment.

        Args:
            start: the exact start; with None it is left open and assumptions are made.
            last_xid: without `start`: the last-used xid to assume, if it matters.
            trace: is told what becomes of items; needs `start`.
        """
        self._length = start.length if start else None
        self._known = start is not None
        self._named = dict(start.named) if start else {}
        self._own_names: dict[int, int] = {}
        self._first_xid = start.last_xid if start else last_xid
        self._last_xid = self._first_xid
        self._relative = False
        self._absolute = False
        self._counted = False
        self._reads = _OpenReads(start.open if start else None)
        self._head: deque[int] = deque()
        self._unnamed = Runs()
        self._adds = 0
        self._taken = 0
        self._least = 0
        self._trace = trace
        self._index = 0

    def feed(self, events: Events) -> None:
        """Take in the next run of records."""
        base = self._adds
        if not self._remove_all(events):
            for self._index, (kind, xid, before) in enumerate(
                zip(
                    events.kinds.tolist(),
                    events.xids.tolist(),
                    events.adds_before.tolist(),
                    strict=True,
                )
            ):
                self._adds = base + before
                self._apply(kind, xid)
        self._adds = base + events.adds

    def result(self) -> Segment:
        """Return the summary of what was fed in."""
        reads = self._reads
        return Segment(
            adds=self._adds,
            taken=self._taken,
            head=tuple(self._head),
            open=dict(reads.here),
            closed=frozenset(reads.closed),
            named=self._own_names,
            last_xid=self._last_xid if self._absolute or self._counted else None,
            relative=self._counted and not self._absolute,
            least=self._least,
            length=self._length,
            need=frozenset(reads.need),
            absent=reads.absent,
            unnamed=self._unnamed,
            assumed_last_xid=self._first_xid if self._counted else None,
        )

    def _remove_all(self, events: Events) -> bool:
        """Do all at once when there is nothing but removes that find an item."""
        count = len(events.kinds)
        if self._head or self._trace or not bool(np.all(events.kinds == REMOVE)):
            return False
        if count:
            wanted = np.arange(self._taken + 1, self._taken + count + 1) - events.adds_before
            least = max(self._least, int(wanted.max()) - self._adds)
            if self._length is not None and least > self._length:
                return False
            self._least = least
            self._taken += count
        return True

    def _apply(self, kind: int, xid: int) -> None:
        if kind == REMOVE:
            self._tell(Fate.REMOVED, self._take())
        elif kind == REMOVE_TENTATIVE:
            self._open_next(None)
        elif kind == REMOVE_TENTATIVE_XID:
            self._open_next(xid)
        elif kind in {CONFIRM_REMOVE, STATE_DUMP}:
            self._tell(Fate.CONFIRMED, self._reads.confirm(xid))
        elif kind == UNREMOVE:
            self._give_back(xid)
        elif kind == SAVE_XID:
            self._last_xid = xid
            self._absolute = True
        elif kind == ADD_XID:
            # Whose xid it is depends on how many items came before: only packs and rewrites
            # have this record, and they begin with an empty queue.
            if self._length is None:
                self._length = 0
            self._named[self._length + self._adds] = xid
            self._own_names[self._length + self._adds] = xid

    def _tell(self, fate: Fate, reference: int | None) -> None:
        if self._trace and reference is not None:
            self._trace(fate, reference, self._index)

    def _take(self) -> int | None:
        if self._head:
            return self._head.popleft()
        wanted = self._taken + 1 - self._adds
        if wanted > self._least:
            if self._length is not None and wanted > self._length:
                return None
            self._least = wanted
        self._taken += 1
        return self._taken - 1

    def _open_next(self, xid: int | None) -> None:
        reference = self._take()
        if reference is None:
            return
        if xid is not None:
            if xid in self._reads:
                self._give_back(xid)
            self._last_xid = xid
            self._absolute = True
        else:
            xid = self._xid_for(reference)
        self._reads.here[xid] = reference

    def _xid_for(self, reference: int) -> int:
        name = self._named.get(reference)
        if name is None and not self._known:
            self._unnamed.append(reference)
        if name is not None and name not in self._reads:
            return name
        self._counted = self._counted or not self._absolute
        self._last_xid = next_xid(self._last_xid, self._reads)  # type: ignore[arg-type] # only asks "in"
        return self._last_xid

    def _give_back(self, xid: int) -> None:
        reference = self._reads.give_back(xid)
        if reference is not None:
            self._head.appendleft(reference)
            self._tell(Fate.GIVEN_BACK, reference)


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
