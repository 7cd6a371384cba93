"""Replay: the fold of journal records over (queue, open reads, last xid).

What a record does stands here once, in `apply`, for items in any form. Server start, the tools, the
library and the tests fold with `Replay`, whose items are records; Spark folds with
`spark.summarising`, whose items are references, and which may not know the state at the start.

    ADD, ADDX             the item is put at the end
    ADD_XID               the same, and it keeps the xid when it is opened
    REMOVE                the head is gone
    REMOVE_TENTATIVE      the head is opened, under the xid that it keeps or else the next free one
    REMOVE_TENTATIVE_XID  the head is opened under that xid
    CONFIRM_REMOVE        the open read is gone
    UNREMOVE              the open read's item is the head again
    SAVE_XID              that is the last-used xid
    CONTINUE              as ADDX and CONFIRM_REMOVE
    STATE_DUMP            it ends its file, and so the walk does not hand it in

Rules where the format leaves room: a remove from an empty queue, and an unremove or confirm of an
xid that is not open, change nothing; nor does a read that is to be opened under an xid that is open
already: the original's packer writes such files.

`Replay` holds at most `memory_limit` bytes of item data; items beyond are counted, and read back
from the files through a `JournalReader` when a remove gets that far.
"""

from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from typing import Final, Literal, Protocol, TypeVar

from kestrelmq.errors import JournalError
from kestrelmq.journal.memory import fitting, limit_for_now
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import (
    ADD,
    ADD_HEADER,
    ADD_XID,
    ADDX,
    ADDX_HEADER,
    CONFIRM_REMOVE,
    CONTINUE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    UNREMOVE,
    Buffer,
    NamedItem,
    added_item,
    next_xid,
    record_xid,
)
from kestrelmq.journal.walk import Batch

ReaderFactory = Callable[[str, int], JournalReader]
Item = TypeVar("Item")
Opened_contra = TypeVar("Opened_contra", contravariant=True)
_ADDING: Final = frozenset({ADD, ADD_XID, CONTINUE})
"""Opcodes of records that add an item, besides ADDX."""


class OpenReads(Protocol[Opened_contra]):
    """Items of open reads by xid."""

    def __contains__(self, xid: object, /) -> bool:
        """Whether a read is open under `xid`."""

    def __setitem__(self, xid: int, item: Opened_contra, /) -> None:
        """Have a read be open under `xid`, which none is."""


class QueueState(Protocol[Item]):
    """A queue into which records are folded, as `apply` asks and changes it.

    Attributes:
        last_xid: the last-used xid; `apply` sets it when it counts on from the one before.
    """

    last_xid: int

    @property
    def open(self) -> OpenReads[Item]:
        """The open reads."""

    def take(self) -> Item | None:
        """Take the head; None when the queue is empty."""

    def kept_xid(self, item: Item) -> int | None:
        """Return the xid that `item` was added with, if with any."""

    def save_xid(self, xid: int) -> None:
        """Set the last-used xid to what a record says, whatever it was before."""

    def remove(self) -> None:
        """Drop the head, if there is one."""

    def confirm(self, xid: int) -> None:
        """Drop the open read `xid`, if there is one."""

    def unremove(self, xid: int) -> None:
        """Give the open read `xid` back to the head, if there is one."""


def apply(state: QueueState[Item], opcode: int, xid: int) -> None:
    """Do what a record does, apart from the item that it adds, which is at the end already.

    Args:
        state: what it is done to.
        opcode: the record's.
        xid: the record's, if it has one.
    """
    if opcode == REMOVE_TENTATIVE:
        item = state.take()
        if item is not None:
            kept = state.kept_xid(item)
            xid = opened_xid(kept, state.last_xid, state.open)
            if xid != kept:
                state.last_xid = xid
            state.open[xid] = item
    elif opcode == REMOVE_TENTATIVE_XID:
        item = None if xid in state.open else state.take()
        if item is not None:
            state.save_xid(xid)
            state.open[xid] = item
    elif opcode in {CONFIRM_REMOVE, CONTINUE}:
        state.confirm(xid)
    elif opcode == UNREMOVE:
        state.unremove(xid)
    elif opcode == SAVE_XID:
        state.save_xid(xid)
    elif opcode == REMOVE:
        state.remove()


