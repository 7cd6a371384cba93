"""The lock of a staging location, which keeps a second query out while one runs.

It is a file lock of the driver's process, so it ends with that, however that ends. The file stays,
and says who held it last.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.errors import KestrelError

_LOCK: Final = "lock"


class StagingInUse(KestrelError):  # noqa: N818 # says what it is
    """Another query uses the staging location, or its content belongs to another one."""


class StagingLock:
    """Holds a staging location for the driver of one query."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, patience: float, clock: Clock, pause: Callable[[float], None]) -> None:
        """Take the lock.

        A process whose driver was killed may hold it a moment longer, so this waits for it for up
        to `patience` seconds.

        Raises:
            StagingInUse: another query runs.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path / _LOCK, flags, 0o640)
        deadline = clock.monotonic() + patience
        while not _locked(descriptor):
            if clock.monotonic() >= deadline:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise StagingInUse(
                    f"staging location {self._path} is in use by another query ({holder}); "
                    "every query needs one of its own"
                )
            pause(0.1)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True
