"""Every fsync, lock and rename of the project, and the queue path as the journal sees it.

Every durable change of a queue path goes through a `Directory`, so that a test can intercept it.
Rules:

- An append happens completely or not at all: what a failed write left is cut off again, at the
  latest before the next append. Nothing more is appended to a file that was cut: a program that
  follows it by its length may have read the bytes that were cut, and must not find others there.
- To replace a file: write a temporary, sync it, rename it, sync the directory.
- `crash_point` names the steps in between; crash tests stop there.
- Only regular files are opened, and never through a symbolic link, which could lead anywhere. So
  the server never waits for a pipe or writes to a device.
- If another directory takes the queue path's place, nothing is done in it. If another file takes
  the place of one that is being written, nothing is done to it.

The order of this module: opening files; syncing, renaming and linking by path; writing whole files;
reading by maps; locks; the queue path and the files in it that are appended to.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import shutil
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, Literal, NamedTuple, Protocol, Self

from kestrelmq.errors import QueuePathLocked
from kestrelmq.format.names import LOCK_NAME, TEMPORARY_MARK
from kestrelmq.format.records import Buffer

MAX_OPEN: Final = 1024
"""Most append files that keep a descriptor; the journals of other queues open theirs when needed.

The limit is never more than half of the process's descriptors: clients and readers need some too.
"""
_SAFE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_APPEND_FLAGS: Final = os.O_WRONLY | os.O_APPEND
_FILE_MODE: Final = 0o640
_QUEUE_PATH_MODE: Final = 0o750
_PIECE: Final = 1 << 20
_SHORT: Final = 16 << 10
"""Most bytes of a file that is read and not mapped."""
_NANOSECONDS: Final = 1_000_000
"""Nanoseconds in a millisecond."""
_MAX_NOTE: Final = 200
"""Most bytes to read of a lock file's note about its holder."""
_LOCK_PAUSE: Final = 0.01
"""Seconds between two attempts to lock a directory."""
_CHANGED: Final = "the file was changed by another program"
_REPLACED: Final = "the file was replaced by another program"

# --- opening files ---


def open_regular(path: str | Path, flags: int, dir_fd: int | None = None) -> int:
    """Open a regular file. Can serve as the `opener` of Python's `open`.

    Args:
        path: the file.
        flags: as for `os.open`. A new file is readable by its owner and group only.
        dir_fd: descriptor of the directory to which `path` is relative.

    Raises:
        OSError: it is not a regular file, or cannot be opened.
    """
    return _open_regular(path, flags, dir_fd)[0]


def _open_regular(
    path: str | Path, flags: int, dir_fd: int | None = None
) -> tuple[int, os.stat_result]:
    """Do what `open_regular` does; return the descriptor, and the file's status."""
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, _FILE_MODE, dir_fd=dir_fd)
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
    """Return the bytes in a file; 0 without one: whoever opens it will report what is wrong."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


# --- syncing, renaming and linking by path ---


def sync_path(path: Path) -> None:
    """Force a file, or the names in a directory, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | _SAFE_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory and its missing parents; once this returns, a crash leaves them.

    Raises OSError.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync_path(path.parent)


def make_queue_path(path: Path) -> None:
    """Create a queue path and its missing parents, unless it exists. Raises OSError."""
    make_directory(path, _QUEUE_PATH_MODE)


def rename_durably(old: Path, new: Path) -> None:
    """Rename within a directory; the new name is on disk when this returns. Raises OSError."""
    old.rename(new)
    sync_path(new.parent)


def link_new(existing: Path, new: Path) -> bool:
    """Give a file a second name; return False if the name is taken already.

    The name is on disk once the directory is synced. Raises OSError.
    """
    try:
        os.link(existing, new)
    except FileExistsError:
        return False
    return True


# --- writing whole files ---


