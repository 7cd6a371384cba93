"""The reserved reads of a queue in use: when their leases end, and whose they are.

`journal.reservations` has what survives a restart: which reads are reserved, on what terms, and
which tags are over. This module adds the time. Nothing here is written: after a restart each lease
begins anew.

A read is given back at its deadline. The latest of these events sets it:

    the reservation, or its repetition    a lease from then on
    `extend` of reads, or of a tag        as long as it says
    `extend` of the owner                 the same, for all its reads in all queues

When the owner's last connection ends, the deadline is at most `grace` later. If the owner comes
back in time, it is what it was, and at least a lease later.

The latest event is found by a number that grows, so an extension costs the same however many reads
an owner has. A heap says which reservation or owner to look at next. Each reservation has an entry
that is not after its deadline; if the deadline was moved to a later time, it is looked at again
then. An owner has one when an event may have moved the deadlines of its reads to an earlier time.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final

from kestrelmq.engine.deadline_heap import DeadlineHeap
from kestrelmq.journal.empty import NOTHING, own
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.records import first_xid
from kestrelmq.journal.reservations import Reservation, ReservedReads, ReserveTerms, are_same

_AT_ONCE: Final = 1000
"""About how many reads to give back at once, so that nobody else waits for long."""


class Owner:
    """The reads of one owner in one queue.

    Attributes:
        reads: how many.
        reservations: the reservations that have them, by number.
        deadline: when all their leases end, by the last `extend` of the owner.
        set_at: the number of that event; 0 when there was none.
        lost_at: when the owner's last connection ended, if it has none now.
        lost_number: the number of that event.
        back_at: when the owner came back.
        back_number: the number of that event; 0 when there was none.
        grace: the shortest grace of the reservations.
        due: when to look at these reads; infinite when that need not be.
        unseen: reservations that are still to be looked at, once it is due; also by number.
    """

    __slots__ = (
        "back_at",
        "back_number",
        "deadline",
        "due",
        "grace",
        "lost_at",
        "lost_number",
        "reads",
        "reservations",
        "set_at",
        "unseen",
    )

    def __init__(self) -> None:
        self.reads = 0
        self.reservations: ReadTable[Reservation] = ReadTable()
        self.deadline = self.back_at = 0.0
        self.set_at = self.lost_number = self.back_number = 0
        self.lost_at: float | None = None
        self.grace = self.due = inf
        self.unseen: ReadTable[Reservation] = ReadTable()


Due = tuple[float, int, Reservation | Owner]
"""When to look at a reservation or an owner, with a number that orders equal times."""


class Reservations:
    """The reserved reads of one queue, with their leases.

    Attributes:
        reserved: what the journal says.
        owners: the owners that have reads here.
        queue: the queue's name.
        registry: knows which queues an owner has reads in.
        retry_at: no lease ends before this, because a write has failed (monotonic seconds).
    """

    def __init__(self, reserved: ReservedReads) -> None:
        """Start with what was replayed; `begin_leases` is to follow."""
        self.reserved = reserved
        self.owners: dict[str, Owner] = NOTHING
        self.queue = ""
        self.registry = Owners()
        self.retry_at = 0.0
        self._heap: DeadlineHeap[Due] = DeadlineHeap()
        self._number = 0

    def begin_leases(self, now: float) -> None:
        """Begin the leases of all reservations that were replayed."""
        for reservation in self.reserved.reservations():
            self._enrol(reservation, reservation.left)
            self._begin_lease(reservation, now)

    # --- reservations ---

    def add(self, reservation: Reservation, now: float) -> None:
        """Add a reservation, and begin its lease."""
        self.reserved.add(reservation)
        self._enrol(reservation, reservation.left)
        self._begin_lease(reservation, now)

    def remove(self, reservation: Reservation) -> None:
        """Undo `add`."""
        reads, reservation.left = reservation.left, 0
        self.reserved.remove(reservation)
        self._dismiss(reservation, reads)
        reservation.due = inf

    def renew(self, reservation: Reservation, terms: ReserveTerms, now: float) -> None:
        """Begin the lease of a reservation anew, perhaps on other terms."""
        if terms != reservation.terms:
            self.set_terms(reservation, terms)
        self._begin_lease(reservation, now)

    def set_terms(self, reservation: Reservation, terms: ReserveTerms) -> None:
        """Change the terms of a reservation; its lease goes on."""
        reads, reservation.left = reservation.left, 0
        self._dismiss(reservation, reads)
        reservation.left = reads
        self.reserved.set_terms(reservation, terms)
        self._enrol(reservation, reads)

    def end(self, xid: int) -> Reservation | None:
        """Take note that the read `xid` has ended; return its reservation, if it was reserved."""
        reservation = self.reserved.end(xid)
        if reservation is not None:
            if not reservation.left:
                self._end_lease(reservation)
            self._dismiss(reservation, 1)
        return reservation

    def end_all(self, xids: Sequence[int]) -> list[Reservation | None]:
        """Do `end` for some reads; faster if they are just those of one reservation, in order."""
        reservation = self.reserved.by_xid.get(first_xid(xids)) if xids else None
        if reservation is None or not are_same(xids, self.reserved.live(reservation)):
            return [self.end(xid) for xid in xids]
        self.reserved.end_all(reservation)
        self._end_lease(reservation)
        self._dismiss(reservation, len(xids))
        return [reservation] * len(xids)

    def _end_lease(self, reservation: Reservation) -> None:
        # If a failed write undoes this, the owner may be forgotten by then.
        reservation.deadline = self._deadline(reservation)
        owner = self.owners.get(reservation.terms.owner)
        reservation.set_at = max(reservation.set_at, owner.set_at if owner else 0)
        reservation.due = inf

    def restore(self, xid: int, reservation: Reservation) -> None:
        """Undo `end`."""
        self.reserved.restore(xid, reservation)
        self._enrol(reservation, 1)
        if reservation.due == inf:
            self._look_at(reservation, self._deadline(reservation))

    def drop_all(self) -> list[list[Any]]:
        """Forget all reservations; return lists of what is to be freed: there may be millions."""
        for name in self.owners:
            self.registry.forget(name, self)
        useless: list[list[Any]] = [*self._heap.take_all(), self.reserved.drop_all()]
        for owner in self.owners.values():
            useless += [owner.reservations.take_pages(), owner.unseen.take_pages()]
        self.owners = NOTHING
        return useless

    def unused_memory(self) -> list[list[Any]]:
        """Return what is to be freed if no reads are reserved: there may be much."""
        if len(self.reserved.by_xid) or not len(self._heap):
            return []
        return [*self._heap.take_all()]

    # --- leases ---

    def extend(self, xids: Iterable[int], seconds: float, now: float) -> None:
        """Let the leases of these reads, which are reserved, end `seconds` from now."""
        together: dict[Reservation, list[int]] = {}
        for xid in xids:
            together.setdefault(self.reserved.by_xid[xid], []).append(xid)
        deadline, number = now + seconds, self._next_number()
        for reservation, some in together.items():
            if len(some) == reservation.left:
                reservation.deadline, reservation.set_at = deadline, number
                reservation.extended = None
            else:
                extended = reservation.extended = reservation.extended or {}
                extended.update(dict.fromkeys(some, (deadline, number)))
            if deadline < reservation.due:
                self._look_at(reservation, deadline)

    def extend_owner(self, name: str, seconds: float, now: float) -> int:
        """Let the leases of an owner's reads end `seconds` from now; return how many there are."""
        owner = self.owners[name]
        owner.deadline, owner.set_at = now + seconds, self._next_number()
        self._look_at_owner(owner, owner.deadline)
        return owner.reads

    def owner_lost(self, name: str, now: float) -> None:
        """Take note that the last connection of an owner has ended."""
        owner = self.owners[name]
        owner.lost_at, owner.lost_number = now, self._next_number()
        self._look_at_owner(owner, now + owner.grace)

    def owner_back(self, name: str, now: float) -> None:
        """Take note that an owner has a connection again."""
        owner = self.owners[name]
        if owner.lost_at is not None:
            owner.lost_at = None
            owner.back_at, owner.back_number = now, self._next_number()

    def end_leases(self, reservations: Iterable[Reservation], now: float) -> None:
        """Let the leases of these reservations end at once; `now` is in monotonic seconds."""
        for reservation in reservations:
            reservation.deadline, reservation.extended = now, None
            reservation.set_at = self._next_number()
            self._look_at(reservation, now)

    def lease_end(self, xid: int) -> float:
        """Return when the lease of the reserved read `xid` ends (monotonic seconds)."""
        return self._deadline(self.reserved.by_xid[xid], xid)

    @property
    def has_deadlines(self) -> bool:
        """Whether a lease may end."""
        return len(self.reserved.by_xid) > 0

    @property
    def next_deadline(self) -> float | None:
        """When to call `take_overdue` next (monotonic seconds)."""
        first = self._heap.first
        if first is None or not len(self.reserved.by_xid):
            return None
        return max(first, self.retry_at)

    def take_overdue(self, now: float) -> list[int]:
        """Return reads whose lease has ended; not many more than a thousand."""
        overdue: dict[int, None] = {}
        if now < self.retry_at:
            return []
        while len(overdue) < _AT_ONCE:
            first = self._heap.first
            if first is None or first > now:
                break
            due, _, one = self._heap.pop()
            if one.due != due:
                continue  # it is looked at another time
            one.due = inf
            if isinstance(one, Reservation):
                overdue.update(dict.fromkeys(self._overdue(one, now)))
            elif not self._look_through(one, now, overdue):
                break
        return list(overdue)

    def _overdue(self, reservation: Reservation, now: float) -> list[int]:
        """Return the overdue reads of a reservation, and look at the others later."""
        live = self.reserved.live(reservation)
        if reservation.extended is None:
            deadlines = dict.fromkeys(live, self._deadline(reservation))
        else:
            deadlines = {xid: self._deadline(reservation, xid) for xid in live}
        later = min((at for at in deadlines.values() if at > now), default=None)
        if later is not None and later < reservation.due:
            self._look_at(reservation, later)
        return [xid for xid, at in deadlines.items() if at <= now]

    def _look_through(self, owner: Owner, now: float, overdue: dict[int, None]) -> bool:
        """Add the overdue reads of an owner to `overdue`; False if there are more to look at."""
        if not len(owner.unseen):
            if owner.lost_at is None and owner.deadline > now:
                # Those with another deadline have entries of their own.
                self._look_at(owner, owner.deadline)
                return True
            owner.unseen = owner.reservations.copy()
        for number in reversed(owner.unseen.youngest()[-_AT_ONCE:]):
            reservation = owner.unseen.pop(number)
            assert reservation is not None  # noqa: S101 # it is there
            overdue.update(dict.fromkeys(self._overdue(reservation, now)))
            if len(overdue) >= _AT_ONCE:
                break
        if len(owner.unseen):
            self._look_at(owner, now)
        return not len(owner.unseen)

    def _deadline(self, reservation: Reservation, xid: int | None = None) -> float:
        """Return when the lease of a reservation ends, or that of its read `xid`."""
        deadline, set_at, terms = reservation.deadline, reservation.set_at, reservation.terms
        owner = self.owners.get(terms.owner) if terms.owner else None
        if owner is not None and owner.set_at > set_at:
            deadline, set_at = owner.deadline, owner.set_at
        if xid is not None and reservation.extended is not None:
            extended = reservation.extended.get(xid)
            if extended is not None and extended[1] > set_at:
                deadline, set_at = extended
        if owner is not None:
            if owner.back_number > set_at:
                deadline = max(deadline, owner.back_at + terms.lease / 1000)
            if owner.lost_at is not None and owner.lost_number > set_at:
                deadline = min(deadline, owner.lost_at + terms.grace / 1000)
        return deadline

    def _begin_lease(self, reservation: Reservation, now: float) -> None:
        reservation.deadline = now + reservation.terms.lease / 1000
        reservation.set_at = self._next_number()
        reservation.extended = None
        if reservation.deadline < reservation.due:
            self._look_at(reservation, reservation.deadline)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # --- the heap ---

    def _look_at_owner(self, owner: Owner, due: float) -> None:
        if due < owner.due:
            self._look_at(owner, due)

    def _look_at(self, one: Reservation | Owner, due: float) -> None:
        """Look at a reservation or an owner when `due`, instead of at another time."""
        one.due = due
        live = len(self.reserved.by_xid) + len(self.owners)
        self._heap.push((due, self._next_number(), one), live, _is_due)

    # --- owners ---

    def _enrol(self, reservation: Reservation, reads: int) -> None:
        """Count `reads` of a reservation for its owner, if it has one."""
        name = reservation.terms.owner
        if not name:
            return
        owner = self.owners.get(name)
        if owner is None:
            self.owners = own(self.owners)
            owner = self.owners[name] = Owner()
            self.registry.add(name, self)
        owner.reads += reads
        owner.grace = min(owner.grace, reservation.terms.grace / 1000)
        if not reservation.number:
            reservation.number = self._next_number()
        owner.reservations[reservation.number] = reservation

    def _dismiss(self, reservation: Reservation, reads: int) -> None:
        """Take `reads` of a reservation from its owner, if it has one."""
        name = reservation.terms.owner
        if not name:
            return
        owner = self.owners[name]
        owner.reads -= reads
        if not reservation.left:
            owner.reservations.pop(reservation.number)
        if not owner.reads:
            owner.due = inf
            del self.owners[name]
            self.registry.forget(name, self)


