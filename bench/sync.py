"""Group commit: with `sync_journal = "0ms"`, how many adds one fsync covers.

    python -m bench.sync --connections 100

Each connection waits for the reply to an add before it sends the next, so no more adds can share an
fsync than there are connections. "never" and a period are measured beside it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.loadgen import Phase
from kestrelmq.client import Client
from tests.support.server import ServerProcess, running_server

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Result:
    """What one setting of `sync_journal` gave."""

    setting: str
    phase: Phase
    syncs: int

    @property
    def adds_per_sync(self) -> float:
        """How many adds one fsync covered; 0 when there was none."""
        return self.phase.operations / self.syncs if self.syncs else 0.0


def measure(setting: str, options: argparse.Namespace) -> Result:
    """Run a server with one setting, and flood it with adds."""
    value = setting if setting[0].isdigit() else "never"
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        config = f'[default]\nsync_journal = "{value}"\n'
        with running_server(Path(directory), config=config) as server:
            phase = _flood(server, options)
            return Result(setting, phase, _syncs(server))


def _flood(server: ServerProcess, options: argparse.Namespace) -> Phase:
    command = [sys.executable, "-m", "bench.loadgen", "--json", "--op", "set", "--keys", "1"]
    arguments: dict[str, object] = {
        "port": server.ports["memcache"],
        "server-pid": server.process.pid,
        "connections": options.connections,
        "operations": options.operations,
        "size": options.size,
    }
    for name, value in arguments.items():
        command += [f"--{name}", str(value)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Phase(**json.loads(answer.stdout)[0])


def _syncs(server: ServerProcess) -> int:
    with Client(server.address) as client:
        (stats,) = client.stats().values()
    return sum(int(stats[name]) for name in stats if name.endswith("_journal_syncs"))


def main(arguments: list[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="bench.sync", description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--dir", type=Path, help="where the journals go; the disk is what counts")
    parser.add_argument("--settings", nargs="+", default=["never", "100ms", "0ms"])
    options = parser.parse_args(arguments)
    print(f"{options.connections} connections, {options.size} bytes an item")
    print(f"{'sync_journal':14}{'adds/s':>10}{'fsyncs':>10}{'adds/fsync':>12}{'p99 ms':>10}")
    for setting in options.settings:
        result = measure(setting, options)
        print(
            f"{setting:14}{result.phase.operations_per_second:>10.0f}{result.syncs:>10}"
            f"{result.adds_per_sync:>12.1f}{result.phase.p99 / 1000:>10.1f}"
        )


if __name__ == "__main__":
    main()
