"""`pack`: pack the journals of many queues offline, in parallel, one task for each queue.

The journal of a queue is replaced at a single rename. A crash leaves each queue either packed or
unchanged, and may leave a directory `~~write-...`, which the next write or server start removes.
No server may run on the queue path.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pyspark.sql import SparkSession

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.journal import write_directories
from kestrelmq.journal.files import DiskDirectory, QueuePathLock, mapped
from kestrelmq.journal.loading import save_tail
from kestrelmq.journal.walk import WalkEnd
from kestrelmq.journal.write_directories import WriteOwner
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.journal_commit import JournalCommit
from kestrelmq.spark.journal_parts import JournalPart
from kestrelmq.spark.packing import pack_files
from kestrelmq.spark.reading import map_on
from kestrelmq.spark.spool import SpoolFile, by_queue, list_files, list_spool


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
    last: SpoolFile
    torn: WalkEnd | None


def pack(
    spark: SparkSession,
    path: str,
    *,
    dialect: Dialect = "documented",
    clock: Clock | None = None,
) -> list[PackedQueue]:
    """Pack the journals of every queue of `path`; a server then loads the same queues.

    Args:
        spark: the session.
        path: a queue path, or a glob of queue paths.
        dialect: the dialect to write: `documented`, or `kestrel-2`, which Kestrel 2.4 reads.
        clock: gives the files' timestamps; by default the machine's clock.

    Raises:
        QueuePathLocked: a server uses the queue path.
        ValueError: `path` matches only some files of a queue path.
    """
    now = (clock or SystemClock()).now()
    with ExitStack() as locks:
        spools = sorted({file.spool for file in list_files(path)})
        for spool in spools:
            lock = QueuePathLock(Path(spool))
            lock.acquire()
            locks.callback(lock.release)
        files = [file for spool in spools for file in list_spool(spool)]
        if len(list_files(path)) < len(files):
            raise ValueError(
                f"{path} matches only some files of a queue path; packing needs all of them"
            )
        queues = list(by_queue(files))
        work: dict[str, Path] = {}
        for spool in spools:
            write_directories.remove_abandoned(Path(spool))
            work[spool] = write_directories.create(Path(spool), WriteOwner.of(os.getpid()))
            locks.callback(write_directories.remove, work[spool])
        written = _pack_all(spark, queues, work, dialect)
        for spool, group in groupby(written, key=lambda one: one.packed.spool):
            _commit(Path(spool), work[spool], list(group), now)
    return [one.packed for one in written]


def _pack_all(
    spark: SparkSession, queues: Sequence[list[SpoolFile]], work: dict[str, Path], dialect: Dialect
) -> list[_PackedJournal]:
    tasks = [(files, work[files[0].spool] / f"{place}") for place, files in enumerate(queues)]
    return map_on(spark, lambda task: _pack_one(*task, dialect), tasks)


def _pack_one(files: list[SpoolFile], target: Path, dialect: Dialect) -> _PackedJournal:
    spool, queue = files[0].spool, files[0].queue
    items, after, torn = pack_files(files, target, dialect)
    before = sum(file.size for file in files)
    return _PackedJournal(
        PackedQueue(spool, queue, items, before, after),
        JournalPart(queue, target, items, after),
        files[-1],
        torn,
    )


def _commit(spool: Path, work: Path, done: list[_PackedJournal], now: int) -> None:
    directory = DiskDirectory(spool)
    for one in done:
        if one.torn is not None:
            # Bytes that are no record are set aside, never deleted.
            last = Path(one.last.path)
            with mapped(last) as buffer:
                save_tail(directory, last.name, buffer, one.torn, now)
    parts = {one.packed.queue: [one.part] for one in done}
    JournalCommit(directory, work, now, overwrite=True).run(parts)
