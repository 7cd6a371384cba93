"""The batches of a stream, or of a table, whose parts are objects in a store.

A store such as S3 has neither locks nor a write that fails if the object exists. So two tasks that
make the same part at the same time could not agree on it. Therefore no task makes one: the driver
stages a batch before Spark logs its offset, and the tasks only read. Which batch follows is decided
by Spark's log of offsets, in which a batch is entered once.

    step                                            what a crash during the step leaves
    1  write the intent: the queues to read         an intent
    2  reserve items, write them to parts           reserved reads, and parts of no batch
    3  write the batch: its parts and their tags    the same
    4  Spark logs the offset                        the same, or the batch is to be run
    5  finish the reads by their tags               the batch is run again, from here on
    6  write what became of them                    the same
    7  tasks read the parts                         the same

Objects are never replaced. Their names begin with a serial number, which the offset has, too; each
attempt to make a batch has its own. They are in a directory that the query has to itself: its name
is the identity, which the offset has as well. Before its first offset is logged, a query that is
started again knows the directory only as one in which no batch was logged.

What is reserved has a tag with the identity and the serial number. Nothing is confirmed before step
5. When the batch is over, the driver retires the tags up to its serial number, and so releases what
an attempt had reserved whose offset was not logged. The intents say at which queues.

A tag that is finished again answers what it answered the first time. If it answers 0 in step 5, its
items went back to their queue: the lease had ended, or another driver of the same query has retired
the tag. They will be in a later batch, so these items are no rows of this one: they are void. So an
item comes once even if two drivers run at the same time. A server that cannot be told is told
later, and the rows come nevertheless: they come again only if it is not told before the lease ends.

A driver writes its name to the object `driver`, and looks there before each batch: the driver that
started last is the one that goes on.

Objects are deleted when Spark has logged the next batch. A batch that a server was not told about
keeps its object, without the parts, and an object `late`: that says that the batch was logged, so
that its reads are to be finished, and not released.

A table has its batch in a directory of its own, and `plan.json` in the place of Spark's log: the
driver's machine has a lock, so that its processes make one plan.
"""

import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.disk.locks import FileLock
from kestrelmq.errors import ClientError, ConfigError, KestrelError, ServerRefused
from kestrelmq.spark.live.batch_plan import BatchPlan
from kestrelmq.spark.live.file_batches import SETTLE_PAUSE
from kestrelmq.spark.live.refusals import QueueCannotBeRead
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.server_reads import TaggedReads
from kestrelmq.spark.live.shares import PartitionShare, QueueRun, ShareProgress
from kestrelmq.spark.live.staging import (
    DATA_FIELDS,
    RESERVED_FIELDS,
    OpenedPart,
    PartId,
    Reached,
    StagedPart,
    StagingInUse,
    ignore_step,
    open_part,
    record_batch,
)
from kestrelmq.spark.storage.locations import Location

_NAME: Final = re.compile(r"(\d{16})(?:-\d{5}-\d{5})?\.(intent|batch|late|settled|arrow)")
_IDENTITY: Final = re.compile(r"[0-9a-f]{32}")
_DRIVER: Final = "driver"
_MOST_THREADS: Final = 8
_PLANNING_PATIENCE: Final = 600.0
_PLANNING_PAUSE: Final = 0.05
_FIELDS: Final = (*DATA_FIELDS, *(one for one in RESERVED_FIELDS if one.name != "read"))

_log: Final = logging.getLogger("kestrelmq.spark")


