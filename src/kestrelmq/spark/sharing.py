"""Sharing work out to tasks: a large thing is a task by itself, small ones share one."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def shares(things: Iterable[Thing], cost: Callable[[Thing], int], room: int) -> list[list[Thing]]:
    """Share out `things`, in order: each share costs at most `room`, or is of one thing."""
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
