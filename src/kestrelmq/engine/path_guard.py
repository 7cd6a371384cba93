"""Stopping what changes queues as soon as the queue path is not the one that was taken.

A queue path may be removed, renamed, or have another directory put in its place while its journals
are open. What is written then is nowhere, or where no server will look for it. So nothing is
written, and what was asked for is an error, until the same directory is back.
"""

import logging
from collections.abc import Collection
from typing import Protocol

from kestrelmq.journal.files import Directory

log = logging.getLogger(__name__)


class Lock(Protocol):
    """What holds a queue path."""

    @property
    def is_in_place(self) -> bool:
        """Whether the queue path is the one that was taken."""


class PathGuard:
    """Knows whether the queue path is the one that was taken.

    Attributes:
        lost: what is wrong, when it is not; None when it is.
        watched: whether `check` is called whenever something happens to the files; otherwise each
            call looks at all of them.
    """

    def __init__(self, directory: Directory, lock: Lock) -> None:
        self.lost: str | None = None
        self.watched = False
        self._directory = directory
        self._lock = lock

    def check(self, names: Collection[str] | None = ()) -> bool:
        """Look; return whether it was lost since the last time.

        Args:
            names: files that may have been removed or replaced; None for any.
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
