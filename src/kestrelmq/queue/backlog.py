"""The waiting items of a queue, in order: the first of them in memory, the others on disk only.

- An item in memory is its ADDX record, the same bytes that were written to the journal; if there is
  more to say of it, a `NotedItem`. Items that were taken and are back stand in front of the others.
- Memory holds at most `max_memory_size` bytes of data and one more item. The rest is behind: it is
  counted, and read back from the journal when its turn comes, in large pieces and in order. So a
  long queue is served at the disk's sequential speed.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from kestrelmq.deferred_logs import get_logger
from kestrelmq.format.records import ADDX_HEADER, Item, item_add_time, item_size
from kestrelmq.journal.memory_budget import limit_for_now
from kestrelmq.journal.reader import JournalReader, LargeRecord, too_few_items
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal, JournalFollower, NoJournal

READ_AHEAD: Final = 256 << 10
"""Bytes of records read back from the journal at once: a short time even for tiny records."""
READY_BYTES: Final = 8 << 20
"""Bytes of records that are kept in memory ahead of the readers.

It is small so that items are still in the processor's caches when they are taken, and a pack has
little to copy. It is large enough that a long run of records without items can be skipped before
readers have used it up.
"""
LARGE_RECORD: Final = 2 << 20
"""Bytes of a record that takes longer than a few milliseconds to be read."""
_BRIEF_BYTES: Final = 8 << 10
"""Bytes of records without items that are skipped in a short time."""
_COUNT_LIMIT: Final = 100_000
"""Items that are counted in a few milliseconds."""

log = get_logger(__name__)


class ReadBehind:
    """Items that are in the journal but not in memory.

    Attributes:
        reader: positioned at the first of them.
        items: how many there are, including those not written yet.
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
        self, files: Sequence[str], wanted: int, *, brief: bool = False, at_once: bool = True
    ) -> tuple[list[Item], int]:
        """Take items of about `wanted` bytes from the front; return them and their data bytes.

        With `brief`, only a short time is spent, and perhaps no item is found yet. Unless it must
        be `at_once`, a large item is left to `JournalReader.large_record`.

        Raises:
            DamagedJournal: the journal was damaged since it was loaded.
            OSError: it could not be read.
        """
        reader = self.reader
        before = reader.item_bytes
        most_other, most = _BRIEF_BYTES if brief else None, None if at_once else LARGE_RECORD
        items = reader.read(files, self.items, wanted, most_other, most)
        size = reader.item_bytes - before - ADDX_HEADER * len(items)
        self.items -= len(items)
        self.bytes -= size
        self.read_items += len(items)
        return items, size

    def refill_below(self, held: int, items: int, limit: int) -> int:
        """Return how far memory must drain before more is read from disk, in bytes of data.

        Args:
            held: bytes of data that memory holds now.
            items: how many items memory holds now.
            limit: bytes of data that memory may hold.
        """
        half = limit // 2
        ready = READY_BYTES * held // max(1, held + ADDX_HEADER * items)
        if held + self.bytes <= half:
            # All the rest fits in memory. Read it faster than it is taken, but not all at once.
            ready = max(ready, held - READ_AHEAD // 2)
        return min(ready, half)

    def move(self, files: Sequence[str], position: int, skip: int) -> None:
        """Continue in the first of `files`, `skip` items after `position`.

        Raises:
            DamagedJournal: that file is damaged; the reader stays where it was.
            OSError: that file cannot be read; the reader stays where it was.
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


class Backlog(JournalFollower):
    """The waiting items. The hot path uses the attributes directly.

    Attributes:
        front: the items that were taken and are back, the head last; none of them is on disk only.
        memory: the other items in memory, the first of them first.
        memory_bytes: bytes of data in both, without open reads.
        memory_limit: bytes of data that memory may hold until the limit is computed again.
        max_memory_bytes: bytes of data that memory may hold at most (`max_memory_size`).
        behind: the items that are on disk only; None if there are none.
        refill_below: read more back when memory holds fewer bytes of data than this.
        total_items: items added since the queue was loaded or created.
        put_bytes: bytes of data in those.
        producers: the last marks of those who number the items that they add.
        delayed: the items that wait until they are due, if there ever were any.
    """

    def __init__(
        self, name: str, journal: FileJournal | NoJournal, state: Replay, given_back: int
    ) -> None:
        """Start with the items of `state`; the first `given_back` were; `name` is the queue's."""
        self._name = name
        self.memory = state.memory
        self.front: list[Item] = [self.memory.popleft() for _ in range(given_back)]
        self.front.reverse()
        self.memory_bytes = state.memory_bytes
        self.producers = state.producers
        self.delayed = state.delayed
        self.memory_limit = self.max_memory_bytes = 0
        self.behind: ReadBehind | None = None
        self.refill_below = self.total_items = self.put_bytes = 0
        if state.behind is not None:
            self.behind = ReadBehind(state.behind, state.behind_items, state.behind_bytes)
        self._journal = journal
        if isinstance(journal, FileJournal):
            journal.follower = self

    def __len__(self) -> int:
        return self.memory_items + self.behind_items

    @property
    def items(self) -> int:
        """Number of waiting items, without those of open reads."""
        return len(self)

    @property
    def memory_items(self) -> int:
        """Number of items that are in memory."""
        return len(self.front) + len(self.memory)

    @property
    def read_behind(self) -> bool:
        """Whether some items are on disk only."""
        return self.behind is not None

    @property
    def head(self) -> Item | None:
        """The head; None if no item is in memory."""
        if self.front:
            return self.front[-1]
        return self.memory[0] if self.memory else None

    @property
    def size(self) -> int:
        """Bytes of data in the waiting items."""
        return self.memory_bytes + (self.behind.bytes if self.behind is not None else 0)

    @property
    def behind_items(self) -> int:
        """Number of items that are on disk only."""
        return self.behind.items if self.behind is not None else 0

    @property
    def oldest(self) -> int:
        """When the item at the head was added (ms); 0 if no item is in memory."""
        head = self.head
        return 0 if head is None else item_add_time(head)

    def browse(self, count: int, offset: int = 0) -> list[Item]:
        """Return at most `count` of the items in memory from `offset` on, without taking them."""
        end = min(offset + count, self.memory_items)  # islice takes no number beyond 64 bits
        return list(islice(chain(reversed(self.front), self.memory), min(offset, end), end))

    # --- adding and taking ---

    def limit_memory(self, most: int) -> bool:
        """Set `max_memory_bytes`; return whether it was lowered below what memory holds."""
        lowered = most < self.max_memory_bytes
        self.memory_limit = self.max_memory_bytes = most
        self._measure()
        return lowered and self.memory_bytes > most

    def has_room(self, size: int) -> bool:
        """Whether memory may hold another item, of `size` bytes."""
        if self.memory_bytes + size <= self.memory_limit:
            return True
        self._measure()
        return not self.memory_items or self.memory_bytes + size <= self.memory_limit

    def _measure(self) -> None:
        """Compute `memory_limit` again from how full memory is."""
        if isinstance(self._journal, FileJournal):
            most, held = self.max_memory_bytes, self.memory_bytes
            self.memory_limit = limit_for_now(most, held, self.memory_items)
            if not self.refill_below:
                self._plan_refill()

    def _plan_refill(self) -> None:
        """Decide when to read items back next."""
        if self.behind is not None:
            held, items = self.memory_bytes, self.memory_items
            self.refill_below = self.behind.refill_below(held, items, self.memory_limit)

    def enter_read_behind(self, unwritten: int) -> None:
        """Enter read-behind: items that are added from now on stay on disk only.

        `unwritten` is how many bytes will be written to the journal before the next item.
        """
        journal = self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # without one, items are refused
        fields = {"queue": self._name}
        log.info("queue %s: memory is full, reading behind", self._name, extra=fields)
        position = journal.current_size + unwritten
        self.behind = ReadBehind(journal.reader(journal.current_name, position))
        self._plan_refill()

    def append(self, one: Item, size: int) -> None:
        """Add an item of `size` bytes of data at the end; in read-behind, only count it."""
        self.total_items += 1
        self.put_bytes += size
        behind = self.behind
        if behind is None:
            self.memory.append(one)
            self.memory_bytes += size
        else:
            behind.items += 1
            behind.bytes += size

    def take(self) -> Item:
        """Take the head, which must be in memory."""
        one = self.front.pop() if self.front else self.memory.popleft()
        self.memory_bytes -= item_size(one)
        return one

    def put_back(self, one: Item) -> None:
        """Make an item that was taken the head again."""
        self.front.append(one)
        self.memory_bytes += item_size(one)

    def drop_last(self, size: int) -> None:
        """Drop the item that was added last, of `size` bytes."""
        self.total_items -= 1
        self.put_bytes -= size
        behind = self.behind
        if behind is None:
            if self.memory:
                self.memory.pop()
            else:  # it was taken, and that was undone
                self.front.pop(0)
            self.memory_bytes -= size
            return
        behind.items -= 1
        behind.bytes -= size
        if not behind.items:
            self._leave_read_behind()

    def drop_all(self) -> tuple[list[Item], deque[Item]]:
        """Forget every item; return those that were in memory: there may be millions to free."""
        before = self.front, self.memory
        self.front, self.memory, self.memory_bytes = [], deque(), 0
        self._leave_read_behind()
        return before

    # --- reading back ---

    def read_back(self, *, at_once: bool = True) -> bool:
        """Read items that are behind back into memory; return whether it holds the head now.

        The head may still be missing although items are behind, if those are not written yet; or if
        it is large, and need not be there `at_once`: see `large_record`.

        Raises:
            JournalError: the journal is damaged; nothing has changed.
            OSError: the journal cannot be read; nothing has changed.
        """
        behind, has_head = self.behind, self.memory_items > 0
        assert behind is not None  # noqa: S101 # the caller looked
        if behind.reader.large and not at_once:
            return has_head
        self._measure()
        wanted = max(1, min(READ_AHEAD, self.memory_limit - self.memory_bytes))
        items, size = behind.read(self._files, wanted, brief=has_head, at_once=at_once)
        self.memory.extend(items)
        self.memory_bytes += size
        if not behind.items:
            self._leave_read_behind()
        elif items:
            self._plan_refill()
        return self.memory_items > 0

    def large_record(self) -> LargeRecord | None:
        """Return the record that `read_back` left, for a thread; None if it left none.

        `use` it then. Raises OSError: the journal cannot be read.
        """
        behind = self.behind
        return behind.reader.large_record() if behind is not None and behind.reader.large else None

    def use(self, large: LargeRecord) -> None:
        """Let `read_back` go on with a record that a thread has read."""
        if self.behind is not None:
            self.behind.reader.use(large)

    def check_complete(self) -> None:
        """Check that `read_back`, once everything is written, found an item if any is behind.

        Raises:
            JournalError: it found none; files were cut short or emptied by another program.
        """
        behind = self.behind
        if behind is not None and not self.memory_items and not behind.reader.large:
            raise too_few_items(self._files)

    def _leave_read_behind(self) -> None:
        """Leave read-behind: all items are in memory, or the rest is no longer wanted."""
        self.close()
        self.behind, self.refill_below = None, 0

    @property
    def _files(self) -> list[str]:
        journal = self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # without one, nothing is behind
        return journal.files

    def close(self) -> None:
        """Release the file that is being read."""
        if self.behind is not None:
            self.behind.close()

    # --- trimming memory ---

    def fitting_items(self) -> int:
        """Return how many of the first items fit in memory; at least one, if there are any.

        If there are very many, the result may be too low, because only some are counted.
        """
        held = count = 0
        for one in self.browse(_COUNT_LIMIT):
            held += item_size(one)
            if count and held > self.max_memory_bytes:
                break
            count += 1
        return count

    def trim(
        self, kept: int, files: Sequence[str], position: int, skip: int
    ) -> tuple[list[Item], deque[Item]]:
        """Keep only the first `kept` items in memory; return all that were there before.

        The others are read back when their turn comes: the first of them is `skip` items after
        `position` in the first of `files`.

        Raises:
            JournalError: the files are damaged; nothing was dropped.
            OSError: the files cannot be read; nothing was dropped.
        """
        journal = self._journal
        assert isinstance(journal, FileJournal)  # noqa: S101 # without one, there are no files
        behind = self.behind or ReadBehind(journal.reader(files[0], position))
        behind.move(files, position, skip)
        before = self.front, self.memory
        behind.items += self.memory_items - kept
        self.front = self.front[-kept:] if kept else []
        self.memory = deque(islice(self.memory, kept - len(self.front)))
        size = sum(map(item_size, chain(self.front, self.memory)))
        behind.bytes += self.memory_bytes - size
        self.behind, self.memory_bytes = behind, size
        self._measure()
        self._plan_refill()
        return before

    # --- the reader of the journal, whose files upkeep replaces ---

    @property
    def read_items(self) -> int:
        """How many items were read back since the queue last entered read-behind."""
        return self.behind.read_items if self.behind is not None else 0

    @property
    def reader_file(self) -> str | None:
        """The file from which the next item will be read back; None outside read-behind."""
        return self.behind.reader.file if self.behind is not None else None

    def file_renamed(self, old: str, new: str) -> None:
        """Follow a rename: the journal file `old` is now called `new`."""
        if self.behind is not None:
            self.behind.reader.renamed(old, new)

    def file_ended(self, name: str, end: int, following: str) -> None:
        """Note that the file `following` goes on after byte `end` of `name`."""
        if self.behind is not None and self.behind.reader.file == name:
            self.behind.reader.file_ended(end, following)

    def move_reader(self, files: Sequence[str], position: int, skip: int) -> None:
        """Read the next items from `files`, from `skip` items after `position` on.

        Raises:
            JournalError: the files are damaged; the reader stays where it was.
            OSError: the files cannot be read; the reader stays where it was.
        """
        behind = self.behind
        assert behind is not None  # noqa: S101 # else no file is read
        behind.move(files, position, skip)
