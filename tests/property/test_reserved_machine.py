"""Reserved reads against a plain model: leases, owners, tags, restarts, kills and failing writes.

The journals are so short that they are rewritten and packed all the time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kestrelmq.errors import TagRefused
from kestrelmq.format.records import item_data, item_deliveries
from kestrelmq.journal.open_read import ReserveTerms
from tests.support.crashing_directory import CrashLoss
from tests.support.crashing_queues import QueuesMachine, short_journals
from tests.support.examples import examples
from tests.support.open_reads import open_read, record_bytes, reservations

pytestmark = pytest.mark.compiled_only

LEASES = (2, 10)
# Leases that end in the same moment, one by itself and one of an owner, end in any order. So these
# times differ from those of others by a fraction of a second.
GRACE = 1.125
OWNER_EXTENSIONS = [1.25, 5.25, 20.25]
OWNERS = ("first", "second")
TAGS = tuple(f"{name}:{epoch}:x" for name in "ab" for epoch in (1, 2, 3))
fails = st.sampled_from([False, False, False, True])


@dataclass(frozen=True)
class Entry:
    """An item, and how often it was handed out before."""

    data: bytes
    deliveries: int = 0


@dataclass
class Held:
    """A reservation of the model: its reads, and when its lease ends."""

    terms: ReserveTerms
    reads: dict[int, Entry]
    deadline: float
    before_loss: float | None = field(default=None)


class ReservedMachine(QueuesMachine):
    """The rules; what is `waiting`, `held`, `done` and `retired` is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count(1)
        self.waiting: list[Entry] = []
        self.plain: dict[int, Entry] = {}
        self.held_back: dict[int, Entry] = {}
        self.held: dict[int, Held] = {}
        self.done: dict[str, int] = {}
        self.retired: dict[str, int] = {}
        self.connected: set[str] = set()

    @initialize(
        memory=st.sampled_from([60, 10_000]),
        size=st.sampled_from([100, 400, 5000]),
        dialect=st.sampled_from(["documented", "kestrel-2"]),
    )
    def begin(self, memory: int, size: int, dialect: str) -> None:
        """Draw the limits, and start on an empty queue path."""
        config = short_journals(memory, size, dialect)
        self.start(config)
        for _ in range(4):
            self.add([1, 30, 1, 1])

    @property
    def now(self) -> float:
        """The time."""
        return self.clock.monotonic()

    def apply(
        self, step: Callable[[], None], model: Callable[[], None], *, fails: bool = False
    ) -> None:
        """Do something and commit, perhaps on a disk that fails; the model follows if it works.

        Not while an owner is gone: if its only read is ended, and that cannot be written, the read
        keeps the end of the grace, even if its owner comes back in time.
        """
        if fails and all(one.before_loss is None for one in self.held.values()):
            self.directory.break_steps("append")
        step()
        failed = bool(self.collection.commits.commit())
        self.directory.mend()
        if failed:
            assert fails
        else:
            model()

    def put_back(self, xids: list[int], reads: dict[int, Entry], *, counted: bool = True) -> None:
        """Give reads of the model back, the first to the head."""
        entries = [reads.pop(xid) for xid in xids]
        if counted:
            entries = [replace(entry, deliveries=entry.deliveries + 1) for entry in entries]
        self.waiting = entries + self.waiting

    # --- items ---

    @rule(sizes=st.lists(st.sampled_from([1, 30]), min_size=2, max_size=8))
    def add(self, sizes: list[int]) -> None:
        """Add items."""
        entries = [Entry(b"%d:" % next(self.numbers) + b"x" * size) for size in sizes]

        def step() -> None:
            for entry in entries:
                assert self.queue.add(entry.data)

        self.apply(step, lambda: self.waiting.extend(entries))

    @rule()
    def remove(self) -> None:
        """Remove the head."""
        record = self.queue.line.remove()
        assert not self.collection.commits.commit()
        expected = self.waiting.pop(0).data if self.waiting else None
        assert (None if record is None else item_data(record)) == expected

    @rule()
    def open_read(self) -> None:
        """Open a read that is not reserved."""
        opened = open_read(self.queue)
        assert not self.collection.commits.commit()
        assert (opened is None) == (not self.waiting)
        if opened is not None:
            self.plain[opened[0]] = self.waiting.pop(0)

    # --- reserving ---

    def is_retired(self, tag: str) -> bool:
        """Whether the epoch of `tag` is over."""
        name, epoch, _ = tag.split(":")
        return int(epoch) <= self.retired.get(name, -1)

    @rule(most=st.integers(1, 4), lease=st.sampled_from(LEASES), fails=fails)
    def reserve_plainly(self, most: int, lease: int, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Reserve items for nobody."""
        self.reserve(most, ReserveTerms(lease * 1000, int(GRACE * 1000)), fails=fails)

    @rule(
        most=st.integers(1, 4),
        lease=st.sampled_from(LEASES),
        owner=st.sampled_from(OWNERS),
        fails=fails,
    )
    def reserve_for_owner(self, most: int, lease: int, owner: str, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Reserve items for somebody who is connected."""
        self.connect(owner)
        self.reserve(most, ReserveTerms(lease * 1000, int(GRACE * 1000), owner), fails=fails)

    @rule(
        most=st.integers(1, 4),
        lease=st.sampled_from(LEASES),
        owner=st.sampled_from(("", *OWNERS)),
        tag=st.sampled_from(TAGS),
        fails=fails,
    )
    def reserve_with_tag(self, most: int, lease: int, owner: str, tag: str, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Reserve items, or get those of an open tag again."""
        terms = ReserveTerms(lease * 1000, int(GRACE * 1000), owner, tag)
        if owner:
            self.connect(owner)
        if self.is_retired(tag):
            with pytest.raises(TagRefused):
                self.queue.reserved.again(terms)
            with pytest.raises(TagRefused):
                self.queue.reserved.reserve(terms, 1, most, 1000)
            return
        known = next((one for one in self.held.values() if one.terms.tag == tag), None)
        if known is None:
            assert self.queue.reserved.again(terms) is None
            assert self.queue.reserved.is_done(tag) == (tag in self.done)
            if tag not in self.done:
                self.reserve(most, terms, fails=fails)
            return
        again = self.queue.reserved.again(terms)
        assert again is not None
        assert self.held[again.nonce] is known
        xids, items = self.queue.reserved.reads_of(again)
        reads = dict(zip(xids, map(item_data, items), strict=True))
        assert reads == {xid: entry.data for xid, entry in known.reads.items()}
        assert not self.collection.commits.commit()
        known.terms, known.deadline, known.before_loss = terms, self.now + lease, None

    def reserve(self, most: int, terms: ReserveTerms, *, fails: bool) -> None:
        """Reserve items on new terms."""
        nonce = next(self.numbers)
        taken = self.waiting[:most]
        reads: dict[int, Entry] = {}

        def step() -> None:
            reservation = self.queue.reserved.reserve(terms, nonce, most, 1000)
            if fails and reservation is None:
                return  # the disk failed while memory was filled
            xids, items = (
                ((), []) if reservation is None else self.queue.reserved.reads_of(reservation)
            )
            if not fails:
                assert [(item_data(one), item_deliveries(one)) for one in items] == [
                    (entry.data, entry.deliveries) for entry in taken
                ]
            reads.update(zip(xids, taken, strict=False))

        def model() -> None:
            del self.waiting[:most]
            if reads:
                self.held[nonce] = Held(terms, reads, self.now + terms.lease / 1000)

        self.apply(step, model, fails=fails)

    @precondition(lambda self: bool(self.held))
    @rule(number=st.integers(0, 99), some=st.integers(1, 3), fails=fails)
    def finish(self, number: int, some: int, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Finish some reads of a reservation; one that nobody knows is left out."""
        nonce, held = list(self.held.items())[number % len(self.held)]
        xids = list(held.reads)[:some]

        def step() -> None:
            named = [(nonce, tuple(xids)), *([(0, (xids[0],))] if some % 2 else [])]
            found = self.queue.reserved.find(named)
            assert list(found) == xids
            assert all(self.queue.reads.confirm(xid) for xid in found)

        def model() -> None:
            for xid in xids:
                del held.reads[xid]

        self.apply(step, model, fails=fails)
        self.forget_ended()

    @rule(tag=st.sampled_from(TAGS), number=st.integers(0, 9), fails=fails)
    def finish_tag(self, tag: str, number: int, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Finish a tag, again and again; rather one that is open."""
        opened = [one.terms.tag for one in self.held.values() if one.terms.tag]
        if opened and number:
            tag = opened[number % len(opened)]
        if self.is_retired(tag):
            with pytest.raises(TagRefused):
                self.queue.reserved.finish(tag)
            return
        known = next((one for one in self.held.values() if one.terms.tag == tag), None)
        expected = len(known.reads) if known is not None else self.done.get(tag, 0)

        def step() -> None:
            assert self.queue.reserved.finish(tag) == expected

        def model() -> None:
            if known is not None:
                self.done[tag] = len(known.reads)
                known.reads.clear()

        self.apply(step, model, fails=fails)
        self.forget_ended()

    @precondition(lambda self: bool(self.held))
    @rule(number=st.integers(0, 99), some=st.integers(1, 3), counted=st.booleans(), fails=fails)
    def release(self, number: int, some: int, counted: bool, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Give some reads of a reservation back."""
        held = list(self.held.values())[number % len(self.held)]
        xids = list(held.reads)[:some]

        def step() -> None:
            assert self.queue.returns.give_back(xids, counted=counted) == len(xids)

        self.apply(step, lambda: self.put_back(xids, held.reads, counted=counted), fails=fails)
        self.forget_ended()

    @rule(name=st.sampled_from("ab"), epoch=st.sampled_from([0, 0, 1, 2]), fails=fails)
    def retire(self, name: str, epoch: int, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Retire an epoch."""
        tags = [tag for tag in TAGS if tag[0] == name and int(tag[2]) <= epoch]
        held = [one for one in self.held.values() if one.terms.tag in tags]
        done = [tag for tag in tags if tag in self.done]
        is_new = epoch > self.retired.get(name, -1)

        def step() -> None:
            assert self.queue.reserved.retire(name, epoch) == (len(held) + len(done)) * is_new

        def model() -> None:
            if is_new:
                self.retired[name] = epoch
                reads: dict[int, Entry] = {}
                for one in held:
                    reads |= one.reads
                    one.reads.clear()
                self.put_back(sorted(reads), reads, counted=False)
                for tag in done:
                    del self.done[tag]

        self.apply(step, model, fails=fails)
        self.forget_ended()

    @precondition(lambda self: bool(self.held))
    @rule(number=st.integers(0, 99), some=st.integers(1, 3), counted=st.booleans(), fails=fails)
    def release_later(self, number: int, some: int, counted: bool, fails: bool) -> None:  # noqa: FBT001 # drawn
        """Give some reads of a reservation back after a time that only a restart cuts short."""
        held = list(self.held.values())[number % len(self.held)]
        xids = list(held.reads)[:some]

        def step() -> None:
            assert self.queue.returns.give_back(xids, counted=counted, delay=1e6) == len(xids)

        def model() -> None:
            for xid in xids:
                entry = held.reads.pop(xid)
                # A restart counts it, as it counts all that it gives back.
                back = entry if counted else replace(entry, deliveries=entry.deliveries - 1)
                self.held_back[xid] = back

        self.apply(step, model, fails=fails)
        self.forget_ended()

    # --- time ---

    @precondition(lambda self: bool(self.held))
    @rule(number=st.integers(0, 99), seconds=st.sampled_from([1, 5, 20]))
    def extend(self, number: int, seconds: int) -> None:
        """Extend a reservation."""
        held = list(self.held.values())[number % len(self.held)]
        assert self.queue.reads.extend_leases(list(held.reads), seconds) == len(held.reads)
        held.deadline, held.before_loss = self.now + seconds, None

    @rule(owner=st.sampled_from(OWNERS), seconds=st.sampled_from(OWNER_EXTENSIONS))
    def extend_owner(self, owner: str, seconds: float) -> None:
        """Extend all reads of an owner."""
        self.connect(owner)
        theirs = [one for one in self.held.values() if one.terms.owner == owner]
        expected = sum(len(one.reads) for one in theirs)
        assert self.collection.owners.extend(owner, seconds, self.now) == expected
        for one in theirs:
            one.deadline, one.before_loss = self.now + seconds, None

    @rule(owner=st.sampled_from(OWNERS))
    def connect(self, owner: str) -> None:
        """Let an owner have a connection."""
        if owner in self.connected:
            return
        self.connected.add(owner)
        self.collection.owners.connected(owner, self.now)
        for one in self.held.values():
            if one.terms.owner == owner and one.before_loss is not None:
                one.deadline = max(one.before_loss, self.now + one.terms.lease / 1000)
                one.before_loss = None

    @rule(owner=st.sampled_from(OWNERS))
    def disconnect(self, owner: str) -> None:
        """End the last connection of an owner."""
        if owner not in self.connected:
            return
        self.connected.remove(owner)
        self.collection.owners.disconnected(owner, self.now)
        for one in self.held.values():
            if one.terms.owner == owner:
                one.before_loss = one.deadline
                one.deadline = min(one.deadline, self.now + GRACE)

    @rule(seconds=st.sampled_from([0.5, 1, 3, 9]))
    def wait(self, seconds: float) -> None:
        """Let time pass: overdue reads are given back, and journals attended to.

        The server looks when something is due. Leases that ended one after the other, and that it
        finds together, may end in any order.
        """
        end = self.now + seconds
        while dues := [one.deadline for one in self.held.values() if one.deadline <= end]:
            self.clock.advance(min(dues) - self.now)
            self.give_back_overdue()
        self.clock.advance(end - self.now)
        self.give_back_overdue()
        self.collection.tick()

    def give_back_overdue(self) -> None:
        """Give back the reads whose leases have ended."""
        self.collection.check_deadlines()
        overdue = {
            xid: entry
            for one in self.held.values()
            if one.deadline <= self.now
            for xid, entry in one.reads.items()
        }
        for one in self.held.values():
            if one.deadline <= self.now:
                one.reads.clear()
        self.put_back(sorted(overdue), overdue)
        self.forget_ended()

    def forget_ended(self) -> None:
        """Forget reservations of the model that have no reads."""
        self.held = {nonce: held for nonce, held in self.held.items() if held.reads}

    # --- restarts ---

    def restarted(self) -> None:
        """What a restart does to the model: leases begin anew, other reads are given back."""
        self.connected.clear()
        ended = self.plain | self.held_back
        self.put_back(sorted(ended), ended)
        self.plain, self.held_back = {}, {}
        for one in self.held.values():
            one.deadline, one.before_loss = self.now + one.terms.lease / 1000, None

    @rule()
    def restart(self) -> None:
        """Stop the server and start it again."""
        self.start_again()
        self.restarted()

    @rule()
    def kill(self) -> None:
        """Kill the server, and start it again."""
        self.start_again(CrashLoss.KILLED)
        self.restarted()

    # --- what is always so ---

    @invariant()
    def the_queue_agrees(self) -> None:
        """The queue has what the model has."""
        queue, reserved = self.queue, self.queue.reads.reserved
        assert len(queue) == len(self.waiting)
        in_memory = [(item_data(one), item_deliveries(one)) for one in queue.backlog.browse(1000)]
        model = [(entry.data, entry.deliveries) for entry in self.waiting]
        assert in_memory == model[: len(in_memory)]
        assert {xid: one.nonce for xid, one in reservations(queue.reads.open).items()} == {
            xid: nonce for nonce, one in self.held.items() for xid in one.reads
        }
        for nonce, one in self.held.items():
            for xid, entry in one.reads.items():
                found = reservations(queue.reads.open)[xid]
                assert (found.nonce, found.terms) == (nonce, one.terms)
                assert item_data(queue.reads.open[xid].item) == entry.data
        assert queue.reads.open_bytes == record_bytes(queue.reads.open)
        assert queue.reads.held == len(self.plain) + sum(
            len(one.reads) for one in self.held.values()
        )
        assert reserved.done == self.done
        assert reserved.retired == self.retired

    def compare_at_end(self) -> None:
        """Restart, and compare."""
        self.restart()
        self.the_queue_agrees()
        self.collection.close()


TestReserved = ReservedMachine.TestCase
TestReserved.settings = settings(
    max_examples=examples(60),
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
