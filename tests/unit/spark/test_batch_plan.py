"""Offsets and shares of a batch of a stream."""

import pytest

from kestrelmq.spark.batch_plan import BatchPlan, batch_of, first_position, from_offset, share_out
from kestrelmq.spark.staging import PartitionShare


def test_an_offset_says_all_that_reading_needs() -> None:
    """What Spark logs comes back as the same batch."""
    plan = BatchPlan(7, "abc", "q", (PartitionShare("a:1", 5, 6), PartitionShare("[::1]:2", 7, 8)))

    assert from_offset(plan.to_offset()) == plan


@pytest.mark.parametrize(
    ("servers", "items", "partitions", "expected"),
    [
        ({"a": None}, 10, 1, [("a", 10)]),
        ({"a": None, "b": None}, 5, 1, [("a", 3), ("b", 2)]),
        ({"a": None, "b": None}, 9, 3, [("a", 3), ("b", 2), ("a", 2), ("b", 2)]),
        ({"a": None, "b": None, "c": None}, 2, 1, [("a", 1), ("b", 1)]),
        ({"a": 3, "b": 100}, 20, 1, [("a", 3), ("b", 10)]),
        ({"a": 3}, None, 2, [("a", 2), ("a", 1)]),
        ({}, 10, 4, []),
    ],
)
def test_shares_of_a_batch(
    servers: dict[str, int | None],
    items: int | None,
    partitions: int,
    expected: list[tuple[str, int]],
) -> None:
    """Items are divided evenly, never above a limit, and a partition has one at least."""
    shares = share_out(servers, items, 1000, partitions)

    assert [(share.server, share.items) for share in shares] == expected
    assert sum(share.bytes for share in shares) <= 1000


def test_positions_order_the_rows_of_a_query() -> None:
    """By batch, then by partition, and they tell both."""
    positions = [first_position(epoch, part) for epoch in (1, 2, 2**31 - 1) for part in (0, 1023)]

    assert sorted(positions) == positions
    assert positions[-1] < 2**63
    assert [batch_of(position + 5) for position in positions[:2]] == [(1, 0), (1, 1023)]
