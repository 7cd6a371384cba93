"""The places of items, by which older files are packed."""

import pytest

from kestrelmq.engine.changes import Confirmed, GivenBack, Opened, Places
from kestrelmq.journal.records import item

pytestmark = pytest.mark.compiled

ITEM = item(0, 0, b"")


def test_places_follow_reads_that_are_given_back() -> None:
    """A place that was given back is the next one taken."""
    places = Places([])
    places.follow([ITEM, Opened(1, ITEM, 0), Opened(2, ITEM, 1), GivenBack(1, ITEM)])
    assert (places.fresh, places.front, places.opened) == (3, [1], {2: 2})
    places.follow([Opened(3, ITEM, 2), Confirmed(2, ITEM)])
    assert (places.fresh, places.front, places.opened) == (3, [], {3: 1})


def test_a_checkpoint_knows_the_order_of_the_queue() -> None:
    """Places given back come first, the last one at the head."""
    places = Places([7])
    places.follow([Opened(1, ITEM, 0), Opened(2, ITEM, 0)])
    places.follow([GivenBack(2, ITEM), GivenBack(1, ITEM), GivenBack(7, ITEM)])
    places.mark("jobs.1", 5)
    (checkpoint,) = places.checkpoints
    assert [checkpoint.place(index) for index in range(5)] == [-1, 0, 1, 2, 3]
    assert checkpoint.end == 4
    assert checkpoint.first_live(frozenset({-1}), 9) == 0
    assert checkpoint.first_live(frozenset({1}), 9) == 2
    assert checkpoint.first_live(frozenset({3}), 9) == 4
    assert checkpoint.first_live(frozenset(), 2) == 3
    assert checkpoint.first_live(frozenset(), 9) == 5


def test_a_checkpoint_is_passed_when_all_its_items_were_read() -> None:
    """What is in memory may reach beyond it."""
    places = Places([])
    places.mark("jobs.1", 10)
    places.mark("jobs.2", 20)
    assert places.passed(9) is None
    passed = places.passed(10)
    assert passed is not None
    assert passed.file == "jobs.1"
    places.follow([ITEM] * 15)
    newest = places.passed(5)
    assert newest is not None
    assert newest.file == "jobs.2"
    places.packed(newest)
    assert places.checkpoints == []


def test_dropping_counts_what_was_given_back_first() -> None:
    """A flush takes the places that were given back, and then the next ones."""
    places = Places([])
    places.follow([Opened(1, ITEM, 0), GivenBack(1, ITEM)])
    places.drop(4)
    assert (places.fresh, places.front) == (4, [])
