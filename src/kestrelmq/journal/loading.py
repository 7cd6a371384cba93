"""Bringing a queue up from its files: clean up, replay, set a torn tail aside.

A record cut short at the end of the last file is what a crash leaves: the cut bytes are saved as
`NAME~~torn-TIMESTAMP` and the file ends at its last whole record. Anything else that is no record
is damage: the queue does not load, and no file is changed.

The current file is rotated where nothing may be added to it: after such a cut, for whoever follows
the file by its length may have read what was cut and must not find other bytes there; and where
more bytes could turn its last STATE_DUMP into a CONTINUE. A crash then leaves a rotated file, cut
or not, and no current one.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.files import Directory, forget, mapped
from kestrelmq.journal.names import QueuePlan, later_timestamp, rotated_name, temporary_name
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import REMOVE_TENTATIVE_XID, STATE_DUMP_SIZE, Buffer
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.runs import WORTH, added_run, uniform_run
from kestrelmq.journal.salvage import next_after_cut
from kestrelmq.journal.scanning import TOLD_CONTINUE, is_cut_continue, record_length, scan
from kestrelmq.journal.writer import Dialect, FileJournal

_BATCH: Final = 1 << 20
_FORGET: Final = 8 << 20
"""Bytes of a map that are given back at once when they were looked at."""
_LONG_RUN: Final = 16
"""So many batches at most of a run of one length."""
_TINY_BATCH: Final = 16 << 10
"""For upkeep, beside queues that serve at their fastest; be they records of one byte each."""
_SMALL_BATCH: Final = 64 << 10
"""For replay beside queues that serve: a short time, as long as other threads wait."""
_TELL: Final = 5.0
"""Seconds between lines in the log about a queue that takes long."""

log = logging.getLogger(__name__)

Pause = Callable[[], None]
"""Called after each short piece of work; what it raises ends the work."""
Pace = Callable[[], bool]
"""The same; it returns whether others are served meanwhile, so that pieces have to be short."""


@dataclass(frozen=True, slots=True)
class LoadedQueue:
    """A queue as its files tell it. The journal is not open yet."""

    state: Replay
    journal: FileJournal


def load_queue(
    directory: Directory,
    plan: QueuePlan,
    memory_limit: int | None,
    clock: Clock,
    pace: Pace | None = None,
) -> LoadedQueue:
    """Replay the files of `plan`.

    Args:
        directory: where they are.
        plan: which they are, and what to clean up before.
        memory_limit: as for `Replay`.
        clock: tells the time.
        pace: for loading beside queues that serve. What it raises ends the loading, and the queue
            can be loaded again.

    Raises:
        DamagedJournal: a file has bytes that are no record; it is named in the error.
        OSError: a file could not be read, or a clean-up failed.
    """
    clean_up(directory, plan)
    state = Replay(memory_limit, lambda file, at: JournalReader(directory.path, file, at))
    files = plan.files
    progress = _Progress(directory, plan, clock, pace)
    sizes: dict[str, int] = {}
    torn = False
    for index, name in enumerate(files):
        sizes[name], torn = _replay_file(
            directory, state, files[: index + 1], clock, progress, last=index + 1 == len(files)
        )
        progress.end(sizes[name])
    dialect = state.dialect if plan.has_current else None
    ends = plan.has_current and (torn or _is_undecided(state, sizes[plan.queue]))
    if ends:
        sizes[_rotate(directory, plan, state, clock)] = sizes.pop(plan.queue)
        dialect = None
    if ends or torn:
        # Forces it to disk as well: the file that comes next must not get there first.
        name, size = list(sizes.items())[-1]
        directory.truncate(name, size)
    sizes.pop(plan.queue, None)
    return LoadedQueue(state, FileJournal(directory, plan.queue, sizes, dialect))


def _is_undecided(state: Replay, size: int) -> bool:
    """Whether what follows the last file, of `size` bytes, decides what an opcode 8 in it is."""
    return state.dump_at is not None and STATE_DUMP_SIZE <= size - state.dump_at < TOLD_CONTINUE


def _rotate(directory: Directory, plan: QueuePlan, state: Replay, clock: Clock) -> str:
    """Have nothing appended to the current file; return its new name."""
    rotated = rotated_name(plan.queue, later_timestamp(plan.rotated, clock.now()))
    directory.rename(plan.queue, rotated)
    # A torn end is cut off only once the file has a name by which nothing is ever appended.
    directory.sync()
    directory.reached("loading: current file rotated")
    if state.behind is not None:
        state.behind.renamed(plan.queue, rotated)
    return rotated


class _Progress:
    """Tells the log how far the loading of a queue is, and lets others run."""

    def __init__(
        self, directory: Directory, plan: QueuePlan, clock: Clock, pace: Pace | None
    ) -> None:
        self._path = directory.path / plan.queue
        self._total = sum((directory.path / name).stat().st_size for name in plan.files)
        self._clock = clock
        self._before = 0
        self._tell_at = clock.monotonic() + _TELL
        self._pace = pace

    def end(self, size: int) -> None:
        """A file of `size` bytes is done."""
        self._before += size

    def at(self, position: int) -> bool:
        """The file is replayed up to `position`; return whether the next piece must be short."""
        now = self._clock.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + _TELL
            done, total = (size >> 20 for size in (self._before + position, self._total))
            log.info("loading %s: %d of %d MiB", self._path, done, total)
        return self._pace is not None and self._pace()


def clean_up(directory: Directory, plan: QueuePlan) -> None:
    """Remove temporaries and files that a pack replaces, then give the pack its place."""
    for name in plan.dead:
        log.info("removing %s: a pack replaces it, or a crash left it", name)
        directory.remove(name)
        directory.reached("clean-up: dead file removed")
    for old, new in plan.rename:
        directory.rename(old, new)
        directory.reached("clean-up: pack renamed")
    if plan.dead or plan.rename:
        directory.sync()


def remove_left_over(directory: Directory, names: Sequence[str]) -> None:
    """Remove temporaries of queues that have no other file; what cannot be removed stays."""
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
    *,
    last: bool,
) -> tuple[int, bool]:
    """Fold in the last of `files`; return where it ends, and whether what follows is torn off.

    That is saved, but still to be cut off.
    """
    name = files[-1]
    path = directory.path / name
    with mapped(path) as buffer, _read_ahead(path) as fetch:

        def next_batch(position: int) -> int:
            if not progress.at(position):
                return _BATCH
            fetch(position)
            return _SMALL_BATCH

        size = len(buffer)
        end = _fold(state, buffer, files, path, next_batch)
        if end == size:
            return size, False
        if not last:
            raise DamagedJournal(end, "a record is cut short, and another file follows", str(path))
        resumed = next_after_cut(buffer, end)
        if resumed < size:
            reason = f"a record reaches beyond the end, yet others follow it at byte {resumed}"
            raise DamagedJournal(end, reason, str(path))
        aside = _save_tail(directory, name, buffer, end, clock)
    log.warning(
        "%s: a record was cut short at byte %d; its %d bytes are kept in %s",
        path,
        end,
        size - end,
        aside,
    )
    return end, True


@contextlib.contextmanager
def _read_ahead(path: Path) -> Iterator[Callable[[int], None]]:
    """Give what brings a file into memory, from a position on, before its map is looked at there.

    A thread that waits for the disk in a map holds up all the others; one that reads does not.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    done = 0

    def fetch(position: int) -> None:
        nonlocal done
        done = max(done, position)
        while done < position + _LONG_RUN * _SMALL_BATCH:
            count = len(os.pread(descriptor, _LONG_RUN * _SMALL_BATCH, done))
            if not count:
                break
            done += count

    try:
        yield fetch
    finally:
        os.close(descriptor)


