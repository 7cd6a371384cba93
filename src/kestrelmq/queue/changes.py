"""The uncommitted changes of a queue, and the places of its items.

Each change is made in memory, and its record is collected. The commit writes all records at once,
before any reply is sent. If it fails, the changes are taken back, newest first; each has an exact
inverse. A plain add needs no undo entry, because its record has all that is needed. The undo entry
of a plain remove is the item itself.

In read-behind, items are taken at the head while older files of the journal still hold them. To
pack those files, upkeep must know which of their items were taken since. So every item has a
number, its place: waiting items are numbered in order when the tracking begins, later ones as they
are added. A `PlaceTracker` needs only a few integers for all of them:

    fresh    the first place that was never taken
    front    places that were given back, the head last
    opened   places of open reads by xid

Reads that were open when the tracking began are not in `opened`: there may be a million of them. If
one of them is given back, its place is a negative number that its xid makes.

An item is live if its place is at least `fresh`, or in `front` or `opened`. Items of those earlier
reads count as live, so what a pack takes for live may be a little too much, which does no harm.

No undo entry is changed once it is made. `ReadsChanged` is not frozen, and its `__init__` is
written out; see `idempotent_producers.PutMark`.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from kestrelmq.clock import Clock, Pause, no_pause
from kestrelmq.format.records import (
    ADDX_HEADER,
    REMOVE_RECORD,
    Item,
    NotedItem,
    item_add_time,
    record_of,
)
from kestrelmq.journal.life import HEAD_AGAIN, NEXT, NOWHERE, READ, UNDO, WAITING
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.queue.state import QueueState
from kestrelmq.scheduling.worker import LARGE_ITEM


@dataclass(slots=True, init=False)
class ReadsChanged:
    """Something happened to open reads.

    Attributes:
        event: what happened: one of `journal.life`.
        xids: their xids, in order.
        reads: the reads.
        last_xid: the last-used xid before that.
        other: the read that took the place of the only one, if it lost its reader.
    """

    event: int
    xids: Sequence[int]
    reads: list[OpenRead]
    last_xid: int
    other: OpenRead | None

    def __init__(
        self,
        event: int,
        xids: Sequence[int],
        reads: list[OpenRead],
        last_xid: int,
        other: OpenRead | None = None,
    ) -> None:
        self.event = event
        self.xids = xids
        self.reads = reads
        self.last_xid = last_xid
        self.other = other


@dataclass(frozen=True, slots=True)
class HeadDropped:
    """The head was dropped: no reader took it."""

    item: Item


Change = Item | ReadsChanged | HeadDropped | tuple[Any, ...]
"""What was done; or a function that undoes it, with its arguments: empty if nothing does.

No `functools.partial`, which takes 0.2 us longer to make than a tuple.
"""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The places of all items when a file was rotated.

    Attributes:
        file: name of the rotated file; later changes are in later files.
        fresh: as in the module's docstring, at that time.
        front: likewise.
        opened: likewise.
        end: place of the first item that was added later.
    """

    file: str
    fresh: int
    front: tuple[int, ...]
    opened: ReadTable[int]
    end: int

    def place(self, index: int) -> int:
        """Return the place of the item that was at `index` in the queue then; 0 is the head."""
        given_back = len(self.front)
        return self.front[-1 - index] if index < given_back else self.fresh + index - given_back

    def is_read_live(self, xid: int, early: AbstractSet[int]) -> bool:
        """Whether the read `xid`, open then, counts as live now; `early` as for `first_live`."""
        place = self.opened.get(xid)
        return place is None or place in early

    def first_live(self, early: AbstractSet[int], fresh: int) -> int:
        """Return the index, as for `place`, of the first item that is live now.

        An item is live now if its place is in `early`, or at least `fresh`.
        """
        given_back = len(self.front)
        for index, place in enumerate(reversed(self.front)):
            if place in early or place >= fresh:
                return index
        candidates = [place for place in early if self.fresh <= place < self.end]
        return given_back + min([*candidates, max(fresh, self.fresh), self.end]) - self.fresh


