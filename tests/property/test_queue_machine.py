"""A queue against a list and a dictionary: limits so small that everything happens all the time.

Rotation, packing and rewriting run in a worker that is held, so that operations, failures,
restarts and crashes come in between their steps.
"""

from collections import deque
from dataclasses import dataclass, replace
from shutil import rmtree

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import item_data, item_deliveries
from kestrelmq.journal.writer import FileJournal
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.upkeep import upkeep
from kestrelmq.upkeep.states import Waiting
from tests.support.crashing_directory import CrashLoss
from tests.support.crashing_queues import NAME, QueuesMachine
from tests.support.examples import examples
from tests.support.open_reads import open_read, record_bytes
from tests.support.readings import replayed

pytestmark = pytest.mark.compiled_only


@dataclass(frozen=True)
class Entry:
    """What the model knows of an item."""

    data: bytes
    expiry: int
    deliveries: int = 0

    @property
    def again(self) -> "Entry":
        """The item when a reader who had it gave it back."""
        return replace(self, deliveries=self.deliveries + 1)


State = tuple[tuple[bytes, int], ...]
"""What waits in a queue: the data of each item, and how often it was handed out."""


class QueueMachine(QueuesMachine):
    """The rules; `waiting` and `reads` are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.waiting: deque[Entry] = deque()
        self.reads: dict[int, Entry] = {}
        self.known: dict[bytes, Entry] = {}
        self.history: list[State] = [()]

    @initialize(
        memory=st.sampled_from([40, 150, 10_000]),
        default=st.sampled_from([60, 300, 5000]),
        maximum=st.sampled_from([400, 1500]),
        delay=st.sampled_from([0, 2]),
        kept=st.sampled_from([0, 0, 2]),
        lazy=st.booleans(),
        dialect=st.sampled_from(["documented", "kestrel-2"]),
        at_hand=st.sampled_from([0, 50_000]),
        at_once=st.sampled_from([0, 100_000]),
    )
    def begin(
        self,
        memory: int,
        default: int,
        maximum: int,
        delay: int,
        kept: int,
        lazy: bool,  # noqa: FBT001 # drawn
        dialect: str,
        at_hand: int,
        at_once: int,
    ) -> None:
        """Draw the limits, and start on an empty queue path."""
        config = QueueConfig(
            max_memory_size=memory,
            default_journal_size=default,
            max_journal_size=maximum,
            min_journal_compact_delay=delay,
            keep_replaced_journals=kept,
            disable_aggressive_rewrites=lazy,
            journal_dialect=dialect,
        )
        self._at_hand, self._at_once = upkeep.COPIED_ITEMS_LIMIT, upkeep.INLINE_TRIM_LIMIT
        upkeep.COPIED_ITEMS_LIMIT = at_hand  # type: ignore[misc] # put back by `compare_at_end`
        upkeep.INLINE_TRIM_LIMIT = at_once  # type: ignore[misc] # as above
        self.start(config)

    # --- the model ---

    def state(self) -> State:
        """What a restart would find, as the model has it."""
        given_back = [self.reads[xid].again for xid in sorted(self.reads)]
        return tuple((entry.data, entry.deliveries) for entry in (*given_back, *self.waiting))

    def sweep(self) -> None:
        """Drop expired items off the head of the model."""
        now = self.clock.now()
        while self.waiting and 0 < self.waiting[0].expiry <= now:
            self.waiting.popleft()

    def done(self) -> None:
        """Note the state after an operation."""
        self.history.append(self.state())

    def give_back_all(self) -> None:
        """Give back every open read, as a restart does."""
        for xid in sorted(self.reads, reverse=True):
            self.waiting.appendleft(self.reads.pop(xid).again)

    # --- operations, each a turn of its own ---

    @rule(
        sizes=st.lists(st.sampled_from([0, 3, 30, 80]), min_size=1, max_size=5),
        expires=st.sampled_from([0, 0, 0, 0, 1500]),
    )
    def add(self, sizes: list[int], expires: int) -> None:
        """Add some items in one turn."""
        expiry = self.clock.now() + expires if expires else 0
        entries = []
        try:
            for size in sizes:
                self.number += 1
                entry = Entry(b"%d:" % self.number + b"x" * size, expiry)
                self.known[entry.data] = entry
                assert self.queue.add(entry.data, expiry)
                entries.append(entry)
        except QueueUnavailable:
            assert self.may_fail
        before = list(self.waiting)
        if self.commit() and len(entries) == len(sizes):
            for entry in entries:
                self.sweep()
                self.waiting.append(entry)
            self.done()
        else:
            assert self.may_fail
            self.waiting = deque(before)

    @rule(size=st.sampled_from([0, 30, 80]))
    def add_large(self, size: int) -> None:
        """Add an item that is written in a round, as if it were large."""
        self.number += 1
        entry = Entry(b"%d:" % self.number + b"x" * size, 0)
        self.known[entry.data] = entry
        try:
            assert self.queue.add(entry.data)
        except QueueUnavailable:
            assert self.may_fail
            self.commit()
            return
        self.queue.changes.is_large = True
        if self.commit():
            self.sweep()
            self.waiting.append(entry)
            self.done()
        else:
            assert self.may_fail

    @rule(count=st.integers(1, 6))
    def remove(self, count: int) -> None:
        """Remove some items in one turn."""
        taken = []
        try:
            taken = [self.queue.line.remove() for _ in range(count)]
        except QueueUnavailable:
            assert self.may_fail
            self.commit()
            return
        if self.commit():
            for record in taken:
                self.sweep()
                expected = self.waiting.popleft().data if self.waiting else None
                assert (None if record is None else item_data(record)) == expected
            self.done()

    @rule()
    def peek(self) -> None:
        """Look at the head."""
        try:
            record = self.queue.line.peek()
        except QueueUnavailable:
            assert self.may_fail
            self.commit()
            return
        if self.commit():
            self.sweep()
            expected = self.waiting[0].data if self.waiting else None
            assert (None if record is None else item_data(record)) == expected
            self.done()

    @rule()
    def open_read(self) -> None:
        """Open a read."""
        try:
            opened = open_read(self.queue)
        except QueueUnavailable:
            assert self.may_fail
            self.commit()
            return
        if self.commit():
            self.sweep()
            expected = self.waiting.popleft() if self.waiting else None
            assert (opened is None) == (expected is None)
            if opened is not None and expected is not None:
                assert opened[0] not in self.reads
                assert item_data(opened[1]) == expected.data
                read = self.queue.reads.open[opened[0]]
                assert read.deliveries == expected.deliveries
                self.reads[opened[0]] = expected
            self.done()

    @precondition(lambda self: bool(self.reads))
    @rule(number=st.integers(0, 1000))
    def confirm(self, number: int) -> None:
        """Finish one of the open reads."""
        xid = list(self.reads)[number % len(self.reads)]
        assert self.queue.reads.confirm(xid)
        if self.commit():
            del self.reads[xid]
            self.done()

    @precondition(lambda self: bool(self.reads))
    @rule(number=st.integers(0, 1000), counted=st.booleans())
    def give_back(self, number: int, counted: bool) -> None:  # noqa: FBT001 # drawn
        """Give one of the open reads back."""
        xid = list(self.reads)[number % len(self.reads)]
        assert self.queue.returns.give_back((xid,), counted=counted) == 1
        if self.commit():
            entry = self.reads.pop(xid)
            self.waiting.appendleft(entry.again if counted else entry)
            self.done()

    @rule()
    def flush(self) -> None:
        """Drop everything that waits."""
        try:
            self.queue.flush()
        except JournalError:
            assert self.may_fail
            self.commit()
            return
        self.commit()
        self.waiting.clear()
        self.done()

    @precondition(lambda self: not self.broken)
    @rule()
    def delete(self) -> None:
        """Delete the queue; it comes into being again."""
        self.collection.delete(NAME)
        self.commit()
        self.waiting.clear()
        self.reads.clear()
        self.history = [()]

    @precondition(lambda self: not self.broken)
    @rule(dialect=st.sampled_from(["documented", "kestrel-2"]))
    def change_dialect(self, dialect: str) -> None:
        """Have another dialect from the next start on, or when the queue is created again."""
        self.configure(journal_dialect=dialect)

    @precondition(lambda self: not self.broken)
    @rule(memory=st.sampled_from([40, 150, 10_000]), maximum=st.sampled_from([400, 1500]))
    def change_limits(self, memory: int, maximum: int) -> None:
        """Put other limits in force."""
        self.configure(max_memory_size=memory, max_journal_size=maximum)

    def configure(self, **settings: object) -> None:
        """Put other settings in force, also for later starts."""
        self.queues.config = self.queues.config.model_copy(update=settings)
        config = self.collection.config.model_copy(update={"default": self.queues.config})
        self.collection.reload(config)

    # --- time, the worker, the disk ---

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass, and the upkeep have its turn."""
        self.clock.advance(seconds)
        self.collection.tick()

    @rule(seconds=st.integers(-5, 5))
    def step_clock(self, seconds: int) -> None:
        """Set the clock, forwards or backwards."""
        self.clock.step(seconds * 1000)

    @rule()
    def sync(self) -> None:
        """Force everything to disk, or fail to."""
        try:
            self.queue.sync()
        except OSError:
            return
        self.history = self.history[-1:]

    @precondition(lambda self: not self.broken)
    @rule(
        what=st.sampled_from(["append", "sync", "rename", "create", "open", "remove", ""]),
        tears=st.booleans(),
    )
    def break_disk(self, what: str, tears: bool) -> None:  # noqa: FBT001 # drawn
        """From now on, steps of this kind fail; appends perhaps with half of it written."""
        self.queue.line.peek()
        self.commit()
        self.sweep()
        self.done()
        self.break_steps(what, tears=tears)

    @precondition(lambda self: self.broken)
    @rule()
    def mend_disk(self) -> None:
        """The disk works again."""
        self.mend()

    @precondition(lambda self: self.broken)
    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def recover(self, seconds: float) -> None:
        """The disk works again, and the upkeep tries again."""
        self.mend()
        self.clock.advance(seconds)
        self.collection.tick()
        self.worker.step()

    # --- ends ---

    @precondition(lambda self: not self.broken)
    @rule()
    def restart(self) -> None:
        """Stop the server cleanly and start it again."""
        self.start_again()
        self.give_back_all()
        self.history = [self.state()]

    @rule(loss=st.sampled_from(CrashLoss))
    def crash(self, loss: CrashLoss) -> None:
        """Crash, lose what may be lost, and come up with a state that may be."""
        expected = self.history[-1:] if loss is CrashLoss.KILLED else self.history
        self.start_again(loss)
        found = self.everything()
        assert found in expected, (loss, found, expected)
        self.reads.clear()
        self.waiting = deque(
            replace(self.known[data], deliveries=deliveries) for data, deliveries in found
        )
        self.history = [found]

    def everything(self) -> State:
        """Read all items of the queue, those on disk too, by way of a copy of its files."""
        copy = self.root / "copy"
        rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in self.directory.names():
            (copy / name).write_bytes((self.directory.path / name).read_bytes())
        whole = self.queues.config.model_copy(update={"max_memory_size": 1 << 30})
        collection = QueueCollection(ServerConfig(queue_path=copy, default=whole), self.clock)
        collection.open()
        try:
            records = collection.obtain(NAME).backlog.browse(1_000_000)
            return tuple((item_data(record), item_deliveries(record)) for record in records)
        finally:
            collection.close()

    @invariant()
    def counts_agree(self) -> None:
        """The queue counts what the model holds."""
        queue = self.queue
        assert len(queue) == len(self.waiting)
        assert queue.backlog.size == sum(len(entry.data) for entry in self.waiting)
        assert set(queue.reads.open) == set(self.reads)
        assert queue.reads.open_bytes == record_bytes(queue.reads.open)

    @invariant()
    def other_readers_agree(self) -> None:
        """Whichever xid a reader of the format gives an item of ADD_XID, it has the same queue."""
        if self.broken:
            return
        path = self.directory.path
        files = {name: (path / name).read_bytes() for name in self.directory.names()}
        readings = [replayed(files, NAME, keeps_xid=keeps_xid) for keeps_xid in (True, False)]
        for reading in readings:
            assert [data for data, _, _ in reading.loaded] == [data for data, _ in self.state()]
        assert readings[0].reads == readings[1].reads

    @invariant()
    def the_current_file_is_short(self) -> None:
        """Once the upkeep looked, it is rotated above `max_memory_size`, whatever else is so."""
        if self.broken or self.worker:
            return
        journal, upkeep_of_it = self.queue.journal, self.queue._upkeep
        self.collection.tick()
        assert isinstance(journal, FileJournal)
        assert upkeep_of_it is not None
        if not (self.worker or isinstance(upkeep_of_it.state, Waiting)):
            # Not of `queues.config`: a queue that was deleted and made anew has the collection's.
            assert journal.current_size <= self.queue.config.max_memory_size

    def compare_at_end(self) -> None:
        """Stop cleanly, and compare every item on disk."""
        self.mend()
        self.collection.close()
        self.give_back_all()
        assert self.everything() == self.state()
        upkeep.COPIED_ITEMS_LIMIT = self._at_hand  # type: ignore[misc] # as above
        upkeep.INLINE_TRIM_LIMIT = self._at_once  # type: ignore[misc] # as above


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=examples(100),
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
