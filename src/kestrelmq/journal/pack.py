"""Packing the journal of a queue that no server has: one file with what is live, in any dialect.

The files are replaced as a server does it (see `replacement`), and so a crash leaves the queue as
it was or packed. A torn tail is set aside first, as at a server's start.
"""

from dataclasses import dataclass

from kestrelmq.clock import Clock
from kestrelmq.journal.files import Directory
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.names import QueuePlan
from kestrelmq.journal.replacement import FromFiles, Replacement
from kestrelmq.journal.writer import Dialect

_MEMORY = 8 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """What packing did to a queue; sizes in bytes."""

    queue: str
    items: int
    open_reads: int
    before: int
    after: int


def pack(directory: Directory, plan: QueuePlan, dialect: Dialect, clock: Clock) -> Packed:
    """Pack the journal of one queue. Nobody else may use it.

    Raises:
        DamagedJournal: it must be repaired first; nothing was changed.
        OSError: a file could not be read or written; the queue is as it was, or packed.
    """
    loaded = load_queue(directory, plan, _MEMORY, clock)
    state, journal = loaded.state, loaded.journal
    if state.behind is not None:
        state.behind.close()
    journal.open()
    before = journal.size
    try:
        journal.rotate(clock.now())
        files = list(journal.sizes)
        source = FromFiles(directory, files, dialect)
        replacement = Replacement(directory, plan.queue, files, source)
        replacement.place(_no_pause)
        replacement.clear(_no_pause)
    finally:
        journal.close()
    # The current file is empty: the packed one may take its place.
    directory.rename(replacement.name, plan.queue)
    directory.reached("pack: made the current file")
    directory.sync()
    return Packed(plan.queue, state.items, len(state.open), before, replacement.size)


def _no_pause() -> None:
    """Nobody waits."""
