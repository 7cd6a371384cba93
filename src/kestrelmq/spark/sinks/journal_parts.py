"""Parts: the files that the tasks of a write make in the queue path before it is committed.

All parts of a job are in one directory of the queue path, `~~write-...`, which the driver creates
and servers ignore. A part holds records of one queue from one task, about 1 GiB of them at most. If
the rows have sequence numbers, the part is in their order, and an index file beside it has the
sequence number and the length of each record. A job that crashes leaves its directory, and nothing
else.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kestrelmq.disk.opening import open_stream
from kestrelmq.disk.renaming import sync_path
from kestrelmq.errors import JournalError
from kestrelmq.spark.sinks.encoding import EncodedRows

_INDEX: Final = np.dtype([("sequence", "<i8"), ("length", "<i8")])
_OPEN_FILES: Final = 100
_MERGED_AT_ONCE: Final = 10_000
_BUFFERED: Final = 1 << 16
_PART_BYTES: Final = 1 << 30
"""Bytes of a part after which another one is begun: a store copies no very large files at once."""


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Records of one queue that one task wrote.

    Attributes:
        queue: the queue's name.
        path: the file; of a write to a store, relative to the directory of the write.
        items: number of records in it.
        size: its size in bytes.
        low: least sequence number.
        high: greatest sequence number.
        ordered: whether the records are in order of sequence number.
        sequenced: whether the records have sequence numbers.
    """

    queue: str
    path: Path
    items: int = 0
    size: int = 0
    low: int = 2**63 - 1
    high: int = -(2**63)
    ordered: bool = True
    sequenced: bool = False


class PartWriter:
    """Writes the parts of one task."""

    def __init__(self, directory: Path, task: str) -> None:
        """Write to `directory`, which exists; `task` identifies this attempt of the task."""
        self._directory = directory
        self._task = task
        self._count = count()
        # The parts of each queue; the last one is being written.
        self._parts: dict[str, list[JournalPart]] = {}
        self._handles: OrderedDict[Path, BinaryIO] = OrderedDict()

    def write(self, encoded: EncodedRows) -> None:
        """Append rows to the parts of their queues."""
        for place, queue in enumerate(encoded.queues):
            begin, end = encoded.bounds[place : place + 2]
            low, high = int(encoded.offsets[begin]), int(encoded.offsets[end])
            part = self._part(queue)
            self._handle(part.path).write(encoded.records[low:high])
            part = replace(part, items=part.items + end - begin, size=part.size + high - low)
            if encoded.sequences is not None:
                part = self._index(
                    part, encoded.sequences[begin:end], encoded.offsets[begin : end + 1]
                )
            self._parts[queue][-1] = part

    def finish(self) -> list[JournalPart]:
        """Bring the parts of each queue into order, sync all parts, and return them."""
        for path in list(self._handles):
            self._handles.pop(path).close()
        finished = []
        for parts in self._parts.values():
            ordered = in_order(parts) if all(part.ordered for part in parts) else None
            if ordered is None:
                ordered = [merge_parts(parts, parts[0].path.with_suffix(".sorted"))]
            else:
                for part in ordered:
                    sync_path(part.path)
            finished += ordered
        return finished

    def _part(self, queue: str) -> JournalPart:
        parts = self._parts.setdefault(queue, [])
        if not parts or parts[-1].size >= _PART_BYTES:
            path = self._directory / f"{self._task}-{next(self._count)}"
            parts.append(JournalPart(queue, path))
        return parts[-1]

    def _index(
        self,
        part: JournalPart,
        sequences: NDArray[np.int64],
        offsets: NDArray[np.integer],
    ) -> JournalPart:
        entries = np.empty(len(sequences), dtype=_INDEX)
        entries["sequence"] = sequences
        entries["length"] = np.diff(offsets)
        self._handle(index_path(part.path)).write(entries.tobytes())
        ordered = part.high <= sequences[0] and bool(np.all(np.diff(sequences) >= 0))
        return replace(
            part,
            low=min(part.low, int(sequences.min())),
            high=max(part.high, int(sequences.max())),
            ordered=part.ordered and ordered,
            sequenced=True,
        )

    def _handle(self, path: Path) -> BinaryIO:
        handle = self._handles.pop(path, None)
        if handle is None:
            if len(self._handles) >= _OPEN_FILES:
                self._handles.popitem(last=False)[1].close()
            handle = self._opened(path)
        self._handles[path] = handle
        return handle

    def _opened(self, path: Path) -> BinaryIO:
        try:
            return open_stream(path, "ab", _BUFFERED)
        except FileNotFoundError:
            raise JournalError(
                f"{self._directory} is gone: the write failed elsewhere, or a server was started "
                "on the queue path"
            ) from None


def in_order(parts: Sequence[JournalPart]) -> list[JournalPart] | None:
    """Return the parts of a queue in their final order; None if they overlap, and must be merged.

    That is the order of their sequence numbers, and the given order among equal ones or without
    sequence numbers.
    """
    if not all(part.sequenced for part in parts):
        return list(parts)
    ordered = sorted(enumerate(parts), key=lambda place: (place[1].low, place[1].high))
    overlap = any(
        (later.low, place) < (earlier.high, place_before)
        for (place_before, earlier), (place, later) in pairwise(ordered)
    )
    return None if overlap else [part for _, part in ordered]


def merge_parts(parts: Sequence[JournalPart], merged: Path) -> JournalPart:
    """Write the records of `parts` to `merged`, in order of sequence number, and sync it."""
    indexes = [np.fromfile(index_path(part.path), dtype=_INDEX) for part in parts]
    order = np.argsort(np.concatenate([index["sequence"] for index in indexes]), kind="stable")
    records = pa.chunked_array(
        [_records(part, index["length"]) for part, index in zip(parts, indexes, strict=True)]
    )
    with open_stream(merged, "wb") as file:
        for begin in range(0, len(order), _MERGED_AT_ONCE):
            taken = records.take(pa.array(order[begin : begin + _MERGED_AT_ONCE]))
            for chunk in taken.chunks:
                _, offsets, values = chunk.buffers()
                bounds = np.frombuffer(offsets, dtype=np.int64)
                low, high = bounds[chunk.offset], bounds[chunk.offset + len(chunk)]
                file.write(memoryview(values)[low:high])
    entries = np.concatenate(indexes)[order]
    with open_stream(index_path(merged), "wb") as file:
        entries.tofile(file)
    sync_path(merged)
    return JournalPart(
        queue=parts[0].queue,
        path=merged,
        items=len(order),
        size=sum(part.size for part in parts),
        low=int(entries["sequence"][0]),
        high=int(entries["sequence"][-1]),
        sequenced=True,
    )


def join_parts(parts: Sequence[JournalPart], path: Path) -> Path:
    """Join parts into one file: return the only part, or write and sync `path` and return it."""
    if len(parts) == 1:
        return parts[0].path
    with open_stream(path, "wb") as target:
        for part in parts:
            with open_stream(part.path, "rb") as source:
                left = part.size
                while left > 0:
                    copied = os.sendfile(target.fileno(), source.fileno(), None, left)
                    if copied == 0:
                        raise OSError(f"{part.path}: {left} bytes are missing")
                    left -= copied
    sync_path(path)
    return path


def _records(part: JournalPart, lengths: NDArray[np.int64]) -> pa.Array:
    """Return the records of a part, as an array over the mapped file."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.memory_map(str(part.path)).read_buffer()
    buffers = [None, pa.py_buffer(offsets), values]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def index_path(path: Path) -> Path:
    """Return where the sequence numbers of a part are."""
    return path.with_name(path.name + ".index")
