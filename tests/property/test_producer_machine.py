"""Producers that repeat whatever was not answered, against a plain model: each item comes once.

They add through failing writes, kills, lost power and restarts, with delays and to a fanout child.
The journals are so short that they are rewritten and packed all the time.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kestrelmq.errors import KestrelError
from kestrelmq.format.records import item_data
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.writer import FileJournal
from kestrelmq.scheduling.durability import sync_now
from tests.support.crashing_directory import CrashLoss
from tests.support.crashing_queues import QueuesMachine, short_journals
from tests.support.examples import examples

pytestmark = pytest.mark.compiled_only

QUEUES = ("jobs", "jobs+child")
PRODUCERS = (b"p", b"q")


class ProducerMachine(QueuesMachine):
    """The rules. A producer goes on to its next item only when the last one was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.next = dict.fromkeys(PRODUCERS, 0)
        # The items that were answered, those that were read, and those that a reader got no answer
        # for: they may or may not come again.
        self.answered: dict[str, set[bytes]] = {name: set() for name in QUEUES}
        self.taken: dict[str, list[bytes]] = {name: [] for name in QUEUES}
        self.unsure: dict[str, set[bytes]] = {name: set() for name in QUEUES}

    @initialize(
        memory=st.sampled_from([60, 10_000]),
        size=st.sampled_from([100, 400, 5000]),
        dialect=st.sampled_from(["documented", "kestrel-2"]),
    )
    def begin(self, memory: int, size: int, dialect: str) -> None:
        """Draw the limits, and start on an empty queue path."""
        config = short_journals(memory, size, dialect, sync_journal=0)
        self.start(config)
        self.create_queues()

    def create_queues(self) -> None:
        """Create the queues that do not exist: a child that comes later lacks items."""
        for name in QUEUES:
            self.collection.obtain(name)
        assert self.is_safe()

    def is_safe(self) -> bool:
        """Commit and sync, as before each answer; return whether that works."""
        commits = self.collection.commits
        if commits.commit():
            return False
        return sync_now(*commits.syncs.take_unsynced()) is None

    @property
    def is_suspect(self) -> bool:
        """Whether a sync failed: then nothing is safe until the journal is written anew."""
        journals = [self.collection.obtain(name).journal for name in QUEUES]
        return any(one.suspect for one in journals if isinstance(one, FileJournal))

    def refused_by_child(self) -> int:
        """Return how many items the child refused: its worker may be behind that of its master."""
        return self.collection.obtain("jobs+child").refusals.memory

    @rule(
        producer=st.sampled_from(PRODUCERS),
        items=st.integers(1, 4),
        delay=st.sampled_from([0, 0, 0, 1, 30]),
        size=st.sampled_from([1, 30]),
        broken=st.sampled_from(["", "", "", "append", "sync"]),
    )
    def add(self, producer: bytes, items: int, delay: int, size: int, broken: str) -> None:
        """Add items, and those before that were answered, too; perhaps on a disk that fails."""
        is_broken = bool(broken) or self.is_suspect
        if broken:
            self.directory.break_steps(broken)
        first = self.next[producer]
        added: dict[str, list[bytes]] = {name: [] for name in QUEUES}
        for number in range(max(0, first - 1), first + items):
            refused = self.refused_by_child()
            data = b"%b:%d:" % (producer, number) + b"x" * size
            due = self.clock.now() + delay * 1000 if delay else 0
            try:
                accepted = self.collection.add(
                    "jobs", data, due=due, mark=PutMark(producer, number)
                )
            except KestrelError:
                break
            if not accepted:
                break  # memory has no room for another delayed item
            for name in QUEUES:
                if name == "jobs" or self.refused_by_child() == refused:
                    added[name].append(b"%b:%d" % (producer, number))
        if self.is_safe():
            for name in QUEUES:
                self.answered[name].update(added[name])
            if added["jobs"]:
                self.next[producer] = max(first, int(added["jobs"][-1].split(b":")[1]) + 1)
        else:
            assert is_broken
        self.directory.mend()

    @rule(name=st.sampled_from(QUEUES), most=st.integers(1, 5))
    def read(self, name: str, most: int) -> None:
        """Remove items; what is not safe may come again, so it does not count."""
        found = []
        try:
            for _ in range(most):
                record = self.collection.obtain(name).line.remove()
                if record is not None:
                    found.append(b":".join(item_data(record).split(b":")[:2]))
        except KestrelError:
            pass
        if self.is_safe():
            self.taken[name] += found
        else:
            self.unsure[name].update(found)

    @rule(seconds=st.sampled_from([0.5, 2, 9]))
    def wait(self, seconds: float) -> None:
        """Let time pass: items join, and journals are attended to."""
        self.clock.advance(seconds)
        self.collection.check_deadlines()
        self.is_safe()
        self.collection.tick()

    @rule()
    def restart(self) -> None:
        """Stop the server and start it again."""
        self.start_again()
        self.create_queues()

    @rule(loss=st.sampled_from(CrashLoss))
    def crash(self, loss: CrashLoss) -> None:
        """Kill the server, or let the machine lose power, and start it again."""
        self.start_again(loss)
        self.create_queues()

    @invariant()
    def nothing_comes_twice(self) -> None:
        """No reader got an item twice."""
        for taken in self.taken.values():
            assert len(set(taken)) == len(taken)

    def compare_at_end(self) -> None:
        """Everything that was answered comes once, when all have been repeated and are due."""
        self.restart()
        for producer in PRODUCERS:
            for number in range(self.next[producer]):
                again = b"again:%b-%d" % (producer, number)
                assert self.collection.add("jobs", again, mark=PutMark(producer, number))
        assert self.is_safe()
        for _ in range(9):
            self.wait(30)
            while self.worker:
                self.worker.step()
        for name in QUEUES:
            queue = self.collection.obtain(name)
            while len(queue):
                self.read(name, 5)
            self.nothing_comes_twice()
            assert self.answered[name] <= {*self.taken[name], *self.unsure[name]}
        self.collection.close()


TestProducers = ProducerMachine.TestCase
TestProducers.settings = settings(
    max_examples=examples(60),
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
