"""Refusing changes while the queue path is not the directory that the server locked.

A queue path may be removed or renamed, or another directory may be put in its place, while its
journals are open. What is written then is lost, or goes where no server will look for it. So
nothing is written, and requests get an error, until the same directory is back.
"""

from collections.abc import Collection

from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk.directories import Directory
from kestrelmq.disk.locks import QueuePathLock

log = get_logger(__name__)


class PathGuard:
    """Checks that the queue path is still the directory that was locked.

    Attributes:
        lost: the error message if it is not; None if it is.
        watched: whether `check` is called whenever something happens to the files. If not, each
            call checks all of them.
    """

    def __init__(self, directory: Directory, lock: QueuePathLock) -> None:
        self.lost: str | None = None
        self.watched = False
        self._directory = directory
        self._lock = lock

    def check(self, names: Collection[str] | None = ()) -> bool:
        """Check the queue path; return whether it was lost since the last check.

        Args:
            names: files that may have been removed or replaced; None for all.
        """
        before = self.lost
        if self._lock.is_in_place:
            if before is not None:
                log.warning("the queue path %s is back", self._directory.path)
                self.lost = None
                self._directory.refuse(None)
                names = None
            self._directory.recheck(names if self.watched else None)
            return False
        if before is None:
            self.lost = (
                f"the queue path {self._directory.path}, or its lock, was removed or replaced"
            )
            log.error("%s; nothing is acknowledged until it is back", self.lost)
            self._directory.refuse(self.lost)
        return before is None
