"""Runs of records that are alike: what a producer leaves, found faster than record by record."""

from struct import Struct
from typing import Final

from kestrelmq.journal.records import ADD, ADD_HEADER, ADDX, TIMES_SIZE, Buffer

WORTH: Final = 16
"""Records that are worth taking together."""
_HEAD: Final = Struct("<Bi")


def uniform_run(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return how many records like the first (ADDX or ADD) `position` begins, and its length.

    A producer's items are often of one size; such a run is found without a look at each record.
    Only whole records count; (0, 0) when there is none.
    """
    if end - position < ADD_HEADER or buffer[position] not in {ADD, ADDX}:
        return 0, 0
    _, size = _HEAD.unpack_from(buffer, position)
    if size < (TIMES_SIZE if buffer[position] == ADDX else 4):
        return 0, 0
    length = size + 5
    count = (end - position) // length
    if count > WORTH:
        # A look at the first few tells most runs that are none, and costs next to nothing.
        few = _alike(buffer, position, WORTH, length)
        if few < WORTH:
            return few, length
    return _alike(buffer, position, count, length), length


def _alike(buffer: Buffer, position: int, count: int, length: int) -> int:
    """Return how many of `count` records of one length have the first one's opcode and size."""
    for offset in range(_HEAD.size):
        # Each byte of the header that must be the same, taken from all records at once.
        column = buffer[position + offset : position + count * length : length]
        if not isinstance(column, bytes):
            column = bytes(column)
        count = len(column) - len(column.lstrip(column[:1]))
        if not count:
            break
    return count


def added_run(buffer: Buffer, position: int, end: int, starts: list[int]) -> int:
    """Append to `starts` where the whole ADDX records begin that follow each other at `position`.

    Returns:
        Where the last of them ends.
    """
    unpack = _HEAD.unpack_from
    found = starts.append
    last_head = end - _HEAD.size
    while position <= last_head:
        opcode, size = unpack(buffer, position)
        if opcode != ADDX or size < TIMES_SIZE:
            break
        after: int = position + size + 5
        if after > end:
            break
        found(position)
        position = after
    return position
