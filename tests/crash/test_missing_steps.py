"""Turned round: without one of its syncs or renames, or with two swapped, the package is caught.

A step is taken out of what a scenario recorded, wherever it was asked for by the same line of the
source, and the states of what is left are loaded. Some scenario must find one that is wrong. What
no scenario can find is listed, with the reason; a new sync or rename must be found, or listed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.crash_checks import REGISTRY, STATUS, Checker, WrongState
from tests.support.crash_recordings import QUICK, Recording, States, recorded
from tests.support.crash_scenarios import SCENARIOS
from tests.support.crash_sites import all_sites, function, site
from tests.support.crash_tools import TOOLS
from tests.support.recording_directory import (
    Link,
    Operation,
    Remove,
    Rename,
    ScenarioMark,
    SyncFile,
    SyncNames,
    Truncate,
)

SHARED = "journal/writer.py FileJournal.sync_current: current.sync()"
CLEANED = "journal/loading.py clean_up: directory.rename(pack, queue_files.rotated[0])"
TOLD_APART = (SHARED, CLEANED)
"""Told apart by who calls it."""
LOADING = "loading does what is left of it, and the queue is the same before and after"
TEMPORARY = "a temporary that stays means nothing, and the next start removes it"
OTHER = "the two are about different files, one of them a temporary"
FOLLOWER = "for whoever follows a file by its length; the queue is the same"
DISK = "what a directory on disk does; tests/unit/disk/test_disk_syncs.py watches the system calls"
BACKUPS = "tests/unit/tools/test_backup_syncs.py looks at the order of all of them"
TASKS = "files that the tasks of a Spark job write before its commit is told of them"
UNSEEN = {
    "journal/replacement.py Replacement.clear: self._directory.sync()": LOADING,
    f"{CLEANED} < take_place": LOADING,
    "journal/loading.py clean_up: directory.sync() #2": LOADING,
    "journal/packing.py pack: directory.rename(placed, queue)": "only a nicer name",
    "journal/packing.py pack: directory.sync()": "only a nicer name",
    "journal/replacement.py Replacement._write: file.sync()": "the last sync has less to do",
    "tools/import_export.py import_rows: directory.remove(name)": TEMPORARY,
    "journal/loading.py remove_left_over: directory.remove(name)": TEMPORARY,
    "journal/replacement.py Replacement.place: self._directory.remove(self._temporary)": TEMPORARY,
    "disk/directories.py write_file: directory.remove(name)": TEMPORARY,
    "journal/writer.py FileJournal._append_to_new_file: self.directory.remove(name)": TEMPORARY,
    "journal/writer.py FileJournal.rotate: self.directory.remove(temporary)": TEMPORARY,
    "journal/writer.py FileJournal.probe: self.directory.remove(name)": TEMPORARY,
    "journal/writer.py JournalRemoval.replace: directory.remove(self._pack)": (
        "only after a sync that failed; tests/unit/upkeep/test_rotation.py"
    ),
    "journal/loading.py save_tail: directory.truncate(aside, size - end)": "a hole beyond 1 MiB",
    "journal/loading.py _rotate: directory.sync()": FOLLOWER,
}
UNSEEN_IN = {
    "disk/directories.py Disk": DISK,
    "disk/renaming.py make_directory": DISK,
    "disk/renaming.py rename_durably": DISK,
    "disk/renaming.py replacing": "what it writes is no part of a queue",
    "disk/renaming.py sync_path": DISK,
    "queues/registry.py QueueRegistry._replace": "what it calls is looked at",
    "server/status.py": "what it calls is looked at",
    "disk/restored.py": BACKUPS,
    "tools/backup.py": BACKUPS,
    "disk/write_directories.py remove": "it goes with all that is in it, and is not read",
    "spark/sinks/dead_letters.py": TASKS,
    "spark/sinks/journal_parts.py": TASKS,
}
"""The same for all that begins so."""
ENDED = "only the second rename makes another file the last one, and it comes after both"
UNSEEN_SWAPS = {
    (f"{SHARED} < _sync_rest", "FileJournal.rotate: self.directory.rename(old, rotated)"): ENDED,
    ("sync_file(files.queue)", "rename(files.queue, rotated_name(files.queue, stamp))"): ENDED,
    ("sync_file(existing.files[-1])", "rename(queue, rotated_name(queue, timestamp))"): ENDED,
    ("rename(queue_files.queue, rotated)", "_rotate: directory.sync()"): FOLLOWER,
    ("save_tail: directory.sync()", "rename(queue_files.queue, rotated)"): "another sync follows",
    (f"{SHARED} < sync", "rename(queue_files.queue, rotated)"): "another sync follows",
    ("remove(name)", "Replacement.remove_old: self._directory.sync()"): (
        "the pack is there until the sync, and while it is, an old file means nothing"
    ),
    (
        "Replacement.remove_old: self._directory.sync()",
        "remove_old: self._directory.remove(name)",
    ): (
        "the old files of two replacements: the newest pack replaces both, and comes after another"
        " sync"
    ),
    ("self._directory.rename(self.pack, self.name)", "self._directory.sync()"): LOADING,
    ("clean_up: directory.sync() #2", "rename(placed, queue)"): LOADING,
    ("rename(placed, queue)", "directory.sync()"): LOADING,
    **{
        (f"{CLEANED} < {caller}", "clean_up: directory.sync() #2"): LOADING
        for caller in ("load_queue", "run", "take_place")
    },
    ("clean_up: directory.remove(name)", "clean_up: directory.sync() #2"): TEMPORARY,
    ("self._file.sync()", "clean_up: directory.remove(name)"): OTHER,
    (f"{SHARED} < _sync_rest", "clean_up: directory.remove(name)"): OTHER,
    ("FileWriter.sync: self._file.sync()", "rename(queue, old[-1])"): OTHER,
    ("FileWriter.sync: self._file.sync()", "directory.link(name, aside)"): OTHER,
}
"""Ends of the names of two steps."""


def name_of(operation: Operation) -> str | None:
    """Return what a step is called: by its place in the source."""
    if not operation.site or not isinstance(
        operation, SyncFile | SyncNames | Rename | Link | Remove | Truncate
    ):
        return None
    name = site(operation.site)
    return f"{name} < {function(operation.caller)}" if name in TOLD_APART else name


def is_unseen(name: str) -> bool:
    """Whether no scenario need find that a step is missing."""
    return name in UNSEEN or name.startswith(tuple(UNSEEN_IN))


def is_unseen_swap(first: str, second: str) -> bool:
    """Whether no scenario need find that two steps were swapped."""
    return any(first.endswith(one) and second.endswith(other) for one, other in UNSEEN_SWAPS)


class Suite:
    """Recordings, and which of them tell what is wrong with a change of them."""

    def __init__(self, root: Path, recordings: Sequence[Recording]) -> None:
        """Derive the states of `recordings`, which are right, in `root`."""
        self._recordings = sorted(recordings, key=lambda one: len(one.operations))
        self._states: dict[int, States] = {}
        self._root = root
        self._checkers: dict[int, Checker] = {}

    def names(self) -> set[str]:
        """Return what the steps of all recordings are called."""
        steps = [step for one in self._recordings for step in one.operations]
        return {name for step in steps if (name := name_of(step)) is not None}

    def neighbours(self) -> set[tuple[str, str]]:
        """Return which steps follow each other, where one syncs and the other names."""
        return {
            (first, second)
            for one in self._recordings
            for _, _, first, second in _neighbours(one.operations)
        }

    def finds_missing(self, name: str) -> bool:
        """Whether it is noticed that a step is not there."""
        return self._finds(
            [[step for step in one.operations if name_of(step) != name] for one in self._recordings]
        )

    def finds_swapped(self, first: str, second: str) -> bool:
        """Whether it is noticed that two steps have changed places."""
        changed = []
        for one in self._recordings:
            steps = list(one.operations)
            for at, after, *names in _neighbours(one.operations):
                if names == [first, second]:
                    steps[at], steps[after] = one.operations[after], one.operations[at]
            changed.append(steps)
        return self._finds(changed)

    def _finds(self, changed: Sequence[list[Operation]]) -> bool:
        return any(
            self._is_wrong(place, steps)
            for place, steps in enumerate(changed)
            if tuple(steps) != self._recordings[place].operations
        )

    def _is_wrong(self, place: int, steps: list[Operation]) -> bool:
        right = self._recordings[place]
        if place not in self._states:
            self._states[place] = right.states(QUICK)
            self._checkers[place] = Checker(self._root / "left", QUICK, nested_every=10**9)
        known = self._states[place]
        new: States = {}
        for contents, crashes in replace(right, operations=tuple(steps)).states(QUICK).items():
            left = [crash for crash in crashes if crash not in known.get(contents, ())]
            if left:
                new[contents] = dict.fromkeys(left)
        try:
            self._checkers[place].check(new, right.allowed)
        except WrongState:
            return True
        return False


def _neighbours(operations: Sequence[Operation]) -> Iterable[tuple[int, int, str, str]]:
    """Yield where two steps follow each other of which one syncs, and what they are called."""
    places = [at for at, step in enumerate(operations) if not isinstance(step, ScenarioMark)]
    for at, after in pairwise(places):
        first, second = name_of(operations[at]), name_of(operations[after])
        syncs = [
            isinstance(operations[one], SyncFile | SyncNames | Truncate) for one in (at, after)
        ]
        if first is not None and second is not None and first != second and sum(syncs) == 1:
            yield at, after, first, second


def some(root: Path) -> Suite:
    """Return a suite that is quick, and has most of the steps."""
    names = [*TOOLS, STATUS, REGISTRY, "deleted"]
    return Suite(root, [recorded(root, name, synced=False) for name in names])


def every(root: Path) -> Suite:
    """Return a suite of all scenarios."""
    recordings = [
        recorded(root, name, synced=False) for name in [*TOOLS, STATUS, REGISTRY, *SCENARIOS]
    ]
    recordings += [recorded(root, name, synced=True) for name in SCENARIOS]
    return Suite(root, recordings)


def test_every_sync_and_rename_is_in_a_scenario_or_listed(root: Path) -> None:
    """A new one is to be put into a scenario; what is listed is there."""
    found = {name.partition(" < ")[0] for name in every(root).names()}
    there = set(all_sites())
    assert {name for name in there - found if not is_unseen(name)} == set()
    assert {name.partition(" < ")[0] for name in UNSEEN} <= there
    assert all(any(name.startswith(start) for name in there) for start in UNSEEN_IN)


def test_no_step_of_the_tools_may_be_missing(root: Path) -> None:
    """Nor one of a rotation or a deletion."""
    suite = some(root)
    wanted = sorted(name for name in suite.names() if not is_unseen(name))
    assert len(wanted) > 40
    assert [name for name in wanted if not suite.finds_missing(name)] == []


def test_no_steps_of_the_tools_may_change_places(root: Path) -> None:
    """Nor those of a rotation or a deletion."""
    suite = some(root)
    wanted = sorted(pair for pair in suite.neighbours() if not is_unseen_swap(*pair))
    assert len(wanted) > 20
    assert [pair for pair in wanted if not suite.finds_swapped(*pair)] == []


@pytest.mark.soak
def test_no_step_may_be_missing_or_change_places(root: Path) -> None:
    """The same for every scenario; and what is listed is listed with reason."""
    suite = every(root)
    names, pairs = sorted(suite.names()), sorted(suite.neighbours())
    assert [name for name in names if suite.finds_missing(name) is is_unseen(name)] == []
    assert [pair for pair in pairs if suite.finds_swapped(*pair) is is_unseen_swap(*pair)] == []
