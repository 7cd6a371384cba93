"""The queue path as the journal sees it: append, read, replace, sync, lock.

Every durable change goes through a `Directory`, so that a test can stand in between. Rules:

- An append is whole or not at all: what a failed write left is cut off again, at the latest before
  the next append. A file that was cut so takes no more: whoever follows it by its length may have
  read what was cut, and must not find other bytes there.
- A file is replaced by: write a temporary, sync it, rename it, sync the directory.
- `reached` names the steps in between; a crash test stops there.
- Nothing is followed through a symbolic link, and nothing is done in another directory that was put
  in the queue path's place, nor to a file that was put in the place of one that is written.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import Lock
from typing import Final, Protocol, Self

from kestrelmq.errors import QueuePathLocked
from kestrelmq.journal.held_directory import HeldDirectory
from kestrelmq.journal.names import LOCK_NAME, TEMPORARY_MARK
from kestrelmq.journal.open_files import MAX_OPEN, OpenFiles
from kestrelmq.journal.records import Buffer
from kestrelmq.journal.regular import file_names, open_regular

_APPEND: Final = os.O_WRONLY | os.O_APPEND
_PIECE: Final = 1 << 20
_CHANGED: Final = "the file was changed by another program"
_REPLACED: Final = "the file was replaced by another program"


class AppendFile(Protocol):
    """A journal file that is being written."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    @property
    def is_torn(self) -> bool:
        """Whether nothing can be appended any more, because a failed write left something."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise OSError and leave the file as it was."""

    def settle(self) -> None:
        """Make sure that the file ends after the last append that succeeded. Raises OSError."""

    def sync(self) -> None:
        """Force to disk what was appended; from any thread. Raises OSError."""

    def renamed(self, name: str) -> None:
        """Tell that the file is called `name` now."""

    def close(self) -> None:
        """Release the file; does not sync, and does not wait for a sync that runs."""


class Directory(Protocol):
    """The files of a queue path."""

    @property
    def path(self) -> Path:
        """Where it is."""

    def names(self) -> list[str]:
        """Return the names of all in it that is no directory."""

    def open(self, name: str) -> int:
        """Open `name` to read it; return the descriptor."""

    def append_to(self, name: str) -> AppendFile:
        """Open `name` for appending; it is created if it is not there."""

    def create(self, name: str) -> AppendFile:
        """Open `name`, empty, for a file that is written once and closed; from any thread."""

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing it."""

    def link(self, old: str, new: str) -> None:
        """Give the file `old` the second name `new`, or make a synced copy where links are not.

        Raises OSError.
        """

    def remove(self, name: str) -> None:
        """Delete `name`; no error when it is not there."""

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and force that to disk."""

    def sync_file(self, name: str) -> None:
        """Force what is in `name` to disk. Raises OSError."""

    def sync(self) -> None:
        """Force created, renamed and removed names to disk."""

    def recheck(self, names: Collection[str] | None) -> None:
        """See whether files that are appended to are still there; None means all.

        An append to one that is not fails, until the same file is there again.
        """

    def refuse(self, reason: str | None) -> None:
        """Let every step fail from now on, for that reason; None ends that."""

    def reached(self, point: str) -> None:
        """Called between two steps that must not tear; `point` names the place."""


