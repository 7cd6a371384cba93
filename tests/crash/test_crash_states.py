"""Every state that a crash may leave of everything that changes files, loaded and compared.

A scenario runs once, on a directory that records it. From its notes the states are derived (the
bounds are those of `tests.support.recording_directory`); each is loaded, twice, and compared with
what the scenario's model promises. Of every so many, the crashes of the loading itself are tried,
too.
"""

from pathlib import Path

import pytest

from tests.support.crash_checks import REGISTRY, STATUS, Checker
from tests.support.crash_recordings import DEEP, QUICK, recorded
from tests.support.crash_scenarios import SCENARIOS
from tests.support.crash_sites import function
from tests.support.crash_tools import TOOLS
from tests.support.recording_directory import StateBounds

REACHED = {
    "empty again": {"rotate", "remove_old"},
    "delayed": {"rotate", "remove_old", "replace", "remove"},
    "delayed, rewritten from files": {"rotate", "remove_old", "replace", "remove"},
    "delayed beside a worker": {"rotate", "remove_old"},
    "rewritten": {"rotate", "remove_old"},
    "rewritten from files": {"rotate", "remove_old"},
    "read behind": {"rotate", "remove_old"},
    "read behind, rewritten": {"rotate", "remove_old"},
    "in rounds": {"rotate", "remove_old"},
    "deleted": {"rotate", "replace", "remove"},
    "deleted beside a worker": {"rotate", "replace", "remove"},
    "behind beside a worker": {"rotate", "remove_old"},
    "kept": {"rotate", "remove_old", "clear", "replace", "remove"},
    "kept, rewritten": {"rotate", "remove_old", "clear", "replace", "remove"},
    "killed in between": {"rotate", "replace", "remove"},
    "new dialects": {"_rotate"},
}


@pytest.mark.parametrize(
    ("dialect", "synced"), [("documented", False), ("documented", True), ("kestrel-2", False)]
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_server_comes_up_right_from_every_state(
    root: Path, name: str, dialect: str, *, synced: bool
) -> None:
    """A kill keeps the last commit; lost power a state no older than the last sync."""
    recording = recorded(root, name, dialect, synced=synced)
    assert REACHED[name] <= {function(step.site) for step in recording.operations}
    states = recording.states(QUICK)
    checker = Checker(root / "left", QUICK, nested_every=80)
    checker.check(states, recording.allowed)
    assert checker.states > 80


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_leaves_a_queue_as_it_was_or_as_it_will_be(root: Path, name: str) -> None:
    """Whatever is lost besides; what it was may have an unsynced end, which may be lost."""
    recording = recorded(root, name, synced=False)
    checker = Checker(root / "left", QUICK, nested_every=3)
    checker.check(recording.states(StateBounds()), recording.allowed)
    assert checker.states > 1


@pytest.mark.parametrize("name", [STATUS, REGISTRY])
def test_a_small_file_is_replaced_whole(root: Path, name: str) -> None:
    """It has its old content or the new one, and the new one once it was replaced.

    A damaged one is kept.
    """
    recording = recorded(root, name, synced=False)
    Checker(root / "left").check(recording.states(StateBounds()), recording.allowed)


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_state_at_length(root: Path, name: str, dialect: str, *, synced: bool) -> None:
    """Each cut of each record, all orders of names, and a crash in every load."""
    recording = recorded(root, name, dialect, synced=synced)
    Checker(root / "left", QUICK).check(recording.states(DEEP), recording.allowed)
