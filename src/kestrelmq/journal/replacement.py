"""Replacing the first files of a queue by one equivalent file, while the queue is in use.

The files that are replaced are rotated ones, which do not change. Steps, each a crash point:

1. `place`: write a temporary, sync it and the directory, rename it to `NAME.TIMESTAMP.pack`, sync
   the directory. TIMESTAMP is that of the last file replaced: from now on the pack replaces all of
   them. The first sync of the directory is for their names: if one of them still had another name
   on disk, loading would replay it as well as the pack.
2. `clear`, once nobody reads the old files: remove them, sync, drop the `.pack`, sync.

In between, another replacement may replace the pack, which then is one of its old files and keeps
its name. So the older replacement ends with `remove_old`. The newest pack drops its `.pack` when no
file is left that it replaces.

The new file holds records that replay to the same contents:

    documented   SAVE_XID, ADD_XID and REMOVE_TENTATIVE for each open read, SAVE_XID, then ADDX ...
    kestrel-2    ADDX and REMOVE_TENTATIVE_XID for each open read, then ADDX ...

Readers of the documented dialect disagree about a REMOVE_TENTATIVE after an ADD_XID: some take the
xid of its item, others the next one. So a SAVE_XID before each read sets the counter such that both
are the same xid, and one at the end restores the last-used xid. Once a read is given back, its item
is like any other to all readers.

Behind the open reads come notes: the delayed items (see `delayed_items`), then those about reserved
reads and tags (see `reserved_reads`), then the last marks of producers (see `producers`).

A crash leaves the old files, or packs beside some of them, or the newest pack alone; loading
completes the replacement. Each step may be tried again after a failure. `cancel`, from another
thread, prevents further steps when the queue is deleted or closed.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from threading import Lock
from typing import Final, Protocol

from kestrelmq.clock import Pause
from kestrelmq.disk.directories import Directory
from kestrelmq.errors import JournalError
from kestrelmq.format.names import PACK, pack_name, parse_name, temporary_name
from kestrelmq.format.notes import counted, item_note
from kestrelmq.format.records import (
    EMPTY_ADD,
    REMOVE_TENTATIVE_RECORD,
    Buffer,
    Item,
    add_xid,
    item,
    next_xid,
    record_of,
    remove_tentative_xid,
    save_xid,
    xid_before,
)
from kestrelmq.journal.delayed_items import Entry, notes_of
from kestrelmq.journal.loading import replay_whole
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.journal.producers import LastMark, Producers, marks_notes
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.reader import JournalReader, too_few_items
from kestrelmq.journal.replay import ReaderFactory, Replay
from kestrelmq.journal.reserved_reads import NOTHING_RESERVED, ReservedSnapshot
from kestrelmq.journal.walk import WalkEnd
from kestrelmq.journal.writer import Dialect

PIECE: Final = 256 << 10
"""Bytes of records that are joined at once: other threads wait that long, so it must be short."""
_JOINED_AT_ONCE: Final = 1024
"""Most records that are joined at once: to make them takes a millisecond or two."""
_MEMORY_LIMIT: Final = 64 << 10
"""Bytes of item data that the replay of the old files holds in memory."""
_RECORDS_AT_ONCE: Final = 500
"""Records that are folded in between two pauses."""
_READ_BYTES: Final = 64 << 10
"""Bytes of items that are read at a time."""
_SYNC_EVERY: Final = 16 << 20
"""Bytes between syncs, so that the last sync is short and does not delay those of others."""
_DEAD_RUN: Final = 10_000
"""Dead items that are yielded at a time."""
_DEAD_READ: Final = item(0, 0, b"")
"""Takes the place of the item of an open read that later records end."""


def open_read_records(
    dialect: Dialect,
    last_xid: int,
    reads: ReadTable[OpenRead],
    *,
    is_live: Callable[[int], bool] | None = None,
) -> Iterator[bytes]:
    """Yield the records that open `reads` in an empty queue and set the last-used xid.

    Args:
        dialect: how to record the xid of a read.
        last_xid: the last-used xid.
        reads: the open reads; this empties the table.
        is_live: whether the read of an xid is live; those that are not get an empty item.
    """
    # No counter gives 0; only an item that was added with ADD_XID 0 has that xid. Readers that
    # count for such items, too, open it under one that no other read has.
    instead_of_0 = next_xid(0, reads) if 0 in reads else 0
    for xid, read in chain.from_iterable(reads.drain()):
        one = read.item if is_live is None or is_live(xid) else _DEAD_READ
        if dialect == "kestrel-2":
            yield counted(one, last_xid) + remove_tentative_xid(xid)
            continue
        before = xid_before(xid or instead_of_0)
        prelude = item_note(one, before) or save_xid(before)
        yield prelude + add_xid(xid, record_of(one)) + REMOVE_TENTATIVE_RECORD
    if dialect != "kestrel-2":
        yield save_xid(last_xid)


def in_pieces(records: Iterable[bytes]) -> Iterator[bytes]:
    """Join records to pieces of about `PIECE` bytes; a longer record is one by itself."""
    return (piece for _, piece in counted_pieces(records))


def counted_pieces(records: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Join records to pieces, as `in_pieces`; yield each with its number of records."""
    source = iter(records)
    count = 64
    while batch := list(islice(source, count)):
        size = sum(map(len, batch))
        yield from _joined(batch, size)
        if size < PIECE // 2 and count < _JOINED_AT_ONCE:
            count *= 2
        elif size > PIECE and count > 1:
            count //= 2


