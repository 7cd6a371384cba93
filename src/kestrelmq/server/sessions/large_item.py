"""Items whose data arrives in pieces: large ones, and ones to be dropped.

A large item is copied once, as it arrives. Otherwise it would be copied three times, while all
other clients wait: into one buffer of input, out of that buffer, and behind its journal header.
"""

from io import BytesIO

from kestrelmq.format.records import ADDX, ADDX_HEADER, TIMES_SIZE, pack_header
from kestrelmq.protocol.memcache import Set


class ArrivingItem:
    """An item of known size and the line end after it, as they arrive.

    Attributes:
        missing: bytes of data that have not arrived.
        is_whole: whether everything has arrived, the line end included.
        is_bad: whether something other than a line end came after the data.
    """

    __slots__ = ("_after_return", "is_bad", "is_whole", "missing")

    def __init__(self, size: int) -> None:
        self.missing = size
        self.is_whole = self.is_bad = False
        self._after_return = False

    def take(self, data: bytes, position: int) -> int:
        """Take the bytes of the item in `data` from `position` on; return where they end."""
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
        """Keep or drop the bytes of the item in `data`, from `start` to `end`."""
        raise NotImplementedError


class SkippedItem(ArrivingItem):
    """An item that is dropped.

    Attributes:
        reply: the reply when it has arrived.
    """

    __slots__ = ("reply",)

    def __init__(self, size: int, reply: bytes) -> None:
        super().__init__(size)
        self.reply = reply

    def _keep(self, data: bytes, start: int, end: int) -> None:
        pass


class ArrivingLargeItem(ArrivingItem):
    """A large item of a `set`, as far as it has arrived.

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

    def data(self) -> memoryview:
        """Return the data, not copied; the item must be whole."""
        return memoryview(self._record.getvalue())[ADDX_HEADER:]

    def record(self, now: int, expiry: int) -> bytes:
        """Return the item as a record, as `records.item` does; the item must be whole."""
        self._record.seek(0)
        self._record.write(pack_header(ADDX, self.request.size + TIMES_SIZE, now, expiry))
        return self._record.getvalue()
