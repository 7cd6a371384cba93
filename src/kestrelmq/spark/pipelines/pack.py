"""`pack`: pack the journals of many queues offline, in parallel, one task for each queue.

The journal of a queue is replaced at a single rename. A crash leaves each queue either packed or
unchanged, and may leave a directory `~~write-...`, which the next write or server start removes.
No server may run on the queue path.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pyspark.sql import SparkSession

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.journal import write_directories
from kestrelmq.journal.files import DiskDirectory, QueuePathLock, mapped
from kestrelmq.journal.loading import save_tail
from kestrelmq.journal.pack import write_packed
from kestrelmq.journal.selection import SelectedQueue, select
from kestrelmq.journal.walk import WalkEnd
from kestrelmq.journal.write_directories import WriteOwner
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.journal_commit import JournalCommit
from kestrelmq.spark.journal_parts import JournalPart
from kestrelmq.spark.reading import map_on
from kestrelmq.spark.spool import list_files, list_spool
from kestrelmq.spark.storage import local_path


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
    path: str,
    *,
    dialect: Dialect = "documented",
    clock: Clock | None = None,
) -> list[PackedQueue]:
    """Pack the journals of every queue of `path`; a server then loads the same queues.

    The journal of a queue's delayed items is packed like that of another queue.

    Args:
        spark: the session.
        path: a queue path, or a glob of queue paths.
        dialect: the dialect to write: `documented`, or `kestrel-2`, which Kestrel 2.4 reads.
        clock: gives the files' timestamps; by default the machine's clock.

    Raises:
        QueuePathLocked: a server uses the queue path.
        ValueError: `path` matches only some files of a queue path.
    """
    path = local_path(path)
    now = (clock or SystemClock()).now()
    with ExitStack() as locks:
        spools = sorted({Path(file.spool) for file in list_files(path)})
        for spool in spools:
            lock = QueuePathLock(spool)
            lock.acquire()
            locks.callback(lock.release)
        if len(list_files(path)) < sum(len(list_spool(str(spool))) for spool in spools):
            raise ValueError(
                f"{path} matches only some files of a queue path; packing needs all of them"
            )
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
