"""A lowered `max_memory_size`: memory holds less, and nothing is lost or served out of order."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine import upkeep
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.journal.records import item_data
from kestrelmq.testing.clock import FakeClock
from kestrelmq.testing.worker import HeldWorker

pytestmark = pytest.mark.compiled


class Spool:
    """A queue whose `max_memory_size` changes."""

    def __init__(self, path: Path, *, held: bool = False) -> None:
        self.path = path
        self.clock = FakeClock()
        self.collection = QueueCollection(self.settings(10_000), self.clock)
        self.worker = HeldWorker()
        if held:
            self.collection.commits.worker = self.worker
        self.collection.open()
        self.number = 0

    def settings(self, memory: int) -> ServerConfig:
        """Return what the configuration file says."""
        return ServerConfig(queue_path=self.path, default=QueueConfig(max_memory_size=memory))

    @property
    def queue(self) -> Queue:
        """The queue."""
        return self.collection.obtain("jobs")

    def add(self, count: int) -> None:
        """Add items of 10 bytes."""
        for _ in range(count):
            assert self.queue.add(b"%010d" % self.number)
            self.number += 1
        self.commit()

    def take(self) -> int:
        """Remove the head; return its number."""
        record = self.queue.remove()
        assert record is not None
        self.commit()
        return int(item_data(record))

    def commit(self) -> None:
        """Commit, which must succeed."""
        assert not self.collection.commits.commit()

    def lower(self, memory: int) -> None:
        """Put a limit in force."""
        assert self.collection.reload(self.settings(memory)) == []

    def held(self) -> tuple[int, int, bool]:
        """Return items and bytes in memory, and whether there are others."""
        queue = self.queue
        return queue.memory_items, queue.memory_bytes, queue.read_behind


def test_memory_holds_less_at_once(tmp_path: Path) -> None:
    """Of a queue wholly in memory, and of one that is read from its journal already."""
    spool = Spool(tmp_path)
    spool.add(50)
    assert [spool.take() for _ in range(10)] == list(range(10))
    opened = spool.queue.open_read()
    assert opened is not None
    spool.commit()
    spool.lower(200)
    assert spool.held() == (20, 200, True)
    assert (len(spool.queue), spool.queue.size) == (39, 390)
    spool.add(10)
    spool.lower(55)
    assert spool.held() == (5, 50, True)
    assert spool.queue.unremove(opened[0])
    spool.commit()
    assert [spool.take() for _ in range(50)] == list(range(10, 60))
    assert spool.queue.remove() is None
    spool.collection.close()


def test_one_item_is_held_always(tmp_path: Path) -> None:
    """Though it alone is larger than the limit."""
    spool = Spool(tmp_path)
    spool.add(3)
    spool.lower(1)
    assert spool.held() == (1, 10, True)
    assert [spool.take() for _ in range(3)] == [0, 1, 2]
    spool.collection.close()


@pytest.mark.parametrize("taken", [0, 3, 15])
@pytest.mark.parametrize("added", [0, 4, 40])
def test_the_queue_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, added: int
) -> None:
    """Items are added, taken and given back while the journal is looked through."""
    monkeypatch.setattr(upkeep, "AT_ONCE", 0)
    spool = Spool(tmp_path, held=True)
    spool.add(20)
    reads = [spool.queue.open_read() for _ in range(2)]
    spool.commit()
    spool.lower(50)
    assert spool.queue.memory_bytes == 180
    numbers = [spool.take() for _ in range(taken)]
    spool.add(added)
    given_back = [read[0] for read in reads if read is not None]
    assert spool.queue.give_back(given_back) == 2
    spool.commit()
    while spool.worker.step():
        spool.commit()
    assert spool.queue.memory_bytes <= 50
    left = len(spool.queue)
    assert left == 20 + added - taken
    numbers += [spool.take() for _ in range(left)]
    assert sorted(numbers) == list(range(20 + added))
    assert numbers[taken:] == [0, 1, *range(2 + taken, 20 + added)]
    spool.collection.close()
