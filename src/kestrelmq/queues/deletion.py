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
from typing import Final

from kestrelmq.clock import Pause
from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk.directories import UnnamedFiles
from kestrelmq.errors import JournalError
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.registry import SaveDone
from kestrelmq.scheduling.worker import InlineWorker, Job, Worker

DeletionDone = Callable[[JournalError | None], None]
"""Called with the reason why a queue was not deleted; with None if it was deleted."""
Steps = Generator[Job, BaseException | None, JournalError | None]
"""A deletion. It yields jobs, and is sent what each raised, or None; returns why it failed."""

_TOLD_AT_ONCE: Final = 300
"""How many readers that wait for a deleted queue are told in one turn."""

log = get_logger(__name__)


class Deletions:
    """Deletes the queues of a collection.

    Attributes:
        worker: does what waits for the disk.
    """

    def __init__(self, gone: Callable[[Queue], None], save: Callable[[SaveDone], None]) -> None:
        """Start with none.

        Args:
            gone: called with a deleted queue, to close it; then no client can use it.
            save: saves what is left of what clients have set for queues.
        """
        self.worker: Worker = InlineWorker()
        self._gone = gone
        self._save = save
        self._newest: dict[str, int] = {}
        # Who waits for the end of the deletion of each queue.
        self._waiting: dict[Queue, list[DeletionDone]] = {}

    def __contains__(self, queue: Queue) -> bool:
        """Whether a queue is being deleted."""
        return queue in self._waiting

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
        """Delete a queue; if it is being deleted already, only tell how that ends.

        Args:
            queue: the queue to delete.
            done: called at the end; before this returns if the worker runs jobs at once.
            worker: used instead of `self.worker`.
            is_empty: whether the queue is empty and must be gone at once.
        """
        if queue in self._waiting:
            self._waiting[queue].append(done)
            return
        self._waiting[queue] = [done]
        self._proceed(queue, self._steps(queue, is_empty=is_empty), worker or self.worker, None)

    def _proceed(
        self, queue: Queue, steps: Steps, worker: Worker, error: BaseException | None
    ) -> None:
        """Go on after a job that ended with `error`, and begin the next one."""
        try:
            job = steps.send(error)
        except StopIteration as end:
            failure: JournalError | None = end.value
        except Exception as bug:
            log.exception("queue %s was not deleted", queue.name, extra={"queue": queue.name})
            failure = JournalError(f"queue {queue.name} was not deleted: {bug!r}")
        else:
            worker.run(job, partial(self._proceed, queue, steps, worker))
            return
        for done in self._waiting.pop(queue):
            if failure is None:
                self._save(done)
            else:
                done(JournalError(str(failure)))  # a new error for each

    def _steps(self, queue: Queue, *, is_empty: bool) -> Steps:
        """Delete a queue, unless it is closed."""
        if queue.state.is_closed:
            return None
        try:
            removal = queue.begin_removal()
        except OSError as error:
            return queue.removal_failed(error)
        if removal is None:
            yield from self._close(queue)
            return None
        self._newest[queue.name] = removal.newest
        if is_empty:
            yield from self._close(queue)
        failure = yield removal.replace
        if failure is None:
            if not queue.state.is_closed:
                yield from self._close(queue)
            unnamed = UnnamedFiles()
            yield partial(removal.remove, unnamed)  # it logs what it could not remove
            if unnamed:
                queue.state.commits.worker.run(unnamed.free, lambda _error: None)
        if self._newest.get(queue.name) == removal.newest:
            del self._newest[queue.name]
        return None if failure is None else queue.removal_failed(failure)

    def _close(self, queue: Queue) -> Generator[Job, object, None]:
        """Close a deleted queue, and tell the readers that wait, of whom there may be thousands."""
        self._gone(queue)
        while queue.waiters.tell_closed(_TOLD_AT_ONCE):
            yield _let_others_run


def _let_others_run(pause: Pause) -> None:
    """Do nothing: a job between two steps, so that they do not hold up others."""
    pause()
