"""Items on their way to another queue: after any crash in one of them, or in both."""

from functools import partial
from pathlib import Path

import pytest

from kestrelmq.queue.departures import Departures
from kestrelmq.queues import moving
from tests.support.crash_checks import Checker, WrongState, is_unread
from tests.support.crash_moves import WAYS, MovingItems, allows
from tests.support.crash_recordings import QUICK
from tests.support.recording_directory import (
    Create,
    Operation,
    StateBounds,
    SyncFile,
    crash_states,
)


def recorded(
    root: Path, name: str, dialect: str = "documented", *, synced: bool
) -> list[Operation]:
    """Return what is done to the files when all items change queues."""
    path = root / "spool"
    path.mkdir()
    queues = MovingItems(path, dialect, WAYS[name], synced=synced)
    WAYS[name].run(queues)
    assert queues.found() == WAYS[name].found
    queues.end()
    return queues.directory.operations


def check(root: Path, name: str, operations: list[Operation], *, synced: bool) -> None:
    """Load all states. Raises WrongState: an item is in neither queue."""
    bounds = QUICK if synced else StateBounds(name_sets=1, mixtures=1)  # nothing else is promised
    states = crash_states(operations, {}, bounds, unread=is_unread)
    checker = Checker(root / "left", QUICK, nested_every=25)
    checker.check(states, partial(allows, WAYS[name], synced=synced))
    assert checker.states > 9


@pytest.mark.parametrize(
    ("dialect", "synced"), [("documented", True), ("documented", False), ("kestrel-2", True)]
)
@pytest.mark.parametrize(
    ("name", "ahead"),
    [*((name, False) for name in WAYS), ("expired", True), ("dead", True), ("moved", True)],
)
def test_an_item_is_in_neither_queue_in_no_state(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dialect: str,
    *,
    ahead: bool,
    synced: bool,
) -> None:
    """Of all those that a kill or a loss of power may leave; `ahead`: as if it were large."""
    if ahead:
        monkeypatch.setattr(Departures, "_is_large", lambda _departures, _record: True)
        monkeypatch.setattr(moving, "is_large", lambda _record: True)
    check(root, name, recorded(root, name, dialect, synced=synced), synced=synced)


@pytest.mark.parametrize("name", WAYS)
def test_a_missing_sync_of_the_other_queue_is_noticed(root: Path, name: str) -> None:
    """Before the item leaves its own queue; or, of a fanout queue, before the reply."""
    operations = recorded(root, name, synced=True)
    others = {step.file for step in operations if isinstance(step, Create) and _is_other(step)}
    left = [step for step in operations if not (isinstance(step, SyncFile) and step.file in others)]
    assert len(left) < len(operations)
    with pytest.raises(WrongState):
        check(root, name, left, synced=True)


def _is_other(step: Create) -> bool:
    return step.name != "jobs" and not step.name.startswith(("jobs.", "~~"))
