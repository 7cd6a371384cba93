"""Work on very many queues in slices; other tasks run after each slice."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

_DROPPED: Final = 500
"""Entries dropped in a slice; with what they hold that takes about a millisecond."""

One = TypeVar("One")


def batches(entries: Iterable[One], size: int) -> Iterator[list[One]]:
    """Yield `entries` in lists of up to `size`; their source must not change meanwhile."""
    source = iter(entries)
    while found := list(islice(source, size)):
        yield found


async def slices(entries: Iterable[One], size: int) -> AsyncIterator[list[One]]:
    """Yield `batches` of `entries`; other tasks run after each."""
    for found in batches(entries, size):
        yield found
        await asyncio.sleep(0)


async def clear_in_slices(*sections: dict[str, Any]) -> None:
    """Empty large dictionaries that are no longer needed: to drop one at once takes long."""
    for section in sections:
        while section:
            for _ in range(min(len(section), _DROPPED)):
                section.popitem()
            await asyncio.sleep(0)