class FileWriter:
    """Writes a new file, about 1 MiB at a time.

    Attributes:
        name: its name.
        size: bytes in it, including those that are still to be written.
    """

    def __init__(self, directory: "Directory", name: str, *, one_of_many: bool = False) -> None:
        """Create the file, or truncate it if it exists. Raises OSError.

        If it is `one_of_many` that one thread writes at once, some of them have no descriptor.
        """
        self.name = name
        self.size = 0
        self._path = directory.path / name
        self._file = directory.create(name)
        if one_of_many:
            self._file.close()
            self._file = directory.append_to(name)
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Append to the file. Raises OSError."""
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size - self._file.size >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        with self._named_errors():
            self._file.append(b"".join(pieces))

    def sync(self) -> None:
        """Write what is left, and force the file to disk. Raises OSError."""
        self._flush()
        with self._named_errors():
            self._file.sync()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Let an error say which file it is about: the system knows only its descriptor."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = str(self._path)
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def write_file(directory: "Directory", name: str, pieces: Iterable[bytes]) -> int:
    """Write a file and force it to disk; return its size.

    Raises:
        OSError: the file could not be written, and was removed.
    """
    writer = FileWriter(directory, name)
    try:
        for piece in pieces:
            writer.add(piece)
        writer.sync()
    except BaseException:
        with contextlib.suppress(OSError):
            directory.remove(name)
        raise
    finally:
        writer.close()
    return writer.size


def replace_file(directory: "Directory", name: str, content: bytes) -> None:
    """Replace the content of `name`; a crash leaves the old content or the new. Raises OSError."""
    temporary = f"{name}{TEMPORARY_MARK}new"
    write_file(directory, temporary, (content,))
    directory.rename(temporary, name)
    directory.sync()


# --- reading by maps ---


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what is to be at `path`, which takes its place once it is whole.

    If that fails, `path` is as it was. What is no file, such as a pipe or /dev/stdout, is written
    itself.

    Raises OSError, which names `path` and no temporary file.
    """
    if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
        yield path
        return
    target = path.resolve()
    part = target.with_name(f".kestrelmq-{os.getpid()}.part")
    try:
        yield part
        if target.exists():
            shutil.copymode(target, part)
        sync_path(part)
        rename_durably(part, target)
    except OSError as error:
        if error.filename in {None, part, str(part)}:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


class FoundFile(NamedTuple):
    """A file as it was found: which one it is, and how many bytes it has."""

    device: int
    inode: int
    size: int


_NOT_FOUND: Final = FoundFile(0, 0, 0)


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


def _read_file(descriptor: int, status: os.stat_result) -> ReadFile:
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
    file = _read_file(descriptor, os.fstat(descriptor))
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


# --- locks ---


class FileLock:
    """A lock on a file, held until it is released, forgotten, or this process ends, in any way.

    The file stays, and names the last process that took the lock. A `with` block holds the lock.
    """

    __slots__ = ("_descriptor", "_note", "_path", "_problem", "_process", "_shared")

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
        """Do what `acquire` does."""
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

    __slots__ = ()

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Describe the lock of the queue path `path`."""
        super().__init__(path / LOCK_NAME, in_use(path), shared=shared)


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


# --- the queue path ---


class AppendFile(Protocol):
    """A journal file that is being written."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    @property
    def is_torn(self) -> bool:
        """Whether nothing can be appended any more, because a failed write had to be cut off."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise OSError and leave the file as it was."""

    def cut_failed_write(self) -> None:
        """Make sure that the file ends after the last append that succeeded. Raises OSError."""

    def sync(self) -> None:
        """Force to disk what was appended; from any thread. Raises OSError."""

    def renamed(self, name: str) -> None:
        """Take note that the file is called `name` now."""

    def close(self) -> None:
        """Release the file, without a sync, and without waiting for a sync that is running."""


