"""API operations on whole queues: list, show, create, pause, flush, delete."""

import heapq
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Final

from aiohttp import web

from kestrelmq.admin.calls import ONE, Call, json_response, now, operation
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.history import Histories
from kestrelmq.admin.models import (
    Created,
    Flushed,
    HistoryAnswer,
    HistoryPoint,
    HistoryQuery,
    JournalFile,
    LatencySummary,
    ListQuery,
    NewQueue,
    Operations,
    PausedAnswer,
    QueueDetail,
    QueuePage,
    QueueSummary,
    RelatedQueue,
)
from kestrelmq.admin.sampling import (
    ALL,
    DAMAGED,
    LOADING,
    QueueSnapshot,
    State,
    snapshot_of,
    state_of,
)
from kestrelmq.admin.slices import slices
from kestrelmq.config import queue_settings
from kestrelmq.journal.writer import FileJournal
from kestrelmq.names import master_of
from kestrelmq.protocol.managing import Declare
from kestrelmq.protocol.rights import Right
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.loading_queues import still_loading
from kestrelmq.queues.metrics import Histograms
from kestrelmq.queues.moving import sources_of_dead_letters
from kestrelmq.queues.stats import read_numbers
from kestrelmq.server.context import ServerContext
from kestrelmq.server.loop.threads import in_thread
from kestrelmq.server.requests import changes

_MOST_FILES: Final = 200
_MOST_SOURCES: Final = 100
_FILTER_SLICE: Final = 200
_SUMMARY_SLICE: Final = 200

_FULL: Final = {
    "full_items": "it holds its most items, and refuses more",
    "full_bytes": "it holds its most bytes, and refuses more",
    "memory": "it fills the memory it may take, and refuses more",
}
"""What is wrong with a queue that is full."""

Entry = tuple[str, QueueSnapshot]


@operation("GET", "/queues", "queues", Right.SIGNED_IN)
async def list_queues(call: Call, query: ListQuery) -> QueuePage:
    """List queues."""
    wanted = query.filter.casefold()
    found: list[Entry] = []
    async for names in slices(_names(call), _FILTER_SLICE):
        found += [
            (name, snapshot)
            for name in names
            if wanted in name.casefold()
            and call.sees(name)
            and (snapshot := _last_snapshot(call, name)) is not None
            and query.state in {None, snapshot.state}
        ]
    # Sorting many queues takes long; in a thread, it does not block other requests.
    page = await in_thread(_page, found, query)
    queues = call.admin.context.collection.queues
    summaries: list[QueueSummary] = []
    async for entries in slices(page, _SUMMARY_SLICE):
        # The queues of the page are read again, so that the page is current.
        summaries += [
            _summary(name, snapshot_of(queues[name], snapshot.put_rate, snapshot.get_rate))
            if name in queues
            else _summary(name, snapshot)
            for name, snapshot in entries
        ]
    return QueuePage(total=len(found), offset=query.offset, queues=summaries)


def _names(call: Call) -> list[str]:
    collection = call.admin.context.collection
    return [*collection.damaged, *collection.loading, *collection.queues]


def _last_snapshot(call: Call, name: str) -> QueueSnapshot | None:
    """Return the last sample of a queue, or its present state if there is none; None if gone."""
    collection = call.admin.context.collection
    if name in collection.damaged:
        return DAMAGED
    if name in collection.loading:
        return LOADING
    queue = collection.queues.get(name)
    if queue is None:
        return None
    last = call.admin.sampler.sampled.get(name)
    return snapshot_of(queue) if last is None else last.snapshot


def _page(found: list[Entry], query: ListQuery) -> list[Entry]:
    needed = query.offset + query.limit
    descending = query.order == "descending"
    if query.sort == "name":
        pick = heapq.nlargest if descending else heapq.nsmallest
        return pick(needed, found, key=itemgetter(0))[query.offset :]
    column = attrgetter(query.sort)
    sign = -1 if descending else 1

    def place(entry: Entry) -> tuple[float, str]:
        return sign * float(column(entry[1])), entry[0]

    return heapq.nsmallest(needed, found, key=place)[query.offset :]


def _summary(name: str, snapshot: QueueSnapshot) -> QueueSummary:
    return QueueSummary(name=name, **snapshot._asdict())


@operation(
    "POST",
    "/queues",
    "queues",
    Right.WRITE,
    failures=(422, 503),
    statuses=(200, 201),
    answer=Created,
)
async def create_queue(call: Call, body: NewQueue) -> web.Response:
    """Create a queue, perhaps with settings of its own.

    An existing queue stays as it is; but settings that are declared replace those that were
    declared for it before. They are kept over a restart, until the queue is deleted. A table for
    the queue in the configuration file wins over them.
    """
    call.admin.context.check_writable()
    name = body.name
    call.check(Declare(name))
    if body.declared is not None:
        settings = body.declared.model_dump(exclude_none=True)
        created = await changes.declare(call.admin.context, name, settings)
    else:
        collection = call.admin.context.collection
        created = name not in collection.queues
        await changes.wait_until_durable(call.admin.context, collection.obtain(name))
    return json_response(Created(name=name, created=created), 201 if created else 200)


