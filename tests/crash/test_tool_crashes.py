"""`kestrelmq journal pack`, `import` and `repair`, killed at every step."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kestrelmq.format.records import Remove, RemoveTentative
from tests.support.crash_tools import imports, packs, repairs
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.journal_bytes import encode, numbered
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.real_directory import SimulatedCrash

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
Tool = Callable[[CrashingDirectory], object]
Contents = dict[str, list[bytes]]


FILES = {
    "jobs.1": numbered(1, 2),
    "jobs.2": encode(Remove()) + encode(RemoveTentative()),
    "jobs": numbered(3, 4)[:-2],
}
REPLACED = {
    "jobs.1": numbered(1),
    "jobs.2.pack": numbered(2),
    "jobs.3": numbered(3),
    "jobs~~pack-3": b"x",
}
DAMAGED = {"jobs": numbered(1) + b"cc" + numbered(2)}


def contents(path: Path) -> Contents | str:
    """Return what a server finds."""
    queues = LocalQueues(queue_settings(path))
    try:
        if queues.collection.damaged:
            return "damaged"
        return {name: queues.items(name) for name in queues.collection.queues}
    finally:
        queues.close()


@pytest.mark.parametrize(
    ("tool", "files", "before", "after"),
    [
        (packs, FILES, [b"2", b"3"], [b"2", b"3"]),
        (packs, REPLACED, [b"2", b"3"], [b"2", b"3"]),
        (imports, FILES, [b"2", b"3"], [b"2", b"3", b"8", b"9"]),
        (imports, {}, None, [b"8", b"9"]),
        (repairs, DAMAGED, "damaged", [b"1", b"2"]),
    ],
)
def test_a_tool_that_is_killed_leaves_the_queue_as_it_was_or_as_it_will_be(
    tmp_path: Path,
    tool: Tool,
    files: dict[str, bytes],
    before: list[bytes] | str | None,
    after: list[bytes],
) -> None:
    """Whatever is lost besides."""
    old = before if isinstance(before, str) else {} if before is None else {"jobs": before}
    new = {"jobs": after}
    for step in count(1):
        root = tmp_path / str(step)
        (root / "queues").mkdir(parents=True)
        for name, data in files.items():
            (root / "queues" / name).write_bytes(data)
        directory = CrashingDirectory.within(root)
        directory.crash_at = step
        try:
            tool(directory)
        except SimulatedCrash:
            expected: list[object] = [old, new]
        else:
            expected = [new]
        for loss in CrashLoss:
            directory.survive(loss, root / loss.name)
            assert contents(root / loss.name) in expected, (directory.crashed, loss)
        directory.abandon()
        if directory.crashed is None:
            break
