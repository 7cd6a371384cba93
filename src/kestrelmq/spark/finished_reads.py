"""Reads that a journal says are finished although it ends before the records that confirm them.

The note DONE finishes the reads of a tag by itself, and CONFIRM_REMOVEs follow it in the same
write; see `journal.reservations`. A crash may cut these off, or some of them. Only then do notes
matter for what is in a queue. So this looks whether a journal ends with such a note, and only then
replays it with its notes.
"""

from collections.abc import Sequence
from typing import Final

from kestrelmq.journal.notes import NOTE_MARK
from kestrelmq.journal.records import CONFIRM_REMOVE, SAVE_XID
from kestrelmq.journal.reservations import DONE
from kestrelmq.journal.walk import Walk, find_records
from kestrelmq.spark.noted_replay import MEMORY_LIMIT, replay_noted
from kestrelmq.spark.opening import open_view
from kestrelmq.spark.spool import SpoolFile

_DONE: Final = bytes((SAVE_XID,)) + NOTE_MARK + bytes((SAVE_XID, DONE))
"""How the records of such a note begin."""
_LOOK: Final = 64 << 10
"""Bytes at the end of a journal in which such a note must be: a tag has at most 1,000 reads."""


def finished_reads(files: Sequence[SpoolFile]) -> frozenset[int]:
    """Return the xids of the reads that are finished, but not confirmed, in a queue's journal.

    Args:
        files: the files of the queue, in replay order, all of them sound.
    """
    written = [file for file in files if file.size]
    if not written or not _may_end_within_finish(written[-1]):
        return frozenset()
    state = replay_noted(files, MEMORY_LIMIT)
    if state.behind is not None:
        state.behind.close()
    return frozenset(state.reserved.unconfirmed)


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
