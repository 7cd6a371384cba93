"""The watch on the queue path, served like a client: before the turn's replies are sent.

The system tells when the queue path, or a file in it, is removed or replaced: Linux only (inotify).
A look before every acknowledgement would cost as much as the journal's write itself. Elsewhere, and
where the system has no watch left, whoever needs to know looks now and then.
"""

import ctypes
import os
import selectors
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from struct import Struct
from typing import Final

from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError
from kestrelmq.server.turns import TurnConnection, Turns

_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_OVERFLOW: Final = 0x4000
_IN_IT: Final = _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT: Final = Struct("iIII")  # watch, what, cookie, length of the name that follows
_MOST: Final = 1 << 16


class PathWatcher(TurnConnection):
    """Tells of files that were removed or replaced, within the turn in which that is known.

    It watches a queue path, and the directories that it is in for being renamed.
    """

    def __init__(self, turns: Turns, path: Path, changed: Callable[[], None]) -> None:
        """`changed` is called when something happened; it asks `names` what."""
        self._turns = turns
        self._path = path
        self._changed = changed
        self._descriptor: int | None = None

    def open(self) -> bool:
        """Begin; False when the system cannot do that."""
        if not sys.platform.startswith("linux"):
            return False
        library = ctypes.CDLL(None)
        descriptor = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if descriptor < 0:
            return False
        path = self._path.resolve()
        if library.inotify_add_watch(descriptor, os.fsencode(path), _IN_IT) < 0:
            os.close(descriptor)
            return False
        for above in path.parents:
            library.inotify_add_watch(descriptor, os.fsencode(above), _MOVE_SELF)
        self._descriptor = descriptor
        self._turns.add(descriptor, self, selectors.EVENT_READ)
        return True

    def names(self) -> set[str] | None:
        """Return the names of files that were removed, renamed or replaced since the last call.

        There may be none, when the queue path itself was. None stands for any.
        """
        names: set[str] = set()
        if self._descriptor is None:
            return names
        try:
            events = os.read(self._descriptor, _MOST)
        except BlockingIOError:
            return names
        position = 0
        while position < len(events):
            _watch, what, _cookie, length = _EVENT.unpack_from(events, position)
            position += _EVENT.size
            if what & _OVERFLOW:
                return None
            if length:
                names.add(os.fsdecode(events[position : position + length].rstrip(b"\0")))
            position += length
        return names

    def close(self) -> None:
        """End."""
        if self._descriptor is not None:
            self._turns.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def readable(self) -> None:
        """Pass on what happened."""
        self._changed()

    def ready(self, mask: int) -> None:  # noqa: ARG002 # whatever it is
        """Pass on what happened."""
        self._changed()

    def resume(self) -> None:
        """Nothing is left over."""

    def reply(
        self,
        failures: Mapping[Committable, JournalError],
        unsynced: Collection[Committable],
        sync: int,
    ) -> None:
        """Nobody waits for a reply."""

    def synced(self, sync: int, failures: Mapping[Committable, JournalError]) -> None:
        """Nothing waits for a sync."""

    @property
    def is_held(self) -> bool:
        """Nothing waits for a sync."""
        return False
