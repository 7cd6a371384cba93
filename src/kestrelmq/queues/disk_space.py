"""How much room there is on the disk of the queue path."""

import os
from contextlib import suppress
from pathlib import Path


class DiskSpace:
    """The size of the disk and what is free on it, as last read.

    Attributes:
        free: bytes that the server may still write.
        total: bytes of the whole disk.
    """

    __slots__ = ("_path", "free", "total")

    def __init__(self, path: Path) -> None:
        """Describe the disk of `path`; nothing is read yet."""
        self.free = self.total = 0
        self._path = path

    def read(self) -> None:
        """Read the numbers; they stay as they are if the path is gone.

        This may take long if the disk is on another machine.
        """
        with suppress(OSError):
            found = os.statvfs(self._path)
            self.free = found.f_bavail * found.f_frsize
            self.total = found.f_blocks * found.f_frsize
