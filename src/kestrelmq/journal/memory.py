"""How much of a queue memory holds, when the items are so small that they are not what it costs.

`max_memory_size` counts bytes of item data. An item costs more than its data: the record's
header, the object around it and the queue's reference. Of tiny items memory therefore holds less
data, so that a queue takes no more than about one and a quarter times `max_memory_size`.
"""

from typing import Final

OVERHEAD: Final = 72
"""Bytes that an item costs besides its data."""
_SLACK: Final = 16 << 20
"""Overhead that is not worth a thought."""
_STEPS: Final = 8


def room(most: int, held: int, items: int) -> int:
    """Return how many more bytes, overhead included, memory may take.

    Args:
        most: the queue's `max_memory_size`.
        held: bytes of data that memory holds.
        items: in so many items.
    """
    return max(0, most + most // 4 + _SLACK - held - OVERHEAD * items)


def limit_for_now(most: int, held: int, items: int) -> int:
    """Return up to how many bytes of data memory may grow before it is looked at again."""
    return min(most, held + room(most, held, items) // _STEPS)


def fitting(most: int, held: int, items: int, size: int) -> int:
    """Return how many more items of `size` bytes of data memory may take."""
    by_data = (most - held) // size if size else room(most, held, items)
    return max(0, min(by_data, room(most, held, items) // (size + OVERHEAD)))
