"""What changed in a queue since its journal was last written, and where each item stood.

A change is made in memory, and its record collected. The commit writes all records at once, before
any reply leaves. If it fails the changes are taken back, newest first: each has an exact inverse.
An add needs no entry of its own: its record says it all. A plain remove is the item itself.

A queue in read-behind takes items at the head while older files of its journal still hold them. To
pack those files, one needs to know which of the items they leave were taken since. So every item
gets a number, its place (`Places`): items that wait are numbered in their order when that begins,
later ones as they are added. A few integers follow the queue:

    fresh    the first place that was never taken
    front    places that were given back, the head last
    opened   places of open reads by xid

An item is live if its place is at least `fresh`, or among the other two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kestrelmq.clock import Clock
from kestrelmq.engine.backlog import Backlog
from kestrelmq.engine.reads import Reads
from kestrelmq.journal.records import ADDX, ADDX_HEADER, NamedItem, item_add_time


@dataclass(frozen=True, slots=True)
class Opened:
    """An item was opened under `xid`, by a reader or not; `last_xid` is the counter before."""

    xid: int
    item: bytes
    last_xid: int
    by_reader: bool = True


@dataclass(frozen=True, slots=True)
class Confirmed:
    """An open read was finished."""

    xid: int
    item: bytes


@dataclass(frozen=True, slots=True)
class GivenBack:
    """An open read was given back to the head."""

    xid: int
    item: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """The head was taken off, but not by a reader."""

    item: bytes


Change = bytes | Opened | Confirmed | GivenBack | Dropped


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where everything stood when a file was rotated.

    Attributes:
        file: name of the file that was rotated; what comes after it is in later ones.
        fresh, front, opened: as of that time.
        end: place of the first item that was added later.
    """

    file: str
    fresh: int
    front: tuple[int, ...]
    opened: dict[int, int]
    end: int

    def place(self, index: int) -> int:
        """Return the place of the item that stood at `index` in the queue, 0 being the head."""
        given_back = len(self.front)
        return self.front[-1 - index] if index < given_back else self.fresh + index - given_back

    def first_live(self, early: frozenset[int], fresh: int) -> int:
        """Return the index of the first item that is live, as `place` counts.

        An item is live if its place is among `early`, or at least `fresh`.
        """
        given_back = len(self.front)
        for index, place in enumerate(reversed(self.front)):
            if place in early or place >= fresh:
                return index
        candidates = [place for place in early if self.fresh <= place < self.end]
        return given_back + min([*candidates, max(fresh, self.fresh), self.end]) - self.fresh


class Places:
    """The places of the items of one queue.

    Attributes:
        fresh, front, opened: see above.
        checkpoints: of the files rotated since, oldest first, that were not packed yet.
    """

    __slots__ = ("checkpoints", "fresh", "front", "opened")

    def __init__(self, open_reads: Iterable[int]) -> None:
        """Begin to track a queue with these open reads."""
        self.fresh = 0
        self.front: list[int] = []
        self.opened = {xid: -1 - number for number, xid in enumerate(open_reads)}
        self.checkpoints: list[Checkpoint] = []

    def follow(self, changes: Sequence[Change]) -> None:
        """Take note of changes that were committed, in their order."""
        for change in changes:
            if isinstance(change, bytes | Dropped):
                self._take()
            elif isinstance(change, Opened):
                self.opened[change.xid] = self._take()
            elif isinstance(change, Confirmed):
                self.opened.pop(change.xid)
            else:
                self.front.append(self.opened.pop(change.xid))

    def _take(self) -> int:
        if self.front:
            return self.front.pop()
        self.fresh += 1
        return self.fresh - 1

    def drop(self, count: int) -> None:
        """Take note that `count` items were taken off the head."""
        while count and self.front:
            self.front.pop()
            count -= 1
        self.fresh += count

    def end(self, items: int) -> int:
        """Return the place of the next item to be added to a queue of so many."""
        return self.fresh + items - len(self.front)

    def mark(self, file: str, items: int) -> None:
        """Remember where everything stands, as the queue's `file` is rotated."""
        self.checkpoints.append(
            Checkpoint(file, self.fresh, tuple(self.front), dict(self.opened), self.end(items))
        )

    def passed(self, in_memory: int) -> Checkpoint | None:
        """Return the newest checkpoint whose items were all read back into memory, if any.

        `in_memory` is how many items are in memory.
        """
        reached = self.end(in_memory)
        passed = [checkpoint for checkpoint in self.checkpoints if checkpoint.end <= reached]
        return passed[-1] if passed else None

    def packed(self, checkpoint: Checkpoint) -> None:
        """Forget `checkpoint`, whose files were packed, and those before it."""
        index = self.checkpoints.index(checkpoint)
        del self.checkpoints[: index + 1]

    def taken_since(self, checkpoint: Checkpoint) -> int:
        """Return about how many items of `checkpoint` were taken since."""
        return min(self.fresh, checkpoint.end) - checkpoint.fresh

    def live_places(self) -> frozenset[int]:
        """Return the places below `fresh` whose items are live."""
        return frozenset(self.front) | frozenset(self.opened.values())


