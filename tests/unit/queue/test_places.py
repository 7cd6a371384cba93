"""The places of items, by which older files are packed."""

import pytest

from kestrelmq.format.records import item
from kestrelmq.journal.life import CONFIRM, GIVE_BACK, READ
from kestrelmq.journal.open_read import OpenRead
from kestrelmq.queue.changes import PlaceTracker, ReadsChanged

pytestmark = pytest.mark.compiled

ITEM = item(0, 0, b"")


def opened(xid: int) -> ReadsChanged:
    """Return the change that an item was opened."""
    return ReadsChanged(READ, (xid,), [OpenRead(xid, ITEM)], 0)


def confirmed(xid: int) -> ReadsChanged:
    """Return the change that a read was confirmed."""
    return ReadsChanged(CONFIRM, (xid,), [OpenRead(xid, ITEM)], 0)


def given_back(xid: int) -> ReadsChanged:
    """Return the change that a read was given back."""
    return ReadsChanged(GIVE_BACK, (xid,), [OpenRead(xid, ITEM)], 0)


def test_places_follow_reads_that_are_given_back() -> None:
    """A place that was given back is the next one taken."""
    places = PlaceTracker()
    places.apply_changes([ITEM, opened(1), opened(2), given_back(1)])
    assert (places.fresh, places.front, dict(places.opened.items())) == (3, [1], {2: 2})
    places.apply_changes([opened(3), confirmed(2)])
    assert (places.fresh, places.front, dict(places.opened.items())) == (3, [], {3: 1})


def test_a_checkpoint_knows_the_order_of_the_queue() -> None:
    """Places given back come first, the last one at the head."""
    places = PlaceTracker()
    places.apply_changes([opened(1), opened(2)])
    places.apply_changes([given_back(2), given_back(1), given_back(7)])
    places.add_checkpoint("jobs.1", 5)
    (checkpoint,) = places.checkpoints
    assert [checkpoint.place(index) for index in range(5)] == [-8, 0, 1, 2, 3]
    assert checkpoint.end == 4
    assert checkpoint.first_live(frozenset({-8}), 9) == 0
    assert checkpoint.first_live(frozenset({1}), 9) == 2
    assert checkpoint.first_live(frozenset({3}), 9) == 4
    assert checkpoint.first_live(frozenset(), 2) == 3
    assert checkpoint.first_live(frozenset(), 9) == 5


def test_a_read_that_was_open_before_counts_as_live() -> None:
    """Its place is known only when it is given back; one that was opened since is live or not."""
    places = PlaceTracker()
    places.apply_changes([opened(1), opened(2), confirmed(7)])
    places.add_checkpoint("jobs.1", 5)
    places.apply_changes([confirmed(2), given_back(-9), given_back(9)])
    assert len(set(places.front)) == 2
    (checkpoint,) = places.checkpoints
    early = places.snapshot().early()
    assert early == {0, *places.front}
    assert [checkpoint.is_read_live(xid, early) for xid in (1, 2, 7)] == [True, False, True]


def test_a_checkpoint_is_passed_when_all_its_items_were_read() -> None:
    """What is in memory may reach beyond it."""
    places = PlaceTracker()
    places.add_checkpoint("jobs.1", 10)
    places.add_checkpoint("jobs.2", 20)
    assert places.newest_passed(9) is None
    passed = places.newest_passed(10)
    assert passed is not None
    assert passed.file == "jobs.1"
    places.apply_changes([ITEM] * 15)
    newest = places.newest_passed(5)
    assert newest is not None
    assert newest.file == "jobs.2"
    places.forget_packed(newest)
    assert places.checkpoints == []


def test_dropping_counts_what_was_given_back_first() -> None:
    """A flush takes the places that were given back, and then the next ones."""
    places = PlaceTracker()
    places.apply_changes([opened(1), given_back(1)])
    places.drop(4)
    assert (places.fresh, places.front) == (4, [])
