"""Queues that are restarted, killed and lose power, for stateful tests; the clock goes on."""

import tempfile
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Final

from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker

NAME: Final = "jobs"
"""The name of the queue of a model that has one."""


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
        config: the settings of its queues when it is opened next.
        clock: its clock.
        collection: the collection that is open now.
        directory: its queue path, which can be made to fail.
        worker: what runs its long work, a step at a time.
    """

    def __init__(self, root: Path, config: QueueConfig) -> None:
        """Begin on an empty queue path below `root`."""
        self._root = root
        self.config = config
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
            ServerConfig(queue_path=self._path, default=self.config), self.clock, self.directory
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


class QueuesMachine(RuleBasedStateMachine):
    """The rules that all models of queues share.

    A model calls `start` in its first rule, and compares in `compare_at_end` what is left.

    Attributes:
        root: a directory for everything.
        queues: the queues, once they were started.
        broken: whether the disk fails.
    """

    queues: CrashingQueues

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kestrelmq-machine-"))
        self.broken = False

    def start(self, config: QueueConfig) -> None:
        """Start on an empty queue path."""
        self.queues = CrashingQueues(self.root, config)

    def start_again(self, loss: CrashLoss | None = None) -> None:
        """Start after a clean stop, or after a crash that loses so much; the disk works again."""
        if loss is None:
            self.queues.restart()
        else:
            self.queues.crash(loss)
        self.broken = False

    @property
    def clock(self) -> FakeClock:
        """The clock."""
        return self.queues.clock

    @property
    def collection(self) -> QueueCollection:
        """The collection that is open now."""
        return self.queues.collection

    @property
    def directory(self) -> CrashingDirectory:
        """Its queue path."""
        return self.queues.directory

    @property
    def worker(self) -> HeldWorker:
        """What runs its long work."""
        return self.queues.worker

    @property
    def queue(self) -> Queue:
        """The queue, made when it is first asked for."""
        return self.collection.obtain(NAME)

    @property
    def may_fail(self) -> bool:
        """Whether operations may: the disk is broken, or it was, and a failed sync is not cured."""
        if self.broken:
            return True
        journal = self.queue.journal
        return isinstance(journal, FileJournal) and journal.suspect

    def commit(self) -> bool:
        """Commit; False when it failed, which it may only while operations `may_fail`."""
        may_fail = self.may_fail
        failures = self.collection.commits.commit()
        assert not failures or may_fail
        return not failures

    def break_steps(self, beginning: str, *, tears: bool) -> None:
        """From now on, steps that begin so fail; appends perhaps with half of it written."""
        self.directory.break_steps(beginning)
        self.directory.tears = tears
        self.broken = True

    def mend(self) -> None:
        """Let the disk work again."""
        self.directory.mend()
        self.broken = False

    @precondition(lambda self: bool(self.worker))
    @rule()
    def work(self) -> None:
        """Let the worker do one job."""
        self.worker.step()

    def compare_at_end(self) -> None:
        """Stop, and compare what is left with the model."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Compare, unless nothing was started, and remove everything."""
        if hasattr(self, "queues"):
            self.compare_at_end()
        rmtree(self.root)
