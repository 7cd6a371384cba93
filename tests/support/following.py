"""Whoever follows journals by their length, as Spark and backups do."""

import os
from pathlib import Path


class Follower:
    """Reads the files of a directory as they grow, and must never find other bytes.

    A file is known by its number in the file system, which it keeps when it is renamed; a copy
    under another name keeps the number from being used again.
    """

    def __init__(self, path: Path, links: Path) -> None:
        """Follow the files in `path`; `links` is an empty directory beside it."""
        self._path = path
        self._links = links
        self._read: dict[int, bytes] = {}

    def look(self, *, torn: int = 0) -> None:
        """Read what is new; what was read before must be as it was, or be gone.

        `torn` bytes at the end of a file may be unread, as of a record that is not whole yet.
        """
        for file in self._path.iterdir():
            inode = file.stat().st_ino
            if inode not in self._read:
                os.link(file, self._links / str(inode))
            found = file.read_bytes()
            before = self._read.get(inode, b"")
            assert before.startswith(found[: len(before)]), f"{file.name} was written over"
            if len(found) < len(before):
                found = before
            self._read[inode] = found[: len(found) - torn] if torn else found
