"""The items of a queue that wait, in order: the head in memory, what comes after on disk.

- An item in memory is its ADDX record, the bytes that went to the journal.
- Memory holds at most `max_memory_size` bytes of data and one item; the rest is behind: counted,
  and read back from the journal when its turn comes.
"""

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from kestrelmq.engine.behind import READ_AHEAD, Behind
from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.journal.memory import limit_for_now
from kestrelmq.journal.records import ADDX_HEADER, item_add_time
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal, NoJournal

_COUNTED: Final = 100_000
"""Items that are counted in a few milliseconds."""

log = logging.getLogger(__name__)


class Items(Committable):
    """Items that wait.

    Attributes:
        name: the queue's name.
        journal: where they are written.
        memory_bytes: bytes of item data held in memory, without open reads.
    """

    def __init__(self, name: str, journal: FileJournal | NoJournal, state: Replay) -> None:
        self.name = name
        self.journal = journal
        # Bytes of data that memory may hold as it is now filled, and at most.
        self._memory_limit = self._memory_most = 0
        # What is behind is read back when memory holds less.
        self._refill_below = 0
        self._memory = state.memory
        self.memory_bytes = state.memory_bytes
        self._behind: Behind | None = None
        if state.behind is not None:
            self._behind = Behind(state.behind, state.behind_items, state.behind_bytes)

    @property
    def _unwritten(self) -> int:
        """Bytes of records that were collected and not written yet."""
        raise NotImplementedError

    def write_now(self) -> None:
        """Write what was collected. Raises JournalError."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Items waiting, without the open ones."""
        return len(self._memory) + (self._behind.items if self._behind else 0)

    @property
    def size(self) -> int:
        """Bytes of data in the items that wait."""
        return self.memory_bytes + (self._behind.bytes if self._behind else 0)

    @property
    def memory_items(self) -> int:
        """Items held in memory."""
        return len(self._memory)

    @property
    def read_behind(self) -> bool:
        """Whether part of the queue is on disk only."""
        return self._behind is not None

    def browse(self, count: int) -> list[bytes]:
        """Return the first items that memory holds, at most `count`, and leave them there."""
        return list(islice(self._memory, count))

    @property
    def oldest(self) -> int:
        """When the item at the head was added (ms); 0 when memory holds none."""
        return item_add_time(self._memory[0]) if self._memory else 0

    # --- memory, and what is behind ---

    def _has_room(self, size: int) -> bool:
        """Look how full memory is; say whether an item of `size` bytes may be held."""
        if isinstance(self.journal, FileJournal):
            most, held = self._memory_most, self.memory_bytes
            self._memory_limit = limit_for_now(most, held, len(self._memory))
            if not self._refill_below:
                self._plan_refill()
        return not self._memory or self.memory_bytes + size <= self._memory_limit

    def _plan_refill(self) -> None:
        """Decide when to read back next."""
        if self._behind is not None:
            held, items = self.memory_bytes, len(self._memory)
            self._refill_below = self._behind.refill_below(held, items, self._memory_limit)

    def _put_behind(self, size: int) -> None:
        if self._behind is None:
            assert isinstance(self.journal, FileJournal)  # noqa: S101 # else it was refused
            position = self.journal.current_size + self._unwritten
            log.info("queue %s: memory is full, reading behind", self.name)
            self._behind = Behind(self.journal.reader(self.journal.current_name, position))
            self._plan_refill()
        self._behind.items += 1
        self._behind.bytes += size

    def _leave_behind(self) -> None:
        """Read no more from the journal: nothing is behind, or it is not wanted."""
        if self._behind is not None:
            self._behind.close()
        self._behind, self._refill_below = None, 0

    def _drop_last(self, size: int) -> None:
        """Drop the item that was added last, of `size` bytes."""
        behind = self._behind
        if behind is None:
            self._memory.pop()
            self.memory_bytes -= size
            return
        behind.items -= 1
        behind.bytes -= size
        if not behind.items:
            self._leave_behind()

    def _push_back(self, record: bytes) -> None:
        self._memory.appendleft(record)
        self.memory_bytes += len(record) - ADDX_HEADER

    def _recall(self) -> bool:
        """Read items back into memory; False when none is behind."""
        behind = self._behind
        if behind is None:
            return False
        try:
            items, size = self._read_behind(behind)
        except (OSError, JournalError) as error:
            if self._memory:
                return True  # those come first; the error is the next reader's
            raise QueueUnavailable(f"queue {self.name} cannot be read: {error}") from error
        self._memory.extend(items)
        self.memory_bytes += size
        if not behind.items:
            self._leave_behind()
        elif items:
            self._plan_refill()
        return bool(self._memory)

    def _read_behind(self, behind: Behind) -> tuple[list[bytes], int]:
        assert isinstance(self.journal, FileJournal)  # noqa: S101 # else nothing is behind
        self._has_room(0)
        wanted = max(1, min(READ_AHEAD, self._memory_limit - self.memory_bytes))
        items, size = behind.read(self.journal.files, wanted, brief=bool(self._memory))
        if items or self._memory:
            return items, size
        self.write_now()  # what is left has not been written yet
        return behind.read(self.journal.files, wanted)

    @property
    def behind_items(self) -> int:
        """Items that are on disk only."""
        return self._behind.items if self._behind is not None else 0

    def fitting_items(self) -> int:
        """Return how many items at the head memory may hold: one at least, if there are any.

        Of a great many it may be fewer, so that it takes a short time to count them.
        """
        held = count = 0
        for record in islice(self._memory, _COUNTED):
            held += len(record) - ADDX_HEADER
            if count and held > self._memory_most:
                break
            count += 1
        return count

    def drop_from_memory(
        self, kept: int, files: Sequence[str], position: int, skip: int
    ) -> deque[bytes]:
        """Hold the first `kept` items in memory only; return those that it held before.

        The others are read back in their turn: the first of them stands `skip` items after
        `position` in the first of `files`.

        Raises:
            OSError, JournalError: the files cannot be read; nothing was dropped.
        """
        assert isinstance(self.journal, FileJournal)  # noqa: S101 # else there are no files
        behind = self._behind or Behind(self.journal.reader(files[0], position))
        behind.move(files, position, skip)
        before = self._memory
        self._memory = deque(islice(before, kept))
        size = sum(map(len, self._memory)) - ADDX_HEADER * kept
        behind.items += len(before) - kept
        behind.bytes += self.memory_bytes - size
        self._behind, self.memory_bytes = behind, size
        self._has_room(0)
        self._plan_refill()
        return before

    def _recall_all(self) -> None:
        """Read everything back into memory. Raises JournalError and OSError: nothing was."""
        behind = self._behind
        if behind is None:
            return
        assert isinstance(self.journal, FileJournal)  # noqa: S101 # else nothing is behind
        count, wanted = behind.items, behind.bytes + behind.items * ADDX_HEADER
        reader = behind.reader.copy()
        try:
            items = reader.read(self.journal.files, count, wanted)
        finally:
            reader.close()
        if len(items) != count:
            raise JournalError(f"queue {self.name}: {count - len(items)} items cannot be read")
        self._memory.extend(items)
        self.memory_bytes += behind.bytes
        self._leave_behind()

    # --- the reader, whose files upkeep replaces ---

    @property
    def behind_read(self) -> int:
        """How many items were read back since the queue last began to read behind."""
        return self._behind.read_items if self._behind is not None else 0

    @property
    def reader_file(self) -> str | None:
        """The file in which the next item that is not in memory is looked for, if any is."""
        return self._behind.reader.file if self._behind is not None else None

    def reader_renamed(self, old: str, new: str) -> None:
        """Tell that the journal file `old` is called `new` now."""
        if self._behind is not None:
            self._behind.reader.renamed(old, new)

    def reader_carried(self, old: str, end: int, new: str) -> None:
        """Tell that what was to follow byte `end` of the file `old` begins the file `new`."""
        if self._behind is not None and self._behind.reader.file == old:
            self._behind.reader.carried(end, new)

    def move_reader(self, files: Sequence[str], position: int, skip: int) -> None:
        """Let the next item be looked for in other files, after `skip` items from `position` on.

        Raises:
            OSError, JournalError: they cannot be read; it is looked for where it was.
        """
        if self._behind is not None:
            self._behind.move(files, position, skip)
