"""The watch on the queue path, served like a client: before the turn's replies are sent."""

import selectors
from collections.abc import Callable, Collection, Mapping

from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError
from kestrelmq.journal.path_watch import PathWatch
from kestrelmq.server.turns import TurnConnection, Turns


class PathWatcher(TurnConnection):
    """Tells of files that were removed or replaced, within the turn in which that is known."""

    def __init__(self, turns: Turns, watch: PathWatch, changed: Callable[[], None]) -> None:
        """`changed` is called when something happened; it asks `watch` what."""
        self._turns = turns
        self._watch = watch
        self._changed = changed
        self._descriptor: int | None = None

    def open(self) -> bool:
        """Begin; False when the system cannot do that."""
        self._descriptor = self._watch.open()
        if self._descriptor is None:
            return False
        self._turns.add(self._descriptor, self, selectors.EVENT_READ)
        return True

    def close(self) -> None:
        """End."""
        if self._descriptor is not None:
            self._turns.discard(self._descriptor)
            self._descriptor = None
            self._watch.close()

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
