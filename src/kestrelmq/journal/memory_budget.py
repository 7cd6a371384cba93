"""How much of a queue to hold in memory, counting what each item costs besides its data.

`max_memory_size` counts bytes of item data. An item costs more than that: the header of its record,
the Python object and the queue's reference to it. For tiny items, memory therefore holds less data,
so that a queue takes no more than about one and a quarter times `max_memory_size`.
"""

from typing import Final

OVERHEAD: Final = 72
"""Bytes that an item costs besides its data."""
_SLACK: Final = 16 << 20
"""Overhead in bytes that is granted to every queue."""
_STEPS: Final = 8


def room(most: int, held: int, items: int) -> int:
    """Return how many more bytes, overhead included, memory may take.

    Args:
        most: the queue's `max_memory_size`.
        held: bytes of item data in memory.
        items: how many items they are.
    """
    return max(0, most + most // 4 + _SLACK - held - OVERHEAD * items)


def limit_for_now(most: int, held: int, items: int) -> int:
    """Return how many bytes of data memory may hold before the limit is computed again."""
    return min(most, held + room(most, held, items) // _STEPS)


def fitting(most: int, held: int, items: int, size: int) -> int:
    """Return how many more items of `size` bytes of data memory may take."""
    by_data = (most - held) // size if size else room(most, held, items)
    return max(0, min(by_data, room(most, held, items) // (size + OVERHEAD)))
