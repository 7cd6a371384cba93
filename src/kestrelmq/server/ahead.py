"""Large items are written in a thread, and then added, so that other clients need not wait.

Each goes to a file that is not part of its queue's journal yet (`Queue.begin`); adding the item
makes it that. A crash in between leaves the file, which means nothing, and an item that was never
acknowledged.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import Pause, Worker
from kestrelmq.errors import KestrelError

Result = TypeVar("Result")
Outcome = bool | KestrelError
"""Whether an item was stored, or why not."""

log = logging.getLogger(__name__)


class WriteAhead(Generic[Result]):
    """Items on their way to a queue whose `writes_ahead` is true."""

    def __init__(
        self,
        queue: Queue,
        records: Sequence[bytes],
        add: Callable[[Sequence[str]], Result],
        done: Callable[[Result | KestrelError], None],
    ) -> None:
        """Prepare; `start` begins.

        Args:
            queue: where to.
            records: the items as queues hold them.
            add: called in the loop when all are written, with the file of each, to add them
                (`Queue.add_begun`); may raise KestrelError.
            done: called in the loop with what `add` returned, or with what went wrong.
        """
        self._queue = queue
        self._records = records
        self._add = add
        self._done = done
        self._files = [queue.new_file() for _ in records]

    def start(self, worker: Worker) -> None:
        """Write the items, now or later, and have them added then."""
        worker.run(self._write, self._written)

    def _write(self, pause: Pause) -> None:
        for file, record in zip(self._files, self._records, strict=True):
            self._queue.begin(file, record, pause)

    def _written(self, error: BaseException | None) -> None:
        outcome: Result | KestrelError
        if isinstance(error, OSError):
            outcome = self._queue.failed(error)
        elif error is not None:
            log.error("an item for queue %s was not written", self._queue.name, exc_info=error)
            outcome = KestrelError("internal error")
        else:
            try:
                outcome = self._add(self._files)
            except KestrelError as failure:
                outcome = failure
        for file in self._files:
            # One whose item was added has the name of a journal's by now.
            self._queue.forget(file)
        self._done(outcome)


def one_ahead(
    queue: Queue, record: bytes, expiry: int, done: Callable[[Outcome], None]
) -> WriteAhead[bool]:
    """Return a single item on its way, which expires at `expiry` (ms since the epoch, 0: never)."""
    return WriteAhead(
        queue, [record], lambda files: queue.add_begun(record, files[0], expiry), done
    )
