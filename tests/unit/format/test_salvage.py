"""Finding records again after damage: what is believed to be one, and what is not."""

import pytest

from kestrelmq.format.records import AddX, AddXid, ConfirmRemove, Continue, Record, Remove, SaveXid
from kestrelmq.format.salvage import next_record
from tests.support.journal_bytes import encode, journal

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
DAMAGE = b"\xff" * 37
ITEM = encode(AddX(NOW, 0, b"item"))


def found(content: bytes, step: int = 1 << 20) -> int:
    """Return where records go on after the damage that `content` begins with."""
    return next_record(content, 0, step=lambda _position: step)


@pytest.mark.parametrize("step", [*range(1, 60), 1 << 20])
@pytest.mark.parametrize(
    "record", [AddX(NOW, 0, b"data"), AddXid(1, NOW, NOW, b""), Continue(1, NOW, 0, b"data")]
)
def test_the_first_added_item_is_found(record: Record, step: int) -> None:
    """Of each kind, and however much is looked at together."""
    content = DAMAGE + encode(record) + ITEM + journal(Remove(), ConfirmRemove(4))
    assert found(content, step) == len(DAMAGE)


@pytest.mark.parametrize("record", [ITEM, encode(AddXid(1, NOW, 0, b"item"))])
def test_an_item_that_is_cut_short_is_none(record: bytes) -> None:
    """Even if it looks like one as far as it goes; nothing is found then."""
    for cut in range(13, len(record)):
        content = DAMAGE + record[:cut]
        assert found(content) == len(content)


@pytest.mark.parametrize(
    "fake",
    [
        AddX(NOW - 40 * 366 * 86_400_000, 0, b"before 2000"),
        AddX(NOW + 80 * 366 * 86_400_000, 0, b"after 2100"),
        AddX(NOW, -1, b"expired before there was time"),
        AddX(NOW, 2**62, b"expires too late"),
    ],
)
def test_an_item_with_strange_times_is_not_believed(fake: Record) -> None:
    """It is passed over, and the next one found."""
    content = DAMAGE + encode(fake)
    assert found(content + ITEM) == len(content)


def test_an_item_that_no_record_follows_is_not_believed() -> None:
    """It may be data that looks so; sixteen records in a row are enough."""
    content = DAMAGE + ITEM + journal(Remove(), SaveXid(1)) + b"\xff"
    assert found(content) == len(content)
    assert found(content + ITEM) == len(content)
    assert found(DAMAGE + ITEM * 16 + b"\xff") == len(DAMAGE)
    few = DAMAGE + ITEM * 15 + b"\xff"
    assert found(few) == len(few)


@pytest.mark.parametrize(
    ("end", "is_believed"),
    [
        (encode(SaveXid(1))[:3], True),
        (b"\x07\x01\x00", True),
        (ITEM[:3], True),
        (ITEM[:12], True),
        (encode(AddXid(1, NOW, 0, b"item"))[:-1], True),
        (ITEM[:-1], False),
    ],
)
def test_the_end_of_the_file_may_be_cut_short(end: bytes, *, is_believed: bool) -> None:
    """A crash leaves that; but a whole header that reaches beyond may as well be damage."""
    content = DAMAGE + ITEM + end
    assert found(content) == (len(DAMAGE) if is_believed else len(content))
