"""When items are read back from the journal."""

from pathlib import Path

import pytest

from kestrelmq.journal.reader import JournalReader
from kestrelmq.queue.backlog import READ_AHEAD, READY_BYTES, ReadBehind

pytestmark = pytest.mark.compiled

MIB = 1 << 20


@pytest.mark.parametrize(
    ("rest", "held", "items", "limit", "below"),
    [
        pytest.param(1 << 30, 64_000, 1000, 128 * MIB, READY_BYTES * 64 // 85, id="a little ahead"),
        pytest.param(1 << 30, 128 * MIB, 128, 128 * MIB, READY_BYTES, id="large items"),
        pytest.param(1 << 30, 0, 1000, 128 * MIB, 0, id="items without data: when none is left"),
        pytest.param(1 << 30, 1000, 1, 1000, 500, id="little memory: half of it"),
        pytest.param(
            MIB, 10 * MIB, 10, 128 * MIB, 10 * MIB - READ_AHEAD // 2, id="the rest fits: all of it"
        ),
    ],
)
def test_how_much_is_kept_ahead(rest: int, held: int, items: int, limit: int, below: int) -> None:
    """A little, whatever the items; all of the rest when memory has room for it."""
    behind = ReadBehind(JournalReader(Path(), "jobs", 0), 1, rest)
    got = behind.refill_below(held, items, limit)
    assert got == pytest.approx(below, abs=200)
