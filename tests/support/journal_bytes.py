"""The bytes of journals, made of records."""

from typing import Final

from kestrelmq.format.records import AddX, Record, encode

NUMBERED_SINCE: Final = 1_700_000_000_000
"""When item 0 of `numbered` was added (ms); each item was added a millisecond after the last."""


def journal(*records: Record | str) -> bytes:
    """Return the bytes of records; a text stands for an item that never expires."""
    return b"".join(
        encode(AddX(NUMBERED_SINCE, 0, one.encode()) if isinstance(one, str) else one)
        for one in records
    )


def numbered(*numbers: int) -> bytes:
    """Return the records of items whose data are these numbers."""
    return b"".join(encode(AddX(NUMBERED_SINCE + one, 0, b"%d" % one)) for one in numbers)
