"""`flood`: producers and consumers move items through one queue as fast as they can."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from kestrelmq.loadtests.common import (
    Outcome,
    Rate,
    Target,
    consumer,
    prepare,
    producer,
    remainder,
    several,
)
from kestrelmq.loadtests.items import ItemSet, Receipts, judge
from kestrelmq.loadtests.options import Items, Rollup, Size
from kestrelmq.loadtests.workers import WAIT_SECONDS, Job, WorkerPool, WorkerTally


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run."""

    clients: Annotated[
        int,
        typer.Option("--clients", "-c", min=1, help="How many producers, and how many consumers."),
    ] = 1
    items: Items = 10_000
    size: Size = 1024
    rollup: Rollup = 1
    blocking: Annotated[
        bool, typer.Option("--blocking", help="Wait for items instead of polling.")
    ] = False
    preload: Annotated[
        bool, typer.Option("--preload", "-P", help="Put everything before reading anything.")
    ] = False


def run(target: Target, options: Options) -> Outcome:
    """Run the test and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    item_set = ItemSet(target.run, options.items, options.clients, options.size)
    readers = [Receipts(item_set) for _ in range(options.clients)]
    prepare(target, [target.queue])
    flood = _flood_in_turn if options.preload else _flood_at_once
    rates = flood(target, options, item_set, readers)
    return Outcome(rates, judge(item_set, [*readers, remainder(target, target.queue, item_set)]))


def _flood_at_once(
    target: Target, options: Options, item_set: ItemSet, readers: Sequence[Receipts]
) -> list[Rate]:
    pool = target.pool()
    jobs = _producers(target, options, item_set, pool) + _consumers(target, options, readers, pool)
    with target.show_progress("put and read", 2 * options.items) as show:
        result = pool.run(jobs, show, options.items)
    middle = options.clients
    return [
        Rate("put", options.items, result.seconds(end=middle), several(middle, "producer")),
        _read_rate(result.tallies[middle:], result.seconds(first=middle)),
    ]


def _flood_in_turn(
    target: Target, options: Options, item_set: ItemSet, readers: Sequence[Receipts]
) -> list[Rate]:
    pool = target.pool()
    with target.show_progress("put", options.items) as show:
        put = pool.run(_producers(target, options, item_set, pool), show)
    pool = target.pool()
    with target.show_progress("read", options.items) as show:
        read = pool.run(_consumers(target, options, readers, pool), show, options.items)
    return [
        Rate("put", options.items, put.seconds(), several(options.clients, "producer")),
        _read_rate(read.tallies, read.seconds()),
    ]


def _producers(target: Target, options: Options, item_set: ItemSet, pool: WorkerPool) -> list[Job]:
    return [
        producer(target.queue, item_set, number, pool, options.rollup)
        for number in range(options.clients)
    ]


def _consumers(
    target: Target, options: Options, readers: Sequence[Receipts], pool: WorkerPool
) -> list[Job]:
    wait = WAIT_SECONDS if options.blocking else 0.0
    return [consumer(target.queue, receipts, pool, wait) for receipts in readers]


def _read_rate(tallies: Sequence[WorkerTally], seconds: float) -> Rate:
    count, empty = (sum(getattr(t, name) for t in tallies) for name in ("received", "empty"))
    by = f"{several(len(tallies), 'consumer')}; {several(empty, 'read')} found nothing"
    return Rate("read", count, seconds, by)
