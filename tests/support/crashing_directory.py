"""A queue path that crashes at a chosen step, and loses what was not forced to disk.

`CrashingDirectory` does everything in a real directory and counts the steps: every change, and
every point that the code under test names with `crash_point`. At the chosen step it raises
`SimulatedCrash`, which nothing catches by accident. `survive` then writes to another directory what
a machine would find when it starts again:

    KILLED         only the process ended: everything that was written
    POWER_LOST     file contents as of each file's last sync, names as of the directory's last sync
    NAMES_KEPT     file contents as of each file's last sync, but all names: file systems write
                   contents and names in any order

It can also fail instead: `fail` tells at which steps to raise an OSError, before anything is done.
With `tears`, half of the appended bytes are written first.
"""

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from kestrelmq.disk.directories import DiskFile
from kestrelmq.disk.opening import FoundFile
from tests.support.real_directory import RealDirectory, RealFile, SimulatedCrash


class CrashLoss(Enum):
    """How much a crash loses."""

    KILLED = auto()
    POWER_LOST = auto()
    NAMES_KEPT = auto()


@dataclass(slots=True, eq=False)
class _Inode:
    """A file, whatever its name: a link to its bytes, and how many of them are synced."""

    link: Path
    synced: int = 0


class CrashingFile(RealFile):
    """An append file of a `CrashingDirectory`."""

    def __init__(self, directory: "CrashingDirectory", file: DiskFile, inode: _Inode) -> None:
        super().__init__(file)
        self._directory = directory
        self._inode = inode
        self._cut = False

    def append(self, data: bytes) -> None:
        """Write all of `data`; a crash here leaves half of it."""
        try:
            self._directory.step(f"append to {self.file.name}")
        except SimulatedCrash:
            if not self._cut:
                self._cut = True
                self.file.append(data[: len(data) // 2])
            raise
        except OSError:
            if self._directory.tears:
                self._tear(data)
            raise
        self.file.append(data)

    def _tear(self, data: bytes) -> None:
        """Fail, as on a full disk, with half of `data` in the file. Raises OSError."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file.size + len(data) // 2, hard))
        try:
            self.file.append(data)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def sync(self) -> None:
        """Count what was appended as synced."""
        self._directory.step(f"sync {self.file.name}")
        self._inode.synced = self.file.size


class CrashingDirectory(RealDirectory):
    """A `Directory` that crashes or fails on demand.

    Attributes:
        steps: how many steps there were.
        crash_at: the step to crash at, counted from 1; None for never.
        crashed: the name of the step at which it crashed.
        fail: called at each step; returns whether the step should fail with an OSError.
        tears: whether a failing append writes half of its bytes, for the file to cut off.
    """

    def __init__(self, path: Path, links: Path) -> None:
        """Use the directory `path`, and the empty directory `links` for links to all its files.

        The links keep the bytes of files that have lost their names. `links` must be on the same
        file system as `path`.
        """
        super().__init__(path)
        self.steps = 0
        self.crash_at: int | None = None
        self.crashed: str | None = None
        self.fail: Callable[[str], bool] = lambda _point: False
        self.tears = False
        self._links = links
        self._inodes: list[_Inode] = []
        self._names = {name: self._inode(name, whole=True) for name in self.disk.names()}
        self._safe_names = dict(self._names)

    @classmethod
    def within(cls, root: Path) -> "CrashingDirectory":
        """Return the directory `queues` of `root`; both are made if they are not there."""
        for part in ("queues", "links"):
            (root / part).mkdir(parents=True, exist_ok=True)
        return cls(root / "queues", root / "links")

    def break_steps(self, beginning: str = "") -> None:
        """Let the steps that begin so fail, until `mend`."""
        self.fail = lambda point: point.startswith(beginning)

    def mend(self) -> None:
        """Let all steps succeed."""
        self.fail = lambda _point: False

    def step(self, point: str) -> None:
        """Count a step. Raises SimulatedCrash, OSError."""
        if self.crashed is not None:
            raise SimulatedCrash(self.crashed)
        self.steps += 1
        if self.steps == self.crash_at:
            self.crashed = point
            raise SimulatedCrash(point)
        if self.fail(point):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), point)

    def _inode(self, name: str, *, whole: bool = False) -> _Inode:
        inode = _Inode(self._links / str(len(self._inodes)))
        with contextlib.suppress(FileExistsError):  # of another directory of the same path
            os.link(self.path / name, inode.link)
        if whole:
            inode.synced = inode.link.stat().st_size
        self._inodes.append(inode)
        return inode

    def append_to(self, name: str, found: FoundFile | None = None) -> CrashingFile:
        """Open `name` for appending; it is created if it does not exist."""
        self.step(f"open {name}")
        file = self.appended_to(name, found)
        if name not in self._names:
            self._names[name] = self._inode(name)
        return CrashingFile(self, file, self._names[name])

    def create(self, name: str) -> CrashingFile:
        """Open `name`, truncated, to write it once and close it."""
        self.step(f"create {name}")
        file = self.created(name)
        self._names[name] = self._inode(name)
        return CrashingFile(self, file, self._names[name])

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing a file of that name."""
        self.step(f"rename {old}")
        self.disk.rename(old, new)
        self._names[new] = self._names.pop(old)

    def link(self, old: str, new: str) -> None:
        """Give the file `old` the second name `new`."""
        self.step(f"link {old}")
        self.disk.link(old, new)
        self._names[new] = self._names[old]

    def remove(self, name: str) -> None:
        """Delete `name`; no error if it does not exist."""
        self.step(f"remove {name}")
        self.disk.remove(name)
        self._names.pop(name, None)

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and count that as synced."""
        self.step(f"truncate {name}")
        self.disk.truncate(name, size)
        self._names[name].synced = size

    def sync_file(self, name: str) -> None:
        """Count the content of `name` as synced."""
        self.step(f"sync {name}")
        inode = self._names[name]
        inode.synced = inode.link.stat().st_size

    def sync(self) -> None:
        """Count created, renamed and removed names as synced."""
        self.step("sync the directory")
        self._safe_names = dict(self._names)

    def crash_point(self, point: str) -> None:
        """Count a named point as a step that cannot fail."""
        fail, self.fail = self.fail, lambda _point: False
        try:
            self.step(point)
        finally:
            self.fail = fail

    def survive(self, loss: CrashLoss, target: Path) -> None:
        """Write to the new directory `target` what the crash left."""
        target.mkdir()
        names = self._safe_names if loss is CrashLoss.POWER_LOST else self._names
        for name, inode in names.items():
            data = inode.link.read_bytes()
            (target / name).write_bytes(data if loss is CrashLoss.KILLED else data[: inode.synced])
