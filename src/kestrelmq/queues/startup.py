"""Loading the queues of a collection in a thread, so that loaded queues can serve meanwhile.

Queues are loaded one after the other, the short ones first. The thread hands over what it has
loaded every few milliseconds, many queues at a time if they are short. A stop in the middle leaves
every journal intact: loading changes files in crash-safe steps only.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from kestrelmq.clock import Clock, Pause
from kestrelmq.deferred_logs import get_logger
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.names import QueueFiles
from kestrelmq.journal.loading import Pace
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.worker import Worker

_PIECE: Final = 250e-6
"""Seconds of work between pauses while others serve; shorter pieces would mean mostly pauses."""

_QUIET: Final = 20e-3
"""Seconds without an event of a client after which there are no more such pauses: each of them
makes loading slower by more than it takes."""
_KEPT: Final = 5e-3
"""Seconds after which the thread hands over what it has loaded."""
_MOST_KEPT: Final = 50
"""Most queues that it hands over at once: letting them in holds up all others."""
_AT_ONCE: Final = 1000
"""Queues that are loaded by one job."""

log = get_logger(__name__)

_Loaded = list[tuple[str, Queue | QueueUnavailable]]


class _Stopped(Exception):  # noqa: N818 # says what it is
    """The server is stopping."""


def _no_event() -> int:
    """Return the number of events from clients: none, because nobody is served."""
    return 0


class StartUp:
    """Loads the queues of a collection.

    Attributes:
        gently: whether to pause regularly while clients are busy, because they are served.
    """

    def __init__(
        self,
        collection: QueueCollection,
        worker: Worker,
        clock: Clock,
        done: Callable[[], object],
        *,
        events: Callable[[], int] = _no_event,
        at_once: int = _AT_ONCE,
    ) -> None:
        """Prepare.

        Args:
            collection: what to load.
            worker: where to load; only the owner's thread uses the collection itself.
            clock: tells the time.
            done: called in the owner's thread once every queue is loaded, or damaged.
            events: returns how many events of clients there were so far; from any thread.
            at_once: how many queues one job of the worker loads.
        """
        self.gently = False
        self._collection = collection
        self._worker = worker
        self._clock = clock
        self._done = done
        self._events = events
        self._at_once = at_once
        self._left = 0
        self._waiting: deque[QueueFiles] = deque()
        self._is_in_order = False
        self._stopped = False
        # What the thread has loaded and not handed over yet, and when it last did that.
        self._kept: _Loaded = []
        self._handed_over_at = clock.monotonic()

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
        self._load_next()

    def _load_next(self) -> None:
        if self._waiting:
            self._worker.run(self._load_some, self._job_is_over)

    def stop(self) -> None:
        """Stop loading, and wait until it has stopped."""
        self._stopped = True
        self._worker.close()

    # --- in the thread ---

    def _load_some(self, pause: Pause) -> None:
        worked_from = self._clock.monotonic()
        seen, quiet_at = self._events(), worked_from

        def pace() -> bool:
            nonlocal worked_from, seen, quiet_at
            if self._stopped:
                raise _Stopped
            now = self._clock.monotonic()
            if self._kept and now - self._handed_over_at > _KEPT:
                self._hand_over()
            if self.gently and now - worked_from > _PIECE:
                before, seen = seen, self._events()
                if seen != before:
                    quiet_at = now + _QUIET
                if now < quiet_at:
                    pause()
                worked_from = self._clock.monotonic()
            return self.gently

        try:
            if not self._is_in_order:
                self._waiting = deque(self._collection.in_order(self._waiting, pace))
                self._is_in_order = True
            for _ in range(min(self._at_once, len(self._waiting))):
                queue_files = self._waiting.popleft()
                found = self._load(queue_files, pace)  # which may hand over what is kept
                self._kept.append((queue_files.queue, found))
                if len(self._kept) >= _MOST_KEPT:
                    self._hand_over()
        finally:
            self._hand_over()

    def _load(self, queue_files: QueueFiles, pace: Pace | None = None) -> Queue | QueueUnavailable:
        """Load a queue; whatever goes wrong there does not keep the others from being loaded."""
        try:
            return self._collection.load(queue_files, pace)
        except _Stopped:
            raise
        except Exception as error:  # noqa: BLE001 # it is logged
            return _broken(queue_files.queue, error)

    def _hand_over(self) -> None:
        kept, self._kept = self._kept, []
        self._handed_over_at = self._clock.monotonic()
        if kept:
            self._worker.tell(partial(self._let_in, kept))

    # --- in the owner's thread ---

    def _let_in(self, loaded: _Loaded) -> None:
        """Make loaded queues usable."""
        for name, found in loaded:
            if not self._stopped:
                self._let_one_in(name, found)
            elif isinstance(found, Queue):
                found.close()

    def _let_one_in(self, name: str, found: Queue | QueueUnavailable) -> None:
        try:
            self._collection.add_loaded(name, found)
        except Exception as error:  # noqa: BLE001 # it is logged
            self._collection.add_loaded(name, _broken(name, error))
        self._left -= 1
        if not self._left:
            self._done()

    def _job_is_over(self, error: BaseException | None) -> None:
        if self._stopped:
            return
        if error is not None and self._waiting:
            # The job could not begin, because the system has no room for a thread. Until it has,
            # this thread loads one queue after the other.
            queue_files = self._waiting.popleft()
            self._let_one_in(queue_files.queue, self._load(queue_files))
        self._load_next()


def _broken(name: str, error: BaseException) -> QueueUnavailable:
    """Return why a queue cannot be used, after an error that nobody foresaw; log that."""
    log.error("queue %s cannot be loaded", name, exc_info=error, extra={"queue": name})
    return QueueUnavailable(f"queue {name} cannot be loaded: {error!r}")
