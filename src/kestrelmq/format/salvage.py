"""Finding the next record after damage.

Records have no checksum and no marker, so the next record after damage is found by its form: an
added item with plausible times and a plausible size, followed only by records for a while; or a
note of a delayed item, which has both. Short records (removes and the like) between the damage and
that item look like any data, and are lost with the damage.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.notes import DAMAGED_PART, DELAYED, NOTE_MARK, decode_delayed, is_delayed
from kestrelmq.format.records import ADD_XID, ADDX, CONTINUE, SAVE_XID, YEAR_2000, YEAR_2101, Buffer
from kestrelmq.format.scanning import record_length

_HEADER: Final = Struct("<iqq")
_TIME: Final = Struct("<q")
# The last three bytes of an add time in the years 2000 to 2100, in milliseconds.
_ADDX: Final = re.compile(rb"\x02.{3}[\x00-\x7f].{5}[\x00-\x03]\x00\x00", re.DOTALL)
_ADD_XID: Final = re.compile(rb"[\x07\x08].{4}.{3}[\x00-\x7f].{5}[\x00-\x03]\x00\x00", re.DOTALL)
_NOTE_BEGIN: Final = bytes((SAVE_XID,)) + NOTE_MARK + bytes((SAVE_XID, DELAYED))
_NOTE: Final = re.compile(re.escape(_NOTE_BEGIN))
_FOLLOWERS: Final = 16
"""So many records in a row, the found one among them, are enough to believe it."""
_LONGEST_MATCH: Final = 17

Step = Callable[[int], int]
"""Given a position, returns how many bytes to search from there; an exception ends the search."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes that replay cannot use: `file[start:end]`, and what is wrong at their start."""

    file: str
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: bytes {self.start} to {self.end} ({self.reason})"


def next_after_cut(buffer: Buffer, cut: int, *, step: Step) -> int:
    """Return where records continue after a record that extends beyond the end; else the end.

    A crash leaves a record that is cut short, and its data may itself contain journal records, if
    somebody puts journals into a queue. Those were written before their item was added. So only
    records that were added no earlier than the cut one prove that its size is damaged.
    """
    opcode = buffer[cut]
    at = cut + {ADDX: 5, ADD_XID: 9, CONTINUE: 9}.get(opcode, len(buffer))
    if at + _TIME.size > len(buffer):
        return len(buffer)
    (added,) = _TIME.unpack_from(buffer, at)
    return next_record(buffer, cut, max(added, YEAR_2000), step=step)


def next_record(buffer: Buffer, damage: int, since: int = YEAR_2000, *, step: Step) -> int:
    """Return where records continue after `damage`; the end of the buffer if they do not.

    Args:
        buffer: the file.
        damage: where bytes are not a record.
        since: the earliest add time (ms) that is plausible.
        step: told how far the search is; returns how many bytes to search next.
    """
    size = len(buffer)
    position = damage + 1
    while position < size:
        end = min(size, position + step(position))
        found = end
        for pattern, header in ((_ADDX, 1), (_ADD_XID, 5)):
            found = _first(buffer, position, found, pattern, header, since)
        if since == YEAR_2000:  # a note in the data of a cut item proves nothing
            found = _first_note(buffer, position, found)
        if found < end:
            return found
        position = end
    return size


def _first(
    buffer: Buffer, position: int, end: int, pattern: re.Pattern[bytes], header: int, since: int
) -> int:
    """Return where in `buffer[position:end]` the first record of a kind begins; else `end`."""
    while match := pattern.search(buffer, position, end + _LONGEST_MATCH - 1):
        position = match.start()
        if position >= end:
            break
        if _makes_sense(buffer, position, header, since):
            return position
        position += 1
    return end


def _first_note(buffer: Buffer, position: int, end: int) -> int:
    """Return where in `buffer[position:end]` the first whole note of a delayed item begins."""
    for match in _NOTE.finditer(buffer, position, end + len(_NOTE_BEGIN) - 1):
        at = match.start()
        length = record_length(buffer, at, len(buffer))
        if (
            length is not None
            and is_delayed(buffer, at, at + length)
            and at + length <= len(buffer)
            and decode_delayed(buffer, at, at + length) != DAMAGED_PART
        ):
            return at
    return end


def _makes_sense(buffer: Buffer, position: int, header: int, since: int) -> bool:
    size = len(buffer)
    if position + header + _HEADER.size > size:
        return False
    length, added, expiry = _HEADER.unpack_from(buffer, position + header)
    if length < 16 or position + header + 4 + length > size:
        return False
    if not (since <= added < YEAR_2101 and 0 <= expiry < 2 * YEAR_2101):
        return False
    return _followed_by_records(buffer, position)


def _followed_by_records(buffer: Buffer, position: int) -> bool:
    size = len(buffer)
    for _ in range(_FOLLOWERS):
        if position == size:
            return True
        try:
            length = record_length(buffer, position, size)
        except DamagedJournal:
            return False
        if length is None or position + length > size:
            # Accept a record that the end of the file cuts short, but no ADDX with a whole header:
            # a size that extends beyond the end is just as likely to be data.
            return buffer[position] != ADDX or size - position < _HEADER.size
        position += length
    return True
