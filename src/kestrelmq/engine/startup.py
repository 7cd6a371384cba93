"""Loading the queues of a collection in a thread, so that loaded queues can serve meanwhile.

Queues are loaded one after the other, the short ones first. A stop in the middle leaves every
journal intact: loading changes files in crash-safe steps only.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from kestrelmq.clock import Clock, Pause
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import Worker
from kestrelmq.errors import QueueUnavailable
from kestrelmq.journal.names import QueueFiles

_PIECE: Final = 250e-6
"""Seconds of work between pauses while others serve; shorter pieces would mean mostly pauses."""

_AHEAD: Final = 8
"""Queues that the worker is given at a time, so that it need not wait for the next one."""

log = logging.getLogger(__name__)


class _Stopped(Exception):  # noqa: N818 # says what it is
    """The server is stopping."""


class StartUp:
    """Loads the queues of a collection.

    Attributes:
        gently: whether to pause regularly, because clients are served meanwhile.
    """

    def __init__(
        self,
        collection: QueueCollection,
        worker: Worker,
        clock: Clock,
        done: Callable[[], object],
    ) -> None:
        """Prepare.

        Args:
            collection: what to load.
            worker: where to load; only the owner's thread uses the collection itself.
            clock: tells the time.
            done: called in the owner's thread once every queue is loaded, or damaged.
        """
        self.gently = False
        self._collection = collection
        self._worker = worker
        self._clock = clock
        self._done = done
        self._left = 0
        self._waiting: deque[QueueFiles] = deque()
        self._stopped = False

    def begin(self) -> None:
        """Take the queue path and begin to load.

        Raises:
            QueuePathLocked: another server uses it.
            OSError: it cannot be created or read.
        """
        queues = self._collection.take_path()
        self._left = len(queues)
        if not queues:
            self._done()
        self._waiting.extend(queues)
        for _ in range(_AHEAD):
            self._load_next()

    def _load_next(self) -> None:
        """Give the worker the next queue.

        It has a few at a time: with very many, handing them all over would keep the owner's thread
        from serving the first.
        """
        if self._waiting:
            queue_files = self._waiting.popleft()
            found: list[Queue | QueueUnavailable] = []
            self._worker.run(
                partial(self._load, queue_files, found),
                partial(self._loaded, queue_files.queue, found),
            )

    def stop(self) -> None:
        """Stop loading, and wait until it has stopped."""
        self._stopped = True
        self._worker.close()

    # --- in the thread ---

    def _load(
        self, queue_files: QueueFiles, found: list[Queue | QueueUnavailable], pause: Pause
    ) -> None:
        worked_from = self._clock.monotonic()

        def pace() -> bool:
            nonlocal worked_from
            if self._stopped:
                raise _Stopped
            if self.gently and self._clock.monotonic() - worked_from > _PIECE:
                pause()
                worked_from = self._clock.monotonic()
            return self.gently

        found.append(self._collection.load(queue_files, pace))

    # --- in the owner's thread ---

    def _loaded(
        self, name: str, found: list[Queue | QueueUnavailable], error: BaseException | None
    ) -> None:
        if self._stopped:
            for one in found:
                if isinstance(one, Queue):
                    one.close()
            return
        if error is not None:
            log.error("queue %s cannot be loaded", name, exc_info=error)
            found.append(QueueUnavailable(f"queue {name} cannot be loaded: {error!r}"))
        try:
            self._collection.add_loaded(name, found[0])
        except Exception as failure:
            log.exception("queue %s cannot be loaded", name)
            broken = QueueUnavailable(f"queue {name} cannot be loaded: {failure!r}")
            self._collection.add_loaded(name, broken)
        self._left -= 1
        self._load_next()
        if not self._left:
            self._done()
