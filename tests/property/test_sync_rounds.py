"""The rounds of fsyncs against a plain model: no answer comes before a sync that covers it.

The model knows when something was written and when a sync of its queue began. Rounds are begun, run
and ended at any time, as a loop, a lock or a thread would; a sync may fail, or show a bug.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import kestrelmq
from kestrelmq.errors import JournalError
from kestrelmq.scheduling.durability import Committable, SyncRound, SyncScheduler, sync_now

QUEUES: Final = 3
BROKEN: Final = (None, OSError(5, "Input/output error"), ValueError("a bug"))


class Disk(Committable):
    """A queue that counts what was written, and how much of that a sync covered.

    Attributes:
        written, synced: how many writes there were, and how many of them are on disk.
        broken: what a sync raises.
        failures: how many failed syncs it was told of.
    """

    def __init__(self) -> None:
        self.written = self.synced = self.failures = 0
        self.broken: Exception | None = None

    def sync(self) -> None:
        """Cover what was written so far."""
        if self.broken is not None:
            raise self.broken
        self.synced = self.written

    def failed(self, error: OSError) -> JournalError:
        """Count it."""
        self.failures += 1
        return JournalError(str(error))


@dataclass
class Answer:
    """Somebody who waits: for what was written to some queues, as of then."""

    covering: SyncRound
    writes: dict[Disk, int]


class Rounds(RuleBasedStateMachine):
    """Writes, and rounds that are driven step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = SyncScheduler()
        self.queues = [Disk() for _ in range(QUEUES)]
        self.waiting: list[Answer] = []
        self.has_run = False
        self.error: Exception | None = None
        self.expected: set[Committable] = set()

    @rule(which=st.sets(st.integers(0, QUEUES - 1)))
    def commit(self, which: set[int]) -> None:
        """A turn: some queues are written, and who wrote waits for the round that covers them."""
        queues = {self.queues[number] for number in which}
        for queue in queues:
            queue.written += 1
            self.syncs.unsynced.add(queue)
        assert self.syncs.take_unsynced() == queues
        covering = self.syncs.request(set(queues))
        assert (covering is None) == (not queues)
        if covering is not None:
            self.waiting.append(Answer(covering, {queue: queue.written for queue in queues}))

    @rule(number=st.integers(0, QUEUES - 1), how=st.sampled_from(BROKEN))
    def breaks(self, number: int, how: Exception | None) -> None:
        """A disk stops to work, or works again."""
        self.queues[number].broken = how

    @rule()
    def begin(self) -> None:
        """Begin a round: only when none runs, and only when somebody waits."""
        was_running = self.syncs.running
        begun = self.syncs.begin()
        if was_running is not None:
            assert begun is None
            return
        assert (begun is None) == (not self.waiting)
        if begun is not None:
            self.has_run = False
            # It covers all who came, and nobody who comes later gets it.
            assert {answer.covering for answer in self.waiting} == {begun}
            assert not self.syncs.has_next

    @precondition(lambda self: self.syncs.running is not None and not self.has_run)
    @rule(can=st.booleans())
    def run_round(self, *, can: bool) -> None:
        """Run it, as a thread would; or there is no room for a thread."""
        assert self.syncs.running is not None
        covered = self.syncs.running.queues
        if can:
            self.syncs.running.run()
            self.expected = {disk for disk in self.queues if disk.broken and disk in covered}
            self.error = None
        else:
            self.expected = set(covered)
            self.error = RuntimeError("can't start new thread")
        self.has_run = True

    @precondition(lambda self: self.syncs.running is not None and self.has_run)
    @rule()
    def end(self) -> None:
        """End it: who waited for it is answered, with an error if one of his queues failed."""
        told = [queue.failures for queue in self.queues]
        ended = self.syncs.end(self.error)
        answered = [answer for answer in self.waiting if answer.covering is ended]
        self.waiting = [answer for answer in self.waiting if answer.covering is not ended]
        for answer in answered:
            for queue, written in answer.writes.items():
                assert queue in ended.failures or queue.synced >= written
        assert set(ended.failures) == self.expected
        for queue, before in zip(self.queues, told, strict=True):
            assert queue.failures - before == (queue in ended.failures)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """Who waits does so for the round that runs, or for the next one."""
        for answer in self.waiting:
            assert not answer.covering.has_ended
            assert answer.covering is self.syncs.running or self.syncs.has_next

    def teardown(self) -> None:
        """Two rounds more answer everybody, at most."""
        for _ in range(2):
            if self.syncs.running is None:
                self.syncs.begin()
            if self.syncs.running is not None:
                self.has_run = False
                self.run_round(can=True)
                self.end()
        assert not self.waiting


TestRounds = Rounds.TestCase


def test_a_bug_of_one_queue_fails_no_other() -> None:
    """The round goes on, and says which failed and why."""
    queues = [Disk(), Disk(), Disk()]
    queues[0].broken, queues[1].broken = BROKEN[1:]
    syncs = SyncScheduler()
    for queue in queues:
        queue.written += 1
    covering = syncs.request(set(queues))
    begun = syncs.begin()
    assert begun is covering
    assert begun is not None
    begun.run()
    failures = syncs.end().failures
    assert {queue: str(failure) for queue, failure in failures.items()} == {
        queues[0]: "[Errno 5] Input/output error",
        queues[1]: "ValueError('a bug')",
    }
    assert queues[2].synced == 1


def test_a_lone_sync_says_what_failed() -> None:
    """As a round does."""
    queue = Disk()
    assert sync_now(queue) is None
    queue.broken = BROKEN[2]
    assert str(sync_now(queue)) == "ValueError('a bug')"


@pytest.mark.parametrize("package", ["server", "library"])
def test_queues_are_synced_in_one_place(package: str) -> None:
    """Who drives the rounds syncs no queue by himself, and says of none what a failure means."""
    found: list[str] = []
    for path in sorted((Path(kestrelmq.__file__).parent / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found += [f"{path.name}:{call.lineno}" for call in calls if _syncs_a_queue(call)]
    assert not found


def _syncs_a_queue(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "sync"
        and not call.args
        and not call.keywords
    )
