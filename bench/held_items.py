"""What a queue costs that has a million reserved reads or delayed items, and whom it stalls.

    PYTHONPATH=build/compiled python -m bench.held_items

One connection adds items, reserves them and ends the reads in every way; on another server it adds
delayed items that are all due at the same moment. Meanwhile a probe on another queue adds and reads
at a low, steady rate, and the server records its long turns, as in `bench.stalls`. Printed are, for
each step, the server's CPU time for each item, its memory at the end, the probe's p99 and longest
wait, and the longest turn, without the time in which the machine ran other processes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import stalls
from bench.load import accounting
from bench.report import table
from bench.report.table import Column, mebibytes

CONFIG: Final = '[default]\nmax_memory_size = "4 GiB"\nmax_journal_size = "8 GiB"\n'
HOUR: Final = 3_600_000
IDLE: Final = 10.0
"""Seconds for which the server is watched while nothing is asked of it."""
SETTLE: Final = 2.0
"""Seconds after each step, whose stalls count for it."""

_READ: Final = re.compile(rb"ITEM \S+ (\S+) \d+ \d+ \d+ \d+\r\n")


class Reader:
    """A connection that adds items and reserves them."""

    def __init__(self, port: int, size: int) -> None:
        self._socket = stalls.connect(port)
        self._socket.settimeout(600)
        self._item = b" 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
        self._value = len(b"VALUE work 0 %d\r\nEND\r\n" % size) + size + 2
        self.reads: list[bytes] = []

    def _ask(self, request: bytes, size: int) -> None:
        self._socket.sendall(request)
        while size > 0:
            size -= len(self._socket.recv(1 << 20))

    def _line(self, request: bytes) -> bytes:
        """Send a request, and return the line that answers it."""
        self._socket.sendall(request)
        reply = b""
        while not reply.endswith(b"\r\n"):
            reply += self._socket.recv(1 << 16)
        return reply

    def add(self, items: int, key: bytes = b"work") -> None:
        """Add items, a hundred at a time."""
        for _ in range(items // 100):
            self._ask((b"set " + key + self._item) * 100, 800)

    def add_until(self, items: int, due: float) -> None:
        """Add items that are all due at the time `due`."""
        for _ in range(items // 100):
            self.add(100, b"work/delay=%d" % max(1, int((due - time.time()) * 1000)))

    def get(self, items: int) -> None:
        """Read items, a hundred at a time."""
        for _ in range(items // 100):
            self._ask(b"get work\r\n" * 100, self._value * 100)

    def reserve(self, items: int) -> None:
        """Reserve items for an owner, a thousand at a time, and keep the names of the reads."""
        self.reads = []
        while len(self.reads) < items:
            self._socket.sendall(b"reserve work 1000 lease=%d owner=w\r\n" % HOUR)
            reply = b""
            while not reply.endswith(b"\r\nEND\r\n"):
                reply += self._socket.recv(1 << 20)
            self.reads += _READ.findall(reply)

    def finish(self, items: int) -> None:
        """Finish so many of the reads, two hundred at a time."""
        some, self.reads = self.reads[:items], self.reads[items:]
        for at in range(0, len(some), 200):
            names = some[at : at + 200]
            reply = self._line(b"finish work %b\r\n" % b" ".join(names))
            if reply != b"FINISHED %d\r\n" % len(names):
                raise SystemExit(f"{reply!r}")

    def once(self, request: bytes, items: int) -> None:
        """Send one request that is about so many items."""
        reply = self._line(request)
        if reply != b"END\r\n" and int(reply.split()[1]) != items:
            raise SystemExit(f"{reply!r}")

    def wait(self, statistic: str) -> None:
        """Wait until a statistic of the queue is 0."""
        wanted = f"STAT {statistic} 0\r\n".encode()
        while True:
            self._socket.sendall(b"stats work\r\n")
            reply = b""
            while not reply.endswith(b"END\r\n"):
                reply += self._socket.recv(1 << 16)
            if wanted in reply:
                return
            time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, the number of its items (0 for none), and what it does."""

    name: str
    items: int
    run: Callable[[], None]


def idle() -> None:
    """Ask nothing for a while."""
    time.sleep(IDLE)


