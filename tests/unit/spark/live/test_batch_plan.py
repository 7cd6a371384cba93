"""Offsets and shares of a batch of a stream."""

import pytest

from kestrelmq.spark.live.batch_plan import (
    MAX_PARTITION_ITEMS,
    MAX_PARTITIONS,
    MAX_QUEUES,
    BatchPlan,
    WaitingQueue,
    first_position,
    from_offset,
    share_out,
)
from kestrelmq.spark.live.shares import PartitionShare


def test_an_offset_says_all_that_reading_needs() -> None:
    """What Spark logs comes back as the same batch."""
    shares = (
        PartitionShare("a:1", 5, 6, queues=(("q", None),)),
        PartitionShare("[::1]:2", 7, 8, queues=(("q", 3),)),
    )
    plan = BatchPlan(7, "abc", "q", shares)

    assert from_offset(plan.to_offset(), None) == plan


def test_an_offset_of_an_earlier_version_is_of_the_only_queue() -> None:
    """It names no queues, and does not say whether a server reserves."""
    offset = {
        "epoch": 7,
        "staging": "abc",
        "shares": {"0": {"server": "a:1", "items": 5, "bytes": 6}},
    }

    assert from_offset(offset, "q").shares == (PartitionShare("a:1", 5, 6, queues=(("q", None),)),)


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
    waiting = [WaitingQueue(server, "q", most) for server, most in servers.items()]
    shares = share_out(waiting, items, 1000, partitions, {})

    assert [(share.server, share.items) for share in shares] == expected
    assert sum(share.bytes for share in shares) <= 1000


def names(share: PartitionShare) -> list[str]:
    """Return the queues of a share."""
    return [name for name, _ in share.queues]


def test_a_partition_reads_all_queues_of_its_server() -> None:
    """It has as much of the batch as it has of the queues."""
    waiting = [WaitingQueue("a", queue) for queue in "uvw"] + [WaitingQueue("b", "u")]
    shares = share_out(waiting, 40, 400, 1, {"b": True})

    assert [(one.server, one.items, one.bytes, names(one), one.reserves) for one in shares] == [
        ("a", 30, 300, ["u", "v", "w"], False),
        ("b", 10, 100, ["u"], True),
    ]
    plan = BatchPlan(1, "abc", "u,v,w", shares)
    assert from_offset(plan.to_offset(), None) == plan


def test_more_partitions_divide_a_servers_queues() -> None:
    """And read a queue together only where there are more of them than queues."""
    waiting = [WaitingQueue("a", queue, 10) for queue in "uvw"] + [WaitingQueue("b", "u", 5)]
    shares = share_out(waiting, 1000, 1000, 4, {})

    assert [(one.server, one.items, one.queues) for one in shares] == [
        ("a", 20, (("u", 10), ("w", 10))),
        ("b", 3, (("u", 3),)),
        ("a", 10, (("v", 10),)),
        ("b", 2, (("u", 2),)),
    ]


@pytest.mark.parametrize(("items", "queues"), [(7, 7), (1, 1), (None, MAX_QUEUES), (5000, 1000)])
def test_a_batch_has_room_for_some_queues(items: int | None, queues: int) -> None:
    """The first ones, each with at least one item; the others wait for another batch."""
    waiting = [WaitingQueue("ab"[number % 2], f"q{number}") for number in range(1500)]
    shares = share_out(waiting, items, 1000, 3, {})

    assert sorted(name for one in shares for name in names(one)) == sorted(
        one.queue for one in waiting[:queues]
    )
    assert all(one.items >= len(one.queues) for one in shares)
    assert items is None or sum(one.items for one in shares) == items


def test_positions_order_the_rows_of_a_query() -> None:
    """By batch, then by partition; those of a partition never reach the next one."""
    positions = [first_position(epoch, part) for epoch in (1, 2, 2**31 - 1) for part in (0, 1023)]

    assert sorted(positions) == positions
    assert positions[-1] < 2**63
    assert first_position(1, 0) + MAX_PARTITION_ITEMS <= first_position(1, 1)
    assert first_position(1, MAX_PARTITIONS - 1) + MAX_PARTITION_ITEMS <= first_position(2, 0)
