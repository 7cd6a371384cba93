"""How long the upkeep of journals stalls the server: a probe on one queue, load on another.

    PYTHONPATH=build/compiled python -m bench.stalls --items 500000

The load fills a queue, alternates adds and reads while journals are rewritten, drains the queue,
fills it again, and flushes or deletes it. Meanwhile a probe on another queue adds and reads at a
low, steady rate, and each of its operations is timed. The server records its long turns, with the
upkeep that happened in them or ran in the worker thread at that time. `in memory` keeps the whole
queue in memory, `behind` an eighth of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kestrelmq import clock
from kestrelmq.cli.main import main as kestrelmq
from kestrelmq.client.address import Address, open_socket
from kestrelmq.queue import backlog
from kestrelmq.scheduling import worker
from kestrelmq.server.loop.event_loop import RunTurns, TurnSelector
from kestrelmq.upkeep import upkeep

Events = list[tuple[int, int]]

ROOT: Final = Path(__file__).resolve().parent.parent
WORTH_A_NOTE: Final = 0.001
"""Seconds from which on a turn is recorded."""
BATCH: Final = 64
PROBES: Final = 400
"""Operations of the probe per second."""
HEADINGS: Final = (
    "item",
    "queue",
    "phase",
    "ops/s",
    "p50",
    "p99",
    "max",
    "turn",
    "cpu",
    "queued",
    "upkeep",
)


# --- in the server ---


def clocks() -> Callable[[], tuple[float, float, float]]:
    """Return a function for the time, this thread's CPU time, and its time waiting for a CPU.

    All of them are in seconds.
    """
    file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def times() -> tuple[float, float, float]:
        waited = int(os.pread(file, 100, 0).split()[1])
        return time.perf_counter(), time.thread_time(), waited / 1e9

    return times


class Observer:
    """Records how long the turns of the server's loop take, and what happens in them."""

    def __init__(self) -> None:
        self.turns: list[tuple[float, float, float, float, str]] = []
        self._seen: list[str] = []
        self._running = ""
        self._collecting = 0.0

    def watch(self) -> None:
        """Wrap the parts of the server that are to be observed."""
        for owner, name in (
            (upkeep.Upkeep, "_start_empty"),
            (upkeep.Upkeep, "_rewrite"),
            (upkeep.Upkeep, "_rotate_full"),
            (upkeep.Upkeep, "_pack"),
            (upkeep.Upkeep, "_placed"),
            (upkeep.Upkeep, "_cleared"),
            (backlog.ReadBehind, "read"),
        ):
            with suppress(TypeError):  # compiled classes cannot be patched
                setattr(owner, name, self._noted(name.strip("_"), getattr(owner, name)))
        run = worker.ThreadWorker.run

        def run_noted(self_: worker.ThreadWorker, job: worker.Job, done: worker.Done) -> None:
            function = job.func if isinstance(job, partial) else job
            # A function within a compiled one is an object of a class of its own.
            called = getattr(function, "__qualname__", type(function).__name__)
            name = called.split(".")[-1].replace("<lambda>", "sync")
            run(self_, self._running_while(name, job), done)

        worker.ThreadWorker.run = run_noted  # type: ignore[method-assign, assignment]
        prepare = TurnSelector.__init__

        def prepare_timed(self_: TurnSelector, turn: RunTurns) -> None:
            prepare(self_, turn)
            self_.poll = self._timed(self_.poll)

        TurnSelector.__init__ = prepare_timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)

    def _timed(self, poll: Callable[[float, int], Events]) -> Callable[[float, int], Events]:
        """Wrap `poll`, so that each call records how long the loop was busy since the last one."""
        times = clocks()
        began = times()

        def poll_timed(wait: float, most: int) -> Events:
            nonlocal began
            now = time.perf_counter()
            if now - began[0] > WORTH_A_NOTE:
                note = "+".join(self._seen) + (f" ({self._running})" if self._running else "")
                took = [end - begin for end, begin in zip(times(), began, strict=True)]
                self.turns.append((now, took[0], took[1], took[2], note))
            events = poll(wait, most)
            self._seen.clear()
            began = times()
            return events

        return poll_timed

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        elif time.perf_counter() - self._collecting > WORTH_A_NOTE / 2:
            self._seen.append(f"collection {info['generation']}")

    def _noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self._seen.append(name)
            return function(*arguments, **named)

        return noted

    def _running_while(self, name: str, job: worker.Job) -> worker.Job:
        def running(pause: clock.Pause) -> None:
            self._running = name
            try:
                job(pause)
            finally:
                self._running = ""

        return running


