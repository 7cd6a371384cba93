"""Checking journals: every record of every file, and what replaying them gives. Changes nothing."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kestrelmq.errors import DamagedJournal
from kestrelmq.journal.files import forget, mapped
from kestrelmq.journal.loading import cut_continue, is_zeros
from kestrelmq.journal.records import Buffer
from kestrelmq.journal.salvage import Lost, next_after_cut, next_record
from kestrelmq.journal.scanning import record_length, scan
from kestrelmq.journal.selection import Selected
from kestrelmq.journal.writer import Dialect

Progress = Callable[[int], None]
"""Told how many more bytes were looked at."""
CUT: Final = "a record is cut short"
BEYOND: Final = "a record reaches beyond the end, yet others follow it"
_BATCH: Final = 1 << 20
_FORGET: Final = 8 << 20
"""Bytes of a map that are given back at once when they were looked at."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the files of a queue are worth.

    Attributes:
        queue: the queue's name.
        size: bytes in its files.
        operations: how many records of each opcode there are.
        items, item_bytes: what waits in the queue after the replay of all whole records.
        open_reads: how many reads are open after it.
        torn: the end of the last file, if a record is cut short there: what a crash leaves.
        damaged: ranges of bytes that are no records, elsewhere.
    """

    queue: str
    size: int
    operations: dict[int, int]
    items: int
    item_bytes: int
    open_reads: int
    torn: Lost | None
    damaged: tuple[Lost, ...]

    @property
    def is_sound(self) -> bool:
        """Whether a server would load the queue."""
        return not self.damaged


def verify(selected: Selected, progress: Progress = lambda _bytes: None) -> Report:
    """Check a queue. Raises OSError: a file cannot be read."""
    state = selected.new_replay()
    operations: Counter[int] = Counter()
    lost: list[Lost] = []
    size = 0
    for index, name in enumerate(selected.files):
        files = selected.files[: index + 1]
        with mapped(selected.path / name) as buffer:
            size += len(buffer)
            position = forgotten = 0
            while position < len(buffer):
                if position - forgotten > _FORGET:
                    forgotten = forget(buffer, forgotten, position)
                starts: list[int] = []
                end, reason = scan_some(buffer, position, starts, state.dialect)
                state.feed(buffer, starts, end, files)
                operations.update(buffer[start] for start in starts)
                if reason is not None:
                    if is_zeros(buffer, end):
                        reason = CUT
                    is_cut = reason in {CUT, BEYOND}
                    resumed = (next_after_cut if is_cut else next_record)(buffer, end)
                    lost.append(Lost(name, end, resumed, reason))
                    end = resumed
                progress(end - position)
                position = end
    last_size = (selected.path / selected.files[-1]).stat().st_size if selected.files else 0
    torn = _torn_tail(lost, selected, last_size)
    return Report(
        selected.queue,
        size,
        dict(sorted(operations.items())),
        state.items,
        state.size,
        len(state.open),
        torn,
        tuple(one for one in lost if one is not torn),
    )


def _torn_tail(lost: list[Lost], selected: Selected, last_size: int) -> Lost | None:
    if not lost or lost[-1].reason != CUT:
        return None
    # Of the queue, not of the files that were looked at: a server reads them all.
    last = selected.plan.present[-1]
    return lost[-1] if (lost[-1].file, lost[-1].end) == (last, last_size) else None


def scan_some(
    buffer: Buffer, position: int, starts: list[int], dialect: Dialect | None
) -> tuple[int, str | None]:
    """Find some records from `position` on; return where they end, and what is wrong there.

    Nothing is wrong (None) when the next record may just be in the next piece. `dialect` is that
    of the file, as far as the records before `position` tell it.
    """
    end, reason = _scan_some(buffer, position, starts)
    if reason is not None or end == len(buffer) or len(starts) == 1:
        cut = cut_continue(buffer, starts, dialect)
        if cut is not None:
            return cut, _cut_or_beyond(buffer, cut)
    return end, reason


def _scan_some(buffer: Buffer, position: int, starts: list[int]) -> tuple[int, str | None]:
    size = len(buffer)
    batch_end = min(size, position + _BATCH)
    try:
        end = scan(buffer, position, batch_end, starts, more=batch_end < size)
        if end == position:
            length = record_length(buffer, position, size)
            if length is None or position + length > size:
                return position, _cut_or_beyond(buffer, position)
            starts.append(position)
            return position + length, None
    except DamagedJournal as damage:
        return damage.position, damage.reason
    return end, _cut_or_beyond(buffer, end) if batch_end == size and end < size else None


def _cut_or_beyond(buffer: Buffer, position: int) -> str:
    return CUT if next_after_cut(buffer, position) == len(buffer) else BEYOND
