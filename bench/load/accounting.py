"""What the operating system says a process and its children have used: CPU time and memory.

CPU time is read from the process's own CPU clock (what `clock_getcpuclockid` gives): nanoseconds,
user and system, every thread, also those that have ended. `/proc/PID/task/*/schedstat` would
forget threads that have ended, and `/proc/PID/stat` counts in ticks of 10 ms; the latter is only
the fall-back.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

SCHEDULER_CLOCK = 2


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in KiB: now, and the most there has been (summed over the processes)."""

    resident: int
    peak: int


def cpu_seconds(pid: int) -> float:
    """CPU seconds used so far by the process and its living descendants.

    Raises OSError when the process is gone.
    """
    return sum(_process_cpu(process) for process in _tree(pid))


def memory(pid: int) -> Memory:
    """Resident memory of the process and its living descendants.

    Raises OSError when the process is gone.
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
        # The name in parentheses may hold blanks; the fields after it can't.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> list[int]:
    processes = [pid]
    for process in processes:
        for task in Path(f"/proc/{process}/task").iterdir():
            processes += map(int, (task / "children").read_text().split())
    return processes
