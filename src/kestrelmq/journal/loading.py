"""Bringing a queue up from its files: clean up, replay, set a torn tail aside.

A record cut short at the end of the last file is what a crash leaves: the cut bytes are saved as
`NAME~~torn-TIMESTAMP` and the file ends at its last whole record. Anything else that is no record
is damage: the queue does not load, and no file is changed.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.files import Directory, mapped
from kestrelmq.journal.names import QueuePlan, temporary_name
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.records import (
    REMOVE_TENTATIVE_XID,
    Buffer,
    is_cut_continue,
    record_length,
    scan,
)
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.runs import uniform_run
from kestrelmq.journal.writer import Dialect, FileJournal
from kestrelmq.units import format_size

_BATCH: Final = 1 << 20
_LONG: Final = 64 << 20
"""Bytes of a file whose loading is worth a line in the log."""
_RUN: Final = 16
"""Records of one length that are worth taking together; and so many batches at most."""
_SMALL_BATCH: Final = 64 << 10
"""For replay beside a queue that serves: a short time, as long as other threads wait."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedQueue:
    """A queue as its files tell it. The journal is not open yet."""

    state: Replay
    journal: FileJournal


def load_queue(
    directory: Directory, plan: QueuePlan, memory_limit: int | None, clock: Clock
) -> LoadedQueue:
    """Replay the files of `plan`.

    Raises:
        DamagedJournal: a file has bytes that are no record; it is named in the error.
        OSError: a file could not be read, or a clean-up failed.
    """
    clean_up(directory, plan)
    state = Replay(memory_limit, lambda file, at: JournalReader(directory.path, file, at))
    files = plan.files
    sizes: dict[str, int] = {}
    for index, name in enumerate(files):
        _tell(directory.path / name, index + 1, len(files))
        sizes[name] = _replay_file(directory, state, files[: index + 1], clock, len(files))
    sizes.pop(plan.queue, None)
    dialect = state.dialect if plan.has_current else None
    return LoadedQueue(state, FileJournal(directory, plan.queue, sizes, dialect))


def _tell(path: Path, number: int, count: int) -> None:
    """Log what takes long."""
    size = path.stat().st_size
    if size > _LONG:
        log.info("loading %s, %s, file %d of %d", path, format_size(size), number, count)


def clean_up(directory: Directory, plan: QueuePlan) -> None:
    """Remove files that a pack replaces, then give the pack its place."""
    for name in plan.dead:
        log.info("removing %s, which a pack replaces", name)
        directory.remove(name)
        directory.reached("clean-up: dead file removed")
    for old, new in plan.rename:
        directory.rename(old, new)
        directory.reached("clean-up: pack renamed")
    if plan.dead or plan.rename:
        directory.sync()


def _replay_file(
    directory: Directory, state: Replay, files: tuple[str, ...], clock: Clock, count: int
) -> int:
    """Fold in the last of `files`; return its size, once a torn tail is cut off."""
    name = files[-1]
    path = directory.path / name
    with mapped(path) as buffer:
        size = len(buffer)
        end = _fold(state, buffer, files, path)
        if end == size:
            return size
        if len(files) < count:
            raise DamagedJournal(end, "a record is cut short, and another file follows", str(path))
        tail = bytes(buffer[end:size])
    _set_aside(directory, name, end, tail, clock)
    return end


def replay_whole(
    directory: Directory, state: Replay, files: Sequence[str], pause: Callable[[], None]
) -> None:
    """Fold in files that are whole and do not change, with a pause now and then.

    Raises:
        DamagedJournal: a file has bytes that are no record, or ends with part of one.
        OSError: a file could not be read.
    """
    for index, name in enumerate(files):
        path = directory.path / name
        with mapped(path) as buffer:
            end = _fold(state, buffer, tuple(files[: index + 1]), path, _SMALL_BATCH, pause)
            if end != len(buffer):
                raise DamagedJournal(end, "a record is cut short", str(path))


def _fold(
    state: Replay,
    buffer: Buffer,
    files: tuple[str, ...],
    path: Path,
    batch: int = _BATCH,
    pause: Callable[[], None] | None = None,
) -> int:
    """Fold in the records of a file, some at a time; return where the last whole one ends."""
    size = len(buffer)
    position = 0
    while position < size:
        count, length = uniform_run(buffer, position, min(size, position + _RUN * batch))
        if count >= _RUN:
            state.feed_run(buffer, position, count, length, files)
            position += count * length
            if pause is not None:
                pause()
            continue
        starts: list[int] = []
        batch_end = min(size, position + batch)
        more = batch_end < size
        try:
            end = scan(buffer, position, batch_end, starts, more=more)
            if more and not starts:  # one record longer than a batch
                end = _scan_one(buffer, position, starts)
        except DamagedJournal as damage:
            end = _cut_continue(buffer, starts, state.dialect) or damage.position
            if end == damage.position and not is_zeros(buffer, end):
                raise DamagedJournal(end, damage.reason, str(path)) from None
            state.feed(buffer, starts, end, files)
            return end
        cut = None if more else _cut_continue(buffer, starts, state.dialect)
        if cut is not None:
            state.feed(buffer, starts, cut, files)
            return cut
        if end == position:
            return position
        state.feed(buffer, starts, end, files)
        position = end
        if pause is not None:
            pause()
    return position


def _cut_continue(buffer: Buffer, starts: list[int], dialect: Dialect | None) -> int | None:
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


def _set_aside(directory: Directory, name: str, end: int, tail: bytes, clock: Clock) -> None:
    aside = temporary_name(name, "torn", clock.now())
    file = directory.append_to(aside)
    try:
        file.append(tail)
        file.sync()
    finally:
        file.close()
    directory.sync()
    directory.reached("torn tail: saved")
    directory.truncate(name, end)
    log.warning(
        "%s: a record was cut short at byte %d; its %d bytes are kept in %s",
        directory.path / name,
        end,
        len(tail),
        aside,
    )
