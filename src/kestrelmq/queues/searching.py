"""Searching items for a text, or for a regular expression in a process of its own.

A search looks at a bounded number of items, and says where to go on. Some regular expressions take
longer than the age of the universe on a short text, and Python cannot interrupt one: it would block
everybody. So a process is started for each search. It gets the expression and the items, and is
killed when its time is over, or nobody wants its result any more. Nobody else waits for it.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelmq.errors import PatternRefused
from kestrelmq.format.records import ADDX_HEADER, Item, item_data, item_size, record_of
from kestrelmq.queues.browsing import Look

Begun = Callable[[subprocess.Popen[bytes]], object]
"""Is called with the process of a search, which may be killed if nobody wants the result."""
MAX_SECONDS: Final = 5.0
"""How long one search may take."""
PAGE_BYTES: Final = 1 << 20
"""A page with so many bytes of data to show, or more, gets no further items."""
SEARCHED_ITEMS: Final = 10_000
"""The most items that one request searches."""
READ_BYTES: Final = 16 << 20
"""After so many bytes of data, a request looks no further."""
_WINDOW: Final = 256 << 10
"""Bytes that are searched at once, because no other thread runs meanwhile."""
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


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for: a text, or with `is_pattern` a regular expression; both as bytes."""

    wanted: bytes
    is_pattern: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What a request found.

    Attributes:
        total: how many items waited.
        items: the items, each with its place in the queue; 0 is the head.
        next_offset: where to go on; None at the end of the queue.
        behind: the place behind what was looked at, which stays the same whatever is read or added.
    """

    total: int
    items: list[tuple[int, Item]]
    next_offset: int | None
    behind: int


def places_of(pattern: bytes, items: Sequence[bytes], begun: Begun = id) -> list[int]:
    """Return which of `items` have a match of the regular expression `pattern`; may take long.

    Raises:
        PatternRefused: it is not a regular expression, takes too long, or its process was killed.
    """
    pieces = [_sized(pattern), len(items).to_bytes(8, "little"), *map(_sized, items)]
    try:
        process = subprocess.Popen(  # noqa: S603 # the program is ours, its input is data
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise PatternRefused(f"no process for the search: {error.strerror}") from None
    begun(process)
    with process:
        try:
            found, complaint = process.communicate(b"".join(pieces), MAX_SECONDS)
        except subprocess.TimeoutExpired:
            reason = f"the regular expression took longer than {MAX_SECONDS:g} s"
            raise PatternRefused(reason) from None
        finally:
            process.kill()  # unless it has ended
    if process.returncode:
        reason = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise PatternRefused(reason or "the search failed")
    return [int(word) for word in found.split()]


def _sized(piece: bytes) -> bytes:
    return len(piece).to_bytes(8, "little") + piece


def matches(search: Search, records: Sequence[Item], begun: Begun = id) -> list[int]:
    """Return which of `records` have what is searched; may take long. Raises as `places_of`."""
    if search.is_pattern:
        return places_of(search.wanted, list(map(item_data, records)), begun)
    return [
        place for place, record in enumerate(records) if _contains(record_of(record), search.wanted)
    ]


def _contains(record: bytes, wanted: bytes) -> bool:
    for at in range(ADDX_HEADER, len(record), _WINDOW):
        if record.find(wanted, at, at + _WINDOW + len(wanted) - 1) >= 0:
            return True
    return not wanted


def page_of(look: Look, places: Sequence[int], count: int, shown: int = sys.maxsize) -> Page:
    """Return a page of what was looked at.

    Args:
        look: the look, which has been loaded.
        places: which of its records are wanted.
        count: the most items of the page.
        shown: how many bytes of each item are of use to the caller.
    """
    records = look.records
    items: list[tuple[int, Item]] = []
    size, passed = 0, len(records)
    for place in places:
        if len(items) == count or size >= PAGE_BYTES:
            passed = place
            break
        items.append((look.offset + place, records[place]))
        size += min(item_size(records[place]), shown)
    end = look.offset + passed
    more = end if passed and end < look.total else None
    return Page(look.total, items, more, look.behind - len(records) + passed)
