"""Open a journal file that was listed, wherever it is, as it was then.

- A rotated file of the file system is mapped: nothing shortens it.
- The current file there is read instead. A server cuts off what it could not write whole, and a
  process that looks at the part of a mapping that was cut off is killed.
- A file of a store is read, because nothing else can be done.

What is read takes as much memory as is read: of a range, only that, and a few bytes at both ends of
the file, which tell whose it is.

A file may have another name by now. In the file system it keeps its inode number. In a store, a
rotated file is added under its own name before the current one is replaced, so a current file that
has changed since it was listed is the same only if there is no newer rotated file; else that is it.
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from kestrelmq.disk.opening import open_stream
from kestrelmq.errors import JournalError
from kestrelmq.format.names import parse_name
from kestrelmq.format.records import Buffer
from kestrelmq.spark.storage.locations import Location
from kestrelmq.spark.storage.scanning import FileView
from kestrelmq.spark.storage.spool import SpoolFile

ENDS: Final = 4096
"""Bytes at the begin and at the end of what is wanted that are always there."""
_PIECE: Final = 16 << 20


def open_view(file: SpoolFile, end: int | None = None, *, begin: int | None = None) -> FileView:
    """Return a view of a journal file as it was when it was listed.

    The file stays mapped, or in memory, until the last array or Arrow buffer over it is gone.

    Args:
        file: the file; a server may have rotated it since.
        end: how many bytes of it to view; by default, `file.size`.
        begin: the bytes before this one are not needed, except the first `ENDS`; neither are those
            between, if that is the end. By default, `file.begin`.

    Raises:
        JournalError: the file is gone, or shorter than when it was listed.
        StorageError: the store cannot be reached, or refuses.
        OSError: it cannot be read, or is no regular file.
    """
    size = file.size if end is None else end
    if size == 0:
        if file.location is None:
            with contextlib.suppress(JournalError):  # an empty one that is gone lacks nothing
                _opened(file.path, file.inode).close()
        return FileView(b"", 0, last=file.last)
    first = max(0, min(file.begin if begin is None else begin, size - ENDS))
    parts = [(0, size)] if first <= ENDS else [(0, ENDS), (first, size)]
    buffer: Buffer
    if file.location is not None:
        buffer = _read_stored(file, file.location, size, parts)
    else:
        with _opened(file.path, file.inode) as opened:
            if file.is_current:
                buffer = _read_local(file.path, opened, size, parts)
            else:
                buffer = _mapped(file.path, opened, size)
    return FileView(buffer, size, last=file.last)


def map_last(path: Path) -> FileView:
    """Map the last file of a journal in the file system, which nobody changes. Raises OSError."""
    with open_stream(path, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        return FileView(_mapped(str(path), opened, size) if size else b"", size, last=True)


def open_copy(file: SpoolFile) -> int:
    """Return a descriptor of a journal file, for reading; of a copy if it is in a store.

    Raises:
        JournalError: the file is gone, or shorter than when it was listed.
        StorageError: the store cannot be reached, or refuses.
        OSError: there is no room for the copy.
    """
    if file.location is None:
        with _opened(file.path, file.inode) as opened:
            return os.dup(opened.fileno())
    with tempfile.TemporaryFile() as copy:
        copy.write(open_view(file, begin=0).buffer)
        copy.seek(0)
        return os.dup(copy.fileno())


def _mapped(path: str, opened: BinaryIO, size: int) -> mmap.mmap:
    _check_size(path, size, os.fstat(opened.fileno()).st_size)
    buffer = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
    buffer.madvise(mmap.MADV_SEQUENTIAL)
    return buffer


def _read_local(path: str, opened: BinaryIO, size: int, parts: list[tuple[int, int]]) -> Buffer:
    # Pages that nothing is written to take no memory.
    buffer = mmap.mmap(-1, size)
    view = memoryview(buffer)
    for begin, end in parts:
        at = begin
        while at < end:
            count = os.preadv(opened.fileno(), [view[at : min(end, at + _PIECE)]], at)
            if not count:
                _check_size(path, size, at)
            at += count
    return buffer


def _read_stored(
    file: SpoolFile, listed: Location, size: int, parts: list[tuple[int, int]]
) -> Buffer:
    buffer = mmap.mmap(-1, size)
    for place in chain((listed,), _stored_since(file, listed)):
        with contextlib.suppress(FileNotFoundError):
            found = place.read_into(memoryview(buffer), parts)
            if place == listed and file.is_current and _is_replaced(file, listed, found):
                continue
            _check_size(file.path, size, found)
            return buffer
    raise packed_away(file.path)


def _is_replaced(file: SpoolFile, listed: Location, size: int) -> bool:
    """Whether what is at the place of a current file is not what was listed, or its longer self."""
    now = listed.find()
    if size == file.size and now is not None and now.changed == file.changed:
        return False
    return bool(_rotated_since(file, listed))


def _stored_since(file: SpoolFile, listed: Location) -> Iterator[Location]:
    """Yield what a file of a store may be called now."""
    name = parse_name(listed.name)
    if name is not None and name.packed:
        yield listed.parent / listed.name.removesuffix(".pack")
    if file.is_current:
        # A queue's files are in order: the first that is newer was the current one.
        yield from _rotated_since(file, listed)[:1]


def _rotated_since(file: SpoolFile, listed: Location) -> list[Location]:
    """Return the files of the queue that were rotated since, in order; no packs.

    Raises:
        JournalError: the newest that there was is gone: a pack replaced it, and later ones with it.
    """
    names = ((parse_name(entry.name), entry.name) for entry in listed.parent.entries())
    rotated = [
        (name.timestamp, written)
        for name, written in names
        if name is not None and name.queue == file.queue and name.timestamp is not None
    ]
    if file.newest and file.newest not in (timestamp for timestamp, _ in rotated):
        raise packed_away(file.path)
    return [
        listed.parent / written
        for timestamp, written in sorted(rotated)
        if timestamp > file.newest and not written.endswith(".pack")
    ]


def _check_size(path: str, listed: int, found: int) -> None:
    if found < listed:
        raise JournalError(f"{path}: shrank from {listed} to {found} bytes while it was read")


def packed_away(path: str) -> JournalError:
    """Return the error for a file that a pack has replaced since it was listed."""
    return JournalError(f"{path}: was packed away while it was read")


def _opened(path: str, inode: int) -> BinaryIO:
    for name in _names_since(path, inode):
        with contextlib.suppress(FileNotFoundError):
            file = open_stream(name, "rb")
            if os.fstat(file.fileno()).st_ino == inode:
                return file
            file.close()
    raise packed_away(path)


def _names_since(path: str, inode: int) -> Iterator[str]:
    """Yield the path at which a file was listed, and then the path to which it was renamed."""
    yield path
    listed = parse_name(Path(path).name)
    if listed is not None and listed.packed:
        yield path.removesuffix(".pack")
    # Only the current file is renamed; the inode number of a deleted file is soon reused.
    if listed is None or listed.timestamp is not None:
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(Path(path).parent) as entries:
        for entry in entries:
            name = parse_name(entry.name) if entry.inode() == inode else None
            if name is not None and name.queue == listed.queue:
                yield entry.path
