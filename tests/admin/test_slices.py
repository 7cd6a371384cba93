"""Very many queues: whatever lists them lets others be served in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from kestrelmq.admin.health import health_of
from kestrelmq.admin.ostrich import Ostrich, StatisticsSnapshot, as_json, as_text
from kestrelmq.admin.prometheus import Exposition
from kestrelmq.admin.sampling import SLICE, Sampler
from kestrelmq.admin.slices import clear_in_slices, slices
from kestrelmq.clock import TurnClock
from kestrelmq.config import ServerConfig
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.counters import Counters
from kestrelmq.scheduling.worker import InlineWorker
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.loop.turns import TurnLoop
from kestrelmq.server.status import ServerStatus, Status
from tests.support.turning import no_reload

QUEUES = 4000
Result = TypeVar("Result")


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServerContext]:
    """What a server with very many queues has."""
    config = ServerConfig.model_validate(
        {"queue_path": tmp_path, "default": {"keep_journal": False}}
    )
    clock = TurnClock()
    collection = QueueCollection(config, clock)
    loop = asyncio.get_running_loop()
    turns = TurnLoop(clock, collection.commits)
    status = ServerStatus(None, Status.UP, 0.0, clock, loop.call_later)
    for number in range(QUEUES):
        collection.add(f"queue-{number}", b"x" * number, 0)
    yield ServerContext(
        config,
        collection,
        status,
        Counters(),
        turns,
        InlineWorker(),
        loop,
        no_reload,
        lambda: None,
    )
    collection.close()
    turns.close()
    turns.selector.close()


async def interrupted(work: Awaitable[Result]) -> tuple[Result, int]:
    """Do `work`; return its result, and how often something else could run meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    result = await work
    task.cancel()
    return result, turns


async def test_statistics_are_rendered_in_slices(context: ServerContext) -> None:
    """Each rendering of everything is whole, and pauses after few queues."""
    ostrich = Ostrich(context)
    parts, turns = await interrupted(ostrich.rendered(None, as_json))
    stats = json.loads(b"".join(parts))
    assert stats["gauges"]["curr_items"] == QUEUES
    assert stats["gauges"]["q/queue-3999/bytes"] == 3999
    assert stats["counters"]["q/queue-7/put_items"] == 1
    assert turns > QUEUES / 50
    parts, turns = await interrupted(ostrich.rendered(None, as_text))
    assert b"\n  q/queue-3999/bytes: 3999\n" in b"".join(parts)
    assert turns > QUEUES / 50
    for _ in range(2):
        parts, turns = await interrupted(ostrich.rendered(1, as_json))
        assert json.loads(b"".join(parts))["gauges"].keys() == stats["gauges"].keys()
        assert turns > QUEUES / 50
    parts, turns = await interrupted(Exposition(context).render())
    assert b'kestrelmq_queue_bytes{queue="queue-999"} 999.0' in b"".join(parts)
    assert sum(range(1000, QUEUES)) == 7.4985e6
    assert b'kestrelmq_queue_bytes{queue="~other"} 7.4985e+06' in b"".join(parts)
    assert turns > 2 * QUEUES / 200


async def test_no_dictionary_has_all_statistics_of_all_queues(context: ServerContext) -> None:
    """One of millions would stop the others whenever it grows, and when it is dropped."""
    sizes: list[int] = []

    async def measure(snapshot: StatisticsSnapshot) -> list[bytes]:
        sections = (snapshot.counters, snapshot.metrics, snapshot.gauges, snapshot.labels)
        sizes.extend(len(section) for section in sections)
        return []

    await Ostrich(context).rendered(None, measure)
    assert sizes == [QUEUES + 1] * 4


async def test_whoever_asks_for_few_queues_stops_no_others(context: ServerContext) -> None:
    """The health and the metrics of some queues look at all of them, a few at a time."""
    health, turns = await interrupted(health_of(context))
    assert health.is_ready
    assert turns >= QUEUES / 1000
    parts, turns = await interrupted(Exposition(context).render(["none*"]))
    assert f'kestrelmq_queues{{state="up"}} {QUEUES}.0'.encode() in b"".join(parts)
    assert turns > QUEUES / 200
    assert sum(1 for _ in Exposition(context)._matching(["*9*"])) >= QUEUES / 200


async def test_samples_are_taken_in_slices(context: ServerContext) -> None:
    """Names, queues, heads that are old by now, and what is gone: all a few at a time."""
    sampler, queues = Sampler(context), context.collection.queues
    await sampler.take_sample()
    for _ in range(3):
        for queue in queues.values():
            queue.add(b"new")
            queue.line.remove()
        context.collection.commits.commit()
        _, turns = await interrupted(sampler.take_sample())
        assert turns >= 4 * QUEUES / SLICE
    for queue in queues.values():
        queue.line.remove()
    context.collection.commits.commit()
    _, turns = await interrupted(sampler.take_sample())
    assert turns >= 4 * QUEUES / SLICE
    assert sampler.totals.oldest == 0


async def test_all_queues_are_added_up_in_slices(context: ServerContext) -> None:
    """For the global statistics, with pauses."""
    stats, turns = await interrupted(in_slices(context.server_stats()))
    assert dict(stats)["bytes"] == QUEUES * (QUEUES - 1) // 2
    assert turns >= QUEUES / 1000


async def test_slices_and_what_is_left_over() -> None:
    """Every entry once, in order; and large dictionaries end up empty."""
    assert [part async for part in slices(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    nothing: list[int] = []
    assert [part async for part in slices(nothing, 3)] == []
    large = {str(number): number for number in range(10_000)}
    await clear_in_slices(large, {})
    assert not large
