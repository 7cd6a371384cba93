"""How long the server stops for the upkeep of journals: a probe on one queue, load on another.

    PYTHONPATH=build/compiled python -m bench.stalls --items 500000

The load fills a queue, adds and takes in turns while journals are rewritten, drains it, fills it
again and drops it. Meanwhile a client of another queue asks at a low, steady rate; each of its
adds and reads is timed. The server notes its long turns, and what upkeep happened in them or ran
in the thread beside them. `in memory` holds the whole queue there, `behind` an eighth of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kestrelmq import clock
from kestrelmq.cli.main import main as kestrelmq
from kestrelmq.engine import backlog, upkeep, worker
from kestrelmq.server.event_loop import RunTurns, TurnSelector

Events = list[tuple[int, int]]

ROOT: Final = Path(__file__).resolve().parent.parent
WORTH_A_NOTE: Final = 0.001
"""Seconds of a turn."""
BATCH: Final = 64
PROBES: Final = 400
"""A second."""
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
    """Return what tells the time, this thread's CPU time, and how long it waited for a CPU."""
    file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def times() -> tuple[float, float, float]:
        waited = int(os.pread(file, 100, 0).split()[1])
        return time.perf_counter(), time.thread_time(), waited / 1e9

    return times


class Observer:
    """Notes how long the loop's turns take, and what happens in them."""

    def __init__(self) -> None:
        self.turns: list[tuple[float, float, float, float, str]] = []
        self._seen: list[str] = []
        self._running = ""
        self._collecting = 0.0

    def watch(self) -> None:
        """Put itself around the parts of the server that are of interest."""
        for owner, name in (
            (upkeep.Upkeep, "_start_empty"),
            (upkeep.Upkeep, "_rewrite"),
            (upkeep.Upkeep, "_rotate_full"),
            (upkeep.Upkeep, "_pack"),
            (upkeep.Upkeep, "_placed"),
            (upkeep.Upkeep, "_cleared"),
            (backlog.Behind, "read"),
        ):
            with suppress(TypeError):  # compiled: it cannot be watched
                setattr(owner, name, self._noted(name.strip("_"), getattr(owner, name)))
        run = worker.ThreadWorker.run

        def run_noted(self_: worker.ThreadWorker, job: worker.Job, done: worker.Done) -> None:
            name = job.__qualname__.split(".")[-1].replace("<lambda>", "sync")
            run(self_, self._running_while(name, job), done)

        worker.ThreadWorker.run = run_noted  # type: ignore[method-assign, assignment]
        prepare = TurnSelector.__init__

        def prepare_timed(self_: TurnSelector, turn: RunTurns) -> None:
            prepare(self_, turn)
            self_.poll = self._timed(self_.poll)

        TurnSelector.__init__ = prepare_timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)

    def _timed(self, poll: Callable[[float, int], Events]) -> Callable[[float, int], Events]:
        """Return `poll`, with a look at how long the loop was busy since it last returned."""
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
    """Run the server, observed; write what was seen to `report` when it ends."""
    observer = Observer()
    observer.watch()
    try:
        kestrelmq(["serve", *arguments])
    finally:
        report.write_text(json.dumps(observer.turns))


# --- beside it ---


@dataclass(frozen=True, slots=True)
class Phase:
    """What the load does for some time.

    Attributes:
        name: what it is called.
        request: sent again and again.
        lines: lines in the reply to one.
        count: how many are sent.
    """

    name: str
    request: bytes
    lines: int
    count: int


def phases(items: int, size: int) -> list[Phase]:
    """Return what the load does, in order."""
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
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def load(port: int, items: int, size: int, answers: Any) -> None:
    """Do each phase; put its name and its end on a queue, then the next time it is asked."""
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
            # What a phase set going ends with the next one at the latest.
            time.sleep(1)
            answers.put((phase.name, begun, ended, time.perf_counter(), phase.count))
    answers.put(None)


def probe(port: int, done: Callable[[], bool]) -> list[tuple[float, float]]:
    """Time adds and reads until `done`; return when each ended, and its seconds."""
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
def server(directory: Path, config: str) -> Iterator[tuple[int, Path]]:
    """Run an observed server; give its port, and where its report will be."""
    (directory / "kestrelmq.toml").write_text(config)
    report = directory / "report.json"
    command = [sys.executable, "-m", "bench.stalls", "--observe", str(report)]
    flags = f"--queue-path {directory}/queues --config {directory}/kestrelmq.toml --memcache-port 0"
    flags += " --text-port none --thrift-port none --admin-port none"
    process = subprocess.Popen(
        [*command, *flags.split()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert process.stdout is not None  # noqa: S101 # a pipe was asked for
    try:
        line = process.stdout.readline()
        process.stdout.readline()  # ready
        time.sleep(1)
        yield int(line.rpartition(b":")[2]), report
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def measure(queue: str, items: int, size: int, folder: Path | None) -> list[list[str]]:
    """Return the rows of one kind of queue and item."""
    live = items * (size + 21)
    memory = 4 * items * size if queue == "in memory" else items * size // 8
    config = f"""[default]
max_memory_size = {memory}
default_journal_size = "1 MiB"
max_journal_size = {live * 5 // 4}
min_journal_compact_delay = 0
"""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        with server(Path(name), config) as (port, report):
            answers: Any = multiprocessing.Queue()
            process = multiprocessing.Process(target=load, args=(port, items, size, answers))
            process.start()
            found: list[Any] = []

            def done() -> bool:
                while not answers.empty():
                    found.append(answers.get())
                return bool(found) and found[-1] is None

            times = probe(port, done)
            process.join()
        turns = json.loads(report.read_text())
    return [_row(queue, size, phase, times, turns) for phase in found[:-1]]


def _row(
    queue: str, size: int, phase: Any, times: list[tuple[float, float]], turns: list[Any]
) -> list[str]:
    name, begun, ended, until, count = phase
    waits = sorted(took for at, took in times if begun < at <= until)
    # Time that the machine gave to others is no fault of the server.
    during = (one for one in turns if begun < one[0] <= until)
    longest = max(during, key=lambda one: one[1] - one[3], default=(0, 0, 0, 0, ""))
    quantiles = (waits[len(waits) // 2], waits[len(waits) * 99 // 100], waits[-1])
    numbers = [f"{1000 * seconds:.2f}" for seconds in (*quantiles, *longest[1:4])]
    rate = f"{count / (ended - begun):,.0f}" if count > 1 else f"{1000 * (ended - begun):.0f} ms"
    return [f"{size}", queue, name, rate, *numbers, longest[4] or "none"]


def main() -> None:
    """Measure and print a table; times in milliseconds."""
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
