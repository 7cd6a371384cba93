"""A large item in pieces: whole however it is cut, and never more than what belongs to it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.journal.records import item
from kestrelmq.protocol.memcache import Set
from kestrelmq.server.large_item import ArrivingLargeItem

pytestmark = pytest.mark.compiled


def feed(large: ArrivingLargeItem, pieces: list[bytes]) -> bytes:
    """Hand the pieces over, until the item is whole or bad; return what it left."""
    left = b""
    for piece in pieces:
        end = large.take(piece, 0) if not (large.is_whole or large.is_bad) else 0
        left += piece[end:]
    return left


@given(
    data=st.binary(max_size=40),
    ending=st.sampled_from([b"\r\n", b"\n"]),
    after=st.binary(max_size=10),
    cuts=st.lists(st.integers(0, 52), max_size=6),
)
def test_an_item_is_whole_however_it_is_cut(
    data: bytes, ending: bytes, after: bytes, cuts: list[int]
) -> None:
    """Its data and its record are right, and what comes after it is left."""
    stream = data + ending + after
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    large = ArrivingLargeItem(Set("jobs", 0, len(data), noreply=False, plain="jobs"))
    assert feed(large, pieces) == after
    assert (large.is_whole, large.is_bad, large.missing) == (True, False, 0)
    assert large.data() == data
    assert large.record(1000, 5) == item(1000, 5, data)


@pytest.mark.parametrize("ending", [b"x\n", b"\r\r\n", b"\rx"])
def test_something_else_than_a_line_end_is_bad(ending: bytes) -> None:
    """The item is never whole then."""
    large = ArrivingLargeItem(Set("jobs", 0, 3, noreply=False, plain="jobs"))
    feed(large, [b"abc", ending])
    assert (large.is_whole, large.is_bad) == (False, True)


def test_data_comes_from_the_middle_of_what_was_received() -> None:
    """Where the line of the `set` ended."""
    large = ArrivingLargeItem(Set("jobs", 0, 3, noreply=False, plain="jobs"))
    assert large.take(b"set jobs 0 0 3\r\nabc\r\nget", 16) == 21
    assert large.is_whole
    assert large.data() == b"abc"