class Directory(Protocol):
    """The files of a queue path."""

    @property
    def path(self) -> Path:
        """Where it is."""

    def names(self) -> list[str]:
        """Return the names in it, without those of directories."""

    def open(self, name: str) -> int:
        """Open `name` for reading; return the descriptor."""

    def read(self, name: str, *, appends: bool = False) -> ReadFile:
        """Read or map the whole of `name`; with `appends`, fail unless it can be written, too."""

    def append_to(self, name: str, found: FoundFile | None = None) -> AppendFile:
        """Open `name` for appending; it is created if it does not exist.

        A file that was `found` is opened when it is needed, and must still be the same then.
        """

    def create(self, name: str) -> AppendFile:
        """Open `name`, truncated, to write it once and close it; from any thread."""

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing a file of that name."""

    def link(self, old: str, new: str) -> None:
        """Give the file `old` the second name `new`; without support for links, make a synced copy.

        Raises OSError.
        """

    def remove(self, name: str) -> None:
        """Delete `name`; no error if it does not exist."""

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and force that to disk."""

    def sync_file(self, name: str) -> None:
        """Force the content of `name` to disk. Raises OSError."""

    def sync(self) -> None:
        """Force created, renamed and removed names to disk."""

    def recheck(self, names: Collection[str] | None) -> None:
        """Check that the append files called `names` still exist; None means all append files.

        Appends to a missing file fail until the same file is there again.
        """

    def refuse(self, reason: str | None) -> None:
        """Let every later operation fail with that reason; None allows them again."""

    def crash_point(self, point: str) -> None:
        """Called between two steps where a crash may come; `point` names the place."""