@operation("GET", ONE, "queues", Right.SEE, failures=(404,))
async def show_queue(call: Call) -> QueueDetail:
    """Show everything about a queue."""
    context = call.admin.context
    damage = context.collection.damaged.get(call.name)
    if damage is not None:
        return _unusable(call.name, "damaged", str(damage), context)
    if call.name in context.collection.loading:
        return _unusable(call.name, "loading", still_loading(call.name), context)
    queue = call.queue()
    files = await _journal_files(queue, Path(context.config.queue_path))
    return QueueDetail(
        name=queue.name,
        state=state_of(queue),
        problem=queue.core.problem or _FULL.get(queue.fullness or ""),
        paused=str(queue.paused),
        time=now(),
        oldest=queue.backlog.oldest,
        stats=dict(read_numbers(queue)),
        settings=dict(queue_settings(queue.config)),
        master=master_of(queue.name),
        children=[RelatedQueue(name=child.name, items=len(child)) for child in queue.children],
        dead_letter_queue=_dead_letter_queue(queue, context),
        dead_letters_of=await _dead_letters_of(queue.name, context),
        journal=files,
        latencies=latency_summaries(context.latencies.histograms_of(queue)),
    )


def _unusable(name: str, state: State, problem: str, context: ServerContext) -> QueueDetail:
    return QueueDetail(
        name=name,
        state=state,
        problem=problem,
        paused=str(context.collection.registry.entry(name).paused),
        time=now(),
        oldest=0,
        stats={},
        settings=dict(queue_settings(context.collection.settings(name))),
        master=master_of(name),
        children=[],
        dead_letter_queue=None,
        dead_letters_of=[],
        journal=[],
        latencies={},
    )


def _dead_letter_queue(queue: Queue, context: ServerContext) -> RelatedQueue | None:
    name = queue.config.dead_letter_queue
    if name is None:
        return None
    target = context.collection.queues.get(name)
    return RelatedQueue(name=name, items=0 if target is None else len(target))


async def _dead_letters_of(name: str, context: ServerContext) -> list[RelatedQueue]:
    found: list[Queue] = []
    async for queues in slices(list(context.collection.queues.values()), _FILTER_SLICE):
        found += sources_of_dead_letters(queues, name)
    first = heapq.nsmallest(_MOST_SOURCES, found, key=attrgetter("name"))
    return [RelatedQueue(name=queue.name, items=len(queue)) for queue in first]


def latency_summaries(histograms: Histograms) -> dict[str, LatencySummary]:
    """Return a summary of each histogram, by the name of the latency."""
    summaries = {}
    for kind, histogram in histograms.items():
        summary = histogram.summary()
        summaries[kind.value] = LatencySummary(
            count=summary.count,
            minimum=summary.minimum,
            maximum=summary.maximum,
            average=summary.average,
            p50=summary.percentiles[50.0],
            p90=summary.percentiles[90.0],
            p99=summary.percentiles[99.0],
        )
    return summaries


async def _journal_files(queue: Queue, path: Path) -> list[JournalFile]:
    if not isinstance(queue.journal, FileJournal):
        return []
    names = queue.journal.files[-_MOST_FILES:]

    def sizes() -> list[JournalFile]:
        files = []
        for name in names:
            try:
                files.append(JournalFile(name=name, bytes=(path / name).stat().st_size))
            except FileNotFoundError:
                continue  # a pack has replaced it meanwhile
        return files

    return await in_thread(sizes)


@operation("GET", f"{ONE}/history", "queues", Right.SEE, failures=(404, 503))
async def queue_history(call: Call, query: HistoryQuery) -> HistoryAnswer:
    """Show the history of a queue."""
    return _history(call.admin.sampler.history, call.queue().name, query)


@operation("GET", "/history", "server", Right.SIGNED_IN)
async def server_history(call: Call, query: HistoryQuery) -> HistoryAnswer:
    """Show the history of all queues together."""
    return _history(call.admin.sampler.total_history, ALL, query)


def _history(histories: Histories, name: str, query: HistoryQuery) -> HistoryAnswer:
    points = histories.points(name, query.range, now())
    return HistoryAnswer(points=[HistoryPoint(**point._asdict()) for point in points])


@operation("POST", f"{ONE}/pause", "queues", Right.ADMIN, failures=(404, 503))
async def pause_queue(call: Call, body: Operations) -> PausedAnswer:
    """Pause the reads or the writes of a queue, until they are resumed; a restart keeps that.

    Readers find a queue whose reads are paused empty. Adding to one whose writes are paused is
    refused. Open reads can be ended.
    """
    return await _set_paused(call, body, resume=False)


@operation("POST", f"{ONE}/resume", "queues", Right.ADMIN, failures=(404, 503))
async def resume_queue(call: Call, body: Operations) -> PausedAnswer:
    """Resume the reads or the writes of a queue."""
    return await _set_paused(call, body, resume=True)


async def _set_paused(call: Call, body: Operations, *, resume: bool) -> PausedAnswer:
    operations = Paused.parse(body.operations)
    queue = call.queue()
    await changes.pause(call.admin.context, queue.name, operations, resume=resume)
    return PausedAnswer(paused=str(queue.paused))


@operation("POST", f"{ONE}/flush", "queues", Right.ADMIN, failures=(404, 503))
async def flush_queue(call: Call) -> Flushed:
    """Drop every waiting item of a queue; open reads stay open."""
    call.admin.context.check_writable()
    return Flushed(flushed=await changes.flush(call.admin.context, call.queue().name))


@operation("DELETE", ONE, "queues", Right.ADMIN, failures=(404, 503))
async def delete_queue(call: Call) -> None:
    """Delete a queue with its items and its journal."""
    call.admin.context.check_writable()
    name = call.queue().name
    if not await changes.delete(call.admin.context, name):
        raise ApiError(404, "queue_not_found", f"there is no queue {name}")
