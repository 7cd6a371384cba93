"""Write `kestrel.journal`: turn a DataFrame into queues that a server loads at start.

Tasks write parts to a directory that servers ignore; when all parts are written, the driver renames
them to journal files. A failed job removes its parts. A task that is run again writes its own
parts, and only those of the attempt that Spark accepted are used. The next write or server start
removes the parts of a killed driver: see `journal.write_directories`. The driver and every executor
must see the queue path, and no server may run on it.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kestrelmq.clock import SystemClock
from kestrelmq.errors import JournalError, QueuePathLocked
from kestrelmq.journal import write_directories
from kestrelmq.journal.files import (
    DiskDirectory,
    QueuePathLock,
    in_use,
    is_locked,
    make_queue_path,
)
from kestrelmq.spark.encoding import check_columns, encode
from kestrelmq.spark.journal_commit import JournalCommit
from kestrelmq.spark.journal_options import JournalWriteOptions
from kestrelmq.spark.journal_parts import JournalPart, PartWriter, ordered_parts
from kestrelmq.spark.storage import local_path
from kestrelmq.spark.written_columns import session_zone

_PATIENCE: Final = 3600.0
"""Seconds that a commit waits for the lock of the queue path: another commit may be large."""
_PAUSE: Final = 0.05


class PartsWritten(WriterCommitMessage):
    """A task's message to the driver: the parts that it wrote."""

    def __init__(self, partition: int, parts: Sequence[JournalPart]) -> None:
        self.partition = partition
        self.parts = tuple(parts)


class JournalWriter(DataSourceArrowWriter):
    """Writes journals. The driver makes it, sends a copy to every task, and commits with it."""

    def __init__(
        self, options: JournalWriteOptions, schema: StructType, *, overwrite: bool
    ) -> None:
        """Start a job: create the directory that its tasks write to.

        Spark makes the writer on the driver before it starts the tasks that write.

        Raises:
            ConfigError: the columns cannot be written.
            QueuePathLocked: a server uses the queue path.
            OSError: the directory cannot be created.
        """
        check_columns(schema)
        self._path = Path(options.path).absolute()
        make_queue_path(self._path)
        check_not_served(options.path)
        write_directories.remove_abandoned(self._path)
        self._work = write_directories.create(self._path, _driver())
        self._overwrite = overwrite
        # Rows without an add time get the job's time, so that a repeated task writes the same.
        self._now = SystemClock().now()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartsWritten:
        """Write the parts of one task."""
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("parts can be written only by a Spark task")
        writer = PartWriter(self._work, f"{context.partitionId()}-{context.taskAttemptId()}")
        zone = session_zone()
        for batch in iterator:
            for encoded in encode(batch, self._now, zone):
                writer.write(encoded)
        return PartsWritten(context.partitionId(), writer.finish())

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Put the parts of all tasks into the queues, one queue after the other."""
        by_queue: dict[str, list[JournalPart]] = {}
        written = [message for message in messages if isinstance(message, PartsWritten)]
        for message in sorted(written, key=lambda message: message.partition):
            for part in message.parts:
                by_queue.setdefault(part.queue, []).append(part)
        lock = _locked(self._path, self._work)
        try:
            _check_complete(by_queue)
            ordered = {
                queue: ordered_parts(parts, self._work / f"merged-{place}")
                for place, (queue, parts) in enumerate(by_queue.items())
            }
            directory = DiskDirectory(self._path)
            JournalCommit(directory, self._work, self._now, overwrite=self._overwrite).run(ordered)
            write_directories.remove(self._work)
        finally:
            lock.release()

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:  # noqa: ARG002
        """Remove all parts of the job."""
        write_directories.remove(self._work)


def check_not_served(path: str) -> None:
    """Check that neither a server nor a committing write has the queue path locked.

    Raises:
        QueuePathLocked: the queue path is locked.
    """
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
                f"{part.path} is gone or not whole: was a server started on the queue path "
                "meanwhile? Nothing was changed; write again"
            )


def _driver() -> write_directories.WriteOwner:
    """Return the process that runs the job: the nearest ancestor that is not a Python worker."""
    process = write_directories.process_above(os.getpid())
    while process is not None and _is_python(process):
        process = write_directories.process_above(process)
    return write_directories.WriteOwner.of(process or os.getppid())


def _is_python(process: int) -> bool:
    try:
        return "python" in Path(f"/proc/{process}/exe").readlink().name
    except OSError:
        return False
