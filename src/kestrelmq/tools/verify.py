"""Checking journals: every record of every file, and the result of replaying them; read-only."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelmq.disk.opening import mapped
from kestrelmq.format.records import STATE_DUMP, STATE_DUMP_SIZE, Buffer
from kestrelmq.format.salvage import LostRange
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.walk import WINDOW, EndKind, RecordBatch, Walk, find_records
from kestrelmq.tools.journal_files import SelectedQueue

Progress = Callable[[int], None]
"""Told how many more bytes were checked."""
LEFT_OUT: Final = "behind a STATE_DUMP, which ends its file in replay"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of checking a queue.

    Attributes:
        queue: the queue's name.
        size: bytes in its files.
        operations: how many records of each opcode there are.
        items: how many items wait in the queue after the replay of all whole records.
        item_bytes: bytes of data in them.
        open_reads: how many reads are open after that replay.
        delayed: how many items are delayed after it.
        left_out: ranges of bytes that replay ignores because they follow a STATE_DUMP.
        torn: the end of the last file, if a record is cut short there, as a crash leaves it.
        damaged: other ranges of bytes that are not records.
    """

    queue: str
    size: int
    operations: dict[int, int]
    items: int
    item_bytes: int
    open_reads: int
    delayed: int
    left_out: tuple[LostRange, ...]
    torn: LostRange | None
    damaged: tuple[LostRange, ...]

    @property
    def is_sound(self) -> bool:
        """Whether a server would load the queue."""
        return not self.damaged


def verify(selected: SelectedQueue, progress: Progress = lambda _bytes: None) -> VerifyReport:
    """Check a queue. Raises OSError: a file cannot be read."""
    state = selected.new_replay()
    operations: Counter[int] = Counter()
    found: dict[EndKind, list[LostRange]] = {kind: [] for kind in EndKind}
    size = 0
    for index, name in enumerate(selected.files):
        files = selected.files[: index + 1]
        with mapped(selected.path / name) as buffer:
            size += len(buffer)
            for kind, lost in _check(selected, files, buffer, state, operations, progress):
                found[kind].append(lost)
    state.end()
    if state.behind is not None:
        state.behind.close()
    return VerifyReport(
        selected.queue,
        size,
        dict(sorted(operations.items())),
        state.items,
        state.size,
        len(state.open),
        0 if state.delayed is None else len(state.delayed),
        left_out=tuple(lost for lost in found[EndKind.STATE_DUMP] if lost.start < lost.end),
        torn=next(iter(found[EndKind.TORN]), None),
        damaged=tuple(found[EndKind.DAMAGED]),
    )


def _check(
    selected: SelectedQueue,
    files: Sequence[str],
    buffer: Buffer,
    state: Replay,
    operations: Counter[int],
    progress: Progress,
) -> Iterator[tuple[EndKind, LostRange]]:
    """Fold in the last of `files`; yield the byte ranges that replay cannot use, and why."""
    name, size = files[-1], len(buffer)
    done = position = 0

    def step(at: int) -> int:
        nonlocal done
        progress(max(0, at - done))
        done = max(done, at)
        return WINDOW

    path = selected.path / name
    walk = Walk(buffer, find_records, last=selected.is_last(name), step=step, path=path)
    while position < size:
        for batch in walk.batches(position):
            state.feed_batch(buffer, batch, files)
            _count(operations, buffer, batch)
        ending = walk.end
        if ending.kind is EndKind.STATE_DUMP:
            operations[STATE_DUMP] += 1
            yield (
                EndKind.STATE_DUMP,
                LostRange(name, ending.position + STATE_DUMP_SIZE, size, LEFT_OUT),
            )
        position = walk.resume_position()
        if ending.kind in {EndKind.TORN, EndKind.DAMAGED}:
            yield ending.kind, LostRange(name, ending.position, position, ending.reason)
    progress(size - done)


def _count(operations: Counter[int], buffer: Buffer, batch: RecordBatch) -> None:
    if batch.is_added:
        operations[buffer[batch.starts[0]]] += len(batch.starts)
    else:
        operations.update(buffer[start] for start in batch.starts)
