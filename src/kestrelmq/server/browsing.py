"""Browsing a queue, and searching its items, for every protocol and the admin API.

A request looks at a bounded number of items, and its answer says where to go on. Items on disk are
read in a thread, and texts are searched there; regular expressions in a process (`patterns`). So
others are served meanwhile.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from subprocess import Popen
from typing import Final, TypeVar

from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import Item
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.browsing import Look, Tour
from kestrelmq.queues.searching import READ_BYTES, SEARCHED_ITEMS, Page, Search, matches, page_of
from kestrelmq.server.loop.threads import in_thread

MAX_COUNT: Final = 1000
"""The most items of a page."""
MAX_SEARCHES: Final = 8
"""The most searches that wait for the one that is served."""
T = TypeVar("T")


class TooManySearches(QueueUnavailable):
    """So many searches wait that this one is refused."""


class Browser:
    """Serves the requests of one server. One at a time reads from disk, and one searches.

    A search may take seconds, and holds megabytes of items. So it reads them only when its turn has
    come, and keeps nobody waiting who only looks. If it is cancelled, its process is killed.
    """

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._searching = asyncio.Lock()
        self._searches = 0

    async def page(
        self,
        queue: Queue,
        offset: int,
        count: int,
        search: Search | None = None,
        shown: int = sys.maxsize,
        place: int | None = None,
    ) -> Page:
        """Return some items from `offset` on; with `search`, only those that match.

        What is read or added meanwhile may move items by some offsets, but not from their places.

        Args:
            queue: the queue.
            offset: how many items to pass over.
            count: the most items to return.
            search: what the items must have; None for anything.
            shown: how many bytes of each item are of use to the caller.
            place: where to begin instead of `offset`.

        Raises:
            QueueUnavailable: the items cannot be read.
            TooManySearches: `MAX_SEARCHES` wait already.
            PatternRefused: the regular expression cannot be used.
        """
        if search is None:
            look = Look(queue, offset, count, READ_BYTES, place=place)
            await self.load(look)
            return page_of(look, range(len(look.records)), count, shown)
        if self._searches > MAX_SEARCHES:
            raise TooManySearches("too many searches; try again later")
        self._searches += 1
        try:
            async with self._searching:
                look = Look(queue, offset, SEARCHED_ITEMS, READ_BYTES, place=place)
                await self.load(look)
                ending = _Ending()
                places = await _in_thread(
                    lambda: matches(search, look.records, ending.begun), ending.end
                )
                return page_of(look, places, count, shown)
        finally:
            self._searches -= 1

    async def parts(self, queue: Queue) -> AsyncGenerator[list[Item], None]:
        """Yield the records of all items that wait, some at a time. Raises QueueUnavailable."""
        with closing(Tour(queue).looks()) as looks:
            for look in looks:
                await self.load(look)
                yield look.records

    async def load(self, look: Look) -> None:
        """Read the items of a look. Raises QueueUnavailable."""
        with closing(look.views()) as views:
            for view in views:
                if not view.is_on_disk:
                    view.load()
                    continue
                async with self._reading:
                    await _in_thread(view.load)


class _Ending:
    """Kills the process of a search that is cancelled, whether it has begun or not."""

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        self._is_cancelled = False

    def begun(self, process: Popen[bytes]) -> None:
        self._process = process
        if self._is_cancelled:
            process.kill()

    def end(self) -> None:
        self._is_cancelled = True
        if self._process is not None:
            self._process.kill()


async def _in_thread(function: Callable[[], T], end: Callable[[], object] = object) -> T:
    """Run in a thread, as `in_thread`; if cancelled, call `end` and wait for the thread."""
    work = asyncio.ensure_future(in_thread(function))
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        end()
        await asyncio.gather(work, return_exceptions=True)
        raise
    return work.result()
