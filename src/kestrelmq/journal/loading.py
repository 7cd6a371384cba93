"""Loading a queue from its files: clean up, replay, set a torn tail aside.

`walk` finds the records of each file and where they end. A record cut short at the end of the last
file is what a crash leaves: the cut bytes are saved as `NAME~~torn-TIMESTAMP`, and the file is cut
to end at its last whole record. Any other bytes that are not a record are damage: the queue does
not load, and no file is changed.

The current file is rotated if nothing may be appended to it. That is so after such a cut: a program
that follows the file by its length may have read the cut bytes and must not find others there. It
is also so after a STATE_DUMP, because nothing behind that is replayed; after a note that a crash
cut short, so that no later record is taken for a part of it; and if the queue goes on in another
dialect, because a file has only one. A crash then leaves a rotated file, cut or not, and no
current one.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kestrelmq.clock import Clock, Pause, Throttle
from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk.directories import Directory, write_file
from kestrelmq.disk.opening import FoundFile, ReadFile
from kestrelmq.format.names import (
    QueueFiles,
    later_timestamp,
    newest_timestamp,
    parse_name,
    rotated_name,
    temporary_name,
)
from kestrelmq.format.records import (
    ADDX,
    ADDX_HEADER,
    YEAR_2000,
    YEAR_2101,
    Buffer,
    item_add_time,
)
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.walk import ONLY_ZEROS, WINDOW, EndKind, Walk, WalkEnd, find_records
from kestrelmq.journal.writer import Dialect, FileJournal

_TINY_BATCH: Final = 16 << 10
"""Bytes to replay at a time for upkeep, beside queues under full load: records may be one byte."""
_SMALL_BATCH: Final = 64 << 10
"""Bytes to replay at a time beside queues that serve: other threads wait meanwhile."""
_AHEAD: Final = 1 << 20
"""Bytes that are read ahead of the map."""
_LOG_INTERVAL: Final = 5.0
"""Seconds between log lines about a queue that takes long to load."""
TOOL_MEMORY: Final = 8 << 20
"""Bytes of items that a tool holds in memory, however long the queue is."""

log = get_logger(__name__)

Pace = Callable[[], bool]
"""A `Pause` that returns whether others are being served, so that the next piece must be short."""


class LoadedQueue(NamedTuple):
    """A queue that was read from its files.

    Attributes:
        state: what it holds.
        journal: its files; not open yet.
        created: when the queue was created (ms), see `_Age`.
    """

    state: Replay
    journal: FileJournal
    created: int


def load_queue(
    directory: Directory,
    queue_files: QueueFiles,
    memory_limit: int | None,
    clock: Clock,
    pace: Pace | None = None,
    *,
    keep: float = 0.0,
    dialect: Dialect | None = None,
) -> LoadedQueue:
    """Replay the files of one queue.

    Args:
        directory: where they are.
        queue_files: the files, and what to clean up before.
        memory_limit: as for `Replay`.
        clock: tells the time.
        pace: for loading beside queues that serve. An exception that it raises ends the loading,
            and the queue can be loaded again later.
        keep: how long files that a pack has replaced stay on disk (seconds).
        dialect: the one that is to be written; None for that of the current file.

    Raises:
        DamagedJournal: a file has bytes that are not a record; the error names the file.
        OSError: a file could not be read, or a clean-up failed.
    """
    queue_files, kept, kept_for = _without_kept(directory, queue_files, keep)
    clean_up(directory, queue_files)
    state = Replay(
        memory_limit,
        lambda file, at: JournalReader(directory.path, file, at, open_file=directory.open),
    )
    files = queue_files.files
    progress = _Progress(directory, queue_files, clock, pace)
    age = _Age(clock.now())
    sizes: dict[str, int] = {}
    kind = EndKind.WHOLE
    found: FoundFile | None = None
    try:
        for index, name in enumerate(files):
            last = index + 1 == len(files)
            before = files[: index + 1]
            sizes[name], kind, found = _replay_file(
                directory, state, before, clock, progress, age, last=last
            )
            progress.end(sizes[name])
        state.end()
        ends = queue_files.has_current and (
            kind is not EndKind.WHOLE
            or state.is_note_cut
            or (dialect is not None and sizes[files[-1]] and state.dialect not in {None, dialect})
        )
        if ends:
            sizes[_rotate(directory, queue_files, state, clock)] = sizes.pop(queue_files.queue)
        if ends or not queue_files.has_current:
            found = None  # there is no current file
        # The next current file must not reach the disk before the end of the last one.
        if ends or kind is EndKind.TORN:
            name, size = list(sizes.items())[-1]
            directory.truncate(name, size)  # forces it to disk as well
        elif files and not queue_files.has_current:
            directory.sync_file(files[-1])
        sizes.pop(queue_files.queue, None)
    except BaseException:
        if state.behind is not None:
            state.behind.close()
        raise
    journal = FileJournal(directory, queue_files.queue, sizes, clock, found=found)
    journal.kept, journal.kept_for = kept, kept_for
    return LoadedQueue(state, journal, age.created)


def recover(directory: Directory, files: QueueFiles, clock: Clock) -> QueueFiles:
    """Complete what a crash left, as a server's start does; return the queue's files after that.

    So a torn tail is set aside: no file may follow it. Raises as `load_queue`.
    """
    loaded = load_queue(directory, files, TOOL_MEMORY, clock)
    if loaded.state.behind is not None:
        loaded.state.behind.close()
    has_current = (directory.path / files.queue).exists()  # it may have been rotated
    return QueueFiles(files.queue, tuple(loaded.journal.sizes), has_current)


class _Age:
    """When a queue was created, as far as its files show.

    No record holds that time, and packs replace old files, so it is the earliest of:

    - the timestamp of the oldest rotated file: the queue existed when that file ended;
    - the add time of the first item in the oldest file;
    - when any of the files was last written: for a queue that was never used, when it was created.

    So a queue never seems older than it is, but one whose early files were packed may seem younger.

    Attributes:
        created: the earliest so far (ms); at the latest the time of the start.
    """

    __slots__ = ("_is_first", "created")

    def __init__(self, now: int) -> None:
        """Start with the time (ms), before the first file."""
        self.created = now
        self._is_first = True

    def see(self, name: str, file: ReadFile) -> None:
        """Begin the next file, in replay order."""
        self._may_be(file.written_at)
        if self._is_first:
            self._is_first = False
            if "." in name:
                self._may_be(newest_timestamp((name,)))
            first = bytes(file.content[:ADDX_HEADER])
            if len(first) == ADDX_HEADER and first[0] == ADDX:
                self._may_be(item_add_time(first))

    def _may_be(self, time: int) -> None:
        if YEAR_2000 <= time < YEAR_2101 and time < self.created:
            self.created = time


def _rotate(directory: Directory, queue_files: QueueFiles, state: Replay, clock: Clock) -> str:
    """Rotate the current file, so that nothing is appended to it; return its new name."""
    rotated = rotated_name(queue_files.queue, later_timestamp(queue_files.rotated, clock.now()))
    directory.rename(queue_files.queue, rotated)
    # Cut a torn end off only once the file has a name to which nothing is ever appended.
    directory.sync()
    directory.crash_point("loading: current file rotated")
    if state.behind is not None:
        state.behind.renamed(queue_files.queue, rotated)
    return rotated


class _Progress:
    """Logs the progress of loading a queue, and lets others run."""

    def __init__(
        self, directory: Directory, queue_files: QueueFiles, clock: Clock, pace: Pace | None
    ) -> None:
        self._directory = directory
        self._queue_files = queue_files
        self._before = 0
        self._throttle = Throttle(clock, _LOG_INTERVAL, waits=True)
        self._pace = pace

    def end(self, size: int) -> None:
        """Count a file of `size` bytes as done."""
        self._before += size

    def at(self, position: int) -> bool:
        """Note that the file is replayed up to `position`; return what `Pace` returns."""
        if self._throttle.passes():
            files, path = self._queue_files.files, self._directory.path
            whole = sum((path / name).lstat().st_size for name in files)
            done, total = (size >> 20 for size in (self._before + position, whole))
            where = path / self._queue_files.queue
            log.info("loading %s: %d of %d MiB", where, done, total)
        return self._pace is not None and self._pace()


def _without_kept(
    directory: Directory, files: QueueFiles, keep: float
) -> tuple[QueueFiles, tuple[str, ...], float]:
    """Let files that a pack has replaced stay for `keep` seconds, for those who follow them.

    No clock that is wrong now may end that time early, so it is counted from when the pack was
    written to when the queue was last written. While nothing is written, the files stay.

    Returns:
        What else is to be cleaned up, the names of these files, and how long they were kept so far.
        The last of them has the final name of the pack, which keeps its name until it is gone.

    Raises:
        OSError: a file is not there any more.
    """
    old = tuple(name for name in files.dead if parse_name(name) is not None)
    if not keep or not old or files.pack is None:
        return files, (), 0.0
    ends = (files.pack, files.present[-1])
    written, last = ((directory.path / name).lstat().st_mtime for name in ends)
    kept_for = max(0.0, last - written)
    if kept_for >= keep:
        return files, (), 0.0
    dead = tuple(name for name in files.dead if name not in old)
    rotated = files.present[: len(files.rotated)]
    others = files._replace(rotated=rotated, dead=dead, pack=None)
    final = files.rotated[0]
    return others, (*(name for name in old if name != final), final), kept_for


def clean_up(directory: Directory, queue_files: QueueFiles) -> None:
    """Remove temporaries and the files that a pack replaces, then rename the pack.

    Raises:
        OSError: a step failed. If the pack is not a regular file, nothing was removed.
    """
    pack = queue_files.pack
    if pack is not None:
        os.close(directory.open(pack))
    for name in queue_files.dead:
        log.info("removing %s: a pack replaces it, or a crash left it", name)
        directory.remove(name)
        directory.crash_point("clean-up: dead file removed")
    if queue_files.dead and pack is not None:
        # Once the pack has its final name, it no longer replaces other files.
        directory.sync()
    if pack is not None:
        directory.rename(pack, queue_files.rotated[0])
        directory.crash_point("clean-up: pack renamed")
    if queue_files.dead or pack is not None:
        directory.sync()


def remove_left_over(directory: Directory, names: Sequence[str]) -> None:
    """Remove temporaries of queues that have no other file; log those that cannot be removed."""
    for name in names:
        log.info("removing %s: a crash left it", name)
        try:
            directory.remove(name)
        except OSError as error:
            log.warning("%s cannot be removed: %s", name, error)


def _replay_file(
    directory: Directory,
    state: Replay,
    files: tuple[str, ...],
    clock: Clock,
    progress: _Progress,
    age: _Age,
    *,
    last: bool,
) -> tuple[int, EndKind, FoundFile]:
    """Fold in the last of `files`; return where it ends, and why, and which file it is.

    A torn end is saved, but not cut off yet.
    """
    name = files[-1]
    # There may be a hundred thousand queues: no path object for each.
    path = f"{directory.path}/{name}"
    file = directory.read(name, appends=last)
    try:
        age.see(name, file)
        buffer = file.content
        ahead = _ReadAhead(file)

        def step(position: int) -> int:
            if not progress.at(position):
                return WINDOW
            ahead.fetch(position)
            return _SMALL_BATCH

        size = len(buffer)
        ending = fold(state, buffer, files, path, step, last=last)
        end = ending.position
        if ending.kind is not EndKind.TORN:
            if ending.kind is EndKind.STATE_DUMP:
                log.info("%s: ends with the STATE_DUMP at byte %d of %d", path, end, size)
            return size, ending.kind, file.found
        aside = save_tail(directory, name, buffer, ending, clock.now())
    finally:
        file.close()
    log.warning(
        "%s: a record was cut short at byte %d; its %d bytes are kept in %s",
        path,
        end,
        size - end,
        aside,
    )
    return end, EndKind.TORN, file.found


class _ReadAhead:
    """Reads a mapped file into the page cache before its map is read.

    A thread that waits for the disk in a map holds the interpreter lock and blocks all the others;
    one that waits in a read does not.
    """

    __slots__ = ("_descriptor", "_done")

    def __init__(self, file: ReadFile) -> None:
        # Without a descriptor, all of the file is in memory.
        self._descriptor = file.descriptor
        self._done = 0

    def fetch(self, position: int) -> None:
        """Read some of the file from `position` on, unless that was read."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        self._done = max(self._done, position)
        while self._done < position + _AHEAD:
            count = len(os.pread(descriptor, _AHEAD, self._done))
            if not count:
                break
            self._done += count