def _is_due(entry: Due) -> bool:
    """Whether this is when to look at a reservation or an owner, and not at another time."""
    return entry[2].due == entry[0]


class Owners:
    """The owners of reserved reads: their connections, and the queues in which they have reads."""

    def __init__(self) -> None:
        """Start with none."""
        self._connections: dict[str, int] = {}
        self._queues: dict[str, dict[Reservations, None]] = {}

    def adopt(self, queue: str, reservations: Reservations) -> None:
        """Take note of the owners of another queue."""
        reservations.queue, reservations.registry = queue, self
        for name in reservations.owners:
            self.add(name, reservations)

    def add(self, name: str, reservations: Reservations) -> None:
        """Take note that an owner has reads in a queue."""
        self._queues.setdefault(name, {})[reservations] = None

    def forget(self, name: str, reservations: Reservations) -> None:
        """Take note that an owner has no reads in a queue any more."""
        queues = self._queues.get(name, {})
        queues.pop(reservations, None)
        if not queues:
            self._queues.pop(name, None)

    def connected(self, name: str, now: float) -> None:
        """Take note of another connection of an owner; now is in monotonic seconds."""
        count = self._connections.get(name, 0)
        self._connections[name] = count + 1
        if not count:
            for reservations in self._queues.get(name, ()):
                reservations.owner_back(name, now)

    def disconnected(self, name: str, now: float) -> None:
        """Take note that a connection of an owner has ended."""
        count = self._connections[name] - 1
        if count:
            self._connections[name] = count
            return
        del self._connections[name]
        for reservations in self._queues.get(name, ()):
            reservations.owner_lost(name, now)

    def reads_of(self, name: str) -> dict[str, int]:
        """Return how many reads an owner has, by queue."""
        return {one.queue: one.owners[name].reads for one in self._queues.get(name, ())}

    def extend(self, name: str, seconds: float, now: float) -> int:
        """Let the leases of all reads of an owner end `seconds` from now; return how many."""
        return sum(one.extend_owner(name, seconds, now) for one in self._queues.get(name, ()))
