"""`put-many`: many clients put items into one queue at the same time; one reads them back."""

import time
from dataclasses import dataclass
from typing import Annotated

import typer

from kestrelmq.loadtests.common import (
    Outcome,
    Rate,
    Target,
    prepare,
    producer,
    read_back,
    remainder,
    several,
)
from kestrelmq.loadtests.items import ItemSet, Receipts, Verdict, judge
from kestrelmq.loadtests.options import Clients, Items, Rollup, Size
from kestrelmq.loadtests.workers import open_connections


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run."""

    clients: Clients = 100
    items: Items = 10_000
    size: Size = 1024
    rollup: Rollup = 1
    fanouts: Annotated[
        int,
        typer.Option("--fanouts", "-f", min=0, help="Fanout queues that each receive every item."),
    ] = 0


def run(target: Target, options: Options) -> Outcome:
    """Run the test on the queue and its fanout children, and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    item_set = ItemSet(target.run, options.items, options.clients, options.size)
    fanouts = [f"{target.queue}+fanout_{number}" for number in range(options.fanouts)]
    prepare(target, [target.queue, *fanouts])
    try:
        rates = [_put(target, options, item_set)]
        verdict = Verdict(0)
        for queue in (target.queue, *fanouts):
            rate, found = _read_back(target, queue, item_set)
            rates.append(rate)
            verdict += found
    finally:
        _drop(target, fanouts)
    return Outcome(rates, verdict)


def _put(target: Target, options: Options, item_set: ItemSet) -> Rate:
    pool = target.pool()
    jobs = [
        producer(target.queue, item_set, number, pool, options.rollup)
        for number in range(options.clients)
    ]
    with target.show_progress("put", options.items) as show:
        result = pool.run(jobs, show)
    return Rate("put", options.items, result.seconds(), several(options.clients, "client"))


def _read_back(target: Target, queue: str, item_set: ItemSet) -> tuple[Rate, Verdict]:
    receipts = Receipts(item_set)
    with (
        target.show_progress(f"read {queue}", item_set.items) as show,
        open_connections(target.connect, 1) as (connection,),
    ):
        begun = time.perf_counter()
        read_back(
            connection, queue, receipts, item_set.items, lambda: show(len(receipts.received), "")
        )
        seconds = time.perf_counter() - begun
    rate = Rate(f"{queue}: read", len(receipts.received), seconds)
    return rate, judge(item_set, [receipts, remainder(target, queue, item_set)])


def _drop(target: Target, fanouts: list[str]) -> None:
    """Delete the fanout children, which would otherwise keep receiving the items of the queue."""
    if not fanouts:
        return
    with open_connections(target.connect, 1) as (connection,):
        for queue in fanouts:
            connection.delete(queue)