def replay_whole(directory: Directory, state: Replay, files: Sequence[str], pause: Pause) -> None:
    """Fold in files that are whole and do not change, with a pause now and then.

    Raises:
        DamagedJournal: a file has bytes that are no record, or ends with part of one.
        OSError: a file could not be read.
    """
    for index, name in enumerate(files):
        path = directory.path / name
        with mapped(path) as buffer, _read_ahead(path) as fetch:

            def next_batch(position: int, fetch: Callable[[int], None] = fetch) -> int:
                pause()
                fetch(position)
                return _TINY_BATCH

            end = _fold(state, buffer, tuple(files[: index + 1]), path, next_batch)
            if end != len(buffer):
                raise DamagedJournal(end, "a record is cut short", str(path))


def _fold(
    state: Replay,
    buffer: Buffer,
    files: tuple[str, ...],
    path: Path,
    next_batch: Callable[[int], int],
) -> int:
    """Fold in the records of a file, some at a time; return where the last whole one ends.

    `next_batch` is told how far that is, and returns how many bytes to take next.
    """
    size = len(buffer)
    position = forgotten = 0
    while position < size:
        if position - forgotten > _FORGET:
            forgotten = forget(buffer, forgotten, position)
        batch = next_batch(position)
        end = _fold_run(state, buffer, position, files, batch)
        if end == position:
            end, whole = _fold_batch(state, buffer, position, files, batch, path)
            if not whole:
                return end
        position = end
    return position


