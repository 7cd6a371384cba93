"""Reserving items of a queue for an owner or a tag, and what ends that for all of them at once."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from kestrelmq.errors import QueueUnavailable, ReservedMemoryFull, TagRefused
from kestrelmq.format.records import ADDX_HEADER, Item, item_size
from kestrelmq.journal.life import RESERVE
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.open_read import OpenRead, Reservation, ReserveTerms
from kestrelmq.journal.reserved_reads import done_note, reserved_note, retired_note
from kestrelmq.queue.core import Core
from kestrelmq.queue.line import Line
from kestrelmq.queue.returns import Returns
from kestrelmq.tags import parse_tag

RESERVED_MEMORY: Final = 4 << 20
"""Bytes of memory that the reserved items of a queue may always take."""
MAX_TAGS: Final = 10_000
"""Most tags of a queue that are open or done."""
MAX_TAG_NAMES: Final = 10_000
"""Most names of which a queue remembers the last retired epoch."""
_RETIRED_FOR: Final = 30 * 86_400_000
"""Milliseconds for which it does so, after the last time."""
_NOTED_AGAIN: Final = 86_400_000
"""Milliseconds after which an epoch that is retired again is written again."""
_GIVEN_BACK_AT_ONCE: Final = 500
"""Most reads that are given back when an epoch is retired, before others are served."""


class ReservedItems:
    """The items of one queue that are reserved; `Reservations` has their leases and owners.

    It has no state of its own, so it is made whenever it is needed.
    """

    __slots__ = ("_core", "_line", "_reserved", "_returns", "_state")

    def __init__(self, core: Core, line: Line, returns: Returns) -> None:
        self._core = core
        self._state = core.state
        self._reserved = core.reads.reserved
        self._line = line
        self._returns = returns

    def reserve(
        self,
        terms: ReserveTerms,
        nonce: int,
        most: int,
        most_bytes: int,
        *,
        leaves_half: bool = False,
    ) -> Reservation | None:
        """Open reads of the next items and reserve them; None if there is no item.

        Readers that wait come first: if there are any, one item is taken.

        Args:
            terms: for how long and for whom.
            nonce: a random number that names the reservation.
            most: the most items.
            most_bytes: after so many bytes of data, no more items are taken.
            leaves_half: whether half of the memory for reserved items is left to others.

        Raises:
            QueueUnavailable: as `remove`.
            ReservedMemoryFull: there is an item, but reserved ones take too much memory already.
            TagRefused: the tag is retired, or there are too many tags.
        """
        self.check_tag(terms.tag, is_new=True)
        memory = self._reserved.size
        limit = max(self._state.config.max_memory_size, RESERVED_MEMORY)
        if memory >= (limit // 2 if leaves_half else limit):
            if not self._line.has_head():
                return None
            raise ReservedMemoryFull(
                f"the reserved items of queue {self._state.name} take {memory} bytes of memory, "
                f"which is {'half of ' * leaves_half}max_memory_size or more; "
                "finish or release some"
            )
        reads: list[OpenRead] = []
        size = 0
        while len(reads) < most and size < most_bytes and not (reads and self._core.waiters.line):
            some, some_size = self._line.open_from_memory(most - len(reads), most_bytes - size)
            if some:
                reads += some
                size += some_size
                self._state.counts.transactions += len(some)
                continue
            self._state.counts.transactions += 1
            try:
                taken = self._line.take()
            except QueueUnavailable:
                if not reads:
                    raise
                break
            if taken is None:
                break
            reads.append(self._core.reads.open_item(taken))
            size += item_size(taken)
        # If a write failed meanwhile, some were taken back, and the commit takes back the others.
        reads = [read for read in reads if not read.is_over]
        if not reads:
            return None
        memory = size + (ADDX_HEADER + OVERHEAD) * len(reads)
        reservation = Reservation(nonce, terms, _xids_of(reads), memory, len(reads))
        self._core.reads.reservations.add(reservation, reads, self._state.clock.monotonic())
        self._core.changes.collect(
            reserved_note(nonce, terms, reservation.xids, self._core.reads.last_xid)
        )
        self._core.reads.note(RESERVE, reservation.xids, reads)
        self._state.watch_deadlines()
        return reservation

    def again(self, terms: ReserveTerms) -> Reservation | None:
        """Return the reservation of an open tag, with a new lease on these terms.

        None: the tag is not open. Raises TagRefused if it is retired.
        """
        self.check_tag(terms.tag)
        reservation = self._reserved.by_tag.get(terms.tag)
        if reservation is None:
            return None
        before = reservation.terms
        self._core.reads.reservations.renew(reservation, terms, self._state.clock.monotonic())
        self._state.watch_deadlines()
        if terms != before:
            xids = self._reserved.live(reservation)
            self._core.changes.collect(
                reserved_note(reservation.nonce, terms, xids, self._core.reads.last_xid)
            )
            set_terms = self._core.reads.reservations.set_terms
            self._core.changes.undo.append((set_terms, reservation, before))
        else:
            self._core.sync_again()
        return reservation

    def check_tag(self, tag: str, *, is_new: bool = False) -> None:
        """Raise TagRefused if `tag`, unless it is empty, cannot be used now."""
        if not tag:
            return
        reserved = self._reserved
        parsed = parse_tag(tag)
        if reserved.is_retired(parsed):
            reserved.forget_retired(self._state.clock.now() - _RETIRED_FOR)
            if reserved.is_retired(parsed):
                raise TagRefused(f"the epoch of tag {tag} is retired")
        if is_new and len(reserved.by_tag) + len(reserved.done) >= MAX_TAGS:
            raise TagRefused(
                f"queue {self._state.name} has {MAX_TAGS} tags; retire epochs that are over"
            )

    def reads_of(self, reservation: Reservation) -> tuple[Sequence[int], list[Item]]:
        """Return the xids and the items of a reservation's reads that have not ended."""
        xids = self._reserved.live(reservation)
        return xids, [read.item for read in self._core.reads.open.get_all(xids)]

    def find(self, reads: Sequence[tuple[int, Sequence[int]]]) -> Sequence[int]:
        """Return the xids of those reads, given by nonce, that are reserved; each once."""
        return self._reserved.find(reads)

    def with_tag(self, tag: str) -> Sequence[int]:
        """Return the xids of the reads of a tag. Raises TagRefused if it is retired."""
        self.check_tag(tag)
        reservation = self._reserved.by_tag.get(tag)
        return () if reservation is None else self._reserved.live(reservation)

    def of_owner(self, owner: str, most: int | None = None) -> list[int]:
        """Return the xids of the reads of an owner, at most `most`."""
        found = self._core.reads.reservations.owners.get(owner)
        if found is None:
            return []
        # Not a generator expression: compiled, it would first collect all of them.
        xids: list[int] = []
        for reservation in found.reservations.values():
            xids += self._reserved.live(reservation)
            if most is not None and len(xids) >= most:
                break
        return xids[:most]

    def youngest_of_owner(self, owner: str, most: int) -> list[int]:
        """Return the xids of an owner's youngest reads, at most `most`, the oldest first."""
        found = self._core.reads.reservations.owners.get(owner)
        if found is None:
            return []
        xids: list[int] = []
        for reservation in found.reservations.backwards():
            xids = [*self._reserved.live(reservation), *xids]
            if len(xids) >= most:
                break
        return xids[-most:]

    def is_done(self, tag: str) -> bool:
        """Whether the reads of `tag` were finished; the answer waits until that is on disk."""
        if tag not in self._reserved.done:
            return False
        self._core.sync_again()
        return True

    def finish(self, tag: str) -> int:
        """Confirm the reads of a tag, which is done from then on; return how many they were.

        If it is done, return how many they were then; 0 if it was never open. Raises TagRefused if
        it is retired.
        """
        reserved = self._reserved
        xids = self.with_tag(tag)
        if not xids:
            return reserved.done[tag] if self.is_done(tag) else 0
        reserved.set_done(tag, len(xids))
        self._core.changes.collect(done_note(tag, len(xids), self._core.reads.last_xid))
        self._core.changes.undo.append((reserved.forget_done, tag))
        self._core.reads.confirm_all(xids)
        return len(xids)

    def retire(self, name: str, epoch: int) -> int:
        """Refuse the tags of `name` up to `epoch` from now on, and forget those that are done.

        The reads of those that are open are given back, uncounted; if they are many, soon after.
        A name is forgotten 30 days after this was last called for it, and its tags are over.

        Returns:
            How many tags were open or done.

        Raises:
            TagRefused: there are too many names.
        """
        reserved = self._reserved
        now = self._state.clock.now()
        reserved.forget_retired(now - _RETIRED_FOR)
        before = reserved.retired.get(name)
        if (
            before is not None
            and epoch <= before
            and now < reserved.retired_at[name] + _NOTED_AGAIN
        ):
            self._core.sync_again()
            return 0
        if before is None and len(reserved.retired) >= MAX_TAG_NAMES:
            raise TagRefused(
                f"queue {self._state.name} has retired epochs of {MAX_TAG_NAMES} names"
            )
        opened = reserved.open_up_to(name, epoch)
        forgotten = reserved.retire(name, epoch, now)
        self._core.changes.collect(retired_note(name, epoch, self._core.reads.last_xid, now))
        self._core.changes.undo.append((reserved.unretire, name, before, forgotten))
        if sum(reservation.left for reservation in opened) <= _GIVEN_BACK_AT_ONCE:
            xids = sorted(chain.from_iterable(map(reserved.live, opened)))
            self._returns.give_back(xids)
        else:  # in pieces
            self._core.reads.reservations.end_leases(opened, self._state.clock.monotonic())
            self._state.watch_deadlines()
        return len(opened) + len(forgotten)


def _xids_of(reads: Sequence[OpenRead]) -> Sequence[int]:
    """Return the xids of reads; a range if they are consecutive."""
    first, count = reads[0].xid, len(reads)
    for index in range(count):
        if reads[index].xid != first + index:
            return tuple([read.xid for read in reads])
    return range(first, first + count)
