"""A load generator that is as cheap as possible, and that reports its own cost.

    python -m bench.load.generator --port 22133 --op set --op get --connections 50 --depth 16 --json

The phases (`--op`, in order, `--repeat` times) run over the same connections. With `--server-pid`,
the server's CPU time is read just before the first request and just after the last reply of each
phase, so that neither connecting nor the pause between phases is counted. The server's memory is
read at the end of each phase.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection

from bench.load import accounting, latency
from bench.load.replies import ReplyError
from bench.load.tls import trusting_context
from bench.load.wires import WIRES
from bench.load.worker import LoadError, Plan, Report, Worker
from bench.load.workload import Operation, Protocol

Runner = Callable[[Operation, int, float | None], list[Report]]
"""Runs one phase on all workers at the same time: a number of operations, or until a time limit."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One measured phase.

    `seconds` is in seconds, CPU times are in microseconds per operation, memory is in KiB, and
    latencies are in microseconds. The server's numbers are None if its process is not known.
    """

    operation: str
    operations: int
    misses: int
    seconds: float
    operations_per_second: float
    load_cpu: float
    server_cpu: float | None
    server_resident: int | None
    server_peak: int | None
    p50: int
    p99: int
    max: int


def raise_open_files(wanted: int) -> None:
    """Let this process and its children open `wanted` files, or as many as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
        except (ValueError, OSError):
            wanted = hard
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))


@dataclass(frozen=True, slots=True)
class Task:
    """One phase to run: `operations` in all, or fewer if `seconds` end first.

    `server` is the process of the server, which is measured if it is known.
    """

    operation: Operation
    operations: int
    seconds: float | None = None
    server: int | None = None


def measure(run: Runner, task: Task) -> Phase:
    """Run one phase and combine the reports of its workers. Raises `LoadError`."""
    server = task.server
    before = accounting.cpu_seconds(server) if server else 0.0
    reports = run(task.operation, task.operations, task.seconds)
    used = accounting.cpu_seconds(server) - before if server else 0.0
    memory = accounting.memory(server) if server else None
    done = sum(report.operations for report in reports)
    seconds = max(report.ended for report in reports) - min(report.started for report in reports)
    times = latency.summary(sum((report.latencies for report in reports), Counter()))
    return Phase(
        operation=task.operation.value,
        operations=done,
        misses=sum(report.misses for report in reports),
        seconds=seconds,
        operations_per_second=done / seconds,
        load_cpu=sum(report.cpu for report in reports) / done * 1e6,
        server_cpu=used / done * 1e6 if server else None,
        server_resident=memory.resident if memory else None,
        server_peak=memory.peak if memory else None,
        p50=times.p50,
        p99=times.p99,
        max=times.max,
    )


def prepare(plan: Plan) -> None:
    """Create the queues, if the protocol needs that. Raises `ReplyError` if the server refuses."""
    make = WIRES[plan.protocol].prepare
    if make is None:
        if plan.copies:
            raise ReplyError(f"{plan.protocol.value} has no copies")
        return
    for number in range(plan.keys):
        with plan.connect() as sock:
            make(sock, plan.key(number), plan.copies)


