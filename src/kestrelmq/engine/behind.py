"""The part of a queue that is on disk only.

`Behind` stands in the journal at the first item that memory does not hold, and counts what comes
after. It reads large pieces, in order, so a long queue is served at the disk's sequential speed.
"""

from collections.abc import Sequence

from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import ADDX_HEADER


class Behind:
    """Items that are in the journal but not in memory.

    Attributes:
        reader: stands at the first of them.
        items: how many there are, those not written yet included.
        bytes: bytes of data in them.
    """

    __slots__ = ("bytes", "items", "reader")

    def __init__(self, reader: JournalReader, items: int = 0, size: int = 0) -> None:
        self.reader = reader
        self.items = items
        self.bytes = size

    def read(self, files: Sequence[str], wanted: int) -> tuple[list[bytes], int]:
        """Take items of about `wanted` bytes from the front; return them and their data bytes.

        Raises:
            DamagedJournal: the journal was damaged since it was loaded.
            OSError: it could not be read.
        """
        items = self.reader.read(files, self.items, wanted)
        size = sum(map(len, items)) - ADDX_HEADER * len(items)
        self.items -= len(items)
        self.bytes -= size
        return items, size

    def close(self) -> None:
        """Release the file."""
        self.reader.close()
