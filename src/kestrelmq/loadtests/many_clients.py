"""`many-clients`: many clients wait for items at the same time, and one client puts them."""

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
from kestrelmq.loadtests.options import Clients, Items, Size, seconds


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run."""

    clients: Clients = 100
    items: Items = 10_000
    size: Size = 1024
    pause: Annotated[
        float,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            show_default="0",
            help="Time between two puts, such as 10ms.",
        ),
    ] = 0.0


def run(target: Target, options: Options) -> Outcome:
    """Run the test and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    item_set = ItemSet(target.run, options.items, 1, options.size)
    prepare(target, [target.queue])
    pool = target.pool(options.pause)
    readers = [Receipts(item_set) for _ in range(options.clients)]
    jobs = [producer(target.queue, item_set, 0, pool, pause=options.pause)]
    jobs += [consumer(target.queue, receipts, pool) for receipts in readers]
    with target.show_progress("put and read", 2 * options.items) as show:
        result = pool.run(jobs, show, options.items)
    shares = [len(receipts.received) for receipts in readers]
    rates = [
        Rate("put", options.items, result.seconds(end=1)),
        Rate("read", sum(shares), result.seconds(first=1), several(options.clients, "client")),
    ]
    verdict = judge(item_set, [*readers, remainder(target, target.queue, item_set)])
    note = f"each client received {min(shares):,} to {max(shares):,} items"
    return Outcome(rates, verdict, [note])