class Changes:
    """The changes that the journal has not got yet.

    Attributes:
        pending: their records, in order.
        undo: what takes back those that are no adds, in order.
        prelude: records to be written ahead of the next ones, whatever becomes of those.
        places: follows the items while the queue is in read-behind; None otherwise.
    """

    def __init__(self, prelude: bytes) -> None:
        self.pending: list[bytes] = []
        self.undo: list[Change] = []
        self.prelude = prelude
        self.places: Places | None = None
        # Header of the item that was read last, and when.
        self._last_taken = b""
        self._last_taken_at = 0

    @property
    def size(self) -> int:
        """Bytes of the records that are to be written."""
        return sum(map(len, self.pending)) + len(self.prelude)

    @property
    def last_wait(self) -> int:
        """How long the item that was read last, as of the last write, had waited (ms)."""
        waited = self._last_taken_at - item_add_time(self._last_taken) if self._last_taken else 0
        return max(0, waited)

    def written(self, clock: Clock) -> None:
        """Forget the changes: they are in the journal."""
        undo = self.undo
        if undo:
            self._note_taken(clock)
            if self.places is not None:
                self.places.follow(undo)
            undo.clear()
        self.pending.clear()

    def _note_taken(self, clock: Clock) -> None:
        """Remember the last of the changes that was a reader's fetch, if any was."""
        for change in reversed(self.undo):
            if isinstance(change, bytes):
                record = change
            elif isinstance(change, Opened) and change.by_reader:
                record = change.item
            else:
                continue
            self._last_taken = record[:ADDX_HEADER]
            self._last_taken_at = clock.now()
            return

    def take_back(self, backlog: Backlog, reads: Reads) -> None:
        """Undo all of them, newest first."""
        pending, undo = self.pending, self.undo
        while pending:
            record = pending.pop()
            if record[0] == ADDX:
                backlog.drop_last(len(record) - ADDX_HEADER)
            else:
                _take_back(undo.pop(), backlog, reads)
        undo.clear()

    def forget(self) -> None:
        """Forget the changes: there is no journal to get them."""
        self.pending.clear()
        self.undo.clear()


def _take_back(change: Change, backlog: Backlog, reads: Reads) -> None:
    match change:
        case Opened(xid, record, last_xid, by_reader):
            del reads.open[xid]
            reads.last_xid = last_xid
            backlog.put_back(record)
            if not by_reader:
                reads.forget_aside(xid)
        case Confirmed(xid, record):
            reads.open[xid] = record
        case GivenBack(xid, record):
            if isinstance(backlog.take(), NamedItem):
                reads.named.add(xid)
            reads.open[xid] = record
        case Dropped(record):
            backlog.put_back(record)
        case bytes():
            backlog.put_back(change)
