"""Repairing damaged journals: keep every record that can be read. Nothing is deleted.

The old content of a damaged file is kept as `NAME~~damaged-TIMESTAMP`, and the file is replaced by
one that holds its whole records. A crash leaves the damaged file or the repaired one, and perhaps
the kept content and a temporary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kestrelmq.clock import Clock
from kestrelmq.disk.directories import Directory, write_file
from kestrelmq.disk.opening import mapped
from kestrelmq.format.names import PACK, temporary_name
from kestrelmq.format.salvage import LostRange
from kestrelmq.tools.journal_files import SelectedQueue
from kestrelmq.tools.verify import Progress, VerifyReport, verify

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of repairing a queue.

    Attributes:
        report: the result of the check before.
        kept: for each repaired file, the name of the file with its old content.
    """

    report: VerifyReport
    kept: dict[str, str]


def repair(
    directory: Directory,
    selected: SelectedQueue,
    clock: Clock,
    progress: Progress = lambda _bytes: None,
) -> RepairResult:
    """Repair the files of a queue that need it. Nobody else may use them.

    Raises:
        OSError: a file could not be read or written; those not yet repaired are as they were.
    """
    report = verify(selected, progress)
    lost = [*report.damaged, *([report.torn] if report.torn is not None else [])]
    kept = {}
    for name in selected.files:
        ranges = [one for one in lost if one.file == name]
        if ranges:
            kept[name] = _repair_file(directory, name, ranges, clock.now())
    return RepairResult(report, kept)


def _repair_file(directory: Directory, name: str, lost: Sequence[LostRange], now: int) -> str:
    temporary = temporary_name(name, PACK, now)
    aside = temporary_name(name, "damaged", now)
    source = directory.path / name
    with mapped(source) as buffer:
        bounds = [0, *(edge for one in lost for edge in (one.start, one.end)), len(buffer)]
        whole = (
            bytes(buffer[at : min(end, at + _PIECE)])
            for start, end in list(pairwise(bounds))[::2]
            for at in range(start, end, _PIECE)
        )
        write_file(directory, temporary, whole)
    directory.link(name, aside)
    directory.sync()
    directory.crash_point("repair: old content kept")
    directory.rename(temporary, name)
    directory.crash_point("repair: file replaced")
    directory.sync()
    return aside