def serve(report: Path, arguments: list[str]) -> None:
    """Run the server with an observer, and write its records to `report` at the end."""
    observer = Observer()
    observer.watch()
    try:
        kestrelmq(["serve", *arguments])
    finally:
        report.write_text(json.dumps(observer.turns))


# --- beside it ---


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the load.

    Attributes:
        name: its name in the table.
        request: the request, which is sent again and again.
        lines: number of lines in the reply to one request.
        count: number of requests.
    """

    name: str
    request: bytes
    lines: int
    count: int


def phases(items: int, size: int) -> list[Phase]:
    """Return the phases of the load, in order."""
    add = b"set load 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
    take = b"get load\r\n"
    return [
        Phase("fill", add, 1, items),
        Phase("churn", add + take, 4, 2 * items),
        Phase("drain", take, 3, items),
        Phase("fill again", add, 1, items),
        Phase("flush", b"flush load\r\n", 1, 1),
        Phase("fill again", add, 1, items),
        Phase("delete", b"delete load\r\n", 1, 1),
    ]


def connect(port: int) -> socket.socket:
    """Connect to a server on this machine."""
    return open_socket(Address("127.0.0.1", port), 60)


@dataclass(frozen=True, slots=True)
class Observed:
    """A running server that is observed: its process, its ports, and where its report goes."""

    pid: int
    ports: dict[str, int]
    report: Path


def load(server: Observed, items: int, size: int, answers: Any) -> None:
    """Run each phase, and put its name, times and count on the queue `answers`; None at the end."""
    port = server.ports["memcache"]
    with connect(port) as client, client.makefile("rb", 1 << 20) as replies:
        for phase in phases(items, size):
            begun, left = time.perf_counter(), phase.count
            while left:
                batch = min(left, BATCH)
                client.sendall(phase.request * batch)
                for _ in range(batch * phase.lines):
                    replies.readline()
                left -= batch
            ended = time.perf_counter()
            # Wait for upkeep that the phase started, so that it counts for this phase.
            time.sleep(1)
            answers.put((phase.name, begun, ended, time.perf_counter(), phase.count))
    answers.put(None)


def probe(port: int, done: Callable[[], bool]) -> list[tuple[float, float]]:
    """Time adds and reads until `done`; return the end and the duration of each, in seconds."""
    times = []
    with connect(port) as client:
        while not done():
            for request, reply in (
                (b"set probe 0 0 5\r\nhello\r\n", b"STORED\r\n"),
                (b"get probe\r\n", b"VALUE probe 0 5\r\nhello\r\nEND\r\n"),
            ):
                begun = time.perf_counter()
                client.sendall(request)
                answer = b""
                while len(answer) < len(reply):
                    answer += client.recv(1 << 16)
                now = time.perf_counter()
                times.append((now, now - begun))
                time.sleep(1 / PROBES)
    return times


@contextmanager
def server(
    directory: Path, config: str, protocols: Sequence[str] = ("memcache",)
) -> Iterator[Observed]:
    """Run an observed server; its report is written when it ends."""
    (directory / "kestrelmq.toml").write_text(config)
    report = directory / "report.json"
    command = [sys.executable, "-m", "bench.stalls", "--observe", str(report)]
    flags = f"--queue-path {directory}/queues --config {directory}/kestrelmq.toml"
    for name in ("memcache", "text", "thrift", "admin"):
        flags += f" --{name}-port {0 if name in protocols else 'none'}"
    process = subprocess.Popen(
        [*command, *flags.split()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert process.stdout is not None  # noqa: S101 # a pipe was asked for
    try:
        ports = {}
        while (line := process.stdout.readline().decode()) and line != "ready\n":
            if listening := re.match(r"(\w+) listening on \S+:(\d+)$", line):
                ports[listening[1]] = int(listening[2])
        time.sleep(1)
        yield Observed(process.pid, ports, report)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def observe(
    folder: Path | None, config: str, load: Callable[..., None], *arguments: object
) -> tuple[list[Any], list[tuple[float, float]], list[Any]]:
    """Run a load on a new server, and the probe beside it.

    Args:
        folder: where the journals go.
        config: the server's configuration.
        load: is called in a process of its own with the server, the `arguments`, and the queue on
            which it puts what it has done, and None at the end.
        arguments: see `load`.

    Returns:
        What the load has done, what `probe` returns, and the server's long turns.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        with server(Path(name), config) as observed:
            answers: Any = multiprocessing.Queue()
            process = multiprocessing.Process(target=load, args=(observed, *arguments, answers))
            process.start()
            found: list[Any] = []

            def done() -> bool:
                while not answers.empty():
                    found.append(answers.get())
                return (bool(found) and found[-1] is None) or not process.is_alive()

            times = probe(observed.ports["memcache"], done)
            process.join()
        turns = json.loads(observed.report.read_text())
    return [one for one in found if one is not None], times, turns


