"""Plan how to read what is in the queues now: which items are live, and in which files.

A plan has no item data; `live_items` reads it. The caller passes in how files are summarised
(`SummariseFiles`): one after the other, in a pool of processes, or by a Spark job. The summaries
are folded in this process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kestrelmq.errors import DamagedJournal
from kestrelmq.spark.replay.noted_replay import finished_reads
from kestrelmq.spark.replay.segments import (
    EMPTY_START,
    ReplayState,
    SegmentStart,
    SegmentSummary,
    last_xids,
    replay,
)
from kestrelmq.spark.replay.summarising import Summariser, record_run
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.scanning import Chunk, FileView
from kestrelmq.spark.storage.spool import SpoolFile


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """A file to summarise, with its exact start, or with the last-used xid to assume."""

    file: SpoolFile
    start: SegmentStart | None
    last_xid: int = 0


SummariseFiles = Callable[[Sequence[SummaryTask]], list[SegmentSummary]]
"""Summarises files, perhaps in several processes, and returns the summaries in order."""


@dataclass(frozen=True, slots=True)
class ReplayedQueue:
    """A queue's files, the state at the start of each, and the state at the end.

    `finished` are the items whose reads are finished, but not confirmed by a record; they are not
    open at the end.
    """

    files: tuple[SpoolFile, ...]
    starts: tuple[ReplayState, ...]
    end: ReplayState
    finished: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, files: Sequence[SpoolFile], starts: Sequence[ReplayState], end: ReplayState
    ) -> "ReplayedQueue":
        """Return the queue that a replay of all records leaves in the state `end`."""
        xids = finished_reads(files) if end.open else frozenset()
        still_open = {xid: item for xid, item in end.open.items() if xid not in xids}
        finished = tuple(item for xid, item in end.open.items() if xid in xids)
        return cls(tuple(files), tuple(starts), replace(end, open=still_open), finished)

    def plans(self) -> "list[FileReadPlan]":
        """Return the files that hold live items, each with its live items."""
        live = self.end.live()
        front = [*live.given_back, *((item, None) for item in live.head)]
        exceptions = {item: (position, xid) for position, (item, xid) in enumerate(front)}
        adds = [*(state.adds for state in self.starts), self.end.adds]
        found = []
        for file, (first, end) in zip(self.files, pairwise(adds), strict=True):
            here = {item: place for item, place in exceptions.items() if first <= item < end}
            if here or (end > first and end > live.first):
                shift = len(front) - live.first
                opened = self.files if any(xid is not None for _, xid in here.values()) else ()
                found.append(FileReadPlan(file, first, live.first, live.end, shift, here, opened))
        return found


@dataclass(frozen=True, slots=True)
class FileReadPlan:
    """The live items of one file.

    Attributes:
        file: the file.
        first: ordinal of the first item that the file adds.
        live_from: ordinal of the first item of the live range.
        live_to: ordinal after the last item of the live range.
        shift: the difference between an item's position in the queue and its ordinal, in the
            live range.
        exceptions: the other live items: ordinal to (position, xid); the xid is None unless the
            item belongs to an open read.
        opened: all files of the queue, if an item here belongs to an open read.
    """

    file: SpoolFile
    first: int
    live_from: int
    live_to: int
    shift: int
    exceptions: dict[int, tuple[int, int | None]]
    opened: tuple[SpoolFile, ...]


def summarise(task: SummaryTask) -> SegmentSummary:
    """Summarise one file.

    Raises:
        DamagedJournal: the file is damaged.
        JournalError: the file is gone, or shorter than when it was listed.
    """
    file = task.file
    view = open_view(file)
    summariser = Summariser(task.start, last_xid=task.last_xid)
    try:
        for chunk in view.chunks():
            summariser.feed(record_run(view, chunk))
    except DamagedJournal as damage:
        raise DamagedJournal(damage.position, damage.reason, file.path) from None
    return summariser.result()


def replay_in_order(files: Sequence[SpoolFile]) -> ReplayedQueue:
    """Replay a queue's files one after the other, each with its exact start."""
    starts = []
    state = ReplayState()
    for file in files:
        starts.append(state)
        state = state.after(summarise(SummaryTask(file, state.start())))
    return ReplayedQueue.of(files, starts, state)


def replay_in_parallel(
    queues: Sequence[Sequence[SpoolFile]], run: SummariseFiles
) -> list[ReplayedQueue]:
    """Replay many queues, with the files of all of them in parallel.

    Most files are summarised once. A file that opens reads without naming their xids may have to
    be summarised again once the last-used xid before it is known; those files are summarised
    again together. A file whose other assumptions turn out wrong is summarised again by itself.
    """
    summaries = _summarise_all(queues, run)
    _summarise_again(queues, summaries, run)
    replayed = []
    for files, segments in zip(queues, summaries, strict=True):

        def again(
            place: int, start: SegmentStart, files: Sequence[SpoolFile] = files
        ) -> SegmentSummary:
            return run([SummaryTask(files[place], start)])[0]

        starts, end = replay(segments, again)
        replayed.append(ReplayedQueue.of(files, starts, end))
    return replayed


def _summarise_all(
    queues: Sequence[Sequence[SpoolFile]], run: SummariseFiles
) -> list[list[SegmentSummary]]:
    tasks = [
        SummaryTask(file, EMPTY_START if place == 0 else None)
        for files in queues
        for place, file in enumerate(files)
    ]
    made = iter(run(tasks) if tasks else [])
    return [[next(made) for _ in files] for files in queues]


def _summarise_again(
    queues: Sequence[Sequence[SpoolFile]],
    summaries: list[list[SegmentSummary]],
    run: SummariseFiles,
) -> None:
    places = []
    tasks = []
    for queue, (files, segments) in enumerate(zip(queues, summaries, strict=True)):
        for place, last_xid in enumerate(last_xids(segments)):
            if place > 0 and segments[place].assumed_last_xid not in {None, last_xid}:
                places.append((queue, place))
                tasks.append(SummaryTask(files[place], None, last_xid))
    for (queue, place), segment in zip(places, run(tasks) if tasks else [], strict=True):
        summaries[queue][place] = segment


def live_items(plan: FileReadPlan) -> Iterator[tuple[FileView, Chunk, NDArray[np.int64]]]:
    """Read the live items of a file; yield some at a time, with their ordinals.

    Raises:
        DamagedJournal: the file is damaged.
        JournalError: the file is gone, or shorter than when it was listed.
    """
    file = plan.file
    view = open_view(file)
    ordinal = plan.first
    for chunk in view.chunks():
        items = chunk.part(chunk.adds)
        ordinals = np.arange(ordinal, ordinal + len(items), dtype=np.int64)
        ordinal += len(items)
        live = _are_live(ordinals, plan)
        yield view, items.part(live), ordinals[live]


def _are_live(ordinals: NDArray[np.int64], plan: FileReadPlan) -> NDArray[np.bool_]:
    """Return which of a file's items are live; `ordinals` are consecutive."""
    live = (ordinals >= plan.live_from) & (ordinals < plan.live_to)
    if len(ordinals):
        for item in plan.exceptions:
            if ordinals[0] <= item <= ordinals[-1]:
                live[item - ordinals[0]] = True
    return live