def _joined(batch: Sequence[bytes], size: int) -> Iterator[tuple[int, bytes]]:
    """Join records of together `size` bytes; in halves, as long as they are too many."""
    if size <= 2 * PIECE or len(batch) == 1:
        yield len(batch), b"".join(batch)
        return
    half = len(batch) // 2
    for part in (batch[:half], batch[half:]):
        yield from _joined(part, sum(map(len, part)))


class ReplacementCancelled(Exception):  # noqa: N818 # says what it is
    """The replacement was given up."""


class ContentSource(Protocol):
    """The contents to write in place of the files.

    Attributes:
        written: how many waiting items are in the pieces yielded so far.
    """

    written: int

    def pieces(self, pause: Pause) -> Iterator[bytes]:
        """Yield the records. Raises JournalError and OSError."""


class MemorySource:
    """Contents that are in memory; they can be written once, because that frees them."""

    def __init__(
        self,
        dialect: Dialect,
        last_xid: int,
        reads: ReadTable[OpenRead],
        items: Sequence[Item],
        delayed: list[Entry] | None = None,
        reserved: ReservedSnapshot = NOTHING_RESERVED,
        marks: Iterable[tuple[bytes, LastMark]] = (),
    ) -> None:
        self.written = 0
        self._marks = marks
        self._delayed = [] if delayed is None else delayed
        self._dialect: Dialect = dialect
        self._last_xid = last_xid
        self._reads = reads
        self._items = items
        self._reserved = reserved

    def pieces(self, pause: Pause) -> Iterator[bytes]:
        """Yield the records."""
        yield from in_pieces(open_read_records(self._dialect, self._last_xid, self._reads))
        yield from in_pieces(notes_of(self._delayed, self._last_xid))
        yield from in_pieces(self._reserved.records(self._last_xid, pause))
        yield from marks_notes(self._marks, self._last_xid, pause)
        for count, piece in counted_pieces(counted(one, self._last_xid) for one in self._items):
            self.written += count
            yield piece


