"""The queue path as the journal sees it: append, read, replace, sync, lock.

Every durable change goes through a `Directory`, so that a test can stand in between. Rules:

- An append is whole or not at all: what a failed write left is cut off again, at the latest
  before the next append.
- A file is replaced by: write a temporary, sync it, rename it, sync the directory.
- `reached` names the steps in between; a crash test stops there.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from kestrelmq.errors import QueuePathLocked
from kestrelmq.journal.names import LOCK_NAME

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o640


class AppendFile(Protocol):
    """A journal file that is being written."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise OSError and leave the file as it was."""

    def sync(self) -> None:
        """Force to disk what was appended. Raises OSError."""

    def close(self) -> None:
        """Release the file; does not sync."""


class Directory(Protocol):
    """The files of a queue path."""

    @property
    def path(self) -> Path:
        """Where it is."""

    def names(self) -> list[str]:
        """Return the names of the regular files in it."""

    def append_to(self, name: str) -> AppendFile:
        """Open `name` for appending; it is created if it is not there."""

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing it."""

    def remove(self, name: str) -> None:
        """Delete `name`; no error when it is not there."""

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and force that to disk."""

    def sync(self) -> None:
        """Force created, renamed and removed names to disk."""

    def reached(self, point: str) -> None:
        """Called between two steps that must not tear; `point` names the place."""


class DiskFile:
    """An `AppendFile` on disk."""

    __slots__ = ("_descriptor", "_dirty", "size")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._dirty = False
        self.size = os.fstat(descriptor).st_size

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise OSError and leave the file as it was."""
        if self._dirty:
            self._cut()
        written = 0
        length = len(data)
        try:
            while True:
                written += os.write(self._descriptor, data[written:] if written else data)
                if written >= length:
                    break
        except OSError:
            if written:
                self._dirty = True
                # If even this fails, the next append tries again before it writes.
                with contextlib.suppress(OSError):
                    self._cut()
            raise
        self.size += length

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size)
        self._dirty = False

    def sync(self) -> None:
        """Force to disk what was appended. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the file; does not sync."""
        if self._dirty:
            with contextlib.suppress(OSError):
                self._cut()
        os.close(self._descriptor)


class DiskDirectory:
    """A `Directory` on disk."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Return the names of the regular files in it."""
        with os.scandir(self.path) as entries:
            return [entry.name for entry in entries if entry.is_file()]

    def append_to(self, name: str) -> DiskFile:
        """Open `name` for appending; it is created if it is not there."""
        return DiskFile(os.open(self.path / name, _APPEND, _MODE))

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing it."""
        (self.path / old).rename(self.path / new)

    def remove(self, name: str) -> None:
        """Delete `name`; no error when it is not there."""
        (self.path / name).unlink(missing_ok=True)

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and force that to disk."""
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Force created, renamed and removed names to disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def reached(self, point: str) -> None:
        """Do nothing: nobody watches."""


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Map a whole file for reading; an empty file is `b""`, which cannot be mapped."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            buffer.madvise(mmap.MADV_SEQUENTIAL)
            yield buffer


class QueuePathLock:
    """Holds a queue path for this process: a second server must not write the same journals.

    The lock ends with the process, however it ends; the file stays.
    """

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            QueuePathLocked: another process, or another object of this one, has it.
        """
        file = self._path / LOCK_NAME
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise
            process = f" (process {holder})" if holder else ""
            raise QueuePathLocked(
                f"queue path {self._path} is in use by another server{process}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
