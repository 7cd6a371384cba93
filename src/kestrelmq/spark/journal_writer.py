"""Writing `kestrel.journal`: a DataFrame becomes queues that a server loads at start.

Tasks write parts to a directory that servers ignore; the driver gives them their names when all
are there. A failed job removes its parts, a task that is run again writes parts of its own, and
only those of the attempt that Spark counts are used. The queue path must be one that the driver
and every executor see, and no server may run on it.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kestrelmq.clock import SystemClock
from kestrelmq.errors import InvalidQueueName
from kestrelmq.journal.files import DiskDirectory, QueuePathLock
from kestrelmq.names import queue_name_error
from kestrelmq.spark.encoding import Encoded, check_columns, encode
from kestrelmq.spark.journal_commit import Commit
from kestrelmq.spark.journal_parts import Part, PartWriter, in_order
from kestrelmq.spark.options import JournalWriteOptions


class PartsWritten(WriterCommitMessage):
    """What a task tells the driver: which parts it wrote."""

    def __init__(self, partition: int, parts: Sequence[Part]) -> None:
        self.partition = partition
        self.parts = tuple(parts)


class JournalWriter(DataSourceArrowWriter):
    """Writes journals. Made on the driver, copied to every task, and used there again to commit."""

    def __init__(
        self, options: JournalWriteOptions, schema: StructType, *, overwrite: bool
    ) -> None:
        """Prepare a job.

        Raises:
            ConfigError: the columns cannot be written.
        """
        check_columns(schema)
        self._path = Path(options.path).absolute()
        self._work = self._path / f"~~write-{uuid4().hex[:16]}"
        self._overwrite = overwrite
        # Rows without an add time get that of the job, so that a task run again writes the same.
        self._now = SystemClock().now()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartsWritten:
        """Write the parts of one task."""
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a part is written by a Spark task")
        writer = PartWriter(self._work, f"{context.partitionId()}-{context.taskAttemptId()}")
        known: set[str] = set()
        for batch in iterator:
            for encoded in encode(batch, self._now):
                _check_names(encoded, known)
                writer.write(encoded)
        return PartsWritten(context.partitionId(), writer.finish())

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Make the parts of all tasks the queues' contents, queue by queue."""
        self._path.mkdir(parents=True, exist_ok=True)
        by_queue: dict[str, list[Part]] = {}
        written = [message for message in messages if isinstance(message, PartsWritten)]
        for message in sorted(written, key=lambda message: message.partition):
            for part in message.parts:
                by_queue.setdefault(part.queue, []).append(part)
        lock = QueuePathLock(self._path)
        lock.acquire()
        try:
            ordered = {
                queue: in_order(parts, self._work / f"merged-{place}")
                for place, (queue, parts) in enumerate(by_queue.items())
            }
            directory = DiskDirectory(self._path)
            Commit(directory, self._work, self._now, overwrite=self._overwrite).run(ordered)
            shutil.rmtree(self._work, ignore_errors=True)
        finally:
            lock.release()

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:  # noqa: ARG002
        """Remove all parts of the job."""
        shutil.rmtree(self._work, ignore_errors=True)


def _check_names(encoded: Encoded, known: set[str]) -> None:
    for queue in encoded.queues:
        if queue not in known:
            error = queue_name_error(queue)
            if error is not None:
                raise InvalidQueueName(f"column 'queue': {queue!r} is not allowed: {error}")
            known.add(queue)
