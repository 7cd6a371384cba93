"""What a queue leaves behind when it is deleted: nothing, and nothing for a collector to find."""

from pathlib import Path
from typing import Final

import pytest

from kestrelmq.disk.directories import DiskFile
from kestrelmq.journal.delayed_items import DelayedItems
from kestrelmq.journal.replacement import Replacement
from kestrelmq.journal.writer import FileJournal, JournalRemoval, NoJournal
from kestrelmq.queue.backlog import Backlog, ReadBehind
from kestrelmq.queue.changes import Changes
from kestrelmq.queue.leases import Reservations
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.reads import OpenReads
from kestrelmq.upkeep.upkeep import Upkeep
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.turning import alive, no_collector

pytestmark = pytest.mark.compiled

OWNED: Final = (
    FileJournal,
    DiskFile,
    Upkeep,
    Replacement,
    ReadBehind,
    Queue,
    Backlog,
    OpenReads,
    Changes,
    Reservations,
    DelayedItems,
    NoJournal,
    JournalRemoval,
)
"""What belongs to one queue."""


def use(spool: LocalQueues) -> None:
    """Have items in memory and behind, open, delayed and packed ones, and one that expires."""
    for number in range(30):
        spool.add(b"%d" % number + bytes(100), expiry=spool.clock.now() + 1_000_000)
        if number % 2:
            spool.take()
    spool.open_read()
    spool.queue().add(b"late", due=spool.clock.now() + 1000)
    spool.commit()
    spool.collection.sweep()
    spool.collection.tick()


@pytest.mark.parametrize("keep_journal", [False, True])
def test_a_deleted_queue_is_gone(tmp_path: Path, *, keep_journal: bool) -> None:
    """With all that it was made of, and whether or not it had a journal."""
    settings = queue_settings(
        tmp_path, max_memory_size=1000, default_journal_size=500, keep_journal=keep_journal
    )
    spool = LocalQueues(settings)
    with no_collector():
        if keep_journal:
            use(spool)
        else:
            spool.add(b"x")
            spool.open_read()
        assert alive(*OWNED)
        assert spool.collection.delete("jobs")
        spool.advance(1)
        spool.collection.sweep()
        spool.collection.tick()
        assert alive(*OWNED) == []
    spool.close()
