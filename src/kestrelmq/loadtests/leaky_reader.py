"""`leaky-reader`: readers do not confirm some of their open reads; all items must still arrive.

A reader confirms most of its reads and leaks the others: it aborts every second of these, and
abandons the rest as if it had died. The server must take those back by itself, so the order of the
items is not checked.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from kestrelmq.loadtests.common import (
    READ_BACK_ITEMS,
    Outcome,
    Rate,
    Target,
    prepare,
    producer,
    remainder,
    several,
)
from kestrelmq.loadtests.connections import LoadConnection
from kestrelmq.loadtests.items import ItemSet, Receipts, judge
from kestrelmq.loadtests.options import Items, Size
from kestrelmq.loadtests.workers import WAIT_SECONDS, Job, WorkerPool, WorkerTally


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run."""

    clients: Annotated[int, typer.Option("--clients", "-c", min=1, help="How many readers.")] = 1
    items: Items = 10_000
    size: Size = 1024
    leak: Annotated[
        int, typer.Option("--leak", "-l", min=2, help="Leave one in this many reads unconfirmed.")
    ] = 100


def run(target: Target, options: Options) -> Outcome:
    """Run the test and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    item_set = ItemSet(target.run, options.items, 1, options.size)
    prepare(target, [target.queue])
    pool = target.pool()
    with target.show_progress("put", options.items) as show:
        put = pool.run([producer(target.queue, item_set, 0, pool, READ_BACK_ITEMS)], show)
    pool = target.pool()
    readers = [Receipts(item_set, ordered=False) for _ in range(options.clients)]
    jobs = [_leaky_reader(target.queue, receipts, pool, options.leak) for receipts in readers]
    with target.show_progress("read", options.items) as show:
        read = pool.run(jobs, show, options.items)
    count = sum(tally.received for tally in read.tallies)
    leaks = sum(len(receipts.given_back) for receipts in readers)
    by = f"{several(options.clients, 'reader')}; {several(leaks, 'read')} leaked"
    rates = [
        Rate("put", options.items, put.seconds()),
        Rate("read", count, read.seconds(), by),
    ]
    return Outcome(rates, judge(item_set, [*readers, remainder(target, target.queue, item_set)]))


def _leaky_reader(queue: str, receipts: Receipts, pool: WorkerPool, leak: int) -> Job:
    def read(connection: LoadConnection, tally: WorkerTally) -> None:
        reads = 0
        while not pool.readers_done.is_set():
            item = connection.open_read(queue, WAIT_SECONDS)
            if item is None:
                tally.empty += 1
                continue
            reads += 1
            if reads % leak == 0:
                (connection.abort if reads % (2 * leak) else connection.abandon)(queue)
                receipts.leak(item)
            elif connection.confirm(queue):
                receipts.take([item])
                tally.note_read([item])
            else:
                receipts.leak(item)

    return read
