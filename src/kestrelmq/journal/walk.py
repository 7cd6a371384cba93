"""Walking a journal file: its whole records in order, and where and why they end.

Loading, the tools and Spark all read files with this walk, so they agree on where the records end
and why. The records end

- at the end of the file;
- at a STATE_DUMP, which ends its file in replay, whatever follows;
- where the file is torn: its last record is cut short, or only zeros are left. A crash leaves this
  at the end of a queue's last file; anywhere else it is damage;
- at damage: bytes that are not a record, or a record that extends beyond the end of the file
  although whole records follow that were added no earlier, so its size must be wrong.

`scanning` decides whether an opcode 8 is a STATE_DUMP or a CONTINUE. If it is a STATE_DUMP only
because the file ends too early, it may be a CONTINUE that is cut short. It is taken for one if its
add time is there and plausible, or if the file ends before the add time does and its dialect has
CONTINUE.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from kestrelmq.disk.opening import data_after, forget
from kestrelmq.errors import DamagedJournal
from kestrelmq.format.records import (
    ADD_HEADER,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    STATE_DUMP_SIZE,
    Buffer,
    is_state_dump,
)
from kestrelmq.format.salvage import Step, next_after_cut, next_record
from kestrelmq.format.scanning import (
    MIN_RUN,
    added_run,
    is_cut_continue,
    record_length,
    scan,
    uniform_run,
)

WINDOW: Final = 1 << 20
"""Bytes that are scanned at a time."""
CUT_SHORT: Final = "a record is cut short"
ONLY_ZEROS: Final = "nothing but zeros is left"
FILE_FOLLOWS: Final = ", and another file follows"
_FORGET_BYTES: Final = 8 << 20
"""Bytes of a map that are released at a time, once they have been walked."""
_LONG_RUN: Final = 16
"""Most windows that are searched at a time for a run of equally long records."""

Found_co = TypeVar("Found_co", covariant=True)


class EndKind(Enum):
    """Why the records of a file end."""

    WHOLE = "the file ends"
    STATE_DUMP = "a STATE_DUMP ends it"
    TORN = "it is torn"
    DAMAGED = "it is damaged"


class WalkEnd(NamedTuple):
    """Where and why the records of a file end.

    Attributes:
        kind: why.
        position: where: the end of the last whole record; for STATE_DUMP, where that begins.
        reason: for TORN and DAMAGED, what is wrong there.
        resumes_at: where records continue after damage, if that is already known.
    """

    kind: EndKind
    position: int
    reason: str = ""
    resumes_at: int | None = None


class RecordFinder(Protocol[Found_co]):
    """Finds whole records, and returns them in a form of its own."""

    def __call__(
        self, buffer: Buffer, position: int, end: int, *, more: bool
    ) -> tuple[Found_co, int]:
        """Return the records that begin at `position`, and where the last of them ends.

        It stops where `scanning.scan` does, but never raises: if no whole record begins at
        `position`, or a STATE_DUMP does, it returns `position`. With `more`, it may continue beyond
        `end`.
        """


def _window(_position: int) -> int:
    return WINDOW


class Walk(Generic[Found_co]):
    """A walk of one file."""

    def __init__(
        self,
        buffer: Buffer,
        find: RecordFinder[Found_co],
        *,
        last: bool,
        step: Step = _window,
        path: str | Path | None = None,
        forgets: bool = True,
    ) -> None:
        """Prepare a walk over `buffer`.

        Args:
            buffer: the whole file.
            find: finds the records.
            last: whether this is the last file of its queue, which may be torn.
            step: called before each piece of work.
            path: where the file is, if its holes are worth skipping.
            forgets: whether to release the memory of a map behind the walk.
        """
        self._end: WalkEnd | None = None
        self._buffer = buffer
        self._find = find
        self._last = last
        self._given_step = step
        self._path = path
        self._forgets = forgets
        self._forgotten = 0
        self._begin = 0

    def batches(self, position: int = 0, *, begin: int | None = None) -> Iterator[Found_co]:
        """Yield the records from `position` on, in batches; after the last, `end` is known.

        `begin` is where the section of `position` begins, if that is not the same.
        """
        self._end = None
        self._begin = position if begin is None else begin
        end = position
        for batch in _whole(self._buffer, self._find, position, self._step):
            end = batch[1]
            yield batch[0]
        self._end = self._classify(end)

    def sections(self, position: int = 0) -> Iterator[tuple[int, Iterator[Found_co]]]:
        """Yield the sections of the file, which its STATE_DUMPs separate.

        A section is the position where it begins, and its batches; take all of these before the
        next section. The first section begins at 0, each other one behind a STATE_DUMP. Replay ends
        with the first. With `position`, where a record of the first section begins, the records
        before it are left out.
        """
        yield position, self.batches(position, begin=0)
        while self.end.kind is EndKind.STATE_DUMP:
            behind = self.end.position + STATE_DUMP_SIZE
            yield behind, self.batches(behind)

    @property
    def end(self) -> WalkEnd:
        """Where and why the records end; known once all batches are taken."""
        if self._end is None:
            raise RuntimeError("the walk is not at the end")
        return self._end

    def checked_end(self, path: Path | str) -> WalkEnd:
        """Return `end`, unless that is at damage.

        Raises:
            DamagedJournal: the records end at damage; the error names the file `path`.
        """
        end = self.end
        if end.kind is EndKind.DAMAGED:
            raise DamagedJournal(end.position, end.reason, str(path))
        return end

    def resume_position(self) -> int:
        """Return where records continue after `end`; the end of the file if they do not."""
        end = self.end
        if end.kind is not EndKind.DAMAGED:
            return len(self._buffer)
        if end.resumes_at is None:
            return next_record(self._buffer, end.position, step=self._step)
        return end.resumes_at

    def _step(self, position: int) -> int:
        if self._forgets:
            if position - self._forgotten > _FORGET_BYTES:
                self._forgotten = forget(self._buffer, self._forgotten, position)
            elif position < self._forgotten:
                self._forgotten = 0  # a second pass; releasing memory again costs nothing
        return self._given_step(position)

    def _classify(self, position: int) -> WalkEnd:
        """Say what is at `position`, where no whole record begins, or a STATE_DUMP does."""
        buffer, size = self._buffer, len(self._buffer)
        if position == size:
            return WalkEnd(EndKind.WHOLE, position)
        if self._is_zeros(position):
            return self._torn(position, ONLY_ZEROS)
        try:
            length = record_length(buffer, position, size)
        except DamagedJournal as damage:
            return WalkEnd(EndKind.DAMAGED, position, damage.reason)
        is_dump = length is not None and is_state_dump(buffer, position, length)
        if is_dump and not self._is_cut_continue(position):
            return WalkEnd(EndKind.STATE_DUMP, position)
        resumed = next_after_cut(buffer, position, step=self._step)
        if resumed < size:
            reason = f"a record reaches beyond the end, yet others follow it at byte {resumed}"
            return WalkEnd(EndKind.DAMAGED, position, reason, resumed)
        return self._torn(position, CUT_SHORT)

    def _torn(self, position: int, reason: str) -> WalkEnd:
        if self._last:
            return WalkEnd(EndKind.TORN, position, reason)
        return WalkEnd(EndKind.DAMAGED, position, reason + FILE_FOLLOWS, len(self._buffer))

    def _is_cut_continue(self, position: int) -> bool:
        """Whether what reads as a STATE_DUMP is a CONTINUE that the end of the file cuts short."""
        is_cut = is_cut_continue(self._buffer, position, len(self._buffer))
        return self._names_xids() if is_cut is None else is_cut

    def _names_xids(self) -> bool:
        """Whether the last tentative remove says its xid, as Kestrel 2.x does."""
        opcode = REMOVE_TENTATIVE
        for batch, _ in _whole(self._buffer, find_records, self._begin, self._step):
            for start in () if batch.is_added else batch.starts:
                if self._buffer[start] in {REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID}:
                    opcode = self._buffer[start]
        return opcode == REMOVE_TENTATIVE_XID

    def _is_zeros(self, position: int) -> bool:
        """Whether only zeros follow: a file system may leave them after a power failure."""
        buffer, size = self._buffer, len(self._buffer)
        if any(buffer[position : position + 64]):
            return False
        zeros = bytes(WINDOW)
        while position < size:
            if self._path is not None:
                position = max(position, data_after(self._path, position))
            end = min(size, position + min(WINDOW, self._step(position)))
            if buffer[position:end] != zeros[: end - position]:
                return False
            position = end
        return True


def _whole(
    buffer: Buffer, find: RecordFinder[Found_co], position: int, step: Step
) -> Iterator[tuple[Found_co, int]]:
    """Yield batches of whole records from `position` on, each with where its last record ends."""
    size = len(buffer)
    while position < size:
        end = min(size, position + step(position))
        found, stopped = find(buffer, position, end, more=end < size)
        if stopped == position:
            # This is the end, unless one record is longer than the window.
            length = _whole_length(buffer, position)
            if length is None:
                return
            found, stopped = find(buffer, position, position + length, more=False)
        yield found, stopped
        position = stopped


def _whole_length(buffer: Buffer, position: int) -> int | None:
    """Return the length of the whole record at `position`; None without one, or for STATE_DUMP."""
    try:
        length = record_length(buffer, position, len(buffer))
    except DamagedJournal:
        return None
    if length is None or position + length > len(buffer):
        return None
    return None if is_state_dump(buffer, position, length) else length


# --- records for replay ---


class RecordBatch(NamedTuple):
    """Consecutive whole records.

    Attributes:
        starts: where each begins; a range if all are ADDX, or all ADD, and equally long.
        end: where the last of them ends.
        is_added: whether all are ADDX, or `starts` is such a range.
    """

    starts: Sequence[int]
    end: int
    is_added: bool = False


def find_records(buffer: Buffer, position: int, end: int, *, more: bool) -> tuple[RecordBatch, int]:
    """Find records, as a `RecordFinder`; a run of equally long ones may extend far beyond `end`."""
    starts: list[int] = []
    if end - position >= MIN_RUN * ADD_HEADER:  # else there is no room for a run
        size = len(buffer)
        reach = min(size, position + _LONG_RUN * (end - position)) if more else end
        count, length = uniform_run(buffer, position, reach)
        if count >= MIN_RUN:
            stopped = position + count * length
            return RecordBatch(range(position, stopped, length), stopped, is_added=True), stopped
        stopped = added_run(buffer, position, end, starts)
        if len(starts) >= MIN_RUN:
            return RecordBatch(starts, stopped, is_added=True), stopped
        starts = []
    try:
        stopped = scan(buffer, position, end, starts, more=more)
    except DamagedJournal as damage:
        stopped = damage.position
    return RecordBatch(starts, stopped), stopped
