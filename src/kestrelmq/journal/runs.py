"""Runs of records of one length: what a producer of equal items leaves, found at C speed."""

from struct import Struct
from typing import Final

from kestrelmq.journal.records import ADD, ADD_HEADER, ADDX, TIMES_SIZE, Buffer

_SIZE: Final = Struct("<i")


def uniform_run(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return how many records like the first (ADDX or ADD) `position` begins, and its length.

    A producer's items are often of one size; such a run is found without a look at each record.
    Only whole records count; (0, 0) when there is none.
    """
    if end - position < ADD_HEADER or buffer[position] not in {ADD, ADDX}:
        return 0, 0
    (size,) = _SIZE.unpack_from(buffer, position + 1)
    if size < (TIMES_SIZE if buffer[position] == ADDX else 4):
        return 0, 0
    length = size + 5
    count = (end - position) // length
    for offset in range(5):
        # Each byte of the header that must be the same, taken from all records at once.
        column = buffer[position + offset : position + count * length : length]
        if not isinstance(column, bytes):
            column = bytes(column)
        count = len(column) - len(column.lstrip(column[:1]))
        if not count:
            break
    return count, length
