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
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from kestrelmq.clock import Pause
from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import JournalError
from kestrelmq.format.records import ADDX_HEADER, MAX_XID, item_add_time
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.writer import FileJournal, NoJournal
from kestrelmq.queue.reads import OpenReads
from kestrelmq.scheduling.worker import LARGE_ITEM, Worker

SLICE_ITEMS: Final = 200
"""Most items that join, or are confirmed, at once: this takes two or three milliseconds."""
_SYNC_PERIOD: Final = 1.0
"""Least seconds between two syncs of what joined, and until a failed step is tried again."""
_DROPPED_AT_ONCE: Final = 500
"""Most items that a flush drops at once."""
_XID_BITS: Final = 32
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

log = get_logger(__name__)


def companion_settings(config: QueueConfig) -> QueueConfig:
    """Return the settings of the companion of a queue that has the settings `config`.

    No limit of the queue holds for it. Its journal keeps the last-used xid when it is rewritten,
    which only the documented dialect does.
    """
    settings = {name: getattr(config, name) for name in _SETTINGS}
    return QueueConfig().model_copy(update=settings)


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

    @property
    def is_writing(self) -> bool:
        """Whether the writer has to write, before anything else is written."""

    def confirm_held(self, xids: Sequence[int]) -> None:
        """Confirm such reads, and write that. Raises JournalError: they are still open."""


AnyCompanion = TypeVar("AnyCompanion", bound=Companion)


