"""Marks of producers after any crash: an item is there if and only if its mark is."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from tests.support.crash_checks import is_unread, two_starts
from tests.support.crash_recordings import QUICK
from tests.support.fake_clock import FakeClock
from tests.support.open_reads import open_read
from tests.support.recording_directory import (
    Contents,
    RecordingDirectory,
    StateBounds,
    crash_states,
)

pytestmark = pytest.mark.compiled_only

PRODUCERS = (b"p", b"late")
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class State:
    """What a server finds.

    Attributes:
        items: the numbers of the items that are there, of each producer.
        last: the last number of each producer.
    """

    items: tuple[Numbers, ...]
    last: Numbers


def items_of(queue: Queue) -> list[bytes]:
    """Return the items of a queue, delayed ones included."""
    records = [*queue.backlog.browse(1000), *(read.item for read in queue.reads.open.values())]
    if queue.backlog.delayed is not None:
        records += queue.backlog.delayed.in_order()
    return [item_data(record) for record in records]


def state_of(queue: Queue) -> State:
    """Return what a queue holds."""
    names = [data.split(b":") for data in items_of(queue)]
    return State(
        tuple(tuple(sorted(int(n) for who, n in names if who == name)) for name in PRODUCERS),
        tuple(queue.backlog.producers.last_number(name) for name in PRODUCERS),
    )


class Scenario:
    """Producers add items, with a delay and without, while the journal is rewritten.

    Attributes:
        states: those after each commit. Each mark in the recording says which of them the client
            was told of, and which are on disk.
        removed: the numbers of the items that were read, of each producer.
    """

    def __init__(self, path: Path, config: QueueConfig, *, synced: bool) -> None:
        self.directory = RecordingDirectory(path)
        self.clock = FakeClock()
        server = ServerConfig(queue_path=path, default=config)
        self.collection = QueueCollection(server, self.clock, self.directory)
        self.collection.open()
        self.queue = self.collection.obtain("jobs")
        self.states = [state_of(self.queue)]
        self.synced = synced
        self.safe = self.committed = 0
        self.numbers = dict.fromkeys(PRODUCERS, -1)
        self.removed: dict[bytes, set[int]] = {name: set() for name in PRODUCERS}

    def commit(self) -> None:
        """Write what was done."""
        self.directory.mark((self.safe, self.committed))
        assert not self.collection.commits.commit()
        self.states.append(state_of(self.queue))
        self.committed = len(self.states) - 1
        self.directory.mark((self.safe, self.committed))
        if self.synced:
            self.queue.sync()
            self.safe = self.committed
            self.directory.mark((self.safe, self.committed))

    def add(self, producer: bytes, delay: int = 0) -> None:
        """Add the next item of a producer, and then again."""
        self.numbers[producer] += 1
        number = self.numbers[producer]
        data = b"%b:%d" % (producer, number)
        # In read-behind, memory has no room for several delayed items.
        due = self.clock.now() + delay if delay and self.queue.config.max_memory_size > 99 else 0
        for _ in range(2):
            assert self.queue.add(data, due=due, mark=PutMark(producer, number))
            self.commit()

    def add_large(self) -> None:
        """Add an item that is written in a round."""
        self.numbers[b"p"] += 1
        mark = PutMark(b"p", self.numbers[b"p"])
        open_read(self.queue)
        self.commit()
        assert self.queue.add(b"p:%d" % mark.sequence, mark=mark)
        self.queue.changes.is_large = True
        self.commit()

    def take(self) -> None:
        """Remove everything that waits."""
        while (record := self.queue.line.remove()) is not None:
            producer, number = item_data(record).split(b":")
            self.removed[producer].add(int(number))
            self.commit()

    def run(self) -> None:
        """Run it."""
        for _ in range(2):
            for delay in (0, 1000, 5000):
                self.add(b"p")
                self.add(b"late", delay)
            self.add_large()
            self.clock.advance(1)
            for _ in range(3):
                self.clock.advance(1)
                self.queue.check_deadlines()
                self.commit()
            self.take()
            self.collection.tick()
            self.commit()
        self.collection._lock.release()
        self.directory.abandon()


def found_in(contents: Contents, config: ServerConfig) -> State:
    """Return what a server finds in files; the next one finds the same.

    Meanwhile another item is delayed and joins: it is there once, since the numbers go on.
    """
    found = []
    for others, queues in enumerate(two_starts(contents, config)):
        queue = queues.queue()
        found.append(state_of(queue))
        if config.default.max_memory_size > 99:
            assert items_of(queue).count(b"other:0") == others
            assert queue.add(b"other:0", due=queues.clock.now() + 1)
            queues.clock.advance(0.01)
            for _ in range(3):
                queue.check_deadlines()
                queues.commit()
    assert found[0] == found[1]
    return found[0]


CONFIGS = {
    "plain": QueueConfig(),
    "rewritten": QueueConfig(
        default_journal_size=400, max_journal_size=600, min_journal_compact_delay=0
    ),
    "read-behind": QueueConfig(
        max_memory_size=20,
        default_journal_size=400,
        max_journal_size=600,
        min_journal_compact_delay=0,
    ),
    "kestrel-2": QueueConfig.model_validate({"journal_dialect": "kestrel-2"}),
}


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_marks_survive_every_crash(root: Path, name: str, *, synced: bool) -> None:
    """With their items, and never without: neither is lost that was answered."""
    path = root / "spool"
    path.mkdir()
    scenario = Scenario(path, CONFIGS[name], synced=synced)
    scenario.run()
    bounds = StateBounds(
        cuts=lambda size: range(1, size, 7), name_sets=QUICK.name_sets, mixtures=QUICK.mixtures
    )
    left = ServerConfig(queue_path=root / "left", default=CONFIGS[name])
    checked = 0
    for contents, crashes in crash_states(
        tuple(scenario.directory.operations), {}, bounds, unread=is_unread
    ).items():
        found = found_in(contents, left)
        checked += 1
        least = max(
            scenario.states[crash.mark[1 if crash.killed else 0]].last
            for crash in crashes
            if isinstance(crash.mark, tuple)
        )
        for place, producer in enumerate(PRODUCERS):
            items, last = found.items[place], found.last[place]
            assert len(set(items)) == len(items), (crashes, found)
            assert all(number <= last for number in items), (crashes, found)
            assert last == -1 or last in {*items, *scenario.removed[producer]}, (crashes, found)
            assert last >= least[place], (crashes, found, least)
    assert checked > 140
