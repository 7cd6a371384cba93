"""Packing the journal of a queue that no server uses: one file with what is live, in any dialect.

`replacement` defines the contents of a packed file. This module puts one in the place of a queue's
files, for the tools and for Spark, which writes many packed files at once:

1. The new file is written under a temporary name, and synced.
2. The current file is rotated, which does not change the queue.
3. The new file is renamed to `NAME.TIMESTAMP.pack`: from now on it replaces all the others.
4. The others are removed, and then `.pack` is dropped from the name, as loading does it.

A crash leaves the queue as it was, or packed, and perhaps files that loading removes. A torn tail
is set aside first, as at a server's start.
"""

from dataclasses import dataclass
from typing import Final

from kestrelmq.clock import Clock, no_pause
from kestrelmq.journal.files import Directory, write_file
from kestrelmq.journal.loading import clean_up, load_with_delayed
from kestrelmq.journal.names import (
    PACK,
    QueueFiles,
    group_files,
    later_timestamp,
    master_of_delayed,
    pack_name,
    rotated_name,
    temporary_name,
)
from kestrelmq.journal.replacement import FilesSource
from kestrelmq.journal.writer import Dialect

_MEMORY_LIMIT: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class PackResult:
    """The result of packing a queue: what it holds, and the bytes in its files before and after."""

    queue: str
    items: int
    open_reads: int
    before: int
    after: int


def take_place(directory: Directory, files: QueueFiles, file: str, now: int) -> str:
    """Replace all of a queue's files by the file `file`. Nobody else may use the queue.

    Args:
        directory: the queue path.
        files: the queue's files, already cleaned up.
        file: the name of the new file, which is already synced.
        now: the least timestamp (ms) for new file names.

    Returns:
        The final name of the new file.

    Raises:
        OSError: the queue is as it was, or replaced except for what a server's start completes.
    """
    queue, old = files.queue, list(files.rotated)
    timestamp = later_timestamp(old, now)
    if files.has_current:
        old.append(rotated_name(queue, timestamp))
        directory.rename(queue, old[-1])
        directory.sync()
        directory.crash_point("pack: current file rotated")
        timestamp += 1
    directory.rename(file, pack_name(queue, timestamp))
    directory.sync()
    directory.crash_point("pack: in place")
    packed = group_files([*old, pack_name(queue, timestamp)]).of_journal(queue)
    assert packed is not None  # noqa: S101 # it has the pack at least
    clean_up(directory, packed)
    return rotated_name(queue, timestamp)


def pack(directory: Directory, files: QueueFiles, dialect: Dialect, clock: Clock) -> PackResult:
    """Pack the journal of one queue, without its delayed items. Nobody else may use it.

    The journal of the delayed items can be packed in the same way, in the documented dialect.

    Raises:
        DamagedJournal: the journal must be repaired first; nothing was changed.
        OSError: a file could not be read or written; the queue is as it was, or packed.
    """
    queue, path = files.queue, directory.path
    if master_of_delayed(queue) is not None:
        dialect = "documented"
    loaded, delayed = load_with_delayed(directory, files, _MEMORY_LIMIT, clock)
    if isinstance(delayed, Exception):
        raise delayed  # the notes that the new file must have are not known
    state = loaded.state
    if state.behind is not None:
        state.behind.close()
    # Loading may have rotated the current file.
    files = QueueFiles(queue, tuple(loaded.journal.sizes), (path / queue).exists())
    before = sum((path / name).lstat().st_size for name in files.files)
    temporary = temporary_name(queue, PACK, clock.now())
    joined = [(xid, delayed.held[xid]) for xid in delayed.joined] if delayed is not None else ()
    source = FilesSource(directory, files.files, dialect, joined=joined)
    after = write_file(directory, temporary, source.pieces(no_pause))
    directory.crash_point("pack: temporary written")
    placed = take_place(directory, files, temporary, clock.now())
    directory.rename(placed, queue)
    directory.crash_point("pack: made the current file")
    directory.sync()
    return PackResult(queue, state.items, len(state.open), before, after)
