"""Write `kestrel.journal`: turn a DataFrame into queues that a server loads at start.

Tasks write parts to a directory that servers ignore; when all parts are written, the driver renames
them to journal files (`journal_commit`), or in a store has them copied (`stored_commit`). A failed
job removes its parts. A task that is run again writes its own parts, and only those of the attempt
that Spark accepted are used. The next write or server start removes the parts of a killed driver:
see `disk.write_directories`. The driver and every executor must see the queue path, and no server
may run on it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kestrelmq.clock import SystemClock
from kestrelmq.disk import write_directories
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.locks import QueuePathLock, in_use, is_locked
from kestrelmq.disk.opening import open_stream
from kestrelmq.disk.renaming import make_queue_path
from kestrelmq.errors import JournalError, QueuePathLocked
from kestrelmq.format.names import group_files
from kestrelmq.spark.sinks import stored_commit
from kestrelmq.spark.sinks.encoding import EncodedRows, check_columns, encode
from kestrelmq.spark.sinks.journal_commit import JournalCommit
from kestrelmq.spark.sinks.journal_parts import (
    JournalPart,
    PartWriter,
    in_order,
    index_path,
    merge_parts,
)
from kestrelmq.spark.sinks.stored_commit import StoredJournalCommit, driver, files_found, upload
from kestrelmq.spark.sinks.written_columns import session_zone
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import Location, in_parallel, local_path

_PATIENCE: Final = 3600.0
"""Seconds that a commit waits for the lock of the queue path: another commit may be large."""
_PAUSE: Final = 0.05
_TASK_BITS: Final = 32
"""A task numbers its delayed items from its own number and so many bits on."""


class PartsWritten(WriterCommitMessage):
    """A task's message to the driver: the parts that it wrote."""

    def __init__(self, partition: int, parts: Sequence[JournalPart]) -> None:
        self.partition = partition
        self.parts = tuple(parts)


