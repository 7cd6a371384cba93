"""Watches the queue path for removed or replaced files; served like a client connection.

So a removal is noticed before the replies of the same turn are sent. The events come from the
system (inotify, so Linux only), because checking the directory before each acknowledgement would
cost as much as writing the journal. On other systems, or when no inotify watch is left, the queue
path is checked from time to time instead.
"""

import ctypes
import os
import selectors
import sys
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

from kestrelmq.server.loop.turns import TurnConnection, TurnLoop

_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_OVERFLOW: Final = 0x4000
_WATCHED_EVENTS: Final = _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT: Final = Struct("iIII")  # watch, what, cookie, length of the name that follows
_READ_SIZE: Final = 1 << 16


class PathWatcher(TurnConnection):
    """Reports files that were removed or replaced, in the turn in which the event arrives.

    It watches the queue path, and also its parent directories, for being renamed.
    """

    def __init__(
        self, turns: TurnLoop, path: Path, changed: Callable[[set[str] | None], None]
    ) -> None:
        """Prepare; `changed` is called at each event, with what `_changed_names` returns."""
        self._turns = turns
        self._path = path
        self._changed = changed
        self._descriptor: int | None = None

    def open(self) -> bool:
        """Begin to watch; return False when the system does not support it."""
        if not sys.platform.startswith("linux"):
            return False
        library = ctypes.CDLL(None)
        descriptor = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if descriptor < 0:
            return False
        path = self._path.resolve()
        if library.inotify_add_watch(descriptor, os.fsencode(path), _WATCHED_EVENTS) < 0:
            os.close(descriptor)
            return False
        for above in path.parents:
            library.inotify_add_watch(descriptor, os.fsencode(above), _MOVE_SELF)
        self._descriptor = descriptor
        self._turns.add(descriptor, self, selectors.EVENT_READ)
        return True

    def _changed_names(self) -> set[str] | None:
        """Return the names of the files removed, renamed or replaced since the last call.

        The set is empty if only the queue path itself was. None means that it may be any files,
        because events were lost.
        """
        names: set[str] = set()
        if self._descriptor is None:
            return names
        try:
            events = os.read(self._descriptor, _READ_SIZE)
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
        """Stop watching."""
        if self._descriptor is not None:
            self._turns.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def on_input(self) -> None:
        """Report what has changed."""
        self._changed(self._changed_names())
