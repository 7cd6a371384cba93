"""Bringing up one queue of a queue path, and keeping everybody else off it.

Two locks, held by the process and gone with it, however it ends:

- the queue path's, which a server holds alone and the users of single queues share;
- the queue's own, in `NAME~~lock`, which one user holds.
"""

from contextlib import ExitStack
from pathlib import Path

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.engine.durability import Commits
from kestrelmq.engine.queue import Queue
from kestrelmq.errors import ConfigError, InvalidQueueName
from kestrelmq.journal.files import DiskDirectory, FileLock, QueuePathLock, make_queue_path
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.names import QueuePlan, plan
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


def _lock(path: Path, name: str) -> ExitStack:
    """Take one queue of a queue path; return what gives it back when it is closed.

    Raises:
        QueuePathLocked: a server has the path, or somebody else has the queue.
    """
    with ExitStack() as held:
        for lock in (
            QueuePathLock(path, shared=True),
            FileLock(path / f"{name}~~lock", f"queue {name} in {path} is in use already"),
        ):
            lock.acquire()
            held.callback(lock.release)
        return held.pop_all()


def open_queue(
    name: str, path: Path, config: QueueConfig, clock: Clock, commits: Commits
) -> tuple[Queue, ExitStack]:
    """Load a queue from its files; return it and what keeps others off it until it is closed.

    Raises:
        QueuePathLocked: a server has the path, or somebody else has the queue.
        DamagedJournal: a file has bytes that are no record.
        OSError: a file could not be created or read.
    """
    if not config.keep_journal:
        return Queue(name, config, clock, commits), ExitStack()
    make_queue_path(path)
    with _lock(path, name) as held:
        directory = DiskDirectory(path)
        files = plan(directory.names()).queues.get(name, QueuePlan(name))
        loaded = load_queue(directory, files, config.max_memory_size, clock)
        loaded.journal.open()
        queue = Queue(
            name,
            config,
            clock,
            commits,
            journal=loaded.journal,
            state=loaded.state,
            created=loaded.created,
        )
        return queue, held.pop_all()
