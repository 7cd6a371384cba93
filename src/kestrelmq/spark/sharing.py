"""Divide work among tasks: a large piece of work gets its own task, small ones share one."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def divide_by_cost(
    things: Iterable[Thing], cost: Callable[[Thing], int], room: int
) -> list[list[Thing]]:
    """Divide `things`, in order, into shares that cost at most `room` or hold a single thing."""
    found: list[list[Thing]] = []
    left = 0
    for thing in things:
        price = cost(thing)
        if price > left:
            found.append([])
            left = room
        found[-1].append(thing)
        left -= price
    return found
