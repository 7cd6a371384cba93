"""One run of a benchmark: run the servers in turn, print the tables, write the results as JSON.

Each server is started afresh for each round, and the servers take turns (A B C A B C), so that
other load on the machine affects all of them alike. A server that fails is left out of the
remaining rounds, and the reason is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import servers
from bench.report import table
from bench.report.table import Column
from bench.servers import Peer, PeerError

Result = TypeVar("Result")
Row = TypeVar("Row")


def parser(name: str, purpose: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(
        prog=f"bench.{name}", description=purpose, formatter_class=argparse.RawTextHelpFormatter
    )
    add = made.add_argument
    add("--rounds", type=int, default=3)
    add("--only", type=lambda text: text.split(","), help="these servers, such as redis,custom")
    add("--server", action="append", default=[], metavar="'CMD {port} {dir}'",
        help="one more server that speaks memcache (set, get, version), named custom")  # fmt: skip
    add("--quick", action="store_true", help="one short round: to see that it runs")
    add("--dir", type=Path, help="where the servers keep their data meanwhile")
    add("--time-limit", type=float, default=60.0, help="seconds for each phase")
    add("--json", type=Path, metavar="FILE", help="write every round and the medians")
    return made


def numbers(text: str) -> list[int]:
    """Parse integers separated by commas."""
    return [int(part) for part in text.split(",")]


class Session:
    """One run of a benchmark; `present` are the chosen servers that are installed."""

    def __init__(
        self, name: str, options: argparse.Namespace, candidates: Sequence[Peer] | None = None
    ) -> None:
        """Choose the servers that `options` name, from `candidates` or from all known servers.

        Exit with status 2 if a name is not known.
        """
        self.options = options
        self._name = name
        chosen = _choose(name, options, candidates)
        self._remarks = [
            f"{peer.name}: missing ({why})" for peer in chosen if (why := peer.missing())
        ]
        self.present = [peer for peer in chosen if not peer.missing()]
        self._tables: list[dict[str, Any]] = []
        self._failed = False

    def in_turn(
        self, label: str, measure: Callable[[Peer], Result], rounds: int
    ) -> tuple[dict[str, list[Result]], list[str]]:
        """Run all rounds; return results by server, and a line for each server that failed."""
        results: dict[str, list[Result]] = {peer.name: [] for peer in self.present}
        failures: dict[str, str] = {}
        for number in range(1, rounds + 1):
            for peer in self.present:
                if peer.name in failures:
                    continue
                _progress(f"{label}, round {number}: {peer.name}")
                try:
                    results[peer.name].append(measure(peer))
                except PeerError as error:
                    failures[peer.name] = str(error)
        _progress("")
        self._failed |= bool(failures)
        found = {name: list_ for name, list_ in results.items() if list_}
        return found, [f"{name}: failed: {why}" for name, why in failures.items()]

    def show(
        self,
        title: str,
        columns: Sequence[Column[Row]],
        rows: Sequence[Row],
        remarks: Sequence[str] = (),
        rounds: object = None,
    ) -> None:
        """Print a table of rows (dataclasses), and keep them and the rounds for the JSON file."""
        remarks = [*remarks, *self._remarks]
        print(table.render(title, columns, rows, remarks), end="\n\n", flush=True)
        plain = [_plain(row) for row in rows]
        entry = {"title": title, "rows": plain, "remarks": remarks, "rounds": rounds}
        self._tables.append(entry)

    def finish(self) -> int:
        """Write the JSON file, if requested; return exit status 1 if an installed server failed."""
        if self.options.json:
            settings = {name: _plain(value) for name, value in vars(self.options).items()}
            whole = {
                "benchmark": self._name,
                "machine": _machine(self.present),
                "settings": settings,
                "tables": self._tables,
            }
            self.options.json.write_text(json.dumps(whole, indent=2, default=_plain) + "\n")
        return int(self._failed)


def _plain(value: object) -> Any:
    """Convert a value for JSON: a dataclass to a dict of its fields, a path to its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value) if isinstance(value, Path) else value


def _machine(present: Sequence[Peer]) -> dict[str, object]:
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "servers": {peer.name: peer.version_text() for peer in present},
    }


def _choose(
    name: str, options: argparse.Namespace, candidates: Sequence[Peer] | None
) -> list[Peer]:
    every = list(servers.known_peers() if candidates is None else candidates)
    for number, words in enumerate(options.server, 1):
        every.append(servers.custom_peer("custom" if number == 1 else f"custom{number}", words))
    if not options.only:
        return every
    names = [peer.name for peer in every]
    if unknown := [wanted for wanted in options.only if wanted not in names]:
        print(f"{name}: no server named {', '.join(unknown)}; there are {names}", file=sys.stderr)
        raise SystemExit(2)
    return [peer for peer in every if peer.name in options.only]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