Connect = Callable[[PartitionShare, str, float], TaggedReads]
"""Makes the reads of a partition: its share, the name for its tags, and seconds to wait for a queue
that is loading."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a batch.

    Attributes:
        server: the server that its items came from.
        chunks: queue, tag and number of items of each reservation, in the part's order.
        unsure: queue and tag under which the server may have reserved more; its answer was lost.
    """

    server: str
    chunks: tuple[tuple[str, str, int], ...]
    unsure: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch: the parts of each partition."""

    serial: int
    partitions: tuple[tuple[StoredPart, ...], ...]

    def to_json(self) -> bytes:
        """Return it as text that `from_json` reads."""
        partitions = [
            [[part.server, part.chunks, part.unsure] for part in parts] for parts in self.partitions
        ]
        return json.dumps({"partitions": partitions}).encode()

    @classmethod
    def from_json(cls, serial: int, text: bytes) -> "StoredBatch":
        """Return the batch that `to_json` wrote."""
        return cls(
            serial,
            tuple(
                tuple(
                    StoredPart(
                        server,
                        tuple((queue, tag, items) for queue, tag, items in chunks),
                        None if unsure is None else (unsure[0], unsure[1]),
                    )
                    for server, chunks, unsure in parts
                )
                for parts in json.loads(text)["partitions"]
            ),
        )


@dataclass(frozen=True, slots=True)
class PartsToRead:
    """What one task reads: the parts of a partition.

    Attributes:
        directory: where they are.
        serial: the serial number of their batch.
        partition: the partition.
        void: for each part, its chunks that are no rows.
    """

    directory: Location
    serial: int
    partition: int
    void: tuple[frozenset[int], ...]

    def read(self, reached: Reached | None = None) -> Iterator[StagedPart]:
        """Yield the parts in order.

        Raises:
            StagingInUse: a part is gone.
            StorageError: the store cannot be reached.
        """
        for number, void in enumerate(self.void):
            (reached or ignore_step)("yielding")
            part_id = PartId(self.serial, self.partition, number)
            location = self.directory / _part_name(part_id)
            try:
                yield _loaded(location, part_id, void)
            except FileNotFoundError:
                raise StagingInUse(
                    f"{location} is gone: its batch is over, or somebody deleted it"
                ) from None


class StoredBatches:
    """The batches of one query; see `stream_driver.Batches` for the methods."""

    def __init__(
        self,
        location: Location,
        servers: ServerProbe,
        connect: Connect,
        *,
        reached: Reached | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; no I/O is done before the first call.

        Args:
            location: the staging location.
            servers: the servers to tell.
            connect: makes the reads of a partition.
            reached: called at every step.
            clock: tells the time.
        """
        self._location = location
        self._servers = servers
        self._connect = connect
        self._reached = reached or ignore_step
        self._clock = clock or SystemClock()
        self._identity = uuid4().hex
        self._opened: _Opened | None = None
        self._taken: dict[tuple[str, str], int] = {}
        self._settle_at = 0.0

    def begin(self) -> str:
        """Return the identity that a new checkpoint gets.

        If there is a query none of whose offsets was logged, it is that one's: this is the same
        query, started again. So what that one has reserved is released.
        """
        if self._opened is None:
            entries = self._location.entries(missing_ok=True)
            found = (one.name for one in entries if _IDENTITY.fullmatch(one.name))
            begun = (one for one in found if not _has_logged(self._location / one))
            self._identity = next(begun, self._identity)
        return self._identity

    def check(self, plan: BatchPlan) -> None:
        """Check that a plan is of the query whose batches these are."""
        if plan.epoch and plan.serial is None:
            raise StagingInUse(
                f"staging location {self._location} cannot continue the checkpoint, whose items "
                "are staged in a directory: give the same staging location as before"
            )
        if self._opened is None:
            self._identity = plan.staging
        if plan.staging != self._identity:
            raise StagingInUse(
                f"staging location {self._location} is used for another query than that of the "
                "checkpoint"
            )

    def settle(self, before: BatchPlan) -> bool:
        """Tell servers what they do not know yet, and release what no logged batch has."""
        opened, serial = self._open(before), before.serial or 0
        if self._clock.monotonic() < self._settle_at:
            return False
        for batch in list(opened.late.values()):
            if self._tell(opened.directory, batch) is None:
                self._settle_at = self._clock.monotonic() + SETTLE_PAUSE
                return False
            del opened.late[batch.serial]
        if not opened.reserved:
            return False
        queues: dict[str, set[str]] = {}
        for read in opened.reserved.values():
            for server, names in read.items():
                queues.setdefault(server, set()).update(names)
        # Of the serial numbers above the last batch's, none was logged.
        self._servers.retire(queues, before.staging, max(opened.last, serial))
        has_released = max(opened.reserved) > serial
        opened.reserved.clear()
        self._reached("retired")
        return has_released

    def make(
        self, before: BatchPlan, queue: str, shares: tuple[PartitionShare, ...], patience: float
    ) -> BatchPlan | None:
        """Stage the next batch, and return its plan; None if there are no items after all.

        Raises:
            ConfigError: a server has no reserved reads.
            QueueCannotBeRead: a queue is still loading after `patience` seconds.
            StorageError: the store cannot be reached.
            StagingInUse: another driver of the same query was started.
        """
        foreign = sorted({share.server for share in shares if not share.reserves})
        if foreign:
            raise ConfigError(
                f"option 'staging_location' of reading kestrel: {self._location} is in a store, "
                f"and {foreign[0]} has no reserved reads: give a directory on a file system that "
                "the driver and every executor see"
            )
        opened = self._open(before)
        opened.check_driver()
        serial = max(self._clock.now(), opened.last + 1, (before.serial or 0) + 1)
        opened.last = serial
        read: dict[str, list[str]] = {}
        for share in shares:
            read.setdefault(share.server, []).extend(name for name, _ in share.queues)
        (opened.directory / f"{serial:016d}.intent").write(json.dumps(read).encode())
        self._reached("intended")
        opened.reserved[serial] = read
        batch = self._stage(opened.directory, serial, shares, before.staging, patience)
        if not any(batch.partitions):
            (opened.directory / f"{serial:016d}.intent").delete()
            return None
        (opened.directory / f"{serial:016d}.batch").write(batch.to_json())
        self._reached("planned")
        try:
            opened.check_driver()
        except StagingInUse:
            # The other driver does not know of these.
            for part in chain.from_iterable(batch.partitions):
                for chunk_queue, tag, _ in part.chunks:
                    self._servers.release(part.server, chunk_queue, tag)
            raise
        return BatchPlan(before.epoch + 1, before.staging, queue, serial=serial)

    def to_read(self, plan: BatchPlan) -> list[PartsToRead]:
        """Return what the tasks of a batch read, once its servers are told.

        Call it when the offset of the batch is logged.

        Raises:
            StagingInUse: the staging location does not have the batch.
            StorageError: the store cannot be reached.
        """
        if plan.serial is None:
            return []
        directory = self._location / plan.staging
        batch = self._found(directory, plan.serial)
        void = self._tell(directory, batch)
        if void is None:
            (directory / f"{plan.serial:016d}.late").write(b"{}")
            if self._opened is not None:
                self._opened.late[plan.serial] = batch
            void = frozenset()
        return [
            PartsToRead(
                directory,
                plan.serial,
                place,
                tuple(
                    frozenset(chunk for at, part, chunk in void if (at, part) == (place, number))
                    for number in range(len(parts))
                ),
            )
            for place, parts in enumerate(batch.partitions)
        ]

    def restart_counting(self) -> None:
        """Let `newly_taken` begin anew."""
        self._taken = {}

    def newly_taken(self) -> dict[tuple[str, str], int]:
        """Return how many items were taken of servers' queues since the last call."""
        taken, self._taken = self._taken, {}
        return taken

    def commit(self, plan: BatchPlan) -> None:
        """Delete what is stored of this and all earlier batches.

        That of attempts to make a batch that were never logged is among it.
        """
        directory = self._location / plan.staging
        names = _names(directory)
        settled = {serial for serial, kind, _ in names if kind == "settled"}
        late = {serial for serial, kind, _ in names if kind == "late"} - settled
        self._reached("marked")
        for serial, kind, name in names:
            if serial <= (plan.serial or 0) and not (serial in late and kind in {"batch", "late"}):
                with suppress(FileNotFoundError):
                    (directory / name).delete()
                self._reached("deleting")

    def close(self) -> None:
        """Forget the query."""
        self._opened = None

    # --- opening ---

    def _open(self, before: BatchPlan) -> "_Opened":
        """Return what is known of the directory; the first call takes it over.

        Raises:
            StagingInUse: it does not belong to the checkpoint, whose last batch is `before`.
        """
        if self._opened is not None:
            return self._opened
        directory, serial = self._location / before.staging, before.serial or 0
        name = f"process {os.getpid()} on {os.uname().nodename}, {uuid4().hex}"
        (directory / _DRIVER).write(name.encode())
        names = _names(directory)
        found = {(one, kind) for one, kind, _ in names}
        if serial and (serial, "batch") not in found:
            raise _no_batch(directory, serial)
        if any(one > serial and kind in {"late", "settled"} for one, kind, _ in names):
            raise StagingInUse(
                f"{directory} has batches after the last one of the checkpoint: is this an old "
                "copy of the query's checkpoint, or does another query use the staging location?"
            )
        self._opened = _Opened(directory, name, max([serial, *(one for one, _, _ in names)]))
        for one, kind, object_name in names:
            if kind == "intent":
                read = json.loads(bytes((directory / object_name).read()))
                self._opened.reserved[one] = read
            if kind == "late" and (one, "settled") not in found:
                self._opened.late[one] = self._found(directory, one)
        return self._opened

    def _found(self, directory: Location, serial: int) -> StoredBatch:
        try:
            text = (directory / f"{serial:016d}.batch").read()
        except FileNotFoundError:
            raise _no_batch(directory, serial) from None
        return StoredBatch.from_json(serial, bytes(text))

    # --- telling ---

    def _tell(
        self, directory: Location, batch: StoredBatch
    ) -> frozenset[tuple[int, int, int]] | None:
        """Finish the reads of a batch; return the void chunks: by partition, part and place.

        None: a server could not be told.
        """
        settled = directory / f"{batch.serial:016d}.settled"
        try:
            return frozenset((a, b, c) for a, b, c in json.loads(bytes(settled.read()))["void"])
        except FileNotFoundError:
            pass
        void: set[tuple[int, int, int]] = set()
        failed: set[str] = set()
        for place, parts in enumerate(batch.partitions):
            for number, part in enumerate(parts):
                tags = [(queue, tag) for queue, tag, _ in part.chunks]
                if part.server in failed:
                    continue
                counts = self._servers.finish(part.server, tags)
                if counts is None:
                    failed.add(part.server)
                    continue
                void |= {(place, number, at) for at, count in enumerate(counts) if not count}
                if part.unsure is not None:
                    self._servers.release(part.server, *part.unsure)
                self._reached("told")
        if void:
            _log.warning(
                "%s: the leases of %d reservations of batch %d had ended: their items come later",
                directory,
                len(void),
                batch.serial,
            )
        if failed:
            return None
        settled.write(json.dumps({"void": sorted(void)}).encode())
        self._reached("settled")
        return frozenset(void)

    # --- staging ---

    def _stage(
        self,
        directory: Location,
        serial: int,
        shares: Sequence[PartitionShare],
        name: str,
        patience: float,
    ) -> StoredBatch:
        runs: list[tuple[str, QueueRun]] = []

        def stage(numbered: tuple[int, PartitionShare]) -> tuple[StoredPart, ...]:
            place, share = numbered
            reads = self._connect(share, name, patience)
            try:
                return tuple(self._parts(directory, PartId(serial, place, 0), share, reads, runs))
            except BaseException:
                reads.give_back()
                raise
            finally:
                reads.close()

        with ThreadPoolExecutor(min(len(shares), _MOST_THREADS)) as threads:
            partitions = tuple(threads.map(stage, enumerate(shares)))
        for server, run in runs:
            taken = self._taken.get((server, run.queue), 0)
            self._taken[server, run.queue] = taken + run.items
        return StoredBatch(serial, partitions)

    def _parts(
        self,
        directory: Location,
        part_id: PartId,
        share: PartitionShare,
        reads: TaggedReads,
        runs: list[tuple[str, QueueRun]],
    ) -> Iterator[StoredPart]:
        """Stage a partition, and yield its parts, of which `part_id` is the first.

        What was taken is added to `runs`, with the server.
        """
        progress = ShareProgress(share)
        while True:
            is_first = not part_id.number
            try:
                opened = open_part(part_id, share.server, progress, reads)
            except QueueCannotBeRead:
                if is_first:
                    raise
                return  # the next batch raises it if it lasts
            except ClientError as error:
                if isinstance(error, ServerRefused) and is_first:
                    raise
                _log.warning("%s: the batch goes on without it: %s", share.server, error)
                return
            self._reached("reserved")
            runs += [(share.server, run) for run in opened.runs]
            if not opened.items:
                return
            (directory / _part_name(part_id)).write(_written(opened, share, self._clock.now()))
            self._reached("stored")
            unsure = (opened.runs[-1].queue, opened.unsure) if opened.unsure else None
            yield StoredPart(share.server, tuple(opened.tags), unsure)
            if opened.is_last:
                return
            reads.leave()
            for run in opened.runs:
                progress.add(run)
            part_id = replace(part_id, number=part_id.number + 1)


