"""Journal file names: which files make up a queue, in which order, and what to clean up.

    NAME                  the current file, replayed last
    NAME.TIMESTAMP        a rotated file; replayed by timestamp (ms), earliest first
    NAME.TIMESTAMP.pack   replaces every file of the queue up to TIMESTAMP; those are dead
    anything else with ~~ temporary, or ours for another purpose; never replayed

This module does no I/O: `group_files` works on a list of names.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kestrelmq.names import queue_name_error

TEMPORARY_MARK: Final = "~~"
LOCK_NAME: Final = "~~lock"
QUEUES_NAME: Final = "~~queues"
"""What clients have set for single queues: see `queues.registry`."""
DAMAGED: Final = "damaged"
"""Purpose of a side file that could not be used, set aside."""
_PACKED: Final = ".pack"
# Purposes of temporaries that are useless once the process that wrote them has ended.
NEXT: Final = "next"
PACK: Final = "pack"
DELETE: Final = "delete"
_LEFT_OVER: Final = re.compile(r"(?P<queue>[^~]+)~~(next|pack|delete)-[0-9]+")
# Accept any number that fits in a file name: the one after the newest must also be accepted.
_ROTATED: Final = re.compile(r"(?P<queue>[^.]+)\.(?P<timestamp>[0-9]{1,255})(?P<pack>\.pack)?")


@dataclass(frozen=True, slots=True)
class JournalName:
    """The parts of a journal file's name. `timestamp` is None for the current file."""

    queue: str
    timestamp: int | None = None
    packed: bool = False


class QueueFiles(NamedTuple):
    """The files of one queue, and what must be cleaned up before they are replayed.

    Attributes:
        queue: its name.
        rotated: rotated files to replay, in order; a pack by its final name.
        has_current: whether the file `queue` itself exists; it is replayed last.
        dead: files to remove: those that the pack replaces, and temporaries that a crash left.
        pack: the pack, if there is one: it is to be renamed to the first of `rotated` after that.
    """

    queue: str
    rotated: tuple[str, ...] = ()
    has_current: bool = False
    dead: tuple[str, ...] = ()
    pack: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The files to replay, in order, once the pack is renamed."""
        return (*self.rotated, self.queue) if self.has_current else self.rotated

    @property
    def present(self) -> tuple[str, ...]:
        """The files to replay, in order, by their present names."""
        return self.files if self.pack is None else (self.pack, *self.files[1:])


@dataclass(frozen=True, slots=True)
class QueuePathFiles:
    """The files of a queue path, grouped by queue.

    Attributes:
        queues: the files of each queue, by its name.
        unknown: files that are neither journals nor temporaries.
        dead: temporaries that a crash left, of queues that have no other file.
    """

    queues: dict[str, QueueFiles]
    unknown: tuple[str, ...]
    dead: tuple[str, ...] = ()


def parse_name(name: str) -> JournalName | None:
    """Parse the name of a journal file; return None if it is not one."""
    rotated = _ROTATED.fullmatch(name)
    queue = rotated["queue"] if rotated else name
    if queue_name_error(queue) is not None:
        return None
    if rotated is None:
        return JournalName(queue)
    return JournalName(queue, int(rotated["timestamp"]), rotated["pack"] is not None)


def rotated_name(queue: str, timestamp: int) -> str:
    """Return the name of the file of `queue` that was rotated at `timestamp` (ms)."""
    return f"{queue}.{timestamp}"


def later_timestamp(rotated: Sequence[str], now: int) -> int:
    """Return `now` (ms), or the millisecond after the newest of `rotated` if that is later."""
    return max(now, newest_timestamp(rotated) + 1)


def newest_timestamp(rotated: Sequence[str]) -> int:
    """Return the timestamp (ms) of the last of the files `rotated`; 0 if there are none."""
    newest = parse_name(rotated[-1]) if rotated else None
    return (newest.timestamp or 0) if newest else 0


def pack_name(queue: str, timestamp: int) -> str:
    """Return the name of the pack that replaces every file up to `timestamp` (ms)."""
    return f"{queue}.{timestamp}{_PACKED}"


def is_pack(name: str) -> bool:
    """Whether a rotated file of a queue is a pack, which replaces all files before it."""
    return name.endswith(_PACKED)


def temporary_name(queue: str, purpose: str, timestamp: int) -> str:
    """Return a name that replay ignores."""
    return f"{queue}{TEMPORARY_MARK}{purpose}-{timestamp}"


def group_files(names: Iterable[str]) -> QueuePathFiles:
    """Group the files of a queue path by queue. `names` must not include directories."""
    current: set[str] = set()
    found: dict[str, list[tuple[JournalName, str]]] = {}
    left_over: dict[str, list[str]] = {}
    unknown = []
    for name in names:
        if "." not in name and TEMPORARY_MARK not in name and queue_name_error(name) is None:
            current.add(name)  # there may be a hundred thousand of these
            continue
        parsed = parse_name(name)
        if parsed is not None:
            found.setdefault(parsed.queue, []).append((parsed, name))
        elif TEMPORARY_MARK not in name:
            unknown.append(name)
        elif match := _LEFT_OVER.fullmatch(name):
            left_over.setdefault(match["queue"], []).append(name)
    for queue in current & (found.keys() | left_over.keys()):
        found.setdefault(queue, []).append((JournalName(queue), queue))
    queues: dict[str, QueueFiles] = {}
    for queue in sorted(current | found.keys()):
        files = found.get(queue)
        if files is None:
            queues[queue] = QueueFiles(queue, has_current=True)
            continue
        queues[queue] = _queue_files(queue, files, left_over.pop(queue, []))
    dead = sorted(name for names in left_over.values() for name in names)
    return QueuePathFiles(queues, tuple(sorted(unknown)), tuple(dead))


def _queue_files(
    queue: str, files: list[tuple[JournalName, str]], left_over: list[str]
) -> QueueFiles:
    packs = [(parsed.timestamp or 0, name) for parsed, name in files if parsed.packed]
    newest_pack, pack = max(packs, default=(-1, None))
    dead = []
    rotated = []
    for parsed, name in files:
        if parsed.timestamp is None or name == pack:
            continue
        if parsed.timestamp <= newest_pack:
            dead.append((parsed.timestamp, name))
        else:
            rotated.append((parsed.timestamp, name))
    if pack is not None:
        rotated.append((newest_pack, rotated_name(queue, newest_pack)))
    return QueueFiles(
        queue=queue,
        rotated=tuple(name for _, name in sorted(rotated)),
        has_current=any(parsed.timestamp is None for parsed, _ in files),
        dead=(*sorted(left_over), *(name for _, name in sorted(dead))),
        pack=pack,
    )
