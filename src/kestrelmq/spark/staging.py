"""The staging location, which keeps items from when they leave a server until Spark is done.

A batch of a stream must give the same rows whenever it is read again, but a queue gives an item
only once. So a task that reads a server's items first writes them to a part, a file that never
changes, and only then confirms the reads:

    step                                       what a crash during the step leaves
    1  open reads on the server                the server puts the items back
    2  write a temporary file and sync it      the same, and the temporary is garbage
    3  link it into place, sync the directory  the same, or the part is in place
    4  confirm the reads                       the part is in place; unconfirmed items come again
    5  yield the rows of the part              the part is in place, and is read again

A task that finds the part in place goes straight to step 5. If two tasks make the same part, the
one that links first wins; the other gives its items back and reads the winner's part.

Parts are kept until Spark has logged the next batch. The driver writes the mark `committed` before
it deletes them, and a task reads that mark between steps 3 and 4. A task that was stopped for so
long that its batch is over gives its items back, because its part would never be read.

The staging location is a directory that the driver and every executor see, on a file system with
hard links and locks. It belongs to one query, whose name is in the file `identity`. The process of
the query's driver keeps it locked while the query runs.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from uuid import uuid4

import pyarrow as pa

from kestrelmq.clock import Clock
from kestrelmq.errors import ClientError, KestrelError, ServerRefused
from kestrelmq.journal.files import (
    DiskDirectory,
    FileLock,
    link_new,
    make_directory,
    replace_file,
    sync_path,
)
from kestrelmq.journal.names import TEMPORARY_MARK

PART_BYTES: Final = 16 << 20
"""A part is complete when its items have this many bytes; they are in memory until then."""
_BATCH_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 10_000

_PART_NAME: Final = re.compile(r"(\d{10})-(\d{5})-(\d{5})\.arrow")
_IDENTITY: Final = "identity"
_COMMITTED: Final = "committed"
_LOCK: Final = "lock"
_DATA_FIELD: Final = pa.field("data", pa.binary(), nullable=False)

Reached = Callable[[str], None]
"""Called between two steps with the name of that point; crash tests stop there."""


class StagingInUse(KestrelError):  # noqa: N818 # says what it is
    """Another query uses the staging location, or its contents belong to another query."""


class BatchIsOver(KestrelError):  # noqa: N818
    """The batch was processed and its parts are deleted; only a late task gets this error."""


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """Identifies a part: the batch's epoch, the partition, and the part's number from 0."""

    epoch: int
    partition: int
    number: int

    @property
    def name(self) -> str:
        """Its file name."""
        return f"{self.epoch:010d}-{self.partition:05d}-{self.number:05d}.arrow"


@dataclass(frozen=True, slots=True)
class OpenedItems:
    """Items of open reads; `exhausted` if the server has, or gives, no more items."""

    items: Sequence[bytes]
    exhausted: bool


class QueueReads(Protocol):
    """The open reads of a queue on one server, until they are confirmed or given back."""

    def open(self, items: int, size: int) -> OpenedItems:
        """Open up to `items` reads, of about `size` bytes.

        Raises:
            ClientError: the server cannot be read; `give_back` is called next.
        """

    def confirm(self) -> None:
        """Confirm the open reads. Items whose confirmation fails come again; that is no error."""

    def give_back(self) -> None:
        """End the reads without confirming them."""


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """What one partition of a batch may take: the server, and the maximum of items and bytes."""

    server: str
    items: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part in place.

    Attributes:
        id: its identifier.
        server: the server that its items came from.
        read_time: when they were read (ms).
        is_last: whether it is the last part of its partition.
        batches: the items, in the server's order; one column, `data`.
    """

    id: PartId
    server: str
    read_time: int
    is_last: bool
    batches: tuple[pa.RecordBatch, ...]

    @property
    def items(self) -> int:
        """The number of items in it."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def bytes(self) -> int:
        """The bytes of data in it."""
        return sum(_data_bytes(batch) for batch in self.batches)


class Staging:
    """A staging location. One driver and any number of tasks may use it at the same time."""

    def __init__(self, path: Path, reached: Reached | None = None) -> None:
        self.path = path
        self._reached = reached or _ignore_step

    # --- for tasks ---

    def read(
        self,
        epoch: int,
        partition: int,
        share: PartitionShare,
        connect: Callable[[], QueueReads],
        clock: Clock,
    ) -> Iterator[StagedPart]:
        """Yield the parts of a partition in order: those in place, then newly made ones.

        Raises:
            BatchIsOver: the batch was committed.
            ServerRefused: the server does not know the commands that are used.
            OSError: a part cannot be written or read.
        """
        reads: QueueReads | None = None
        items, size, number = share.items, share.bytes, 0
        try:
            while True:
                part_id = PartId(epoch, partition, number)
                part = self.find(part_id)
                if part is None:
                    self._check_not_over(epoch)
                    reads = reads or connect()
                    rest = PartitionShare(share.server, items, size)
                    part = self._stage(part_id, rest, reads, clock)
                self._reached("yielding")
                yield part
                if part.is_last:
                    return
                items, size, number = items - part.items, size - part.bytes, number + 1
        finally:
            if reads is not None:
                reads.give_back()

    def find(self, part_id: PartId) -> StagedPart | None:
        """Return a part, or None if it is not in place."""
        try:
            source = pa.memory_map(str(self.path / part_id.name))
        except FileNotFoundError:
            return None
        reader = pa.ipc.open_file(source)
        metadata = reader.schema.metadata
        return StagedPart(
            part_id,
            metadata[b"server"].decode(),
            int(metadata[b"read_time"]),
            metadata[b"is_last"] == b"1",
            tuple(reader.get_batch(place) for place in range(reader.num_record_batches)),
        )

    def _stage(
        self, part_id: PartId, share: PartitionShare, reads: QueueReads, clock: Clock
    ) -> StagedPart:
        try:
            opened = reads.open(share.items, min(share.bytes, PART_BYTES))
        except ClientError as error:
            reads.give_back()
            if isinstance(error, ServerRefused) and error.kind != "SERVER_ERROR":
                raise
            # The server cannot be reached; the batch continues without its items.
            opened = OpenedItems((), exhausted=True)
        self._reached("opened")
        size = sum(map(len, opened.items))
        is_last = opened.exhausted or len(opened.items) >= share.items or size >= share.bytes
        metadata = {
            "server": share.server,
            "read_time": str(clock.now()),
            "is_last": f"{is_last:d}",
        }
        if self._write_part(part_id, opened.items, metadata):
            if self.committed() >= part_id.epoch:
                reads.give_back()
                (self.path / part_id.name).unlink(missing_ok=True)
            self._check_not_over(part_id.epoch)
            reads.confirm()
            self._reached("confirmed")
        else:
            reads.give_back()
        part = self.find(part_id)
        if part is None:
            raise BatchIsOver(f"{self.path}: {part_id.name} is gone: its batch is over")
        return part

    def _write_part(
        self, part_id: PartId, items: Sequence[bytes], metadata: dict[str, str]
    ) -> bool:
        """Write a part; return False if it exists already."""
        schema = pa.schema([_DATA_FIELD], metadata=metadata)

        def write(file: BinaryIO) -> None:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in _record_batches(items):
                    writer.write_batch(batch)

        return self._write_once(part_id.name, write)

    def _write_once(self, name: str, write: Callable[[BinaryIO], object]) -> bool:
        """Write a file durably; return False if a file with that name exists already."""
        temporary = self._temporary(name)
        try:
            # Mode x: fail if the name exists, and follow no symbolic link.
            with temporary.open("xb") as file:
                write(file)
            self._reached("written")
            sync_path(temporary)
            self._reached("synced")
            is_placed = link_new(temporary, self.path / name)
            if is_placed:
                self._reached("linked")
        finally:
            temporary.unlink(missing_ok=True)
        # Sync even if another task made the file first: it may not have done so yet.
        sync_path(self.path)
        self._reached("durable")
        return is_placed

    def _check_not_over(self, epoch: int) -> None:
        committed = self.committed()
        if epoch <= committed:
            raise BatchIsOver(
                f"{self.path}: batch {epoch} was processed and deleted (now at {committed}); "
                "is this an old copy of the query's checkpoint?"
            )

    # --- for the driver ---

    def lock(self, patience: float, clock: Clock, pause: Callable[[float], None]) -> FileLock:
        """Lock the staging location against other queries; the caller releases the lock.

        Wait for up to `patience` seconds: the process of a driver that was killed may hold the lock
        a little longer.

        Raises:
            StagingInUse: another query has the lock.
        """
        make_directory(self.path)
        note = f"process {os.getpid()} on {os.uname().nodename}\n"
        problem = f"staging location {self.path} is in use by another query"
        lock = FileLock(self.path / _LOCK, problem, note=note)
        deadline = clock.monotonic() + patience
        while not lock.try_acquire():
            if clock.monotonic() >= deadline:
                raise StagingInUse(f"{problem} ({lock.holder()}); each query needs its own")
            pause(0.1)
        return lock

    def identity(self) -> str:
        """Return the name of the query that this location belongs to; the first call creates it."""
        return self.keep_first(_IDENTITY, uuid4().hex)

    def keep_first(self, name: str, text: str) -> str:
        """Write a file durably unless it exists; return its contents, whoever wrote them."""
        file = self.path / name
        if not file.exists():
            make_directory(self.path)
            self._write_once(name, lambda new: new.write(text.encode()))
        return file.read_text()

    def parts(self) -> list[PartId]:
        """Return the parts in place."""
        matches = [_PART_NAME.fullmatch(file.name) for file in self.path.iterdir()]
        return sorted(PartId(*map(int, match.groups())) for match in matches if match is not None)

    def committed(self) -> int:
        """Return the last epoch whose parts may be deleted; 0 if there is none."""
        try:
            return int((self.path / _COMMITTED).read_text())
        except FileNotFoundError:
            return 0

    def commit(self, epoch: int) -> None:
        """Delete the parts of this and all earlier epochs, which are not needed any more."""
        if epoch > self.committed():
            replace_file(DiskDirectory(self.path), _COMMITTED, b"%d" % epoch)
        self._reached("marked")
        for part_id in self.parts():
            if part_id.epoch <= epoch:
                (self.path / part_id.name).unlink(missing_ok=True)
                self._reached("deleting")

    def collect_garbage(self) -> None:
        """Delete what crashes left: temporaries, and parts of committed epochs.

        Call it in a driver that holds the lock and has not started tasks. If a task of an earlier
        driver is still running, it loses its temporary, and therefore gives its items back.
        """
        for file in self.path.iterdir():
            if TEMPORARY_MARK in file.name:
                file.unlink(missing_ok=True)
        self.commit(self.committed())

    def _temporary(self, name: str) -> Path:
        return self.path / f"{TEMPORARY_MARK}{name}~{uuid4().hex[:12]}"


def _record_batches(items: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Split items into record batches that Arrow can address."""
    start, size = 0, 0
    for place, item in enumerate(items):
        if place > start and (place - start == _BATCH_ROWS or size + len(item) > _BATCH_BYTES):
            yield _record_batch(items[start:place])
            start, size = place, 0
        size += len(item)
    if start < len(items):
        yield _record_batch(items[start:])


def _record_batch(items: Sequence[bytes]) -> pa.RecordBatch:
    array = pa.array(items, pa.binary())
    return pa.RecordBatch.from_arrays([array], schema=pa.schema([_DATA_FIELD]))


def _data_bytes(batch: pa.RecordBatch) -> int:
    buffers = batch.column(0).buffers()
    return buffers[2].size if buffers[2] is not None else 0


def _ignore_step(_point: str) -> None:
    """Ignore the point; used when no test watches."""
