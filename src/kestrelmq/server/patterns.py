"""Searching items for a regular expression, in a process of its own.

Some expressions take longer than the age of the universe on a short text, and Python cannot
interrupt one: it would block every client. So a process is started for each search. It gets the
expression and the items, and is killed when its time is over. Nobody else waits for it.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from kestrelmq.errors import KestrelError

MAX_SECONDS: Final = 5.0
"""How long one search may take."""
_MAX_MEMORY: Final = 1 << 30
"""Bytes of memory that the process may take."""
_MAX_CPU: Final = int(MAX_SECONDS) + 1
"""Seconds of CPU after which the process ends by itself, if the server was killed meanwhile."""
_PROGRAM: Final = f"""
import re, resource, struct, sys
resource.setrlimit(resource.RLIMIT_AS, ({_MAX_MEMORY}, {_MAX_MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({_MAX_CPU}, {_MAX_CPU}))
data = sys.stdin.buffer
def piece():
    (size,) = struct.unpack("<Q", data.read(8))
    return data.read(size)
try:
    find = re.compile(piece()).search
except (re.error, RecursionError, OverflowError, MemoryError) as error:
    sys.exit("no regular expression: " + " ".join(str(error).split()))
(count,) = struct.unpack("<Q", data.read(8))
print(*(place for place in range(count) if find(piece())))
"""


class PatternRefused(KestrelError):  # noqa: N818 # says what it is
    """The regular expression is not one, or takes too long."""


def places_of(pattern: bytes, items: Sequence[bytes]) -> list[int]:
    """Return which of `items` have a match of the regular expression `pattern`; may take long.

    Raises:
        PatternRefused: it is not a regular expression, or takes too long.
    """
    pieces = [_sized(pattern), len(items).to_bytes(8, "little"), *map(_sized, items)]
    try:
        ended = subprocess.run(  # noqa: S603 # the program is ours, its input is data
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=b"".join(pieces),
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PatternRefused(f"the regular expression took longer than {MAX_SECONDS:g} s") from None
    except OSError as error:
        raise PatternRefused(f"no process for the search: {error.strerror}") from None
    if ended.returncode:
        reason = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise PatternRefused(reason or "the search failed")
    return [int(word) for word in ended.stdout.split()]


def _sized(piece: bytes) -> bytes:
    return len(piece).to_bytes(8, "little") + piece
