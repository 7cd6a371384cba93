"""Bringing up one queue of a queue path, and keeping everybody else off it.

Two locks, held by the process and gone with it, however it ends:

- the queue path's, which a server holds alone and the users of single queues share;
- the queue's own, in `NAME~~lock`, which one user holds.
"""

import fcntl
import os
from pathlib import Path

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.durability import Commits
from kestrelmq.engine.queue import Queue
from kestrelmq.errors import ConfigError, InvalidQueueName, QueuePathLocked
from kestrelmq.journal.creation import created_at
from kestrelmq.journal.files import DiskDirectory
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.names import LOCK_NAME, QueuePlan, plan
from kestrelmq.journal.regular import make_queue_path, open_regular
from kestrelmq.names import queue_name_error


def check_queue(name: str, config: QueueConfig) -> None:
    """Refuse what cannot be one queue on its own.

    Raises:
        InvalidQueueName: no queue can have that name.
        ConfigError: the settings need other queues.
    """
    problem = queue_name_error(name)
    if problem is not None:
        raise InvalidQueueName(problem)
    for setting in ("expire_to_queue", "fanout_only"):
        if getattr(config, setting):
            raise ConfigError(f"queue {name}: {setting} needs other queues: use a QueueCollection")


class QueueLock:
    """Holds one queue of a queue path."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Take the queue.

        Raises:
            QueuePathLocked: a server has the path, or somebody else has the queue.
        """
        try:
            self._take(LOCK_NAME, fcntl.LOCK_SH, f"queue path {self._path} is in use by a server")
            self._take(
                f"{self._name}~~lock",
                fcntl.LOCK_EX,
                f"queue {self._name} in {self._path} is in use already",
            )
        except BaseException:
            self.release()
            raise

    def _take(self, file: str, how: int, problem: str) -> None:
        descriptor = open_regular(self._path / file, os.O_RDWR | os.O_CREAT)
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise QueuePathLocked(f"{problem} (process {holder})" if holder else problem) from None
        os.ftruncate(descriptor, 0)
        if how == fcntl.LOCK_EX:
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the queue back."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def open_queue(
    name: str, path: Path, config: QueueConfig, clock: Clock, commits: Commits
) -> tuple[Queue, QueueLock | None]:
    """Load a queue from its files; return it and what keeps others off it.

    Raises:
        QueuePathLocked: a server has the path, or somebody else has the queue.
        DamagedJournal: a file has bytes that are no record.
        OSError: a file could not be created or read.
    """
    if not config.keep_journal:
        return Queue(name, config, clock, commits), None
    make_queue_path(path)
    lock = QueueLock(path, name)
    lock.acquire()
    try:
        directory = DiskDirectory(path)
        files = plan(directory.names()).queues.get(name, QueuePlan(name))
        created = created_at(path, files.present, clock.now())
        loaded = load_queue(directory, files, config.max_memory_size, clock)
        loaded.journal.open()
    except BaseException:
        lock.release()
        raise
    queue = Queue(
        name,
        config,
        clock,
        commits,
        journal=loaded.journal,
        state=loaded.state,
        created=created,
    )
    return queue, lock
