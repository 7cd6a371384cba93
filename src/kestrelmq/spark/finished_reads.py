"""Reads that a journal says are finished although it ends before the records that confirm them.

The note DONE finishes the reads of a tag by itself, and CONFIRM_REMOVEs follow it in the same
write; see `journal.reservations`. A crash may cut these off, or some of them. Only then do notes
matter for what is in a queue. So this looks at the end of a journal, and replays the journal with
its notes only if it ends like this.
"""

from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Final

from kestrelmq.journal.notes import NOTE_MARK, NoteReader
from kestrelmq.journal.records import CONFIRM_REMOVE, SAVE_XID
from kestrelmq.journal.reservations import DONE
from kestrelmq.journal.selection import select
from kestrelmq.journal.walk import WINDOW, Walk, find_records
from kestrelmq.spark.scanning import FileView, open_view
from kestrelmq.spark.spool import SpoolFile

_SAVE_XID: Final = Struct("<Bi")
_U32: Final = Struct("<I")
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
    if not written or not _ends_within_finish(written[-1]):
        return frozenset()
    (selected,) = (
        one for one in select([Path(files[0].spool)], [files[0].queue]) if not one.is_delayed
    )
    state = selected.new_replay()
    for place, file in enumerate(files):
        buffer = open_view(file.path, file.size, file.inode).buffer
        names = [Path(one.path).name for one in files[: place + 1]]
        walk = Walk(buffer, find_records, last=file.last, step=lambda _at: WINDOW)
        for batch in walk.batches(0):
            state.feed_batch(buffer, batch, names)
    if state.behind is not None:
        state.behind.close()
    return frozenset(state.reserved.unconfirmed)


def _ends_within_finish(file: SpoolFile) -> bool:
    """Whether fewer CONFIRM_REMOVEs than reads follow the last DONE note, and nothing else."""
    view = open_view(file.path, file.size, file.inode)
    tail = bytes(view.buffer[max(0, file.size - _LOOK) :])
    at = tail.rfind(_DONE)
    if at < 0:
        return False
    end = len(tail) - (file.size - _whole_end(view, last=file.last))
    notes = NoteReader()
    found = None
    while at + _SAVE_XID.size <= end and found is None:
        opcode, word = _SAVE_XID.unpack_from(tail, at)
        if opcode != SAVE_XID:
            return False
        found = notes.feed(word)
        at += _SAVE_XID.size
    if found is None or found.kind != DONE or len(found.payload) < _U32.size:
        return False
    at += _SAVE_XID.size  # the last-used xid ends the note
    confirmed = tail[at : end : _SAVE_XID.size]
    (reads,) = _U32.unpack_from(found.payload)
    return len(confirmed) < reads and not confirmed.strip(bytes((CONFIRM_REMOVE,)))


def _whole_end(view: FileView, *, last: bool) -> int:
    """Return where the last whole record of a file ends."""
    for _ in view.chunks(tail_may_be_torn=last):
        pass
    return view.size if view.torn_at is None else view.torn_at
