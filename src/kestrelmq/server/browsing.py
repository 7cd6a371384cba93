"""Browsing a queue, and searching its items, for every protocol and the admin API.

A request looks at a bounded number of items, and its answer says where to go on. Items on disk are
read in a thread, and texts are searched there; regular expressions in a process (`patterns`). So
others are served meanwhile.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Final

from kestrelmq.engine.browsing import Look, Tour
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.searching import (
    READ_BYTES,
    SEARCHED_ITEMS,
    Page,
    Search,
    matches,
    page_of,
)
from kestrelmq.server.loop.threads import in_thread

MAX_COUNT: Final = 1000
"""The most items of a page."""


class Browser:
    """Serves the requests of one server. One at a time reads from disk, and one searches.

    A search may take seconds, and holds megabytes of items. So it reads them only when its turn has
    come, and keeps nobody waiting who only looks.
    """

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._searching = asyncio.Lock()

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
        if search is None:
            total, records = await self._read(queue, offset, count)
            return page_of(total, offset, records, range(len(records)), count, shown)
        async with self._searching:
            total, records = await self._read(queue, offset, SEARCHED_ITEMS)
            places = await in_thread(matches, search, records)
            return page_of(total, offset, records, places, count, shown)

    async def records(self, queue: Queue, offset: int, most: int, most_bytes: int) -> list[bytes]:
        """Return the records of at most `most` items from `offset` on. Raises QueueUnavailable."""
        _, records = await self._read(queue, offset, most, most_bytes)
        return records

    async def parts(self, queue: Queue) -> AsyncGenerator[list[bytes], None]:
        """Yield the records of all items that wait, some at a time. Raises QueueUnavailable."""
        with closing(Tour(queue).looks()) as looks:
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
                async with self._reading:
                    await in_thread(view.load)
