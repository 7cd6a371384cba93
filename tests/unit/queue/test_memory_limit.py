"""A lowered `max_memory_size`: memory holds less, and nothing is lost or served out of order."""

from pathlib import Path

import pytest

from kestrelmq.upkeep import upkeep
from tests.support.held_worker import HeldWorker, LateWorker
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled


class Spool(LocalQueues):
    """A queue `jobs` whose `max_memory_size` changes, and whose items are numbers of 10 bytes."""

    def __init__(self, path: Path, worker: HeldWorker | None = None) -> None:
        super().__init__(queue_settings(path, max_memory_size=10_000), worker=worker)
        self.number = 0

    def grow(self, count: int) -> None:
        """Add so many items."""
        self.add(*(b"%010d" % (self.number + more) for more in range(count)))
        self.number += count

    def shrink(self, count: int) -> list[int]:
        """Remove so many items; return their numbers."""
        return [int(self.take() or b"-1") for _ in range(count)]

    def lower(self, memory: int) -> None:
        """Put a limit in force."""
        assert self.reload(queue_settings(self.config.queue_path, max_memory_size=memory)) == []

    def held(self) -> tuple[int, int, bool]:
        """Return items and bytes in memory, and whether there are others."""
        queue = self.queue()
        return queue.backlog.memory_items, queue.backlog.memory_bytes, queue.backlog.read_behind


def test_memory_holds_less_at_once(tmp_path: Path) -> None:
    """Of a queue wholly in memory, and of one that is read from its journal already."""
    spool = Spool(tmp_path)
    spool.grow(50)
    assert spool.shrink(10) == list(range(10))
    opened = open_read(spool.queue())
    assert opened is not None
    spool.commit()
    spool.lower(200)
    assert spool.held() == (20, 200, True)
    assert (len(spool.queue()), spool.queue().backlog.size) == (39, 390)
    spool.grow(10)
    spool.lower(55)
    assert spool.held() == (5, 50, True)
    assert spool.queue().returns.give_back([opened[0]])
    spool.commit()
    assert spool.shrink(50) == list(range(10, 60))
    assert spool.queue().line.remove() is None
    spool.close()


def test_one_item_is_held_always(tmp_path: Path) -> None:
    """Though it alone is larger than the limit."""
    spool = Spool(tmp_path)
    spool.grow(3)
    spool.lower(1)
    assert spool.held() == (1, 10, True)
    assert spool.shrink(3) == [0, 1, 2]
    spool.close()


@pytest.mark.parametrize("taken", [0, 3, 15])
@pytest.mark.parametrize("added", [0, 4, 40])
def test_the_queue_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, added: int
) -> None:
    """Items are added, taken and given back while the journal is looked through."""
    monkeypatch.setattr(upkeep, "INLINE_TRIM_LIMIT", 0)
    worker = HeldWorker()
    spool = Spool(tmp_path, worker)
    spool.grow(20)
    reads = [open_read(spool.queue()) for _ in range(2)]
    spool.commit()
    spool.lower(50)
    assert spool.queue().backlog.memory_bytes == 180
    numbers = spool.shrink(taken)
    spool.grow(added)
    given_back = [read[0] for read in reads if read is not None]
    assert spool.queue().returns.give_back(given_back) == 2
    spool.commit()
    while worker.step():
        spool.commit()
    assert spool.queue().backlog.memory_bytes <= 50
    left = len(spool.queue())
    assert left == 20 + added - taken
    numbers += spool.shrink(left)
    assert sorted(numbers) == list(range(20 + added))
    assert numbers[taken:] == [0, 1, *range(2 + taken, 20 + added)]
    spool.close()


def test_a_journal_of_which_much_is_not_synced_is_synced_first(tmp_path: Path) -> None:
    """By the worker; memory holds less once that, and the rest, is done."""
    worker = HeldWorker()
    spool = Spool(tmp_path, worker)
    spool.lower(1_000_000)
    spool.grow(10_000)
    spool.lower(200)
    assert spool.queue().journal.rotations == 0
    assert spool.held() == (10_000, 100_000, False)
    while worker.step():
        spool.collection.tick()
    assert spool.held() == (20, 200, True)
    assert spool.shrink(10_000) == list(range(10_000))
    spool.close()


@pytest.mark.parametrize("again", [0, 3, 20])
def test_reads_that_come_and_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Nobody knows where their items stand in the new file; a minute later all of it is done."""
    monkeypatch.setattr(upkeep, "INLINE_TRIM_LIMIT", 0)
    worker = HeldWorker()
    spool = Spool(tmp_path, worker)
    spool.grow(20)
    spool.lower(50)
    reads = [spool.open_read() for _ in range(20)]
    spool.grow(5)
    assert spool.queue().returns.give_back(reads) == 20
    spool.commit()
    for xid in reversed([spool.open_read() for _ in range(again)]):
        assert spool.queue().returns.give_back([xid])
        spool.commit()
    assert spool.held() == (25, 250, False)
    while worker.step():
        spool.commit()
    if again:
        assert spool.held() == (25, 250, False)
    spool.clock.advance(60)
    spool.collection.tick()
    while worker.step():
        spool.commit()
    assert spool.held() == (5, 50, True)
    assert spool.shrink(25) == list(range(25))
    spool.close()


@pytest.mark.parametrize("size", [None, 100])
def test_a_new_file_that_cannot_be_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    size: int | None,
) -> None:
    """Another program removed it, or cut it: memory holds what it held, and it is tried again."""
    monkeypatch.setattr(upkeep, "INLINE_TRIM_LIMIT", 0)
    worker = LateWorker()
    spool = Spool(tmp_path, worker)
    spool.grow(20)
    spool.lower(50)
    (pack,) = tmp_path.glob("*.pack")
    whole = pack.read_bytes()
    pack.unlink() if size is None else pack.write_bytes(whole[:size])
    assert worker.step()
    renamed = pack.with_suffix("")
    (renamed if renamed.exists() else pack).write_bytes(whole)
    assert spool.held() == (20, 200, False)
    assert any(
        "queue jobs holds more than max_memory_size in memory" in text for text in caplog.messages
    )
    for _ in range(4):
        while worker.step():
            pass
        spool.clock.advance(60)
        spool.collection.tick()
    assert spool.held() == (5, 50, True)
    assert spool.shrink(20) == list(range(20))
    spool.close()