@dataclass(frozen=True, slots=True)
class LiveContents:
    """Which of the contents at the end of the files are still live after later records.

    Attributes:
        first: the index in the queue of the first waiting item that is live, or the queue's length.
        is_live: whether a waiting item is live, by its index in the queue.
        is_read_live: whether the item of an open read is live, by its xid.
    """

    first: int
    is_live: Callable[[int], bool]
    is_read_live: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class ExpectedContents:
    """What the files must replay to; if they do not, they must not be replaced."""

    items: int
    size: int
    reads: ReadTable[OpenRead]
    """The open reads; to compare them empties the table."""
    last_xid: int | None
    """None if it is not to be compared."""
    reserved: int = 0
    """How many of the reads are reserved."""
    done_tags: int = 0
    delayed: int = 0


class FilesSource:
    """Contents that are read from the files themselves, however long the queue is.

    With `live`, later files have more records, some of which remove items of these files. A removed
    item is replaced by an empty one, so that all others keep their places.

    Attributes:
        items: how many items wait, known once the first piece is yielded; likewise:
        open_reads: how many reads are open.
        delayed: how many items are delayed.
        torn: where and why the last file is torn, or None.
    """

    def __init__(
        self,
        directory: Directory,
        files: Sequence[str],
        dialect: Dialect,
        *,
        expected: ExpectedContents | None = None,
        live: Callable[[Pause], LiveContents] | None = None,
        producers: Producers | None = None,
        may_be_torn: bool = False,
    ) -> None:
        """Describe the source.

        Args:
            directory: where the files are.
            files: their names, in order.
            dialect: the dialect to write.
            expected: what the files must replay to, if that is known.
            live: finds what is live, see the class, and calls its argument after each short piece;
                None if no later files have records about these items.
            producers: those of the queue: what they would forget now is left out.
            may_be_torn: whether the last file may be torn, because no server has the queue.
        """
        self.written = 0
        self.items = self.open_reads = self.delayed = 0
        self.torn: WalkEnd | None = None
        self._may_be_torn = may_be_torn
        self._marks_since = self._marks_at = 0
        if producers is not None:
            self._marks_at = producers.now()
            self._marks_since = self._marks_at - producers.ttl
        self._directory = directory
        self._files = files
        self._dialect: Dialect = dialect
        self._expected = expected
        self._find_live = live
        self._live: LiveContents | None = None

    def pieces(self, pause: Pause) -> Iterator[bytes]:
        """Yield the records. Raises JournalError and OSError."""
        state = _GentleReplay(pause, self._reader)
        try:
            self.torn = replay_whole(
                self._directory, state, self._files, pause, may_be_torn=self._may_be_torn
            )
            state.end()
            self.items, self.open_reads = state.items, len(state.open)
            self._check(state, pause)
            self._live = None if self._find_live is None else self._find_live(pause)
            reserved = state.reserved.snapshot()
            yield from in_pieces(self._read_records(state))
            if state.delayed is not None:
                self.delayed = len(state.delayed)
                yield from in_pieces(notes_of(state.delayed.drop_all(), state.last_xid))
            yield from in_pieces(reserved.records(state.last_xid, pause))
            while state.producers.forget_before(self._marks_since):
                pause()
            yield from marks_notes(state.producers.noted(self._marks_at), state.last_xid, pause)
            for items in self._items(state):
                piece = b"".join([counted(one, state.last_xid) for one in items])
                self.written += len(items)
                yield piece
        finally:
            if state.behind is not None:
                state.behind.close()

    def _reader(self, file: str, position: int) -> JournalReader:
        directory = self._directory
        return JournalReader(directory.path, file, position, _READ_BYTES, directory.open)

    def _check(self, state: Replay, pause: Pause) -> None:
        expected = self._expected
        if expected is None:
            return
        reserved, reads = state.reserved, len(expected.reads)
        found = (
            state.items,
            state.size,
            len(state.open),
            reserved.count,
            len(reserved.done),
            0 if state.delayed is None else len(state.delayed),
        )
        wanted = (
            expected.items,
            expected.size,
            reads,
            expected.reserved,
            expected.done_tags,
            expected.delayed,
        )
        if (
            found != wanted
            or expected.last_xid not in {None, state.last_xid}
            or not _has_all(state.open, expected.reads, pause)
        ):
            raise JournalError(
                f"{self._directory.path / self._files[-1]}: the files hold {found[0]} items, "
                f"{found[1]} bytes and {found[2]} open reads, and the queue "
                f"{wanted[0]}, {wanted[1]} and {reads}; reserved are "
                f"{found[3]} and {expected.reserved}, done tags {found[4]} and "
                f"{expected.done_tags}, delayed items {found[5]} and {expected.delayed}"
            )

    def _read_records(self, state: Replay) -> Iterator[bytes]:
        live = self._live
        return open_read_records(
            self._dialect,
            state.last_xid,
            state.open,
            is_live=None if live is None else live.is_read_live,
        )

    def _items(self, state: Replay) -> Iterator[Sequence[Item]]:
        index = 0
        if self._live is not None:
            index = self._skip(state, min(self._live.first, state.items))
            for at in range(0, index, _DEAD_RUN):
                yield [EMPTY_ADD] * min(_DEAD_RUN, index - at)
        while items := self._next_items(state):
            if self._live is not None:
                is_live = self._live.is_live
                items = [one if is_live(at) else EMPTY_ADD for at, one in enumerate(items, index)]
            index += len(items)
            yield items

    def _skip(self, state: Replay, count: int) -> int:
        """Skip the first `count` items, all of which are dead."""
        memory = state.memory
        in_memory = min(count, len(memory))
        for _ in range(in_memory):
            memory.popleft()
        left = count - in_memory
        if left and state.behind is not None:
            if state.behind.skip(self._files, left) != left:
                raise too_few_items(self._files)
            state.behind_items -= left
        return count

    def _next_items(self, state: Replay) -> list[Item]:
        memory = state.memory
        if memory:
            return [memory.popleft() for _ in range(min(len(memory), 1000))]
        if state.behind is None or not state.behind_items:
            return []
        items = state.behind.read(self._files, state.behind_items, _READ_BYTES)
        if not items:
            raise too_few_items(self._files)
        state.behind_items -= len(items)
        return items


