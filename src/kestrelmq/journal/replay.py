"""Replay: fold journal records into the state of a queue (items, open reads, last-used xid).

`life` says what has happened to an item according to a record, and what follows. `apply` does that,
for items of any type. Server start, the tools, the library and the tests use `Replay`, whose items
are records. Spark uses `spark.summarising`, whose items are references and whose initial state may
be unknown. The walk does not pass a STATE_DUMP on.

Where the format leaves room: a remove from an empty queue changes nothing, nor does an unremove or
confirm of an xid that is not open. Opening a read under an xid that is already open changes nothing
either; the original's packer writes such files.

An item counts how often it was handed out: once for each time that it was opened and given back,
after the count that a note before it says (see `notes`). Other notes have the delayed items (see
`delayed_items`), and say which of the open reads are reserved (see `reserved_reads`).

`Replay` holds at most `memory_limit` bytes of item data. Further items are only counted, and read
back from the files through a `JournalReader` when a remove gets that far.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, Protocol

from kestrelmq.format.notes import (
    FLUSHED,
    UNCOUNTED,
    Note,
    NoteReader,
    about_item,
    decode_delayed,
    is_delayed,
    noted_item,
    noted_join,
)
from kestrelmq.format.records import (
    ADD_HEADER,
    ADDX,
    ADDX_HEADER,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    Buffer,
    Item,
    added_item,
    item_add_time,
    item_size,
    kept_xid,
    next_xid,
    record_of,
    record_xid,
    waiting_again,
)
from kestrelmq.journal.delayed_items import DelayedItems
from kestrelmq.journal.life import (
    ADD,
    CONFIRM,
    NEXT,
    NOTHING,
    READ,
    REMOVE,
    REPLAYED,
    WAITING,
    opcodes,
)
from kestrelmq.journal.memory_budget import fitting, limit_for_now
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.producers import NotedMark, Producers, noted_mark
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.reader import JournalReader, too_few_items
from kestrelmq.journal.reserved_reads import ReservedReads
from kestrelmq.journal.walk import RecordBatch

ReaderFactory = Callable[[str, int], JournalReader]
_ADDING: Final = opcodes(ADD)


class QueueState(Protocol):
    """What `apply` reads and changes of the state into which records are folded.

    Attributes:
        last_xid: the last-used xid; `apply` sets it when it opens a read under the next free one.
        counter: what a Kestrel that does not know the xids of ADD_XID calls the open reads.
    """

    last_xid: int
    counter: "CounterXids"

    @property
    def open(self) -> Container[int]:
        """The xids of the open reads."""

    def open_read(self, xid: int, item: Any) -> None:
        """Open a read of an item that was taken under `xid`, which is free."""

    def take(self, event: int, /) -> Any:
        """Take the head, because of REMOVE or READ; None when the queue is empty."""

    def kept_xid(self, item: Any) -> int | None:
        """Return the xid of the ADD_XID that added `item`; None if it has none any more."""

    def save_xid(self, xid: int) -> None:
        """Set the last-used xid to what a record says, whatever it was before."""

    def end_read(self, event: int, xid: int) -> None:
        """End the open read `xid`, if there is one, by CONFIRM or GIVE_BACK."""


def apply(state: QueueState, opcode: int, xid: int) -> None:
    """Apply a record to `state`, except for the item that it adds, which is already appended.

    Args:
        state: what to change.
        opcode: the record's.
        xid: the record's, if it has one.
    """
    event = REPLAYED[opcode]
    if opcode == REMOVE_TENTATIVE:
        item = state.take(event)
        if item is not None:
            kept = state.kept_xid(item)
            last = state.last_xid
            xid = opened_xid(kept, last, state.open)
            state.counter.opened(xid, last, is_kept=xid == kept)
            if xid != kept:
                state.last_xid = xid
            state.open_read(xid, item)
    elif event == READ:
        item = None if xid in state.open else state.take(event)
        if item is not None:
            state.save_xid(xid)
            state.counter.last = None
            state.open_read(xid, item)
    elif event == REMOVE:
        state.take(event)
    elif event != NOTHING:
        counter = state.counter
        read = counter.ended(xid)
        if read != xid and counter.last is not None:
            state.last_xid, counter.last = counter.last, None
        state.end_read(event, read)
    elif opcode == SAVE_XID:
        state.save_xid(xid)
        state.counter.last = None


def opened_xid(kept: int | None, last: int, taken: Container[int]) -> int:
    """Return the xid under which REMOVE_TENTATIVE opens an item.

    Args:
        kept: the xid of the item's ADD_XID, or None; the read gets it unless it is taken.
        last: the last-used xid.
        taken: xids of the open reads.
    """
    if kept is not None and kept not in taken:
        return kept
    return next_xid(last, taken)


class CounterXids:
    """The open reads as a Kestrel 1.x names them that gives each the next xid, after ADD_XID, too.

    A server of that kind has the xids of ADD_XID until it is restarted, and its own ones from then
    on. So where a record ends a read that is open only under such an xid, that read is meant, and
    xids count on from the last one there.

    Attributes:
        last: the last-used xid there; None if it is the one here.
        reads: the xids here of those open reads of ADD_XID that have another there, by that other.
    """

    def __init__(
        self,
        open_reads: Container[int],
        last: int | None = None,
        reads: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Start with these; `open_reads` are the xids of all open reads here, as they change."""
        self.last = last
        self.reads = dict(reads)
        self._others = {here: there for there, here in self.reads.items()}
        self._open = open_reads

    def __contains__(self, xid: object) -> bool:
        """Whether a read is open under `xid` there."""
        return xid in self.reads or (xid not in self._others and xid in self._open)

    def opened(self, xid: int, last: int, *, is_kept: bool) -> None:
        """Note that a read will be opened under `xid`, perhaps the xid of its ADD_XID.

        `last` is the last-used xid here before that.
        """
        if is_kept or self.last is not None or self.reads:
            self.last = there = next_xid(last if self.last is None else self.last, self)
            if is_kept and there != xid:
                self.reads[there] = xid
                self._others[xid] = there

    def ended(self, xid: int) -> int:
        """Return the xid here of the read that a record of `xid` ends."""
        if self.reads:
            if xid in self.reads and xid not in self._open:
                xid = self.reads[xid]
            if xid in self._others:
                del self.reads[self._others.pop(xid)]
        return xid


