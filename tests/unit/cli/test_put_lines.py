"""Lines of standard input, put as items."""

import errno
import io

import pytest

from kestrelmq.cli.client import _put_lines
from kestrelmq.errors import KestrelError


class _TornInput(io.RawIOBase):
    """Two lines, and then an error."""

    def __init__(self) -> None:
        self._rest = b"a\nb\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if not self._rest:
            raise OSError(errno.EIO, "Input/output error")
        count = len(self._rest)
        buffer[:count], self._rest = self._rest, b""
        return count


def test_an_error_of_the_input_says_how_many_items_were_put() -> None:
    """So that the command can be repeated with what is left."""
    put: list[bytes] = []

    def put_many(batch: list[bytes], before: int) -> list[bool]:
        assert before == len(put)
        put.extend(batch)
        return [True] * len(batch)

    with pytest.raises(KestrelError, match=r"^standard input: Input/output error; 2 items put$"):
        _put_lines("work", io.BufferedReader(_TornInput()), put_many)
    assert put == [b"a", b"b"]
