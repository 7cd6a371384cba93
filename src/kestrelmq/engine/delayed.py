"""The delayed items of a queue: durable in a journal of their own, until they are due.

They are in a companion of the queue, a queue called `NAME~~delayed`. No item ever waits there: each
is an open read that no reader has, under an xid of its own, so any of them can be confirmed in any
order. The add time of an item is when it is due. Memory holds all of them.

    waiting   only the companion has the item
    joined    it is due, and the queue has written it behind its last item, together with a note of
              its xid; what the queue wrote may not be on disk yet
    safe      it is on disk there
    over      the companion has confirmed the read

A crash before the last step leaves an item in both journals. Loading finds the note, and the item
is `joined` again: so it comes once. What the queue wrote is synced before the companion confirms,
whatever the settings, because a loss of power may take the later write of one file and leave that
of another. One sync serves all items that joined since the last.

The queue drops a note only when it replaces the file that has it. Items that are joined or safe by
then are noted again in the new file, and the companion is synced before that is used.
"""

import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from kestrelmq.clock import Pause
from kestrelmq.config import QueueConfig
from kestrelmq.engine.reads import OpenReads
from kestrelmq.engine.worker import Worker
from kestrelmq.errors import JournalError
from kestrelmq.journal.memory import OVERHEAD
from kestrelmq.journal.records import ADDX_HEADER, item_add_time
from kestrelmq.journal.writer import FileJournal, NoJournal
from kestrelmq.marks import PutMark

SLICE_ITEMS: Final = 200
"""Most items that join, or are confirmed, at once: this takes two or three milliseconds."""
_SLICE_BYTES: Final = 1 << 20
"""Bytes of data after which no more items join at once."""
_SYNC_PERIOD: Final = 1.0
"""Least seconds between two syncs of what joined, and until a failed step is tried again."""
_LONGEST_SLEEP: Final = 60.0
"""Seconds after which the time is checked again, because the clock may have been set."""
_SETTINGS: Final = (
    "keep_journal",
    "sync_journal",
    "max_memory_size",
    "max_journal_size",
    "default_journal_size",
    "min_journal_compact_delay",
    "disable_aggressive_rewrites",
    "enable_trace",
    "producer_ttl",
)
"""The settings of a queue that hold for its companion, too."""

log = logging.getLogger(__name__)

_Entry = tuple[int, int, int, bytes]


def companion_settings(config: QueueConfig) -> QueueConfig:
    """Return the settings of the companion of a queue that has the settings `config`.

    No limit of the queue holds for it. Its journal keeps the last-used xid when it is rewritten,
    which only the documented dialect does.
    """
    settings = {name: getattr(config, name) for name in _SETTINGS}
    return QueueConfig().model_copy(update=settings)


def concerns_companion(due: int, mark: PutMark | None) -> bool:
    """Whether the answer to such an add depends on the journal of delayed items, too.

    An add that a producer repeats may have been delayed at first.
    """
    return due > 0 or mark is not None


class JoinedQueue(Protocol):
    """What is needed of the queue that the items join."""

    @property
    def journal(self) -> FileJournal | NoJournal:
        """Where its items are written."""

    @property
    def worker(self) -> Worker:
        """What runs long work on the journal."""


