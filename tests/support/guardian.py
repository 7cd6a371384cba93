"""Ends what the tests started, and what that started, when the process of the tests has ended.

That may have been killed. Every process that the tests start inherits a mark in its environment, so
this needs no care where one is started. Linux shows the environment of a process; other systems do
not, and there nothing is done.

A fork of the process of the tests that starts no program has the environment of the time when
that process began, without the mark: such forks must end by themselves.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

_CLEAN_UP_SECONDS: Final = 3.0
"""How long the processes have to remove their temporary files before they are killed."""
_LOOK_SECONDS: Final = 0.05


def guard() -> None:
    """Have all processes that this one starts from now on end soon after it."""
    if sys.platform != "linux":
        return
    mark = f"KESTRELMQ_TESTS_{uuid4().hex}"
    silence = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    command = [sys.executable, __file__, str(os.getpid()), mark]
    # A session of its own: Ctrl-C and the end of a terminal reach the tests, but not this.
    os.posix_spawn(command[0], command, os.environ, file_actions=silence, setsid=True)
    os.environ[mark] = "1"


def main(guarded: int, mark: str) -> None:
    """Wait for the end of the process `guarded`, and end all processes that have the mark."""
    # If there is no such process any more, it has ended.
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(guarded)], [], [])
    _send(signal.SIGTERM, _marked(mark))
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while found := _marked(mark):
        if time.monotonic() > deadline:
            _send(signal.SIGKILL, found)
        time.sleep(_LOOK_SECONDS)


def _marked(mark: str) -> list[int]:
    """Return the processes that have the mark and have not ended."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            # It may have ended meanwhile, or be another user's.
            with contextlib.suppress(OSError):
                if mark.encode() in (directory / "environ").read_bytes():
                    found.append(int(directory.name))
    return found


def _send(number: signal.Signals, processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
