"""Check and count replies: exact to the byte, and nearly free while they are as expected.

A batch is complete when exactly `depth` replies have come, each either the expected item (or
acknowledgement) or a miss. In a sliding window every reply counts by itself. Anything else raises
`ReplyError`: an error reply, a wrong item, an extra byte, or a closed connection. There is no I/O
here.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_LINE = 8192
"""The longest valid reply line, in bytes."""

Parser = Callable[[bytes, int], tuple[int, bool] | None]
"""(buffer, start) -> (end of the reply, whether it is a hit), or None if more bytes are needed."""


class ReplyError(Exception):
    """The server sent something that is not a valid reply to the request."""


class BatchReplies:
    """Checks the replies to one batch after another on one connection.

    While the bytes are a prefix of `whole`, only a position moves. At the first difference the
    batch is parsed reply by reply, to distinguish a miss from an error.

    `fast` is `whole` between batches and None within one. A caller may compare the bytes it read
    with it, and skip `feed` if they are equal.
    """

    __slots__ = ("_buffer", "_depth", "_left", "_parser", "_position", "_whole", "fast", "misses")

    def __init__(self, whole: bytes, parser: Parser, depth: int) -> None:
        self._whole = whole
        self._parser = parser
        self._depth = depth
        self._left = depth
        self._position = 0
        self._buffer = b""
        self.fast: bytes | None = whole or None
        self.misses = 0

    def feed(self, data: bytes) -> bool:
        """Take what was read, b"" for a closed connection; return whether the batch is complete."""
        if not data:
            raise ReplyError("the server closed the connection")
        if (
            not self._buffer
            and self._left == self._depth
            and self._whole.startswith(data, self._position)
        ):
            self._position += len(data)
            if self._position < len(self._whole):
                self.fast = None
                return False
            self._reset()
            return True
        return self._parse(self._whole[: self._position] + self._buffer + data)

    def _parse(self, buffer: bytes) -> bool:
        start = 0
        while self._left and (reply := self._parser(buffer, start)) is not None:
            start, hit = reply
            self._left -= 1
            self.misses += not hit
        if self._left:
            self._buffer, self._position, self.fast = buffer[start:], 0, None
            return False
        if start < len(buffer):
            raise ReplyError(f"more bytes than replies: {shown(buffer[start:])}")
        self._reset()
        return True

    def _reset(self) -> None:
        self._left, self._position, self._buffer = self._depth, 0, b""
        self.fast = self._whole or None


class WindowReplies:
    """Checks the replies on one connection as they come, and counts those that are complete.

    While the bytes are repetitions of `whole`, a reply costs no parsing.
    """

    __slots__ = ("_buffer", "_parser", "_repeated", "_size", "misses")

    def __init__(self, whole: bytes, parser: Parser, depth: int) -> None:
        self._size = len(whole)
        self._repeated = whole * depth
        self._parser = parser
        self._buffer = b""
        self.misses = 0

    def feed(self, data: bytes) -> int:
        """Take what was read, b"" for a closed connection; return how many replies it completes."""
        if not data:
            raise ReplyError("the server closed the connection")
        buffer = self._buffer + data if self._buffer else data
        if self._size and self._repeated.startswith(buffer):
            count, rest = divmod(len(buffer), self._size)
            self._buffer = buffer[-rest:] if rest else b""
            return count
        count = start = 0
        while (reply := self._parser(buffer, start)) is not None:
            start, hit = reply
            self.misses += not hit
            count += 1
            if start == len(buffer):
                break
        self._buffer = buffer[start:]
        return count


def line_end(buffer: bytes, start: int) -> int:
    """Return where the line that begins at `start` ends (at its CR LF); -1 if it is incomplete."""
    end = buffer.find(b"\r\n", start, start + MAX_LINE)
    if end < 0 and len(buffer) - start >= MAX_LINE:
        raise ReplyError(f"no line end in {MAX_LINE} bytes: {shown(buffer[start:])}")
    return end


def expect(buffer: bytes, start: int, body: bytes) -> tuple[int, bool] | None:
    """Return a hit if `body` begins at `start`. Raises `ReplyError` if something else does."""
    end = start + len(body)
    if len(buffer) < end:
        return None
    if buffer[start:end] != body:
        raise ReplyError(f"not the item that was set: {shown(buffer[start:end])}")
    return end, True


def exactly(body: bytes) -> Parser:
    """Return a parser for one reply that is known beforehand."""
    return lambda buffer, start: expect(buffer, start, body)


def shown(data: bytes) -> str:
    """Return the beginning of unexpected bytes, for a message."""
    return repr(data[:80])
