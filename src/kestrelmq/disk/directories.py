"""The queue path, and the files in it that are written: appended to, or once as a whole.

Every durable change of a queue path goes through a `Directory`, so that a test can intercept it.
Rules:

- An append happens completely or not at all: what a failed write left is cut off again, at the
  latest before the next append. Nothing more is appended to a file that was cut: a program that
  follows it by its length may have read the bytes that were cut, and must not find others there.
- To replace a file: write a temporary, sync it, rename it, sync the directory.
- `crash_point` names the steps in between; crash tests stop there.
- If another directory takes the queue path's place, nothing is done in it. If another file takes
  the place of one that is being written, nothing is done to it.
"""

import contextlib
import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Protocol, Self

from kestrelmq.clock import Pause
from kestrelmq.disk.opening import (
    NOT_FOUND,
    FoundFile,
    ReadFile,
    file_names,
    mapped,
    open_with_status,
    read_opened,
)
from kestrelmq.format.names import TEMPORARY_MARK

MAX_OPEN: Final = 1024
"""Most append files that keep a descriptor; the journals of other queues open theirs when needed.

The limit is never more than half of the process's descriptors: clients and readers need some too.
"""
_APPEND_FLAGS: Final = os.O_WRONLY | os.O_APPEND
_PIECE: Final = 1 << 20
_SHORT_PIECE: Final = 128 << 10
"""Bytes that are written in a small fraction of a millisecond."""
_CHANGED: Final = "the file was changed by another program"
_REPLACED: Final = "the file was replaced by another program"


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

    def append_all(self, records: Sequence[bytes], pause: Pause) -> None:
        """Append all of these as `append` does, in any thread, while nothing else appends.

        `pause` is called after each short piece.
        """

    def cut_failed_write(self) -> None:
        """Make sure that the file ends after the last append that succeeded. Raises OSError."""

    def sync(self) -> None:
        """Force to disk what was appended; from any thread. Raises OSError."""

    def renamed(self, name: str) -> None:
        """Follow a rename: the file is now called `name`."""

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
        found: FoundFile = NOT_FOUND,
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
        self._use(descriptor)
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

    def _use(self, descriptor: int) -> None:
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

    def append_all(self, records: Sequence[bytes], pause: Pause) -> None:
        """Append all of these as `append` does, in any thread, while nothing else appends."""
        with self._lock:
            own = self._descriptor is None
            descriptor = self._open_same(_APPEND_FLAGS)[0] if own else self._descriptor
            assert descriptor is not None  # noqa: S101 # one of both
            if self._dirty or self.is_torn:
                self._refuse(descriptor)
            try:
                for record in records:
                    _write_slowly(descriptor, record, pause)
            except BaseException:
                self._dirty = True
                with contextlib.suppress(OSError):
                    self._cut(descriptor)
                raise
            finally:
                if own:
                    _close(descriptor)
        self.size += sum(map(len, records))
        if self._ended:
            self.release()

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
        self._use(descriptor)
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
        """Follow a rename: the file is now called `name`."""
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
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                _close(descriptor)
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
        return read_opened(descriptor, status)

    def open_file(self, name: str, flags: int) -> tuple[int, os.stat_result]:
        """Open a regular file in it; return the descriptor, and the file's status.

        `flags` as for `os.open`. Raises OSError.
        """
        try:
            return open_with_status(name, flags, self._descriptor)
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

    def keep_open(self, name: str, open_file: Callable[[str], int]) -> None:
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


class FileWriter:
    """Writes a new file, about 1 MiB at a time.

    Attributes:
        name: its name.
        size: bytes in it, including those that are still to be written.
    """

    def __init__(self, directory: Directory, name: str, *, one_of_many: bool = False) -> None:
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


def _close(descriptor: int) -> None:
    """Close a file to which all was written. If the disk could not take that, a sync tells."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _write_slowly(descriptor: int, data: bytes, pause: Pause) -> None:
    """Write all of `data`, which is not copied; `pause` after each piece. Raises OSError."""
    rest = memoryview(data)
    while rest:
        # Not in the index: compiled, what is in that of a memoryview is called twice.
        written = os.write(descriptor, rest[:_SHORT_PIECE])
        rest = rest[written:]
        if rest:
            pause()


def write_file(directory: Directory, name: str, pieces: Iterable[bytes]) -> int:
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


def replace_file(directory: Directory, name: str, content: bytes) -> None:
    """Replace the content of `name`; a crash leaves the old content or the new. Raises OSError."""
    temporary = f"{name}{TEMPORARY_MARK}new"
    write_file(directory, temporary, (content,))
    directory.rename(temporary, name)
    directory.sync()
