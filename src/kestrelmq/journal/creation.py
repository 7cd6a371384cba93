"""When a queue came into being, as far as its files can tell.

No record says it, and packs replace old files, so it is the earliest of what is known:

- the timestamp of the oldest rotated file: the queue was there when that file ended;
- the add time of the first item in the oldest file;
- when any of the files was last written: for a queue that was never used, when it was created.

So a queue never seems older than it is, but one whose early files were packed may seem younger.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kestrelmq.journal.files import open_regular
from kestrelmq.journal.names import parse_name
from kestrelmq.journal.records import ADDX, ADDX_HEADER, YEAR_2000, YEAR_2100, item_add_time

_NANOSECONDS: Final = 1_000_000


def created_at(path: Path, files: Sequence[str], now: int) -> int:
    """Return when a queue came into being (ms), at the latest `now`.

    Args:
        path: the queue path.
        files: the queue's files, in replay order.
        now: the time (ms).

    Raises:
        OSError: a file cannot be looked at.
    """
    if not files:
        return now
    # There may be a hundred thousand queues: no path object for each.
    folder = str(path)
    descriptor = open_regular(f"{folder}/{files[0]}", os.O_RDONLY)
    try:
        known = [os.fstat(descriptor).st_mtime_ns // _NANOSECONDS]
        first = os.pread(descriptor, ADDX_HEADER, 0)
    finally:
        os.close(descriptor)
    known += [os.lstat(f"{folder}/{name}").st_mtime_ns // _NANOSECONDS for name in files[1:]]
    if "." in files[0]:
        oldest = parse_name(files[0])
        if oldest is not None and oldest.timestamp is not None:
            known.append(oldest.timestamp)
    if len(first) == ADDX_HEADER and first[0] == ADDX:
        known.append(item_add_time(first))
    return min([now, *(time for time in known if YEAR_2000 <= time < YEAR_2100)])
