"""The staging location, which keeps items from when they leave a server until Spark is done.

A batch of a stream must give the same rows whenever it is read again, but a queue gives an item
only once. So a task that reads a server's items first writes them to a part, a file that never
changes, and only then confirms the reads:

    step                                       what a crash during the step leaves
    1  open reads on the server                no part; see below
    2  write a temporary file and sync it      the same, and the temporary is garbage
    3  link it into place, sync the directory  the same, or the part is in place
    4  confirm the reads                       the part is in place, but not settled
    5  yield the rows of the part              the part is in place, and is read again

What becomes of the reads depends on the server. One that has reserved reads keeps them over a
crash: they are reserved under a tag that names the part, so the next task that makes the part gets
the same items, and the part has the names of its reads, so whoever finds it in place can confirm
them. Each item comes once. At any other server open reads end with their connections: items that
were not confirmed come again.

A part is settled once the server has been told; a file beside it, `NAME.settled`, says so. It need
not be on disk, because telling the server again does no harm. If the server cannot be told, the
rows are yielded nevertheless; the driver tells it later. For that the driver keeps a second name of
the part, `late-NAME`, when the part itself is deleted.

A task that finds the part in place goes straight to step 5, by way of step 4 if it is not settled.
If two tasks make the same part, the one that links first wins; the other gives back what is not in
the winner's part, and reads that.

A part may have items of several queues: it names the runs of them. See `shares` for what a
partition takes from which queue.

Parts are kept until Spark has logged the next batch. The driver writes the mark `committed` before
it deletes them, and a task reads that mark between steps 3 and 4. A task that was stopped for so
long that its batch is over gives its items back, because its part would never be read.

The staging location is a directory that the driver and every executor see, on a file system with
hard links and locks. It belongs to one query, whose name is in the file `identity`. The process of
the query's driver keeps it locked while the query runs. For one in a store see `stored_batches`.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from uuid import uuid4

import numpy as np
import pyarrow as pa

from kestrelmq.client.commands import ReservedRead
from kestrelmq.client.plans import batch_ranges
from kestrelmq.clock import Clock
from kestrelmq.disk.directories import DiskDirectory, replace_file
from kestrelmq.disk.locks import FileLock
from kestrelmq.disk.renaming import link_new, make_directory, sync_path
from kestrelmq.errors import ClientError, KestrelError, ServerRefused
from kestrelmq.format.names import TEMPORARY_MARK
from kestrelmq.spark.live.refusals import QueueCannotBeRead, is_refusal
from kestrelmq.spark.live.shares import PartitionShare, QueueRun, ShareProgress

PART_BYTES: Final = 16 << 20
"""A part is complete when its items have this many bytes; they are in memory until then."""
_BATCH_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 10_000
"""Most rows and bytes of a record batch, which Arrow must be able to address."""

_PART_NAME: Final = re.compile(r"(\d{10})-(\d{5})-(\d{5})\.arrow")
_SETTLED_NAME: Final = re.compile(r"(\d{10})-\d{5}-\d{5}\.arrow\.settled")
_SETTLED: Final = ".settled"
_LATE: Final = "late-"
_IDENTITY: Final = "identity"
_COMMITTED: Final = "committed"
_LOCK: Final = "lock"
DATA_FIELDS: Final = (pa.field("data", pa.binary(), nullable=False),)
RESERVED_FIELDS: Final = (
    pa.field("add_time", pa.int64(), nullable=False),
    pa.field("expiry", pa.int64(), nullable=False),
    pa.field("deliveries", pa.int32(), nullable=False),
    pa.field("read", pa.string(), nullable=False),
)
"""What only a server with reserved reads tells."""

_log: Final = logging.getLogger("kestrelmq.spark")

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
    """Items of open reads of a queue.

    Attributes:
        items: their data.
        exhausted: whether the server has, or gives, no more items of the queue.
        reserved: the reads, if they are reserved, one for each item.
        unsure: a tag under which the server may have reserved more: its answer was lost.
        is_lost: whether the server cannot be reached any more; what it reserved stays reserved.
        tags: the tags of the reads, if they are reserved, each with how many it has, in order.
    """

    items: Sequence[bytes]
    exhausted: bool
    reserved: Sequence[ReservedRead] = ()
    unsure: str = ""
    is_lost: bool = False
    tags: Sequence[tuple[str, int]] = ()


class QueueReads(Protocol):
    """The open reads of queues on one server, until they are confirmed or given back."""

    def open(self, part: PartId, queue: str, items: int, size: int) -> OpenedItems:
        """Open up to `items` reads of a queue for a part, of about `size` bytes.

        If it returns less although the queue has more, the part must be confirmed first.

        Raises:
            QueueCannotBeRead: the queue cannot be read, and must not count as empty.
            ServerRefused: the server refuses to let this queue be read; no read of it is open.
            ClientError: the server cannot be read; `give_back` is called next.
        """

    def confirm(self, part: "StagedPart") -> bool:
        """Confirm the open reads, which are those of `part`; return whether it is settled."""

    def settle(self, part: "StagedPart") -> bool:
        """Tell the server about a part that was found in place; return whether it is settled."""

    def give_back(self, *, but: Collection[str] = ()) -> None:
        """End the reads without confirming them, but leave those named `but`; then close."""

    def close(self) -> None:
        """Close the connections. Reads that end with those end; reserved ones stay reserved."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part in place.

    Attributes:
        id: its identifier.
        server: the server that its items came from.
        read_time: when they were read (ms).
        is_last: whether it is the last part of its partition.
        batches: the items, in the server's order: a column `data` and, if their reads were
            reserved, `add_time`, `expiry`, `deliveries` and `read`, the names of the reads.
        unsure: as in `OpenedItems`; a tag of the queue of the last run.
        runs: the queues that its items are from, in order.
    """

    id: PartId
    server: str
    read_time: int
    is_last: bool
    batches: tuple[pa.RecordBatch, ...]
    unsure: str = ""
    runs: tuple[QueueRun, ...] = ()

    def queues(self) -> pa.Array:
        """Return the queue of each item."""
        numbers = np.repeat(np.arange(len(self.runs)), [run.items for run in self.runs])
        names = pa.array([run.queue for run in self.runs], pa.string())
        return names.take(pa.array(numbers, pa.int64()))

    def reads_by_queue(self) -> dict[str, list[str]]:
        """Return the names of its reads by their queues, without queues that have none."""
        reads, found, start = self.reads, dict[str, list[str]](), 0
        for run in self.runs:
            if mine := reads[start : start + run.items]:
                found.setdefault(run.queue, []).extend(mine)
            start += run.items
        return found

    @property
    def reads(self) -> list[str]:
        """The names of its reads; none if they were not reserved."""
        return [
            read
            for batch in self.batches
            if "read" in batch.schema.names
            for read in batch.column("read").to_pylist()
        ]

    @property
    def items(self) -> int:
        """The number of items in it."""
        return _items(self.batches)

    @property
    def bytes(self) -> int:
        """The bytes of data in it."""
        return _bytes(self.batches)


class Staging:
    """A staging location. One driver and any number of tasks may use it at the same time."""

    def __init__(self, path: Path, reached: Reached | None = None, only: str | None = None) -> None:
        """Use a staging location.

        Args:
            path: its directory.
            reached: called at every step.
            only: the query's queue, if it is a single one. Parts that earlier versions made are of
                this one, and do not name it.
        """
        self.path = path
        self._reached = reached or ignore_step
        self._only = only or ""

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
            QueueCannotBeRead: as in `QueueReads.open`.
            OSError: a part cannot be written or read.
        """
        reads: QueueReads | None = None
        progress, number = ShareProgress(share), 0
        try:
            while True:
                part_id = PartId(epoch, partition, number)
                part = self.find(part_id)
                if part is None:
                    self._check_not_over(epoch)
                    reads = reads or connect()
                    part = self._stage(part_id, share.server, progress, reads, clock)
                elif not self._is_settled(part_id.name):
                    reads = reads or connect()
                    if reads.settle(part):
                        self.mark_settled(part_id.name)
                self._reached("yielding")
                yield part
                if part.is_last:
                    return
                number += 1
                for run in part.runs:
                    progress.add(run)
        finally:
            if reads is not None:
                reads.close()

    def find(self, part_id: PartId) -> StagedPart | None:
        """Return a part, or None if it is not in place."""
        return self._load(part_id, part_id.name)

    def mark_settled(self, name: str) -> None:
        """Record that the server was told about the part in this file."""
        if name.startswith(_LATE):
            (self.path / name).unlink(missing_ok=True)
        else:
            # Mode x: follow no symbolic link.
            with suppress(FileExistsError), (self.path / f"{name}{_SETTLED}").open("xb"):
                pass

    def _is_settled(self, name: str) -> bool:
        return (self.path / f"{name}{_SETTLED}").exists()

    def _load(self, part_id: PartId, name: str) -> StagedPart | None:
        try:
            source = pa.memory_map(str(self.path / name))
        except FileNotFoundError:
            return None
        reader = pa.ipc.open_file(source)
        metadata = reader.schema.metadata
        batches = tuple(reader.get_batch(place) for place in range(reader.num_record_batches))
        is_last = metadata[b"is_last"] == b"1"
        if (runs := metadata.get(b"runs")) is not None:
            found = tuple(QueueRun(*run) for run in json.loads(runs))
        else:
            found = (QueueRun(self._only, _items(batches), _bytes(batches), is_last),)
        return StagedPart(
            part_id,
            metadata[b"server"].decode(),
            int(metadata[b"read_time"]),
            is_last,
            batches,
            metadata.get(b"unsure", b"").decode(),
            found,
        )

    def _stage(
        self,
        part_id: PartId,
        server: str,
        progress: ShareProgress,
        reads: QueueReads,
        clock: Clock,
    ) -> StagedPart:
        try:
            opened = open_part(part_id, server, progress, reads)
        except ClientError as error:
            reads.give_back()
            if isinstance(error, ServerRefused):
                raise
            # The server cannot be reached; the batch continues without its items.
            opened = OpenedPart(is_last=True)
        self._reached("opened")
        metadata = {
            "server": server,
            "read_time": str(clock.now()),
            "is_last": f"{opened.is_last:d}",
            "unsure": opened.unsure,
            "runs": json.dumps([astuple(run) for run in opened.runs]),
        }
        is_ours = self._write_part(part_id, opened, metadata)
        if is_ours and self.committed() >= part_id.epoch:
            reads.give_back()
            (self.path / part_id.name).unlink(missing_ok=True)
            self._check_not_over(part_id.epoch)
        part = self.find(part_id)
        if part is None:
            reads.give_back()
            raise BatchIsOver(f"{self.path}: {part_id.name} is gone: its batch is over")
        if is_ours:
            if reads.confirm(part):
                self.mark_settled(part_id.name)
            self._reached("confirmed")
        else:
            reads.give_back(but=part.reads)
        return part

    def _write_part(self, part_id: PartId, opened: "OpenedPart", metadata: dict[str, str]) -> bool:
        """Write a part; return False if it exists already."""
        fields = [*DATA_FIELDS, *(RESERVED_FIELDS if opened.reserved else ())]
        schema = pa.schema(fields, metadata=metadata)

        def write(file: BinaryIO) -> None:
            with pa.ipc.new_file(file, schema) as writer:
                for part in batch_ranges(opened.items, _BATCH_ROWS, _BATCH_BYTES):
                    writer.write_batch(record_batch(opened, part.start, part.stop, schema))

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
        """Delete the parts of this and all earlier epochs, which are not needed any more.

        Parts that are not settled get their second names first: until the mark is written, no task
        that comes too late can put a part in place that looks like one of these.
        """
        committed = self.committed()
        if epoch > committed:
            for part_id in self._unsettled_parts(committed, epoch):
                link_new(self.path / part_id.name, self.path / f"{_LATE}{part_id.name}")
            replace_file(DiskDirectory(self.path), _COMMITTED, b"%d" % epoch)
        self._reached("marked")
        for part_id in self.parts():
            if part_id.epoch <= epoch:
                (self.path / part_id.name).unlink(missing_ok=True)
                self._reached("deleting")
        for file in self.path.iterdir():
            match = _SETTLED_NAME.fullmatch(file.name)
            if match is not None and int(match[1]) <= epoch:
                file.unlink(missing_ok=True)

    def unsettled(self, epoch: int) -> list[tuple[str, StagedPart]]:
        """Return the parts of epochs up to `epoch` that are not settled, with their file names.

        Call it when the batches up to `epoch` are over.
        """
        names = [
            (file.name, match)
            for file in self.path.iterdir()
            if file.name.startswith(_LATE)
            and (match := _PART_NAME.fullmatch(file.name.removeprefix(_LATE))) is not None
        ]
        found = [(name, PartId(*map(int, match.groups()))) for name, match in sorted(names)]
        found += [
            (part_id.name, part_id) for part_id in self._unsettled_parts(self.committed(), epoch)
        ]
        loaded = ((name, self._load(part_id, name)) for name, part_id in found)
        return [(name, part) for name, part in loaded if part is not None]

    def _unsettled_parts(self, committed: int, epoch: int) -> list[PartId]:
        """Return the parts after epoch `committed`, up to `epoch`, that are not settled."""
        return [
            part_id
            for part_id in self.parts()
            if committed < part_id.epoch <= epoch and not self._is_settled(part_id.name)
        ]

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


