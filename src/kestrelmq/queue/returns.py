"""Giving open reads back: some, many in pieces, and those whose time is up."""

from collections.abc import Generator, Sequence
from typing import Final, Protocol

from kestrelmq.errors import JournalError
from kestrelmq.journal.life import RETRYING
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.queue.core import Core
from kestrelmq.queue.departures import Departures
from kestrelmq.queue.limits import RETURNING
from kestrelmq.tags import parse_tag

_RETRY: Final = 1.0
"""Seconds after a failure until overdue reads are given back again."""
_TIME_IS_UP: Final = "its time is up"


class ReadsReturn(Protocol):
    """Many open reads of a queue that are given back in pieces."""

    def oldest(self) -> int | None:
        """Return the xid of the oldest read that was not given back; None if there may be none."""

    def give_back(self, xids: Sequence[int]) -> None:
        """Give some of them back, such that the first of `xids` is the head."""

    def give_back_some(self) -> bool:
        """Give back the youngest; return whether there are more."""


class Returns:
    """What is given back of one queue.

    Attributes:
        brings_oldest: whether the oldest of what is given back in pieces is just given back.
    """

    __slots__ = ("_core", "_departures", "_returning", "_state", "brings_oldest")

    def __init__(self, core: Core, departures: Departures) -> None:
        self._core = core
        self._state = core.state
        self._departures = departures
        # What is being given back in pieces, what began first before the rest.
        self._returning: tuple[ReadsReturn, ...] = ()
        self.brings_oldest = False

    def give_back(
        self,
        xids: Sequence[int],
        *,
        counted: bool = True,
        why: str = "it was given back",
        delay: float | None = None,
        is_dead: bool = False,
    ) -> int:
        """Give open reads back, such that the first of `xids` is the head; return how many.

        An item that was delivered `max_deliveries` times goes to `dead_letter_queue` instead. Any
        other waits for its retry delay, if there is one. Waiting readers are served only when all
        are given back, so they get the items in order. If this cannot be written, it is done again
        later; reads that are reserved stay so.

        Args:
            xids: the reads; those that no reader has are left out.
            counted: whether the items were handed out, so that this counts as a delivery; those of
                a retired tag never do.
            why: the reason, for the log.
            delay: seconds until the items may be read again; None for the retry delay, which is
                only for deliveries.
            is_dead: whether they go to `dead_letter_queue` however often they were delivered.
        """
        reads = self._core.reads
        held = [read for read in map(reads.held_read, xids) if read is not None]
        self._state.counts.canceled_transactions += reads.transactions_among(held)
        alive = [
            read
            for read in held
            if not (is_dead or self._counts(read, counted=counted))
            or not self._departures.bury(
                read, why, counted=self._counts(read, counted=counted), even_alive=is_dead
            )
        ]
        for read in reversed(alive):
            if not read.is_over:  # unless a write has failed meanwhile
                self._core.reads.retry(read, delay, counted=self._counts(read, counted=counted))
        if held and self._core.waiters.line:
            self._core.waiters.serve()
        return len(held)

    def _counts(self, read: OpenRead, *, counted: bool) -> bool:
        """Whether a read that is given back counts as a delivery: not if its tag was retired."""
        reserved = self._core.reads.reserved
        if not counted or read.reservation is None or not reserved.retired:
            return counted
        tag = read.reservation.terms.tag
        return not (tag and reserved.is_retired(parse_tag(tag)))

    # --- many reads, in pieces ---

    def in_pieces(self, returning: ReadsReturn) -> Generator[None, None, None]:
        """Give many open reads back; yields between short pieces, while others are served.

        The youngest come first, and the oldest is the head in the end. A reader that comes in
        between gets the oldest all the same: it is given back first. To stop, close the generator.
        """
        self._returning = (*self._returning, returning)
        self._note_returning()
        try:
            self._give_back_some()
            while returning in self._returning:
                yield
                self._give_back_some()
        finally:
            self._has_returned(returning)

    def _give_back_some(self) -> None:
        """Give back a piece of what began first, if there is any."""
        if not self._returning:
            return
        first, is_more = self._returning[0], False
        try:
            is_more = first.give_back_some()
        finally:
            if not is_more:
                self._has_returned(first)

    def _has_returned(self, returning: ReadsReturn) -> None:
        """Forget these reads: they were given back, or cannot be."""
        self._returning = tuple([one for one in self._returning if one is not returning])
        self._note_returning()

    @property
    def is_returning(self) -> bool:
        """Whether there are open reads that are being given back in pieces."""
        return len(self._returning) > 0 or len(self._core.reads.overdue) > 0

    def _note_returning(self) -> None:
        self._state.set(RETURNING, on=self.is_returning)

    def bring_oldest(self) -> None:
        """Make the oldest of the reads that are being given back the head, for a reader."""
        xid = self.oldest()
        if xid is None or self.brings_oldest or self._state.is_moving:
            return
        self.brings_oldest = True
        try:
            if self._returning:
                self._returning[-1].give_back((xid,))
            else:
                self.give_back((xid,), why=_TIME_IS_UP)
        finally:
            self.brings_oldest = False

    def oldest(self) -> int | None:
        """Return the xid of the oldest read that is being given back; None if there may be none."""
        if self._returning:
            return self._returning[-1].oldest()
        if not len(self._core.reads.overdue):
            return None
        read = self._core.reads.oldest_overdue(self._state.clock.monotonic())
        return None if read is None else read.xid

    def close(self) -> None:
        """Give nothing back any more: the queue is closed."""
        self._returning = ()

    # --- reads whose time is up ---

    def give_back_overdue(self) -> int:
        """Give back some open reads whose time is up, and write that; return how many.

        Items whose retry delay is over can be read again, and are not counted here. If the write
        fails, they stay open, the commit reports it, and it is tried again a second later.
        """
        now = self._state.clock.monotonic()
        reads = self._core.reads
        overdue = reads.take_overdue(now) if reads.collect_overdue(now) else []
        if not overdue:
            self._note_returning()
            return 0
        if len(reads.overdue):
            self._note_returning()
        held = [read for read in overdue if read.state != RETRYING]
        for read in reversed(overdue):
            if read.state == RETRYING:
                if read.xid in self._core.reads.flushed:
                    self._core.reads.confirm(read.xid)
                else:
                    self._core.reads.put_back(read, counted=read.is_counted)
        count = self.give_back([read.xid for read in held], why=_TIME_IS_UP)
        try:
            self._core.write_now()
        except BaseException as error:
            self._give_back_later(overdue, now + _RETRY)
            if not isinstance(error, JournalError):
                raise
            return 0
        self._note_returning()
        if len(held) < len(overdue) and self._core.waiters.line:
            self._core.waiters.serve()
        return count

    def _give_back_later(self, reads: Sequence[OpenRead], at: float) -> None:
        """Give reads back at a later time (monotonic seconds), unless they are over."""
        for read in reads:
            if read.reservation is not None:
                self._core.reads.reservations.retry_at = at
            elif not read.is_over:
                self._core.reads.set_deadline(read, at)
