"""Locks of files and directories: of a queue path, and of names in it."""

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Final, Self

from kestrelmq.disk.opening import open_regular, open_stream
from kestrelmq.disk.restored import finish_restore, is_unfinished
from kestrelmq.errors import QueuePathLocked
from kestrelmq.format.names import LOCK_NAME

_MAX_NOTE: Final = 200
"""Most bytes to read of a lock file's note about its holder."""
_LOCK_PAUSE: Final = 0.01
"""Seconds between two attempts to lock a directory."""


class FileLock:
    """A lock on a file, held until it is released, forgotten, or this process ends, in any way.

    The file stays, and names the last process that took the lock. A `with` block holds the lock.
    """

    def __init__(
        self, path: Path, problem: str, *, shared: bool = False, note: str | None = None
    ) -> None:
        """Describe a lock; `acquire` takes it.

        Args:
            path: the file; it is created if it does not exist.
            problem: the error message if somebody else has the lock.
            shared: whether others may share the lock; the file then names none of them.
            note: what to write to the file about this process; by default, its id.
        """
        self._path = path
        self._problem = problem
        self._shared = shared
        self._note = note
        self._descriptor: int | None = None
        self._process = 0

    def __enter__(self) -> Self:
        """Acquire the lock, as `acquire` does."""
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        """Release the lock."""
        self.release()

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            QueuePathLocked: another process, or another `FileLock` of this process, has it.
            OSError: the file cannot be opened.
        """
        if not self.try_acquire():
            holder = self.holder()
            problem = f"{self._problem} (process {holder})" if holder else self._problem
            raise QueuePathLocked(problem)

    def try_acquire(self) -> bool:
        """Take the lock; return False if somebody else has it. Raises OSError."""
        descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        is_held = False
        try:
            if _lock(descriptor, fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX):
                os.ftruncate(descriptor, 0)
                if not self._shared:
                    note = f"{os.getpid()}\n" if self._note is None else self._note
                    os.pwrite(descriptor, note.encode(), 0)
                self._process = os.getpid()
                is_held = True
                self._descriptor = descriptor
        finally:  # also after a Ctrl-C
            if not is_held:
                os.close(descriptor)
        return is_held

    def holder(self) -> str:
        """Return the file's note about the last holder of the lock. Raises OSError."""
        with open_stream(self._path, "rb") as file:
            return file.read(_MAX_NOTE).decode(errors="replace").strip()

    @property
    def is_in_place(self) -> bool:
        """Whether the locked file is still the one at the path; also True if no lock is held.

        If not, it was removed or replaced, and others may lock the file that is there now.
        """
        if self._descriptor is None:
            return True
        held = os.fstat(self._descriptor)
        try:
            found = self._path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Release the lock, also if a process was forked meanwhile: that does not keep it.

        In such a process, this does not release it.
        """
        if self._descriptor is not None:
            if self._process == os.getpid():
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()


class QueuePathLock(FileLock):
    """Reserves a queue path: two servers or tools must not write the same journals.

    Users of single queues share the lock.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Describe the lock of the queue path `path`."""
        super().__init__(path / LOCK_NAME, in_use(path), shared=shared)

    def acquire(self) -> None:
        """Take the lock, and finish a restore that was interrupted. Raises also as `FileLock`.

        Raises:
            QueuePathLocked: the lock is shared, so that the restore cannot be finished.
            OSError: the restore cannot be finished.
        """
        super().acquire()
        try:
            self._finish_restore(self._path.parent)
        except BaseException:
            self.release()
            raise

    def _finish_restore(self, path: Path) -> None:
        if self._shared and is_unfinished(path):
            raise QueuePathLocked(f"a restore of {path} was interrupted: restore again")
        finish_restore(path)


def in_use(path: Path | str) -> str:
    """Return what to say of a queue path that somebody has locked."""
    return f"queue path {path} is in use by a server, a tool or the library"


def is_locked(path: Path) -> bool:
    """Whether a server, or a tool, has the queue path `path` for itself. Creates nothing."""
    try:
        descriptor = open_regular(path / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def lock_directory(path: Path, patience: float) -> int:
    """Take the lock of a directory, so that a name in it stays as it was found.

    Only those who take the lock, too, are kept from changing the name.

    Args:
        path: the directory.
        patience: how long to wait for another process that has the lock (seconds).

    Returns:
        A descriptor; closing it releases the lock.

    Raises:
        OSError: the directory cannot be opened, or another process keeps its lock.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    give_up = time.monotonic() + patience
    while not _lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > give_up:
            os.close(descriptor)
            raise OSError(errno.EBUSY, "another process has locked the directory", str(path))
        time.sleep(_LOCK_PAUSE)
    return descriptor


def _lock(descriptor: int, kind: int) -> bool:
    """Lock an open file; return False if somebody else holds the lock. Raises OSError."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True
