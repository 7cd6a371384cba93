"""What `CrashingDirectory` and `RecordingDirectory` do not stand between: a directory on disk."""

from collections.abc import Collection
from pathlib import Path

from kestrelmq.journal.files import DiskDirectory, DiskFile


class SimulatedCrash(BaseException):
    """The process ended here."""


class RealFile:
    """An append file of a `RealDirectory`, whose appends and syncs are watched."""

    def __init__(self, file: DiskFile) -> None:
        self.file = file

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.file.size

    @property
    def is_torn(self) -> bool:
        """Whether nothing can be appended any more, because a failed write left something."""
        return self.file.is_torn

    def settle(self) -> None:
        """Make sure that the file ends after the last append that succeeded."""
        self.file.settle()

    def renamed(self, name: str) -> None:
        """Tell that the file is called `name` now."""
        self.file.renamed(name)

    def close(self) -> None:
        """Release the file."""
        self.file.close()


class RealDirectory:
    """A `Directory` whose changes are watched; it is read as it is.

    Attributes:
        path: where it is.
        disk: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = DiskDirectory(path)
        self._opened: list[DiskFile] = []

    def names(self) -> list[str]:
        """Return the names of all in it that is no directory."""
        return self.disk.names()

    def open(self, name: str) -> int:
        """Open `name` to read it; return the descriptor."""
        return self.disk.open(name)

    def recheck(self, names: Collection[str] | None) -> None:
        """See whether files that are appended to are still there; None means all."""
        self.disk.recheck(names)

    def refuse(self, reason: str | None) -> None:
        """Let every step fail from now on, for that reason; None ends that."""
        self.disk.refuse(reason)

    def appended_to(self, name: str) -> DiskFile:
        """Open `name` for appending, to be closed by `abandon` at the latest."""
        return self._keep(self.disk.append_to(name))

    def created(self, name: str) -> DiskFile:
        """Open `name`, empty: a new file, whatever had that name; otherwise as `appended_to`."""
        self.disk.remove(name)
        return self._keep(self.disk.create(name))

    def _keep(self, file: DiskFile) -> DiskFile:
        self._opened.append(file)
        return file

    def abandon(self) -> None:
        """Release the files that a process which is gone had open."""
        while self._opened:
            self._opened.pop().close()