def reserved_steps(reader: Reader, items: int) -> Iterator[Step]:
    """Yield the steps of reserved reads, in order."""
    half = items // 2
    yield Step("idle, empty", 0, idle)
    yield Step("add", items, lambda: reader.add(items))
    yield Step("reserve 1,000 at a time", items, lambda: reader.reserve(items))
    yield Step("idle", 0, idle)
    yield Step(
        "extend all of the owner, one request",
        items,
        lambda: reader.once(b"extend owner=w %d\r\n" % HOUR, items),
    )
    yield Step("finish 200 at a time", half, lambda: reader.finish(half))
    yield Step(
        "release the rest, one request",
        half,
        lambda: reader.once(b"release work owner=w uncounted\r\n", half),
    )
    yield Step("reserve the rest", half, lambda: reader.reserve(half))

    def end_leases() -> None:
        reader.once(b"extend owner=w 1\r\n", half)
        reader.wait("open_transactions")

    yield Step("all leases end at once", half, end_leases)
    yield Step("flush", half, lambda: reader.once(b"flush work\r\n", half))
    yield Step("idle, empty again", 0, idle)


def delayed_steps(reader: Reader, items: int) -> Iterator[Step]:
    """Yield the steps of delayed items, in order."""
    yield Step("idle, empty", 0, idle)
    begun = time.time()
    yield Step("add, delayed by an hour", items, lambda: reader.add(items, b"work/delay=3600000"))
    took = time.time() - begun
    yield Step("idle", 0, idle)
    yield Step("flush", items, lambda: reader.once(b"flush work\r\n", items))
    due = time.time() + 1.5 * took + 20
    yield Step("add, due at one time", items, lambda: reader.add_until(items, due))
    wait = due - SETTLE - 1
    yield Step("idle until they are due", 0, lambda: time.sleep(max(0, wait - time.time())))
    yield Step("all join at once", items, lambda: reader.wait("delayed"))
    yield Step("get", items, lambda: reader.get(items))
    yield Step("idle, empty again", 0, idle)


@dataclass(frozen=True, slots=True)
class Row:
    """What a step cost. Times of waits and turns are in milliseconds, memory is in KiB.

    Attributes:
        step: its name.
        cpu: the server's CPU microseconds for each item; the share of a core if there are none.
        resident: memory at its end.
        p99, longest: the probe's waits.
        turn, turn_cpu: the longest turn of the server, and its CPU time.
        note: the upkeep in it, and beside it.
    """

    step: str
    cpu: str
    resident: int
    p99: float
    longest: float
    turn: float
    turn_cpu: float
    note: str


COLUMNS: list[Column[Row]] = [
    Column("step", lambda row: row.step, left=True),
    Column("cpu", lambda row: row.cpu),
    Column("rss MiB", lambda row: mebibytes(row.resident)),
    Column("p99 ms", lambda row: f"{row.p99:.1f}"),
    Column("max ms", lambda row: f"{row.longest:.1f}"),
    Column("turn ms", lambda row: f"{row.turn:.1f}"),
    Column("its cpu", lambda row: f"{row.turn_cpu:.1f}"),
    Column("upkeep", lambda row: row.note, left=True),
]


KINDS: Final = {"reserved": reserved_steps, "delayed": delayed_steps}


def load(server: stalls.Observed, kind: str, items: int, size: int, answers: Any) -> None:
    """Do each step, and put what is known about it on the queue `answers`; None at the end."""
    reader, pid = Reader(server.ports["memcache"], size), server.pid
    for step in KINDS[kind](reader, items):
        begun, before = time.perf_counter(), accounting.cpu_seconds(pid)
        step.run()
        took = time.perf_counter() - begun
        cpu = accounting.cpu_seconds(pid) - before
        said = f"{cpu / step.items * 1e6:.2f} us" if step.items else f"{cpu / took:.1%}"
        time.sleep(SETTLE)
        resident = accounting.memory(pid).resident
        answers.put((step.name, said, resident, begun, time.perf_counter()))
    answers.put(None)


def measure(kind: str, items: int, size: int, folder: Path | None) -> list[Row]:
    """Run all steps of a kind on a new server; return a row for each."""
    done, times, turns = stalls.observe(folder, CONFIG, load, kind, items, size)
    return [_row(step, times, turns) for step in done]


def _row(step: Any, times: list[tuple[float, float]], turns: list[Any]) -> Row:
    name, cpu, resident, begun, until = step
    waits, longest = stalls.between(begun, until, times, turns)
    return Row(
        name,
        cpu,
        resident,
        1000 * waits[len(waits) * 99 // 100],
        1000 * waits[-1],
        1000 * (longest[1] - longest[3]),
        1000 * longest[2],
        longest[4],
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(prog="bench.held_items", description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=64, help="bytes of an item")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--dir", type=Path, help="where the journals go")
    options = parser.parse_args(arguments)
    for kind in options.only:
        rows = measure(kind, options.items, options.size, options.dir)
        title = f"{options.items:,} {kind} items of {options.size} bytes"
        print(table.render(title, COLUMNS, rows), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
