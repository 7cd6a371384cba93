"""`put-many`: many clients put items into one queue at the same time; one reads them back."""

import time
from dataclasses import dataclass

from kestrelmq.loadtests.common import (
    Outcome,
    Target,
    prepare,
    producer,
    rate,
    read_back,
    remainder,
    several,
)
from kestrelmq.loadtests.crew import links
from kestrelmq.loadtests.items import Receipts, Recipe, Verdict, judge


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run.

    Attributes:
        clients: how many clients put at the same time.
        items: how many items they put in all.
        size: bytes of each item.
        rollup: items in each round trip.
        fanouts: how many fanout children the queue has; each must receive every item.
    """

    clients: int = 100
    items: int = 10_000
    size: int = 1024
    rollup: int = 1
    fanouts: int = 0


def run(target: Target, options: Options) -> Outcome:
    """Run the test on the queue and its fanout children, and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    recipe = Recipe(target.run, options.items, options.clients, options.size)
    fanouts = [f"{target.queue}+fanout_{number}" for number in range(options.fanouts)]
    prepare(target, [target.queue, *fanouts])
    try:
        lines = [_put(target, options, recipe)]
        verdict = Verdict(0)
        for queue in (target.queue, *fanouts):
            line, found = _read_back(target, queue, recipe)
            lines.append(line)
            verdict += found
    finally:
        _drop(target, fanouts)
    return Outcome(lines, verdict)


def _put(target: Target, options: Options, recipe: Recipe) -> str:
    crew = target.crew()
    jobs = [
        producer(target.queue, recipe, number, crew, options.rollup)
        for number in range(options.clients)
    ]
    with target.watch("put", options.items) as bar:
        shift = crew.run(jobs, bar)
    return rate("put", options.items, shift.seconds(), several(options.clients, "client"))


def _read_back(target: Target, queue: str, recipe: Recipe) -> tuple[str, Verdict]:
    receipts = Receipts(recipe)
    with (
        target.watch(f"read {queue}", recipe.items) as bar,
        links(target.connect, 1) as (link,),
    ):
        begun = time.perf_counter()
        read_back(link, queue, receipts, recipe.items, lambda: bar.update(len(receipts.received)))
        seconds = time.perf_counter() - begun
    line = rate(f"{queue}: read", len(receipts.received), seconds)
    return line, judge(recipe, [receipts, remainder(target, queue, recipe)])


def _drop(target: Target, fanouts: list[str]) -> None:
    """Delete the fanout children, which would otherwise keep receiving the items of the queue."""
    if not fanouts:
        return
    with links(target.connect, 1) as (link,):
        for queue in fanouts:
            link.delete(queue)
