"""Trace a journal file: yield the items that it adds, and its events, the fates of any items.

A remove has no time in the journal; it happened between the adds around it. So the bounds of an
event are the add times of the nearest adds with a time before and after it, in whichever of the
queue's files these are: how the journal is divided into files makes no difference. A CONTINUE
confirms a read and adds an item at the same moment, so its own add time is both bounds. A time of
0 means no time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kestrelmq.format.records import CONTINUE
from kestrelmq.journal.life import NEXT, NOTHING, NOWHERE, REPLAYED
from kestrelmq.spark.replay.segments import ReplayState
from kestrelmq.spark.replay.summarising import RecordRun, Summariser, record_run
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.scanning import Chunk, FileView
from kestrelmq.spark.storage.spool import SpoolFile

ITEM_SCHEMA: Final = pa.schema(
    [
        ("spool", pa.string()),
        ("queue", pa.string()),
        ("ordinal", pa.int64()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("add_time", pa.int64()),
        ("expiry", pa.int64()),
        ("size", pa.int32()),
        ("data", pa.binary()),
    ]
)
EVENT_SCHEMA: Final = pa.schema(
    [
        ("spool", pa.string()),
        ("queue", pa.string()),
        ("ordinal", pa.int64()),
        ("fate", pa.int32()),
        ("not_before", pa.int64()),
        ("not_after", pa.int64()),
    ]
)

TERMINAL: Final = tuple(
    {event for event in REPLAYED if event != NOTHING and NEXT[event] == NOWHERE}
)
"""Fates, which are events of `journal.life`, after which an item is gone."""


@dataclass(frozen=True, slots=True)
class TraceTask:
    """A file to trace.

    Attributes:
        file: the file.
        state: the state of its queue at the start of the file.
        before: the last add time in the queue's earlier files (ms, 0 if there is none).
        after: the first add time in the queue's later files (ms, 0 if there is none).
    """

    file: SpoolFile
    state: ReplayState
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class AddTimes:
    """The first and the last add time in a file (ms, 0 if there is none)."""

    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class _ItemEvents:
    """Events in order: items (ordinals), fates, and bounds of the times (ms, 0 if unknown)."""

    ordinals: NDArray[np.int64]
    fates: NDArray[np.int32]
    not_before: NDArray[np.int64]
    not_after: NDArray[np.int64]

    def part(self, wanted: NDArray[np.bool_]) -> "_ItemEvents":
        return _ItemEvents(
            self.ordinals[wanted],
            self.fates[wanted],
            self.not_before[wanted],
            self.not_after[wanted],
        )


def add_times(file: SpoolFile) -> AddTimes:
    """Return the first and the last add time in a file.

    Raises:
        DamagedJournal: the file is damaged.
        JournalError: the file is gone, or shorter than when it was listed.
    """
    view = open_view(file)
    found = AddTimes()
    for chunk in view.chunks():
        times = _add_times(view, chunk)
        known = times[times != 0]
        if len(known):
            found = AddTimes(found.first or int(known[0]), int(known[-1]))
    return found


def trace_tasks(
    files: Sequence[SpoolFile], starts: Sequence[ReplayState], times: Sequence[AddTimes]
) -> list[TraceTask]:
    """Return the tasks that trace a queue's files, from each file's start state and add times."""
    before = list(accumulate(times, lambda last, time: time.last or last, initial=0))
    after = list(accumulate(reversed(times), lambda first, time: time.first or first, initial=0))
    after.reverse()
    return [
        TraceTask(file, state, before[place], after[place + 1])
        for place, (file, state) in enumerate(zip(files, starts, strict=True))
    ]


def items(task: TraceTask, *, with_data: bool, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the items that a file adds, with their ordinals."""
    file = task.file
    ordinal = task.state.adds
    view = open_view(file)
    for chunk in view.chunks():
        for batch in columns.batches(chunk.part(chunk.adds), rows):
            count = len(batch)
            yield pa.RecordBatch.from_arrays(
                [
                    columns.constant(file.spool, count),
                    columns.constant(file.queue, count),
                    pa.array(np.arange(ordinal, ordinal + count)),
                    columns.constant(file.name, count),
                    pa.array(batch.starts),
                    columns.add_times(view, batch).fill_null(0),
                    columns.expiries(view, batch),
                    columns.sizes(batch),
                    columns.data(view, batch) if with_data else pa.nulls(count, pa.binary()),
                ],
                schema=ITEM_SCHEMA,
            )
            ordinal += count


