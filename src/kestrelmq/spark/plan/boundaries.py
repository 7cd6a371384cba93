"""Find where records begin, as arrays.

numpy finds a run of records of the same opcode and length all at once, at the speed of memory.
All other records go through the one scanner, `format.scanning.scan`, a window at a time, so that
a run that follows them is found too.
"""

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kestrelmq.format.records import ADD, ADD_HEADER, ADDX, ADDX_HEADER, REMOVE, Buffer
from kestrelmq.format.scanning import MIN_RUN, scan

_FIRST_WINDOW: Final = 4 << 10
_LARGEST_WINDOW: Final = 64 << 10
"""Most bytes scanned before looking for a run again; only a longer record makes it more."""
_FIRST_LOOK: Final = 64
"""Records compared first when looking for a run; comparing past the end of a run is wasted work."""
_SIZE: Final = Struct("<i")
_HEAD_SIZE: Final = 5
_HEAD_BITS: Final = (1 << 8 * _HEAD_SIZE) - 1
"""Masks the opcode and the size in the first 8 bytes of a record."""


def boundaries(
    buffer: Buffer, position: int, end: int, starts: list[NDArray[np.int64]], *, more: bool
) -> int:
    """Append to `starts`, as arrays, where each whole record in `buffer[position:end]` begins.

    The other arguments, the result and the errors are those of `format.scanning.scan`.
    """
    window = _FIRST_WINDOW
    while position < end:
        count, length = _run(buffer, position, end)
        if count >= MIN_RUN:
            starts.append(position + length * np.arange(count, dtype=np.int64))
            position += count * length
            window = _FIRST_WINDOW
            continue
        reach = min(position + window, end)
        found: list[int] = []
        try:
            stopped = scan(buffer, position, reach, found, more=more or reach < end)
        finally:
            if found:
                starts.append(np.array(found, dtype=np.int64))
        if reach == end:
            return stopped
        window = min(2 * window, _LARGEST_WINDOW) if found else 4 * window
        position = stopped
    return position


def _run(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the number of records in the run at `position`, and their length.

    A run is whole records of the same opcode and length. Return (0, 0) if the first record is not
    an ADD, ADDX or REMOVE, or not whole.
    """
    length = 1 if buffer[position] == REMOVE else _added_length(buffer, position, end)
    possible = (end - position) // length if length else 0
    if not possible:
        return 0, 0
    looked_at = _FIRST_LOOK
    while True:
        alike = _alike(buffer, position, min(looked_at, possible), length)
        count = len(alike) if alike.all() else int(np.argmin(alike))
        if count < looked_at:
            return count, length
        looked_at *= 8


def _alike(buffer: Buffer, position: int, count: int, length: int) -> NDArray[np.bool_]:
    """Return which of `count` records have the opcode and size of the first.

    The records are assumed to have equal length, so the result is valid up to the first False.
    """
    heads: NDArray[np.integer]
    if length == 1:
        heads = np.frombuffer(buffer, np.uint8, count, position)
    else:
        # An ADD or ADDX has at least 9 bytes, so reading 8 stays within the record.
        heads = np.ndarray((count,), "<i8", buffer, position, (length,)) & _HEAD_BITS
    alike: NDArray[np.bool_] = heads == heads[0]
    return alike


def _added_length(buffer: Buffer, position: int, end: int) -> int:
    """Return the length of the ADD or ADDX at `position`, or 0 if there is none."""
    least = {ADD: ADD_HEADER, ADDX: ADDX_HEADER}.get(buffer[position])
    if least is None or end - position < least:
        return 0
    (size,) = _SIZE.unpack_from(buffer, position + 1)
    return size + _HEAD_SIZE if size + _HEAD_SIZE >= least else 0
