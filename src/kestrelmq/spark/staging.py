"""Where items of live queues are kept from the moment they leave a server until Spark is done.

A batch of a stream must give the same rows whenever it is read again, but a queue gives an item
once. So a task that reads a server's items first writes them to a part, a file that is written
once, and only then tells the server that they are taken:

    1  open reads on the server          a crash: the server takes the items back
    2  write a temporary, sync it        a crash: the same, and the temporary is garbage
    3  link it into place, sync the directory
    4  confirm the reads                 a crash before: the items are in the part, and come again
    5  yield the rows of the part

A task that finds the part in place skips to 5. Of two tasks that make the same part one wins the
link; the other gives its items back and reads the winner's part.

Parts are kept until Spark has logged the batch after theirs. The mark `committed` is set before
they are deleted, and a task looks at it between 3 and 4: one that was stopped for so long that its
batch is over gives its items back, for nobody would ever read its part.

The staging location is a directory that the driver and every executor see, on a file system with
hard links and locks. It belongs to one query, which `identity` names. The process of its driver has
it locked while the query runs.
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
"""A part is closed when its items have this many bytes: they are held in memory until then."""
_BATCH_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 10_000

_PART_NAME: Final = re.compile(r"(\d{10})-(\d{5})-(\d{5})\.arrow")
_IDENTITY: Final = "identity"
_COMMITTED: Final = "committed"
_LOCK: Final = "lock"
_DATA_FIELD: Final = pa.field("data", pa.binary(), nullable=False)

Reached = Callable[[str], None]
"""Called between two steps with the name of the place; a crash test stops there."""


class StagingInUse(KestrelError):  # noqa: N818 # says what it is
    """Another query uses the staging location, or its content belongs to another one."""


class BatchIsOver(KestrelError):  # noqa: N818
    """The batch was processed and its parts are gone; only a task left behind comes here."""


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """Which part: the batch's epoch, the partition in it, and a number from 0."""

    epoch: int
    partition: int
    number: int

    @property
    def name(self) -> str:
        """Its file name."""
        return f"{self.epoch:010d}-{self.partition:05d}-{self.number:05d}.arrow"


@dataclass(frozen=True, slots=True)
class Opened:
    """Items whose reads are open; `exhausted` when the server has no more, or gives no more."""

    items: Sequence[bytes]
    exhausted: bool


class OpenReads(Protocol):
    """Reads of one server's queue, open until they are confirmed or given back."""

    def open(self, items: int, size: int) -> Opened:
        """Open up to `items` reads, of about `size` bytes.

        Raises:
            ClientError: the server cannot be read; `give_back` is called next.
        """

    def confirm(self) -> None:
        """Confirm what is open. What cannot be confirmed comes again; that is no error."""

    def give_back(self) -> None:
        """End the reads without confirming them."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one partition of a batch may take: from which server, how many items, how many bytes."""

    server: str
    items: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part in place.

    Attributes:
        id: which one.
        server: where its items came from.
        read_time: when they were read (ms).
        is_last: whether it is its partition's last.
        batches: the items, in the server's order; one column, `data`.
    """

    id: PartId
    server: str
    read_time: int
    is_last: bool
    batches: tuple[pa.RecordBatch, ...]

    @property
    def items(self) -> int:
        """How many items are in it."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def bytes(self) -> int:
        """Bytes of its items."""
        return sum(_data_bytes(batch) for batch in self.batches)