class Companion(Protocol):
    """What is needed of the queue that has the delayed items; `Queue` has it."""

    name: str
    reads: OpenReads

    @property
    def journal(self) -> FileJournal | NoJournal:
        """Where the items are written."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""

    def hold(self, record: bytes, mark: PutMark | None = None) -> int:
        """Add an item as an open read that no reader has; return its xid."""

    def confirm_held(self, xids: Sequence[int]) -> None:
        """Confirm such reads, and write that. Raises JournalError: they are still open."""


AnyCompanion = TypeVar("AnyCompanion", bound=Companion)


class DelayedItems(Generic[AnyCompanion]):
    """The delayed items of a queue.

    Attributes:
        companion: the queue that has them as open reads.
        joined: the items that are joined or safe, by xid.
    """

    def __init__(self, companion: AnyCompanion, joined: Iterable[int]) -> None:
        """Start with what the companion holds; `joined` are xids of items that joined before."""
        self.companion = companion
        self._held = companion.reads.aside
        self.joined = {xid: self._held[xid] for xid in joined}
        self._joined_bytes = sum(map(_size, self.joined.values()))
        # A heap: when due (ms), a number in the order of arrival, xid and item. An entry is dead if
        # the xid has another item, because the write that added this one failed.
        self._due = [
            (item_add_time(record), number, xid, record)
            for number, (xid, record) in enumerate(self._held.items())
            if xid not in self.joined
        ]
        heapq.heapify(self._due)
        self._arrivals = len(self._held)
        # Entries of the heap whose items are just joining.
        self._taken: list[_Entry] = []
        self._safe: deque[int] = deque()
        self._is_syncing = False
        self._sync_at = self._join_at = 0.0

    def __len__(self) -> int:
        """Number of items that wait until they are due."""
        return len(self._held) - len(self.joined)

    @property
    def size(self) -> int:
        """Bytes of data in the items that wait until they are due."""
        held = self.companion.reads.aside_bytes - OVERHEAD * len(self._held)
        return held - self._joined_bytes

    def has_room(self, size: int, most: int) -> bool:
        """Whether memory, of which they may take `most` bytes, has room for `size` bytes more."""
        return not self._held or self.companion.reads.aside_bytes + size + OVERHEAD <= most

    @property
    def _next_due(self) -> int | None:
        """When the next item is due (ms); None if none waits."""
        while self._due:
            due, _, xid, record = self._due[0]
            if self._held.get(xid) is record:
                return due
            heapq.heappop(self._due)
        return None

    def next_step(self, now: int, at: float) -> float | None:
        """Return when something has to be done next (monotonic seconds); None if nothing has to.

        Args:
            now: the time (ms).
            at: the same in monotonic seconds.
        """
        steps = []
        due = self._next_due
        if due is not None:
            wait = max(0.0, (due - now) / 1000)
            steps.append(max(self._join_at, at + min(wait, _LONGEST_SLEEP)))
        if self._safe:
            steps.append(max(self._join_at, at))
        elif self.joined:
            steps.append(at + _SYNC_PERIOD if self._is_syncing else max(self._sync_at, at))
        return min(steps) if steps else None

    def add(self, record: bytes, mark: PutMark | None = None) -> None:
        """Hold an item, whose add time is when it is due; `mark` is that of its producer."""
        xid = self.companion.hold(record, mark)
        self._arrivals += 1
        heapq.heappush(self._due, (item_add_time(record), self._arrivals, xid, record))

    def drop_all(self) -> int:
        """Drop the items that wait; return how many. Raises JournalError: they are still there."""
        dropped = [xid for xid in self._held if xid not in self.joined]
        self.companion.confirm_held(dropped)
        self._due.clear()
        return len(dropped)

    # --- joining ---

    def take_due(self, now: int, at: float) -> list[tuple[int, bytes]]:
        """Take some of the items that are due, in order, with their xids.

        Call `have_joined` or `put_back` afterwards.

        Args:
            now: the time (ms).
            at: the same in monotonic seconds.
        """
        taken: list[tuple[int, bytes]] = []
        if at < self._join_at:
            return taken
        size = 0
        while len(taken) < SLICE_ITEMS and size < _SLICE_BYTES:
            due = self._next_due
            if due is None or due > now:
                break
            entry = heapq.heappop(self._due)
            self._taken.append(entry)
            taken.append(entry[2:])
            size += len(entry[3])
        return taken

    def have_joined(self) -> int:
        """Take note that the queue has written the items that were taken; return how many."""
        count = len(self._taken)
        for _, _, xid, record in self._taken:
            self.joined[xid] = record
            self._joined_bytes += _size(record)
        self._taken.clear()
        return count

    def put_back(self, at: float) -> None:
        """Keep the items that were taken, because a write failed at `at` (monotonic seconds)."""
        self._join_at = at + _SYNC_PERIOD
        for entry in self._taken:
            heapq.heappush(self._due, entry)
        self._taken.clear()

    # --- confirming what joined ---

    def settle(self, queue: JoinedQueue, at: float) -> None:
        """Let the items that joined `queue` be over, a step further; `at` is monotonic seconds."""
        if self._safe:
            self._confirm_some(at)
        elif self.joined and not self._is_syncing and at >= self._sync_at:
            self._is_syncing = True
            self._sync_at = at + _SYNC_PERIOD
            xids = list(self.joined)
            journal = queue.journal

            def sync(_pause: Pause) -> None:
                journal.sync()

            queue.worker.run(sync, lambda error: self._synced(xids, error))

    def _synced(self, xids: list[int], error: BaseException | None) -> None:
        self._is_syncing = False
        if self.companion.is_closed:
            return
        if error is not None:
            log.warning("%s: items that joined stay there, too: %s", self.companion.name, error)
            return
        self._safe.extend(xids)

    def _confirm_some(self, at: float) -> None:
        if at < self._join_at:
            return
        xids = [self._safe[place] for place in range(min(len(self._safe), SLICE_ITEMS))]
        try:
            self.companion.confirm_held(xids)
        except JournalError:
            self._join_at = at + _SYNC_PERIOD
            return
        for xid in xids:
            self._safe.popleft()
            self._joined_bytes -= _size(self.joined.pop(xid))

    def finish(self, queue: JoinedQueue) -> None:
        """Let all items that joined `queue` be over, as far as that works: it is being closed.

        What this cannot do, the next start does.
        """
        if self.companion.is_closed or not self.joined:
            return
        with contextlib.suppress(OSError, JournalError):
            queue.journal.sync()
            self.companion.confirm_held(list(self.joined))

    # --- replacing the files of the queue ---

    def noted(self) -> tuple[tuple[int, bytes], ...]:
        """Return the items, with their xids, that the queue's new file must note as joined."""
        return tuple(self.joined.items())

    def sync(self) -> None:
        """Force the companion to disk; from any thread. Raises OSError."""
        self.companion.journal.sync()


def _size(record: bytes) -> int:
    return len(record) - ADDX_HEADER
