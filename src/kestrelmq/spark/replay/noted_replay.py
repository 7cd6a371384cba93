"""Replay a journal with the notes in it, as a server does.

What is in a queue depends on notes only where a crash cut the journal short, and the delayed items
are in notes. For everything else `read_plans` replays without them, which is faster.

A crash may cut off the CONFIRM_REMOVEs that follow the note DONE in the same write. The note
finishes the reads of a tag by itself; see `journal.reserved_reads`. So `finished_reads` looks
whether a journal ends with such a note, and only then replays it with its notes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from kestrelmq.format.notes import NOTE_MARK, decode_delayed, is_delayed
from kestrelmq.format.records import CONFIRM_REMOVE, SAVE_XID
from kestrelmq.journal.delayed_items import key_of
from kestrelmq.journal.loading import fold
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.reserved_reads import DONE
from kestrelmq.journal.walk import WINDOW, Walk, find_records
from kestrelmq.spark.storage.opening import open_copy, open_view
from kestrelmq.spark.storage.spool import SpoolFile

MEMORY_LIMIT: Final = 8 << 20
"""Most bytes of items in memory, for a queue of any length."""
_DONE: Final = bytes((SAVE_XID,)) + NOTE_MARK + bytes((SAVE_XID, DONE))
"""How the records of such a note begin."""
_LOOK: Final = 64 << 10
"""Bytes at the end of a journal in which such a note must be: a tag has at most 1,000 reads."""


def replay_noted(files: Sequence[SpoolFile]) -> Replay:
    """Return what a queue's files hold, with their notes, as a server loads it.

    Items that are not in memory cannot be read from it.

    Raises:
        DamagedJournal: a file is damaged.
        JournalError: a file is gone, or shorter than when it was listed.
    """
    by_name = {file.name_in_spool: file for file in files}
    state = Replay(
        MEMORY_LIMIT,
        lambda name, at: JournalReader(
            Path(by_name[name].spool), name, at, open_file=lambda name: open_copy(by_name[name])
        ),
    )
    names: list[str] = []
    for file in files:
        names.append(file.name_in_spool)
        buffer = open_view(file, begin=0).buffer
        fold(state, buffer, tuple(names), file.path, lambda _at: WINDOW, last=file.last)
    state.end()
    if state.behind is not None:
        state.behind.close()
    return state


def finished_reads(files: Sequence[SpoolFile]) -> frozenset[int]:
    """Return the xids of the reads that are finished, but not confirmed, in a queue's journal.

    Args:
        files: the files of the queue, in replay order, all of them sound.
    """
    written = [file for file in files if file.size]
    if not written or not _may_end_within_finish(written[-1]):
        return frozenset()
    return frozenset(replay_noted(files).reserved.unconfirmed)


@dataclass(frozen=True, slots=True)
class FoundDelayed:
    """The delayed items of a queue, by their due times.

    Attributes:
        records: their records; the add time of each is when the item is due.
        places: the file and the position of the note that has the beginning of each.
        in_line: how many other items the queue has, those of open reads among them.
    """

    records: list[bytes]
    places: list[tuple[SpoolFile, int]]
    in_line: int


def delayed_items(files: Sequence[SpoolFile]) -> FoundDelayed:
    """Return the delayed items of a queue. Arguments and errors are as for `replay_noted`."""
    queue = replay_noted(files)
    in_line = queue.items + len(queue.open) - len(queue.reserved.unconfirmed)
    found = sorted(queue.delayed.snapshot()) if queue.delayed is not None else []
    places = _places(files) if found else {}
    records = [record for _, record in found]
    return FoundDelayed(records, [places[key] for key, _ in found], in_line)


def _places(files: Sequence[SpoolFile]) -> dict[int, tuple[SpoolFile, int]]:
    """Return where each delayed item of a queue begins, by its key in `DelayedItems`."""
    places = {}
    for file in files:
        buffer = open_view(file, begin=0).buffer
        walk = Walk(buffer, find_records, last=file.last, forgets=False)
        for batch in walk.batches():
            for start, end in pairwise((*batch.starts, batch.end)):
                if is_delayed(buffer, start, end):
                    key = key_of(decode_delayed(buffer, start, end))
                    if key is not None:
                        places[key] = file, start
    return places


def _may_end_within_finish(file: SpoolFile) -> bool:
    """Whether nothing but records of notes and CONFIRM_REMOVEs follow what looks like a DONE."""
    begin = max(0, file.size - _LOOK)
    buffer = open_view(file, begin=begin).buffer
    at = bytes(buffer[begin:]).rfind(_DONE)
    if at < 0:
        return False
    walk = Walk(buffer, find_records, last=file.last, forgets=False)
    starts = (start for batch in walk.batches(begin + at) for start in batch.starts)
    return all(buffer[start] in {SAVE_XID, CONFIRM_REMOVE} for start in starts)
