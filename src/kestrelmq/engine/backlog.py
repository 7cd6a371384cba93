"""The items of a queue that wait, in order: the head in memory, what comes after on disk only.

- An item in memory is its ADDX record, the bytes that went to the journal.
- Memory holds at most `max_memory_size` bytes of data and one item. The rest is behind: counted,
  and read back from the journal when its turn comes, in large pieces and in order. So a long queue
  is served at the disk's sequential speed.
"""

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from kestrelmq.errors import JournalError
from kestrelmq.journal.memory import limit_for_now
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import ADDX_HEADER, item_add_time
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal, Follower, NoJournal

READ_AHEAD: Final = 256 << 10
"""Bytes of records read back from the journal at once: a short time, however small they are."""
READY: Final = 8 << 20
"""Bytes of records that are kept in memory ahead of the readers.

Little, so that an item is taken while the processor's caches still have it, and that a pack has
little to copy; yet enough items that a long run of other records is passed over meanwhile.
"""
_BRIEF: Final = 8 << 10
"""Bytes of records without an item that are passed over in a short time."""
_COUNTED: Final = 100_000
"""Items that are counted in a few milliseconds."""

log = logging.getLogger(__name__)


class Behind:
    """Items that are in the journal but not in memory.

    Attributes:
        reader: stands at the first of them.
        items: how many there are, those not written yet included.
        bytes: bytes of data in them.
        read_items: how many were read back so far.
    """

    __slots__ = ("bytes", "items", "read_items", "reader")

    def __init__(self, reader: JournalReader, items: int = 0, size: int = 0) -> None:
        self.reader = reader
        self.items = items
        self.bytes = size
        self.read_items = 0

    def read(
        self, files: Sequence[str], wanted: int, *, brief: bool = False
    ) -> tuple[list[bytes], int]:
        """Take items of about `wanted` bytes from the front; return them and their data bytes.

        With `brief`, there may be none yet: the journal is looked at for a short time only.

        Raises:
            DamagedJournal: the journal was damaged since it was loaded.
            OSError: it could not be read.
        """
        reader = self.reader
        before = reader.item_bytes
        items = reader.read(files, self.items, wanted, _BRIEF if brief else None)
        size = reader.item_bytes - before - ADDX_HEADER * len(items)
        self.items -= len(items)
        self.bytes -= size
        self.read_items += len(items)
        return items, size

    def refill_below(self, held: int, items: int, limit: int) -> int:
        """Return how far memory must drain before more is read from disk, in bytes of data.

        Args:
            held: bytes of data that memory holds now.
            items: in so many items.
            limit: bytes of data that it may hold.
        """
        half = limit // 2
        ready = READY * held // max(1, held + ADDX_HEADER * items)
        if held + self.bytes <= half:
            # Memory can take all the rest; it is read faster than it is taken, but not at once.
            ready = max(ready, held - READ_AHEAD // 2)
        return min(ready, half)

    def move(self, files: Sequence[str], position: int, skip: int) -> None:
        """Stand in the first of `files`, `skip` items after `position`.

        Raises:
            DamagedJournal, OSError: it cannot be read; it stands where it stood.
        """
        moved = self.reader.copy()
        moved.seek(files[0], position)
        missing = skip - moved.skip(files, skip)
        if missing:
            moved.close()
            raise OSError(f"{files[0]} ends {missing} items early")
        self.reader.close()
        self.reader = moved

    def close(self) -> None:
        """Release the file."""
        self.reader.close()


class Backlog(Follower):
    """The items that wait. What must be as fast as it can be reaches into the attributes.

    Attributes:
        memory: those that memory holds, the head first.
        memory_bytes: bytes of data in these, without open reads.
        memory_limit: bytes of data that memory may hold without another look at how full it is.
        memory_most: bytes of data that it may hold at most.
        behind: those on disk only; None when there are none.
        refill_below: when memory holds fewer bytes than this, more is to be read back.
        total_items, put_bytes: added since the queue came up.
    """

    def __init__(self, name: str, journal: FileJournal | NoJournal, state: Replay) -> None:
        """Begin with the items of `state`; `name` is the queue's."""
        self._name = name
        self.memory = state.memory
        self.memory_bytes = state.memory_bytes
        self.memory_limit = self.memory_most = 0
        self.behind: Behind | None = None
        self.refill_below = self.total_items = self.put_bytes = 0
        if state.behind is not None:
            self.behind = Behind(state.behind, state.behind_items, state.behind_bytes)
        self.follow(journal)

    def follow(self, journal: FileJournal | NoJournal) -> None:
        """Read what is behind from `journal`, from now on."""
        self._journal = journal
        if isinstance(journal, FileJournal):
            journal.follower = self

    def __len__(self) -> int:
        return len(self.memory) + self.behind_items

    @property
    def size(self) -> int:
        """Bytes of data in the items that wait."""
        return self.memory_bytes + (self.behind.bytes if self.behind is not None else 0)

    @property
    def behind_items(self) -> int:
        """Items that are on disk only."""
        return self.behind.items if self.behind is not None else 0

    @property
    def oldest(self) -> int:
        """When the item at the head was added (ms); 0 when memory holds none."""
        return item_add_time(self.memory[0]) if self.memory else 0

    def browse(self, count: int) -> list[bytes]:
        """Return the first items that memory holds, at most `count`, and leave them there."""
        return list(islice(self.memory, count))

    # --- adding and taking ---

    def limit_memory(self, most: int) -> bool:
        """Have memory hold at most `most` bytes of data; return whether it holds more now."""
        lowered = most < self.memory_most
        self.memory_limit = self.memory_most = most
        self._measure()
        return lowered and self.memory_bytes > most

    def has_room(self, size: int) -> bool:
        """Whether memory may hold another item, of `size` bytes."""
        if self.memory_bytes + size <= self.memory_limit:
            return True
        self._measure()
        return not self.memory or self.memory_bytes + size <= self.memory_limit

    def _measure(self) -> None:
        """See how full memory is."""
        if isinstance(self._journal, FileJournal):
            most, held = self.memory_most, self.memory_bytes
            self.memory_limit = limit_for_now(most, held, len(self.memory))
            if not self.refill_below:
                self._plan_refill()

    def _plan_refill(self) -> None:
        """Decide when to read back next."""
        if self.behind is not None:
            held, items = self.memory_bytes, len(self.memory)
            self.refill_below = self.behind.refill_below(held, items, self.memory_limit)

    def begin_behind(self, unwritten: int) -> None:
        """Leave what is added from now on behind.

        `unwritten` is how many bytes the journal is to get before the next item.
        """
        journal = self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # else items are refused
        log.info("queue %s: memory is full, reading behind", self._name)
        position = journal.current_size + unwritten
        self.behind = Behind(journal.reader(journal.current_name, position))
        self._plan_refill()

    def append(self, record: bytes, size: int) -> None:
        """Add an item of `size` bytes of data at the end, behind memory if something is there."""
        self.total_items += 1
        self.put_bytes += size
        behind = self.behind
        if behind is None:
            self.memory.append(record)
            self.memory_bytes += size
        else:
            behind.items += 1
            behind.bytes += size

    def take(self) -> bytes:
        """Take the head, which memory holds."""
        record = self.memory.popleft()
        self.memory_bytes -= len(record) - ADDX_HEADER
        return record

    def put_back(self, record: bytes) -> None:
        """Make an item that was taken the head again."""
        self.memory.appendleft(record)
        self.memory_bytes += len(record) - ADDX_HEADER

    def drop_last(self, size: int) -> None:
        """Drop the item that was added last, of `size` bytes."""
        self.total_items -= 1
        self.put_bytes -= size
        behind = self.behind
        if behind is None:
            self.memory.pop()
            self.memory_bytes -= size
            return
        behind.items -= 1
        behind.bytes -= size
        if not behind.items:
            self._leave_behind()

    def drop_all(self) -> deque[bytes]:
        """Forget every item; return those that memory held: there may be millions to free."""
        before, self.memory, self.memory_bytes = self.memory, deque(), 0
        self._leave_behind()
        return before

    # --- reading back ---

    def recall(self) -> bool:
        """Read items back into memory, if any are behind; return whether it holds the head now.

        It may not, though items are behind: those that the journal has not got yet.

        Raises:
            OSError, JournalError: they cannot be read; nothing has changed.
        """
        behind, memory = self.behind, self.memory
        if behind is None:
            return bool(memory)
        self._measure()
        wanted = max(1, min(READ_AHEAD, self.memory_limit - self.memory_bytes))
        items, size = behind.read(self._files, wanted, brief=bool(memory))
        memory.extend(items)
        self.memory_bytes += size
        if not behind.items:
            self._leave_behind()
        elif items:
            self._plan_refill()
        return bool(memory)

    def recall_all(self) -> None:
        """Read everything back into memory. Raises JournalError and OSError: nothing was."""
        behind = self.behind
        if behind is None:
            return
        count, wanted = behind.items, behind.bytes + behind.items * ADDX_HEADER
        reader = behind.reader.copy()
        try:
            items = reader.read(self._files, count, wanted)
        finally:
            reader.close()
        if len(items) != count:
            missing = count - len(items)
            raise JournalError(f"queue {self._name}: {missing} items cannot be read")
        self.memory.extend(items)
        self.memory_bytes += behind.bytes
        self._leave_behind()

    def _leave_behind(self) -> None:
        """Read no more from the journal: nothing is behind, or it is not wanted."""
        self.close()
        self.behind, self.refill_below = None, 0

    @property
    def _files(self) -> list[str]:
        journal = self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # else nothing is behind
        return journal.files

    def close(self) -> None:
        """Release the file that is read."""
        if self.behind is not None:
            self.behind.close()

    # --- memory that is to hold less ---

    def fitting_items(self) -> int:
        """Return how many items at the head memory may hold: one at least, if there are any.

        Of a great many it may be fewer, so that it takes a short time to count them.
        """
        held = count = 0
        for record in islice(self.memory, _COUNTED):
            held += len(record) - ADDX_HEADER
            if count and held > self.memory_most:
                break
            count += 1
        return count

    def trim(self, kept: int, files: Sequence[str], position: int, skip: int) -> deque[bytes]:
        """Hold the first `kept` items in memory only; return those that it held before.

        The others are read back in their turn: the first of them stands `skip` items after
        `position` in the first of `files`.

        Raises:
            OSError, JournalError: the files cannot be read; nothing was dropped.
        """
        journal = self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # else there are no files
        behind = self.behind or Behind(journal.reader(files[0], position))
        behind.move(files, position, skip)
        before = self.memory
        self.memory = deque(islice(before, kept))
        size = sum(map(len, self.memory)) - ADDX_HEADER * kept
        behind.items += len(before) - kept
        behind.bytes += self.memory_bytes - size
        self.behind, self.memory_bytes = behind, size
        self._measure()
        self._plan_refill()
        return before

    # --- the reader, whose files upkeep replaces ---

    @property
    def read_items(self) -> int:
        """How many items were read back since the queue last began to read behind."""
        return self.behind.read_items if self.behind is not None else 0

    @property
    def reader_file(self) -> str | None:
        """The file in which the next item that is not in memory is looked for, if any is."""
        return self.behind.reader.file if self.behind is not None else None

    def file_renamed(self, old: str, new: str) -> None:
        """Learn that the journal file `old` is called `new` now."""
        if self.behind is not None:
            self.behind.reader.renamed(old, new)

    def file_ended(self, name: str, end: int, following: str) -> None:
        """Learn that what was to come after byte `end` of `name` begins the file `following`."""
        if self.behind is not None and self.behind.reader.file == name:
            self.behind.reader.carried(end, following)

    def move_reader(self, files: Sequence[str], position: int, skip: int) -> None:
        """Let the next item be looked for in other files, after `skip` items from `position` on.

        Raises:
            OSError, JournalError: they cannot be read; it is looked for where it was.
        """
        if self.behind is not None:
            self.behind.move(files, position, skip)
