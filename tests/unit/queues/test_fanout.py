"""Items that go to several queues: a master and its children, or those of an alias."""

from pathlib import Path

import pytest

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.writer import FileJournal
from tests.support.local_queues import LocalQueues

pytestmark = pytest.mark.compiled

NAMES = ("jobs", "jobs+a", "jobs+b", "jobs+c")


class Spool(LocalQueues):
    """A master with three children, to which the items of the queue `other` expire."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            ServerConfig(
                queue_path=path,
                default=QueueConfig(sync_journal=0),
                queues={"other": QueueConfig(expire_to_queue="jobs")},
                aliases={"all": AliasConfig(destination_queues=("jobs+b", "jobs+c"))},
            )
        )
        for name in NAMES:
            self.queue(name)

    def let_sync_fail(self, name: str) -> FileJournal:
        """Let nothing be added to a queue; return its journal."""
        queue = self.queue(name)
        journal = queue.journal
        assert isinstance(journal, FileJournal)
        journal.suspect = True
        queue.failed(OSError(5, "Input/output error"))
        return journal

    def waiting(self) -> list[int]:
        """Return how many items wait in the master and in each child."""
        return [len(self.queue(name)) for name in NAMES]


@pytest.mark.parametrize(
    ("expires", "delay", "mark"),
    [(0, 0, None), (60, 0, None), (0, 1, None), (0, 0, PutMark(b"p", 1)), (0, 1, PutMark(b"p", 1))],
)
def test_a_child_that_cannot_be_written_does_not_stop_the_others(
    tmp_path: Path, expires: int, delay: int, mark: PutMark | None
) -> None:
    """The client has an error, as after a failed write, and all others have the item."""
    spool = Spool(tmp_path)
    spool.let_sync_fail("jobs+b")
    now = spool.clock.now()
    with pytest.raises(JournalError, match=r"queue jobs\+b: an earlier sync failed"):
        spool.collection.add(
            "jobs",
            b"a",
            expiry=now + expires * 1000 if expires else 0,
            due=now + delay * 1000 if delay else 0,
            mark=mark,
        )
    spool.commit()
    spool.advance(delay)
    spool.advance(delay)
    assert spool.waiting() == [1, 1, 0, 1]
    spool.close()


def test_a_destination_that_cannot_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    """The client has an error, and the others have the item."""
    spool = Spool(tmp_path)
    spool.let_sync_fail("jobs+b")
    with pytest.raises(JournalError, match=r"queue jobs\+b: an earlier sync failed"):
        spool.collection.add("all", b"a")
    spool.commit()
    assert spool.waiting() == [0, 0, 0, 1]
    spool.close()


def test_an_item_is_not_moved_until_all_can_be_written(tmp_path: Path) -> None:
    """It would come to the others again with each try."""
    spool = Spool(tmp_path)
    journal = spool.let_sync_fail("jobs+b")
    spool.add(b"a", name="other", expiry=spool.clock.now() + 1000)
    spool.clock.advance(1)
    for _ in range(2):
        spool.collection.sweep()
        spool.commit()
    assert spool.waiting() == [0, 0, 0, 0]
    assert spool.queue("other").reads.items_aside == 1
    spool.collection.tick()
    assert not journal.suspect
    spool.collection.sweep()
    spool.commit()
    assert spool.waiting() == [1, 1, 1, 1]
    spool.close()
