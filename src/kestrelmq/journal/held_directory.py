"""A directory that stays the same one, whatever is put in its place.

Its files are opened by way of its descriptor. So nothing is created in another directory that got
its name, and nothing of that one is read.
"""

import errno
import os
from pathlib import Path
from threading import Lock

from kestrelmq.journal.regular import open_regular


class HeldDirectory:
    """A directory, held by a descriptor from its first use on.

    Attributes:
        path: where it was at that time.
        refusal: why nothing may be done in it now; None when all may.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refusal: str | None = None
        self._descriptor: int | None = None
        self._lock = Lock()

    @property
    def descriptor(self) -> int:
        """Its descriptor. Raises OSError: it cannot be opened, or nothing may be done in it."""
        if self.refusal is not None:
            raise OSError(errno.ESTALE, self.refusal)
        with self._lock:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            return self._descriptor

    def open(self, name: str, flags: int) -> int:
        """Open a regular file in it. Raises OSError."""
        try:
            return open_regular(name, flags, self.descriptor)
        except OSError as error:
            error.filename = str(self.path / name)
            raise

    def is_there(self, name: str, device: int, inode: int) -> bool:
        """Whether the file `name` in it is the one with these numbers."""
        try:
            found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (device, inode)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
