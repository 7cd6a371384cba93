"""The server's status: what it allows, how it changes, and how it is kept over a restart.

When a new status allows more, that takes effect at once, and then the listener is told, if there is
one. When a new status allows less, the listener is told first, and reports when it has acted (left
a server set). Then the grace period passes, and only then are operations refused. If the listener
never reports, that delays this by at most `listener_limit` seconds. Another change within the grace
period does not prolong it for operations that both statuses forbid.

Everything here runs on the server's event loop. The status file is replaced as a whole (temporary,
fsync, rename, fsync of the directory), so a crash leaves the old status or the new one, and perhaps
a temporary that the next save overwrites.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol

from kestrelmq.clock import Clock
from kestrelmq.disk.directories import DiskDirectory, replace_file
from kestrelmq.errors import KestrelError

_log: Final = logging.getLogger(__name__)

# A status file holds one word; a longer file is not one.
_MOST_READ: Final = 256


class StatusNotSaved(KestrelError):  # noqa: N818 # says what it is
    """The status changed but could not be saved, so a restart will restore the old one."""


class Status(Enum):
    """What the server accepts, from most to least; the value is the status's name on the wire."""

    UP = "UP"
    WRITE_AVOID = "WRITEAVOID"
    READ_ONLY = "READONLY"
    QUIESCENT = "QUIESCENT"
    DOWN = "DOWN"

    @classmethod
    def parse(cls, text: str) -> "Status":
        """Return the status called `text`: any case, with or without `_` and `-`.

        Raises:
            ValueError: there is no such status; the message lists the allowed ones.
        """
        word = text.strip().replace("_", "").replace("-", "").upper()
        with suppress(ValueError):
            return cls(word)
        raise ValueError(f"unknown status; allowed: {_ALLOWED}")

    @property
    def allows_reads(self) -> bool:
        """Whether items may be read."""
        return self in _READABLE

    @property
    def allows_writes(self) -> bool:
        """Whether queues may be changed: added to, flushed, deleted."""
        return self in _WRITABLE

    @property
    def in_read_set(self) -> bool:
        """Whether the server is in the server set `read`."""
        return self in _READABLE

    @property
    def in_write_set(self) -> bool:
        """Whether the server is in the server set `write`."""
        return self is Status.UP


_ALLOWED: Final = ", ".join(status.value for status in Status if status is not Status.DOWN)
_READABLE: Final = frozenset({Status.UP, Status.WRITE_AVOID, Status.READ_ONLY})
_WRITABLE: Final = frozenset({Status.UP, Status.WRITE_AVOID})


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


Schedule = Callable[[float, Callable[[], None]], Cancellable]
"""Calls a function on the event loop after so many seconds."""

StatusListener = Callable[[Status, Callable[[], None]], None]
"""Is called with a new status; calls the given function, on the event loop, when it has acted."""


class _Timer(Enum):
    """What is yet to happen after a change of status."""

    OVERDUE = auto()
    END_OF_READS = auto()
    END_OF_WRITES = auto()


