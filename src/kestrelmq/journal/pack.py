"""Packing the journal of a queue that no server has: one file with what is live, in any dialect.

What a packed file consists of, `replacement` says. How it takes the place of the queue's files
stands here, for the tools and for Spark, which writes many packed files at once:

1. The file is written under a name that means nothing, and synced.
2. The current file is rotated, which changes nothing.
3. The new file is renamed to `NAME.TIMESTAMP.pack`: from now on it stands for all the others.
4. These are removed, and then it drops the `.pack`, as loading does it.

A crash leaves the queue as it was, or packed, and perhaps what loading removes. A torn tail is set
aside first, as at a server's start.
"""

from dataclasses import dataclass
from typing import Final

from kestrelmq.clock import Clock, no_pause
from kestrelmq.journal.files import Directory, write_file
from kestrelmq.journal.loading import clean_up, load_queue
from kestrelmq.journal.names import (
    PACK,
    QueuePlan,
    later_timestamp,
    pack_name,
    plan,
    rotated_name,
    temporary_name,
)
from kestrelmq.journal.replacement import FromFiles
from kestrelmq.journal.writer import Dialect

_MEMORY: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """What packing did to a queue; sizes in bytes."""

    queue: str
    items: int
    open_reads: int
    before: int
    after: int


def take_place(directory: Directory, files: QueuePlan, file: str, now: int) -> str:
    """Have a file stand for all that a queue's files hold. Nobody else may use the queue.

    Args:
        directory: the queue path.
        files: the queue's files, cleaned up.
        file: the name of the new one, which is synced.
        now: file timestamps are at least this (ms).

    Returns:
        What the new file is called in the end.

    Raises:
        OSError: the queue is as it was, or all is done that a server's start does not do anyway.
    """
    queue, old = files.queue, list(files.rotated)
    timestamp = later_timestamp(old, now)
    if files.has_current:
        old.append(rotated_name(queue, timestamp))
        directory.rename(queue, old[-1])
        directory.sync()
        directory.reached("pack: current file rotated")
        timestamp += 1
    directory.rename(file, pack_name(queue, timestamp))
    directory.sync()
    directory.reached("pack: in place")
    clean_up(directory, plan([*old, pack_name(queue, timestamp)]).queues[queue])
    return rotated_name(queue, timestamp)


def pack(directory: Directory, files: QueuePlan, dialect: Dialect, clock: Clock) -> Packed:
    """Pack the journal of one queue. Nobody else may use it.

    Raises:
        DamagedJournal: it must be repaired first; nothing was changed.
        OSError: a file could not be read or written; the queue is as it was, or packed.
    """
    queue, path = files.queue, directory.path
    loaded = load_queue(directory, files, _MEMORY, clock)
    state = loaded.state
    if state.behind is not None:
        state.behind.close()
    # Loading may have rotated the current file.
    files = QueuePlan(queue, tuple(loaded.journal.sizes), (path / queue).exists())
    before = sum((path / name).lstat().st_size for name in files.files)
    temporary = temporary_name(queue, PACK, clock.now())
    after = write_file(
        directory, temporary, FromFiles(directory, files.files, dialect).pieces(no_pause)
    )
    directory.reached("pack: temporary written")
    placed = take_place(directory, files, temporary, clock.now())
    directory.rename(placed, queue)
    directory.reached("pack: made the current file")
    directory.sync()
    return Packed(queue, state.items, len(state.open), before, after)
