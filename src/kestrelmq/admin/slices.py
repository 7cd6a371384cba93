"""Work on very many queues, in slices: others are served after each."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from kestrelmq.engine.stats import QueueSums
from kestrelmq.server.context import ServerContext

_SUMMED: Final = 1000
"""Queues added up in a slice: about a millisecond."""

One = TypeVar("One")


async def slices(entries: Iterable[One], size: int) -> AsyncIterator[list[One]]:
    """Yield `entries` in lists of `size`; what they come from must not change meanwhile."""
    source = iter(entries)
    while found := list(islice(source, size)):
        yield found
        await asyncio.sleep(0)


async def server_stats(context: ServerContext) -> list[tuple[str, object]]:
    """Return the global statistics, as (name, value)."""
    sums = QueueSums()
    async for some in slices(list(context.collection.queues.values()), _SUMMED):
        sums.add(some)
    return context.server_stats(sums)


async def emptied(*sections: dict[str, Any]) -> None:
    """Empty dictionaries that are no longer needed: to drop a large one at once takes long."""
    for section in sections:
        while section:
            for _ in range(min(len(section), 4 * _SUMMED)):
                section.popitem()
            await asyncio.sleep(0)
