"""Where records begin, found in runs: exactly what the scanner finds one by one."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.records import (
    REMOVE_RECORD,
    REMOVE_TENTATIVE_RECORD,
    Add,
    Continue,
    StateDump,
    encode,
    item,
    save_xid,
)
from kestrelmq.format.scanning import scan
from kestrelmq.spark.plan.boundaries import boundaries

YEAR_2020 = 1_577_836_800_000
pieces = st.one_of(
    st.tuples(st.integers(0, 40), st.integers(1, 400)).map(
        lambda run: item(YEAR_2020, 0, bytes(run[0])) * run[1]
    ),
    st.tuples(st.integers(0, 9), st.integers(1, 50)).map(
        lambda run: encode(Add(7, b"\x02" * run[0])) * run[1]
    ),
    st.integers(1, 400).map(lambda count: REMOVE_RECORD * count),
    st.sampled_from(
        [
            REMOVE_TENTATIVE_RECORD,
            save_xid(3),
            encode(StateDump(1, 16)),
            encode(Continue(1, YEAR_2020, 0, b"data" * 30)),
            item(YEAR_2020, 0, bytes(70_000)),
            b"\x02\x10\x00",
            b"\x63",
        ]
    ),
)


def found(buffer: bytes, begin: int, end: int, *, more: bool) -> tuple[list[int], int | str]:
    """Return where records begin, and where the look for them stopped, or why."""
    arrays: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    try:
        stopped: int | str = boundaries(buffer, begin, end, arrays, more=more)
    except DamagedJournal as damage:
        stopped = str(damage)
    return [int(start) for array in arrays for start in array], stopped


def scanned(buffer: bytes, begin: int, end: int, *, more: bool) -> tuple[list[int], int | str]:
    """Return what the scanner finds."""
    starts: list[int] = []
    try:
        stopped: int | str = scan(buffer, begin, end, starts, more=more)
    except DamagedJournal as damage:
        stopped = str(damage)
    return starts, stopped


@given(st.lists(pieces, max_size=12), st.integers(0, 60), st.booleans())
def test_runs_are_what_the_scanner_finds(parts: list[bytes], cut: int, more: bool) -> None:  # noqa: FBT001
    """Whatever the records, the end that cuts one, the damage, and what may come behind."""
    buffer = b"".join(parts)
    end = max(0, len(buffer) - cut)

    assert found(buffer, 0, end, more=more) == scanned(buffer, 0, end, more=more)


@pytest.mark.parametrize("size", [0, 50, 1024, 5000])
def test_long_runs_and_what_breaks_them(size: int) -> None:
    """Runs longer than any window, with other records between, before and behind them."""
    rng = random.Random(size)
    run = [item(YEAR_2020, 0, bytes(size)) * rng.randrange(3000) for _ in range(6)]
    mixed = [item(YEAR_2020, 0, bytes(rng.randrange(200))) for _ in range(2000)]
    buffer = b"".join([*run[:3], *mixed, *run[3:], REMOVE_RECORD * 100_000, b"\x02"])

    assert found(buffer, 0, len(buffer), more=False) == scanned(buffer, 0, len(buffer), more=False)
