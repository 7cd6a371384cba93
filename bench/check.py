"""Compare the speed with that of the last release, as ratios to the peers of this machine.

    PYTHONPATH=build/compiled python -m bench.check

A short flood measures the server's CPU time per operation beside Redis and memcached, as far as
they are installed. Each ratio is compared with that of the last release, in `bench/release.json`,
so the speed of the machine does not count. What is more than 10 % worse is measured again, twice; a
loss that is there each time fails the check (exit status 1). `--record VERSION` writes the file
instead, with the medians of three runs: do that at each release.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import flood, suite
from bench.report import table
from bench.report.table import Column
from bench.suite import Step

RELEASE = Path(__file__).with_name("release.json")
PEERS = ("redis", "memcached")
TOLERANCE = 1.1
"""A ratio that is higher by more than this factor is a loss."""
RUNS = 3
"""Runs in which a loss must be there to count."""
OPERATIONS = ("--operations", "50000")
SHAPES = {
    "50 connections, depth 1": ("--connections", "50", "--depth", "1"),
    "50 connections, depth 16": ("--connections", "50", "--depth", "16", "--habit", "burst"),
    "50 connections, depth 16, sliding window": (
        *("--connections", "50", "--depth", "16", "--habit", "window"),
    ),
    "1000 connections, depth 1": ("--connections", "1000", "--depth", "1"),
}
"""The arguments of `bench.flood` for each table, by its title."""


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a ratio is of: an operation of a table, over that of a peer."""

    title: str
    operation: str
    peer: str

    def __str__(self) -> str:
        return f"{self.title}: {self.operation} over {self.peer}"


Ratios = Mapping[Subject, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratios of one subject: at the release, and in each run in which it was measured."""

    subject: Subject
    before: float
    runs: tuple[float, ...]

    @property
    def change(self) -> float:
        """By which factor the ratio is higher than at the release, in the best run."""
        return min(self.runs) / self.before

    @property
    def is_loss(self) -> bool:
        """Whether the ratio is too high in every run."""
        return self.change > TOLERANCE


def ratios(results: Mapping[str, Any]) -> dict[Subject, float]:
    """Return the ratios in the results of a flood."""
    found = {}
    for shown in results["tables"]:
        costs = {(row["operation"], row["server"]): row["cpu"] for row in shown["rows"]}
        for (operation, server), cost in costs.items():
            ours = costs.get((operation, "kestrelmq"))
            if server in PEERS and ours and cost:
                found[Subject(shown["title"], operation, server)] = ours / cost
    return found


def compare(before: Ratios, measure: Callable[[Collection[str]], Ratios]) -> list[Comparison]:
    """Measure, and measure again what lost; return every ratio that is of the release, too.

    `measure` returns the ratios of the tables with these titles.
    """
    found: dict[Subject, Comparison] = {}
    titles: Collection[str] = SHAPES
    for run in range(RUNS):
        now = measure(titles)
        for subject in sorted(before.keys() & now.keys()):
            known = found.get(subject)
            if run == 0 or (known is not None and known.is_loss):
                runs = (*(known.runs if known else ()), now[subject])
                found[subject] = Comparison(subject, before[subject], runs)
        titles = sorted({one.subject.title for one in found.values() if one.is_loss})
        if not titles:
            break
    return list(found.values())


COLUMNS: list[Column[Comparison]] = [
    Column("load", lambda one: one.subject.title, left=True),
    Column("operation", lambda one: one.subject.operation, left=True),
    Column("over", lambda one: one.subject.peer, left=True),
    Column("release", lambda one: f"{one.before:.2f}"),
    Column("now", lambda one: ", ".join(f"{run:.2f}" for run in one.runs)),
    Column("change", lambda one: f"{one.change - 1:+.0%}"),
    Column("", lambda one: "LOSS" if one.is_loss else "", left=True),
]


def read_release(file: Path) -> tuple[str, dict[Subject, float]]:
    """Return the version of the last release, and its ratios."""
    written = json.loads(file.read_text())
    return written["version"], {
        Subject(one["load"], one["operation"], one["over"]): one["ratio"]
        for one in written["ratios"]
    }


def write_release(file: Path, version: str, found: Ratios) -> None:
    """Write what `read_release` reads."""
    rows = [
        {"load": one.title, "operation": one.operation, "over": one.peer, "ratio": round(value, 3)}
        for one, value in sorted(found.items())
    ]
    file.write_text(json.dumps({"version": version, "ratios": rows}, indent=2) + "\n")


class MeasurementFailed(Exception):  # noqa: N818 # says what happened
    """An installed server could not be measured."""


def measure(titles: Collection[str], options: argparse.Namespace) -> dict[Subject, float]:
    """Measure the tables with these titles. Raises MeasurementFailed."""
    found: dict[Subject, float] = {}
    for title in titles:
        arguments = (*SHAPES[title], "--only", ",".join(("kestrelmq", *PEERS)), *OPERATIONS)
        status, results = suite.run(Step(title, flood.main, arguments), options)
        if status:
            raise MeasurementFailed(title)
        found |= ratios(results)
    return found


def record(version: str, options: argparse.Namespace) -> int:
    """Measure the ratios of a release, and write them."""
    runs = [measure(SHAPES, options) for _ in range(RUNS)]
    found = {subject: median(run[subject] for run in runs) for subject in runs[0]}
    write_release(RELEASE, version, found)
    return 0


def check(options: argparse.Namespace) -> int:
    """Compare with the last release, print a table, and return the exit status."""
    version, before = read_release(RELEASE)
    compared = compare(before, lambda titles: measure(titles, options))
    if not compared:
        print("no peer to compare with is installed: `make bench-peers`", file=sys.stderr)
        return 2
    losses = [str(one.subject) for one in compared if one.is_loss]
    title = f"server CPU per operation as a ratio to peers, now and in {version}"
    remarks = [f"lost more than 10 % in {RUNS} runs: {one}" for one in losses]
    print(table.render(title, COLUMNS, compared, remarks or ["no loss"]))
    return int(bool(losses))


def main(arguments: list[str] | None = None) -> int:
    """Run the check. Return 1 for a loss or a failure, and 2 without a peer."""
    parser = argparse.ArgumentParser(
        prog="bench.check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--record", metavar="VERSION", help="write the ratios of this release instead")
    add("--rounds", type=int, default=3, help="of each server in a run")
    add("--quick", action="store_true", help="one short round: to see that it runs")
    add("--dir", type=Path, help="where the servers keep their data meanwhile")
    options = parser.parse_args(arguments)
    try:
        return record(options.record, options) if options.record else check(options)
    except MeasurementFailed as error:
        print(f"a server could not be measured: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
