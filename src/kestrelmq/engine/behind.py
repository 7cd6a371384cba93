"""The part of a queue that is on disk only.

`Behind` stands in the journal at the first item that memory does not hold, and counts what comes
after. It reads large pieces, in order, so a long queue is served at the disk's sequential speed.
"""

from collections.abc import Sequence
from typing import Final

from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import ADDX_HEADER

READ_AHEAD: Final = 256 << 10
"""Bytes of records read back from the journal at once: a short time, however small they are."""
READY: Final = 8 << 20
"""Bytes of records that are kept in memory ahead of the readers.

Little, so that an item is taken while the processor's caches still have it, and that a pack has
little to copy; yet enough items that a long run of other records is passed over meanwhile.
"""
_BRIEF: Final = 8 << 10
"""Bytes of records without an item that are passed over in a short time."""


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
        """Return of how many bytes of data in memory there must be less, to read more.

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