class DelayedItems(Generic[AnyCompanion]):
    """The delayed items of a queue.

    Attributes:
        companion: the queue that has them as open reads.
        joined: the items that are joined or safe, by xid.
        is_joining: whether the items that were taken are being written; no others join meanwhile.
    """

    def __init__(self, companion: AnyCompanion, joined: Iterable[int]) -> None:
        """Start with what the companion holds; `joined` are xids of items that joined before."""
        self.companion = companion
        self._held = companion.reads.open
        self.joined: ReadTable[bytes] = ReadTable()
        self._joined_bytes = 0
        # The xids of those in `joined` that are not safe yet, unless they are being synced.
        self._unsafe: deque[int] = deque()
        for xid in joined:
            self._has_joined(xid)
        # A heap of when each item is due (ms) and its xid, as one number: with a million of them
        # this takes a third of the memory that tuples take. If the write that added an item failed,
        # its entry is dead: the xid has no item, or one of another time, or two equal entries.
        self._due = [
            _entry(item_add_time(read.item), xid)
            for xid, read in self._held.items()
            if xid not in self.joined
        ]
        heapq.heapify(self._due)
        # Entries of the heap whose items are just joining.
        self._taken: list[int] = []
        self._safe: deque[int] = deque()
        self._is_syncing = self.is_joining = False
        self._sync_at = self._join_at = 0.0

    def __len__(self) -> int:
        """Number of items that wait until they are due."""
        return len(self._held) - len(self.joined)

    @property
    def size(self) -> int:
        """Bytes of data in the items that wait until they are due."""
        held = self.companion.reads.open_bytes - ADDX_HEADER * len(self._held)
        return held - self._joined_bytes

    def has_room(self, size: int, most: int) -> bool:
        """Whether memory, of which they may take `most` bytes, has room for `size` bytes more."""
        count = len(self._held)
        held = self.companion.reads.open_bytes + (OVERHEAD - ADDX_HEADER) * count
        return not count or held + size + OVERHEAD <= most

    @property
    def _next_due(self) -> int | None:
        """When the next item is due (ms); None if none waits."""
        while self._due:
            entry = self._due[0]
            read = self._held.get(_xid(entry))
            if (
                read is not None
                and item_add_time(read.item) == entry >> _XID_BITS
                and _xid(entry) not in self.joined
                and not (self._taken and self._taken[-1] == entry)
            ):
                return entry >> _XID_BITS
            heapq.heappop(self._due)
        return None

    def next_step(self, now: int, at: float) -> float | None:
        """Return when something has to be done next (monotonic seconds); None if nothing has to.

        That changes if the clock is set: the caller must ask again then.

        Args:
            now: the time (ms).
            at: the same in monotonic seconds.
        """
        steps = []
        due = None if self.is_joining else self._next_due
        if due is not None:
            wait = max(0.0, (due - now) / 1000)
            steps.append(max(self._join_at, at + wait))
        if self._safe:
            steps.append(max(self._join_at, at))
        elif len(self.joined):
            steps.append(at + _SYNC_PERIOD if self._is_syncing else max(self._sync_at, at))
        return min(steps) if steps else None

    def add(self, record: bytes, mark: PutMark | None = None) -> None:
        """Hold an item, whose add time is when it is due; `mark` is that of its producer."""
        xid = self.companion.hold(record, mark)
        heapq.heappush(self._due, _entry(item_add_time(record), xid))

    def dropping(self, worker: Worker) -> Generator[None, None, int]:
        """Drop the items that wait now, in short pieces, and yield after each; return how many.

        None of them joins meanwhile; those that are added meanwhile stay. `worker` frees memory.

        Raises:
            JournalError: the others are still there.
        """
        there, due, self._due = self._held.copy(), self._due, []
        dropped = 0
        is_done = False
        try:
            for page in there.drain():
                for at in range(0, len(page), _DROPPED_AT_ONCE):
                    while self.companion.is_writing:
                        yield
                    if self.companion.is_closed:
                        return dropped
                    some = [
                        xid
                        for xid, read in page[at : at + _DROPPED_AT_ONCE]
                        if not read.is_over and xid not in self.joined
                    ]
                    self.companion.confirm_held(some)
                    dropped += len(some)
                    yield
            is_done = True
        finally:
            if is_done:
                worker.free(due)
            else:
                for entry in self._due:
                    heapq.heappush(due, entry)
                self._due = due
        return dropped

    def drop_next(self) -> bool:
        """Drop the item that is due first; return False if there is none, or a flush drops it.

        Raises:
            JournalError: it is still there.
        """
        if self._next_due is None:
            return False
        self.companion.confirm_held((_xid(self._due[0]),))
        heapq.heappop(self._due)
        return True

    def forget(self) -> list[int]:
        """Forget when the items are due; return what is to be freed. The queue is deleted."""
        useless, self._due = self._due, []
        return useless

    # --- joining ---

    def take_due(self, now: int, at: float) -> list[tuple[int, bytes]]:
        """Take some of the items that are due, in order, with their xids.

        Call `have_joined` or `put_back` afterwards.

        Args:
            now: the time (ms).
            at: the same in monotonic seconds.
        """
        taken: list[tuple[int, bytes]] = []
        if at < self._join_at or self.is_joining:
            return taken
        size = 0
        while len(taken) < SLICE_ITEMS and size < LARGE_ITEM:
            due = self._next_due
            if due is None or due > now:
                break
            xid = _xid(self._due[0])
            record = self._held[xid].record
            self._taken.append(heapq.heappop(self._due))
            taken.append((xid, record))
            size += _size(record)
        return taken

    def have_joined(self) -> int:
        """Take note that the queue has written the items that were taken; return how many."""
        count = len(self._taken)
        for entry in self._taken:
            self._has_joined(_xid(entry))
        self._taken.clear()
        return count

    def _has_joined(self, xid: int) -> None:
        record = self._held[xid].record
        self.joined[xid] = record
        self._joined_bytes += _size(record)
        self._unsafe.append(xid)

    def put_back(self, at: float) -> None:
        """Keep the items that were taken, because a write failed at `at` (monotonic seconds)."""
        self._join_at = at + _SYNC_PERIOD
        for entry in self._taken:
            heapq.heappush(self._due, entry)
        self._taken.clear()

    def forget_taken(self) -> None:
        """Forget the items that were taken: they are not there any more."""
        self._taken.clear()

    # --- confirming what joined ---

    def settle(self, journal: FileJournal | NoJournal, worker: Worker, at: float) -> None:
        """Let the items that joined be over, a step further; `at` is monotonic seconds.

        `worker` syncs `journal`, that of the queue they joined.
        """
        if self._safe:
            self._confirm_some(at)
        elif self._unsafe and not self._is_syncing and at >= self._sync_at:
            self._is_syncing = True
            self._sync_at = at + _SYNC_PERIOD
            xids, self._unsafe = self._unsafe, deque()

            def sync(_pause: Pause) -> None:
                journal.sync()

            worker.run(sync, lambda error: self._synced(xids, error))

    def _synced(self, xids: deque[int], error: BaseException | None) -> None:
        self._is_syncing = False
        if self.companion.is_closed:
            return
        if error is not None:
            log.warning("%s: items that joined stay there, too: %s", self.companion.name, error)
            self._unsafe.extendleft(reversed(xids))
            return
        self._safe = xids  # it was empty when the sync began

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
            record = self.joined.pop(xid)
            assert record is not None  # noqa: S101 # it joined
            self._joined_bytes -= _size(record)

    def finish(self, journal: FileJournal | NoJournal) -> None:
        """Let all items that joined be over, as far as that works: their queue is being closed.

        `journal` is that of the queue. What this cannot do, the next start does.
        """
        if self.companion.is_closed or not len(self.joined):
            return
        with contextlib.suppress(OSError, JournalError):
            journal.sync()
            self.companion.confirm_held(list(self.joined))

    # --- replacing the files of the queue ---

    def noted(self) -> ReadTable[bytes]:
        """Return the items by xid that the queue's new file must note as joined."""
        return self.joined.copy()

    def sync(self) -> None:
        """Force the companion to disk; from any thread. Raises OSError."""
        self.companion.journal.sync()


def _size(record: bytes) -> int:
    return len(record) - ADDX_HEADER


def _entry(due: int, xid: int) -> int:
    return due << _XID_BITS | xid & (1 << _XID_BITS) - 1


def _xid(entry: int) -> int:
    xid = entry & (1 << _XID_BITS) - 1
    return xid if xid <= MAX_XID else xid - (1 << _XID_BITS)
