"""Reading items back from a journal that may still be growing.

A `JournalReader` has a position in a queue's files and returns the items from there on, in order.
Read-behind uses it: items that memory cannot hold are read back when their turn comes.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Final

from kestrelmq.disk.opening import open_regular
from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.format.notes import Note, NoteReader, about_item, is_delayed, noted_item
from kestrelmq.format.records import (
    ADDX,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_RECORD,
    REMOVE_TENTATIVE,
    SAVE_XID,
    UNREMOVE,
    Item,
    added_item,
    is_state_dump,
    record_of,
    record_xid,
)
from kestrelmq.format.scanning import MIN_RUN, record_length, scan, uniform_run
from kestrelmq.journal.walk import CUT_SHORT, FILE_FOLLOWS

CHUNK: Final = 16 << 10
"""Bytes that are read and scanned at once: this takes a short time even for records of one byte.

A longer record is read whole.
"""
RUN: Final = 64 << 10
"""The same within a run of equally long ADDX records, which are not scanned one by one.

For a larger chunk, the C library would not reuse memory but map fresh pages each time.
"""
_SKIP_CHUNK: Final = 1 << 20
_CUT_AT_ONCE: Final = 64
"""Records of a run that one call cuts out of the chunk."""
_NO_ITEM: Final = frozenset({REMOVE, REMOVE_TENTATIVE, CONFIRM_REMOVE, UNREMOVE})


class LargeRecord:
    """A long record that a thread reads from its file ahead of a `JournalReader`.

    Attributes:
        data: the record; empty until it is read.
    """

    __slots__ = ("_descriptor", "_length", "_position", "_visit", "data")

    def __init__(self, descriptor: int, position: int, length: int, visit: object) -> None:
        """Describe it; it closes `descriptor`. `visit` is that of the reader."""
        self._descriptor = descriptor
        self._position = position
        self._length = length
        self._visit = visit
        self.data = b""

    def load(self) -> None:
        """Read it; from any thread. Raises OSError."""
        try:
            # One call, during which the other threads have the interpreter.
            data = os.pread(self._descriptor, self._length, self._position)
        finally:
            os.close(self._descriptor)
        if len(data) < self._length:
            raise OSError(f"the file has only {len(data)} of the {self._length} bytes of a record")
        self.data = data

    def is_at(self, position: int, visit: object) -> bool:
        """Whether it is the next of a reader that is at this position."""
        return self._position == position and self._visit is visit


def too_few_items(files: Sequence[str]) -> JournalError:
    """Return the error for `files` in which there are fewer items than were counted before."""
    return JournalError(f"{files[-1]}: fewer items on disk than were counted")


class JournalReader:
    """Reads the items of a queue's files from a position on.

    Attributes:
        file: name of the file that it reads.
        position: where in the file the next record to look at begins.
        item_bytes: bytes of the items that were returned so far.
        note: the note about the next item, if one before it was read.
        large: bytes of the next record, if `read` stopped before it because it is large.
    """

    def __init__(
        self,
        path: Path,
        file: str,
        position: int,
        chunk: int = CHUNK,
        open_file: Callable[[str], int] | None = None,
    ) -> None:
        """Start at `position` in `file`, which is in the directory `path`.

        `chunk` is how many bytes to read at once. `open_file` opens a file by its name; by default,
        files are opened by their path.
        """
        self._path = path
        self._open_file = open_file
        self._size = chunk
        self.file = file
        self.position = position
        self.item_bytes = self.large = 0
        self.note: Note | None = None
        # Another object whenever the reader moves to another position.
        self._visit = object()
        self._notes = NoteReader()
        self._descriptor: int | None = None
        self._chunk = b""
        self._chunk_at = 0
        self._starts: list[int] = []
        # How many records were found in the chunk, which of them is next, and, if they are a run,
        # the length of each.
        self._found = self._next = self._length = 0
        self._scanned = 0
        # Cuts `_CUT_AT_ONCE` records of a run out of the chunk.
        self._cutter = Struct("")

    def read(
        self,
        files: Sequence[str],
        max_items: int,
        max_bytes: int,
        max_other: int | None = None,
        max_record: int | None = None,
    ) -> list[Item]:
        """Return the next items, in order; an empty list at the end of the last of `files`.

        Args:
            files: the queue's files in order; only the last of them may still grow.
            max_items: most items to return.
            max_bytes: stop once this many bytes of items are read; the last item may exceed it.
            max_other: also stop, perhaps without an item, after this many bytes of other records.
            max_record: also stop, and set `large`, before a record of at least so many bytes that
                is not read yet.

        Raises:
            DamagedJournal: the bytes at the position are not a record, or a part of one ends a file
                that is not the last.
            OSError: a file could not be read.

        Items that were read before an error are returned; the next call raises the error.
        """
        items: list[Item] = []
        read = other = 0
        while len(items) < max_items and read < max_bytes:
            if self._next >= self._found:
                try:
                    if not self._fill(files, max_record):
                        break
                except (DamagedJournal, OSError):
                    if items:
                        break  # these come first; the next call raises the error
                    raise
                continue
            if self._length:
                count = (max_bytes - read + self._length - 1) // self._length
                taken = self._take_run(min(count, max_items - len(items)))
                if self.note is not None:
                    taken[0] = self._noted(taken[0])
                items += taken
                read += len(taken) * self._length
                continue
            start = self._starts[self._next]
            self._next += 1
            end = self._starts[self._next] if self._next < len(self._starts) else self._scanned
            self.position = self._chunk_at + end
            opcode = self._chunk[start]
            if opcode == ADDX:
                # Compiled code would copy all of a chunk that is one large record.
                is_all = not start and end == len(self._chunk)
                item: Item | None = self._chunk if is_all else self._chunk[start:end]
            elif opcode == SAVE_XID:
                item = None
                self._read_note(start, end)
            else:
                item = None if opcode in _NO_ITEM else added_item(self._chunk, start, end)
            if item is not None:
                read += len(record_of(item))
                items.append(item if self.note is None else self._noted(item))
                continue
            other += end - start
            if max_other is not None and other >= max_other:
                break
        self.item_bytes += read
        return items

    def _read_note(self, start: int, end: int) -> None:
        """Read a SAVE_XID of the chunk, which may be a word of a note about the next item.

        It may also be all of a note of a delayed item, which is passed over.
        """
        if is_delayed(self._chunk, start, end):
            return
        note = self._notes.feed(record_xid(self._chunk, start))
        if note is not None:
            self.note = about_item(note)

    def _noted(self, item: Item) -> Item:
        """Return the item after a note with what the note says."""
        note, self.note = self.note, None
        return noted_item(item, note)

    def _forget_note(self) -> None:
        self._notes.reset()
        self.note = None

    def _take_run(self, count: int) -> list[Item]:
        """Return the next items of the run in the chunk, at most `count`."""
        count = min(count, self._found - self._next)
        length = self._length
        start = self._next * length
        end = start + count * length
        self._next += count
        self.position = self._chunk_at + end
        chunk = self._chunk
        items: list[Item] = []
        cut = self._cutter
        whole = end - count % _CUT_AT_ONCE * length
        for at in range(start, whole, _CUT_AT_ONCE * length):
            items += cut.unpack_from(chunk, at)
        items += [chunk[at : at + length] for at in range(whole, end, length)]
        return items

    def skip(self, files: Sequence[str], count: int) -> int:
        """Skip at most `count` items; return how many were skipped. Raises as `read`."""
        left = count
        while left:
            if self._next >= self._found:
                chunk = self._pread(_SKIP_CHUNK)
                run, length = uniform_run(chunk, 0, len(chunk))
                if run >= MIN_RUN:
                    passed = min(run, left)
                    self._forget_note()
                    self.position += passed * length
                    left -= passed
                    continue
            passed = len(self.read(files, min(left, MIN_RUN * MIN_RUN), _SKIP_CHUNK))
            if not passed:
                break
            left -= passed
        return count - left

    def large_record(self) -> LargeRecord:
        """Return the record that `read` stopped before, for a thread. Raises OSError."""
        if self._descriptor is None:
            self._descriptor = self._open(self.file)
        return LargeRecord(os.dup(self._descriptor), self.position, self.large, self._visit)

    def use(self, large: LargeRecord) -> None:
        """Go on with a record that was read meanwhile, unless this reader has moved since."""
        self.large = 0
        if large.is_at(self.position, self._visit):
            self._find_records(large.data, more=False)

    def _fill(self, files: Sequence[str], max_record: int | None) -> bool:
        """Read and scan the next chunk; False at the end of the journal, or before `max_record`."""
        self.large = 0
        in_run = self._length > 0 and self._size < RUN
        wanted = RUN if in_run else self._size
        while True:
            chunk = self._pread(wanted)
            if not chunk:
                if not self._next_file(files):
                    return False
                continue
            if chunk[0] == REMOVE:
                # The queue was drained; there may be millions of these.
                self.position += len(chunk) - len(chunk.lstrip(REMOVE_RECORD))
                continue
            if self._find_run(chunk):
                return True
            if in_run:
                # The run is over.
                in_run, wanted = False, self._size
                chunk = chunk[:wanted]
            more = len(chunk) == wanted
            if self._find_records(chunk, more=more):
                return True
            length = record_length(chunk, 0, len(chunk), more=more)
            if length is not None and is_state_dump(chunk, 0, length):
                # It ends its file, whatever follows.
                if not self._next_file(files):
                    return False
                wanted = self._size
                continue
            if not more:
                self._check_may_grow(files)
                return False
            if max_record is not None and length is not None and length >= max_record:
                self.large = length
                return False
            wanted = max(2 * wanted, length or 0)

    def _find_records(self, chunk: bytes, *, more: bool) -> bool:
        """Use `chunk` if it begins with a whole record; not a STATE_DUMP. Raises DamagedJournal."""
        starts: list[int] = []
        try:
            scanned = scan(chunk, 0, len(chunk), starts, more=more)
        except DamagedJournal as damage:
            if not starts:
                raise DamagedJournal(
                    self.position + damage.position, damage.reason, str(self._path / self.file)
                ) from None
            scanned = damage.position
        if not starts:
            return False
        self._chunk, self._chunk_at = chunk, self.position
        self._starts, self._next, self._scanned = starts, 0, scanned
        self._found, self._length = len(starts), 0
        return True

    def _find_run(self, chunk: bytes) -> bool:
        """Use `chunk` if it begins with a run of equally long ADDX records."""
        run, length = uniform_run(chunk, 0, len(chunk)) if chunk[0] == ADDX else (0, 0)
        if run < MIN_RUN:
            return False
        self._chunk, self._chunk_at = chunk, self.position
        self._found, self._next, self._length = run, 0, length
        if self._cutter.size != _CUT_AT_ONCE * length:
            self._cutter = Struct(f"{length}s" * _CUT_AT_ONCE)
        return True

    def _pread(self, size: int) -> bytes:
        if self._descriptor is None:
            self._descriptor = self._open(self.file)
        return os.pread(self._descriptor, size, self.position)

    def _check_may_grow(self, files: Sequence[str]) -> None:
        """Raise DamagedJournal if the file, which ends with a part of a record, is not the last."""
        if self.file != files[-1]:
            path = str(self._path / self.file)
            raise DamagedJournal(self.position, CUT_SHORT + FILE_FOLLOWS, path)

    def _next_file(self, files: Sequence[str]) -> bool:
        """Continue with the next file; False if this is the last."""
        if self.file == files[-1]:
            return False
        self._move_to(files[files.index(self.file) + 1])
        return True

    def _open(self, file: str) -> int:
        if self._open_file is not None:
            return self._open_file(file)
        return open_regular(self._path / file, os.O_RDONLY)

    def _move_to(self, file: str) -> None:
        self.close()
        self._forget_note()
        self.file = file
        self.position = self.large = 0
        self._visit = object()

    def copy(self) -> "JournalReader":
        """Return another reader at the same position of the same file, whatever its name is now."""
        reader = JournalReader(self._path, self.file, self.position, self._size, self._open_file)
        if self._descriptor is not None:
            reader._descriptor = os.dup(self._descriptor)
        reader.note = self.note
        reader._notes = self._notes.copy()
        return reader

    def seek(self, file: str, position: int) -> None:
        """Move to `position` in `file`, and open that at once. Raises OSError."""
        self.close()
        self._descriptor = self._open(file)
        self.file = file
        self.position, self.large = position, 0
        self._visit = object()
        self._chunk, self._found, self._next, self._length = b"", 0, 0, 0
        self._forget_note()

    def renamed(self, old: str, new: str) -> None:
        """Follow a rename: the file `old` is now called `new`."""
        if self.file == old:
            self.file = new

    def file_ended(self, end: int, file: str) -> None:
        """Go on at the beginning of `file` after byte `end` of the file being read."""
        if self.position > end:
            position = self.position - end
            self._move_to(file)
            self.position = position

    def close(self) -> None:
        """Release the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
