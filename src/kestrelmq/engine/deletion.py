"""Deleting queues while all others are served, and until the last moment the queue itself.

    begin --> replacing --> removing --> over
                  |
                  +--> it failed: the queue stays

`replacing`: a worker puts an empty pack in the place of the journal's files. The queue still
    serves; what it writes goes to a file that the pack replaces as well. After a crash, the queue
    is as it was, or empty; nobody was told yet that it is deleted.
`removing`: the queue is gone for all clients, and a new one of its name may be created. A worker
    removes the files. Once that is on disk, and what clients had set for the queue is forgotten
    there, too, the clients that asked for the deletion are told.

A deletion that no client asked for (`max_queue_age`) must not lose items that are added meanwhile.
So such a queue, which is empty, is gone at once: its files hold nothing, replaced or not.
"""

from collections.abc import Callable, Generator
from functools import partial

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.registry import SaveDone
from kestrelmq.engine.worker import InlineWorker, Job, Worker
from kestrelmq.errors import JournalError
from kestrelmq.journal.files import UnnamedFiles
from kestrelmq.journal.writer import JournalRemoval

DeletionDone = Callable[[JournalError | None], None]
"""Called with the reason why a queue was not deleted; with None if it was deleted."""
_Deletion = Generator[Job, BaseException | None, JournalError | None]
"""Yields jobs for a worker, is sent their exceptions, and returns why the queue was not deleted."""


class Deletions:
    """The queues of a collection that are being deleted.

    Attributes:
        worker: runs the steps that wait for the disk.
    """

    def __init__(
        self,
        gone: Callable[[Queue], None],
        stays: Callable[[Queue], None],
        save: Callable[[SaveDone], None],
    ) -> None:
        """Start with none.

        Args:
            gone: called with a deleted queue, once no client can use it.
            stays: called with a queue that could not be deleted.
            save: saves what is left of what clients have set for queues.
        """
        self.worker: Worker = InlineWorker()
        self._gone = gone
        self._stays = stays
        self._save = save
        self._callbacks: dict[Queue, list[DeletionDone]] = {}
        self._newest: dict[str, int] = {}

    def __contains__(self, queue: object) -> bool:
        """Whether a queue is being deleted, so that it serves only until its files are replaced."""
        return queue in self._callbacks

    def newest(self, name: str) -> int:
        """Return the timestamp (ms) up to which files with a queue's name are being removed."""
        return self._newest.get(name, 0)

    def begin(
        self,
        queue: Queue,
        done: DeletionDone,
        worker: Worker | None = None,
        *,
        is_empty: bool = False,
    ) -> None:
        """Delete a queue.

        Args:
            queue: the queue to delete.
            done: called at the end; before this returns if the worker runs jobs at once.
            worker: used instead of `self.worker`.
            is_empty: whether the queue is empty and must be gone at once.
        """
        if queue in self._callbacks:
            self._callbacks[queue].append(done)
            return
        self._callbacks[queue] = [done]
        deletion = self._deletion(queue, is_empty=is_empty)
        self._proceed(queue, deletion, worker or self.worker, None)

    def _proceed(
        self, queue: Queue, deletion: _Deletion, worker: Worker, error: BaseException | None
    ) -> None:
        """Do what follows a job that raised `error`, or None; at the end, call the callbacks."""
        try:
            job = deletion.send(error)
        except StopIteration as end:
            if end.value is None:
                self._save(partial(self._report, queue))
            else:
                self._report(queue, end.value)
            return
        worker.run(job, partial(self._proceed, queue, deletion, worker))

    def _report(self, queue: Queue, failure: JournalError | None) -> None:
        for done in self._callbacks.pop(queue):
            done(failure)

    def _deletion(self, queue: Queue, *, is_empty: bool) -> _Deletion:
        """Delete a queue; return the reason if it was not deleted.

        Yields:
            The jobs for the worker, each for its exception, or None.
        """
        try:
            removal = queue.begin_removal()
        except OSError as error:
            return self._failed(queue, error)
        if removal is None or is_empty:
            self._end(queue, removal)
        if removal is None:
            return None
        failure = yield removal.replace
        if failure is not None:
            return self._failed(queue, failure)
        if not queue.is_closed:
            self._end(queue, removal)
        unnamed = UnnamedFiles()
        yield partial(removal.remove, unnamed)  # it logs what it could not remove
        if self._newest.get(queue.name) == removal.newest:
            del self._newest[queue.name]
        if unnamed:
            queue.worker.run(unnamed.free, lambda _error: None)
        return None

    def _end(self, queue: Queue, removal: JournalRemoval | None) -> None:
        if removal is not None:
            self._newest[queue.name] = removal.newest
        queue.drop()
        self._gone(queue)

    def _failed(self, queue: Queue, error: BaseException) -> JournalError:
        failure = queue.removal_failed(error)
        if not queue.is_closed:
            self._stays(queue)
        return failure
