"""`packing`: fill and drain a queue again and again, so that its journal must be packed.

It shows whether the server stays fast while the backlog grows and while its journals are packed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from kestrelmq.loadtests.common import (
    READ_BACK_ITEMS,
    Outcome,
    Rate,
    Target,
    prepare,
    read_back,
    remainder,
)
from kestrelmq.loadtests.connections import LoadConnection
from kestrelmq.loadtests.items import ItemSet, Receipts, judge
from kestrelmq.loadtests.options import Rollup, Size
from kestrelmq.loadtests.workers import Show, open_connections

STEPS: Final = 5
"""Number of ranges of the backlog for which the speed is reported."""


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run."""

    cycles: Annotated[
        int, typer.Option("--cycles", "-c", min=1, help="How often to fill and drain the queue.")
    ] = 100
    items: Annotated[
        int, typer.Option("--items", "-n", min=1, help="How many items in each cycle.")
    ] = 25_000
    size: Size = 1024
    rollup: Rollup = READ_BACK_ITEMS
    backlog: Annotated[
        int, typer.Option(min=0, help="Items put first; every cycle leaves as many in the queue.")
    ] = 0

    @property
    def total(self) -> int:
        """Number of items in all."""
        return self.backlog + self.cycles * self.items


class _Speed:
    """The number of moved items and the time they took, for each range of the backlog."""

    def __init__(self) -> None:
        self.items = [0] * STEPS
        self.seconds = [0.0] * STEPS

    def measure(self, step: int, items: int, move: Callable[[int], None]) -> None:
        """Move that many items with `move`, and add the time it takes to a range."""
        begun = time.perf_counter()
        move(items)
        self.seconds[step] += time.perf_counter() - begun
        self.items[step] += items

    def at(self, step: int) -> str:
        """Return the speed in one range of the backlog."""
        seconds = self.seconds[step]
        return f"{self.items[step] / seconds:,.0f} a second" if seconds else "nothing"


class _Cycles:
    """Runs the cycles over one connection and measures them."""

    def __init__(
        self, target: Target, options: Options, connection: LoadConnection, show: Show
    ) -> None:
        self.item_set = ItemSet(target.run, options.total, 1, options.size)
        self.receipts = Receipts(self.item_set)
        self.put_speed = _Speed()
        self.read_speed = _Speed()
        self._options = options
        self._queue = target.queue
        self._connection = connection
        self._show_moved = show
        self._put_items = 0
        self._edges = [options.items * step // STEPS for step in range(STEPS + 1)]

    def run(self) -> None:
        """Run all cycles."""
        options = self._options
        self._put(options.backlog)
        for cycle in range(options.cycles):
            self._show(f"cycle {cycle + 1:,} of {options.cycles:,}")
            for step in range(STEPS):
                count = self._edges[step + 1] - self._edges[step]
                self.put_speed.measure(step, count, self._put)
            for step in reversed(range(STEPS)):
                count = self._edges[step + 1] - self._edges[step]
                self.read_speed.measure(step, count, self._read)
        self._read(options.backlog)

    def rates(self) -> list[Rate]:
        """Return the rates of all cycles together."""
        return [
            Rate("put", sum(self.put_speed.items), sum(self.put_speed.seconds)),
            Rate("read", sum(self.read_speed.items), sum(self.read_speed.seconds)),
        ]

    def notes(self) -> list[str]:
        """Return a line for each range of the backlog."""
        behind = self._options.backlog
        lines = []
        for step in range(STEPS):
            low, high = (behind + edge for edge in self._edges[step : step + 2])
            speeds = f"put {self.put_speed.at(step)}, read {self.read_speed.at(step)}"
            lines.append(f"backlog {low:,} to {high:,}: {speeds}")
        return lines

    def _put(self, count: int) -> None:
        stop = self._put_items + count
        while (start := self._put_items) < stop:
            self._put_items = min(start + self._options.rollup, stop)
            items = [self.item_set.item(0, number) for number in range(start, self._put_items)]
            self._connection.put(self._queue, items)
            self._show()

    def _read(self, count: int) -> None:
        read_back(self._connection, self._queue, self.receipts, count, self._show)

    def _show(self, note: str = "") -> None:
        self._show_moved(self._put_items + len(self.receipts.received), note)


def run(target: Target, options: Options) -> Outcome:
    """Run the test and return its outcome.

    Raises:
        LoadTestError: it could not be carried out.
    """
    prepare(target, [target.queue])
    with (
        open_connections(target.connect, 1) as (connection,),
        target.show_progress("put and read", 2 * options.total) as show,
    ):
        cycles = _Cycles(target, options, connection, show)
        cycles.run()
    rest = remainder(target, target.queue, cycles.item_set)
    return Outcome(cycles.rates(), judge(cycles.item_set, [cycles.receipts, rest]), cycles.notes())