class JournalWriter(DataSourceArrowWriter):
    """Writes journals. The driver makes it, sends a copy to every task, and commits with it."""

    def __init__(self, path: JournalPath, schema: StructType, *, overwrite: bool) -> None:
        """Start a job: create the queue path, and the directory in it that its tasks write to.

        Spark makes the writer on the driver before it starts the tasks that write.

        Raises:
            ConfigError: the columns cannot be written.
            QueuePathLocked: a server uses the queue path.
            OSError, StorageError: the directory cannot be created.
        """
        check_columns(schema)
        # Rows without an add time get the job's time, so that a repeated task writes the same.
        self._now = SystemClock().now()
        self._job = (
            StoredJob(path, self._now, overwrite=overwrite)
            if isinstance(path, Location)
            else LocalJob(path, self._now, overwrite=overwrite)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartsWritten:
        """Write the parts of one task."""
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("parts can be written only by a Spark task")
        zone = session_zone()
        numbers = count((context.partitionId() << _TASK_BITS) + 1)
        rows = (one for batch in iterator for one in encode(batch, self._now, zone, numbers))
        task = f"{context.partitionId()}-{context.taskAttemptId()}"
        return PartsWritten(context.partitionId(), self._job.write(task, rows))

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Put the parts of all tasks into the queues."""
        by_queue: dict[str, list[JournalPart]] = {}
        written = [message for message in messages if isinstance(message, PartsWritten)]
        for message in sorted(written, key=lambda message: message.partition):
            for part in message.parts:
                by_queue.setdefault(part.queue, []).append(part)
        self._job.commit(by_queue)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:  # noqa: ARG002
        """Remove all parts of the job."""
        self._job.abort()


class LocalJob:
    """A write to a queue path of the file system."""

    def __init__(self, path: str, now: int, *, overwrite: bool) -> None:
        self._path = Path(path).absolute()
        make_queue_path(self._path)
        check_not_served(path)
        write_directories.remove_abandoned(self._path)
        self._work = write_directories.create(self._path, driver())
        self._now = now
        self._overwrite = overwrite

    def write(self, task: str, encoded: Iterable[EncodedRows]) -> list[JournalPart]:
        """Write the parts of one attempt of a task, `task`, which reach the driver with it."""
        return write_parts(self._work, task, encoded)

    def commit(self, parts: Mapping[str, Sequence[JournalPart]]) -> None:
        """Put the parts of each queue, in the order of tasks, into it, one queue after another."""
        lock = _locked(self._path, self._work)
        try:
            _check_complete(parts)
            ordered = {
                queue: in_order(mine) or [merge_parts(mine, self._work / f"merged-{place}")]
                for place, (queue, mine) in enumerate(parts.items())
            }
            directory = DiskDirectory(self._path)
            found = group_files(directory.names())
            commit = JournalCommit(directory, self._work, self._now, overwrite=self._overwrite)
            commit.run(ordered, found)
            write_directories.remove(self._work)
        finally:
            lock.release()

    def abort(self) -> None:
        """Remove all parts."""
        write_directories.remove(self._work)


class StoredJob:
    """A write to a queue path in a store.

    Tasks write their parts to a temporary directory first: a store appends to no object.
    """

    def __init__(self, path: Location, now: int, *, overwrite: bool) -> None:
        stored_commit.remove_abandoned(path)
        self._path = path
        self._work = stored_commit.new_directory(path, driver())
        self._now = now
        self._overwrite = overwrite

    def write(self, task: str, encoded: Iterable[EncodedRows]) -> list[JournalPart]:
        """Write the parts of one task."""
        with TemporaryDirectory() as scratch:
            parts = write_parts(Path(scratch), task, encoded)
            in_parallel(self._upload, parts)
        return [replace(part, path=Path(part.path.name)) for part in parts]

    def commit(self, parts: Mapping[str, Sequence[JournalPart]]) -> None:
        """Put the parts into the queues."""
        self._check_complete(parts)
        ordered = {
            queue: in_order(mine) or [self._merged(mine, f"merged-{place}")]
            for place, (queue, mine) in enumerate(parts.items())
        }
        found = files_found(self._path)
        StoredJournalCommit(self._work, self._now, overwrite=self._overwrite).run(ordered, found)
        self._work.delete_tree()

    def abort(self) -> None:
        """Remove all parts."""
        self._work.delete_tree()

    def _upload(self, part: JournalPart) -> None:
        for path in (part.path, index_path(part.path)) if part.sequenced else (part.path,):
            upload(path, self._work / path.name)

    def _check_complete(self, parts: Mapping[str, Sequence[JournalPart]]) -> None:
        there = dict(self._work.files())
        for part in (part for mine in parts.values() for part in mine):
            if there.get(part.path.name) != part.size:
                raise JournalError(
                    f"{self._work / part.path.name} is gone or not whole: nothing was changed; "
                    "write again"
                )

    def _merged(self, parts: Sequence[JournalPart], name: str) -> JournalPart:
        with TemporaryDirectory() as scratch:
            local = []
            for part in parts:
                path = Path(scratch) / part.path.name
                for one in (path, index_path(path)):
                    with open_stream(one, "wb") as file:
                        file.writelines((self._work / one.name).pieces())
                local.append(replace(part, path=path))
            merged = merge_parts(local, Path(scratch) / name)
            upload(merged.path, self._work / name)
            return replace(merged, path=Path(name))


def write_parts(directory: Path, task: str, encoded: Iterable[EncodedRows]) -> list[JournalPart]:
    """Write the parts of one attempt of a task to a directory."""
    writer = PartWriter(directory, task)
    for rows in encoded:
        writer.write(rows)
    return writer.finish()


def check_not_served(path: JournalPath) -> None:
    """Check that neither a server nor a committing write has the queue path locked.

    No server runs on one in a store.

    Raises:
        QueuePathLocked: the queue path is locked.
    """
    if isinstance(path, Location):
        return
    if is_locked(Path(local_path(path))):
        raise QueuePathLocked(f"{in_use(path)}; journals can be written only while it is not")


def _locked(path: Path, work: Path) -> QueuePathLock:
    """Lock the queue path; wait while another write has it locked.

    A server keeps the lock while it runs, and removes the directories of writes when it starts. So
    once `work` is gone, there is nothing to wait for.

    Raises:
        QueuePathLocked: a server has the lock, or another write has had it for too long.
    """
    deadline = time.monotonic() + _PATIENCE
    lock = QueuePathLock(path)
    while True:
        try:
            lock.acquire()
        except QueuePathLocked:
            if not work.exists() or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return lock


def _check_complete(by_queue: Mapping[str, Sequence[JournalPart]]) -> None:
    """Check that all parts are complete, before the first queue is changed.

    Raises:
        JournalError: a part is missing or not complete.
    """
    for part in (part for parts in by_queue.values() for part in parts):
        if not part.path.exists() or part.path.stat().st_size != part.size:
            raise JournalError(
                f"{part.path} is gone or not whole, perhaps because a server was started on the "
                "queue path meanwhile: nothing was changed; write again"
            )
