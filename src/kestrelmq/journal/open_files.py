"""Which journals hold a file descriptor, when there are more journals than descriptors to have."""

import resource
from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kestrelmq.journal.files import DiskFile

MAX_OPEN: Final = 1024
"""Append files that keep their descriptor; the journals of other queues open theirs when needed.

Never more than half of what the process may have: clients, and reading, need some too.
"""


class OpenFiles:
    """Which append files hold a descriptor: at most so many, those in use rather than others.

    Files are counted in by the one thread that appends to them, and so none loses its descriptor
    between two steps of an append. They may be counted out by any thread.
    """

    __slots__ = ("_files", "_limit", "_lock")

    def __init__(self, limit: int = MAX_OPEN) -> None:
        self._limit = limit
        self._files: OrderedDict[DiskFile, None] = OrderedDict()
        self._lock = Lock()

    def opened(self, file: "DiskFile") -> None:
        """Count `file` in; one that was not used of late may have to give its descriptor up."""
        with self._lock:
            self._files[file] = None
            tries = 2 * len(self._files)
            most = self._most()
            while len(self._files) > most and tries:
                tries -= 1
                oldest, _ = self._files.popitem(last=False)
                if oldest is file or oldest.used or not oldest.release():
                    oldest.used = False
                    self._files[oldest] = None

    def make_room(self) -> bool:
        """Have one file give its descriptor up; False when none can."""
        with self._lock:
            for file in self._files:
                if file.release():
                    del self._files[file]
                    return True
        return False

    def recheck(self, names: Collection[str] | None) -> None:
        """Take the descriptor of each file that is not there any more, or is another; None: all.

        Only files that are called one of `names` are looked at.
        """
        with self._lock:
            files = [one for one in self._files if names is None or one.path.name in names]
        self._take([file for file in files if not file.is_there])

    def release_all(self) -> None:
        """Take every descriptor."""
        with self._lock:
            files = list(self._files)
        self._take(files)

    def _take(self, files: "list[DiskFile]") -> None:
        for file in files:
            # Not under the lock: a sync that is waited for may have to make room for itself.
            file.release(wait=True)
            self.closed(file)

    def _most(self) -> int:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self._limit if allowed == resource.RLIM_INFINITY else min(self._limit, allowed // 2)

    def closed(self, file: "DiskFile") -> None:
        """Count `file` out."""
        with self._lock:
            self._files.pop(file, None)
