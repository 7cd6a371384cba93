"""Reading a journal that may still be written: large reads, whole records, in order.

A `JournalReader` stands at a position in a queue's files and hands out the items from there on.
It serves read-behind: what memory cannot hold is read back when its turn comes.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.records import ADDX, added_item, record_length, scan
from kestrelmq.journal.runs import uniform_run

CHUNK: Final = 1 << 20
"""Bytes read at once; a longer record is read whole."""
_RUN: Final = 16
"""Records of one length that are worth taking together."""


class JournalReader:
    """Hands out the items of a queue's files from a position on.

    Attributes:
        file: name of the file it stands in.
        position: where in it the next record to look at begins.
    """

    def __init__(self, path: Path, file: str, position: int, chunk: int = CHUNK) -> None:
        self._path = path
        self._size = chunk
        self.file = file
        self.position = position
        self._descriptor: int | None = None
        self._chunk = b""
        self._chunk_at = 0
        self._starts: list[int] = []
        self._next = 0
        self._scanned = 0

    def read(self, files: Sequence[str], max_items: int, max_bytes: int) -> list[bytes]:
        """Return the next items, in order; empty at the end of the last of `files`.

        Args:
            files: the queue's files in order; a file that another follows does not grow any more.
            max_items: most items to return.
            max_bytes: stop once this many bytes of records are read; the last item may exceed it.

        Raises:
            DamagedJournal: the bytes at the position are no record.
            OSError: a file could not be read.
        """
        items: list[bytes] = []
        read = 0
        while len(items) < max_items and read < max_bytes:
            if self._next >= len(self._starts):
                if not self._fill(files):
                    break
                continue
            start = self._starts[self._next]
            self._next += 1
            end = self._starts[self._next] if self._next < len(self._starts) else self._scanned
            item = (
                self._chunk[start:end]
                if self._chunk[start] == ADDX
                else added_item(self._chunk, start, end)
            )
            if item is not None:
                items.append(item)
                read += end - start
            self.position = self._chunk_at + end
        return items

    def skip(self, files: Sequence[str], count: int) -> int:
        """Pass over items, at most `count`; return how many. Raises as `read`."""
        left = count
        while left:
            if self._next >= len(self._starts):
                chunk = self._pread(CHUNK)
                run, length = uniform_run(chunk, 0, len(chunk))
                if run >= _RUN:
                    passed = min(run, left)
                    self.position += passed * length
                    left -= passed
                    continue
            passed = len(self.read(files, min(left, _RUN * _RUN), CHUNK))
            if not passed:
                break
            left -= passed
        return count - left

    def _fill(self, files: Sequence[str]) -> bool:
        """Read and scan the next chunk; False at the end of the journal."""
        wanted = self._size
        while True:
            chunk = self._pread(wanted)
            if not chunk:
                if self.file == files[-1]:
                    return False
                self._move_to(files[files.index(self.file) + 1])
                continue
            starts: list[int] = []
            more = len(chunk) == wanted
            try:
                scanned = scan(chunk, 0, len(chunk), starts, more=more)
            except DamagedJournal as damage:
                if not starts:
                    raise DamagedJournal(
                        self.position + damage.position, damage.reason, str(self._path / self.file)
                    ) from None
                scanned = damage.position
            if starts:
                self._chunk, self._chunk_at = chunk, self.position
                self._starts, self._next, self._scanned = starts, 0, scanned
                return True
            if not more:
                return False
            length = record_length(chunk, 0, len(chunk), more=True)
            wanted = max(2 * wanted, length or 0)

    def _pread(self, size: int) -> bytes:
        if self._descriptor is None:
            self._descriptor = os.open(self._path / self.file, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, size, self.position)

    def _move_to(self, file: str) -> None:
        self.close()
        self.file = file
        self.position = 0

    def copy(self) -> "JournalReader":
        """Return another reader of the same files."""
        return JournalReader(self._path, self.file, self.position, self._size)

    def seek(self, file: str, position: int) -> None:
        """Stand at `position` in `file`, which is opened at once. Raises OSError."""
        self.close()
        self._descriptor = os.open(self._path / file, os.O_RDONLY | os.O_CLOEXEC)
        self.file = file
        self.position = position
        self._chunk, self._starts, self._next, self._scanned = b"", [], 0, 0

    def renamed(self, old: str, new: str) -> None:
        """Tell that the file `old` is now called `new`."""
        if self.file == old:
            self.file = new

    def close(self) -> None:
        """Release the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
