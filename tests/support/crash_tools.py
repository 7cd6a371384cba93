"""What changes the files of a queue that no server has: its crashes, and what each may leave."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kestrelmq.format.notes import delayed_notes, joined_note
from kestrelmq.format.records import Remove, RemoveTentative, StateDump, item
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.packing import pack
from kestrelmq.spark.sinks.journal_commit import JournalCommit
from kestrelmq.spark.sinks.journal_parts import JournalPart
from kestrelmq.tools.export_rows import ExportRow
from kestrelmq.tools.import_export import import_rows
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.repair import repair
from tests.support.crash_checks import DAMAGED, Items
from tests.support.crash_scenarios import as_delayed
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode, numbered
from tests.support.recording_directory import RecordingDirectory

NOW = 1_700_000_000_000
Found = Items | None
"""The items of the queue; None: there is none."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What may be found after a crash in it.

    Attributes:
        killed: when the process ends.
        lost: when the machine does.
    """

    killed: frozenset[Found]
    lost: frozenset[Found]


@dataclass(frozen=True, slots=True)
class Tool:
    """A change of a queue's files.

    Attributes:
        run: what makes it.
        files: what a server that was killed left, the last one unsynced.
        older: what of that may be lost with the machine.
        before, after: what is found without a crash.
        between: what else may be found in between.
        is_safe: whether the last of the files is synced, too.
        is_synced: whether what the tool did last is.
        kept: bytes that are in some file, whatever happens.
    """

    run: Callable[[RecordingDirectory], object]
    files: Mapping[str, tuple[bytes, ...]]
    older: tuple[Found, ...]
    before: Found
    after: Found
    between: tuple[Found, ...] = ()
    is_safe: bool = False
    is_synced: bool = True
    kept: bytes = b""


def items(*numbers: int) -> Items:
    """Return the items of that numbers."""
    return tuple(b"%d" % number for number in numbers)


def packs(directory: RecordingDirectory | CrashingDirectory) -> None:
    """Pack the queue."""
    (one,) = select([directory.path])
    pack(directory, one.all_files, "documented", FakeClock())


def imports(directory: RecordingDirectory | CrashingDirectory) -> None:
    """Add two items to the queue."""
    rows = [ExportRow("jobs", number, b"%d" % number, NOW, 0) for number in (8, 9)]
    import_rows(directory, rows, FakeClock(), append=True)


def repairs(directory: RecordingDirectory | CrashingDirectory) -> None:
    """Save what can be read."""
    (one,) = select([directory.path])
    repair(directory, one, FakeClock())


def loads(directory: RecordingDirectory) -> None:
    """Load the queue and add an item, as a server does."""
    (one,) = select([directory.path])
    loaded = load_queue(directory, one.all_files, None, FakeClock())
    loaded.journal.open()
    loaded.journal.append(numbered(9))
    loaded.journal.close()


def commits(directory: RecordingDirectory, *contents: bytes, overwrite: bool = False) -> None:
    """Commit the parts of a bulk write."""
    parts = []
    for number, data in enumerate(contents):
        path = directory.path / "~~write-1" / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        parts.append(JournalPart("jobs", path, 1, len(data)))
    work = directory.path / "~~write-1"
    JournalCommit(directory, work, NOW, overwrite=overwrite).run({"jobs": parts})


FILES = {
    "jobs.1": (numbered(1, 2),),
    "jobs.2": (encode(Remove()) + encode(RemoveTentative()),),
    "jobs": (numbered(3), numbered(4)),
}
OLDER = (items(2), items(2, 3))
HALF_ROTATED = {"jobs.1": (numbered(1),), "jobs.2": (numbered(2), numbered(3))}
PACKED = {"jobs.1": (numbered(1),), "jobs.2.pack": (numbered(2),), "jobs.3": (numbered(3),)}
DELAYED = item(NOW, 0, b"2")
JOINED = {
    "jobs": (numbered(1), delayed_notes(1, DELAYED, 0), joined_note(1, 0) + DELAYED),
}
"""A delayed item has joined its queue."""
DAMAGED_FILES = {"jobs": (numbered(1) + b"cc" + numbered(2),)}
TORN = numbered(2)[:-1]
UNDECIDED = encode(StateDump(5, 16))
"""What follows could make it a CONTINUE, and so nothing may."""
TOOLS = {
    "pack": Tool(packs, FILES, OLDER, items(2, 3, 4), items(2, 3, 4)),
    "pack, half rotated": Tool(
        packs, HALF_ROTATED, (items(1), items(1, 2)), items(1, 2, 3), items(1, 2, 3)
    ),
    "pack, again": Tool(packs, PACKED, (items(2),), items(2, 3), items(2, 3)),
    "pack, a delayed item has joined": Tool(
        packs, JOINED, ((), items(1), (as_delayed(b"2"), *items(1))), items(1, 2), items(1, 2)
    ),
    "import": Tool(imports, FILES, OLDER, items(2, 3, 4), items(2, 3, 4, 8, 9)),
    "import, half rotated": Tool(
        imports, HALF_ROTATED, (items(1), items(1, 2)), items(1, 2, 3), items(1, 2, 3, 8, 9)
    ),
    "import, again": Tool(imports, PACKED, (items(2),), items(2, 3), items(2, 3, 8, 9)),
    "import, new": Tool(imports, {}, (), None, items(8, 9)),
    "repair": Tool(
        repairs, DAMAGED_FILES, ((), items(1)), DAMAGED, items(1, 2), (items(1), items(1, 2))
    ),
    "repair, what is safe": Tool(
        repairs,
        DAMAGED_FILES,
        (),
        DAMAGED,
        items(1, 2),
        is_safe=True,
        kept=numbered(1) + b"cc" + numbered(2),
    ),
    "load, torn": Tool(
        loads,
        {"jobs": (numbered(1) + TORN,)},
        (),
        items(1),
        items(1, 9),
        is_safe=True,
        is_synced=False,
        kept=TORN,
    ),
    "load, torn, half rotated": Tool(
        loads,
        {"jobs.1": (numbered(1) + TORN,)},
        (),
        items(1),
        items(1, 9),
        is_safe=True,
        is_synced=False,
        kept=TORN,
    ),
    "load, undecided": Tool(
        loads,
        {"jobs": (numbered(1), numbered(2) + UNDECIDED)},
        ((), items(1)),
        items(1, 2),
        items(1, 2, 9),
        is_synced=False,
    ),
    "Spark, append": Tool(
        lambda directory: commits(directory, numbered(8), numbered(9)),
        FILES,
        OLDER,
        items(2, 3, 4),
        items(2, 3, 4, 8, 9),
    ),
    "Spark, append, half rotated": Tool(
        lambda directory: commits(directory, numbered(8)),
        HALF_ROTATED,
        (items(1), items(1, 2)),
        items(1, 2, 3),
        items(1, 2, 3, 8),
    ),
    "Spark, append, again": Tool(
        lambda directory: commits(directory, numbered(8)),
        PACKED,
        (items(2),),
        items(2, 3),
        items(2, 3, 8),
    ),
    "Spark, overwrite": Tool(
        lambda directory: commits(directory, numbered(8), numbered(9), overwrite=True),
        FILES,
        OLDER,
        items(2, 3, 4),
        items(8, 9),
    ),
    "Spark, overwrite, again": Tool(
        lambda directory: commits(directory, numbered(8), overwrite=True),
        PACKED,
        (items(2),),
        items(2, 3),
        items(8),
    ),
    "Spark, new, one part": Tool(
        lambda directory: commits(directory, numbered(8)), {}, (), None, items(8)
    ),
    "Spark, new": Tool(
        lambda directory: commits(directory, numbered(8), numbered(9)),
        {},
        (),
        None,
        items(8, 9),
        ((),),
    ),
}


def record(tool: Tool, path: Path) -> RecordingDirectory:
    """Run a tool."""
    path.mkdir()
    directory = RecordingDirectory(path)
    _leave(directory, tool)
    old = frozenset([tool.before, tool.after, *tool.between])
    directory.mark(Phase(old, old | frozenset(tool.older)))
    tool.run(directory)
    new = frozenset([tool.after])
    directory.mark(Phase(new, new if tool.is_synced else old | frozenset(tool.older)))
    directory.abandon()
    return directory


def _leave(directory: RecordingDirectory, tool: Tool) -> None:
    files = tool.files
    anything = Anything()
    directory.mark(Phase(anything, anything))
    for place, (name, pieces) in enumerate(files.items(), 1):
        file = directory.append_to(name)
        for piece in pieces:
            file.append(piece)
        if place < len(files) or tool.is_safe:
            file.sync()
        file.close()
        directory.sync()


class Anything(frozenset[Found]):
    """What is done before the tool comes is not looked at."""

    def __contains__(self, _found: object) -> bool:
        return True
