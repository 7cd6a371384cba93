"""Run all benchmarks at modest sizes, one after the other, and write one JSON file of all.

    python -m bench.suite --json suite.json

It takes about half an hour. With `--quick` it takes a few minutes and only shows that everything
runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import fairness, fanout, flood, memory, packing, recovery, sync, thrift


@dataclass(frozen=True, slots=True)
class Step:
    """One benchmark with its arguments; `label` is its name among the results."""

    label: str
    main: Callable[[list[str]], int]
    arguments: tuple[str, ...] = ()


STEPS = (
    Step("flood", flood.main),
    Step("flood-many", flood.main, ("--connections", "1,1000,10000", "--depth", "1")),
    Step("memory", memory.main),
    Step("fairness", fairness.main),
    Step("packing", packing.main),
    Step("packing-1024", packing.main, ("--size", "1024", "--backlogs", "0,100000,500000")),
    Step("sync", sync.main),
    Step("recovery", recovery.main),
    Step("recovery-64", recovery.main, ("--size", "64")),
    Step("fanout", fanout.main),
    Step("thrift", thrift.main),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks. Return exit status 1 if an installed server could not be measured."""
    parser = argparse.ArgumentParser(
        prog="bench.suite", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write all results")
    add("--rounds", type=int, default=3)
    add("--quick", action="store_true", help="one short round of each")
    add("--dir", type=Path, help="where the servers keep their data meanwhile")
    add("--steps", type=lambda text: text.split(","), default=[step.label for step in STEPS],
        help="these only, such as flood,memory")  # fmt: skip
    options = parser.parse_args(arguments)
    if unknown := set(options.steps) - {step.label for step in STEPS}:
        parser.error(f"there is no step {', '.join(sorted(unknown))}")
    results: dict[str, Any] = {}
    status = 0
    for step in STEPS:
        if step.label in options.steps:
            print(f"== {step.label}", flush=True)
            done, results[step.label] = run(step, options)
            status |= done
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return status


def run(step: Step, options: argparse.Namespace) -> tuple[int, Any]:
    """Run one benchmark; return its exit status and its results."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        file = Path(directory, "results.json")
        words = ["--rounds", str(options.rounds), "--json", str(file), *step.arguments]
        if options.quick:
            words.append("--quick")
        if options.dir:
            words += ["--dir", str(options.dir)]
        status = step.main(words)
        return status, json.loads(file.read_text())


if __name__ == "__main__":
    sys.exit(main())
