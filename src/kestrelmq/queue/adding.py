"""Adding items to a queue: all that is neither plain nor the hot path, which is `Queue.add`.

Whatever is added is a `Put`: an item with an expiry, or of a producer who numbers its items, a
delayed one, a dead letter, a large one that a thread has copied. `Queue.accept` gives it to the
queue and its fanout children, and each of them lets `Adding.accept` check and append it.

A delayed item is a note in the journal until it is due; then it joins the queue, as a put that is
not checked again.
"""

from typing import Final

from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.notes import delayed_notes, item_note, joined_note
from kestrelmq.format.records import (
    ADDX,
    ADDX_HEADER,
    NO_EXPIRY,
    TIMES_SIZE,
    Item,
    NotedItem,
    item_add_time,
    item_deliveries,
    item_expiry,
    item_letter,
    noted,
    pack_header,
    record_of,
)
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.delayed_items import DelayedItems, entry_number
from kestrelmq.journal.producers import MAX_PRODUCERS, marked
from kestrelmq.queue.changes import Change
from kestrelmq.queue.core import Core
from kestrelmq.queue.limits import EXPIRING
from kestrelmq.queue.line import EXPIRED_AT_ONCE, Line
from kestrelmq.queue.refusals import RefusalReason
from kestrelmq.scheduling.worker import LARGE_ITEM

JOINED_AT_ONCE: Final = 200
"""Most delayed items that join at once: this takes one or two milliseconds."""
_RETRY: Final = 1.0
"""Seconds after a failure until delayed items join again."""
_DISCARDED_AT_ONCE: Final = 2000
"""Most items that make room for others at once."""
_DISCARDED_BYTES: Final = 16 << 20
"""Bytes of such items, after which no more are dropped: they may have to be read from disk."""

NO_ROOM: Final = "the disk has less room than min_free_disk, so nothing is added"


class Put:
    """An item to add. It is not changed.

    Attributes:
        item: the item; its record says when it expires, and several queues may share it.
        is_delayed: whether it waits only from the add time of its record on.
        mark: the number that its producer has given it, if any: the same is not added twice.
    """

    __slots__ = ("is_delayed", "item", "mark")

    def __init__(
        self, item: Item, *, is_delayed: bool = False, mark: PutMark | None = None
    ) -> None:
        self.item = item
        self.is_delayed = is_delayed
        self.mark = mark

    def by_master(self) -> "Put":
        """Return what a fanout child of the queue gets: it counts the numbers for itself."""
        mark = self.mark
        if mark is None:
            return self
        return Put(self.item, is_delayed=self.is_delayed, mark=mark.by_master())


