"""Pack one queue's journal: write its open reads and live items, and nothing else.

Records are copied unchanged, in runs; item data is not decoded, and only a run is in memory.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from kestrelmq.journal.files import DiskDirectory, write_file
from kestrelmq.journal.records import ADD_XID, ADDX_HEADER, CONTINUE, added_item
from kestrelmq.journal.replacement import open_read_records
from kestrelmq.journal.walk import WalkEnd
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.planning import (
    FileReadPlan,
    QueueReadPlan,
    file_read_plans,
    live_items,
    replay_in_order,
)
from kestrelmq.spark.scanning import open_view
from kestrelmq.spark.spool import SpoolFile

_ADDING_WITH_XID: Final = (ADD_XID, CONTINUE)
"""Opcodes of records that add an item and have an xid."""


def pack_files(
    files: Sequence[SpoolFile], output: Path, dialect: Dialect
) -> tuple[int, int, WalkEnd | None]:
    """Write the packed journal of a queue's files to `output`, and sync it.

    A server that loads `output` has the same items and open reads, and, in the documented dialect,
    the same last-used xid.

    Returns:
        The number of items, the bytes written, and where the last file is torn, or None. The bytes
        from there on are not packed.

    Raises:
        DamagedJournal: a file is damaged.
        OSError: `output` could not be written.
    """
    replayed = replay_in_order(files)
    plan = replayed.plan()
    records = _records(plan, dialect, replayed.end.last_xid)
    size = write_file(DiskDirectory(output.parent), output.name, records)
    live = plan.live
    items = len(live.given_back) + len(live.head) + live.end - live.first
    return items, size, _torn(files[-1])


def _records(plan: QueueReadPlan, dialect: Dialect, last_xid: int) -> Iterator[bytes]:
    plans = file_read_plans(plan)
    front = {item: record for part in plans for item, record in _front(part)}
    reads = [(xid, _as_addx(front[item])) for item, xid in plan.live.given_back]
    yield from open_read_records(dialect, last_xid, reads)
    for item in plan.live.head:
        yield _as_stored(front[item])
    for part in plans:
        yield from _rest(part)


def _torn(file: SpoolFile) -> WalkEnd | None:
    view = open_view(file.path, file.size, file.inode)
    for _ in view.chunks(tail_may_be_torn=True):
        pass
    return view.torn


def _front(part: FileReadPlan) -> Iterator[tuple[int, bytes]]:
    """Yield the records of the live items outside the live range, which are few."""
    if not part.exceptions:
        return
    for view, items, ordinals in live_items(part):
        for place, item in enumerate(ordinals.tolist()):
            if item in part.exceptions:
                yield item, bytes(view.buffer[items.starts[place] : items.ends[place]])


def _as_stored(record: bytes) -> bytes:
    """Return a record that adds the same item, and does nothing else."""
    return _as_addx(record) if record[0] in _ADDING_WITH_XID else record


def _as_addx(record: bytes) -> bytes:
    item = added_item(record, 0, len(record))
    if item is None or len(item) < ADDX_HEADER:
        raise ValueError("the record adds no item")
    return bytes(item)


def _rest(part: FileReadPlan) -> Iterator[bytes]:
    """Yield the records of the live range, in runs as long as the file allows."""
    for view, items, ordinals in live_items(part):
        wanted_here = (ordinals >= part.live_from) & (ordinals < part.live_to)
        rest = items.part(wanted_here)
        if not len(rest):
            continue
        combined = np.isin(rest.opcodes, _ADDING_WITH_XID)
        breaks = (rest.starts[1:] != rest.ends[:-1]) | combined[1:] | combined[:-1]
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rest)]
        for low, high in pairwise(bounds):
            run = bytes(view.buffer[rest.starts[low] : rest.ends[high - 1]])
            yield _as_addx(run) if combined[low] else run
