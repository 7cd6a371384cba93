"""Turning the journal of a queue on or off, and changing its dialect, while the queue is used.

These are tasks: what waits for the disk is done by jobs, and the queue serves meanwhile.

    on        set old files aside; write all that the queue holds to a new file (a job), while the
              queue keeps what it writes; then write the rest, and go on in that file
    off       read all items back into memory, in pieces; replace the files by an empty pack (a
              job); go on in memory; remove the files (a job)
    dialect   sync the current file (a job), so that it can be rotated at once

Until a journal that is turned on is complete, the queue keeps none, as before: items that do not
fit in memory are refused. The same holds while the files of a journal that is turned off are
replaced. A task that fails leaves the queue as it was.

A crash leaves, of a journal that is turned on, nothing or an earlier state of the queue; of one
that is turned off, all of it or nothing. Once the task is over, what was asked for is on disk.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kestrelmq.clock import Clock, Pause
from kestrelmq.config import QueueConfig
from kestrelmq.engine.delayed import companion_settings
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.upkeep import ROTATION_SYNC_LIMIT
from kestrelmq.engine.worker import Task, let_others_run
from kestrelmq.errors import JournalError
from kestrelmq.journal.files import Directory, UnnamedFiles
from kestrelmq.journal.names import LEFT, QueueFiles, group_files, parse_name, temporary_name
from kestrelmq.journal.writer import FileJournal, StartingJournal

log = logging.getLogger(__name__)


def begin_journal(
    queue: Queue, directory: Directory, clock: Clock, config: QueueConfig, after: int
) -> Task[JournalError | None]:
    """Keep a journal from now on, for a queue that kept none; return why that failed.

    Args:
        queue: the queue.
        directory: the queue path.
        clock: tells when old files were set aside.
        config: the settings to be.
        after: a timestamp (ms): the queue's files up to it are being removed.
    """
    failure = yield partial(_set_aside_files, directory, queue.name, clock.now(), after)
    if failure is None and not queue.is_closed:
        started = []
        # First the delayed items: what the queue notes about them must not be there without them.
        for one in reversed(queue.with_companion):
            settings = config if one is queue else companion_settings(config)
            started.append(_Start(one, settings, one.start_journal(directory, settings)))
        failure = yield from _complete(queue, started, directory, after)
    return _refused(queue, failure)


@dataclass(frozen=True, slots=True)
class _Start:
    """A journal that was started: whose it is, the settings to be, and what stands in for it."""

    queue: Queue
    settings: QueueConfig
    journal: StartingJournal


def _complete(
    queue: Queue, started: Sequence[_Start], directory: Directory, after: int
) -> Task[BaseException | None]:
    """Write the files of journals, and continue in them; return why that failed."""
    failure: BaseException | None = None
    for one in started:
        failure = failure or (yield one.journal.place)
    if queue.is_closed:
        return None
    journals: list[FileJournal] = []
    if failure is None:
        try:
            journals += [
                one.queue.use_journal(one.journal, directory, one.settings, after)
                for one in started
            ]
        except OSError as error:
            failure = error
    if failure is not None:
        queue.continue_in_memory()
        for one in started:
            yield one.journal.discard
        return failure
    for journal in journals:
        failure = yield partial(_sync, journal)
        if failure is not None:
            log.warning(
                "the journal of queue %s could not be synced: %s",
                queue.name,
                failure,
                extra={"queue": queue.name},
            )
    return None


def end_journal(queue: Queue, memory_size: int) -> Task[JournalError | None]:
    """Hold all items in memory from now on, at most `memory_size` bytes, and remove the journal.

    Return why that failed: the items do not fit, or the files could not be read or removed.
    """
    try:
        while not queue.read_back(memory_size):
            yield let_others_run
            if queue.is_closed:
                return None
        removal = queue.begin_removal()
    except (OSError, JournalError) as error:
        queue.resume_upkeep()
        return _refused(queue, error)
    assert removal is not None  # noqa: S101 # there is a journal to end
    queue.stay_in_memory(memory_size)
    failure = yield removal.replace
    if queue.is_closed:
        return None
    if failure is not None:
        queue.resume_upkeep()
        return _refused(queue, failure)
    queue.continue_in_memory()
    unnamed = UnnamedFiles()
    yield partial(removal.remove, unnamed)  # it logs what it could not remove
    queue.worker.run(unnamed.free, lambda _error: None)
    return None


def prepare_dialect(queue: Queue, config: QueueConfig) -> Task[None]:
    """Sync what a change of the dialect would have to sync, because it begins a new file.

    If much is written during that sync, sync again, as for every rotation (see `upkeep`).
    """
    journal = queue.journal
    if not isinstance(journal, FileJournal) or journal.dialect in {None, config.journal_dialect}:
        return
    while journal.unsynced > ROTATION_SYNC_LIMIT:
        if (yield partial(_sync_current, journal)) is not None:
            return  # the rotation tells what is wrong


def _refused(queue: Queue, failure: BaseException | None) -> JournalError | None:
    """Return the error to report for a failed step; None if none has failed."""
    if failure is None or isinstance(failure, JournalError):
        return failure
    return JournalError(f"queue {queue.name}: {failure}")


def _sync(journal: FileJournal, _pause: Pause) -> None:
    journal.sync()


def _sync_current(journal: FileJournal, _pause: Pause) -> None:
    journal.sync_current()


def _set_aside_files(directory: Directory, name: str, now: int, after: int, _pause: Pause) -> None:
    """Rename old journal files of a queue that kept no journal. Raises OSError.

    Otherwise they would become part of its new journal. Files that a pack replaces are removed
    first. Then the others are renamed, the newest first, each on disk before the next one: so a
    crash leaves an older state of the old journal. Files up to the timestamp `after` are left.
    """
    names = [file for file in directory.names() if not (after and _is_up_to(file, after))]
    found = group_files(names).queues.get(name)
    if found is None:
        return
    delayed = found.delayed or QueueFiles(name)
    dead = (*delayed.dead, *found.dead)
    for file in dead:
        directory.remove(file)
    if dead:
        directory.sync()
    for file in (*reversed(delayed.present), *reversed(found.present)):
        aside = temporary_name(file, LEFT, now)
        log.warning(
            "queue %s begins a new journal; its old file %s is kept as %s",
            name,
            file,
            aside,
            extra={"queue": name},
        )
        directory.rename(file, aside)
        directory.sync()


def _is_up_to(file: str, timestamp: int) -> bool:
    """Whether a file was rotated at `timestamp` (ms) or earlier."""
    parsed = parse_name(file)
    return parsed is not None and parsed.timestamp is not None and parsed.timestamp <= timestamp