def _fold_run(
    state: Replay, buffer: Buffer, position: int, files: tuple[str, ...], batch: int
) -> int:
    """Fold in a run of added items, if one begins at `position`; return where it ends."""
    size = len(buffer)
    count, length = uniform_run(buffer, position, min(size, position + _LONG_RUN * batch))
    if count >= WORTH:
        state.feed_run(buffer, position, count, length, files)
        return position + count * length
    starts: list[int] = []
    end = added_run(buffer, position, min(size, position + batch), starts)
    if len(starts) < WORTH:
        return position
    state.feed_added(buffer, starts, end, files)
    return end


def _fold_batch(
    state: Replay, buffer: Buffer, position: int, files: tuple[str, ...], batch: int, path: Path
) -> tuple[int, bool]:
    """Fold in some records of any kind; return where they end, and whether all is well there."""
    size = len(buffer)
    starts: list[int] = []
    batch_end = min(size, position + batch)
    more = batch_end < size
    try:
        end = scan(buffer, position, batch_end, starts, more=more)
        if more and not starts:  # one record longer than a batch
            end = _scan_one(buffer, position, starts)
    except DamagedJournal as damage:
        cut = cut_continue(buffer, starts, state.dialect)
        if cut is None and not is_zeros(buffer, damage.position):
            raise DamagedJournal(damage.position, damage.reason, str(path)) from None
        end = damage.position if cut is None else cut
        state.feed(buffer, starts, end, files)
        return end, False
    # A lone record may be one that is longer than a batch, and reach beyond the end.
    cut = None if more and len(starts) > 1 else cut_continue(buffer, starts, state.dialect)
    if cut is not None:
        state.feed(buffer, starts, cut, files)
        return cut, False
    state.feed(buffer, starts, end, files)
    return end, end > position


def cut_continue(buffer: Buffer, starts: list[int], dialect: Dialect | None) -> int | None:
    """Return where a CONTINUE that the end of the file cuts begins, and drop what follows it."""
    explicit = dialect == "kestrel-2"
    for index, start in enumerate(starts):
        if buffer[start] == REMOVE_TENTATIVE_XID:
            explicit = True
        elif is_cut_continue(buffer, start, len(buffer), explicit=explicit):
            del starts[index:]
            return start
    return None


def _scan_one(buffer: Buffer, position: int, starts: list[int]) -> int:
    length = record_length(buffer, position, len(buffer))
    if length is None or position + length > len(buffer):
        return position
    starts.append(position)
    return position + length


def is_zeros(buffer: Buffer, position: int) -> bool:
    """Whether only zeros follow: a file system may leave them after the machine lost power."""
    zeros = bytes(_BATCH)
    size = len(buffer)
    return all(
        buffer[at : at + _BATCH] == zeros[: size - at] for at in range(position, size, _BATCH)
    )


def _save_tail(directory: Directory, name: str, buffer: Buffer, end: int, clock: Clock) -> str:
    """Copy what follows `end` to a file beside `name`; return what that is called."""
    now = clock.now()
    while (directory.path / (aside := temporary_name(name, "torn", now))).exists():
        now += 1
    size = len(buffer)
    file = directory.create(aside)  # from any thread, unlike `append_to`
    try:
        for at in range(end, size, _BATCH):
            file.append(bytes(buffer[at : min(size, at + _BATCH)]))
        file.sync()
    finally:
        file.close()
    directory.sync()
    directory.reached("torn tail: saved")
    return aside