@dataclass(slots=True)
class _Opened:
    """What the driver of a query knows of its directory.

    Attributes:
        directory: the directory.
        name: the name of this driver.
        last: the highest serial number that any driver has used.
        late: batches that were logged, and that not all servers were told about.
        reserved: the queues of each server that an attempt with a serial number may have reads of.
    """

    directory: Location
    name: str
    last: int
    late: dict[int, StoredBatch] = field(default_factory=dict)
    reserved: dict[int, dict[str, list[str]]] = field(default_factory=dict)

    def check_driver(self) -> None:
        """Raise StagingInUse if another driver of the same query was started, or all is deleted."""
        try:
            driver = bytes((self.directory / _DRIVER).read()).decode()
        except FileNotFoundError:
            raise StagingInUse(f"{self.directory} was deleted while the query runs") from None
        if driver != self.name:
            raise StagingInUse(
                f"another driver of the same query was started ({driver}); this one ends"
            )


@contextmanager
def planning_lock() -> Iterator[None]:
    """Let one process of this user on this machine plan a table at a time."""
    path = Path(tempfile.gettempdir()) / f"kestrelmq-{os.getuid()}.lock"
    lock = FileLock(path, "a table is being planned")
    clock = SystemClock()
    begun = clock.monotonic()
    while not lock.try_acquire():
        if clock.monotonic() - begun > _PLANNING_PATIENCE:
            raise KestrelError(f"another table is being planned for a long time: {path} is locked")
        time.sleep(_PLANNING_PAUSE)
    try:
        yield
    finally:
        lock.release()