class DiskFile:
    """An `AppendFile` on disk.

    Its descriptor may be taken away by `OpenFiles` between two calls; the next call opens the file
    again, if it is the same one. One lock keeps a descriptor from being closed while another thread
    syncs it.
    """

    __slots__ = (
        "_descriptor",
        "_device",
        "_dirty",
        "_ended",
        "_files",
        "_held",
        "_inode",
        "_lock",
        "is_torn",
        "path",
        "size",
        "used",
    )

    def __init__(
        self, path: Path, files: OpenFiles | None = None, held: HeldDirectory | None = None
    ) -> None:
        """Describe a file; `open` opens it.

        Args:
            path: where it is.
            files: who may take its descriptor away.
            held: the directory that it is in, if that is held; only the name of `path` counts then.
        """
        self.path = path
        self._held = held
        self._device = self._inode = 0
        self.size = 0
        self.used = False
        self.is_torn = False
        self._files = files
        self._descriptor: int | None = None
        self._dirty = False
        self._ended = False
        self._lock = Lock()

    def open(self, flags: int = 0) -> Self:
        """Open the file, which is created if it is not there. Raises OSError."""
        descriptor = self._open(_APPEND | os.O_CREAT | flags)
        status = os.fstat(descriptor)
        self._descriptor = descriptor
        self._device, self._inode = status.st_dev, status.st_ino
        self.size = status.st_size
        if self._files is not None:
            self._files.opened(self)
        return self

    def _open(self, flags: int) -> int:
        try:
            return self._open_once(flags)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or self._files is None:
                raise
            # Clients have all the rest; another journal can do without for now.
            if not self._files.make_room():
                raise
            return self._open_once(flags)

    def _open_once(self, flags: int) -> int:
        if self._held is not None:
            return self._held.open(self.path.name, flags)
        return open_regular(self.path, flags)

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise OSError and leave the file as it was."""
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._reopen()
        self.used = True
        if self._dirty or self.is_torn:
            self._refuse(descriptor)
        written = 0
        length = len(data)
        try:
            while True:
                written += os.write(descriptor, data[written:] if written else data)
                if written >= length:
                    break
        except OSError:
            # A write may have reached the file though it failed. If not even the cut succeeds, the
            # next append tries it again.
            self._dirty = True
            with contextlib.suppress(OSError):
                self._cut(descriptor)
            raise
        self.size += length

    def settle(self) -> None:
        """Make sure that the file ends after the last append that succeeded. Raises OSError."""
        descriptor = self._reopen() if self._descriptor is None else self._descriptor
        if self._dirty:
            self._cut(descriptor)

    def _refuse(self, descriptor: int) -> None:
        """Append nothing behind what a failed write may have left. Raises OSError, mostly."""
        if self._dirty:
            self._cut(descriptor)
        if self.is_torn:
            reason = "the end of the file was cut off, and nothing may follow it"
            raise OSError(errno.EIO, reason, str(self.path))

    def _reopen(self) -> int:
        """Open the file again, which must be there, and be as it was left. Raises OSError."""
        if self._ended:
            raise OSError(errno.EBADF, "the file is closed", str(self.path))
        descriptor = self._open_same(_APPEND)
        if os.fstat(descriptor).st_size != self.size and not self._dirty:
            os.close(descriptor)
            raise OSError(errno.EIO, _CHANGED, str(self.path))
        self._descriptor = descriptor
        if self._files is not None:
            self._files.opened(self)
        return descriptor

    def _open_same(self, flags: int) -> int:
        descriptor = self._open(flags)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (self._device, self._inode):
            os.close(descriptor)
            raise OSError(errno.EIO, _REPLACED, str(self.path))
        return descriptor

    def _cut(self, descriptor: int) -> None:
        found = os.fstat(descriptor).st_size
        if found < self.size:
            raise OSError(errno.EIO, _CHANGED, str(self.path))
        if found > self.size:
            os.ftruncate(descriptor, self.size)
            self.is_torn = True
        self._dirty = False

    def sync(self) -> None:
        """Force to disk what was appended; from any thread. Raises OSError."""
        with self._lock:
            descriptor = self._descriptor
            if descriptor is not None:
                os.fsync(descriptor)
            else:
                # Another descriptor of the file will do: what is synced is the file.
                descriptor = self._open_same(os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        if self._ended:
            self.release()

    def renamed(self, name: str) -> None:
        """Tell that the file is called `name` now."""
        self.path = self.path.with_name(name)

    def close(self) -> None:
        """Release the file; does not sync, and does not wait for a sync that runs."""
        self._ended = True
        if self._dirty and self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._cut(self._descriptor)
        self.release()
        if self._files is not None:
            self._files.closed(self)

    @property
    def is_there(self) -> bool:
        """Whether the file of this name is still the one that is written."""
        held = self._held
        return held is None or held.is_there(self.path.name, self._device, self._inode)

    def release(self, *, wait: bool = False) -> bool:
        """Give the descriptor up, unless a sync uses it; say whether none is held.

        With `wait`, a sync is waited for.
        """
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
        finally:
            self._lock.release()
        return True


class DiskDirectory:
    """A `Directory` on disk."""

    __slots__ = ("_files", "_held", "path")

    def __init__(self, path: Path, max_open: int = MAX_OPEN) -> None:
        """`max_open` is the most append files that hold a descriptor between two appends."""
        self.path = path
        self._files = OpenFiles(max_open)
        self._held = HeldDirectory(path)

    def names(self) -> list[str]:
        """Return the names of all in it that is no directory."""
        return file_names(self.path)

    def open(self, name: str) -> int:
        """Open `name` to read it; return the descriptor."""
        return self._held.open(name, os.O_RDONLY)

    def append_to(self, name: str) -> DiskFile:
        """Open `name` for appending; it is created if it is not there."""
        return DiskFile(self.path / name, self._files, self._held).open()

    def create(self, name: str) -> DiskFile:
        """Open `name`, empty, for a file that is written once and closed; from any thread."""
        return DiskFile(self.path / name, None, self._held).open(os.O_TRUNC)

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing it."""
        here = self._held.descriptor
        os.rename(old, new, src_dir_fd=here, dst_dir_fd=here)

    def link(self, old: str, new: str) -> None:
        """Give the file `old` the second name `new`, or make a synced copy where links are not."""
        here = self._held.descriptor
        try:
            os.link(old, new, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
        except OSError:
            self.remove(new)
            copy = self.create(new)
            try:
                with mapped(self.path / old, self.open) as content:
                    for at in range(0, len(content), _PIECE):
                        copy.append(content[at : at + _PIECE])
                copy.sync()
            finally:
                copy.close()

    def remove(self, name: str) -> None:
        """Delete `name`; no error when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._held.descriptor)

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and force that to disk."""
        descriptor = self._held.open(name, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file(self, name: str) -> None:
        """Force what is in `name` to disk. Raises OSError."""
        descriptor = self._held.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Force created, renamed and removed names to disk."""
        os.fsync(self._held.descriptor)

    def recheck(self, names: Collection[str] | None) -> None:
        """See whether files that are appended to are still there; None means all.

        An append to one that is not fails, until the same file is there again.
        """
        if names is None or names:
            self._files.recheck(names)

    def refuse(self, reason: str | None) -> None:
        """Let every step fail from now on, for that reason; None ends that.

        An append finds out when it has to open its file again, and so it costs nothing otherwise.
        """
        self._held.refusal = reason
        if reason is not None:
            self._files.release_all()

    def reached(self, point: str) -> None:
        """Do nothing: nobody watches."""


def replace_file(directory: Directory, name: str, content: bytes) -> None:
    """Have `name` hold `content`; a crash leaves the old content or the new. Raises OSError."""
    temporary = f"{name}{TEMPORARY_MARK}new"
    file = directory.create(temporary)
    try:
        file.append(content)
        file.sync()
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.sync()


@contextlib.contextmanager
def mapped(
    path: Path, open_file: Callable[[str], int] | None = None
) -> Iterator[mmap.mmap | bytes]:
    """Map a whole file for reading; an empty file is `b""`, which cannot be mapped.

    `open_file` opens it by its name; by default, it is opened by its path.
    """
    descriptor = open_regular(path, os.O_RDONLY) if open_file is None else open_file(path.name)
    try:
        if os.fstat(descriptor).st_size == 0:
            yield b""
            return
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as buffer:
            buffer.madvise(mmap.MADV_SEQUENTIAL)
            yield buffer
    finally:
        os.close(descriptor)


def data_after(path: Path, position: int) -> int:
    """Return where the data of a file goes on behind a hole at `position`, which reads as zeros.

    That is `position` itself when there is no hole, or the system cannot tell.
    """
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return position
    with path.open("rb") as file:
        try:
            return os.lseek(file.fileno(), position, seek_data)
        except OSError as error:
            return os.fstat(file.fileno()).st_size if error.errno == errno.ENXIO else position


def forget(buffer: Buffer, start: int, end: int) -> int:
    """Have a map hold no memory for what is before `end`, all before `start` being forgotten.

    What was looked at in a map counts as memory of this process until then.

    Returns:
        Up to where it is forgotten: `end`, or the beginning of its page.
    """
    end -= end % mmap.PAGESIZE
    if isinstance(buffer, mmap.mmap) and end > start:
        buffer.madvise(mmap.MADV_DONTNEED, start, end - start)
    return end


def is_locked(path: Path) -> bool:
    """Whether a server holds the queue path `path`; nothing is created to find out."""
    try:
        descriptor = open_regular(path / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


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
        descriptor = open_regular(self._path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
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

    @property
    def is_in_place(self) -> bool:
        """Whether the queue path is the one that was taken: its lock file is the one that is held.

        Otherwise it was removed or replaced, and another server may use what is there now.
        """
        if self._descriptor is None:
            return True
        held = os.fstat(self._descriptor)
        try:
            found = (self._path / LOCK_NAME).lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
