"""How a partition divides its share among its queues."""

import pytest

from kestrelmq.spark.live.shares import Allowance, PartitionShare, QueueRun, ShareProgress


def take_all(share: PartitionShare, waiting: dict[str, int]) -> dict[str, int]:
    """Take what the share allows of queues that have items of one byte."""
    taken = dict.fromkeys(waiting, 0)
    progress = ShareProgress(share)
    while (allowed := progress.next()) is not None:
        items = min(allowed.items, allowed.bytes, waiting[allowed.queue] - taken[allowed.queue])
        taken[allowed.queue] += items
        is_done = taken[allowed.queue] == waiting[allowed.queue]
        progress.add(QueueRun(allowed.queue, items, items, is_done))
    return taken


@pytest.mark.parametrize(
    ("items", "size", "waiting", "taken"),
    [
        (10, 100, [100, 100], [5, 5]),
        (11, 100, [100, 100], [6, 5]),
        (10, 100, [1, 100], [1, 9]),
        (10, 100, [100, 1], [5, 1]),
        (3, 100, [9, 9, 9], [1, 1, 1]),
        (100, 10, [100, 100], [5, 5]),
        (10, 100, [0, 0, 3], [0, 0, 3]),
    ],
)
def test_every_queue_may_take_an_equal_part_of_what_is_left(
    items: int, size: int, waiting: list[int], taken: list[int]
) -> None:
    """A long queue leaves no other one out; what a short one does not use is for those behind."""
    names = [f"q{number}" for number in range(len(waiting))]
    share = PartitionShare("a:1", items, size, queues=tuple((name, None) for name in names))

    found = take_all(share, dict(zip(names, waiting, strict=True)))

    assert list(found.values()) == taken


def test_a_queue_may_have_a_limit_of_its_own() -> None:
    """No more than there was when a query began that ends with that."""
    share = PartitionShare("a:1", 10, 100, queues=(("a", 2), ("b", 0), ("c", None)))

    assert take_all(share, {"a": 50, "b": 50, "c": 50}) == {"a": 2, "b": 0, "c": 8}


def test_progress_goes_on_where_the_runs_end() -> None:
    """In the middle of a queue, too: the runs say all that it depends on."""
    share = PartitionShare("a:1", 10, 1000, queues=(("a", None), ("b", None)))
    runs = [QueueRun("a", 2, 7, is_done=False), QueueRun("a", 1, 3, is_done=False)]
    progress = ShareProgress(share)
    for run in runs:
        progress.add(run)
    ahead = progress.copy()

    assert progress.next() == Allowance("a", 2, 490)
    ahead.add(QueueRun("a", 0, 0, is_done=True))
    assert ahead.next() == Allowance("b", 7, 990)
    assert progress.next() == Allowance("a", 2, 490)