class Staging:
    """A staging location. Any number of tasks may use one at a time, and one driver."""

    def __init__(self, path: Path, reached: Reached | None = None) -> None:
        self.path = path
        self._reached = reached or _unwatched

    # The tasks

    def read(
        self,
        epoch: int,
        partition: int,
        share: Share,
        connect: Callable[[], OpenReads],
        clock: Clock,
    ) -> Iterator[Part]:
        """Yield the parts of a partition in order: those in place, then those made now.

        Raises:
            BatchIsOver: the batch was committed.
            ServerRefused: the server does not know the commands it takes.
            OSError: a part cannot be written or read.
        """
        reads: OpenReads | None = None
        items, size, number = share.items, share.bytes, 0
        try:
            while True:
                part_id = PartId(epoch, partition, number)
                part = self.find(part_id)
                if part is None:
                    self._check_not_over(epoch)
                    reads = reads or connect()
                    rest = Share(share.server, items, size)
                    part = self._stage(part_id, rest, reads, clock)
                self._reached("yielding")
                yield part
                if part.is_last:
                    return
                items, size, number = items - part.items, size - part.bytes, number + 1
        finally:
            if reads is not None:
                reads.give_back()

    def find(self, part_id: PartId) -> Part | None:
        """Return a part, or None when it is not in place."""
        try:
            source = pa.memory_map(str(self.path / part_id.name))
        except FileNotFoundError:
            return None
        reader = pa.ipc.open_file(source)
        facts = reader.schema.metadata
        return Part(
            part_id,
            facts[b"server"].decode(),
            int(facts[b"read_time"]),
            facts[b"is_last"] == b"1",
            tuple(reader.get_batch(place) for place in range(reader.num_record_batches)),
        )

    def _stage(self, part_id: PartId, share: Share, reads: OpenReads, clock: Clock) -> Part:
        try:
            opened = reads.open(share.items, min(share.bytes, PART_BYTES))
        except ClientError as error:
            reads.give_back()
            if isinstance(error, ServerRefused) and error.kind != "SERVER_ERROR":
                raise
            # The server is gone, and its items with it; the batch goes on without them.
            opened = Opened((), exhausted=True)
        self._reached("opened")
        size = sum(map(len, opened.items))
        is_last = opened.exhausted or len(opened.items) >= share.items or size >= share.bytes
        facts = {"server": share.server, "read_time": str(clock.now()), "is_last": f"{is_last:d}"}
        if self._put(part_id, opened.items, facts):
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

    def _put(self, part_id: PartId, items: Sequence[bytes], facts: dict[str, str]) -> bool:
        """Write a part; return False when there is one already."""
        schema = pa.schema([_DATA_FIELD], metadata=facts)

        def write(file: BinaryIO) -> None:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in _record_batches(items):
                    writer.write_batch(batch)

        return self._place(part_id.name, write)

    def _place(self, name: str, write: Callable[[BinaryIO], object]) -> bool:
        """Write a file durably; return False when there is one of that name already."""
        temporary = self._temporary(name)
        try:
            # Only a new file: a link that somebody put there is not followed.
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
        # Whoever was first may not have come to this yet.
        sync_path(self.path)
        self._reached("durable")
        return is_placed

    def _check_not_over(self, epoch: int) -> None:
        committed = self.committed()
        if epoch <= committed:
            raise BatchIsOver(
                f"{self.path}: batch {epoch} was processed and is gone (now at {committed}); "
                "is this an old copy of the query's checkpoint?"
            )

    # The driver

    def lock(self, patience: float, clock: Clock, pause: Callable[[float], None]) -> FileLock:
        """Keep other queries out; return the lock, which the caller releases.

        A process whose driver was killed may hold it a moment longer, so this waits for it for up
        to `patience` seconds.

        Raises:
            StagingInUse: another query runs.
        """
        make_directory(self.path)
        note = f"process {os.getpid()} on {os.uname().nodename}\n"
        problem = f"staging location {self.path} is in use by another query"
        lock = FileLock(self.path / _LOCK, problem, note=note)
        deadline = clock.monotonic() + patience
        while not lock.try_acquire():
            if clock.monotonic() >= deadline:
                raise StagingInUse(f"{problem} ({lock.holder()}); every query needs one of its own")
            pause(0.1)
        return lock

    def identity(self) -> str:
        """Return the name of the query that this location belongs to; make one up at first."""
        return self.keep_first(_IDENTITY, uuid4().hex)

    def keep_first(self, name: str, text: str) -> str:
        """Write a file durably unless it is there; return what it holds, whoever wrote it."""
        file = self.path / name
        if not file.exists():
            make_directory(self.path)
            self._place(name, lambda new: new.write(text.encode()))
        return file.read_text()

    def parts(self) -> list[PartId]:
        """Return the parts in place."""
        matches = [_PART_NAME.fullmatch(file.name) for file in self.path.iterdir()]
        return sorted(PartId(*map(int, match.groups())) for match in matches if match is not None)

    def committed(self) -> int:
        """Return the last epoch whose parts may be gone; 0 when there is none."""
        try:
            return int((self.path / _COMMITTED).read_text())
        except FileNotFoundError:
            return 0

    def commit(self, epoch: int) -> None:
        """Delete the parts of this epoch and of those before it, which nobody needs any more."""
        if epoch > self.committed():
            replace_file(DiskDirectory(self.path), _COMMITTED, b"%d" % epoch)
        self._reached("marked")
        for part_id in self.parts():
            if part_id.epoch <= epoch:
                (self.path / part_id.name).unlink(missing_ok=True)
                self._reached("deleting")

    def collect_garbage(self) -> None:
        """Delete what crashes left: temporaries, and parts of epochs that are committed.

        For the driver that holds the lock and runs no tasks. A task of an earlier driver that still
        runs loses its temporary, hence gives its items back.
        """
        for file in self.path.iterdir():
            if TEMPORARY_MARK in file.name:
                file.unlink(missing_ok=True)
        self.commit(self.committed())

    def _temporary(self, name: str) -> Path:
        return self.path / f"{TEMPORARY_MARK}{name}~{uuid4().hex[:12]}"


def _record_batches(items: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Cut items into record batches that Arrow can address."""
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


def _unwatched(_point: str) -> None:
    """Do nothing: nobody watches."""
