"""Divide work among tasks: a large journal file into parts, and pieces of work into shares.

Records can be found only from the beginning of a file, so the process that plans a query looks
through it once. A part is the same file with another `begin` and `size`. What ends the records of
the file other than its end (damage, a STATE_DUMP and what is behind it) is in the last part; bytes
of a torn record are in none, because they give no row.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from kestrelmq.errors import DamagedJournal
from kestrelmq.spark.plan.opening import open_view
from kestrelmq.spark.plan.spool import SpoolFile

Thing = TypeVar("Thing")


def divided(file: SpoolFile, least: int) -> list[SpoolFile]:
    """Return the parts of a file, in order; each but the last has `least` bytes, or a little more.

    A file in a store is not divided: to look through it means to read it whole.

    Raises:
        JournalError: the file is gone, or shorter than when it was listed.
    """
    if file.location is not None or file.size <= least:
        return [file]
    view = open_view(file)
    begins = [0]
    try:
        for chunk in view.chunks():
            if chunk.is_state_dump:
                break
            while chunk.ends[-1] >= begins[-1] + least:
                begins.append(int(chunk.ends[np.searchsorted(chunk.ends, begins[-1] + least)]))
    except DamagedJournal:
        pass  # whoever reads the last part finds it
    end = file.size if view.torn_at is None else view.torn_at
    ends = [begin for begin in begins[1:] if begin < end]
    return [
        replace(file, begin=begin, size=part_end)
        for begin, part_end in zip([0, *ends], [*ends, end], strict=True)
    ]


def divide_by_cost(
    things: Iterable[Thing], cost: Callable[[Thing], int], room: int
) -> list[list[Thing]]:
    """Divide `things`, in order, into shares that cost at most `room` or hold a single thing."""
    found: list[list[Thing]] = []
    left = 0
    for thing in things:
        price = cost(thing)
        if price > left or not found:
            found.append([])
            left = room
        found[-1].append(thing)
        left -= price
    return found
