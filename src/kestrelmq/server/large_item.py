"""Items that arrive piece by piece: those that are not wanted, and large ones.

A large item is copied once, as it arrives. It would otherwise be copied to one piece of input, out
of that, and behind its journal header, and all other clients would wait meanwhile.
"""

from io import BytesIO
from typing import Final

from kestrelmq.journal.records import ADDX, ADDX_HEADER, TIMES_SIZE, pack_header
from kestrelmq.protocol.memcache import Set

LARGE: Final = 256 << 10
"""Bytes of data from which on an item is a large one."""
AHEAD: Final = 1 << 20
"""Bytes of data from which on an item is written in a thread, because that takes a while."""


class ArrivingItem:
    """So many bytes of data, and the line end after them.

    Attributes:
        missing: bytes of data that have not arrived.
        is_whole: whether all has arrived, the line end included.
        is_bad: whether something else than a line end came after the data.
    """

    __slots__ = ("_after_return", "is_bad", "is_whole", "missing")

    def __init__(self, size: int) -> None:
        self.missing = size
        self.is_whole = self.is_bad = False
        self._after_return = False

    def take(self, data: bytes, position: int) -> int:
        """Take what belongs to the item from `position` on; return where that ends."""
        if self.missing:
            end = min(position + self.missing, len(data))
            self._keep(data, position, end)
            self.missing -= end - position
            position = end
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

    def _keep(self, data: bytes, start: int, end: int) -> None:
        """Keep what belongs to the item of `data`, or do not."""
        raise NotImplementedError


class UnwantedItem(ArrivingItem):
    """An item that is dropped.

    Attributes:
        reply: what to answer when it is whole.
    """

    __slots__ = ("reply",)

    def __init__(self, size: int, reply: bytes) -> None:
        super().__init__(size)
        self.reply = reply

    def _keep(self, data: bytes, start: int, end: int) -> None:
        pass


class LargeItem(ArrivingItem):
    """The data of a `set`, as far as it has arrived.

    Attributes:
        request: the `set`.
    """

    __slots__ = ("_record", "request")

    def __init__(self, request: Set) -> None:
        super().__init__(request.size)
        self.request = request
        self._record = BytesIO()
        self._record.seek(ADDX_HEADER)

    def _keep(self, data: bytes, start: int, end: int) -> None:
        self._record.write(memoryview(data)[start:end])

    def data(self) -> bytes:
        """Return the data; it must be whole."""
        return self._record.getvalue()[ADDX_HEADER:]

    def record(self, now: int, expiry: int) -> bytes:
        """Return the item as queues hold it, as `item` does; it must be whole."""
        self._record.seek(0)
        self._record.write(pack_header(ADDX, self.request.size + TIMES_SIZE, now, expiry))
        return self._record.getvalue()