@contextmanager
def runner(plan: Plan, processes: int) -> Iterator[Runner]:
    """Connect, in this process or spread over several, and yield the function that runs a phase."""
    if processes == 1:
        with Worker(plan) as worker:
            yield lambda *phase: [worker.run(*phase)]
        return
    with ExitStack() as stack:
        pipes = [stack.enter_context(_process(share)) for share in _shares(plan, processes)]
        for pipe in pipes:
            _receive(pipe)

        def run(operation: Operation, operations: int, seconds: float | None) -> list[Report]:
            for pipe in pipes:
                pipe.send((operation, -(-operations // len(pipes)), seconds))
            reports = [_receive(pipe) for pipe in pipes]
            return [report for report in reports if report is not None]

        yield run


def _shares(plan: Plan, processes: int) -> list[Plan]:
    bounds = [plan.connections * number // processes for number in range(processes + 1)]
    return [
        replace(plan, connections=end - start, first_connection=plan.first_connection + start)
        for start, end in pairwise(bounds)
        if end > start
    ]


@contextmanager
def _process(plan: Plan) -> Iterator[Connection]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_phases, args=(plan, ours, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(5)
        process.kill()


def _serve_phases(plan: Plan, parent: Connection, pipe: Connection) -> None:
    """Run a worker process: send None once connected, then a report for each phase.

    It ends when the parent's end of the pipe is closed, which the parent's death does, too. The
    copies of that end in this process and in workers started later would keep it open: so it is
    closed here first, and the workers are ended from last to first.
    """
    parent.close()
    try:
        with Worker(plan) as worker:
            pipe.send(None)
            while True:
                pipe.send(worker.run(*pipe.recv()))
    except EOFError:
        return
    except (LoadError, OSError) as error:
        with suppress(OSError):  # Another worker failed first, and the pipe is closed.
            pipe.send(LoadError(str(error)))


def _receive(pipe: Connection) -> Report | None:
    match pipe.recv():
        case LoadError() as error:
            raise error
        case None:
            return None
        case Report() as report:
            return report
        case other:
            raise LoadError(f"a worker process said {other!r}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.load.generator", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0)
    add("--path", default="", help="a Unix socket, instead of a port")
    add("--tls", action="store_true", help="speak TLS, and trust every certificate")
    add("--protocol", type=Protocol, choices=list(Protocol), default=Protocol.MEMCACHE)
    add("--op", type=Operation, choices=list(Operation), action="append", help="default: set")
    add("--repeat", type=int, default=1, help="how often the phases are run through")
    add("--connections", type=int, default=50)
    add("--depth", type=int, default=1, help="requests sent at once on a connection")
    add("--window", action="store_true", help="send a new request for each reply, not in bursts")
    add("--operations", type=int, default=100_000, help="of each phase")
    add("--seconds", type=float, help="how long each phase lasts, if its operations do")
    add("--warmup", type=int, default=0, help="operations of each phase before it counts")
    add("--size", type=int, default=1024, help="bytes of an item")
    add("--keys", type=int, default=1, help="queues or keys to spread the connections over")
    add("--prefix", default="flood", help="of the names of queues or keys")
    add("--copies", type=int, default=0, help="children of each queue, which get every set too")
    add("--processes", type=int, default=1)
    add("--cpus", type=lambda text: set(map(int, text.split(","))), help="run on these, as 1,2")
    add("--server-pid", type=int, help="measure this process's CPU time and memory")
    add("--time-limit", type=float, default=120.0, help="seconds for each phase")
    add("--json", action="store_true", help="one JSON list of the phases")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the load generator. Return exit status 1 if the run failed, and print the reason."""
    options = _parser().parse_args(arguments)
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    raise_open_files(options.connections + 100)
    plan = Plan(
        host=options.host,
        port=options.port,
        protocol=options.protocol,
        connections=options.connections,
        depth=options.depth,
        size=options.size,
        keys=options.keys,
        time_limit=options.time_limit,
        prefix=options.prefix,
        copies=options.copies,
        path=options.path,
        window=options.window,
        tls=trusting_context() if options.tls else None,
    )
    operations = options.op or [Operation.SET]
    try:
        prepare(plan)
        with runner(plan, min(options.processes, options.connections)) as run:
            for operation in operations if options.warmup else ():
                run(operation, options.warmup, None)
            phases = [
                measure(
                    run, Task(operation, options.operations, options.seconds, options.server_pid)
                )
                for _ in range(options.repeat)
                for operation in operations
            ]
    except (LoadError, ReplyError, OSError, EOFError) as error:
        print(f"load failed: {error}", file=sys.stderr)
        return 1
    _print(phases, as_json=options.json)
    return 0


def _print(phases: list[Phase], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(phase) for phase in phases]))
        return
    for phase in phases:
        server = "" if phase.server_cpu is None else f", server {phase.server_cpu:.2f} us/op"
        print(
            f"{phase.operation}: {phase.operations} operations, {phase.misses} misses, "
            f"{phase.operations_per_second:,.0f}/s, p50 {phase.p50} us, p99 {phase.p99} us, "
            f"max {phase.max} us, load generator {phase.load_cpu:.2f} us/op{server}"
        )


if __name__ == "__main__":
    sys.exit(main())
