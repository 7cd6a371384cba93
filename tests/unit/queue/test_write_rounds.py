"""Large items are written in rounds: what else becomes of their queue meanwhile, and of others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import Item, item_data
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.worker import LARGE_ITEM
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled

LARGE: Final = b"x" * LARGE_ITEM


class Spool(LocalQueues):
    """Queues whose large items are written step by step.

    Attributes:
        disk: where they are.
        writer: writes the large items.
    """

    def __init__(self, path: Path, **settings: object) -> None:
        self.disk = CrashingDirectory.within(path)
        self.writer = HeldWorker()
        config = ServerConfig(
            queue_path=self.disk.path, default=QueueConfig.model_validate(settings)
        )
        super().__init__(config, self.disk)

    def open(self) -> None:
        """Load the queues."""
        super().open()
        self.writer = HeldWorker()
        self.collection.commits.writer = self.writer


@pytest.fixture(name="spool")
def local_queues(tmp_path: Path) -> Iterator[Spool]:
    """Empty queues."""
    spool = Spool(tmp_path)
    yield spool
    spool.close()


def size(spool: Spool, name: str) -> int:
    """Return how many bytes the journal of a queue has on disk."""
    return (spool.disk.path / name).stat().st_size


def test_other_queues_are_written_meanwhile(spool: Spool) -> None:
    """Those of the same queue are written behind, at once when the round has ended."""
    spool.add(LARGE)
    spool.add(b"small", name="other")
    spool.add(b"behind")
    assert (size(spool, "jobs"), size(spool, "other")) == (0, 21 + len(b"small"))
    assert (spool.queue().core.is_writing, spool.queue("other").core.is_writing) == (
        True,
        False,
    )
    assert spool.items() == [LARGE, b"behind"]
    assert spool.writer.step()
    assert size(spool, "jobs") == 2 * 21 + len(LARGE) + len(b"behind")
    assert not spool.queue().core.is_writing
    spool.kill()
    assert spool.items() == [LARGE, b"behind"]


def test_a_failure_takes_back_what_is_behind_it(spool: Spool) -> None:
    """It is all that depends on it which fails; the queue goes on when the disk does."""
    spool.add(b"first")
    assert spool.queue().add(LARGE, mark=PutMark(b"p", 1))
    spool.commit()
    spool.add(b"behind")
    assert spool.take() == b"first"
    rounds = list(spool.collection.commits.take_rounds().values())
    spool.disk.fail = lambda point: point == "append to jobs"
    assert spool.writer.step()
    assert [str(one.failures[spool.queue()]) for one in rounds] == [
        "queue jobs: [Errno 28] No space left on device: 'append to jobs'"
    ]
    assert list(spool.collection.commits.commit()) == [spool.queue()]
    spool.disk.mend()
    assert spool.items() == [b"first"]
    assert spool.queue().add(b"again", mark=PutMark(b"p", 1))
    spool.commit()
    assert spool.items() == [b"first", b"again"]


def test_children_are_written_before_their_master(spool: Spool) -> None:
    """Also if only they have something large to write."""
    child = spool.queue("jobs+audit")
    spool.queue()
    child.add(LARGE)
    spool.commit()
    spool.add(b"both")
    assert (size(spool, "jobs+audit"), size(spool, "jobs")) == (0, 0)
    assert spool.writer.step()
    assert size(spool, "jobs+audit") > len(LARGE)
    assert size(spool, "jobs") == 21 + len(b"both")
    spool.add(LARGE)
    assert (child.core.is_writing, spool.queue().core.is_writing) == (True, True)
    assert spool.writer.step()
    assert (child.core.is_writing, spool.queue().core.is_writing) == (False, True)
    assert spool.writer.step()
    spool.kill()
    assert (spool.items("jobs+audit"), spool.items()) == ([LARGE, b"both", LARGE], [b"both", LARGE])


def test_replies_wait_for_the_sync_that_follows(tmp_path: Path) -> None:
    """Where the settings ask for one; to what is behind it, for that of what is behind it."""
    spool = Spool(tmp_path, sync_journal=0)
    spool.add(LARGE)
    (first,) = spool.collection.commits.take_rounds().values()
    spool.add(b"behind")
    (second,) = spool.collection.commits.take_rounds().values()
    assert spool.writer.step()
    assert (first.has_ended, first.is_over, second.has_ended, second.is_over) == (
        True, False, True, False,
    )  # fmt: skip
    sync = spool.collection.commits.syncs.begin()
    assert sync is not None
    sync.run()
    spool.collection.commits.syncs.end()
    assert (first.is_over, second.is_over) == (True, True)
    spool.close()


def test_a_flush_waits(spool: Spool) -> None:
    """And drops what is written by then."""
    spool.add(LARGE)
    steps = spool.queue().flushing()
    assert next(steps, "over") is None
    assert spool.items() == [LARGE]
    assert spool.writer.step()
    assert next(steps, "over") == "over"
    spool.kill()
    assert spool.items() == []


def test_a_read_whose_time_is_up_is_given_back_afterwards(spool: Spool) -> None:
    """Nothing can be written before."""
    spool.add(b"first")
    open_read(spool.queue(), 1)
    spool.commit()
    spool.add(LARGE)
    spool.advance(2)
    assert spool.items() == [LARGE]
    assert spool.writer.step()
    spool.advance(2)
    assert spool.items() == [b"first", LARGE]


@pytest.mark.parametrize("waits", [False, True])
def test_an_item_that_is_on_disk_only_is_read_when_it_is_written(
    tmp_path: Path, *, waits: bool
) -> None:
    """Until then there is none; a reader that waits gets it."""
    spool = Spool(tmp_path, max_memory_size=1)
    spool.add(b"first", LARGE)
    assert spool.take() == b"first"
    assert (spool.take(), spool.queue().line.settle()) == (None, False)
    got: list[Item | None] = []
    if waits:
        spool.queue().waiters.add(
            Waiter(ReadMode.REMOVE, lambda one, _: got.append(one), _unexpected)
        )
    assert spool.writer.step()
    spool.commit()
    if waits:
        assert [item_data(one) for one in got if one is not None] == [LARGE]
    else:
        assert spool.take() == LARGE
    spool.close()


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_a_queue_that_is_deleted_meanwhile(spool: Spool) -> None:
    """Nothing of it is left, and a new one of its name goes on."""
    spool.add(LARGE)
    spool.collection.delete("jobs")
    spool.add(b"new")
    assert spool.writer.step()
    spool.commit()
    spool.kill()
    assert spool.items() == [b"new"]


def test_a_stop_waits(spool: Spool) -> None:
    """For the round, and for what is behind it."""
    spool.add(LARGE)
    spool.add(LARGE, b"behind")
    spool.restart()
    assert spool.items() == [LARGE, LARGE, b"behind"]


def test_nothing_else_is_written_meanwhile(spool: Spool) -> None:
    """Whoever must do so at once is refused."""
    spool.add(LARGE)
    with pytest.raises(JournalError, match="a large item is being written"):
        spool.queue().confirm_held((1,))
    assert not spool.queue().journal.rotations
    spool.collection.tick()
    assert size(spool, "jobs") == 0
