"""`flood`: producers and consumers move items through one queue as fast as they can."""

from collections.abc import Sequence
from dataclasses import dataclass

from kestrelmq.loadtests.common import (
    Outcome,
    Target,
    consumer,
    prepare,
    producer,
    rate,
    remainder,
    several,
)
from kestrelmq.loadtests.crew import WAIT_SECONDS, Crew, Job, Tally
from kestrelmq.loadtests.items import Receipts, Recipe, judge


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run.

    Attributes:
        clients: how many producers there are, and how many consumers.
        items: how many items are moved in all.
        size: bytes of each item.
        rollup: items in each round trip of a producer.
        blocking: whether the consumers wait for items instead of polling.
        preload: whether all items are put before the first is read.
    """

    clients: int = 1
    items: int = 10_000
    size: int = 1024
    rollup: int = 1
    blocking: bool = False
    preload: bool = False


def run(target: Target, options: Options) -> Outcome:
    """Run the test and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    recipe = Recipe(target.run, options.items, options.clients, options.size)
    readers = [Receipts(recipe) for _ in range(options.clients)]
    prepare(target, [target.queue])
    flood = _flood_in_turn if options.preload else _flood_at_once
    lines = flood(target, options, recipe, readers)
    return Outcome(lines, judge(recipe, [*readers, remainder(target, target.queue, recipe)]))


def _flood_at_once(
    target: Target, options: Options, recipe: Recipe, readers: Sequence[Receipts]
) -> list[str]:
    crew = target.crew()
    jobs = _producers(target, options, recipe, crew) + _consumers(target, options, readers, crew)
    with target.watch("put and read", 2 * options.items) as bar:
        shift = crew.run(jobs, bar, options.items)
    middle = options.clients
    return [
        rate("put", options.items, shift.seconds(end=middle), several(middle, "producer")),
        _read_line(shift.tallies[middle:], shift.seconds(first=middle)),
    ]


def _flood_in_turn(
    target: Target, options: Options, recipe: Recipe, readers: Sequence[Receipts]
) -> list[str]:
    crew = target.crew()
    with target.watch("put", options.items) as bar:
        put = crew.run(_producers(target, options, recipe, crew), bar)
    crew = target.crew()
    with target.watch("read", options.items) as bar:
        read = crew.run(_consumers(target, options, readers, crew), bar, options.items)
    return [
        rate("put", options.items, put.seconds(), several(options.clients, "producer")),
        _read_line(read.tallies, read.seconds()),
    ]


def _producers(target: Target, options: Options, recipe: Recipe, crew: Crew) -> list[Job]:
    return [
        producer(target.queue, recipe, number, crew, options.rollup)
        for number in range(options.clients)
    ]


def _consumers(
    target: Target, options: Options, readers: Sequence[Receipts], crew: Crew
) -> list[Job]:
    wait = WAIT_SECONDS if options.blocking else 0.0
    return [consumer(target.queue, receipts, crew, wait) for receipts in readers]


def _read_line(tallies: Sequence[Tally], seconds: float) -> str:
    count, empty = (sum(getattr(t, name) for t in tallies) for name in ("received", "empty"))
    line = rate("read", count, seconds, several(len(tallies), "consumer"))
    return f"{line}; {several(empty, 'read')} found nothing"
