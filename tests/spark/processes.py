"""Pipelines and Spark sessions in processes of their own."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.patience import PATIENCE, until

PIPELINE: Final = [sys.executable, "-c", "from kestrelmq.cli.main import main; main()", "pipeline"]
"""The command `kestrelmq pipeline`."""


class SparkProcess:
    """A session that stands still at a step for a test to kill it, and all that it starts."""

    def __init__(self, module: str, root: Path, *words: str) -> None:
        """Run `module` with `root` and `words`; it touches `ROOT/reached` where it stands still."""
        self._reached = root / "reached"
        self._reached.unlink(missing_ok=True)
        self._log = (root / "session.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(root), *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def has_reached(self) -> bool:
        """Whether it stands still at its step."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the process ended: {self._log.name}")
        return self._reached.exists()

    def is_on_its_way(self) -> bool:
        """Whether it has neither come to its step nor ended, as it does when a part is killed."""
        return self.process.poll() is None and not self._reached.exists()

    def kill_one(self, part: str, rng: random.Random) -> bool:
        """Kill its `driver`, its `java`, or a `worker` of Python; return whether it has one."""
        found = {
            "driver": [self.process.pid],
            "java": [],
            "worker": [],
        }
        for process in _processes_of(self.process.pid):
            if process != self.process.pid:
                with contextlib.suppress(FileNotFoundError):  # it has ended
                    name = Path(f"/proc/{process}/comm").read_text().strip()
                    found["java" if name == "java" else "worker"].append(process)
        if found[part]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found[part]), signal.SIGKILL)
        return bool(found[part])

    def wait_until_reached(self) -> None:
        """Wait until it stands still at its step."""
        deadline = time.monotonic() + PATIENCE
        while not self.has_reached():
            if time.monotonic() > deadline:
                self.kill9()
                raise RuntimeError(f"the process never came to its step: {self._log.name}")
            time.sleep(0.05)

    def kill9(self) -> None:
        """Kill the driver, the JVM and the workers at once; return when they have ended."""
        for process in _processes_of(self.process.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        # A JVM takes a while to end, and until then what it wrote is not left over.
        until(lambda: not _processes_of(self.process.pid))
        self._log.close()


def _processes_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended.

    Spark's workers have process groups of their own.
    """
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                # After the command, in parentheses: state, parent, group, session.
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(directory.name))
    return found