def item_events(task: TraceTask) -> Iterator[pa.RecordBatch]:
    """Yield the events in a file, including those of items that earlier files added."""
    file, state = task.file, task.state
    traced: list[tuple[int, int, int]] = []
    summariser = Summariser(state.start(), trace=lambda *event: traced.append(event))
    view = open_view(file)
    before = task.before
    waiting: list[_ItemEvents] = []  # events that wait for the next add time, their upper bound
    for chunk in view.chunks():
        run = record_run(view, chunk)
        summariser.feed(run)
        times = _add_times(view, chunk)
        known = times[times != 0]
        if len(known):
            yield from (_batch(file, one, int(known[0])) for one in waiting)
            waiting.clear()
        if traced:
            found = _traced_events(state, traced, run, times, before)
            traced.clear()
            if len(known):
                yield _batch(file, found.part(found.not_after != 0))
            waiting.append(found.part(found.not_after == 0))
        before = int(known[-1]) if len(known) else before
    yield from (_batch(file, one, task.after) for one in waiting)


def _add_times(view: FileView, chunk: Chunk) -> NDArray[np.int64]:
    """Return the add times of a chunk's adds; an ADD has none."""
    adds = chunk.part(chunk.adds)
    found: NDArray[np.int64] = (
        columns.add_times(view, adds).fill_null(0).to_numpy(zero_copy_only=False)
    )
    return np.maximum(found, 0)


def _traced_events(
    state: ReplayState,
    traced: Sequence[tuple[int, int, int]],
    run: RecordRun,
    times: NDArray[np.int64],
    before: int,
) -> _ItemEvents:
    """Return the events of a chunk; `before` is the last add time before the chunk."""
    count = len(traced)
    indexes = np.fromiter((index for _, _, index in traced), np.int64, count)
    places = run.adds_before[indexes]
    not_before, not_after = _nearest(times, before)
    earlier, later = not_before[places], not_after[places]
    own = np.append(times, 0)[places]
    is_dated = (run.kinds[indexes] == CONTINUE) & (own != 0)
    return _ItemEvents(
        np.fromiter((state.ordinal(reference) for _, reference, _ in traced), np.int64, count),
        np.fromiter((fate for fate, _, _ in traced), np.int32, count),
        np.where(is_dated, own, earlier),
        np.where(is_dated, own, later),
    )


def _nearest(times: NDArray[np.int64], before: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each place between adds, the nearest known times before and after it."""
    padded = np.concatenate([[before], times, [0]])
    places = np.arange(len(padded))
    last = np.maximum.accumulate(np.where(padded != 0, places, 0))
    following = np.where(padded != 0, places, len(padded) - 1)[::-1]
    first = np.minimum.accumulate(following)[::-1]
    return padded[last[:-1]], padded[first[1:]]


def _batch(file: SpoolFile, traced: _ItemEvents, after: int = 0) -> pa.RecordBatch:
    """Return events as rows; events without an upper bound get `after`."""
    count = len(traced.ordinals)
    not_after = np.where(traced.not_after == 0, after, traced.not_after)
    return pa.RecordBatch.from_arrays(
        [
            columns.constant(file.spool, count),
            columns.constant(file.queue, count),
            pa.array(traced.ordinals),
            pa.array(traced.fates),
            pa.array(traced.not_before, mask=traced.not_before == 0),
            pa.array(not_after, mask=not_after == 0),
        ],
        schema=EVENT_SCHEMA,
    )
