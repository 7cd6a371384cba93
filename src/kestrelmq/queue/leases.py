"""The reserved reads of a queue in use: when their leases end, and whose they are.

`journal.reserved_reads` has what survives a restart: which reads are reserved, on what terms, and
which tags are over. This module adds the time. Nothing here is written: after a restart each lease
begins anew.

A read is given back at its deadline. The latest of these events sets it:

    the reservation, or its repetition    a lease from then on
    `extend` of reads, or of a tag        as long as it says
    `extend` of the owner                 the same, for all its reads in all queues

When the owner's last connection ends, the deadline is at most `grace` later. If the owner comes
back in time, it is what it was, and at least a lease later. A lease of 0 has no end, and only the
first two events concern it.

The latest event is found by a number that grows, so an extension costs the same however many reads
an owner has. A heap says which reservation or owner to look at next. Each reservation has an entry
that is not after its deadline; if the deadline was moved to a later time, it is looked at again
then.

What happens to an owner is noted once, for all its reads in all queues (`OwnerState`), of which
there may be a hundred thousand. When that may have moved deadlines to an earlier time, `Owners`
lets each of the queues look at the owner's reads at that time, some queues in each turn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from math import inf
from typing import Any, Final

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.journal.open_read import OpenRead, Reservation, ReserveTerms
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.reserved_reads import ReservedReads
from kestrelmq.journal.shared_empty import NOTHING, own
from kestrelmq.scheduling.deadline_heap import DeadlineHeap
from kestrelmq.scheduling.deadline_watch import Timed

_WOKEN_AT_ONCE: Final = 100
"""How many queues look at the reads of an owner in one piece of work."""
_AT_ONCE: Final = 1000
"""About how many reads to give back at once, so that nobody else waits for long."""


class OwnerState:
    """What concerns all reads of one owner.

    Attributes:
        connections: how many the owner has.
        queues: those in which it has reads.
        reads: how many it has.
        since: since when it has had reads without a break (monotonic seconds).
        deadline: when all their leases end, by the last `extend` of the owner.
        set_at: the number of that event; 0 when there was none.
        lost_at: when the owner's last connection ended, if it has none now.
        lost_number: the number of that event.
        back_at: when the owner came back.
        back_number: the number of that event; 0 when there was none.
        grace: the shortest grace of the reservations.
        extended_due: when the queues are to look at its reads because of the last `extend`;
            infinite when they need not, or have.
        lost_due: the same because of the end of its last connection.
        due: the earlier of both, if there is an entry for it.
    """

    __slots__ = (
        "back_at",
        "back_number",
        "connections",
        "deadline",
        "due",
        "extended_due",
        "grace",
        "lost_at",
        "lost_due",
        "lost_number",
        "queues",
        "reads",
        "set_at",
        "since",
    )

    def __init__(self) -> None:
        self.connections = self.reads = 0
        self.queues: dict[Reservations, None] = {}
        self.deadline = self.back_at = self.since = 0.0
        self.set_at = self.lost_number = self.back_number = 0
        self.lost_at: float | None = None
        self.grace = self.extended_due = self.lost_due = self.due = inf


@dataclass(frozen=True, slots=True)
class Held:
    """What an owner of reserved reads holds.

    Attributes:
        owner: its name.
        reads: how many reads it has, in all queues.
        queues: in how many queues those are.
        tags: how many tags of it are open.
        age: for how many seconds it has had reads without a break; since the start of the server
            at most.
        connections: how many connections have named it.
    """

    owner: str
    reads: int
    queues: int
    tags: int
    age: float
    connections: int


class Owner:
    """The reads of one owner in one queue.

    Attributes:
        state: what concerns its reads in other queues, too.
        since: the number of the last event of any owner before it had reads here.
        reads: how many.
        reservations: the reservations that have them, by number.
        due: when to look at these reads; infinite when that need not be.
        unseen: reservations that are still to be looked at, once it is due; also by number.
    """

    __slots__ = ("due", "reads", "reservations", "since", "state", "unseen")

    def __init__(self, state: OwnerState, since: int) -> None:
        self.state = state
        self.since = since
        self.reads = 0
        self.reservations: ReadTable[Reservation] = ReadTable()
        self.due = inf
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

    def add(self, reservation: Reservation, reads: Sequence[OpenRead], now: float) -> None:
        """Add a reservation of these reads, and begin its lease."""
        self.reserved.add(reservation, reads)
        self._enrol(reservation, reservation.left)
        self._begin_lease(reservation, now)

    def remove(self, reads: Sequence[OpenRead]) -> None:
        """Undo `add`."""
        reservation = reads[0].reservation
        assert reservation is not None  # noqa: S101 # it was added
        left = reservation.left
        self.reserved.end_all(reservation)
        self._dismiss(reservation, left)
        reservation.due = inf
        for read in reads:
            read.reserve(None)

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

    def end(self, read: OpenRead) -> None:
        """Forget a read that has ended; it may have been reserved."""
        reservation = read.reservation
        if reservation is not None:
            self.reserved.end(read)
            if not reservation.left:
                self._end_lease(reservation)
            self._dismiss(reservation, 1)

    def end_all(self, reads: Sequence[OpenRead]) -> None:
        """Forget some reads, as `end`; faster if they are all reads of one reservation."""
        reservation = reads[0].reservation
        others = [read for read in reads if read.reservation is not reservation]
        if reservation is None or others or len(reads) != reservation.left:
            for read in reads:
                self.end(read)
            return
        self.reserved.end_all(reservation)
        self._end_lease(reservation)
        self._dismiss(reservation, len(reads))

    def _end_lease(self, reservation: Reservation) -> None:
        # If a failed write undoes this, the owner may be forgotten by then.
        reservation.deadline = self._deadline(reservation)
        owner = self.owners.get(reservation.terms.owner)
        reservation.set_at = max(reservation.set_at, owner.state.set_at if owner else 0)
        reservation.due = inf

    def restore(self, read: OpenRead) -> None:
        """Undo `end`."""
        reservation = read.reservation
        if reservation is not None:
            self.reserved.restore(read)
            self._enrol(reservation, 1)
            deadline = self._deadline(reservation)
            if deadline < reservation.due:
                self._look_at(reservation, deadline)

    def drop_all(self) -> list[list[Any]]:
        """Forget all reservations; return lists of what is to be freed: there may be millions."""
        for name, one in self.owners.items():
            one.state.reads -= one.reads
            self.registry.forget(name, one.state, self)
        self.reserved.drop_all()
        useless: list[list[Any]] = [*self._heap.take_all()]
        for owner in self.owners.values():
            useless += [owner.reservations.take_pages(), owner.unseen.take_pages()]
        self.owners = NOTHING
        return useless

    def unused_memory(self) -> list[list[Any]]:
        """Return what is to be freed if no reads are reserved: there may be much."""
        if self.reserved.count or not len(self._heap):
            return []
        return [*self._heap.take_all()]

    # --- leases ---

    def extend(self, xids: Iterable[int], seconds: float, now: float) -> None:
        """Let the leases of these reads, which are reserved, end `seconds` from now."""
        together: dict[Reservation, list[int]] = {}
        for xid in xids:
            reservation = self.reserved.opened[xid].reservation
            assert reservation is not None  # noqa: S101 # it is reserved
            together.setdefault(reservation, []).append(xid)
        deadline, number = now + seconds, self.registry.next_event()
        for reservation, some in together.items():
            if len(some) == reservation.left:
                reservation.deadline, reservation.set_at = deadline, number
                reservation.extended = None
            else:
                extended = reservation.extended = reservation.extended or {}
                extended.update(dict.fromkeys(some, (deadline, number)))
            if deadline < reservation.due:
                self._look_at(reservation, deadline)

    def wake(self, owner: str, now: float) -> None:
        """Look at the reads of an owner in the next `take_overdue`: their leases may have ended."""
        found = self.owners.get(owner)
        if found is not None and now < found.due:
            self._look_at(found, now)

    def end_leases(self, reservations: Iterable[Reservation], now: float) -> None:
        """Let the leases of these reservations end at once; `now` is in monotonic seconds."""
        for reservation in reservations:
            reservation.deadline, reservation.extended = now, None
            reservation.set_at = self.registry.next_event()
            self._look_at(reservation, now)

    def lease_end(self, read: OpenRead) -> float:
        """Return when the lease of a reserved read ends (monotonic seconds, or inf); else 0."""
        reservation = read.reservation
        return 0.0 if reservation is None else self._deadline(reservation, read.xid)

    def open_tags(self, owner: str) -> int:
        """Return how many tags of an owner are open."""
        count = 0
        for reservation in self.reserved.by_tag.values():
            count += reservation.terms.owner == owner
        return count

    @property
    def has_deadlines(self) -> bool:
        """Whether a lease may end."""
        return self.reserved.count > 0

    @property
    def next_deadline(self) -> float | None:
        """When to call `take_overdue` next (monotonic seconds)."""
        first = self._heap.first
        if first is None or not self.reserved.count:
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
        """Return when the lease of a reservation, or of its read `xid`, ends."""
        deadline, set_at, terms = reservation.deadline, reservation.set_at, reservation.terms
        owner = self.owners.get(terms.owner) if terms.owner and terms.lease else None
        state = None if owner is None else owner.state
        # What happened to the owner before it had reads here does not count.
        begun = 0 if owner is None else owner.since
        if state is not None and state.set_at > max(set_at, begun):
            deadline, set_at = state.deadline, state.set_at
        if xid is not None and reservation.extended is not None:
            extended = reservation.extended.get(xid)
            if extended is not None and extended[1] > set_at:
                deadline, set_at = extended
        if state is not None:
            set_at = max(set_at, begun)
            if state.back_number > set_at:
                deadline = max(deadline, state.back_at + terms.lease / 1000)
            if state.lost_at is not None and state.lost_number > set_at:
                deadline = min(deadline, state.lost_at + terms.grace / 1000)
        return deadline

    def _begin_lease(self, reservation: Reservation, now: float) -> None:
        lease = reservation.terms.lease
        reservation.deadline = now + lease / 1000 if lease else inf
        reservation.set_at = self.registry.next_event()
        reservation.extended = None
        if reservation.deadline < reservation.due:
            self._look_at(reservation, reservation.deadline)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # --- the heap ---

    def _look_at(self, one: Reservation | Owner, due: float) -> None:
        """Look at a reservation or an owner when `due`, instead of at another time."""
        one.due = due
        live = self.reserved.count + len(self.owners)
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
            owner = self.owners[name] = self.registry.add(name, self)
        owner.reads += reads
        owner.state.reads += reads
        if reservation.terms.lease:
            owner.state.grace = min(owner.state.grace, reservation.terms.grace / 1000)
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
        owner.state.reads -= reads
        if not reservation.left:
            owner.reservations.pop(reservation.number)
        if not owner.reads:
            owner.due = inf
            del self.owners[name]
            self.registry.forget(name, owner.state, self)


def _is_due(entry: Due) -> bool:
    """Whether this is when to look at a reservation or an owner, and not at another time."""
    return entry[2].due == entry[0]


class Owners(Timed):
    """The owners of reserved reads: their connections, and the queues in which they have reads."""

    def __init__(
        self,
        clock: Clock | None = None,
        watch: Callable[[Timed], None] | None = None,
        watch_queue: Callable[[str], None] | None = None,
    ) -> None:
        """Start with none.

        Args:
            clock: the source of time; by default the machine's clock.
            watch: called with this object when its `check_deadlines` is to be called soon.
            watch_queue: called by `check_deadlines` with the name of a queue whose own is next.
        """
        self._clock = clock or SystemClock()
        self._watch = watch
        self._watch_queue = watch_queue
        self._states: dict[str, OwnerState] = {}
        self._events = self._number = 0
        self._heap: DeadlineHeap[tuple[float, int, str, OwnerState]] = DeadlineHeap()
        # The owner whose reads the queues are to look at now, and those that have not.
        self._waking = ""
        self._asleep: list[Reservations] = []

    def next_event(self) -> int:
        """Return the number of an event that concerns leases; it is higher than all before."""
        self._events += 1
        return self._events

    def adopt(self, queue: str, reservations: Reservations) -> None:
        """Add the owners of another queue."""
        self._events = max(self._events, reservations.registry.next_event())
        reservations.queue, reservations.registry = queue, self
        for name, owner in reservations.owners.items():
            old, owner.state, owner.since = owner.state, self._state(name), self._events
            self._add_queue(owner.state, reservations)
            owner.state.reads += owner.reads
            owner.state.grace = min(owner.state.grace, old.grace)

    def add(self, name: str, reservations: Reservations) -> Owner:
        """Add a queue in which an owner has reads; return the owner's reads there."""
        state = self._state(name)
        self._add_queue(state, reservations)
        return Owner(state, self._events)

    def _add_queue(self, state: OwnerState, reservations: Reservations) -> None:
        if not state.queues:
            state.since = self._clock.monotonic()
        state.queues[reservations] = None

    def forget(self, name: str, state: OwnerState, reservations: Reservations) -> None:
        """Remove a queue in which an owner has no reads any more."""
        state.queues.pop(reservations, None)
        self._forget_unused(name, state)

    def connected(self, name: str, now: float) -> None:
        """Count another connection of an owner; now is in monotonic seconds."""
        state = self._state(name)
        state.connections += 1
        if state.lost_at is not None:
            state.lost_at, state.lost_due = None, inf
            state.back_at, state.back_number = now, self.next_event()

    def disconnected(self, name: str, now: float) -> None:
        """Count a connection of an owner less: it has ended."""
        state = self._states[name]
        state.connections -= 1
        if not state.connections and state.queues:
            state.lost_at, state.lost_number = now, self.next_event()
            state.lost_due = now + state.grace
            self._look_at(name, state)
        self._forget_unused(name, state)

    def reads_of(self, name: str, most: int | None = None) -> dict[str, int]:
        """Return how many reads an owner has, by queue, in at most so many queues."""
        state = self._states.get(name)
        if state is None:
            return {}
        return {one.queue: one.owners[name].reads for one in islice(state.queues, most)}

    def holding(self, pattern: str = "*") -> Iterator[Held | None]:
        """Yield what each owner holds, in order of the names; None for one that does not match."""
        for name in sorted(self._states):
            state = self._states.get(name)
            if state is None or not fnmatchcase(name, pattern):
                yield None
            else:
                age = self._clock.monotonic() - state.since if state.queues else 0.0
                tags = sum([one.open_tags(name) for one in list(state.queues)])
                yield Held(name, state.reads, len(state.queues), tags, age, state.connections)

    def extend(self, name: str, seconds: float, now: float) -> int:
        """Let the leases of all reads of an owner end `seconds` from now; return how many."""
        state = self._states.get(name)
        if state is None or not state.queues:
            return 0
        state.deadline, state.set_at = now + seconds, self.next_event()
        state.extended_due = state.deadline
        self._look_at(name, state)
        return state.reads

    def check_deadlines(self) -> float | None:
        """Let queues look at the reads of owners, if that is due; some of them at once."""
        now = self._clock.monotonic()
        while not self._asleep:
            first = self._heap.first
            if first is None or first > now:
                return first
            due, _, name, state = self._heap.pop()
            if state.due != due:
                continue  # it is looked at another time
            state.due = inf
            if min(state.extended_due, state.lost_due) <= now:
                self._waking, self._asleep = name, list(state.queues)
            if state.extended_due <= now:
                state.extended_due = inf
            if state.lost_due <= now:
                state.lost_due = inf
            self._look_at(name, state)
        for _ in range(min(len(self._asleep), _WOKEN_AT_ONCE)):
            reservations = self._asleep.pop()
            reservations.wake(self._waking, now)
            if self._watch_queue is not None:
                self._watch_queue(reservations.queue)
        return now

    def _state(self, name: str) -> OwnerState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = OwnerState()
        return state

    def _forget_unused(self, name: str, state: OwnerState) -> None:
        if not state.connections and not state.queues and self._states.get(name) is state:
            state.due = inf
            del self._states[name]

    def _look_at(self, name: str, state: OwnerState) -> None:
        due = min(state.extended_due, state.lost_due)
        if due < state.due:
            state.due = due
            self._number += 1
            entry = (due, self._number, name, state)
            self._heap.push(entry, len(self._states), _is_owner_due)
            if self._watch is not None:
                self._watch(self)


def _is_owner_due(entry: tuple[float, int, str, OwnerState]) -> bool:
    return entry[3].due == entry[0]