def _no_batch(directory: Location, serial: int) -> StagingInUse:
    return StagingInUse(
        f"{directory} does not have batch {serial} of the checkpoint: give the same staging "
        "location as before"
    )


def _part_name(part_id: PartId) -> str:
    return f"{part_id.epoch:016d}-{part_id.partition:05d}-{part_id.number:05d}.arrow"


def _has_logged(directory: Location) -> bool:
    """Whether this directory shows that a batch of its query was logged."""
    return any(kind in {"late", "settled"} for _, kind, _ in _names(directory))


def _names(directory: Location) -> list[tuple[int, str, str]]:
    """Return the serial number, the kind and the name of each object of batches."""
    matches = [_NAME.fullmatch(one.name) for one in directory.entries(missing_ok=True)]
    return [(int(match[1]), match[2], match[0]) for match in matches if match is not None]


def _written(opened: OpenedPart, share: PartitionShare, now: int) -> pa.Buffer:
    """Return a part as bytes of an Arrow file, in which each chunk is a record batch."""
    chunks = json.dumps([[queue, count] for queue, _, count in opened.tags])
    metadata = {"server": share.server, "read_time": str(now), "chunks": chunks}
    schema = pa.schema(_FIELDS, metadata=metadata)
    sink = pa.BufferOutputStream()
    start = 0
    with pa.ipc.new_file(sink, schema) as writer:
        for _, _, count in opened.tags:
            writer.write_batch(record_batch(opened, start, start + count, schema))
            start += count
    return sink.getvalue()


def _loaded(location: Location, part_id: PartId, void: frozenset[int]) -> StagedPart:
    reader = pa.ipc.open_file(location.read())
    metadata = reader.schema.metadata
    chunks = [
        (reader.get_batch(place), queue, items)
        for place, (queue, items) in enumerate(json.loads(metadata[b"chunks"]))
        if place not in void
    ]
    return StagedPart(
        part_id,
        metadata[b"server"].decode(),
        int(metadata[b"read_time"]),
        is_last=False,  # its batch says what comes next
        batches=tuple(batch for batch, _, _ in chunks),
        runs=tuple(QueueRun(queue, items, 0, is_done=False) for _, queue, items in chunks),
    )