@dataclass(frozen=True, slots=True)
class LivePlaces:
    """The places whose items are live at some moment.

    Attributes:
        fresh: as in the module's docstring.
        front: likewise.
        opened: likewise; `early` empties it.
    """

    fresh: int
    front: tuple[int, ...]
    opened: ReadTable[int]

    def early(self, pause: Pause = no_pause) -> set[int]:
        """Return those below `fresh`; `pause` is called after each short piece of work."""
        found = set(self.front)
        for page in self.opened.drain():
            found.update(dict(page).values())
            pause()
        return found


class PlaceTracker:
    """The places of the items of one queue.

    Attributes:
        fresh: see the module's docstring.
        front: see there.
        opened: see there.
        checkpoints: one for each file that was rotated since and is not packed yet, oldest first.
    """

    __slots__ = ("checkpoints", "fresh", "front", "opened")

    def __init__(self) -> None:
        """Start to track a queue."""
        self.fresh = 0
        self.front: list[int] = []
        self.opened: ReadTable[int] = ReadTable()
        self.checkpoints: list[Checkpoint] = []

    def apply_changes(self, changes: Sequence[Change]) -> None:
        """Update the places for changes that were committed, in order."""
        for change in changes:
            if isinstance(change, bytes | NotedItem | HeadDropped):
                self._take()
            elif isinstance(change, ReadsChanged):
                if UNDO[change.event] == HEAD_AGAIN:
                    self.opened.set_all(change.xids, [self._take() for _ in change.xids])
                elif NEXT[change.event] == NOWHERE:
                    self.forget(change.xids)
                elif NEXT[change.event] == WAITING:
                    (xid,) = change.xids
                    place = self.opened.pop(xid)
                    self.front.append(_earlier_place(xid) if place is None else place)

    def forget(self, xids: Sequence[int]) -> None:
        """Update the places for open reads that were confirmed."""
        self.opened.pop_all(xids)

    def _take(self) -> int:
        if self.front:
            return self.front.pop()
        self.fresh += 1
        return self.fresh - 1

    def drop(self, count: int) -> None:
        """Update the places for `count` items that were dropped from the head."""
        while count and self.front:
            self.front.pop()
            count -= 1
        self.fresh += count

    def next_place(self, items: int) -> int:
        """Return the place of the next item to be added to the queue, which holds `items`."""
        return self.fresh + items - len(self.front)

    def add_checkpoint(self, file: str, items: int) -> None:
        """Make a checkpoint: `file` was just rotated, and the queue holds `items`."""
        self.checkpoints.append(
            Checkpoint(
                file, self.fresh, tuple(self.front), self.opened.copy(), self.next_place(items)
            )
        )

    def newest_passed(self, in_memory: int) -> Checkpoint | None:
        """Return the newest checkpoint whose items were all read back, if there is one.

        `in_memory` is how many items are in memory.
        """
        read_up_to = self.next_place(in_memory)
        passed = [checkpoint for checkpoint in self.checkpoints if checkpoint.end <= read_up_to]
        return passed[-1] if passed else None

    def forget_packed(self, checkpoint: Checkpoint) -> None:
        """Forget `checkpoint` and those before it, because their files were packed."""
        index = self.checkpoints.index(checkpoint)
        del self.checkpoints[: index + 1]

    def taken_since(self, checkpoint: Checkpoint) -> int:
        """Return about how many items that waited at `checkpoint` were taken since."""
        return min(self.fresh, checkpoint.end) - checkpoint.fresh

    def snapshot(self) -> "LivePlaces":
        """Return which places are live now; another thread may use it."""
        return LivePlaces(self.fresh, tuple(self.front), self.opened.copy())


def _earlier_place(xid: int) -> int:
    """Return the place of the item of a read that was open when the tracking began."""
    return -1 - (xid & 0xFFFF_FFFF)


