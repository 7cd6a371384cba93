"""CPU time and memory of a process and its children, from the operating system.

CPU time is read from the CPU clock of the process (the one of `clock_getcpuclockid`). It has a
resolution of nanoseconds and covers user and system time of all threads, including those that have
ended. `/proc/PID/task/*/schedstat` would leave out threads that have ended. `/proc/PID/stat` counts
in ticks of 10 ms and is only the fallback.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

SCHEDULER_CLOCK = 2


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in KiB: now and at its peak, each summed over the processes."""

    resident: int
    peak: int


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds used so far by the process and its running descendants.

    Raises OSError if the process has ended.
    """
    return sum(_process_cpu(process) for process in _tree(pid))


def memory(pid: int) -> Memory:
    """Return the resident memory of the process and its running descendants.

    Raises OSError if the process has ended.
    """
    resident = peak = 0
    for process in _tree(pid):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                resident += int(line.split()[1])
            elif line.startswith("VmHWM:"):
                peak += int(line.split()[1])
    return Memory(resident, peak)


def _process_cpu(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | SCHEDULER_CLOCK)
    except OSError:
        # The name in parentheses may contain blanks; the fields after it cannot.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> list[int]:
    processes = [pid]
    for process in processes:
        for task in Path(f"/proc/{process}/task").iterdir():
            processes += map(int, (task / "children").read_text().split())
    return processes
