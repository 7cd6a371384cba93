"""What the tests of each folder cost, in CPU seconds, and the budget that they must keep.

Other work on the machine changes how long a test takes, but hardly how much CPU time. Each process
that runs tests measures what it and the processes that it started have used, so a server or a Spark
session that many tests share counts for those during which it works. With `--cpu-budgets`, which CI
gives, a run fails if a folder used more than twice its budget.
"""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

BUDGETS: Final = {
    "spark": 340,
    "unit": 155,
    "integration": 145,
    "crash": 70,
    "property": 35,
    "pages": 125,
    "e2e": 95,
    "admin": 30,
    "conformance": 10,
    "deploy": 5,
    "fuzz": 5,
}
"""CPU seconds of one run: a quarter more than the longer one of `make test` was seen to take."""
_SAMPLE_SECONDS: Final = 0.5
"""How long a sample counts at least: one takes 2 ms, which is longer than most tests."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def family_seconds() -> float:
    """Return the CPU time of this process, of its living descendants, and of those that ended.

    Linux has lists of children, too, but leaves some out while others end.
    """
    if not Path("/proc/self/stat").exists():  # macOS: without those that still run
        return sum(os.times()[:4])
    children: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                # Behind a name in parentheses: the state, the parent, ...
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                children[int(fields[1])].append(int(directory.name))
                # User and system time, and those of children that ended.
                ticks[int(directory.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / _TICKS


class CpuMeter:
    """Writes into reports what was used since the last sample, at the end of a test."""

    def __init__(self) -> None:
        self._used = family_seconds()
        self._at = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take a sample, unless the last one is young."""
        report = yield
        if report.when == "teardown" and time.monotonic() > self._at + _SAMPLE_SECONDS:
            before, self._used, self._at = self._used, family_seconds(), time.monotonic()
            # It is less if a process was killed whose children had not ended.
            report.user_properties.append(("cpu seconds", max(0.0, self._used - before)))
        return report


class CpuTable:
    """Sums up the reports of all processes, and prints a line for each folder."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._used: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a sample for the test's folder."""
        for name, value in report.user_properties:
            if name == "cpu seconds" and isinstance(value, float):
                self._used[report.nodeid.split("/")[1]] += value

    @property
    def _over(self) -> list[str]:
        return [name for name, used in self._used.items() if used > 2 * BUDGETS[name]]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("CPU seconds by folder")
        for name, used in sorted(self._used.items()):
            note = "  more than twice its budget" if name in self._over else ""
            terminalreporter.write_line(f"{name:12}{used:6.0f} of {BUDGETS[name]:4}{note}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that passed, if a folder is over."""
        if self._strict and self._over and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
