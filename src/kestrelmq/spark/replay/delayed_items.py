"""The delayed items of queues, as a server would load them: those that have not joined their queue.

They are in journals of their own, whose names say whose they are; see "Delayed items" in
`docs/journal.md`. The queue's own journal says which of them have joined it. An item joins by a
record there first, and leaves the other journal afterwards. So that one is listed first: what is in
both listings has joined, and no item is in neither.
"""

from dataclasses import dataclass

from kestrelmq.format.names import master_of_delayed
from kestrelmq.format.records import item_add_time
from kestrelmq.journal.loading import open_all
from kestrelmq.journal.replay import Replay, opened_xid
from kestrelmq.spark.replay.noted_replay import MEMORY_LIMIT, replay_noted
from kestrelmq.spark.replay.segments import ReplayState
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.spool import SpoolFile, by_queue, list_files


@dataclass(frozen=True, slots=True)
class DelayedJournal:
    """The files of the delayed items of a queue, and those of the queue; both in replay order."""

    files: tuple[SpoolFile, ...]
    master: tuple[SpoolFile, ...]

    @property
    def queue(self) -> str:
        """The queue's name."""
        return master_of_delayed(self.files[0].queue) or ""

    @property
    def spool(self) -> str:
        """The queue path."""
        return self.files[0].spool

    @property
    def cost(self) -> int:
        """The cost of reading it, in bytes."""
        return sum(file.cost for file in (*self.files, *self.master))


def list_with_delayed(
    pattern: JournalPath, *, delayed: bool = True
) -> tuple[list[SpoolFile], list[DelayedJournal]]:
    """Return the files that `pattern` means, as `list_files`, and if asked those of delayed items.

    Raises:
        FileNotFoundError: nothing matches.
        ConfigError: `pattern` is a URI of something else.
    """
    if not delayed:
        return list_files(pattern), []
    companions = [
        files
        for files in by_queue(list_files(pattern, delayed=True))
        if master_of_delayed(files[0].queue) is not None
    ]
    own = list_files(pattern)
    masters = {(files[0].spool, files[0].queue): tuple(files) for files in by_queue(own)}
    found = []
    for files in companions:
        master = master_of_delayed(files[0].queue) or ""
        found.append(DelayedJournal(tuple(files), masters.get((files[0].spool, master), ())))
    return own, found


def delayed_items(journal: DelayedJournal) -> tuple[list[bytes], int]:
    """Return the delayed items by their due times, as records, and how many items are in line.

    The add time of a record is when the item is due.

    Raises:
        DamagedJournal: a file is damaged.
        JournalError: a file is gone, or shorter than when it was listed.
    """
    held = replay_noted(journal.files, None)
    open_all(held)
    queue = _joined(journal, held)
    waiting = [read.record for xid, read in held.open.items() if xid not in queue.joined]
    in_line = queue.items + len(queue.open) - len(queue.reserved.unconfirmed)
    return sorted(waiting, key=item_add_time), in_line


def joined_ordinals(journal: DelayedJournal, end: ReplayState) -> list[int]:
    """Return which of the items that the journal of delayed items holds have joined their queue.

    Args:
        journal: the journal.
        end: what it holds, in ordinals.

    Raises:
        DamagedJournal: a file is damaged.
        JournalError: a file is gone, or shorter than when it was listed.
    """
    held = replay_noted(journal.files, None)
    ordinals = dict(end.open)
    last = held.last_xid
    # As `open_all` does it.
    for ordinal in (*end.head, *range(end.first, end.adds)):
        kept = end.named.get(ordinal)
        xid = opened_xid(kept, last, ordinals)
        if xid != kept:
            last = xid
        ordinals[xid] = ordinal
    open_all(held)
    return [ordinals[xid] for xid in sorted(_joined(journal, held).joined)]


def _joined(journal: DelayedJournal, held: Replay) -> Replay:
    """Return the queue, which says which of the items that are held have joined it."""
    return replay_noted(journal.master, MEMORY_LIMIT, held.open)
