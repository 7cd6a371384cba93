"""`protocol.decimals`: the texts of consecutive numbers."""

import pytest

from kestrelmq.protocol.decimals import consecutive, joined

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 1),
        (-1003, 1006),
        (998, 2),
        (998, 5),
        (1000, 1),
        (1000, 1000),
        (1000, 1001),
        (11_999, 1),
        (1_234_998, 2004),
        (2**62, 3),
    ],
)
def test_each_group_has_what_its_numbers_begin_and_end_with(first: int, count: int) -> None:
    """Together they are the decimal texts of all numbers."""
    groups = consecutive(first, count)
    texts = [begin + ending for begin, endings in groups for ending in endings]
    assert texts == [b"%d" % number for number in range(first, first + count)]
    assert joined(first, count, b", ") == b", ".join(texts)


def test_of_no_number_there_is_no_text() -> None:
    """There is no group."""
    assert consecutive(7, 0) == []
