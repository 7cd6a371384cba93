"""Syncing and renaming by path; once a step returns, a crash leaves it."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kestrelmq.disk.opening import SAFE_FLAGS

_QUEUE_PATH_MODE: Final = 0o750


def sync_path(path: Path) -> None:
    """Force a file, or the names in a directory, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | SAFE_FLAGS)
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


def link_file(old: Path, new: Path) -> bool:
    """Give a file the second name `new`; return False if that is not possible there.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    try:
        os.link(old, new, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links, or another user's file
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what is to be at `path`, which takes its place once it is whole.

    If that fails, `path` is as it was. A pipe or another special file, such as /dev/stdout, is
    written itself.

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