def between(
    begun: float, until: float, times: list[tuple[float, float]], turns: list[Any]
) -> tuple[list[float], Any]:
    """Return the probe's waits in that time, the shortest first, and the longest turn.

    The time in which the machine ran other processes does not count.
    """
    waits = sorted(took for at, took in times if begun < at <= until)
    during = (one for one in turns if begun < one[0] <= until)
    return waits, max(during, key=lambda one: one[1] - one[3], default=(0.0, 0.0, 0.0, 0.0, ""))


def measure(queue: str, items: int, size: int, folder: Path | None) -> list[list[str]]:
    """Measure one kind of queue and one item size; return the rows of the table."""
    live = items * (size + 21)
    memory = 4 * items * size if queue == "in memory" else items * size // 8
    config = f"""[default]
max_memory_size = {memory}
default_journal_size = "1 MiB"
max_journal_size = {live * 5 // 4}
min_journal_compact_delay = 0
"""
    done, times, turns = observe(folder, config, load, items, size)
    return [_row(queue, size, phase, times, turns) for phase in done]


def _row(
    queue: str, size: int, phase: Any, times: list[tuple[float, float]], turns: list[Any]
) -> list[str]:
    name, begun, ended, until, count = phase
    waits, longest = between(begun, until, times, turns)
    quantiles = (waits[len(waits) // 2], waits[len(waits) * 99 // 100], waits[-1])
    numbers = [f"{1000 * seconds:.2f}" for seconds in (*quantiles, *longest[1:4])]
    rate = f"{count / (ended - begun):,.0f}" if count > 1 else f"{1000 * (ended - begun):.0f} ms"
    return [f"{size}", queue, name, rate, *numbers, longest[4] or "none"]


def main() -> None:
    """Run the benchmark and print a table with times in milliseconds."""
    parser = argparse.ArgumentParser(prog="bench.stalls", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--items", type=int, default=500_000, help="of 64 bytes; a quarter of 1 KiB"
    )
    parser.add_argument("--dir", type=Path, help="where the journals go")
    parser.add_argument("--only", choices=["in memory", "behind"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024])
    options = parser.parse_args()
    print(
        "times in ms; p50, p99, max: of the probe; turn, cpu: the longest turn; "
        "upkeep: in it (and beside it)"
    )
    widths = (5, 10, 11, 9, 6, 7, 7, 7, 7, 7)
    template = " ".join(f"{{:>{width}}}" for width in widths) + "  {}"
    print(template.format(*HEADINGS))
    for size in options.sizes:
        for queue in ("in memory", "behind"):
            if options.only in {None, queue}:
                items = options.items if size < 256 else options.items // 4
                for row in measure(queue, items, size, options.dir):
                    print(template.format(*row), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
