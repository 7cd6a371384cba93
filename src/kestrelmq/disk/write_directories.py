"""Directories of a queue path in which bulk writes collect files until they are committed.

    ~~write-MACHINE-BOOT-PROCESS-STARTED-ID    files of a write
    ~~removed-ID                               a directory that is being deleted

The name contains the process that the write belongs to, so the owner is known as soon as the
directory exists. A write that fails removes its directory. The directory of a killed write is
removed by the next write, if that can tell that the owner has ended. The next server start removes
all of them, whoever the owner is: a write is committed only while no server runs, so one that a
server start interrupts fails and changes nothing. Links are removed and not followed.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk.renaming import rename_durably

WRITE_MARK: Final = "~~write-"
_REMOVED_MARK: Final = "~~removed-"
_NAME: Final = re.compile(
    WRITE_MARK + r"(?P<machine>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-"
    r"(?P<process>[0-9]{1,10})-(?P<started>[0-9]{1,20})-[0-9a-f]{16}"
)
_LONGEST_SILENCE: Final = 24 * 3600
"""Seconds without a change after which a write from another machine counts as ended."""
_STATE, _PARENT, _STARTED = 0, 1, 19
"""Indexes of the fields after the command in `/proc/PID/stat`."""

_log: Final = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WriteOwner:
    """The process that a write belongs to.

    Attributes:
        machine: identifies the machine or container, within which process ids are unique.
        boot: identifies the boot of the machine.
        process: the process id.
        started: when the process was started, in clock ticks since the boot; ids are reused.
    """

    machine: str
    boot: str
    process: int
    started: int

    @classmethod
    def of(cls, process: int) -> Self:
        """Describe a process of this machine; if it does not exist, it never counts as running."""
        machine, boot = _this_machine()
        return cls(machine, boot, process, _started(process) or 0)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.machine == _this_machine()[0]

    def may_run(self) -> bool:
        """Whether the process may be running; True also on another machine or without /proc."""
        machine, boot = _this_machine()
        if self.machine != machine or _started(os.getpid()) is None:
            return True
        return self.boot == boot and _started(self.process) == self.started


def create(path: Path, owner: WriteOwner) -> Path:
    """Create a directory for a write in the queue path `path`. Raises OSError."""
    directory = path / new_name(owner)
    directory.mkdir(mode=0o750)
    return directory


def new_name(owner: WriteOwner) -> str:
    """Return a new name for the directory of a write."""
    place = f"{owner.machine}-{owner.boot}-{owner.process}-{owner.started}"
    return f"{WRITE_MARK}{place}-{uuid4().hex[:16]}"


def owner_in(name: str) -> WriteOwner | None:
    """Return the owner that the name of a directory has; None if it is not from `new_name`."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return WriteOwner(match["machine"], match["boot"], int(match["process"]), int(match["started"]))


def may_go_on(name: str, silence: Callable[[], float]) -> bool:
    """Whether the write may be running whose directory has this name.

    `silence` tells how long nothing in it has changed (seconds): all there is to go by if the
    owner is on another machine.
    """
    owner = owner_in(name)
    if owner is None:
        return False
    if owner.is_here:
        return owner.may_run()
    return silence() < _LONGEST_SILENCE


def remove(directory: Path) -> None:
    """Remove the directory of a write. It is renamed first, so that nothing can be added to it.

    What cannot be removed stays, and is logged.
    """
    removed = directory.with_name(f"{_REMOVED_MARK}{uuid4().hex[:16]}")
    try:
        rename_durably(directory, removed)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s cannot be removed: %s", directory, error)
        return
    _delete(removed)


def remove_abandoned(path: Path, clock: Clock | None = None) -> None:
    """Remove the directories of writes whose owner has ended. For the start of a write."""
    now = (clock or SystemClock()).now()
    _remove_if(path, lambda directory: not _may_go_on(directory, now))


def remove_all(path: Path) -> None:
    """Remove the directories of all writes. For a server that holds the queue path."""
    _remove_if(path, lambda _: True)


def process_above(process: int) -> int | None:
    """Return the id of a process's parent; None if it is unknown."""
    fields = _fields(process)
    return int(fields[_PARENT]) if fields is not None else None


def _remove_if(path: Path, unwanted: Callable[[Path], bool]) -> None:
    names = os.listdir(path) if path.is_dir() else []  # noqa: PTH208 # as below
    marks = (_REMOVED_MARK, WRITE_MARK)
    # A queue path may have very many names, of which these are few: no path object for each.
    for entry in [path / name for name in sorted(names) if name.startswith(marks)]:
        if entry.name.startswith(_REMOVED_MARK):
            _delete(entry)
        elif unwanted(entry):
            _log.info("removing %s: a write left it", entry)
            remove(entry)


def _may_go_on(directory: Path, now: int) -> bool:
    if not directory.is_dir() or directory.is_symlink():
        return False
    return may_go_on(directory.name, lambda: now / 1000 - _last_change(directory))


def _last_change(directory: Path) -> float:
    """Return when the directory or a file in it was last changed (s since the epoch)."""
    times = [directory.lstat().st_mtime]
    with os.scandir(directory) as entries:
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def _delete(path: Path) -> None:
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s cannot be removed: %s", path, error)


def _this_machine() -> tuple[str, str]:
    """Return identifiers of this machine or container, and of its boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = processes = ""
    return _short(f"{os.uname().nodename} {processes}"), _short(boot)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _started(process: int) -> int | None:
    """Return when a process was started (clock ticks); None if it is not running."""
    fields = _fields(process)
    return int(fields[_STARTED]) if fields is not None and fields[_STATE] not in "ZX" else None


def _fields(process: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    # The command, in parentheses, may contain any characters.
    return text.rpartition(")")[2].split()
