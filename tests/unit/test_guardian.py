"""What tests start ends with them, however they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

PROGRAM = "tests/support/left_running.py"


def is_running(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, 0), (signal.SIGKILL, 0), (signal.SIGKILL, 1)]
)
def test_nothing_stays_when_tests_are_ended(tmp_path: Path, number: int, workers: int) -> None:
    """Neither their servers nor what those started; a process of xdist may end alone, too."""
    file = tmp_path / "processes"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        str(workers),
        PROGRAM,
    ]
    with subprocess.Popen(
        command,
        env=os.environ | {"LEFT_RUNNING": str(file)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as tests:
        until(file.exists)
        runner, *others = map(int, file.read_text().split())
        assert all(map(is_running, others))
        os.kill(runner, number)
        until(lambda: not any(map(is_running, others)))
        # With another process in the place of the one that was killed, xdist would go on.
        tests.kill()
