"""A large item that arrives piece by piece, and is copied once: when it is whole.

It would otherwise be copied to one piece of input, out of that, and behind its journal header, and
all other clients would wait meanwhile.
"""

from typing import Final

from kestrelmq.journal.records import ADDX, TIMES_SIZE, pack_header
from kestrelmq.protocol.memcache import Set

LARGE: Final = 256 << 10
"""Bytes of data from which on an item is a large one."""


class LargeItem:
    """The data of a `set`, as far as it has arrived, and the line end after it.

    Attributes:
        request: the `set`.
        missing: bytes of data that have not arrived.
        is_whole: whether all has arrived, the line end included.
        is_bad: whether something else than a line end came after the data.
    """

    __slots__ = ("_after_return", "_pieces", "is_bad", "is_whole", "missing", "request")

    def __init__(self, request: Set) -> None:
        self.request = request
        self.missing = request.size
        self.is_whole = self.is_bad = False
        self._after_return = False
        self._pieces: list[bytes] = []

    def take(self, data: bytes, position: int) -> int:
        """Take what belongs to the item from `position` on; return where that ends."""
        if self.missing:
            piece = data[position : position + self.missing]
            self._pieces.append(piece)
            self.missing -= len(piece)
            position += len(piece)
        while position < len(data) and not (self.is_whole or self.is_bad):
            last = data[position]
            position += 1
            if last == ord("\n"):
                self.is_whole = True
            elif last == ord("\r") and not self._after_return:
                self._after_return = True
            else:
                self.is_bad = True
        return position

    def data(self) -> bytes:
        """Return the data; it must be whole."""
        return b"".join(self._pieces)

    def record(self, now: int, expiry: int) -> bytes:
        """Return the item as queues hold it, as `item` does; it must be whole."""
        header = pack_header(ADDX, self.request.size + TIMES_SIZE, now, expiry)
        return b"".join((header, *self._pieces))