def _has_all(reads: ReadTable[OpenRead], wanted: ReadTable[OpenRead], pause: Pause) -> bool:
    """Whether all xids of `wanted`, which is emptied, are in `reads`."""
    for page in wanted.drain():
        if not all(xid in reads for xid, _ in page):
            return False
        pause()
    return True


class _GentleReplay(Replay):
    """A replay beside a queue that is in use: it pauses after every few records."""

    def __init__(self, pause: Pause, open_reader: ReaderFactory) -> None:
        super().__init__(_MEMORY_LIMIT, open_reader)
        self._pause = pause

    def feed(
        self, buffer: Buffer, starts: Sequence[int], end: int, files: Sequence[str] = ("",)
    ) -> None:
        """Fold in records, a few at a time."""
        for at in range(0, len(starts), _RECORDS_AT_ONCE):
            after = at + _RECORDS_AT_ONCE
            stop = starts[after] if after < len(starts) else end
            super().feed(buffer, starts[at:after], stop, files)
            self._pause()


_NOTHING: Final = MemorySource("documented", 0, ReadTable(), ())


class Replacement:
    """Replaces the first files of a queue by one new file.

    Attributes:
        files: the rotated files that are replaced, in order.
        pack: the name of the new file once it is placed.
        name: its final name.
        is_placed: whether the new file was renamed to replace the others, perhaps not yet synced.
        size: bytes in it, once it is placed.
        positions: pairs of a number of waiting items and the position in the new file behind them.
    """

    def __init__(
        self,
        directory: Directory,
        queue: str,
        files: Sequence[str],
        source: ContentSource = _NOTHING,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Describe a replacement; `place` and `clear` carry it out.

        Args:
            directory: the queue path.
            queue: the queue's name.
            files: the rotated files to replace, in order.
            source: what to write; needless if the new file is in place.
            before: called once the new file is written, before it replaces anything.
        """
        parsed = parse_name(files[-1])
        if parsed is None or parsed.timestamp is None or parsed.packed:
            raise ValueError(f"{files[-1]} is not a rotated file")
        self.files = tuple(files)
        self.name = files[-1]
        self.pack = pack_name(queue, parsed.timestamp)
        self.size = 0
        self.positions: list[tuple[int, int]] = []
        self._temporary = temporary_name(queue, PACK, parsed.timestamp)
        self._directory = directory
        self._source = source
        self._before = before
        self._lock = Lock()
        self.is_placed = False
        self._ended = False
        self._cancelled = False

    def cancel(self) -> None:
        """Prevent further steps; one that is running may still be completed."""
        self._cancelled = True
        with self._lock:
            pass

    def resume(self) -> None:
        """Allow steps again, after `cancel`."""
        self._cancelled = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files that may be left if the replacement is given up."""
        return (*self.files, self.pack, self.name)

    def place(self, pause: Pause) -> None:
        """Write the file and put it in place.

        Raises:
            ReplacementCancelled: it was cancelled, and left nothing behind.
            JournalError: the files cannot be read.
            OSError: the new file could not be written or put in place.
        """
        if not self.is_placed:
            try:
                self._write(pause)
                self._rename()
            except BaseException:
                with contextlib.suppress(OSError):
                    self._directory.remove(self._temporary)
                raise
        self._directory.sync()
        self._directory.crash_point("replace: pack in place")

    def _write(self, pause: Pause) -> None:
        def checked_pause() -> None:
            if self._cancelled:
                raise ReplacementCancelled
            pause()

        self.positions = [(0, 0)]
        synced = 0
        file = self._directory.create(self._temporary)
        try:
            for piece in self._source.pieces(checked_pause):
                file.append(piece)
                if file.size - synced > _SYNC_EVERY:
                    file.sync()
                    synced = file.size
                self.positions.append((self._source.written, file.size))
                checked_pause()
            file.sync()
            self.size = file.size
        finally:
            file.close()
        self._directory.crash_point("replace: temporary written")

    def _rename(self) -> None:
        if self._before is not None:
            self._before()
        self._directory.sync()
        with self._lock:
            if self._cancelled:
                raise ReplacementCancelled
            self._directory.rename(self._temporary, self.pack)
            self.is_placed = True
        self._directory.crash_point("replace: pack named")

    def clear(self, pause: Pause) -> None:
        """Remove the old files and give the new one its final name.

        Raises:
            ReplacementCancelled: it was cancelled; some of the old files may be left.
            OSError: a file could not be removed or renamed.
        """
        if not self._ended:
            self.remove_old(pause)
            with self._lock:
                if self._cancelled:
                    raise ReplacementCancelled
                self._directory.rename(self.pack, self.name)
                # The new file now has the name of the last old one: do not remove that name again.
                self._ended = True
            self._directory.crash_point("replace: pack renamed")
        self._directory.sync()

    def remove_old(self, pause: Pause) -> None:
        """Remove the old files. Raises as `clear`."""
        for name in self.files:
            if self._cancelled:
                raise ReplacementCancelled
            self._directory.remove(name)
            self._directory.crash_point("replace: old file removed")
            pause()
        self._directory.sync()
        self._directory.crash_point("replace: old files gone")

    def forget_contents(self) -> None:
        """Let go of what was written, and of the positions: the new file is in use."""
        self._source = _NOTHING
        self.positions = []

    def position_before(self, item_number: int) -> tuple[int, int]:
        """Return the last position at or before the waiting item `item_number`, counted from 0."""
        index = bisect_right(self.positions, (item_number, 1 << 62)) - 1
        return self.positions[index]
