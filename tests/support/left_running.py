"""A test that starts processes and never ends: `tests/unit/test_guardian.py` ends it from outside.

It writes the numbers of the processes to the file LEFT_RUNNING, its own first.
"""

import os
import signal
import subprocess
from pathlib import Path

from tests.support.forking import ForkedProcess


def test_that_never_ends() -> None:
    """Start a process, one of a session of its own that has a child, and one that is forked."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 1000 & echo $!; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    forked = ForkedProcess("import time; time.sleep(1000)", [], {})
    numbers = (os.getpid(), shell.pid, child, forked.pid)
    file = Path(os.environ["LEFT_RUNNING"])
    file.with_suffix(".new").write_text(" ".join(map(str, numbers)))
    file.with_suffix(".new").rename(file)
    signal.pause()