class Changes:
    """The changes that are not in the journal yet.

    Attributes:
        pending: their records, in order, without those of `sent`.
        sent: the records that the writer is writing; those of `pending` are written after them.
        is_large: whether any of `pending` has a large item, so that writing it takes long.
        undo: entries that undo the changes of `pending` other than adds, in order.
        prelude: records to write before the next commit's; they are kept if that fails.
        places: the places of the items if they are tracked, in read-behind; otherwise None.
    """

    def __init__(self, state: QueueState, prelude: bytes) -> None:
        self._state = state
        self.pending: list[bytes] = []
        self.sent: Sequence[bytes] = ()
        self.is_large = False
        self.undo: list[Change] = []
        self._sent_undo: Sequence[Change] = ()
        self.prelude = prelude
        self.places: PlaceTracker | None = None
        # Header of the item that was read last, and when it was read.
        self._last_taken = b""
        self._last_taken_at = 0

    @property
    def are_written(self) -> bool:
        """Whether there are no changes that are not in the journal yet."""
        return not (self.pending or self.sent)

    @property
    def size(self) -> int:
        """Bytes of the records that will be written."""
        return sum(map(len, (*self.sent, *self.pending))) + len(self.prelude)

    def sample(self, number: int) -> int | None:
        """Return the opcode of one of the pending records, which `number` selects, if any."""
        return self.pending[number % len(self.pending)][0] if self.pending else None

    @property
    def last_wait(self) -> int:
        """How long the last item that was read before the last write had waited (ms)."""
        waited = self._last_taken_at - item_add_time(self._last_taken) if self._last_taken else 0
        return max(0, waited)

    def collect(self, record: bytes) -> None:
        """Collect a journal record for the next commit."""
        pending = self.pending
        if not pending:
            self._state.commits.dirty.append(self._state.queue)
        pending.append(record)
        if len(record) >= LARGE_ITEM:
            self.is_large = True

    def drop(self, taken: Item) -> None:
        """Drop an item that was the head and is already taken."""
        self.collect(REMOVE_RECORD)
        self.undo.append(HeadDropped(taken))

    def written(self, clock: Clock) -> None:
        """Forget the changes: they are in the journal."""
        undo = self.undo
        if undo:
            self._have_written(undo, clock)
            undo.clear()
        self.pending.clear()

    def send(self) -> Sequence[bytes]:
        """Return the records that the writer is to write: `sent` from now on."""
        self.sent, self.pending = self.pending, []
        self._sent_undo, self.undo = self.undo, []
        self.is_large = False
        return self.sent

    def sent_written(self, clock: Clock) -> None:
        """Forget the changes that were `sent`: they are in the journal."""
        undo, self._sent_undo, self.sent = self._sent_undo, (), ()
        self._have_written(undo, clock)

    def _have_written(self, undo: Sequence[Change], clock: Clock) -> None:
        self._note_taken(undo, clock)
        if self.places is not None:
            self.places.apply_changes(undo)

    def _note_taken(self, changes: Sequence[Change], clock: Clock) -> None:
        """Remember the last item that a reader took, if a reader took one."""
        for change in reversed(changes):
            if isinstance(change, bytes | NotedItem):
                item: Item = change
            elif isinstance(change, ReadsChanged) and change.event == READ:
                item = change.reads[-1].item
            else:
                continue
            self._last_taken = record_of(item)[:ADDX_HEADER]
            self._last_taken_at = clock.now()
            return

    def take_all(self) -> tuple[list[bytes], list[Change]]:
        """Return the records and the undo entries of all changes, and forget them."""
        taken = [*self.sent, *self.pending], [*self._sent_undo, *self.undo]
        self.forget()
        return taken

    def forget(self) -> None:
        """Forget the changes: they are not written."""
        self.pending.clear()
        self.undo.clear()
        self.sent = self._sent_undo = ()
        self.is_large = False
