"""Deleting queues while all others, and until the last moment the queue itself, go on.

    begin --> replacing --> removing --> over
                  |
                  +--> it failed: the queue stays

`replacing`: a worker puts an empty pack in place of the journal's files. The queue still serves;
    what it writes goes to a file that the pack stands for, too. After a crash it is there as it
    was, or empty; nobody was told yet that it is gone.
`removing`: the queue is gone for everybody, and a new one of its name may begin. A worker removes
    the files. Those who asked are told when that is on disk, too.

An empty queue that nobody asked to delete (`max_queue_age`) must not take along what is added
meanwhile. It is gone from the beginning: its files hold nothing, replaced or not.
"""

from collections.abc import Callable
from functools import partial

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import InlineWorker, Worker
from kestrelmq.errors import JournalError
from kestrelmq.journal.files import UnnamedFiles
from kestrelmq.journal.writer import Removal

Deleted = Callable[[JournalError | None], None]
"""Takes why a queue was not deleted; None when it was."""


class Deletions:
    """The queues of a collection that are being deleted.

    Attributes:
        worker: does what waits for the disk.
    """

    def __init__(self, gone: Callable[[Queue], None], stays: Callable[[Queue], None]) -> None:
        """`gone` is called when a queue is gone, `stays` when it could not be deleted."""
        self.worker: Worker = InlineWorker()
        self._gone = gone
        self._stays = stays
        self._asked: dict[Queue, list[Deleted]] = {}
        self._newest: dict[str, int] = {}

    def __contains__(self, queue: object) -> bool:
        """Whether a queue serves only until its files are replaced."""
        return queue in self._asked

    def newest(self, name: str) -> int:
        """Return the timestamp (ms) up to which files of a queue's name are still to be removed."""
        return self._newest.get(name, 0)

    def begin(
        self, queue: Queue, done: Deleted, worker: Worker | None = None, *, is_empty: bool = False
    ) -> None:
        """Delete a queue.

        Args:
            queue: which.
            done: called in the end; at once if the worker does everything at once.
            worker: in place of the usual one.
            is_empty: whether the queue holds nothing, and is to be gone right now.
        """
        if queue in self._asked:
            self._asked[queue].append(done)
            return
        self._asked[queue] = [done]
        worker = worker or self.worker
        try:
            removal = queue.begin_removal()
        except OSError as error:
            self._failed(queue, error)
            return
        if removal is None or is_empty:
            self._end(queue, removal)
        if removal is None:
            self._tell(queue)
        else:
            worker.run(removal.replace, partial(self._replaced, queue, removal, worker))

    def _replaced(
        self, queue: Queue, removal: Removal, worker: Worker, error: BaseException | None
    ) -> None:
        if error is not None:
            self._failed(queue, error)
            return
        if not queue.is_closed:
            self._end(queue, removal)
        unnamed = UnnamedFiles()
        worker.run(
            partial(removal.remove, unnamed),
            lambda _error: self._removed(queue, removal, unnamed),
        )

    def _removed(self, queue: Queue, removal: Removal, unnamed: UnnamedFiles) -> None:
        if self._newest.get(queue.name) == removal.newest:
            del self._newest[queue.name]
        if unnamed:
            queue.worker.run(unnamed.free, lambda _error: None)
        self._tell(queue)

    def _failed(self, queue: Queue, error: BaseException) -> None:
        failure = queue.removal_failed(error)
        if not queue.is_closed:
            self._stays(queue)
        self._tell(queue, failure)

    def _end(self, queue: Queue, removal: Removal | None) -> None:
        if removal is not None:
            self._newest[queue.name] = removal.newest
        queue.drop()
        self._gone(queue)

    def _tell(self, queue: Queue, failure: JournalError | None = None) -> None:
        for done in self._asked.pop(queue):
            done(failure)
