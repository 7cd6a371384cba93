"""Browsing a queue, and searching its items, for every protocol and the admin API.

A request looks at a bounded number of items, and its answer says where to go on. Items on disk are
read in a thread, and texts are searched there; regular expressions in a process (`patterns`). So
others are served meanwhile.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from kestrelmq.engine.browsing import Look, Tour
from kestrelmq.engine.queue import Queue
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.server.patterns import places_of

MAX_COUNT: Final = 1000
"""The most items of a page."""
PAGE_BYTES: Final = 1 << 20
"""A page with so many bytes of data to show, or more, gets no further items."""
SEARCHED_ITEMS: Final = 10_000
"""The most items that one request searches."""
READ_BYTES: Final = 16 << 20
"""After so many bytes of data, a request looks no further."""
_TOURED_ITEMS: Final = 10_000
"""The most items of a part of a tour; finding a place among very many items takes time."""
_WINDOW: Final = 256 << 10
"""Bytes that are searched at once, because no other thread runs meanwhile."""


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
    """

    total: int
    items: list[tuple[int, bytes]]
    next_offset: int | None


class Browser:
    """Serves the requests of one server. Only one at a time reads from disk or searches."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    async def page(
        self,
        queue: Queue,
        offset: int,
        count: int,
        search: Search | None = None,
        shown: int = sys.maxsize,
    ) -> Page:
        """Return some items from `offset` on; with `search`, only those that match.

        What is read or added meanwhile may move items by some places.

        Args:
            queue: the queue.
            offset: how many items to pass over.
            count: the most items to return.
            search: what the items must have; None for anything.
            shown: how many bytes of each item are of use to the caller.

        Raises:
            QueueUnavailable: the items cannot be read.
            PatternRefused: the regular expression cannot be used.
        """
        most = count if search is None else SEARCHED_ITEMS
        total, records = await self._read(queue, offset, most)
        places = range(len(records)) if search is None else await self._search(search, records)
        items: list[tuple[int, bytes]] = []
        size, passed = 0, len(records)
        for place in places:
            if len(items) == count or size >= PAGE_BYTES:
                passed = place
                break
            items.append((offset + place, records[place]))
            size += min(len(records[place]) - ADDX_HEADER, shown)
        end = offset + passed
        return Page(total, items, end if passed and end < total else None)

    async def records(self, queue: Queue, offset: int, most: int, most_bytes: int) -> list[bytes]:
        """Return the records of at most `most` items from `offset` on. Raises QueueUnavailable."""
        _, records = await self._read(queue, offset, most, most_bytes)
        return records

    async def parts(self, queue: Queue) -> AsyncGenerator[list[bytes], None]:
        """Yield the records of all items that wait, some at a time. Raises QueueUnavailable."""
        with closing(Tour(queue, _TOURED_ITEMS, PAGE_BYTES).looks()) as looks:
            for look in looks:
                await self._load(look)
                yield look.records

    async def _read(
        self, queue: Queue, offset: int, most: int, most_bytes: int = READ_BYTES
    ) -> tuple[int, list[bytes]]:
        """Return how many items wait, and the records of some."""
        look = Look(queue, offset, most, most_bytes)
        await self._load(look)
        return look.total, look.records

    async def _load(self, look: Look) -> None:
        with closing(look.views()) as views:
            for view in views:
                if not view.is_on_disk:
                    view.load()
                    continue
                async with self._busy:
                    await asyncio.to_thread(view.load)

    async def _search(self, search: Search, records: list[bytes]) -> Sequence[int]:
        """Return the places of the records whose data has what is searched."""
        async with self._busy:
            return await asyncio.to_thread(_matches, search, records)


def _matches(search: Search, records: list[bytes]) -> list[int]:
    if search.is_pattern:
        return places_of(search.wanted, [record[ADDX_HEADER:] for record in records])
    return [place for place, record in enumerate(records) if _contains(record, search.wanted)]


def _contains(record: bytes, wanted: bytes) -> bool:
    for at in range(ADDX_HEADER, len(record), _WINDOW):
        if record.find(wanted, at, at + _WINDOW + len(wanted) - 1) >= 0:
            return True
    return not wanted
