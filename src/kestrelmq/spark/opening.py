"""Open a journal file that was listed, as it was then.

- A rotated file is mapped: nothing shortens it.
- The current file is read instead. A server cuts off what it could not write whole, and a
  process that looks at the part of a mapping that was cut off is killed.

What is read takes as much memory as is read: of a range, only that, and a few bytes at both ends of
the file, which tell whose it is.

A file may have another name by now; it keeps its inode number.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from kestrelmq.errors import JournalError
from kestrelmq.journal.files import open_stream
from kestrelmq.journal.names import parse_name
from kestrelmq.journal.records import Buffer
from kestrelmq.spark.scanning import FileView
from kestrelmq.spark.spool import SpoolFile

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
    """
    size = file.size if end is None else end
    if size == 0:
        return FileView(b"", 0)
    first = max(0, min(file.begin if begin is None else begin, size - ENDS))
    parts = [(0, size)] if first <= ENDS else [(0, ENDS), (first, size)]
    with _opened(file.path, file.inode) as opened:
        if file.is_current:
            return FileView(_read_local(file.path, opened, size, parts), size)
        return FileView(_mapped(file.path, opened, size), size)


def map_view(path: Path) -> FileView:
    """Map a journal file of the file system that nobody changes now. Raises OSError."""
    with open_stream(path, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        return FileView(_mapped(str(path), opened, size) if size else b"", size)


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


def _check_size(path: str, listed: int, found: int) -> None:
    if found < listed:
        raise JournalError(f"{path}: shrank from {listed} to {found} bytes while it was read")


def _packed_away(path: str) -> JournalError:
    return JournalError(f"{path}: was packed away while it was read")


def _opened(path: str, inode: int) -> BinaryIO:
    for name in _names_since(path, inode):
        with contextlib.suppress(FileNotFoundError):
            file = open_stream(name, "rb")
            if os.fstat(file.fileno()).st_ino == inode:
                return file
            file.close()
    raise _packed_away(path)


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
