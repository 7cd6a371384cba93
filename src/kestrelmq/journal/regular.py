"""Opening the regular files of a queue path, and nothing else.

No symbolic link is followed, whoever put it there: it could lead anywhere. No pipe is waited for,
and no device is written to. What is created is readable by its owner and group only.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, Literal

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750


def open_regular(path: str | Path, flags: int, dir_fd: int | None = None) -> int:
    """Open a regular file; also as the `opener` of Python's `open`.

    Args:
        path: the file; relative to the directory `dir_fd`, if that is given.
        flags: as for `os.open`.
        dir_fd: see above.

    Raises:
        OSError: it is none, or cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, _MODE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        reason = "it is a symbolic link, which is not followed"
        raise OSError(errno.ELOOP, reason, str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def open_stream(path: str | Path, mode: Literal["rb", "wb", "ab"], buffering: int = -1) -> BinaryIO:
    """Open a regular file as Python's `open` does. Raises OSError."""
    # `Path.open` has no opener.
    return open(path, mode, buffering, opener=open_regular)


def file_names(path: str | Path) -> list[str]:
    """Return the names of all in a directory that is no directory. Raises OSError.

    What is no regular file either is among them: a queue that has such a file is damaged, for it
    cannot be opened. To leave it out would be to lose what it stands for.
    """
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]


def directory_names(path: str | Path) -> list[str]:
    """Return the names of the directories in a directory. Raises OSError."""
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def make_queue_path(path: Path) -> None:
    """Create a queue path, with what is above it, unless it is there. Raises OSError."""
    path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
