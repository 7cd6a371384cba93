"""Many workers at once: who tells them to end, and who hears of errors."""

# ruff: noqa: ARG002 # a connection for these tests does little with what it is asked

from collections.abc import Sequence

import pytest

from kestrelmq.loadtests.common import consumer, producer
from kestrelmq.loadtests.connections import LoadConnection, LoadTestError
from kestrelmq.loadtests.items import ItemSet, Receipts, Verdict, judge
from kestrelmq.loadtests.workers import WorkerPool, WorkerTally

ITEM_SET = ItemSet("abcd1234", items=20, producers=1, size=64)


class Endless:
    """A connection to a queue in memory, which gives `items` and then nothing."""

    def __init__(self, items: Sequence[bytes] = ()) -> None:
        self.items = list(items)
        self.closed = False

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items."""
        self.items += items

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove items."""
        taken, self.items = self.items[:most], self.items[most:]
        return taken

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open no read."""

    def confirm(self, queue: str) -> bool:
        """Confirm none."""
        return False

    def abort(self, queue: str) -> None:
        """Abort none."""

    def abandon(self, queue: str) -> None:
        """Leave none."""

    def flush(self, queue: str) -> None:
        """Keep all."""

    def delete(self, queue: str) -> None:
        """Delete nothing."""

    def close(self) -> None:
        """Remember it."""
        self.closed = True


def show_nothing(done: int, note: str) -> None:
    """Show nothing."""


def test_readers_end_when_the_goal_is_reached() -> None:
    """Their connections are closed, and the bar is at its end."""
    connection, shown = Endless(), [0]
    pool = WorkerPool(lambda: connection, patience=30)
    receipts = Receipts(ITEM_SET)
    jobs = [producer("q", ITEM_SET, 0, pool, 3), consumer("q", receipts, pool)]
    result = pool.run(jobs, lambda done, _note: shown.append(done), goal=20)
    assert [(tally.put, tally.received) for tally in result.tallies] == [(20, 0), (0, 20)]
    assert judge(ITEM_SET, [receipts]) == Verdict(20)
    assert (shown[-1], connection.closed) == (40, True)
    assert result.seconds() >= result.seconds(end=1) > 0


def test_an_error_of_one_job_ends_all_and_reaches_the_caller() -> None:
    """Readers that wait for a goal nobody can reach any more, and producers that pause."""

    def fail(connection: LoadConnection, tally: WorkerTally) -> None:
        raise LoadTestError("broken")

    connection = Endless()
    pool = WorkerPool(lambda: connection, patience=30)
    jobs = [
        producer("q", ITEM_SET, 0, pool, pause=60),
        consumer("q", Receipts(ITEM_SET), pool),
        fail,
    ]
    with pytest.raises(LoadTestError, match="broken"):
        pool.run(jobs, show_nothing, goal=20)
    assert connection.closed


def test_readers_give_up_when_nothing_comes_for_long() -> None:
    """What they have not got is lost, and the verdict says so."""
    items = [item for batch in ITEM_SET.batches(0, 20) for item in batch]
    connection = Endless(items[1:])
    pool = WorkerPool(lambda: connection, patience=0.1)
    receipts = Receipts(ITEM_SET)
    pool.run([consumer("q", receipts, pool)], show_nothing, goal=20)
    assert judge(ITEM_SET, [receipts]) == Verdict(20, lost=1)


def test_a_producer_that_cannot_go_on_is_an_error_and_no_loss() -> None:
    """What was never put cannot be lost."""
    pool = WorkerPool(Endless, patience=0.1)
    jobs = [producer("q", ITEM_SET, 0, pool, pause=60), consumer("q", Receipts(ITEM_SET), pool)]
    with pytest.raises(LoadTestError, match=r"nothing moved for 0.1 seconds"):
        pool.run(jobs, show_nothing, goal=20)


def test_a_connection_that_cannot_be_made_is_an_error() -> None:
    """Those that were made are closed."""
    made: list[Endless] = []

    def connect() -> Endless:
        if len(made) == 2:
            raise LoadTestError("refused")
        made.append(Endless())
        return made[-1]

    pool = WorkerPool(connect, patience=30)
    with pytest.raises(LoadTestError, match="refused"):
        pool.run([consumer("q", Receipts(ITEM_SET), pool)] * 3, show_nothing)
    assert [connection.closed for connection in made] == [True, True]


def test_an_interrupt_ends_all_jobs() -> None:
    """Producers, too, which otherwise go on to their last item."""
    told = []

    def interrupted(done: int, note: str) -> None:
        raise KeyboardInterrupt

    def produces(connection: LoadConnection, tally: WorkerTally) -> None:
        tally.note_put([b"x"])
        told.append(pool.failed.wait(1))

    pool = WorkerPool(Endless, patience=30)
    with pytest.raises(KeyboardInterrupt):
        pool.run([produces], interrupted)
    assert told == [True]
