"""Replay: the fold of journal records over (queue, open reads, last xid).

Server start, the tools, the library and the tests share this fold. It holds at most
`memory_limit` bytes of item data; items beyond are counted, and read back from the files through
a `JournalReader` when a remove gets that far.

Rules where the format leaves room: a remove from an empty queue, and an unremove or confirm of an
xid that is not open, change nothing; nor does a read that is to be opened under an xid that is open
already: the original's packer writes such files. A STATE_DUMP ends its file, and so the walk does
not hand it in.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from kestrelmq.errors import JournalError
from kestrelmq.journal.memory import fitting, limit_for_now
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import (
    ADD_HEADER,
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
                self._take()
            else:
                self._feed_other(buffer, opcode, start, stop)
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

    def _feed_other(self, buffer: Buffer, opcode: int, start: int, stop: int) -> None:
        if opcode == REMOVE_TENTATIVE:
            self.dialect = "documented"
            self._open_next(None)
        elif opcode == REMOVE_TENTATIVE_XID:
            self.dialect = "kestrel-2"
            self._open_next(record_xid(buffer, start))
        elif opcode == CONFIRM_REMOVE:
            self.open.pop(record_xid(buffer, start), None)
        elif opcode == UNREMOVE:
            self.unremove(record_xid(buffer, start))
        elif opcode == SAVE_XID:
            self.last_xid = record_xid(buffer, start)
        else:
            item = added_item(buffer, start, stop)
            if item is not None:
                self._add(item, start)
                if opcode == CONTINUE:
                    self.open.pop(record_xid(buffer, start), None)

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

    def _take(self) -> bytes | None:
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

    def _open_next(self, xid: int | None) -> None:
        if xid is not None and xid in self.open:
            return
        item = self._take()
        if item is None:
            return
        if xid is None:
            xid = opened_xid(item, self.last_xid, self.open)
            if not isinstance(item, NamedItem) or xid != item.xid:
                self.last_xid = xid
        else:
            self.last_xid = xid
        self.open[xid] = item

    def unremove(self, xid: int) -> None:
        """Give the open read `xid` back to the head, if there is one."""
        item = self.open.pop(xid, None)
        if item is not None:
            self.memory.appendleft(item)
            self.memory_bytes += len(item) - ADDX_HEADER


def opened_xid(item: bytes, last: int, taken: dict[int, bytes]) -> int:
    """Return the xid under which REMOVE_TENTATIVE opens `item`.

    An item that was added with ADD_XID keeps that xid, unless it is taken.
    """
    if isinstance(item, NamedItem) and item.xid not in taken:
        return item.xid
    return next_xid(last, taken)
