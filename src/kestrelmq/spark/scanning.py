"""Journal files for numpy: record boundaries in chunks, header fields as arrays, events.

Boundaries come from `boundaries`; everything after that is done for a whole chunk at once.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.journal.files import open_stream
from kestrelmq.journal.names import parse_name
from kestrelmq.journal.records import (
    ADD,
    ADD_XID,
    ADDX,
    CONTINUE,
    REMOVE,
    REMOVE_TENTATIVE,
    STATE_DUMP_SIZE,
    Buffer,
)
from kestrelmq.journal.walk import End, Ending, Walk
from kestrelmq.spark.boundaries import boundaries
from kestrelmq.spark.summarising import Events

CHUNK: Final = 16 << 20
"""Bytes scanned at once; a longer record is taken whole."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of a file that follow each other.

    Attributes:
        starts: where each begins.
        ends: where each ends.
        opcodes: their first bytes; a CONTINUE has that of a STATE_DUMP.
        is_state_dump: whether it is one STATE_DUMP; those are chunks of their own.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    opcodes: NDArray[np.uint8]
    is_state_dump: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, wanted: "slice | NDArray[np.bool_]") -> "Chunk":
        """Return some of the records."""
        kept = self.starts[wanted], self.ends[wanted], self.opcodes[wanted]
        return Chunk(*kept, self.is_state_dump)

    @property
    def continues(self) -> NDArray[np.bool_]:
        """Which records are CONTINUEs."""
        of_opcode: NDArray[np.bool_] = self.opcodes == CONTINUE
        return of_opcode & (not self.is_state_dump)

    @property
    def adds(self) -> NDArray[np.bool_]:
        """Which records add an item."""
        opcodes = self.opcodes
        plain: NDArray[np.bool_] = (opcodes == ADDX) | (opcodes == ADD) | (opcodes == ADD_XID)
        return plain | self.continues


class FileView:
    """The first `size` bytes of a journal file, with its fields as unaligned arrays.

    Attributes:
        torn: where the end of the file is torn, if it is; set by `chunks`.
    """

    def __init__(self, buffer: Buffer, size: int) -> None:
        """Look at `buffer`, which must hold at least `size` bytes and outlive this."""
        self.buffer = buffer if len(buffer) == size else memoryview(buffer)[:size]
        self.size = size
        self.torn: Ending | None = None
        self.bytes: NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8, count=size)

    def field(
        self, dtype: str, positions: NDArray[np.int64]
    ) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return the little-endian integers at `positions`."""
        width = np.dtype(dtype).itemsize
        if len(positions) == 0 or self.size < width:
            return np.zeros(0, dtype=dtype)
        shape = (self.size - width + 1,)
        everywhere: NDArray[np.int64] = np.ndarray(
            shape, dtype=dtype, buffer=self.bytes.data, strides=(1,)
        )
        return everywhere[positions]

    @property
    def torn_at(self) -> int | None:
        """Where a record begins that the end of the file cuts short."""
        return None if self.torn is None else self.torn.position

    def chunks(self, *, tail_may_be_torn: bool, replayed_only: bool = True) -> Iterator[Chunk]:
        """Cut the file into chunks of whole records, in order.

        A STATE_DUMP is the last one, for it ends the file in replay; without `replayed_only` the
        whole records behind it come, too.

        Raises:
            DamagedJournal: after the last good record: the file is damaged there, or torn and
                `tail_may_be_torn` is not set.
        """
        walk = Walk(self.buffer, _find, last=tail_may_be_torn, step=_step, forgets=False)
        for begin, batches in walk.sections():
            if begin:
                dump = np.array([begin - STATE_DUMP_SIZE], dtype=np.int64)
                yield self._chunk([dump], begin, is_state_dump=True)
                if replayed_only:
                    break
            for starts, end in batches:
                yield self._chunk(starts, end)
            if not begin:
                self.torn = self._torn(walk.reached)

    @staticmethod
    def _torn(ending: Ending) -> Ending | None:
        if ending.kind is End.DAMAGED:
            raise DamagedJournal(ending.position, ending.reason)
        return ending if ending.kind is End.TORN else None

    def _chunk(
        self, starts: list[NDArray[np.int64]], end: int, *, is_state_dump: bool = False
    ) -> Chunk:
        begins = np.concatenate(starts)
        ends = np.empty_like(begins)
        ends[:-1] = begins[1:]
        ends[-1] = end
        return Chunk(begins, ends, self.bytes[begins], is_state_dump)


Found = tuple[list[NDArray[np.int64]], int]
"""Where records begin, and where the last of them ends."""


def _find(buffer: Buffer, position: int, end: int, *, more: bool) -> tuple[Found, int]:
    """Find records for a walk."""
    starts: list[NDArray[np.int64]] = []
    try:
        stopped = boundaries(buffer, position, end, starts, more=more)
    except DamagedJournal as damage:
        stopped = damage.position
    return (starts, stopped), stopped


def _step(_position: int) -> int:
    return CHUNK


def open_view(path: str, size: int, inode: int | None = None) -> FileView:
    """Map the first `size` bytes of a journal file.

    The mapping ends with the last array or Arrow buffer that looks at it.

    Args:
        path: where it was when it was listed; a server may have rotated it since.
        size: how many bytes it had.
        inode: its number in the file system; None takes whatever is there now.

    Raises:
        JournalError: the file is gone or shorter than when it was listed.
    """
    if size == 0:
        return FileView(b"", 0)
    with _opened(path, inode) as file:
        found = os.fstat(file.fileno()).st_size
        if found < size:
            raise JournalError(f"{path}: shrank from {size} to {found} bytes while it was read")
        buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    buffer.madvise(mmap.MADV_SEQUENTIAL)
    return FileView(buffer, size)


def _opened(path: str, inode: int | None) -> BinaryIO:
    for name in _names_since(path, inode):
        with contextlib.suppress(FileNotFoundError):
            file = open_stream(name, "rb")
            if inode is None or os.fstat(file.fileno()).st_ino == inode:
                return file
            file.close()
    raise JournalError(f"{path}: was packed away while it was read")


def _names_since(path: str, inode: int | None) -> Iterator[str]:
    """Yield the name by which a file was listed, and then the one that it was rotated to."""
    yield path
    listed = parse_name(Path(path).name)
    # Other files are not renamed, and the number of one that was deleted soon is another's.
    if inode is None or listed is None or listed.timestamp is not None:
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(Path(path).parent) as entries:
        for entry in entries:
            name = parse_name(entry.name) if entry.inode() == inode else None
            if name is not None and name.queue == listed.queue:
                yield entry.path


def events(view: FileView, chunk: Chunk) -> Events:
    """Return what the records of `chunk` do to their queue."""
    adds = chunk.adds
    indexes = np.flatnonzero(~adds | (chunk.opcodes == ADD_XID) | chunk.continues)
    if chunk.is_state_dump:
        indexes = indexes[:0]
    kinds = chunk.opcodes[indexes]
    xids = np.zeros(len(indexes), dtype=np.int32)
    has_xid = (kinds != REMOVE) & (kinds != REMOVE_TENTATIVE)
    xids[has_xid] = view.field("<i4", chunk.starts[indexes[has_xid]] + 1)
    adds_so_far = np.cumsum(adds)
    before: NDArray[np.int64] = adds_so_far[indexes] - adds[indexes]
    return Events(kinds, xids, before, int(adds_so_far[-1]) if len(chunk) else 0)