def opened_xid(kept: int | None, last: int, taken: Container[int]) -> int:
    """Return the xid under which REMOVE_TENTATIVE opens an item.

    Args:
        kept: the xid that the item was added with, if with any; it keeps that unless it is taken.
        last: the last-used xid.
        taken: xids of the open reads.
    """
    if kept is not None and kept not in taken:
        return kept
    return next_xid(last, taken)


class Replay:
    """The state of a queue as its journal tells it.

    Attributes:
        memory: items at the head, in order, as ADDX records.
        memory_bytes: bytes of data in them.
        behind: reader that stands at the first item that is not in memory; None when all are.
        behind_items: how many items are not in memory.
        behind_bytes: bytes of data in those.
        open: items of open reads by xid.
        last_xid: the last-used xid.
        dialect: how the last file says which xid a read got; None while it does not.
    """

    def __init__(
        self, memory_limit: int | None = None, open_reader: ReaderFactory | None = None
    ) -> None:
        """Start empty.

        Args:
            memory_limit: most bytes of item data to hold (one item is always held); None is all.
            open_reader: makes a reader that stands at (file, position); needed with a limit.
        """
        self.memory: deque[bytes] = deque()
        self.memory_bytes = 0
        self.behind: JournalReader | None = None
        self.behind_items = 0
        self.behind_bytes = 0
        self.open: dict[int, bytes] = {}
        self.last_xid = 0
        self.dialect: Literal["documented", "kestrel-2"] | None = None
        self._limit = memory_limit
        self._open_reader = open_reader
        self._files: Sequence[str] = ()

    @property
    def items(self) -> int:
        """Items in the queue, without the open ones."""
        return len(self.memory) + self.behind_items

    @property
    def size(self) -> int:
        """Bytes of data in the queue, without the open items."""
        return self.memory_bytes + self.behind_bytes

    def feed_batch(self, buffer: Buffer, batch: Batch, files: Sequence[str]) -> None:
        """Fold in what a walk found in `buffer`; `files` as for `feed`."""
        starts = batch.starts
        if isinstance(starts, range):
            self.feed_run(buffer, starts.start, len(starts), starts.step, files)
        elif batch.is_added:
            self.feed_added(buffer, starts, batch.end, files)
        else:
            self.feed(buffer, starts, batch.end, files)

    def feed(
        self, buffer: Buffer, starts: Sequence[int], end: int, files: Sequence[str] = ("",)
    ) -> None:
        """Fold in records of `buffer` that begin at `starts`; the last one stops at `end`.

        `files` are the queue's files up to the one that `buffer` maps, which is the last.
        """
        self._begin(files)
        memory = self.memory
        limit = self._limit
        if limit is not None:
            limit = limit_for_now(limit, self.memory_bytes, len(memory))
        append = memory.append
        bounds = iter(starts)
        start = next(bounds, end)
        while start != end:
            stop = next(bounds, end)
            opcode = buffer[start]
            if opcode == ADDX:
                size = stop - start - ADDX_HEADER
                if self.behind is None and (
                    limit is None or self.memory_bytes + size <= limit or not memory
                ):
                    append(buffer[start:stop])  # type: ignore[arg-type] # mmap slices are bytes
                    self.memory_bytes += size
                else:
                    self._add_behind(size, start)
            elif opcode == REMOVE:
                self.take()
            elif opcode == REMOVE_TENTATIVE:
                self.dialect = "documented"
                apply(self, opcode, 0)
            else:
                if opcode == REMOVE_TENTATIVE_XID:
                    self.dialect = "kestrel-2"
                elif opcode in _ADDING:
                    item = added_item(buffer, start, stop)
                    if item is not None:
                        self._add(item, start)
                apply(self, opcode, record_xid(buffer, start))
            start = stop

    def feed_added(
        self, buffer: Buffer, starts: Sequence[int], end: int, files: Sequence[str]
    ) -> None:
        """Fold in records that are all ADDX; otherwise as `feed`."""
        size = end - starts[0] - len(starts) * ADDX_HEADER
        if self.behind is not None:
            self._begin(files)
            self.behind_items += len(starts)
            self.behind_bytes += size
            return
        limit = self._limit
        if limit is not None:
            limit = limit_for_now(limit, self.memory_bytes, len(self.memory))
            if self.memory_bytes + size > limit:
                self.feed(buffer, starts, end, files)
                return
        self._begin(files)
        # Slices of what `mapped` gives are bytes.
        self.memory.extend([buffer[at:stop] for at, stop in pairwise((*starts, end))])  # type: ignore[misc]
        self.memory_bytes += size

    def feed_run(
        self, buffer: Buffer, start: int, count: int, length: int, files: Sequence[str]
    ) -> None:
        """Fold in `count` equally long records like the first, ADDX or ADD; otherwise as `feed`."""
        is_addx = buffer[start] == ADDX
        size = length - (ADDX_HEADER if is_addx else ADD_HEADER)
        self._begin(files)
        if self.behind is None:
            fit = count
            if self._limit is not None:
                fit = min(count, fitting(self._limit, self.memory_bytes, len(self.memory), size))
            end = start + fit * length
            if is_addx:
                # Slices of what `mapped` gives are bytes.
                self.memory.extend([buffer[at : at + length] for at in range(start, end, length)])  # type: ignore[misc]
                self.memory_bytes += fit * size
            else:
                for at in range(start, end, length):
                    self.feed(buffer, (at,), at + length, files)
            start, count = end, count - fit
            while count and self.behind is None:
                if self.memory:
                    self._add_behind(size, start)
                else:  # one item is always held, whatever its size
                    self.feed(buffer, (start,), start + length, files)
                start, count = start + length, count - 1
        self.behind_items += count
        self.behind_bytes += count * size

    def _begin(self, files: Sequence[str]) -> None:
        if self._files and files[-1] != self._files[-1]:
            self.dialect = None
        self._files = files

    def _add(self, item: bytes, start: int) -> None:
        size = len(item) - ADDX_HEADER
        limit = self._limit
        if self.behind is None and (
            limit is None or self.memory_bytes + size <= limit or not self.memory
        ):
            self.memory.append(item)
            self.memory_bytes += size
        else:
            self._add_behind(size, start)

    def _add_behind(self, size: int, start: int) -> None:
        if self.behind is None:
            if self._open_reader is None:
                raise ValueError("a memory limit needs a reader")
            self.behind = self._open_reader(self._files[-1], start)
        self.behind_items += 1
        self.behind_bytes += size

    def take(self) -> bytes | None:
        """Take the head; None when the queue is empty."""
        if not self.memory:
            if self.behind is None:
                return None
            self._refill(self.behind)
        item = self.memory.popleft()
        self.memory_bytes -= len(item) - ADDX_HEADER
        return item

    def _refill(self, reader: JournalReader) -> None:
        """Read items back until memory is full again or none is left behind."""
        wanted = max(1, (self._limit or 0) - self.memory_bytes)
        items = reader.read(self._files, self.behind_items, wanted)
        if not items:
            raise JournalError(f"{self._files[-1]}: fewer items on disk than were counted")
        size = sum(map(len, items)) - ADDX_HEADER * len(items)
        self.memory.extend(items)
        self.memory_bytes += size
        self.behind_items -= len(items)
        self.behind_bytes -= size
        if not self.behind_items:
            reader.close()
            self.behind = None

    def kept_xid(self, item: bytes) -> int | None:
        """Return the xid that `item` was added with, if with any."""
        return item.xid if isinstance(item, NamedItem) else None

    def save_xid(self, xid: int) -> None:
        """Set the last-used xid."""
        self.last_xid = xid

    def remove(self) -> None:
        """Drop the head, if there is one."""
        self.take()

    def confirm(self, xid: int) -> None:
        """Drop the open read `xid`, if there is one."""
        self.open.pop(xid, None)

    def unremove(self, xid: int) -> None:
        """Give the open read `xid` back to the head, if there is one."""
        item = self.open.pop(xid, None)
        if item is not None:
            self.memory.appendleft(item)
            self.memory_bytes += len(item) - ADDX_HEADER
