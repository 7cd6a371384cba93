"""The server's status: what it allows, how it changes, and how it outlives a restart.

A permission that a new status adds is granted at once, and only then do the listeners hear of the
status. A permission that it takes away is enforced later: the listeners hear first, each says when
it has acted (a server set was left), then the grace period passes, and then operations are
refused. A listener that never answers delays this by `listener_limit` seconds at most.

Everything here runs on the server's event loop. The status file is replaced as a whole (temporary,
fsync, rename, fsync of the directory), so a crash leaves the old status or the new one, and
perhaps a temporary that the next save overwrites.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from kestrelmq.clock import Clock
from kestrelmq.errors import KestrelError
from kestrelmq.journal.files import DiskDirectory, replace_file

_log: Final = logging.getLogger(__name__)

# A status file holds one word; whatever is longer is something else.
_MOST_READ: Final = 256


class StatusNotSaved(KestrelError):  # noqa: N818 # says what it is
    """The status changed, but a restart will bring back the old one."""


class Status(Enum):
    """What the server is there for, loosest first; the value is its name on the wire."""

    UP = "UP"
    WRITE_AVOID = "WRITEAVOID"
    READ_ONLY = "READONLY"
    QUIESCENT = "QUIESCENT"
    DOWN = "DOWN"

    @classmethod
    def parse(cls, text: str) -> "Status":
        """Return the status called `text`: any case, with or without `_` and `-`.

        Raises:
            ValueError: there is no such status; the message says which there are.
        """
        word = text.strip().replace("_", "").replace("-", "").upper()
        with suppress(ValueError):
            return cls(word)
        raise ValueError(f"unknown status; allowed: {_ALLOWED}")

    @property
    def reads(self) -> bool:
        """Whether items may be read."""
        return self in _READABLE

    @property
    def writes(self) -> bool:
        """Whether queues may be changed: added to, flushed, deleted."""
        return self in _WRITABLE

    @property
    def in_read_set(self) -> bool:
        """Whether the server offers itself to readers."""
        return self in _READABLE

    @property
    def in_write_set(self) -> bool:
        """Whether the server offers itself to writers."""
        return self is Status.UP


_ALLOWED: Final = ", ".join(status.value for status in Status if status is not Status.DOWN)
_READABLE: Final = frozenset({Status.UP, Status.WRITE_AVOID, Status.READ_ONLY})
_WRITABLE: Final = frozenset({Status.UP, Status.WRITE_AVOID})


class Cancellable(Protocol):
    """A call that was scheduled."""

    def cancel(self) -> None:
        """Drop the call."""


Schedule = Callable[[float, Callable[[], None]], Cancellable]
"""Calls the function after so many seconds, on the event loop."""

StatusListener = Callable[[Status, Callable[[], None]], None]
"""Hears of a new status, and calls the function it is given, on the loop, when it has acted."""


class _Countdown:
    """Calls `then` once: when every part was done, or when it is given up; never once abandoned."""

    __slots__ = ("_left", "_then")

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._left = count
        self._then: Callable[[], None] | None = then

    def part(self) -> Callable[[], None]:
        """Return what the doer of one part calls; calling it again changes nothing."""
        undone = True

        def done() -> None:
            nonlocal undone
            self._left -= undone
            undone = False
            if self._left == 0:
                self.give_up()

        return done

    def give_up(self) -> None:
        """Wait no longer."""
        then, self._then = self._then, None
        if then is not None:
            then()

    def abandon(self) -> None:
        """Call nothing any more."""
        self._then = None


class ServerStatus:
    """The status in force, and the one that is coming.

    Attributes:
        status: the status that was last set; what clients are told.
        since: when it was set, in milliseconds since the epoch.
        reads_allowed: whether reads are served now. Confirming, closing and aborting reads that
            were opened earlier is always allowed.
        writes_allowed: whether adds, flushes and deletes are served now.
        is_open: whether both are; what the hot path looks at.
        listeners: who is told of changes, in this order.
    """

    __slots__ = (
        "_acting",
        "_clock",
        "_default",
        "_directory",
        "_grace_period",
        "_listener_limit",
        "_path",
        "_schedule",
        "_timer",
        "is_open",
        "listeners",
        "reads_allowed",
        "since",
        "status",
        "writes_allowed",
    )

    reads_allowed: bool
    writes_allowed: bool
    is_open: bool

    def __init__(
        self,
        status_file: Path | None,
        default: Status,
        grace_period: float,
        clock: Clock,
        schedule: Schedule,
        *,
        listener_limit: float = 5.0,
    ) -> None:
        """Begin in the `default` status, enforced; `load` brings back the saved one.

        Args:
            status_file: where the status is kept; None keeps it nowhere.
            default: the status while nothing is saved.
            grace_period: seconds for which what a stricter status forbids is still allowed.
            clock: tells `since`.
            schedule: calls back later, on the event loop.
            listener_limit: seconds that listeners may take to act on a stricter status.
        """
        self._path = status_file
        # Held from its first use on: nothing is written to another that is put in its place.
        self._directory = DiskDirectory(status_file.parent if status_file else Path())
        self._default = default
        self._grace_period = grace_period
        self._clock = clock
        self._schedule = schedule
        self._listener_limit = listener_limit
        self._timer: Cancellable | None = None
        self._acting = _Countdown(0, self._enforce)
        self.listeners: list[StatusListener] = []
        self.status = default
        self.since = clock.now()
        self._allow(default.reads, default.writes)

    def load(self) -> None:
        """Take up the saved status, enforced at once; listeners are not told."""
        self.status = self._saved()
        self.since = self._clock.now()
        self._enforce()

    def set(self, status: Status) -> None:
        """Change to `status` and save it, with an fsync; one that is set already changes nothing.

        Raises:
            ValueError: `status` is DOWN, which only `shutdown` sets.
            StatusNotSaved: the status changed, but could not be saved.
        """
        if status is Status.DOWN:
            raise ValueError(f"a client cannot set DOWN; allowed: {_ALLOWED}")
        if status is not self.status:
            self._change(status, self._grace_period)
        self._save()

    def shutdown(self) -> None:
        """Change to DOWN, without grace period and without saving it."""
        if self.status is not Status.DOWN:
            self._change(Status.DOWN, 0.0)

    def reason_for_refusal(self, write: bool) -> str:  # noqa: FBT001
        """Return why reads, or writes, are refused; for the client to read."""
        match self.status:
            case Status.DOWN:
                return "the server is shutting down"
            case Status.QUIESCENT:
                return "the server is quiescent: it serves no queue"
            case Status.UP | Status.WRITE_AVOID | Status.READ_ONLY:
                return f"the server is read-only: it takes no {'writes' if write else 'reads'}"

    def _change(self, status: Status, grace_period: float) -> None:
        _log.info("status changes from %s to %s", self.status.value, status.value)
        self._acting.abandon()
        self._cancel_timer()
        self.status = status
        self.since = self._clock.now()
        self._allow(self.reads_allowed | status.reads, self.writes_allowed | status.writes)
        self._acting = acting = _Countdown(
            len(self.listeners), lambda: self._begin_grace(grace_period)
        )
        if self.listeners:
            self._timer = self._schedule(self._listener_limit, lambda: self._overdue(acting))
        else:
            acting.give_up()
        for listener in self.listeners:
            self._tell(listener, acting.part())

    def _overdue(self, acting: _Countdown) -> None:
        _log.warning("%s is enforced before every server set was left", self.status.value)
        acting.give_up()

    def _tell(self, listener: StatusListener, acted: Callable[[], None]) -> None:
        try:
            listener(self.status, acted)
        except Exception:  # noqa: BLE001 # whoever listens, the status must come into force
            _log.exception("a status listener failed")
            acted()

    def _begin_grace(self, grace_period: float) -> None:
        self._cancel_timer()
        if grace_period > 0 and not self._enforced():
            self._timer = self._schedule(grace_period, self._enforce)
        else:
            self._enforce()

    def _enforced(self) -> bool:
        return (self.reads_allowed, self.writes_allowed) == (self.status.reads, self.status.writes)

    def _enforce(self) -> None:
        self._timer = None
        self._allow(self.status.reads, self.status.writes)

    def _allow(self, reads: bool, writes: bool) -> None:  # noqa: FBT001
        self.reads_allowed = reads
        self.writes_allowed = writes
        self.is_open = reads and writes

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _saved(self) -> Status:
        if self._path is None:
            return self._default
        try:
            with os.fdopen(self._directory.open(self._path.name), "rb") as file:
                status = Status.parse(file.read(_MOST_READ).decode())
        except FileNotFoundError:
            return self._default
        except (OSError, ValueError) as error:
            _log.warning(
                "%s: unusable (%s); the status is %s", self._path, error, self._default.value
            )
            return self._default
        # DOWN is never saved; a file that says so was written by hand.
        return self._default if status is Status.DOWN else status

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._directory, self._path.name, f"{self.status.value}\n".encode())
        except OSError as error:
            _log.error("%s: not saved: %s", self._path, error)
            raise StatusNotSaved(
                f"the status is {self.status.value} but could not be saved: {error.strerror}"
            ) from error
