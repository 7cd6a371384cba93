"""Large items are written in a thread, and then added, so that other clients need not wait.

Each goes to a file that is not part of its queue's journal yet (`Queue.begin`); adding the item
makes it that. A crash in between leaves the file, which means nothing, and an item that was never
acknowledged.
"""

import logging
from collections.abc import Callable

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import Pause, Worker
from kestrelmq.errors import KestrelError

Outcome = bool | KestrelError
"""Whether the item was stored, or why not."""

log = logging.getLogger(__name__)


class WriteAhead:
    """An item on its way to a queue whose `writes_ahead` is true."""

    def __init__(
        self, queue: Queue, record: bytes, expiry: int, done: Callable[[Outcome], None]
    ) -> None:
        """Prepare; `start` begins.

        Args:
            queue: where to.
            record: the item as queues hold it.
            expiry: when it expires (ms since the epoch), 0 for never.
            done: called in the loop.
        """
        self._queue = queue
        self._record = record
        self._expiry = expiry
        self._done = done
        self._file = queue.new_file()

    def start(self, worker: Worker) -> None:
        """Write the item, now or later, and add it then."""
        worker.run(self._write, self._written)

    def _write(self, pause: Pause) -> None:
        self._queue.begin(self._file, self._record, pause)

    def _written(self, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self._done(self._queue.failed(error))
        elif error is not None:
            log.error("an item for queue %s was not written", self._queue.name, exc_info=error)
            self._done(KestrelError("internal error"))
        else:
            self._done(self._add())

    def _add(self) -> Outcome:
        queue = self._queue
        outcome: Outcome
        try:
            outcome = queue.add_begun(self._record, self._file, self._expiry)
        except KestrelError as error:
            outcome = error
        if outcome is not True:
            queue.forget(self._file)
        return outcome
