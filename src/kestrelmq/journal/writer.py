"""The files of one queue: an ordered list of rotated ones, and the current one, which grows.

Invariant: replaying `files` in order gives the queue's state as of the last append that returned.
A crash may leave a record cut short at the end of the current file; loading sets it aside.
"""

from typing import Protocol

from kestrelmq.journal.files import AppendFile, Directory
from kestrelmq.journal.names import parse_name
from kestrelmq.journal.reader import JournalReader


class Journal(Protocol):
    """Where a queue's records go."""

    @property
    def size(self) -> int:
        """Bytes in all files."""

    def append(self, data: bytes) -> None:
        """Write whole records, all or none. Raises OSError."""

    def sync(self) -> None:
        """Force to disk what was appended. Raises OSError."""

    def delete(self) -> None:
        """Remove the queue's files. Raises OSError."""

    def close(self) -> None:
        """Release the files."""


class NoJournal:
    """The journal of a queue that is only held in memory."""

    __slots__ = ()
    size = rewrites = rotations = 0

    def append(self, data: bytes) -> None:
        """Keep nothing."""

    def sync(self) -> None:
        """Nothing to force to disk."""

    def delete(self) -> None:
        """Nothing to remove."""

    def close(self) -> None:
        """Nothing to release."""


class FileJournal:
    """A queue's journal on disk.

    Attributes:
        files: names of the files in replay order; the last is the current one.
        size: bytes in all of them.
        rewrites, rotations: how often it was rewritten and rotated since it was opened.
    """

    __slots__ = ("_current", "_directory", "_queue", "files", "rewrites", "rotations", "size")

    def __init__(self, directory: Directory, queue: str, rotated: dict[str, int]) -> None:
        """`rotated` has the size of each rotated file, in replay order."""
        self._directory = directory
        self._queue = queue
        self._current: AppendFile | None = None
        self.files = [*rotated, queue]
        self.size = sum(rotated.values())
        self.rewrites = self.rotations = 0

    def open(self) -> None:
        """Open the current file, creating it when it is not there. Raises OSError."""
        self._current = self._directory.append_to(self._queue)
        self.size += self._current.size

    def append(self, data: bytes) -> None:
        """Write whole records, all or none. Raises OSError."""
        if self._current is None:
            raise OSError("the journal is closed")
        self._current.append(data)
        self.size += len(data)

    def sync(self) -> None:
        """Force to disk what was appended. Raises OSError."""
        if self._current is not None:
            self._current.sync()

    @property
    def current_size(self) -> int:
        """Bytes in the current file."""
        return self._current.size if self._current is not None else 0

    def reader(self, file: str, position: int) -> JournalReader:
        """Return a reader that stands at `position` in `file`."""
        return JournalReader(self._directory.path, file, position)

    def delete(self) -> None:
        """Remove the queue's files; what was set aside as torn or damaged stays. Raises OSError."""
        self.close()
        # Oldest last: after a crash half-way, what is left replays to no more than was there.
        for name in reversed(self.files):
            self._directory.remove(name)
        self._directory.sync()

    def close(self) -> None:
        """Release the files."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def newest_timestamp(self) -> int:
        """Return the timestamp (ms) of the last rotation, 0 before the first."""
        parsed = parse_name(self.files[-2]) if len(self.files) > 1 else None
        return (parsed.timestamp or 0) if parsed else 0
