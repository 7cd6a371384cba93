"""No operation evaluates annotations: Python does so for each nested function that it defines."""

import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kestrelmq.client import Client, commands
from kestrelmq.client.options import ItemTimes
from kestrelmq.library import PersistentQueue

CLIENT = Client("host.invalid:1")


def reserve() -> None:
    """Do what `Client.reserve` does before it sends its request."""
    step = next(CLIENT._plans.reserve("work", None, 60.0, 0.0))
    step.command("owner")  # type: ignore[union-attr, operator]


OPERATIONS: dict[str, Callable[[], object]] = {
    "reserve": reserve,
    "get": lambda: commands.get(b"work"),
    "put": lambda: commands.set_items(b"work", [(b"x", ItemTimes(0, 0), None)], []),
    "finish": lambda: commands.finish(b"work", commands.Reads(["1-a"])),
}


def evaluated_by(operation: Callable[[], object]) -> list[str]:
    """Return what an operation calls in `typing`."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == typing.__file__:
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_of_a_client_evaluates_no_annotation(name: str) -> None:
    """That took longer than all else that a `reserve` does besides waiting for the server."""
    assert evaluated_by(OPERATIONS[name]) == []


def test_an_operation_of_the_library_evaluates_no_annotation(tmp_path: Path) -> None:
    """Each operation defines a function, which is called with the lock held."""
    with PersistentQueue("work", tmp_path) as queue:
        assert evaluated_by(lambda: len(queue)) == []
