"""Queues that are restarted, killed and lose power, for stateful tests; the clock goes on."""

from itertools import count
from pathlib import Path

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.testing.clock import FakeClock
from kestrelmq.testing.crashing import CrashingDirectory, CrashLoss
from kestrelmq.testing.worker import HeldWorker


def short_journals(memory: int, size: int, dialect: str, **others: object) -> QueueConfig:
    """Return settings with which journals are rewritten and packed all the time.

    Args:
        memory: bytes that memory holds.
        size: bytes of journal from which on it is rewritten.
        dialect: the dialect of the journals.
        others: other settings.
    """
    return QueueConfig.model_validate(
        {
            "max_memory_size": memory,
            "default_journal_size": size,
            "max_journal_size": 4 * size,
            "min_journal_compact_delay": 0,
            "journal_dialect": dialect,
            **others,
        }
    )


class CrashingQueues:
    """A collection on a queue path, and what it has after each restart or crash.

    Attributes:
        clock: its clock.
        collection: the collection that is open now.
        directory: its queue path, which can be made to fail.
        worker: what runs its long work, a step at a time.
    """

    def __init__(self, root: Path, config: QueueConfig) -> None:
        """Begin on an empty queue path below `root`."""
        self._root = root
        self._config = config
        self._generation = 0
        self._starts = count(1)
        self.clock = FakeClock()
        self._path.mkdir()
        self._open()

    @property
    def _path(self) -> Path:
        return self._root / str(self._generation)

    def _open(self) -> None:
        links = self._root / f"links{next(self._starts)}"
        links.mkdir()
        self.directory = CrashingDirectory(self._path, links)
        self.collection = QueueCollection(
            ServerConfig(queue_path=self._path, default=self._config), self.clock, self.directory
        )
        self.worker = HeldWorker()
        self.collection.commits.worker = self.worker
        self.collection.open()
        assert not self.collection.damaged

    def restart(self) -> None:
        """Close the collection, and open another one."""
        self.collection.close()
        self._open()

    def crash(self, loss: CrashLoss) -> None:
        """Let what the crash leaves be a new queue path, and open a collection there."""
        self._generation += 1
        self.directory.survive(loss, self._path)
        self.collection._lock.release()
        self.directory.abandon()
        self._open()