class Adding:
    """What a queue accepts, and how it is added.

    Attributes:
        has_journal: whether an add is written to a journal, here or in a fanout child.
        has_excess: whether older items are still to be dropped because the queue is full.
        discarded: how many items have made room for others.
    """

    __slots__ = (
        "_core",
        "_header",
        "_header_size",
        "_header_time",
        "_join_at",
        "_line",
        "_state",
        "discarded",
        "has_excess",
        "has_journal",
    )

    def __init__(self, core: Core, line: Line) -> None:
        """Start with nothing to do."""
        self.has_journal = self.has_excess = False
        self.discarded = 0
        self._core = core
        self._state = core.state
        self._line = line
        # The last header made, with its time and size: items often have one size, and many of them
        # one add time.
        self._header = b""
        self._header_time = self._header_size = -1
        # Since when delayed items may join, after a write that failed (monotonic seconds).
        self._join_at = 0.0

    def header(self, size: int) -> bytes:
        """Return the header of an item of `size` bytes that is added now and never expires."""
        now = self._state.clock.now()
        if now != self._header_time or size != self._header_size:
            self._header_time, self._header_size = now, size
            self._header = pack_header(ADDX, size + TIMES_SIZE, now, 0)
        return self._header

    # --- before any queue has the item ---

    def check_writes(self) -> None:
        """Raise QueueUnavailable if the queue is paused for writes, or the disk has no room."""
        if self._state.limits.writes_paused:
            self._state.refusals.count("paused")
            raise QueueUnavailable(f"queue {self._state.name} is paused for writes")
        if self._is_disk_short:
            self._state.refusals.count("disk")
            self._core.note_no_room(NO_ROOM)
            raise QueueUnavailable(f"queue {self._state.name}: {NO_ROOM}")

    @property
    def _is_disk_short(self) -> bool:
        """Whether adds are refused because the disk has too little room, for any journal."""
        return self._state.commits.is_disk_short and self.has_journal

    def follows(self, mark: PutMark, last: int) -> bool:
        """Whether the item that must have been added before one with this mark was added.

        `last` is the producer's last number. Raises QueueUnavailable if there are too many
        producers.
        """
        if mark.after > last and not self._state.limits.fanout_only:
            return False
        if last < 0 and self._core.backlog.producers.is_full:
            raise QueueUnavailable(
                f"queue {self._state.name} has items of {MAX_PRODUCERS} producers"
            )
        return True

    def has_room(self, size: int) -> bool:
        """Whether an item of `size` bytes would be accepted now, if the journal can be written."""
        makes_room = self._state.limits.fanout_only or self._state.config.discard_old_when_full
        return (
            not self._is_disk_short
            and self._forbids(size) is None
            and (makes_room or self.too_full(size) is None)
        )

    # --- adding to one queue ---

    def accept(self, put: Put, *, is_copy: bool = False) -> bool:
        """Add an item to this queue only; return False if it refuses the item.

        Before, `check_writes`, unless it is a copy, for a fanout child.

        An item that its producer has added before is not added again, and the answer is the same:
        the queue remembers an item of that producer with this number, or a greater one. A delayed
        item counts towards the limits at once, and then joins without a check.
        """
        state, mark, one = self._state, put.mark, put.item
        if state.limits.fanout_only:
            return True
        if mark is not None:
            last = self._core.backlog.producers.last_number(mark.producer)
            if not is_copy and not self.follows(mark, last):
                return False
            if mark.sequence <= last:
                self._core.sync_again()
                return True
            if last < 0 and self._core.backlog.producers.is_full:
                return False
        record = record_of(one)
        size = len(record) - ADDX_HEADER
        if state.checks or put.is_delayed or record[13:21] != NO_EXPIRY:
            self._core.check_can_change()
            refusal = self._refusal(size)
            if refusal is not None:
                self._state.refusals.count(refusal)
                return False
            one = self._limit_expiry(one, size)
            record = record_of(one)
        if put.is_delayed:
            return self._delay(record, size, mark)
        if mark is not None:
            note, change = self._mark(record, mark)
            self._append(one, size, note, change)
        elif isinstance(one, NotedItem):
            self._append(one, size, item_note(one, self._core.reads.last_xid), ())
        else:
            self._append(one, size)
        self._core.waiters.serve()
        return True

    def _refusal(self, size: int) -> RefusalReason | None:
        """Return why an item of `size` bytes is refused, unless older ones made room; or None."""
        forbidden = self._forbids(size)
        if forbidden is not None:
            return forbidden
        config = self._state.config
        if self._state.has(EXPIRING):
            most = config.max_expire_sweep
            self._line.discard_expired(
                EXPIRED_AT_ONCE if most is None else min(most, EXPIRED_AT_ONCE)
            )
            while self.too_full(size) is not None:
                if not self._line.discard_expired(EXPIRED_AT_ONCE):
                    break
        full = self.too_full(size)
        if full is None or self._state.is_moving or not config.discard_old_when_full:
            return full
        full = self._make_room(size)
        delayed = self._core.backlog.delayed
        return full if delayed is not None and len(delayed) else None

    def _forbids(self, size: int) -> RefusalReason | None:
        """Return why no item of `size` bytes is accepted, however empty the queue is; or None."""
        limits = self._state.limits
        if limits.writes_paused:
            return "paused"
        if limits.max_item_size is not None and size > limits.max_item_size:
            return "too_large"
        return None

    def _limit_expiry(self, one: Item, size: int) -> Item:
        """Return an item as this queue keeps it: `max_age` may let it expire earlier."""
        record, limits = record_of(one), self._state.limits
        if limits.max_age is not None:
            added, expiry = item_add_time(record), item_expiry(record)
            limited = limits.expiry(added, expiry)
            if limited != expiry:
                header = pack_header(ADDX, size + TIMES_SIZE, added, limited)
                record = b"".join((header, memoryview(record)[ADDX_HEADER:]))
                return noted(record, item_deliveries(one), item_letter(one))
        elif record[13:21] != NO_EXPIRY:
            self._state.set(EXPIRING, on=True)
        return one

    def _append(
        self,
        one: Item,
        size: int,
        note: bytes = b"",
        change: Change | None = None,
    ) -> None:
        """Append an item; a `note` before it, if there is one, makes a `change`, too."""
        backlog = self._core.backlog
        memory_only = self._state.limits.memory_only
        if backlog.behind is None and not memory_only and not backlog.has_room(size):
            backlog.enter_read_behind(self._core.changes.size)
        backlog.append(one, size)
        if note:
            self._collect(note, change)
        self._collect(record_of(one))

    def _mark(self, record: bytes, mark: PutMark) -> tuple[bytes, Change]:
        """Remember a producer's number; return the note of it, and the change."""
        producers = self._core.backlog.producers
        added = producers.now() // 1000
        note = marked(record, mark, added, self._core.reads.last_xid)
        return note, (producers.restore, mark.producer, producers.set(mark, added))

    def _collect(self, record: bytes, change: Change | None = None) -> None:
        """Collect a journal record, and the change that it makes unless it adds an item."""
        self._core.changes.collect(record)
        if change is not None:
            self._core.changes.undo.append(change)

    # --- room ---

    def too_full(self, size: int, added: int = 1) -> RefusalReason | None:
        """Return why an item of `size` bytes must be refused, or older ones dropped; or None.

        `added` is 0 if none is to be added.

        Items are refused once a limit is reached, so the last accepted one may exceed `max_size`.
        If older items are dropped instead, the queue stays within its limits with the new one.
        """
        limits, backlog = self._state.limits, self._core.backlog
        delayed = backlog.delayed
        items, held = len(backlog), backlog.size
        if delayed is not None:
            items, held = items + len(delayed), held + delayed.size
        if limits.max_items is not None and items + added > limits.max_items:
            return "full_items"
        if limits.max_size is not None and (
            held + size > limits.max_size
            if self._state.config.discard_old_when_full
            else held >= limits.max_size
        ):
            return "full_bytes"
        if limits.memory_only and items and held + size > backlog.memory_limit:
            return "memory"
        return None

    def _make_room(self, size: int, added: int = 1) -> RefusalReason | None:
        """Drop the oldest items until `added` more, of `size` bytes, are within the limits.

        If very many have to go, the next sweep drops the rest, unless memory must hold all items.
        If none is to be added, the last one stays: an item may be larger than `max_size` alone.

        Returns:
            Which limit still is exceeded, although nothing more can be dropped.
        """
        backlog = self._core.backlog
        count, bytes_before = 0, backlog.size
        while (full := self.too_full(size, added)) is not None:
            dropped = bytes_before - backlog.size
            if not self._state.limits.memory_only and (
                count >= _DISCARDED_AT_ONCE or dropped >= _DISCARDED_BYTES
            ):
                self.has_excess, full = True, None
                break
            delayed = 0 if backlog.delayed is None else len(backlog.delayed)
            if not added and len(backlog) + delayed < 2:
                break
            if not self._drop_oldest():
                break
            count += 1
        self.discarded += count
        return full

    def _drop_oldest(self) -> bool:
        """Drop the head, or if none waits the delayed item that is due first; False if none is."""
        backlog = self._core.backlog
        if not backlog.memory_items and not self._line.read_back():
            if backlog.delayed is None or not len(backlog.delayed):
                return False
            self.join_next(backlog.delayed)
        self._core.changes.drop(backlog.take())
        return True

    def drop_excess(self) -> None:
        """Drop some of the older items that are still to be dropped."""
        self.has_excess = False
        if self._state.config.discard_old_when_full:
            self._make_room(0, added=0)

    # --- delayed items ---

    def _delay(self, record: bytes, size: int, mark: PutMark | None) -> bool:
        """Add an item that is not due yet; return False if memory has no room for it."""
        backlog = self._core.backlog
        delayed = backlog.delayed
        if delayed is None:
            delayed = backlog.delayed = DelayedItems()
        if not delayed.has_room(size, self._state.config.max_memory_size):
            self._state.refusals.count("memory")
            return False
        if mark is not None:
            note, change = self._mark(record, mark)
            self._collect(note, change)
        number = delayed.last_number + 1
        notes = delayed_notes(number, record, self._core.reads.last_xid)
        key = delayed.add(number, record)
        self._collect(notes, (delayed.take_back, key, size))
        self._state.watch_deadlines()
        return True

    def joins_at(self) -> float | None:
        """When `join_due` may have something to do next (monotonic seconds), if ever."""
        delayed = self._core.backlog.delayed
        due = None if delayed is None else delayed.next_due
        if due is None:
            return None
        wait = max(0.0, (due - self._state.clock.now()) / 1000)
        return max(self._join_at, self._state.clock.monotonic() + wait)

    def join_due(self) -> None:
        """Add some of the delayed items that are due, and write that.

        If it cannot be written, they are still delayed, and it is tried again a second later.
        """
        delayed, at, now = (
            self._core.backlog.delayed,
            self._state.clock.monotonic(),
            self._state.clock.now(),
        )
        if delayed is None or self._state.is_closed or at < self._join_at:
            return
        count = size = 0
        while count < JOINED_AT_ONCE and size < LARGE_ITEM:
            due = delayed.next_due
            if due is None or due > now:
                break
            size += self.join_next(delayed)
            count += 1
        if not count:
            return
        try:
            self._core.write_now()
        except BaseException as error:
            self._join_at = at + _RETRY
            if not isinstance(error, JournalError):
                raise
            return
        if self._core.is_writing:
            self._state.commits.after_writing((self._state.queue,), self._joined)
        else:
            self._core.waiters.serve()

    def _joined(self, failure: JournalError | None) -> None:
        """Go on after a round wrote the items that joined; `failure` if it did not."""
        if failure is not None:
            self._join_at = self._state.clock.monotonic() + _RETRY
        else:
            self._core.waiters.serve()
        if not self._state.is_closed:
            self._state.watch_deadlines()

    def join_next(self, delayed: DelayedItems) -> int:
        """Add the delayed item that is due first; return how many bytes of data it has."""
        entry = delayed.take()
        record = entry[1]
        size = len(record) - ADDX_HEADER
        note = joined_note(entry_number(entry), self._core.reads.last_xid)
        self._append(record, size, note, (delayed.restore, entry))
        if record[13:21] != NO_EXPIRY:
            self._state.set(EXPIRING, on=True)
        return size
