"""Summarise a run of records: the part of parallel replay that reads records.

A `Summariser` follows the rules of `journal.replay`, with references instead of items. Without the
exact start of its segment it makes the likeliest assumptions and records them: an item that is
taken exists, an xid that is opened is not open yet, an xid that is given back is open, and what is
there at the start has nothing of an ADD_XID.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kestrelmq.format.records import ADD_XID, REMOVE, REMOVE_TENTATIVE, SAVE_XID
from kestrelmq.journal.life import NEXT, WAITING
from kestrelmq.journal.replay import CounterXids, apply
from kestrelmq.spark.replay.segments import (
    SAME_XIDS,
    RunSet,
    SegmentStart,
    SegmentSummary,
    reference_of,
)
from kestrelmq.spark.storage.scanning import Chunk, FileView, xids_at

_SAVE_XID_SIZE: Final = 5


@dataclass(frozen=True, slots=True)
class RecordRun:
    """The operations in a run of records; plain adds (ADD and ADDX) are only counted.

    Attributes:
        kinds: opcodes, without ADD and ADDX.
        xids: the records' xids, 0 for a record without one.
        adds_before: for each, the number of adds of this run before it.
        adds: number of adds in the run; ADD_XID and CONTINUE count as adds, too.
        delays: whether there are notes of delayed items among them.
    """

    kinds: NDArray[np.uint8]
    xids: NDArray[np.int32]
    adds_before: NDArray[np.int64]
    adds: int
    delays: bool = False


def record_run(view: FileView, chunk: Chunk) -> RecordRun:
    """Return the operations of the records of `chunk`."""
    adds = chunk.adds
    indexes = np.flatnonzero(~adds | (chunk.opcodes == ADD_XID) | chunk.continues)
    if chunk.is_state_dump:
        indexes = indexes[:0]
    kinds = chunk.opcodes[indexes]
    xids = np.zeros(len(indexes), dtype=np.int32)
    has_xid = (kinds != REMOVE) & (kinds != REMOVE_TENTATIVE)
    xids[has_xid] = view.field("<i4", xids_at(chunk.part(indexes[has_xid])))
    adds_so_far = np.cumsum(adds)
    before: NDArray[np.int64] = adds_so_far[indexes] - adds[indexes]
    delays = bool(np.any(chunk.opcodes[chunk.ends - chunk.starts > _SAVE_XID_SIZE] == SAVE_XID))
    return RecordRun(kinds, xids, before, int(adds_so_far[-1]) if len(chunk) else 0, delays)


Trace = Callable[[int, int, int], None]
"""Called with an event of `journal.life`, the item's reference, and its index in its run."""


class _OpenReads:
    """The open reads of a segment: its own, and its assumptions about those at its start."""

    __slots__ = ("_at_start", "absent", "closed", "here", "need")

    def __init__(self, at_start: frozenset[int] | None) -> None:
        self._at_start = at_start
        self.here: dict[int, int] = {}
        self.closed: set[int] = set()
        self.need: set[int] = set()
        self.absent = RunSet()

    def __contains__(self, xid: object) -> bool:
        """Whether `xid` is in use, so that a new read cannot be opened under it."""
        if xid in self.here:
            return True
        if xid in self.closed or not isinstance(xid, int):
            return False
        if self._at_start is not None:
            return xid in self._at_start
        self.absent.append(xid)
        return False

    def __setitem__(self, xid: int, reference: int) -> None:
        """Open a read."""
        self.here[xid] = reference

    def give_back(self, xid: int) -> int | None:
        """Close `xid`; return the reference that was open under it, or None."""
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
        return reference_of(xid)

    def confirm(self, xid: int) -> int | None:
        """Close `xid`; return the reference that was open under it, or None if none is known."""
        reference = self.here.pop(xid, None)
        if reference is not None or xid in self.closed:
            return reference
        self.closed.add(xid)
        known = self._at_start is not None and xid in self._at_start
        return reference_of(xid) if known else None


