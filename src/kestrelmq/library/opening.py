"""Open a single queue of a queue path, and lock it against other users.

There are two locks. They are released when the queue is closed or forgotten, or the process ends:

- the lock of the queue path, which a server holds exclusively and users of single queues share;
- the lock of the queue, `NAME~~lock`, which one user holds exclusively.
"""

from contextlib import ExitStack
from pathlib import Path

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.locks import FileLock, QueuePathLock
from kestrelmq.disk.renaming import make_queue_path
from kestrelmq.errors import ConfigError, InvalidQueueName
from kestrelmq.format.names import QueueFiles, group_files
from kestrelmq.journal.loading import load_queue
from kestrelmq.names import queue_name_error
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.durability import GroupCommit


def given_name(name: object) -> str:
    """Return the name of a queue that a caller gives. Raises InvalidQueueName: it is not text."""
    if not isinstance(name, str):
        raise InvalidQueueName(f"a queue name is text, not {type(name).__name__}")
    return name


def check_settings(config: object) -> None:
    """Raise ConfigError: a queue does not have these settings."""
    if not isinstance(config, QueueConfig):
        raise ConfigError(f"the settings of a queue are a QueueConfig, not {config!r}")


def check_queue(name: str, config: QueueConfig) -> None:
    """Check that a queue with this name and these settings can be used without others.

    Raises:
        InvalidQueueName: the name is not valid.
        ConfigError: the settings need other queues.
    """
    problem = queue_name_error(given_name(name))
    if problem is not None:
        raise InvalidQueueName(problem)
    check_settings(config)
    for setting in ("expire_to_queue", "dead_letter_queue", "max_deliveries", "fanout_only"):
        if getattr(config, setting):
            raise ConfigError(f"queue {name}: {setting} needs other queues: use a QueueCollection")


def _lock(path: Path, name: str) -> ExitStack:
    """Lock one queue of a queue path; return a stack that releases the locks when it is closed.

    Raises:
        QueuePathLocked: a server uses the path, or another object uses the queue.
    """
    with ExitStack() as held:
        for lock in (
            QueuePathLock(path, shared=True),
            FileLock(path / f"{name}~~lock", f"queue {name} in {path} is in use already"),
        ):
            held.enter_context(lock)
        return held.pop_all()


def open_queue(
    name: str, path: Path, config: QueueConfig, clock: Clock, commits: GroupCommit
) -> tuple[Queue, ExitStack]:
    """Lock and load a queue; return it, and a stack that releases the locks when it is closed.

    Raises:
        QueuePathLocked: a server uses the path, or another object uses the queue.
        DamagedJournal: a file has bytes that are not a record.
        OSError: a file could not be created or read.
    """
    if not config.keep_journal:
        return Queue(name, config, clock, commits), ExitStack()
    make_queue_path(path)
    held = _lock(path, name)
    try:
        directory = DiskDirectory(path, lock=held)
        files = group_files(directory.names()).queues.get(name, QueueFiles(name))
        loaded = load_queue(
            directory,
            files,
            config.max_memory_size,
            clock,
            keep=config.keep_replaced_journals,
            dialect=config.journal_dialect,
        )
        queue = Queue(
            name,
            config,
            clock,
            commits,
            journal=loaded.journal,
            state=loaded.state,
            created=loaded.created,
        )
        queue.open_journal()
    except BaseException:  # also a Ctrl-C
        held.close()
        raise
    return queue, held