class Replay:
    """The state of a queue according to its journal.

    Attributes:
        memory: items at the head, in order.
        memory_bytes: bytes of data in them.
        behind: reader positioned at the first item that is not in memory; None if all are.
        behind_items: how many items are not in memory.
        behind_bytes: bytes of data in those.
        open: the open reads by xid.
        reserved: which of the open reads are reserved, and which tags are over.
        producers: the last marks of producers.
        last_xid: the last-used xid.
        counter: see `CounterXids`.
        dialect: how the last file says which xid a read got; None if it has no such record yet.
        is_note_cut: whether the records end within a note, or before what it is about; the journal
            must go on in a new file, with a SAVE_XID.
        delayed: the items that are not due yet; None if there never were any.
    """

    def __init__(
        self,
        memory_limit: int | None = None,
        open_reader: ReaderFactory | None = None,
    ) -> None:
        """Start empty.

        Args:
            memory_limit: most bytes of item data to hold; None for no limit. One item is always
                held.
            open_reader: makes a reader positioned at (file, position); required with a limit.
        """
        self.memory: deque[Item] = deque()
        self.memory_bytes = 0
        self.behind: JournalReader | None = None
        self.behind_items = 0
        self.behind_bytes = 0
        self.open: ReadTable[OpenRead] = ReadTable()
        self.counter = CounterXids(self.open)
        self.reserved = ReservedReads(self.open)
        self.producers = Producers()
        self.last_xid = 0
        self.dialect: Literal["documented", "kestrel-2"] | None = None
        self._limit = memory_limit
        self._open_reader = open_reader
        self._files: Sequence[str] = ()
        self._notes = NoteReader()
        self._xid_before_note = 0
        self.is_note_cut = False
        # Whether a note says something about the item that the next record adds.
        self._is_item_noted = False
        # The note that says how often that item was handed out, and its letter if it is dead.
        self._note: Note | None = None
        # Whether a note says that the next read that is given back does not count.
        self._is_uncounted = False
        self.delayed: DelayedItems | None = None
        # The number of the delayed item that it is, according to a note.
        self._joining: int | None = None
        # Whose it is, according to a note.
        self._mark: NotedMark | None = None

    @property
    def items(self) -> int:
        """Number of items in the queue, without the open ones."""
        return len(self.memory) + self.behind_items

    @property
    def size(self) -> int:
        """Bytes of data in the queue, without the open items."""
        return self.memory_bytes + self.behind_bytes

    def feed_batch(self, buffer: Buffer, batch: RecordBatch, files: Sequence[str]) -> None:
        """Fold in a batch that a walk of `buffer` yielded; `files` as for `feed`."""
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
        """Fold in the records of `buffer` that begin at `starts`; the last of them ends at `end`.

        `files` are the queue's files up to and including the one that `buffer` maps.
        """
        self._begin(files)
        memory = self.memory
        limit = self._limit
        if limit is not None:
            limit = limit_for_now(limit, self.memory_bytes, len(memory))
        append = memory.append
        replayed = REPLAYED
        bounds = iter(starts)
        start = next(bounds, end)
        while start != end:
            stop = next(bounds, end)
            opcode = buffer[start]
            if opcode == ADDX and not self._is_item_noted:
                size = stop - start - ADDX_HEADER
                if self.behind is None and (
                    limit is None or self.memory_bytes + size <= limit or not memory
                ):
                    append(buffer[start:stop])  # type: ignore[arg-type] # mmap slices are bytes
                    self.memory_bytes += size
                else:
                    self._add_behind(size, start)
            elif replayed[opcode] == REMOVE:
                self.take()
            elif opcode == REMOVE_TENTATIVE:
                self.dialect = "documented"
                apply(self, opcode, 0)
            else:
                if opcode == REMOVE_TENTATIVE_XID:
                    self.dialect = "kestrel-2"
                elif opcode in _ADDING:
                    item = added_item(buffer, start, stop)
                    if item is not None:  # pragma: no branch: a walk hands in no STATE_DUMP
                        self._add(item, start)
                if opcode != ADDX and not self._delays(buffer, start, stop):
                    apply(self, opcode, record_xid(buffer, start))
            start = stop

    def feed_added(
        self, buffer: Buffer, starts: Sequence[int], end: int, files: Sequence[str]
    ) -> None:
        """Apply records that are all ADDX, as `feed` would."""
        if self._is_item_noted:
            self.feed(buffer, starts, end, files)
            return
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
        """Apply `count` records of one length, all ADDX or all ADD, as `feed` would."""
        if self._is_item_noted:
            self.feed(buffer, (start,), start + length, files)
            start, count = start + length, count - 1
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
            self._forget_notes()
        self._files = files

    def _forget_notes(self) -> None:
        self._notes.reset()
        self._note = None
        self._is_uncounted, self._joining = False, None
        self._mark, self._is_item_noted = None, False

    def _add(self, item: Item, start: int) -> None:
        size = item_size(item)
        limit = self._limit
        if self.behind is None and (
            limit is None or self.memory_bytes + size <= limit or not self.memory
        ):
            self.memory.append(noted_item(item, self._note))
            self.memory_bytes += size
        else:
            self._add_behind(size, start)
        if self._joining is not None and self.delayed is not None:
            self.delayed.joined(self._joining, item_add_time(item))
        noted = self._mark
        if noted is not None and noted.is_of(record_of(item)):
            self.producers.set(noted.mark, noted.added)
        self._note = self._joining = None
        self._mark, self._is_item_noted = None, False

    def _add_behind(self, size: int, start: int) -> None:
        if self.behind is None:
            if self._open_reader is None:
                raise ValueError("a memory limit needs a reader")
            self.behind = self._open_reader(self._files[-1], start)
            self.behind.note = self._note
        self.behind_items += 1
        self.behind_bytes += size

    def open_read(self, xid: int, item: Item) -> None:
        """Open a read of an item that was taken under `xid`, which is free."""
        self.open[xid] = OpenRead(xid, item)

    def take(self, _event: int = REMOVE) -> Item | None:
        """Take the head; None when the queue is empty."""
        if not self.memory:
            if self.behind is None:
                return None
            self._refill(self.behind)
        item = self.memory.popleft()
        self.memory_bytes -= item_size(item)
        return item

    def _refill(self, reader: JournalReader) -> None:
        """Read items back until memory is full again or none is left behind."""
        wanted = max(1, (self._limit or 0) - self.memory_bytes)
        items = reader.read(self._files, self.behind_items, wanted)
        if not items:
            raise too_few_items(self._files)
        size = sum(map(item_size, items))
        self.memory.extend(items)
        self.memory_bytes += size
        self.behind_items -= len(items)
        self.behind_bytes -= size
        if not self.behind_items:
            reader.close()
            self.behind = None

    def kept_xid(self, item: Item) -> int | None:
        """Return the xid of the ADD_XID that added `item`; None if it has none any more."""
        return kept_xid(item)

    def save_xid(self, xid: int) -> None:
        """Set the last-used xid, which may be a word of a note."""
        if not self._notes.is_cut:
            self._xid_before_note = self.last_xid
        self.last_xid = xid
        note = self._notes.feed(xid)
        if note is not None:
            self._note = about_item(note)
            self._is_uncounted = note.kind == UNCOUNTED
            self._joining = noted_join(note)
            if note.kind == FLUSHED and self.delayed is not None:
                self.delayed.drop_all()
            self._mark = noted_mark(note)
            self._is_item_noted = (
                self._note is not None or self._joining is not None or self._mark is not None
            )
            self.reserved.apply(note)
            self.producers.apply(note)

    def end(self) -> None:
        """Finish: there are no more records.

        If a note was cut short, the last-used xid is what it was before. A note about a record that
        is not there says nothing.
        """
        self.is_note_cut = self._notes.is_cut or self._is_item_noted or self._is_uncounted
        if self._notes.is_cut:
            self.last_xid = self._xid_before_note
        self._forget_notes()
        if self.delayed is not None:
            self.delayed.end()

    def _delays(self, buffer: Buffer, start: int, stop: int) -> bool:
        """Fold in a record if it is a note of a delayed item; return whether it is."""
        if not is_delayed(buffer, start, stop):
            return False
        self._notes.reset()
        self.last_xid = record_xid(buffer, stop - 5)
        found = decode_delayed(buffer, start, stop)
        if found[0] < 0:
            return True
        if self.delayed is None:
            self.delayed = DelayedItems()
        item, noted = self.delayed.apply(found), self._mark
        if item is not None and noted is not None:
            if noted.is_of(item):
                self.producers.set(noted.mark, noted.added)
            self._forget_notes()
        return True

    def end_read(self, event: int, xid: int) -> None:
        """End the open read `xid`, if there is one, by CONFIRM, GIVE_BACK or RESTART.

        If its item waits again, that was a delivery, unless a note says otherwise.
        """
        read = self.open.pop(xid)
        if read is None:
            if event == CONFIRM:
                self.reserved.unconfirmed.pop(xid, None)
            return
        self.reserved.end(read)
        if NEXT[event] == WAITING:
            is_counted = read.is_counted and not self._is_uncounted
            self._is_uncounted = False
            self.memory.appendleft(waiting_again(read.item, counted=is_counted))
            self.memory_bytes += item_size(read.item)
