"""Where each item stood: what a pack of older files must know of the records that come after it.

A queue in read-behind takes items at the head while its journal's older files still hold them. To
replace those files, one needs to know which of the items they leave were taken since. So every
item gets a number, its place: items that wait are numbered in their order when the tracking
begins, later ones as they are added. A few integers follow the queue:

    fresh    the first place that was never taken
    front    places that were given back, the head last
    opened   places of open reads by xid

An item is live if its place is at least `fresh`, or among the other two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kestrelmq.engine.undo import Change, Confirmed, Dropped, Opened


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