class DiskFile:
    """An `AppendFile` on disk.

    `DescriptorPool` may take its descriptor away between two calls; the next call opens the file
    again, if it is still the same one. A file that was `found` begins without one. A lock keeps the
    descriptor open while another thread syncs it.

    Attributes:
        name: its name in the directory.
        size: bytes in it.
        is_torn: whether nothing can be appended any more.
        used: whether it was appended to since `DescriptorPool` last looked.
    """

    __slots__ = (
        "_descriptor",
        "_device",
        "_directory",
        "_dirty",
        "_ended",
        "_files",
        "_inode",
        "_lock",
        "is_torn",
        "name",
        "size",
        "used",
    )

    def __init__(
        self,
        directory: "DiskDirectory",
        name: str,
        files: "DescriptorPool | None" = None,
        found: FoundFile = _NOT_FOUND,
    ) -> None:
        """Describe a file; `open` opens it.

        Args:
            directory: where it is.
            name: its name there.
            files: limits the open descriptors, and may take this file's away.
            found: the file itself, if it is known already.
        """
        self.name = name
        self._directory = directory
        self._device, self._inode, self.size = found
        self.used = False
        self.is_torn = False
        self._files = files
        self._descriptor: int | None = None
        self._dirty = False
        self._ended = False
        self._lock = Lock()

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory.path / self.name

    def open(self, flags: int = 0) -> Self:
        """Open the file; it is created if it does not exist. Raises OSError."""
        descriptor, status = self._open(_APPEND_FLAGS | os.O_CREAT | flags)
        self._device, self._inode = status.st_dev, status.st_ino
        self.size = status.st_size
        self._hold(descriptor)
        return self

    def _open(self, flags: int) -> tuple[int, os.stat_result]:
        try:
            return self._directory.open_file(self.name, flags)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or self._files is None:
                raise
            # Clients have all the rest; another journal can do without for now.
            self._files.make_room()
            return self._directory.open_file(self.name, flags)

    def _hold(self, descriptor: int) -> None:
        self._descriptor = descriptor
        if self._files is not None:
            self._files.add(self)

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
        except BaseException:
            # A write may have reached the file though it failed, or was interrupted. If not even
            # the cut succeeds, the next append tries it again.
            self._dirty = True
            with contextlib.suppress(OSError):
                self._cut(descriptor)
            raise
        self.size += length

    def cut_failed_write(self) -> None:
        """Make sure that the file ends after the last append that succeeded. Raises OSError."""
        descriptor = self._reopen() if self._descriptor is None else self._descriptor
        if self._dirty:
            self._cut(descriptor)

    def _refuse(self, descriptor: int) -> None:
        """Cut off what a failed write may have left. Raises OSError if the file was ever cut."""
        if self._dirty:
            self._cut(descriptor)
        if self.is_torn:
            reason = "the end of the file was cut off, and nothing may follow it"
            raise OSError(errno.EIO, reason, str(self.path))

    def _reopen(self) -> int:
        """Open the file again; it must exist and be unchanged. Raises OSError."""
        if self._ended:
            raise OSError(errno.EBADF, "the file is closed", str(self.path))
        descriptor, size = self._open_same(_APPEND_FLAGS)
        if size != self.size and not self._dirty:
            os.close(descriptor)
            raise OSError(errno.EIO, _CHANGED, str(self.path))
        self._hold(descriptor)
        return descriptor

    def _open_same(self, flags: int) -> tuple[int, int]:
        """Open the file again; it must be the same one. Return its descriptor and its size."""
        descriptor, status = self._open(flags)
        if (status.st_dev, status.st_ino) != (self._device, self._inode):
            os.close(descriptor)
            raise OSError(errno.EIO, _REPLACED, str(self.path))
        return descriptor, status.st_size

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
                # Any descriptor will do: fsync acts on the file.
                descriptor, _ = self._open_same(os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        if self._ended:
            self.release()

    def renamed(self, name: str) -> None:
        """Take note that the file is called `name` now."""
        self.name = name

    def close(self) -> None:
        """Release the file, without a sync, and without waiting for a sync that is running."""
        self._ended = True
        if self._dirty and self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._cut(self._descriptor)
        self.release()
        if self._files is not None:
            self._files.discard(self)

    @property
    def is_there(self) -> bool:
        """Whether the file of this name is still the one that was opened."""
        return self._directory.is_there(self.name, self._device, self._inode)

    def release(self, *, wait: bool = False) -> bool:
        """Close the descriptor unless a sync is using it; return whether none is held any more.

        With `wait`, wait for the sync.
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


class DescriptorPool:
    """Limits how many append files hold a descriptor; those in use keep theirs.

    Only the one thread that appends to the files adds them here, so no file loses its descriptor
    in the middle of an append. Any thread may remove them.
    """

    __slots__ = ("_files", "_limit", "_lock")

    def __init__(self, limit: int = MAX_OPEN) -> None:
        self._limit = limit
        self._files: OrderedDict[DiskFile, None] = OrderedDict()
        self._lock = Lock()

    def add(self, file: DiskFile) -> None:
        """Add `file`; one that was not used recently may have to give up its descriptor."""
        with self._lock:
            self._files[file] = None
            tries = 2 * len(self._files)
            most = self._most()
            while len(self._files) > most and tries:
                tries -= 1
                oldest, _ = self._files.popitem(last=False)
                if oldest is file or oldest.used or not oldest.release():
                    oldest.used = False
                    self._files[oldest] = None

    def make_room(self) -> None:
        """Have one file give its descriptor up, if one can."""
        with self._lock:
            for file in self._files:
                if file.release():
                    del self._files[file]
                    return

    def recheck(self, names: Collection[str] | None) -> None:
        """Close the descriptor of each file that was removed or replaced.

        Only files that are called one of `names` are checked; None means all.
        """
        with self._lock:
            files = [one for one in self._files if names is None or one.name in names]
        self._take([file for file in files if not file.is_there])

    def release_all(self) -> None:
        """Close every descriptor."""
        with self._lock:
            files = list(self._files)
        self._take(files)

    def _take(self, files: list[DiskFile]) -> None:
        for file in files:
            # Not under the lock: the sync that this waits for may itself have to make room.
            file.release(wait=True)
            self.discard(file)

    def _most(self) -> int:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self._limit if allowed == resource.RLIM_INFINITY else min(self._limit, allowed // 2)

    def discard(self, file: DiskFile) -> None:
        """Remove `file`."""
        with self._lock:
            self._files.pop(file, None)


class DiskDirectory:
    """A `Directory` on disk, held by a descriptor from its first use on.

    It keeps the lock of the queue path, if it is given one: while anything, such as a thread, can
    still change files here, a forgotten lock is not released.

    Files are opened relative to that descriptor. So if another directory takes the place of this
    one, nothing is created in it or read from it.
    """

    __slots__ = ("_files", "_held", "_kept", "_lock", "_refusal", "path")

    def __init__(self, path: Path, max_open: int = MAX_OPEN, lock: object = None) -> None:
        """Describe the directory; at most `max_open` append files keep a descriptor."""
        self.path = path
        self._kept = lock
        self._files = DescriptorPool(max_open)
        # Why nothing may be done in the directory now; None if it may be used.
        self._refusal: str | None = None
        self._held: int | None = None
        self._lock = Lock()

    @property
    def _descriptor(self) -> int:
        """The directory's descriptor. Raises OSError if it cannot be opened or used now."""
        if self._refusal is not None:
            raise OSError(errno.ESTALE, self._refusal)
        with self._lock:
            if self._held is None:
                self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            return self._held

    def __del__(self) -> None:
        if self._held is not None:
            os.close(self._held)

    def names(self) -> list[str]:
        """Return the names in it, without those of directories."""
        return file_names(self.path)

    def open(self, name: str) -> int:
        """Open `name` for reading; return the descriptor."""
        return self.open_file(name, os.O_RDONLY)[0]

    def read(self, name: str, *, appends: bool = False) -> ReadFile:
        """Read or map the whole of `name`; with `appends`, fail unless it can be written, too."""
        descriptor, status = self.open_file(name, os.O_RDWR if appends else os.O_RDONLY)
        return _read_file(descriptor, status)

    def open_file(self, name: str, flags: int) -> tuple[int, os.stat_result]:
        """Open a regular file in it; return the descriptor, and the file's status.

        `flags` as for `os.open`. Raises OSError.
        """
        try:
            return _open_regular(name, flags, self._descriptor)
        except OSError as error:
            error.filename = str(self.path / name)
            raise

    def is_there(self, name: str, device: int, inode: int) -> bool:
        """Whether the file `name` in it has this device and inode number."""
        try:
            found = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (device, inode)

    def append_to(self, name: str, found: FoundFile | None = None) -> DiskFile:
        """Open `name` for appending; one that was `found` is opened when it is needed."""
        if found is not None:
            return DiskFile(self, name, self._files, found)
        return DiskFile(self, name, self._files).open()

    def create(self, name: str) -> DiskFile:
        """Open `name`, truncated, to write it once and close it; from any thread."""
        return DiskFile(self, name).open(os.O_TRUNC)

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing a file of that name."""
        here = self._descriptor
        os.rename(old, new, src_dir_fd=here, dst_dir_fd=here)

    def link(self, old: str, new: str) -> None:
        """Give the file `old` the second name `new`; without support for links, make a synced copy.

        Raises OSError.
        """
        here = self._descriptor
        try:
            os.link(old, new, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
        except OSError:
            self.remove(new)
            with mapped(self.path / old, self.open) as content:
                pieces = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
                write_file(self, new, pieces)

    def remove(self, name: str) -> None:
        """Delete `name`; no error if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and force that to disk."""
        descriptor, _ = self.open_file(name, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file(self, name: str) -> None:
        """Force the content of `name` to disk. Raises OSError."""
        descriptor, _ = self.open_file(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Force created, renamed and removed names to disk."""
        os.fsync(self._descriptor)

    def recheck(self, names: Collection[str] | None) -> None:
        """Check that the append files called `names` still exist; None means all append files.

        Appends to a missing file fail until the same file is there again.
        """
        if names is None or names:
            self._files.recheck(names)

    def refuse(self, reason: str | None) -> None:
        """Let every later operation fail with that reason; None allows them again.

        An append notices when it has to open its file again, so the check costs nothing otherwise.
        """
        self._refusal = reason
        if reason is not None:
            self._files.release_all()

    def crash_point(self, point: str) -> None:
        """Do nothing: only test directories act here."""


class UnnamedFiles:
    """Files that are kept open while they are removed, so that removing them takes no time.

    The disk frees a file once it has no name and nobody has it open, which takes tens of
    milliseconds for a long file. `free` does that where nobody waits for it. A crash frees the
    files, too.
    """

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __len__(self) -> int:
        return len(self._descriptors)

    def hold(self, name: str, open_file: Callable[[str], int]) -> None:
        """Keep the file `name` open, if `open_file` can open it."""
        with contextlib.suppress(OSError):
            self._descriptors.append(open_file(name))

    def free(self, pause: Callable[[], None]) -> None:
        """Close the files, which may take long; `pause` is called after each."""
        while self._descriptors:
            os.close(self._descriptors.pop())
            pause()

    def __del__(self) -> None:
        self.free(lambda: None)
