"""`pack`: pack the journals of many queues offline, in parallel, one task for each queue.

The journal of a queue is replaced at a single rename. A crash leaves each queue either packed or
unchanged, and may leave a directory `~~write-...`, which the next write or server start removes. No
server may run on the queue path.

A store has no rename that could replace the files of a queue at once. So a queue path in a store is
packed to another one, and stays as it is. A task has the files of its queue on the disk of its
machine meanwhile, and the packed file.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.disk import write_directories
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.disk.opening import mapped, open_stream
from kestrelmq.disk.write_directories import WriteOwner
from kestrelmq.errors import ConfigError, JournalError
from kestrelmq.format.names import rotated_name, temporary_name
from kestrelmq.journal.loading import save_tail
from kestrelmq.journal.packing import write_packed
from kestrelmq.journal.walk import WalkEnd
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.reading import map_on, place_of
from kestrelmq.spark.sinks.journal_commit import JournalCommit
from kestrelmq.spark.sinks.journal_parts import JournalPart
from kestrelmq.spark.sinks.stored_commit import files_found, upload
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import GivenPath, Location
from kestrelmq.spark.storage.spool import (
    SpoolFile,
    by_queue,
    check_apart,
    list_files,
    list_spool,
)
from kestrelmq.tools.journal_files import SelectedQueue, select


@dataclass(frozen=True, slots=True)
class PackedQueue:
    """The result of packing one queue: number of items, and bytes of journal before and after."""

    spool: str
    queue: str
    items: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class _PackedJournal:
    """A packed journal before its commit, and where the queue's last file is torn, if it is."""

    packed: PackedQueue
    part: JournalPart
    last: str
    torn: WalkEnd | None


def pack(
    spark: SparkSession,
    path: GivenPath,
    output: GivenPath | None = None,
    *,
    dialect: Dialect = "documented",
    clock: Clock | None = None,
    storage: Mapping[str, str] | None = None,
) -> list[PackedQueue]:
    """Pack the journals of every queue of `path`; a server then loads the same queues.

    Args:
        spark: the session.
        path: a queue path, or a glob of queue paths; in a store, one queue path.
        output: where the packed journals go, if the queue path is in a store: another queue path
            in a store, which has no journals yet.
        dialect: the dialect to write: `documented`, or `kestrel-2`, which Kestrel 2.4 reads.
        clock: gives the files' timestamps; by default the machine's clock.
        storage: options of the store that the journals are in; see `docs/spark.md`.

    Raises:
        ConfigError: `output` is missing, not allowed, or has journals.
        QueuePathLocked: a server uses the queue path.
        ValueError: `path` matches only some files of a queue path.
    """
    path = place_of(spark, path, storage)
    now = (clock or SystemClock()).now()
    if isinstance(path, Location):
        target = place_of(spark, output or "", storage, "output")
        if not isinstance(target, Location) or files_found(target).queues:
            raise ConfigError(
                f"option 'output': {str(target)!r} is not allowed: a queue path in a store is "
                "packed to another one in a store, which has no journals yet"
            )
        return _pack_stored(spark, path, target, dialect, now)
    if output is not None:
        raise ConfigError("option 'output': it is for a queue path in a store; another is replaced")
    with ExitStack() as locks:
        spools = sorted({Path(file.spool) for file in list_files(path)})
        for spool in spools:
            locks.enter_context(QueuePathLock(spool))
        _check_whole(path, map(str, spools))
        work: dict[Path, Path] = {}
        for spool in spools:
            write_directories.remove_abandoned(spool)
            work[spool] = write_directories.create(spool, WriteOwner.of(os.getpid()))
            locks.callback(write_directories.remove, work[spool])
        tasks = [
            (queue, work[queue.path] / f"{place}") for place, queue in enumerate(select(spools))
        ]
        written = map_on(spark, lambda task: _write(*task, dialect), tasks)
        for name, group in groupby(written, key=lambda one: one.packed.spool):
            _commit(Path(name), work[Path(name)], list(group), now)
    return [one.packed for one in written]


def _check_whole(path: JournalPath, spools: Iterable[JournalPath]) -> None:
    if len(list_files(path)) < sum(len(list_spool(spool)) for spool in spools):
        raise ValueError(
            f"{path} matches only some files of a queue path; packing needs all of them"
        )


def _write(queue: SelectedQueue, target: Path, dialect: Dialect) -> _PackedJournal:
    directory, output = DiskDirectory(queue.path), DiskDirectory(target.parent)
    before = queue.size
    packed = write_packed(directory, queue.all_files, output, target.name, dialect)
    items = packed.items + packed.open_reads
    return _PackedJournal(
        PackedQueue(str(queue.path), queue.queue, items, before, packed.size),
        JournalPart(queue.queue, target, items, packed.size),
        queue.files[-1],
        packed.torn,
    )


def _commit(spool: Path, work: Path, done: list[_PackedJournal], now: int) -> None:
    directory = DiskDirectory(spool)
    for one in done:
        if one.torn is not None:
            # Bytes that are no record are set aside, never deleted.
            with mapped(spool / one.last) as buffer:
                save_tail(directory, one.last, buffer, one.torn, now)
    parts = {one.packed.queue: [one.part] for one in done}
    JournalCommit(directory, work, now, overwrite=True).run(parts)


@dataclass(frozen=True, slots=True)
class _StoredTask:
    """A queue of a queue path in a store.

    Attributes:
        files: its files.
        target: where to write the packed journal.
    """

    files: tuple[SpoolFile, ...]
    target: Location


def _pack_stored(
    spark: SparkSession, path: Location, target: Location, dialect: Dialect, now: int
) -> list[PackedQueue]:
    listed = list_files(path)
    _check_whole(path, {file.location.parent for file in listed if file.location is not None})
    check_apart(path, target)
    if len({file.spool for file in listed}) > 1:
        raise ValueError(f"{path} matches several queue paths: pack one at a time in a store")
    tasks = [
        _StoredTask(tuple(files), target / rotated_name(files[0].queue, now))
        for files in by_queue(listed)
    ]
    return map_on(spark, lambda task: _write_stored(task, dialect), tasks)


def _write_stored(task: _StoredTask, dialect: Dialect) -> PackedQueue:
    """Pack the journal of a queue on the disk of this machine."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "queues")
        path.mkdir()
        for file in task.files:
            _fetch(file, path / file.name_in_spool)
        (selected,) = select([path])
        written = _write(selected, Path(scratch, "packed"), dialect)
        # Under a name that nobody reads until it is whole.
        whole = task.target.parent / temporary_name(selected.queue, "pack", 0)
        upload(written.part.path, whole)
        whole.move(task.target)
    return replace(written.packed, spool=task.files[0].spool)


def _fetch(file: SpoolFile, path: Path) -> None:
    assert file.location is not None  # noqa: S101 # it is in a store
    with open_stream(path, "wb") as copy:
        copy.writelines(file.location.pieces())
    if path.stat().st_size != file.size:
        raise JournalError(f"{file.path} was changed meanwhile: pack again, to another place")
