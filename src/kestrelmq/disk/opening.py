"""Opening files, listing directories, and reading whole files, by maps if they are long.

Only regular files are opened, and never through a symbolic link, which could lead anywhere. So the
server never waits for a pipe or writes to a device.
"""

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

from kestrelmq.format.records import Buffer

SAFE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FILE_MODE: Final = 0o640
_SHORT: Final = 16 << 10
"""Most bytes of a file that is read and not mapped."""
_NANOSECONDS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


def open_regular(path: str | Path, flags: int, dir_fd: int | None = None) -> int:
    """Open a regular file. Can serve as the `opener` of Python's `open`.

    Args:
        path: the file.
        flags: as for `os.open`. A new file is readable by its owner and group only.
        dir_fd: descriptor of the directory to which `path` is relative.

    Raises:
        OSError: it is not a regular file, or cannot be opened.
    """
    return open_with_status(path, flags, dir_fd)[0]


def open_with_status(
    path: str | Path, flags: int, dir_fd: int | None = None
) -> tuple[int, os.stat_result]:
    """Open a file as `open_regular` does; return its descriptor and its status."""
    try:
        descriptor = os.open(path, flags | SAFE_FLAGS, _FILE_MODE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        reason = "it is a symbolic link, which is not followed"
        raise OSError(errno.ELOOP, reason, str(path)) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor, status


def open_stream(path: str | Path, mode: Literal["rb", "wb", "ab"], buffering: int = -1) -> BinaryIO:
    """Open a regular file as Python's `open` does. Raises OSError."""
    # `Path.open` has no opener.
    return open(path, mode, buffering, opener=open_regular)


class Listing(NamedTuple):
    """What is in a directory.

    Attributes:
        files: the names of its files, links, pipes, devices and the like. A queue that has a pipe
            is damaged, because that cannot be opened. Leaving it out would hide that some of the
            queue may be missing.
        directories: the names of its subdirectories.
    """

    files: list[str]
    directories: list[str]


def list_directory(path: str | Path) -> Listing:
    """Return what is in a directory. Raises OSError."""
    found = Listing([], [])
    with os.scandir(path) as entries:
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            (found.directories if is_directory else found.files).append(entry.name)
    return found


def file_names(path: str | Path) -> list[str]:
    """Return the names in a directory, without those of directories. Raises OSError."""
    return list_directory(path).files


def file_size(path: str) -> int:
    """Return the bytes in a file; 0 if it cannot be read: opening it will report why."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


class FoundFile(NamedTuple):
    """A file as it was found: which one it is, and how many bytes it has."""

    device: int
    inode: int
    size: int


NOT_FOUND: Final = FoundFile(0, 0, 0)


class ReadFile:
    """A whole file for reading: mapped, or read if it is short, which costs less.

    Attributes:
        content: its bytes.
        found: which file it is.
        written_at: when it was last written (ms).
        descriptor: the open file; None if it was read.
    """

    __slots__ = ("content", "descriptor", "found", "written_at")

    def __init__(
        self,
        content: mmap.mmap | bytes,
        found: FoundFile,
        written_at: int,
        descriptor: int | None,
    ) -> None:
        """Describe it; `close` closes the map and the descriptor."""
        self.content = content
        self.found = found
        self.written_at = written_at
        self.descriptor = descriptor

    def close(self) -> None:
        """Release the map. Nothing of `content` may be in use."""
        if isinstance(self.content, mmap.mmap):
            self.content.close()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def read_opened(descriptor: int, status: os.stat_result) -> ReadFile:
    """Return the open file of that descriptor, which is closed then or later. Raises OSError."""
    keep = False
    try:
        size, written_at = status.st_size, status.st_mtime_ns // _NANOSECONDS
        found = FoundFile(status.st_dev, status.st_ino, size)
        if size <= _SHORT:
            whole = os.pread(descriptor, size, 0) if size else b""
            return ReadFile(whole, found, written_at, None)
        content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        content.madvise(mmap.MADV_SEQUENTIAL)
        keep = True
        return ReadFile(content, found, written_at, descriptor)
    finally:
        if not keep:
            os.close(descriptor)


@contextlib.contextmanager
def mapped(
    path: Path, open_file: Callable[[str], int] | None = None
) -> Iterator[mmap.mmap | bytes]:
    """Map a whole file for reading, or read it if it is short.

    `open_file` opens the file by its name; by default, it is opened by its path.
    """
    descriptor = open_regular(path, os.O_RDONLY) if open_file is None else open_file(path.name)
    file = read_opened(descriptor, os.fstat(descriptor))
    try:
        yield file.content
    finally:
        file.close()


def data_after(path: str | Path, position: int) -> int:
    """Return where a file's data continues after the hole at `position`, which reads as zeros.

    Return `position` itself if there is no hole, or the system cannot tell.
    """
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:  # pragma: no cover: Linux and macOS have it
        return position
    with Path(path).open("rb") as file:
        try:
            return os.lseek(file.fileno(), position, seek_data)
        except OSError as error:
            return os.fstat(file.fileno()).st_size if error.errno == errno.ENXIO else position


def forget(buffer: Buffer, start: int, end: int) -> int:
    """Release a map's memory from `start` to `end`.

    Until then, the pages that were read count as memory of this process.

    Returns:
        Where the released part ends: at `end`, or at the beginning of its page.
    """
    end -= end % mmap.PAGESIZE
    if isinstance(buffer, mmap.mmap) and end > start:
        buffer.madvise(mmap.MADV_DONTNEED, start, end - start)
    return end
