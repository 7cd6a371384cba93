"""Packing the journal of a queue that no server uses: one file with what is live, in any dialect.

`replacement` defines the contents of a packed file. This module writes one (`write_packed`) and
puts it in the place of a queue's files (`take_place`), for the tools and for Spark, which writes
many packed files at once:

1. The new file is written under a temporary name, and synced.
2. The current file is rotated, which does not change the queue.
3. The new file is renamed to `NAME.TIMESTAMP.pack`: from now on it replaces all the others.
4. The others are removed, and then `.pack` is dropped from the name, as loading does it.

A crash leaves the queue as it was, or packed, and perhaps files that loading removes. A torn tail
is set aside first, as at a server's start.
"""

from dataclasses import dataclass

from kestrelmq.clock import Clock, no_pause
from kestrelmq.disk.directories import Directory, write_file
from kestrelmq.format.names import (
    PACK,
    QueueFiles,
    group_files,
    later_timestamp,
    pack_name,
    rotated_name,
    temporary_name,
)
from kestrelmq.journal.loading import clean_up, recover
from kestrelmq.journal.replacement import FilesSource
from kestrelmq.journal.walk import WalkEnd
from kestrelmq.journal.writer import Dialect


@dataclass(frozen=True, slots=True)
class PackResult:
    """The result of packing a queue: what it holds, and the bytes in its files before and after."""

    queue: str
    items: int
    open_reads: int
    before: int
    after: int
    delayed: int = 0


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A packed journal that replaces nothing yet.

    Attributes:
        items: how many items wait.
        open_reads: how many reads are open.
        delayed: how many items are delayed.
        size: bytes in the file.
        torn: where and why the queue's last file is torn, or None; the rest is not in the pack.
    """

    items: int
    open_reads: int
    delayed: int
    size: int
    torn: WalkEnd | None


def write_packed(
    directory: Directory, files: QueueFiles, output: Directory, name: str, dialect: Dialect
) -> PackedFile:
    """Write what a queue holds to the file `name` of `output`, and sync it.

    It has all that the queue's files say: items with their deliveries, delayed ones, open and
    reserved reads, tags, and the marks of producers. The queue's files are only read.

    Raises:
        DamagedJournal: the queue's journal is damaged.
        OSError: a file could not be read or written; then `output` has no file `name`.
    """
    source = FilesSource(directory, files.present, dialect, may_be_torn=True)
    size = write_file(output, name, source.pieces(no_pause))
    return PackedFile(source.items, source.open_reads, source.delayed, size, source.torn)


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
    packed = group_files([*old, pack_name(queue, timestamp)]).queues[queue]
    clean_up(directory, packed)
    return rotated_name(queue, timestamp)


def pack(directory: Directory, files: QueueFiles, dialect: Dialect, clock: Clock) -> PackResult:
    """Pack the journal of one queue. Nobody else may use it.

    Raises:
        DamagedJournal: the journal must be repaired first; nothing was changed.
        OSError: a file could not be read or written; the queue is as it was, or packed.
    """
    queue, path = files.queue, directory.path
    files = recover(directory, files, clock)
    before = sum((path / name).lstat().st_size for name in files.files)
    temporary = temporary_name(queue, PACK, clock.now())
    packed = write_packed(directory, files, directory, temporary, dialect)
    directory.crash_point("pack: temporary written")
    placed = take_place(directory, files, temporary, clock.now())
    directory.rename(placed, queue)
    directory.crash_point("pack: made the current file")
    directory.sync()
    return PackResult(queue, packed.items, packed.open_reads, before, packed.size, packed.delayed)
