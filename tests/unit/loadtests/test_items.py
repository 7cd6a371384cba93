"""The account that a load test gives of its items."""

import pytest

from kestrelmq.loadtests.items import MIN_ITEM_BYTES, ItemSet, Receipts, Verdict, judge

ITEM_SET = ItemSet("abcd1234", items=10, producers=3, size=64)


def everything() -> list[bytes]:
    """Return every item, producer after producer."""
    return [item for who in range(3) for batch in ITEM_SET.batches(who, 4) for item in batch]


def verdict(items: list[bytes], *, ordered: bool = True) -> Verdict:
    """Return the verdict on one reader that received these."""
    receipts = Receipts(ITEM_SET, ordered=ordered)
    receipts.take(items)
    return judge(ITEM_SET, [receipts])


def test_producers_share_the_items_and_no_two_are_alike() -> None:
    """The first ones put one more when it doesn't come out even; all have the size asked for."""
    assert [ITEM_SET.count(who) for who in range(3)] == [4, 3, 3]
    items = everything()
    assert len(set(items)) == 10
    assert {len(item) for item in items} == {64}
    assert [ITEM_SET.position(*(ITEM_SET.identify(item) or (9, 9))) for item in items] == [
        *range(10)
    ]


def test_more_producers_than_items_leave_some_without_work() -> None:
    """They put nothing, and that is no error."""
    item_set = ItemSet("abcd1234", items=2, producers=5, size=64)
    assert [len(list(item_set.batches(who, 3))) for who in range(5)] == [1, 1, 0, 0, 0]


def test_the_smallest_item_holds_what_it_must_name() -> None:
    """Even the last of very many."""
    item_set = ItemSet("abcd1234", items=10**12, producers=10**6, size=MIN_ITEM_BYTES)
    item = item_set.item(10**6 - 1, 10**6 - 1)
    assert len(item) == MIN_ITEM_BYTES
    assert item_set.identify(item) == (10**6 - 1, 10**6 - 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        ItemSet("other", 10, 3, 64).item(0, 0),
        ITEM_SET.item(0, 0)[:-1],
        ITEM_SET.item(0, 0) + b"x",
        ITEM_SET.item(0, 0)[:-1] + b"!",
        ITEM_SET.item(2, 3),
        ITEM_SET.item(3, 0),
        ITEM_SET.item(0, 0).replace(b" 0 ", b" 00 ", 1),
    ],
)
def test_an_item_that_is_not_exactly_one_of_the_run_is_foreign(data: bytes) -> None:
    """Other runs' items, cut ones, changed ones, and numbers nobody puts."""
    assert ITEM_SET.identify(data) is None
    assert verdict([*everything(), data]) == Verdict(10, foreign=1)


def test_all_is_good_when_each_item_came_once_and_in_order() -> None:
    """The order of different producers' items is open."""
    items = everything()
    good = verdict([*items[4:], *items[:4]])
    assert good == Verdict(10)
    assert good.is_good
    assert str(good) == "verified: all 10 items arrived, once and in order"


def test_losses_repetitions_and_disorder_are_counted() -> None:
    """Each makes the verdict a bad one."""
    items = everything()
    bad = verdict([items[1], items[0], *items[3:], items[9], items[9]])
    assert bad == Verdict(10, lost=1, repeated=2, disordered=1)
    assert not bad.is_good
    assert str(bad) == "failed: of 10 items 1 lost, 2 received twice, 1 out of order"


def test_an_item_may_come_again_as_often_as_it_was_given_back() -> None:
    """And it must: what was only ever given back is lost."""
    items = everything()
    receipts = Receipts(ITEM_SET, ordered=False)
    receipts.leak(items[0])
    receipts.leak(items[0])
    receipts.take(items[1:])
    assert judge(ITEM_SET, [receipts]).lost == 1
    receipts.take(items[:1])
    found = judge(ITEM_SET, [receipts])
    assert found == Verdict(10, given_back=2, ordered=False)
    assert str(found) == "verified: all 10 items arrived, once; 2 were given back and came again"
    receipts.take(items[:1])
    assert judge(ITEM_SET, [receipts]).repeated == 1


def test_readers_are_judged_together() -> None:
    """An item that two of them received is one too many; order holds for each reader alone."""
    items = everything()
    first, second = Receipts(ITEM_SET), Receipts(ITEM_SET)
    first.take(items[1:])
    second.take(items[:1])
    assert judge(ITEM_SET, [first, second]) == Verdict(10)
    second.take(items[1:2])
    assert judge(ITEM_SET, [first, second]) == Verdict(10, repeated=1)


def test_verdicts_of_several_queues_add_up() -> None:
    """One bad queue makes the sum bad."""
    total = Verdict(10) + Verdict(10, lost=1, ordered=False)
    assert total == Verdict(20, lost=1, ordered=False)