def replay_whole(
    directory: Directory,
    state: Replay,
    files: Sequence[str],
    pause: Pause,
    *,
    may_be_torn: bool = False,
) -> WalkEnd | None:
    """Fold in files that do not change, with pauses.

    Args:
        directory: where they are.
        state: what the records are folded into.
        files: all files of the queue, in order.
        pause: called after every few records.
        may_be_torn: whether the last record of the last file may be cut short.

    Returns:
        Where the last file is torn, or None.

    Raises:
        DamagedJournal: a file has bytes that are not a record, or ends with part of one.
        OSError: a file could not be read.
    """
    torn = None
    for index, name in enumerate(files):
        path = f"{directory.path}/{name}"
        file = directory.read(name)
        try:
            ahead = _ReadAhead(file)

            def step(position: int, ahead: _ReadAhead = ahead) -> int:
                pause()
                ahead.fetch(position)
                return _TINY_BATCH

            last = may_be_torn and index + 1 == len(files)
            end = fold(state, file.content, tuple(files[: index + 1]), path, step, last=last)
            torn = end if end.kind is EndKind.TORN else None
        finally:
            file.close()
    return torn


def fold(
    state: Replay,
    buffer: Buffer,
    files: Sequence[str],
    path: str | Path,
    step: Callable[[int], int],
    *,
    last: bool,
) -> WalkEnd:
    """Fold in the records of a file, in batches; return where they end, and why.

    Args:
        state: what the records are folded into.
        buffer: the file's bytes.
        files: the queue's files up to and including this one.
        path: where the file is, for the error.
        step: told how far the walk is; returns how many bytes to process next.
        last: whether this is the queue's last file, which may be torn.

    Raises:
        DamagedJournal: the file is damaged.
    """
    walk = Walk(buffer, find_records, last=last, step=step, path=path)
    for batch in walk.batches():
        state.feed_batch(buffer, batch, files)
    return walk.checked_end(path)


def save_tail(directory: Directory, name: str, buffer: Buffer, torn: WalkEnd, now: int) -> str:
    """Copy what follows the last whole record of a torn file to a new file; return its name."""
    while (directory.path / (aside := temporary_name(name, "torn", now))).exists():
        now += 1
    end, size = torn.position, len(buffer)
    # The hole of a sparse file may be larger than the disk, so it is not copied as zeros.
    copied = min(size, end + WINDOW) if torn.reason == ONLY_ZEROS else size
    tail = (bytes(buffer[at : min(copied, at + WINDOW)]) for at in range(end, copied, WINDOW))
    write_file(directory, aside, tail)
    if copied < size:
        directory.truncate(aside, size - end)
    directory.sync()
    directory.crash_point("torn tail: saved")
    return aside
