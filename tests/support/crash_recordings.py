"""Scenarios that are run once and recorded, and the states that their crashes may leave."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from kestrelmq.disk.directories import replace_file
from kestrelmq.queue.paused import Paused
from kestrelmq.queues.registry import QueueEntry, QueueRegistry, decode
from kestrelmq.upkeep import upkeep
from tests.support.crash_checks import REGISTRY, STATUS, Allowed, Queues, is_unread
from tests.support.crash_scenarios import (
    SCENARIOS,
    Promise,
    Run,
    State,
    as_delayed,
    kestrel_2,
)
from tests.support.crash_tools import TOOLS, Anything, Phase, record
from tests.support.fake_clock import FakeClock
from tests.support.recording_directory import (
    Contents,
    CrashCause,
    Operation,
    RecordingDirectory,
    StateBounds,
    crash_states,
)

QUICK = StateBounds(cuts=lambda size: sorted({1, size // 2}), name_sets=16, mixtures=24)
"""For `make test`."""
DEEP = StateBounds(cuts=lambda size: range(1, min(size, 64)), name_sets=2000, mixtures=5000)
"""For the soak test."""
States = dict[Contents, dict[CrashCause, None]]


@dataclass(frozen=True, slots=True)
class Recording:
    """What a scenario did, and which states it allows."""

    operations: tuple[Operation, ...]
    allowed: Allowed

    def states(self, bounds: StateBounds) -> States:
        """Return what crashes may leave."""
        return crash_states(self.operations, {}, bounds, unread=is_unread)


def recorded(root: Path, name: str, dialect: str = "documented", *, synced: bool) -> Recording:
    """Run a scenario of a server, or a tool."""
    path = root / f"{name}-{dialect}-{synced}"
    if name in TOOLS:
        operations = record(TOOLS[name], path).operations
        return Recording(tuple(operations), partial(_in_phase, TOOLS[name].kept))
    if name == STATUS:
        return _recorded_status(path)
    if name == REGISTRY:
        return _recorded_registry(path)
    scenario, config, at_hand = SCENARIOS[name]
    path.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "COPIED_ITEMS_LIMIT", at_hand)
        run = Run(
            RecordingDirectory(path),
            kestrel_2(config) if dialect == "kestrel-2" else config,
            synced=synced,
        )
        scenario(run)
        run.kill()

    def allowed(crash: CrashCause, _contents: Contents, queues: Queues) -> bool:
        promise = crash.mark
        if not isinstance(promise, Promise):
            return not queues
        oldest = promise.committed if crash.killed else promise.safe
        if name.startswith("delayed") and not crash.killed:
            return _is_each_there_once(
                dict(queues).get("jobs"), run.states[oldest : promise.noted + 1]
            )
        return dict(queues).get("jobs") in run.states[oldest : promise.noted + 1]

    return Recording(tuple(run.directory.operations), allowed)


def _is_each_there_once(found: State, states: list[State]) -> bool:
    """Whether a loss of power may leave `found` in two journals, which are synced independently.

    What all states since the last sync have must be there, delayed or not, and nothing twice.
    """
    items = [one.removeprefix(as_delayed(b"")) for one in found or ()]
    held = [{one.removeprefix(as_delayed(b"")) for one in state or ()} for state in states]
    is_there_once = len(items) == len(set(items))
    return is_there_once and set.intersection(*held) <= set(items) <= set.union(*held)


def _in_phase(kept: bytes, crash: CrashCause, contents: Contents, queues: Queues) -> bool:
    phase = crash.mark
    if not isinstance(phase, Phase):
        return not queues
    is_looked_at = kept and not isinstance(phase.killed, Anything)
    if is_looked_at and all(kept not in data for _, data in contents):
        return False
    return dict(queues).get("jobs") in (phase.killed if crash.killed else phase.lost)


def _recorded_status(path: Path) -> Recording:
    """Have a small file replaced a few times."""
    path.mkdir()
    directory = RecordingDirectory(path)
    for number in range(3):
        directory.mark((number, number + 1))
        replace_file(directory, STATUS, b"%d" % number)
        directory.mark((number + 1, number + 1))

    def allowed(crash: CrashCause, contents: Contents, _queues: Queues) -> bool:
        first, last = crash.mark if isinstance(crash.mark, tuple) else (0, 0)
        return dict(contents).get(STATUS) in [None, b"0", b"1", b"2"][first : last + 1]

    return Recording(tuple(directory.operations), allowed)


def _recorded_registry(path: Path) -> Recording:
    """Have a file of the registry set aside, and new ones written."""
    path.mkdir()
    directory = RecordingDirectory(path)
    damaged = b"damaged"
    replace_file(directory, REGISTRY, damaged)
    states: list[object] = [None]
    directory.mark((0, 0))
    kept = QueueRegistry(directory, FakeClock())
    kept.load()
    for number, paused in enumerate((Paused.READS, Paused.ALL, Paused.NOTHING)):
        kept.put("jobs", QueueEntry(paused))
        states.append({"jobs": QueueEntry(paused)} if paused else {})
        directory.mark((number, number + 1))
        kept.save(lambda _failure: None)
        directory.mark((number + 1, number + 1))

    def allowed(crash: CrashCause, contents: Contents, _queues: Queues) -> bool:
        if not isinstance(crash.mark, tuple):
            return True
        first, last = crash.mark
        files = dict(contents)
        found = files.get(REGISTRY, damaged)
        state = None if found == damaged else decode(found)
        return damaged in files.values() and state in states[first : last + 1]

    return Recording(tuple(directory.operations), allowed)