class ServerStatus:
    """The status that was set, and what is allowed until it is enforced.

    Attributes:
        status: the status that was last set; clients see this one.
        since: when it was set, in milliseconds since the epoch.
        reads_allowed: whether reads are served now. Confirming, closing and aborting reads that
            were opened earlier is always allowed.
        writes_allowed: whether adds, flushes and deletes are served now.
        has_memory: whether items may be handed out, however large.
        all_allowed: whether all of these are; the hot path checks this.
        listener: the function to tell of changes, if there is one.
        on_quiescent: called when QUIESCENT is enforced.
    """

    __slots__ = (
        "_clock",
        "_default",
        "_directory",
        "_grace_period",
        "_listener_limit",
        "_path",
        "_schedule",
        "_timers",
        "all_allowed",
        "has_memory",
        "listener",
        "on_quiescent",
        "reads_allowed",
        "since",
        "status",
        "writes_allowed",
    )

    reads_allowed: bool
    writes_allowed: bool
    all_allowed: bool
    has_memory: bool

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
        """Begin with the `default` status, enforced; `load` restores the saved one.

        Args:
            status_file: the file that keeps the status; None does not keep it.
            default: the status when none is saved.
            grace_period: seconds for which operations that a stricter status forbids are still
                allowed.
            clock: the clock for `since`.
            schedule: calls a function later, on the event loop.
            listener_limit: the most seconds to wait for the listener to act on a stricter status.
        """
        self.has_memory = True
        self._path = status_file
        # Kept open from its first use on: the file is never written to a replaced directory.
        self._directory = DiskDirectory(status_file.parent if status_file else Path())
        self._default = default
        self._grace_period = grace_period
        self._clock = clock
        self._schedule = schedule
        self._listener_limit = listener_limit
        self._timers: dict[_Timer, Cancellable] = {}
        self.listener: StatusListener | None = None
        self.on_quiescent: Callable[[], None] = lambda: None
        self.status = default
        self.since = clock.now()
        self._allow(default.allows_reads, default.allows_writes)

    def load(self) -> None:
        """Restore the saved status and enforce it at once; the listener is not told."""
        self.status = self._saved()
        self.since = self._clock.now()
        self._enforce()

    def set(self, status: Status) -> None:
        """Change to `status`, unless it is set already, and save it with an fsync.

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
        """Change to DOWN, without a grace period and without saving it."""
        if self.status is not Status.DOWN:
            self._change(Status.DOWN, 0.0)

    def reason_for_refusal(self, write: bool) -> str:  # noqa: FBT001
        """Return why reads or writes are refused, as a message for the client."""
        match self.status:
            case Status.DOWN:
                return "the server is shutting down"
            case Status.QUIESCENT:
                return "the server is quiescent: it serves no queue"
            case Status.UP | Status.WRITE_AVOID | Status.READ_ONLY:
                return f"the server is read-only: it takes no {'writes' if write else 'reads'}"

    def _change(self, status: Status, grace_period: float) -> None:
        _log.info("status changes from %s to %s", self.status.value, status.value)
        self._cancel(_Timer.OVERDUE)
        self.status = status
        self.since = self._clock.now()
        if status.allows_reads:
            self._cancel(_Timer.END_OF_READS)
        if status.allows_writes:
            self._cancel(_Timer.END_OF_WRITES)
        self._allow(
            self.reads_allowed | status.allows_reads, self.writes_allowed | status.allows_writes
        )
        if self.listener is None:
            self._begin_grace(grace_period)
        else:
            self._tell(self.listener, grace_period)

    def _tell(self, listener: StatusListener, grace_period: float) -> None:
        """Tell the listener of a change, and begin the grace period when it has acted."""
        overdue = self._schedule(self._listener_limit, lambda: self._overdue(grace_period))
        self._timers[_Timer.OVERDUE] = overdue

        def acted() -> None:
            if self._timers.get(_Timer.OVERDUE) is overdue:  # this was not over before
                self._begin_grace(grace_period)

        try:
            listener(self.status, acted)
        except Exception:  # noqa: BLE001 # a listener's failure must not keep the status from changing
            _log.exception("a status listener failed")
            acted()

    def _overdue(self, grace_period: float) -> None:
        _log.warning("%s is enforced before every server set was left", self.status.value)
        self._begin_grace(grace_period)

    def _begin_grace(self, grace_period: float) -> None:
        self._cancel(_Timer.OVERDUE)
        if grace_period <= 0:
            self._enforce()
            return
        if self.writes_allowed and not self.status.allows_writes:
            self._schedule_once(_Timer.END_OF_WRITES, grace_period, self._end_writes)
        if self.reads_allowed and not self.status.allows_reads:
            self._schedule_once(_Timer.END_OF_READS, grace_period, self._end_reads)

    def _end_writes(self) -> None:
        self._cancel(_Timer.END_OF_WRITES)
        self._allow(self.reads_allowed, False)

    def _end_reads(self) -> None:
        self._cancel(_Timer.END_OF_READS)
        self._allow(False, self.writes_allowed)
        if self.status is Status.QUIESCENT:
            self.on_quiescent()

    def _enforce(self) -> None:
        self._cancel(_Timer.END_OF_WRITES)
        self._cancel(_Timer.END_OF_READS)
        self._allow(self.status.allows_reads, self.status.allows_writes)
        if self.status is Status.QUIESCENT:
            self.on_quiescent()

    def _allow(self, reads: bool, writes: bool) -> None:  # noqa: FBT001
        self.reads_allowed = reads
        self.writes_allowed = writes
        self.all_allowed = reads and writes and self.has_memory

    def set_memory(self, *, is_full: bool) -> None:
        """Note whether the memory for clients is used up."""
        self.has_memory = not is_full
        self._allow(self.reads_allowed, self.writes_allowed)

    def _schedule_once(self, timer: _Timer, seconds: float, then: Callable[[], None]) -> None:
        """Start the timer, unless it runs: then it ends when it would have."""
        if timer not in self._timers:
            self._timers[timer] = self._schedule(seconds, then)

    def _cancel(self, timer: _Timer) -> None:
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()

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
        # DOWN is never saved; a file with it was written by hand.
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
