"""`kestrelmq journal pack`, `import` and `repair`, killed at every step."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.journal.exchange import Row, import_rows
from kestrelmq.journal.pack import pack
from kestrelmq.journal.records import AddX, Remove, RemoveTentative, encode, item_data
from kestrelmq.journal.repair import repair
from kestrelmq.journal.selection import select
from kestrelmq.testing.clock import FakeClock
from kestrelmq.testing.crashing import CrashingDirectory, Loss
from kestrelmq.testing.real import SimulatedCrash

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
Tool = Callable[[CrashingDirectory], object]
Contents = dict[str, list[bytes]]


def added(*numbers: int) -> bytes:
    """Return the records of items that are told by their numbers."""
    return b"".join(encode(AddX(NOW + number, 0, b"%d" % number)) for number in numbers)


FILES = {
    "jobs.1": added(1, 2),
    "jobs.2": encode(Remove()) + encode(RemoveTentative()),
    "jobs": added(3, 4)[:-2],
}
REPLACED = {"jobs.1": added(1), "jobs.2.pack": added(2), "jobs.3": added(3), "jobs~~pack-3": b"x"}
DAMAGED = {"jobs": added(1) + b"cc" + added(2)}


def packs(directory: CrashingDirectory) -> None:
    """Pack the queue."""
    (one,) = select([directory.path])
    pack(directory, one.plan, "documented", FakeClock())


def imports(directory: CrashingDirectory) -> None:
    """Add two items to the queue."""
    rows = [Row("jobs", number, b"%d" % number, NOW, 0) for number in (8, 9)]
    import_rows(directory, rows, FakeClock(), append=True)


def repairs(directory: CrashingDirectory) -> None:
    """Save what can be read."""
    (one,) = select([directory.path])
    repair(directory, one, FakeClock())


def contents(path: Path) -> Contents | str:
    """Return what a server finds."""
    server = ServerConfig(queue_path=path, default=QueueConfig())
    collection = QueueCollection(server, FakeClock())
    collection.open()
    try:
        if collection.damaged:
            return "damaged"
        return {
            name: [item_data(record) for record in queue.browse(99)]
            for name, queue in collection.queues.items()
        }
    finally:
        collection.close()


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
        for part in ("queues", "links"):
            (root / part).mkdir(parents=True)
        for name, data in files.items():
            (root / "queues" / name).write_bytes(data)
        directory = CrashingDirectory(root / "queues", root / "links")
        directory.crash_at = step
        try:
            tool(directory)
        except SimulatedCrash:
            expected: list[object] = [old, new]
        else:
            expected = [new]
        for loss in Loss:
            directory.survive(loss, root / loss.name)
            assert contents(root / loss.name) in expected, (directory.crashed, loss)
        directory.abandon()
        if directory.crashed is None:
            break