class Summariser:
    """Reduces the events of a segment to its `SegmentSummary`.

    Attributes:
        open: the open reads.
        counter: see `journal.replay.CounterXids`.
    """

    def __init__(
        self, start: SegmentStart | None = None, *, last_xid: int = 0, trace: Trace | None = None
    ) -> None:
        """Begin a segment.

        Args:
            start: the exact start; None makes assumptions about it.
            last_xid: the last-used xid to assume without `start`, if it matters.
            trace: called for each item that is removed, opened, confirmed or given back; needs
                `start`.
        """
        self._length = start.length if start else None
        self._named = dict(start.named) if start else {}
        self._first_xid = start.last_xid if start else last_xid
        self._last_xid = self._first_xid
        self._absolute = self._delays = False
        self._counted = False
        self.open = _OpenReads(start.open if start else None)
        last, renumbered = start.counter if start else SAME_XIDS
        self.counter = CounterXids(self.open, last, renumbered.items())
        self._head: deque[int] = deque()
        self._adds = 0
        self._taken = 0
        self._least = 0
        self._trace = trace
        self._index = 0

    def feed(self, run: RecordRun) -> None:
        """Apply the next run of records."""
        base = self._adds
        self._delays = self._delays or run.delays
        if not self._remove_all(run):
            for self._index, (kind, xid, before) in enumerate(
                zip(
                    run.kinds.tolist(),
                    run.xids.tolist(),
                    run.adds_before.tolist(),
                    strict=True,
                )
            ):
                self._adds = base + before
                self._apply(kind, xid)
        self._adds = base + run.adds

    def result(self) -> SegmentSummary:
        """Return the summary of all runs so far."""
        reads = self.open
        return SegmentSummary(
            adds=self._adds,
            taken=self._taken,
            head=tuple(self._head),
            open=dict(reads.here),
            closed=frozenset(reads.closed),
            named={item: xid for item, xid in self._named.items() if item >= self._taken},
            counter=(self.counter.last, dict(self.counter.reads)),
            last_xid=self._last_xid if self._absolute or self._counted else None,
            relative=self._counted and not self._absolute,
            least=self._least,
            length=self._length,
            need=frozenset(reads.need),
            absent=reads.absent,
            assumed_last_xid=self._first_xid if self._counted else None,
            delays=self._delays,
        )

    def _remove_all(self, run: RecordRun) -> bool:
        """Apply all events at once and return True, if all are removes that find an item."""
        count = len(run.kinds)
        if self._head or self._trace or not bool(np.all(run.kinds == REMOVE)):
            return False
        if count:
            wanted = np.arange(self._taken + 1, self._taken + count + 1) - run.adds_before
            least = max(self._least, int(wanted.max()) - self._adds)
            if self._length is not None and least > self._length:
                return False
            self._least = least
            self._taken += count
        return True

    def _apply(self, kind: int, xid: int) -> None:
        if kind == ADD_XID:
            # The reference of the item depends on the number of items before it. Only packs and
            # rewrites have this record, and they begin with an empty queue.
            if self._length is None:
                self._length = 0
            self._named[self._length + self._adds] = xid
        else:
            apply(self, kind, xid)

    def _tell(self, event: int, reference: int | None) -> None:
        if self._trace and reference is not None:
            self._trace(event, reference, self._index)

    # --- the queue as `journal.replay.apply` uses it ---

    @property
    def last_xid(self) -> int:
        """The last-used xid; who asks depends on it."""
        self._counted = self._counted or not self._absolute
        return self._last_xid

    @last_xid.setter
    def last_xid(self, xid: int) -> None:
        self._counted = self._counted or not self._absolute
        self._last_xid = xid

    def save_xid(self, xid: int) -> None:
        """Set the last-used xid to what a record says, whatever it was before."""
        self._absolute = True
        self._last_xid = xid

    def open_read(self, xid: int, reference: int) -> None:
        """Open a read of an item that was taken under `xid`, which is free."""
        self.open[xid] = reference

    def take(self, event: int) -> int | None:
        """Take the head, because of REMOVE or READ; None when the queue is empty."""
        reference = self._take()
        self._tell(event, reference)
        return reference

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

    def kept_xid(self, reference: int) -> int | None:
        """Return the xid of the ADD_XID that added the item; None if it has none any more."""
        return self._named.get(reference)

    def end_read(self, event: int, xid: int) -> None:
        """End the open read `xid`, if there is one, by CONFIRM or GIVE_BACK."""
        if NEXT[event] != WAITING:
            self._tell(event, self.open.confirm(xid))
            return
        reference = self.open.give_back(xid)
        if reference is not None:
            self._named.pop(reference, None)
            self._head.appendleft(reference)
            self._tell(event, reference)
