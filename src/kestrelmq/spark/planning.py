"""Which items of a spool are live, and where: the plan for reading what is in the queues now.

A plan has no item data. Summaries of files are made by whatever `run` is given: here, in a pool
of processes, or by a Spark job; only the fold of summaries is done in one place.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from kestrelmq.errors import DamagedJournal
from kestrelmq.spark.scanning import events, open_view
from kestrelmq.spark.segments import (
    EMPTY,
    Live,
    Segment,
    Start,
    State,
    last_xids,
    replay,
)
from kestrelmq.spark.spool import SpoolFile
from kestrelmq.spark.summarising import Summariser


@dataclass(frozen=True, slots=True)
class Task:
    """A file to summarise: with its exact start, or else with a last-used xid to assume."""

    file: SpoolFile
    start: Start | None
    last_xid: int = 0


Run = Callable[[Sequence[Task]], list[Segment]]
"""Summarises files, in any place and at once, and returns the summaries in order."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file and the ordinals of the items it adds: `first` and the `adds - 1` after it."""

    file: SpoolFile
    first: int
    adds: int


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """What is live in a queue, and the files it is in."""

    queue: str
    files: tuple[FilePlan, ...]
    live: Live


@dataclass(frozen=True, slots=True)
class Replayed:
    """A queue's files, the state at the start of each, and the state at the end."""

    files: tuple[SpoolFile, ...]
    starts: tuple[State, ...]
    end: State

    def plan(self) -> QueuePlan:
        """Return where its live items are."""
        adds = [state.adds for state in self.starts] + [self.end.adds]
        return QueuePlan(
            queue=self.files[0].queue,
            files=tuple(
                FilePlan(file, adds[place], adds[place + 1] - adds[place])
                for place, file in enumerate(self.files)
            ),
            live=self.end.live(),
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """The live items of one file.

    Attributes:
        file: where they are.
        first: ordinal of the first item the file adds.
        live_from: items from this ordinal on are live,
        live_to: up to this one, which is not.
        shift: what to add to such an ordinal to get the position in the queue.
        exceptions: other live items: ordinal to position, and xid if it is an open read's.
    """

    file: SpoolFile
    first: int
    live_from: int
    live_to: int
    shift: int
    exceptions: dict[int, tuple[int, int | None]]


def summarise(task: Task) -> Segment:
    """Summarise one file.

    Raises:
        DamagedJournal: it is damaged.
        JournalError: it is gone or shorter than when it was listed.
    """
    file = task.file
    view = open_view(file.path, file.size, file.inode)
    summariser = Summariser(task.start, last_xid=task.last_xid)
    try:
        for chunk in view.chunks(tail_may_be_torn=file.last):
            summariser.feed(events(view, chunk))
    except DamagedJournal as damage:
        raise DamagedJournal(damage.position, damage.reason, file.path) from None
    return summariser.result()


def replay_in_order(files: Sequence[SpoolFile]) -> Replayed:
    """Replay a queue's files one after the other, each with its exact start."""
    starts = []
    state = State()
    for file in files:
        starts.append(state)
        state = state.after(summarise(Task(file, state.start())))
    return Replayed(tuple(files), tuple(starts), state)


def replay_in_parallel(queues: Sequence[Sequence[SpoolFile]], run: Run) -> list[Replayed]:
    """Replay many queues, the files of all of them at once.

    Most files are summarised once. One that opens reads without naming their xids may need a
    second look, when the last-used xid before it is known; they are looked at again together.
    """
    summaries = _first_look(queues, run)
    _second_look(queues, summaries, run)
    replayed = []
    for files, segments in zip(queues, summaries, strict=True):

        def again(place: int, start: Start, files: Sequence[SpoolFile] = files) -> Segment:
            return run([Task(files[place], start)])[0]

        starts, end = replay(segments, again)
        replayed.append(Replayed(tuple(files), tuple(starts), end))
    return replayed


def _first_look(queues: Sequence[Sequence[SpoolFile]], run: Run) -> list[list[Segment]]:
    tasks = [
        Task(file, EMPTY if place == 0 else None)
        for files in queues
        for place, file in enumerate(files)
    ]
    made = iter(run(tasks) if tasks else [])
    return [[next(made) for _ in files] for files in queues]


def _second_look(
    queues: Sequence[Sequence[SpoolFile]], summaries: list[list[Segment]], run: Run
) -> None:
    places = []
    tasks = []
    for queue, (files, segments) in enumerate(zip(queues, summaries, strict=True)):
        for place, last_xid in enumerate(last_xids(segments)):
            if place > 0 and segments[place].assumed_last_xid not in {None, last_xid}:
                places.append((queue, place))
                tasks.append(Task(files[place], None, last_xid))
    for (queue, place), segment in zip(places, run(tasks) if tasks else [], strict=True):
        summaries[queue][place] = segment


def wanted(plan: QueuePlan) -> list[Wanted]:
    """Return the files that hold live items, and which items those are."""
    live = plan.live
    front = [*live.given_back, *((item, None) for item in live.head)]
    exceptions = {item: (position, xid) for position, (item, xid) in enumerate(front)}
    found = []
    for file in plan.files:
        end = file.first + file.adds
        here = {item: place for item, place in exceptions.items() if file.first <= item < end}
        if here or (file.adds and end > live.first):
            shift = len(front) - live.first
            found.append(Wanted(file.file, file.first, live.first, live.end, shift, here))
    return found


def to_text(plans: Iterable[Wanted]) -> str:
    """Write plans as text."""
    return json.dumps([asdict(plan) for plan in plans])


def from_text(text: str) -> list[Wanted]:
    """Read what `to_text` wrote.

    Raises:
        ValueError: it is no such text.
    """
    try:
        return [_wanted_from(plan) for plan in json.loads(text)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError("a plan that kestrelmq.spark made") from error


def _wanted_from(plan: "dict[str, object]") -> Wanted:
    file = plan.pop("file")
    exceptions = plan.pop("exceptions")
    if not isinstance(file, dict) or not isinstance(exceptions, dict):
        raise TypeError("no plan")
    return Wanted(
        file=SpoolFile(**file),
        exceptions={int(item): (place, xid) for item, (place, xid) in exceptions.items()},
        **plan,  # type: ignore[arg-type] # the constructor checks the names
    )