@dataclass(slots=True)
class OpenedPart:
    """What is to become a part: open reads of one queue after the other.

    `tags` has, in the order of the items, the queue and the tag of reserved reads, and how many.
    """

    items: list[bytes] = field(default_factory=list)
    reserved: list[ReservedRead] = field(default_factory=list)
    runs: list[QueueRun] = field(default_factory=list)
    tags: list[tuple[str, str, int]] = field(default_factory=list)
    unsure: str = ""
    is_last: bool = False


def open_part(
    part_id: PartId, server: str, progress: ShareProgress, reads: QueueReads
) -> OpenedPart:
    """Open the reads of a part.

    Raises:
        QueueCannotBeRead: the first queue to read cannot be read, and must not count as empty.
        ClientError: the server cannot be read.
    """
    opened = OpenedPart()
    rest = progress.copy()
    size = 0
    while (allowed := rest.next()) is not None and size < PART_BYTES:
        most = min(allowed.bytes, PART_BYTES - size)
        try:
            found = reads.open(part_id, allowed.queue, allowed.items, most)
        except QueueCannotBeRead:
            if not opened.items:
                raise
            # Keep what is open; the next part raises the error if it lasts.
            return opened
        except ServerRefused as error:
            if not is_refusal(error):
                raise
            _log.info("%s: queue %s: %s", server, allowed.queue, error)
            found = OpenedItems((), exhausted=True)
        taken = sum(map(len, found.items))
        run = QueueRun(allowed.queue, len(found.items), taken, found.exhausted)
        opened.runs.append(run)
        opened.items += found.items
        opened.reserved += found.reserved
        opened.tags += [(allowed.queue, tag, count) for tag, count in found.tags]
        opened.unsure = found.unsure
        size += taken
        rest.add(run)
        if found.is_lost:
            opened.is_last = True
            return opened
        if not found.exhausted and len(found.items) < allowed.items and taken < most:
            return opened
    opened.is_last = allowed is None
    return opened


def record_batch(opened: OpenedPart, start: int, end: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return items of a part as a batch with some of `DATA_FIELDS` and `RESERVED_FIELDS`."""
    columns: list[Sequence[object]] = [opened.items[start:end]]
    reads = opened.reserved[start:end]
    columns += [[getattr(read, name) for read in reads] for name in schema.names[1:]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _items(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _bytes(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(_data_bytes(batch) for batch in batches)


def _data_bytes(batch: pa.RecordBatch) -> int:
    buffers = batch.column(0).buffers()
    return buffers[2].size if buffers[2] is not None else 0


def ignore_step(_point: str) -> None:
    """Ignore the point; used when no test watches."""
