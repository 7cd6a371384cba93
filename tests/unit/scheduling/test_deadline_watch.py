"""Finding what is due among very many queues: nobody looks at those whose time has not come."""

from math import inf
from pathlib import Path

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.deadline_watch import DeadlineWatch
from tests.support.fake_clock import FakeClock

LONG = ReserveTerms(lease=600_000, grace=1000, owner="worker")


class Queues:
    """Queues with a read each, which one owner has reserved for long."""

    def __init__(self, path: Path, count: int) -> None:
        self.clock = FakeClock()
        self.collection = QueueCollection(ServerConfig(queue_path=path), self.clock)
        self.collection.open()
        self.collection.owners.connected("worker", self.clock.monotonic())
        for number in range(count):
            queue = self.collection.obtain(f"queue-{number}")
            queue.add(b"x")
            assert queue.reserved.reserve(LONG, number, 1, 100) is not None
        self.collection.commits.commit()
        self.collection.check_deadlines()

    def steps(self) -> int:
        """Do what is due; return in how many pieces."""
        count = sum(1 for _ in self.collection.checking_deadlines())
        self.collection.commits.commit()
        return count

    def given_back(self) -> int:
        """Return how many items can be read again."""
        return sum(map(len, self.collection.queues.values()))


@pytest.fixture
def queues(tmp_path: Path) -> Queues:
    """A hundred and fifty queues, of which nothing is due."""
    return Queues(tmp_path, 150)


def test_what_is_not_due_costs_nothing(queues: Queues) -> None:
    """Deadlines that are far away are not looked at; those that are due are, one by one."""
    assert queues.steps() == 0
    queues.collection.queues["queue-3"].reads.extend_leases(
        queues.collection.queues["queue-3"].reserved.of_owner("worker"), 1
    )
    assert queues.steps() == 1
    assert queues.steps() == 0
    queues.clock.advance(1)
    assert 1 <= queues.steps() <= 3
    assert queues.given_back() == 1
    queues.clock.advance(600)
    assert queues.steps() >= 149
    assert queues.given_back() == 150
    assert not queues.collection.commits.needs_timer
    queues.collection.close()


def test_a_queue_is_quiet_while_its_leases_go_on(queues: Queues) -> None:
    """The upkeep and the sweep pass it by."""
    queues.collection.tick()
    assert {queue.rests_until for queue in queues.collection.queues.values()} == {inf}
    queues.collection.close()


def test_what_happens_to_an_owner_is_noted_once(queues: Queues) -> None:
    """However many queues it has reads in; they look at those when that is due, in pieces."""
    owners, now = queues.collection.owners, queues.clock.monotonic
    for _ in range(3):
        assert owners.extend("worker", 900, now()) == 150
        owners.disconnected("worker", now())
        owners.connected("worker", now())
    assert queues.steps() <= 1
    queues.clock.advance(600)
    queues.steps()
    assert queues.given_back() == 0
    owners.disconnected("worker", now())
    assert queues.steps() <= 1
    queues.clock.advance(0.9)
    assert queues.given_back() == 0
    queues.clock.advance(0.1)
    assert queues.steps() >= 150
    assert queues.given_back() == 150
    queues.collection.close()


def test_an_owner_that_was_lost_before_does_not_lose_what_it_gets(queues: Queues) -> None:
    """A queue in which it had no reads then has nothing of its past."""
    queues.collection.owners.disconnected("worker", queues.clock.monotonic())
    late = queues.collection.obtain("late")
    late.add(b"x")
    assert late.reserved.reserve(LONG, 7, 1, 100) is not None
    queues.clock.advance(1)
    queues.steps()
    assert (queues.given_back(), len(late)) == (150, 0)
    queues.collection.close()


def test_the_clock_is_set_forward(tmp_path: Path) -> None:
    """A delayed item that is due by the new time comes, though less time has passed."""
    clock = FakeClock()
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), clock)
    collection.open()
    queue = collection.obtain("work")
    assert queue.add(b"x", due=clock.now() + 3_600_000)
    collection.commits.commit()
    collection.check_deadlines()
    clock.step(-60_000)
    collection.check_deadlines()
    clock.step(3_660_000)
    for _ in range(3):
        clock.advance(0.05)
        collection.check_deadlines()
        collection.commits.commit()
    assert len(queue) == 1
    collection.close()


def test_a_queue_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    """Its deadline, which may be far away, does not keep it in memory."""
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), FakeClock())
    collection.open()
    first, second = collection.obtain("first"), collection.obtain("second")
    watch: DeadlineWatch[Queue] = DeadlineWatch()
    for at in (9.0, 7.0, 8.0):
        watch.later(first, at, 0.0)
    watch.later(second, 8.0, 0.0)
    assert [watch.take(6.0), watch.take(7.0), watch.take(8.0), watch.take(9.0)] == [
        None,
        first,
        second,
        None,
    ]
    watch.later(first, 9.0, 0.0)
    watch.forget(first)
    assert not watch
    assert first not in _referred(watch)
    collection.close()


def _referred(watch: DeadlineWatch[Queue]) -> list[Queue]:
    return list(watch._numbered.values())
