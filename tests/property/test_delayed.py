"""Delayed items against a sorted list: joins, failures, restarts and crashes in any order."""

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kestrelmq.config import QueueConfig
from kestrelmq.format.records import item_data
from tests.support.crashing_directory import CrashLoss
from tests.support.crashing_queues import NAME, QueuesMachine
from tests.support.examples import examples

pytestmark = pytest.mark.compiled_only

_MANY = 50
"""Delayed items that memory has room for, at least."""


class DelayMachine(QueuesMachine):
    """The rules; `waiting` and `late` are the model: `late` has when each is due, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.waiting: deque[bytes] = deque()
        self.late: list[tuple[int, bytes]] = []

    @initialize(
        default=st.sampled_from([60, 300, 5000]),
        dialect=st.sampled_from(["documented", "kestrel-2"]),
    )
    def begin(self, default: int, dialect: str) -> None:
        """Draw the limits, and start on an empty queue path."""
        config = QueueConfig(
            max_memory_size=10_000,
            default_journal_size=default,
            max_journal_size=1500,
            min_journal_compact_delay=0,
            journal_dialect=dialect,
        )
        self.start(config)

    def new_item(self, size: int) -> bytes:
        """Return an item that was never there."""
        self.number += 1
        return b"%d:" % self.number + b"x" * size

    # --- operations, each a turn of its own ---

    @rule(size=st.sampled_from([0, 30, 80]))
    def add(self, size: int) -> None:
        """Add an item that waits at once."""
        data = self.new_item(size)
        assert self.queue.add(data)
        if self.commit():
            self.waiting.append(data)

    @rule(delays=st.lists(st.sampled_from([1, 1000, 2000, 5000, 60_000]), min_size=1, max_size=4))
    def delay(self, delays: list[int]) -> None:
        """Add some delayed items in one turn."""
        added: list[tuple[int, bytes]] = []
        for delay in delays:
            data = self.new_item(10)
            due = self.clock.now() + delay
            if not self.queue.add(data, due=due):
                assert len(self.late) + len(added) > _MANY  # memory has no room for more
                break
            added.append((due, data))
        if self.commit():
            self.late = sorted(self.late + added, key=lambda one: one[0])

    @rule(count=st.integers(1, 4))
    def remove(self, count: int) -> None:
        """Remove some items in one turn."""
        taken = [self.queue.line.remove() for _ in range(count)]
        if self.commit():
            for record in taken:
                expected = self.waiting.popleft() if self.waiting else None
                assert (None if record is None else item_data(record)) == expected

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is due joins, in order, unless the disk is broken."""
        self.clock.advance(seconds)
        self.collection.tick()
        self.collection.check_deadlines()
        self.commit()
        joined = len(self.late) - self.queue.delayed_items
        assert all(due <= self.clock.now() for due, _ in self.late[:joined])
        self.waiting += [data for _, data in self.late[:joined]]
        self.late = self.late[joined:]

    @precondition(lambda self: not self.broken)
    @rule()
    def wait_until_all_joined(self) -> None:
        """A second after the last failure, all that is due is there."""
        self.pass_time(1.0)
        self.pass_time(1.0)
        assert not self.late or self.late[0][0] > self.clock.now()

    @precondition(lambda self: not self.broken)
    @rule()
    def flush(self) -> None:
        """Drop everything."""
        assert self.queue.flush() == len(self.waiting) + len(self.late)
        self.commit()
        self.waiting.clear()
        self.late.clear()

    @precondition(lambda self: not self.broken)
    @rule()
    def delete(self) -> None:
        """Delete the queue; it comes into being again."""
        self.collection.delete(NAME)
        self.commit()
        self.waiting.clear()
        self.late.clear()

    # --- the disk, restarts, crashes ---

    @precondition(lambda self: not self.broken)
    @rule(what=st.sampled_from(["append", "sync", "rename", "create"]), tears=st.booleans())
    def break_disk(self, what: str, tears: bool) -> None:  # noqa: FBT001 # drawn
        """From now on, steps of this kind fail."""
        self.commit()
        self.break_steps(what, tears=tears)

    @precondition(lambda self: self.broken)
    @rule()
    def mend_disk(self) -> None:
        """The disk works again; see what became of what was due meanwhile."""
        self.mend()
        self.pass_time(0.0)

    @precondition(lambda self: not self.broken)
    @rule()
    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.start_again()

    @precondition(lambda self: not self.broken)
    @rule()
    def kill(self) -> None:
        """Kill the server; everything that was answered is there."""
        self.start_again(CrashLoss.KILLED)

    @precondition(lambda self: not self.broken)
    @rule(loss=st.sampled_from([CrashLoss.POWER_LOST, CrashLoss.NAMES_KEPT]))
    def lose_power(self, loss: CrashLoss) -> None:
        """After a sync, nothing is lost by a crash."""
        if not self.queue.journal.size or getattr(self.queue.journal, "suspect", False):
            return
        self.queue.sync()
        self.start_again(loss)

    @invariant()
    def counts_agree(self) -> None:
        """The queue counts what the model holds."""
        if self.broken:
            return
        assert len(self.queue) == len(self.waiting)
        assert self.queue.delayed_items == len(self.late)
        delayed = self.queue.backlog.delayed
        if delayed is not None:
            assert [item_data(one) for one in delayed.in_order()] == [data for _, data in self.late]
            assert delayed.size == sum(len(data) for _, data in self.late)
        assert [item_data(one) for one in self.queue.backlog.browse(1000)] == list(self.waiting)

    def compare_at_end(self) -> None:
        """Everything comes, in order, and once."""
        if self.broken:
            self.mend_disk()
        self.start_again()
        self.clock.advance(100)
        for _ in range(2):
            self.pass_time(1.0)
            while self.worker.step():
                pass
        assert not self.late
        self.counts_agree()
        self.collection.close()


TestDelayMachine = DelayMachine.TestCase
TestDelayMachine.settings = settings(
    max_examples=examples(40),
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
