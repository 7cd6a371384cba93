"""Read journal files with numpy: chunks of whole records, header fields as arrays.

`journal.walk` finds the records, as for a server; all else is done for a whole chunk at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.records import (
    ADD,
    ADD_XID,
    ADDX,
    CONTINUE,
    SAVE_XID,
    STATE_DUMP_SIZE,
    Buffer,
)
from kestrelmq.journal.walk import WINDOW, EndKind, Walk, find_records

_XID_SIZE: Final = 4
CHUNK: Final = 16 << 20
"""Bytes scanned at once; a longer record is still read whole."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of a file, in order.

    Attributes:
        starts: where each record begins.
        ends: where each record ends.
        opcodes: their first bytes; CONTINUE has the same opcode as STATE_DUMP.
        is_state_dump: whether the chunk is a STATE_DUMP, which is always a chunk of its own.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    opcodes: NDArray[np.uint8]
    is_state_dump: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, wanted: "slice | NDArray[np.bool_] | NDArray[np.int64]") -> "Chunk":
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
    """The first `size` bytes of a journal file, with header fields as arrays.

    Attributes:
        torn_at: where the torn record at the end begins, or None; `chunks` sets it.
    """

    def __init__(self, buffer: Buffer, size: int, *, last: bool) -> None:
        """View `buffer`, which must hold at least `size` bytes and outlive the view.

        `last` is whether it is the last file of its queue, whose end may be torn.
        """
        self._last = last
        self.buffer = buffer if len(buffer) == size else memoryview(buffer)[:size]
        self.size = size
        self.torn_at: int | None = None
        self.bytes: NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8, count=size)

    def field(
        self, dtype: str, positions: NDArray[np.int64]
    ) -> NDArray[np.int32] | NDArray[np.int64]:
        """Return the little-endian integers at `positions`, which need not be aligned."""
        width = np.dtype(dtype).itemsize
        if len(positions) == 0 or self.size < width:
            return np.zeros(0, dtype=dtype)
        shape = (self.size - width + 1,)
        everywhere: NDArray[np.int64] = np.ndarray(
            shape, dtype=dtype, buffer=self.bytes.data, strides=(1,)
        )
        return everywhere[positions]

    def chunks(self, *, replayed_only: bool = True, begin: int = 0) -> Iterator[Chunk]:
        """Split the file into chunks of whole records, in order.

        A STATE_DUMP is the last chunk, because replay of the file ends there; without
        `replayed_only` the whole records behind it follow, too. With `begin`, where a record before
        any STATE_DUMP begins, the records before it are left out.

        Raises:
            DamagedJournal: after the last good record, if the file is damaged there, or is torn
                and not the last.
        """
        walk = Walk(self.buffer, _find, last=self._last, step=_step, forgets=False)
        for section, batches in walk.sections(begin):
            if section != begin:
                dump = np.array([section - STATE_DUMP_SIZE], dtype=np.int64)
                yield self._chunk([dump], section, is_state_dump=True)
                if replayed_only:
                    break
            for starts, end in batches:
                yield self._chunk(starts, end)
            if section == begin:
                if walk.end.kind is EndKind.DAMAGED:
                    raise DamagedJournal(walk.end.position, walk.end.reason)
                self.torn_at = walk.end.position if walk.end.kind is EndKind.TORN else None

    def _chunk(
        self, starts: list[NDArray[np.int64]], end: int, *, is_state_dump: bool = False
    ) -> Chunk:
        begins = np.concatenate(starts)
        ends = np.empty_like(begins)
        ends[:-1] = begins[1:]
        ends[-1] = end
        return Chunk(begins, ends, self.bytes[begins], is_state_dump)


Found = tuple[list[NDArray[np.int64]], int]
"""Where records begin, and where the last one ends."""


def _find(buffer: Buffer, position: int, end: int, *, more: bool) -> tuple[Found, int]:
    """Find records, as `journal.walk.Walk` needs it."""
    starts: list[NDArray[np.int64]] = []
    while position < end:
        reach = min(end, position + WINDOW)
        found, stopped = find_records(buffer, position, reach, more=more or reach < end)
        if stopped == position and reach < end:  # perhaps one record is longer than the window
            found, stopped = find_records(buffer, position, end, more=more)
        if stopped == position:
            break
        run = found.starts
        starts.append(
            np.arange(run.start, run.stop, run.step)
            if isinstance(run, range)
            else np.array(run, dtype=np.int64)
        )
        position = stopped
    return (starts, position), position


def _step(_position: int) -> int:
    return CHUNK


def xids_at(chunk: Chunk) -> NDArray[np.int64]:
    """Return where the xid of each record is; of a whole note it is the last one."""
    return np.where(chunk.opcodes == SAVE_XID, chunk.ends - _XID_SIZE, chunk.starts + 1)
