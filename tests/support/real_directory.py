"""The common part of `CrashingDirectory` and `RecordingDirectory`: a real directory on disk."""

from collections.abc import Collection, Sequence
from pathlib import Path

from kestrelmq.clock import Pause
from kestrelmq.disk.directories import DiskDirectory, DiskFile
from kestrelmq.disk.opening import FoundFile, ReadFile


class SimulatedCrash(BaseException):
    """The simulated end of the process."""


class RealFile:
    """An append file of a `RealDirectory`. Subclasses add `append` and `sync`."""

    def __init__(self, file: DiskFile) -> None:
        self.file = file

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.file.size

    @property
    def is_torn(self) -> bool:
        """Whether nothing can be appended any more, because a failed write had to be cut off."""
        return self.file.is_torn

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end."""
        raise NotImplementedError

    def append_all(self, records: Sequence[bytes], pause: Pause) -> None:  # noqa: ARG002
        """Do what `append` does with all of these."""
        self.append(b"".join(records))

    def cut_failed_write(self) -> None:
        """Make sure that the file ends after the last append that succeeded."""
        self.file.cut_failed_write()

    def renamed(self, name: str) -> None:
        """Take note that the file is called `name` now."""
        self.file.renamed(name)

    def close(self) -> None:
        """Release the file."""
        self.file.close()


class RealDirectory:
    """A `Directory` on disk. Subclasses add the operations that change it.

    Attributes:
        path: where it is.
        disk: the directory on disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = DiskDirectory(path)
        self._opened: list[DiskFile] = []

    def names(self) -> list[str]:
        """Return the names in it, without those of directories."""
        return self.disk.names()

    def open(self, name: str) -> int:
        """Open `name` for reading; return the descriptor."""
        return self.disk.open(name)

    def read(self, name: str, *, appends: bool = False) -> ReadFile:
        """Read or map the whole of `name`; with `appends`, fail unless it can be written, too."""
        return self.disk.read(name, appends=appends)

    def recheck(self, names: Collection[str] | None) -> None:
        """Check that the append files called `names` still exist; None means all append files."""
        self.disk.recheck(names)

    def refuse(self, reason: str | None) -> None:
        """Let every later operation fail with that reason; None allows them again."""
        self.disk.refuse(reason)

    def appended_to(self, name: str, found: FoundFile | None) -> DiskFile:
        """Open `name` for appending; `abandon` closes it at the latest."""
        return self._keep(self.disk.append_to(name, found))

    def created(self, name: str) -> DiskFile:
        """Create `name` as a new file, replacing any old one; `abandon` closes it at the latest."""
        self.disk.remove(name)
        return self._keep(self.disk.create(name))

    def _keep(self, file: DiskFile) -> DiskFile:
        self._opened.append(file)
        return file

    def abandon(self) -> None:
        """Close the files that the ended process had open."""
        while self._opened:
            self._opened.pop().close()
