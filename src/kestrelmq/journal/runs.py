"""Runs of records of one length: what a producer of equal items leaves, found at C speed."""

from struct import Struct
from typing import Final

from kestrelmq.journal.records import ADDX, ADDX_HEADER, TIMES_SIZE, Buffer

_SIZE: Final = Struct("<i")


def uniform_run(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return how many ADDX records of one length follow each other from `position`, and the length.

    A producer's items are often of one size; such a run is found without a look at each record.
    Only whole records count; (0, 0) when there is none.
    """
    if end - position < ADDX_HEADER or buffer[position] != ADDX:
        return 0, 0
    (size,) = _SIZE.unpack_from(buffer, position + 1)
    if size < TIMES_SIZE:
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
