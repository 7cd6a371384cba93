"""Replay a journal with the notes in it, as a server does.

What is in a queue depends on notes only where a crash cut the journal short, and where delayed
items join. For everything else `planning` replays without them, which is faster.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kestrelmq.journal.loading import fold
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import NONE_DELAYED, ItemsByXid, Replay
from kestrelmq.journal.walk import WINDOW
from kestrelmq.spark.opening import open_copy, open_view
from kestrelmq.spark.spool import SpoolFile

MEMORY_LIMIT: Final = 8 << 20
"""Most bytes of items in memory, for a queue of any length."""


def replay_noted(
    files: Sequence[SpoolFile], memory_limit: int | None, delayed: ItemsByXid = NONE_DELAYED
) -> Replay:
    """Replay a queue's files with their notes, as a server does; the caller ends it.

    Raises:
        DamagedJournal: a file is damaged.
        JournalError: a file is gone, or shorter than when it was listed.
    """
    by_name = {file.name_in_spool: file for file in files}
    state = Replay(
        memory_limit,
        lambda name, at: JournalReader(
            Path(by_name[name].spool), name, at, open_file=lambda name: open_copy(by_name[name])
        ),
        delayed=delayed,
    )
    names: list[str] = []
    for file in files:
        names.append(file.name_in_spool)
        buffer = open_view(file, begin=0).buffer
        fold(state, buffer, tuple(names), file.path, lambda _at: WINDOW, last=file.last)
    return state
