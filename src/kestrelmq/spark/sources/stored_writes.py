"""Writes to a store: a directory for each, and, in a queue path, whose turn it is to commit.

    ~~write-OWNER/begun         when the write began
    ~~write-OWNER/committing    while it changes queues
    ~~write-OWNER/...           its parts

The directories have the names that `disk.write_directories` gives, so the same rule says which
of them are abandoned, and a server that gets a copy of the queue path removes them. One with files,
but without `begun`, is abandoned, too: a task that ended late has put them there.

A store has no locks. A write that wants to commit puts `committing` into its directory and then
looks for that of others. Of two writes that do so at the same time, at least one finds the other's,
because it looked later than the other one wrote. Whoever finds one removes its own, waits, and
tries again; whoever finds none may go on. So there is never more than one that goes on.

While it goes on, it writes `committing` anew every minute. One that is older than a quarter of an
hour, by the clock of the store, is of a driver that has died, and so is one whose process was on
this machine and has ended: the next write removes its directory. A driver that was only suspended
finds that out before its next step, and stops.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.disk.opening import open_stream
from kestrelmq.disk.write_directories import (
    WRITE_MARK,
    WriteOwner,
    may_go_on,
    new_name,
    owner_in,
    process_above,
)
from kestrelmq.errors import JournalError, QueuePathLocked, StorageError
from kestrelmq.spark.storage import Location, StoredFile

_BEGUN: Final = "begun"
_COMMITTING: Final = "committing"
_PATIENCE: Final = 3600.0
"""Seconds to wait for other commits: they may be large."""
_PIECE: Final = 8 << 20
_PERIOD: Final = 60.0
"""Seconds after which `committing` is written anew."""
_LONGEST_SILENCE: Final = 900.0
"""Seconds after which one that is not written anew counts as a dead driver's."""


def begin(path: Location, owner: WriteOwner) -> Location:
    """Begin a write; return its directory in `path`. Raises StorageError."""
    work = path / new_name(owner)
    (work / _BEGUN).write(b"")
    return work


def check_begun(work: Location) -> None:
    """Check that a write is not over.

    Raises:
        JournalError: its directory is gone.
        StorageError: the store cannot be reached.
    """
    if not (work / _BEGUN).exists():
        raise JournalError(
            f"{work} is gone: the write failed elsewhere, or another one took it for dead"
        )


def remove_abandoned(path: Location, clock: Clock | None = None) -> None:
    """Remove the directories of writes that are over. Raises StorageError."""
    now = (clock or SystemClock()).now()
    for name in _writes(path):
        work = path / name
        owner_may_run = may_go_on(name, lambda work=work: now / 1000 - work.last_change() / 1e9)  # type: ignore[misc]
        if not owner_may_run or _is_over(work):
            work.delete_tree()


def _is_over(work: Location) -> bool:
    """Whether a write has removed its directory, and a task has made another one since."""
    names = [name for name, _ in work.files()]
    return bool(names) and _BEGUN not in names


def _writes(path: Location) -> list[str]:
    found = path.entries(missing_ok=True)
    return [one.name for one in found if one.is_directory and one.name.startswith(WRITE_MARK)]


class CommitTurn:
    """The right to change the queues of a queue path in a store."""

    def __init__(
        self,
        work: Location,
        *,
        patience: float = _PATIENCE,
        pause: Callable[[], None] = lambda: time.sleep(random.uniform(0.1, 1)),  # noqa: S311 # no secret
    ) -> None:
        """Describe it; `acquire` waits for it.

        Args:
            work: the directory of the write.
            patience: seconds to wait for others.
            pause: waits until the next attempt; writes that wait must not keep step.
        """
        self._path = work.parent
        self._work = work
        self._mark = work / _COMMITTING
        self._patience = patience
        self._pause = pause
        self._over = Event()
        self._keeper = Thread(target=self._keep, name="kestrelmq commit", daemon=True)

    def acquire(self) -> None:
        """Wait until no other write commits.

        Raises:
            QueuePathLocked: another one has been committing for too long.
            StorageError: the store cannot be reached.
        """
        deadline = time.monotonic() + self._patience
        while (other := self._other()) is not None:
            if time.monotonic() >= deadline:
                raise QueuePathLocked(
                    f"{self._path} is being written to: if the driver of that write is gone, "
                    f"delete {other}"
                )
            self._pause()
        try:
            self._keeper.start()
        except RuntimeError:  # the system has no room for a thread
            self.release()
            raise

    def check(self) -> None:
        """Check that it is still this write's turn; raises as `check_begun`."""
        check_begun(self._work)

    def release(self) -> None:
        """Let the next write go on. Raises StorageError."""
        self._over.set()
        if self._keeper.is_alive():
            self._keeper.join()
        with contextlib.suppress(FileNotFoundError):
            self._mark.delete()

    def _other(self) -> Location | None:
        """Put the mark; return another write that commits, without the mark then, or None."""
        self._mark.write(b"")
        mine = self._mark.find()
        for name in _writes(self._path):
            if name == self._work.name:
                continue
            other = self._path / name
            found = (other / _COMMITTING).find()
            if found is None:
                continue
            if mine is not None and _is_dead(name, found, mine):
                other.delete_tree()
                continue
            with contextlib.suppress(FileNotFoundError):
                self._mark.delete()
            return other
        return None

    def _keep(self) -> None:
        while not self._over.wait(_PERIOD):
            # If the store does not answer, the age of the mark tells the others how it is.
            with contextlib.suppress(StorageError, JournalError):
                self.check()
                self._mark.write(b"")


def _is_dead(name: str, found: StoredFile, mine: StoredFile) -> bool:
    owner = owner_in(name)
    if owner is None or (owner.is_here and not owner.may_run()):
        return True
    return (mine.changed - found.changed) / 1e9 > _LONGEST_SILENCE


def upload(path: Path, target: Location) -> None:
    """Copy a file to a store. Raises OSError and StorageError."""
    with open_stream(path, "rb") as file:
        target.write_pieces(iter(lambda: file.read(_PIECE), b""))


def driver() -> WriteOwner:
    """Return the process that runs the job: the nearest ancestor that is not a Python worker."""
    process = process_above(os.getpid())
    while process is not None and _is_python(process):
        process = process_above(process)
    return WriteOwner.of(process or os.getppid())


def _is_python(process: int) -> bool:
    try:
        return "python" in Path(f"/proc/{process}/exe").readlink().name
    except OSError:
        return False
