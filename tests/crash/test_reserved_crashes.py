"""Reserved reads after any crash: what was answered is there, and a tag is done as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from tests.support.crash_checks import ONE_MORE, is_unread, two_starts
from tests.support.crash_recordings import QUICK
from tests.support.fake_clock import FakeClock
from tests.support.open_reads import open_read
from tests.support.open_reads import reservations as reservations_of
from tests.support.recording_directory import (
    Contents,
    RecordingDirectory,
    StateBounds,
    crash_states,
)

pytestmark = pytest.mark.compiled_only

Tags = Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class State:
    """What a server finds.

    Attributes:
        waiting: the items that wait.
        reserved: the items of each reservation, by nonce, owner and tag.
        done: the tags that are done.
        retired: the last retired epoch of each name.
    """

    waiting: tuple[bytes, ...]
    reserved: tuple[tuple[int, str, str, tuple[bytes, ...]], ...]
    done: tuple[tuple[str, int], ...]
    retired: tuple[tuple[str, int], ...]


def state_of(queue: Queue, *, given_back: bool) -> State:
    """Return what a queue holds; `given_back`: after a restart."""
    reserved = queue.reads.reserved
    reservations = reserved.reservations()
    plain = sorted(set(queue.reads.open) - set(reservations_of(queue.reads.open)))
    waiting = [item_data(one) for one in queue.backlog.browse(1000)]
    if given_back:
        waiting = [*(item_data(queue.reads.open[xid].item) for xid in plain), *waiting]
    return State(
        tuple(waiting),
        tuple(
            sorted(
                (
                    one.nonce,
                    one.terms.owner,
                    one.terms.tag,
                    tuple(item_data(queue.reads.open[xid].item) for xid in reserved.live(one)),
                )
                for one in reservations
            )
        ),
        tuple(sorted(reserved.done.items())),
        tuple(sorted(reserved.retired.items())),
    )


class Scenario:
    """Reads that are reserved and end in every way, while the journal is rewritten.

    Attributes:
        states: what a restart may find, in order; each mark says from which on, and up to which.
    """

    def __init__(self, path: Path, config: QueueConfig, *, synced: bool) -> None:
        self.directory = RecordingDirectory(path)
        self.clock = FakeClock()
        server = ServerConfig(queue_path=path, default=config)
        self.collection = QueueCollection(server, self.clock, self.directory)
        self.collection.open()
        self.states: list[State] = [State((), (), (), ())]
        self.synced = synced
        self.safe = self.committed = 0
        self.nonce = 0
        self.queue = self.collection.obtain("jobs")

    def mark(self) -> None:
        """Mark which states there may be."""
        self.directory.mark((self.safe, self.committed, len(self.states)))

    def commit(self, *between: State) -> None:
        """Write what was done; a crash in the middle may leave one of the states `between`."""
        self.states += [*between, state_of(self.queue, given_back=True)]
        self.mark()
        assert not self.collection.commits.commit()
        self.committed = len(self.states) - 1
        self.mark()
        if self.synced:
            self.queue.sync()
            self.safe = self.committed
            self.mark()

    def add(self, count: int) -> None:
        """Add items."""
        for _ in range(count):
            self.nonce += 1
            self.queue.add(b"%d" % self.nonce + b"x" * 10)
            self.commit()

    def reserve(self, most: int, terms: ReserveTerms) -> list[int]:
        """Reserve items."""
        self.nonce += 1
        reservation = self.queue.reserved.reserve(terms, self.nonce, most, 1000)
        assert reservation is not None
        self.commit()
        return list(reservation.xids)

    def give_back(self, xids: list[int]) -> None:
        """Give reads back, one after the other."""
        for xid in reversed(xids):
            assert self.queue.returns.give_back([xid]) == 1
            self.commit()

    def run(self) -> None:
        """Run it."""
        first = ReserveTerms(1000, 1000, "first", "sink:1:0")
        for epoch in range(1, 4):
            self.add(6)
            tag = f"sink:{epoch}:0"
            self.reserve(2, ReserveTerms(1000, 1000, "first", tag))
            plain = self.reserve(2, ReserveTerms(1000))
            assert self.queue.reserved.again(ReserveTerms(1000, 1000, "second", tag))
            self.commit()
            assert self.queue.reads.confirm(plain[0])
            self.commit()
            self.give_back(plain[1:])
            open_read(self.queue)
            self.commit()
            assert self.queue.reserved.finish(tag) == 2
            self.commit()
            while self.queue.line.remove() is not None:
                self.commit()
        self.add(3)
        self.reserve(2, ReserveTerms(1000, tag="sink:4:0"))
        self.reserve(1, ReserveTerms(1000, owner="first"))
        assert self.queue.reserved.retire(first.tag.partition(":")[0], 2) == 2
        self.commit()
        before = state_of(self.queue, given_back=True)
        assert self.queue.reserved.retire("sink", 4) == 2
        after = state_of(self.queue, given_back=True)
        assert before.waiting != after.waiting
        self.commit()
        self.collection._lock.release()
        self.directory.abandon()


def found_in(contents: Contents, config: ServerConfig) -> tuple[State, State]:
    """Return what a server finds in files, and the next one after an item was added."""
    found = []
    for queues in two_starts(contents, config):
        found.append(state_of(queues.queue(), given_back=False))
        queues.add(ONE_MORE)
    return found[0], found[1]


CONFIGS = {
    "plain": QueueConfig(),
    "rewritten": QueueConfig(
        default_journal_size=400, max_journal_size=600, min_journal_compact_delay=0
    ),
    "kestrel-2": QueueConfig.model_validate({"journal_dialect": "kestrel-2"}),
}


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_reserved_reads_survive_every_crash(root: Path, name: str, *, synced: bool) -> None:
    """A kill keeps all that was answered, lost power what was synced; nothing is ever in between.

    What the load writes first completes what a crash cut off, for other readers.
    """
    path = root / "spool"
    path.mkdir()
    scenario = Scenario(path, CONFIGS[name], synced=synced)
    scenario.run()
    states = scenario.states
    bounds = StateBounds(
        cuts=lambda size: range(1, size, 5), name_sets=QUICK.name_sets, mixtures=QUICK.mixtures
    )
    left = ServerConfig(queue_path=root / "left", default=CONFIGS[name])
    checked = 0
    for contents, crashes in crash_states(
        tuple(scenario.directory.operations), {}, bounds, unread=is_unread
    ).items():
        found, next_found = found_in(contents, left)
        checked += 1
        assert next_found.waiting == (*found.waiting, ONE_MORE)
        assert (next_found.reserved, next_found.done) == (found.reserved, found.done)
        for crash in crashes:
            if not isinstance(crash.mark, tuple):
                continue
            safe, committed, end = crash.mark
            allowed = states[committed if crash.killed else safe : end]
            assert found in allowed, (crash, found, allowed, contents)
    assert checked > 150
