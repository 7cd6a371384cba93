"""A queue path that records every change, and derives every state that a crash may leave.

`RecordingDirectory` does everything in a real directory, forces nothing to disk, and records each
operation. `crash_states` derives from these operations what may be found after a crash. It relies
on the guarantees of POSIX and no others:

- A crash may come after any operation. If only the process ends, the effects of all operations are
  there.
- If the machine fails, a file has its content as of its last sync, and a prefix of the operations
  on it since: an append may be whole, cut at a few places, or absent. Or the file has its full
  length, with zeros from its last sync on, or from the end of any append on.
- Names are as of the last sync of the directory, plus those later operations on names that the file
  system had written: a prefix, or any others, but two operations that share a name keep their
  order. A rename is atomic.
- Each file, and the names, lose operations independently of each other.

`StateBounds` limits where an append may be cut, how many sets of names there are, and how many
combinations of file contents. Beyond the limits, evenly chosen ones are left out. Not derived:
zeros in the middle of an append, and pages that are written out of order, which a format without
checksums cannot distinguish from data.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import gcd
from pathlib import Path
from types import FrameType
from typing import Final, TypedDict

import kestrelmq
from kestrelmq.disk.directories import DiskFile
from kestrelmq.disk.opening import FoundFile
from tests.support.real_directory import RealDirectory, RealFile, SimulatedCrash

_PACKAGE: Final = str(Path(kestrelmq.__file__).resolve().parent)


@dataclass(frozen=True, slots=True)
class Operation:
    """A change of files.

    Attributes:
        site: where in kestrelmq it was called, as `file.py:line`; "" if outside of it.
        caller: where the function at `site` was called, in the same form.
    """

    site: str = field(default="", kw_only=True)
    caller: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Create(Operation):
    """A new empty file, identified by its number, gets a name; another file may lose it."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Append(Operation):
    """Bytes are appended to a file."""

    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate(Operation):
    """A file is cut to `size` bytes."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class SyncFile(Operation):
    """The content of a file is forced to disk."""

    file: int


@dataclass(frozen=True, slots=True)
class Rename(Operation):
    """A file gets another name, which another file may lose."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Link(Operation):
    """A file, identified by its number, gets a second name."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Remove(Operation):
    """A file loses a name."""

    name: str


@dataclass(frozen=True, slots=True)
class SyncNames(Operation):
    """All names are forced to disk."""


@dataclass(frozen=True, slots=True)
class ScenarioMark(Operation):
    """No change: a value that the test scenario records, for instance which reply was sent."""

    value: object


NameOperation = Create | Rename | Link | Remove
Contents = tuple[tuple[str, bytes], ...]
"""The files of a directory as names and contents, sorted by name."""


@dataclass(frozen=True, slots=True)
class CrashCause:
    """A crash that leaves a given state.

    Attributes:
        killed: whether only the process ended, so that nothing was lost.
        mark: the last value that the scenario had recorded; None if none.
    """

    killed: bool
    mark: object


@dataclass(frozen=True, slots=True)
class StateBounds:
    """Limits on how many states are derived.

    Attributes:
        cuts: returns where an append of a given size may be cut; it may also be whole or absent.
        name_sets: most sets of operations on names, for each moment.
        mixtures: most combinations of file contents, for each of these sets.
    """

    cuts: Callable[[int], Sequence[int]] = lambda size: sorted({1, size // 2, size - 1})
    name_sets: int = 64
    mixtures: int = 200


# --- recording ---


class _Where(TypedDict):
    site: str
    caller: str


class RecordingFile(RealFile):
    """An append file of a `RecordingDirectory`."""

    def __init__(self, directory: "RecordingDirectory", file: DiskFile, number: int) -> None:
        super().__init__(file)
        self._directory = directory
        self._number = number

    def append(self, data: bytes) -> None:
        """Write all of `data`."""
        self._directory.check()
        self.file.append(data)
        self._directory.note(Append(self._number, bytes(data), **_where()))

    def sync(self) -> None:
        """Record a sync of the file."""
        self._directory.check()
        self._directory.note(SyncFile(self._number, **_where()))


class RecordingDirectory(RealDirectory):
    """A `Directory` that records the operations on it.

    Names with a slash are files of a subdirectory, whose names count as synced.

    Attributes:
        operations: what was done, in order. The initial content of `path` is synced, and not
            included.
        crash_at: after how many operations, marks included, the process ends: the next one is not
            done, and raises SimulatedCrash. None for never.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.operations: list[Operation] = []
        self.crash_at: int | None = None
        self._numbers = {name: number for number, name in enumerate(sorted(self.names()))}
        self._count = len(self._numbers)

    def note(self, operation: Operation) -> None:
        """Record an operation that was done."""
        self.operations.append(operation)

    def check(self) -> None:
        """Raise SimulatedCrash if the process has ended. Called before each operation."""
        if self.crash_at is not None and len(self.operations) >= self.crash_at:
            raise SimulatedCrash

    def mark(self, value: object) -> None:
        """Record a value of the test scenario."""
        self.note(ScenarioMark(value))

    def _new(self, name: str, where: _Where) -> int:
        number = self._numbers[name] = self._count
        self._count += 1
        self.note(Create(name, number, **where))
        return number

    def _number(self, name: str, where: _Where) -> int:
        """Return the number of a file; a file that came from elsewhere counts as synced."""
        number = self._numbers.get(name)
        if number is None:
            number = self._new(name, where)
            self.note(Append(number, (self.path / name).read_bytes(), **where))
            self.note(SyncFile(number, **where))
        return number

    def append_to(self, name: str, found: FoundFile | None = None) -> RecordingFile:
        """Open `name` for appending; it is created if it does not exist."""
        self.check()
        known = self._numbers.get(name)
        file = self.appended_to(name, found)
        number = self._new(name, _where()) if known is None else known
        return RecordingFile(self, file, number)

    def create(self, name: str) -> RecordingFile:
        """Open `name`, truncated, to write it once and close it."""
        self.check()
        return RecordingFile(self, self.created(name), self._new(name, _where()))

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing a file of that name."""
        self.check()
        number = self._number(old, _where())
        self.disk.rename(old, new)
        del self._numbers[old]
        self._numbers[new] = number
        self.note(Rename(old, new, **_where()))

    def link(self, old: str, new: str) -> None:
        """Give the file `old` the second name `new`."""
        self.check()
        number = self._number(old, _where())
        self.disk.link(old, new)
        self._numbers[new] = number
        self.note(Link(new, number, **_where()))

    def remove(self, name: str) -> None:
        """Delete `name`; no error if it does not exist."""
        self.check()
        self.disk.remove(name)
        if self._numbers.pop(name, None) is not None:
            self.note(Remove(name, **_where()))

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes; record that and a sync."""
        self.check()
        number = self._number(name, _where())
        with (self.path / name).open("r+b") as file:
            file.truncate(size)
        self.note(Truncate(number, size, **_where()))
        self.note(SyncFile(number, **_where()))

    def sync_file(self, name: str) -> None:
        """Record a sync of `name`."""
        self.check()
        self.note(SyncFile(self._number(name, _where()), **_where()))

    def sync(self) -> None:
        """Record a sync of the directory."""
        self.check()
        self.note(SyncNames(**_where()))

    def crash_point(self, point: str) -> None:
        """Do nothing: a crash is derived after every operation anyway."""

    def abandon(self) -> None:
        """Close the files that the ended process had open, so that another one may start."""
        self.crash_at = None
        super().abandon()


def _where() -> _Where:
    """Return where kestrelmq called for an operation; "" if a test did."""
    frame: FrameType | None = sys._getframe(1)  # there is no other way to a line
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return _Where(site=_place(frame), caller=_place(frame.f_back if frame is not None else None))


def _place(frame: FrameType | None) -> str:
    if frame is None or not frame.f_code.co_filename.startswith(_PACKAGE):
        return ""
    return f"{frame.f_code.co_filename.removeprefix(_PACKAGE).lstrip('/')}:{frame.f_lineno}"


# --- what a crash leaves ---


class _File:
    """What a file may contain after a crash: its synced content, and the changes since."""

    def __init__(self, content: bytes = b"") -> None:
        self.now = self._safe = content
        self._since: list[tuple[bytes, bytes]] = []  # before and after each change
        self._possible: list[bytes] = []

    def change(self, content: bytes) -> None:
        self._since.append((self.now, content))
        self._possible.clear()
        self.now = content

    def sync(self) -> None:
        self._safe = self.now
        self._possible.clear()
        self._since.clear()

    def possible(self, cuts: Callable[[int], Sequence[int]]) -> list[bytes]:
        """Return the possible contents: first that with all changes, then the synced one."""
        if self._possible:
            return self._possible
        found = {self.now: None, self._safe: None}
        length = len(self.now)
        for before, after in self._since:
            for cut in cuts(len(after) - len(before)) if len(after) > len(before) else ():
                found[after[: len(before) + cut]] = None
            found[after] = None
            for whole in (before, after):
                if len(whole) < length:
                    found[whole + bytes(length - len(whole))] = None
        self._possible = list(found)
        return self._possible


def _touched(operation: NameOperation) -> frozenset[str]:
    if isinstance(operation, Rename):
        return frozenset([operation.old, operation.new])
    return frozenset([operation.name])


def _apply(names: dict[str, int], operation: NameOperation) -> None:
    match operation:
        case Create(name, file) | Link(name, file):
            names[name] = file
        case Remove(name):
            names.pop(name, None)
        case Rename(old, new):
            if old in names:
                names[new] = names.pop(old)


def _name_sets(unsafe: Sequence[NameOperation], limit: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of operations that may have been written: first all, then prefixes, then others.

    An operation needs the earlier ones that share a name with it, and what those need.
    """
    count = len(unsafe)
    touched = [_touched(operation) for operation in unsafe]
    needed: list[frozenset[int]] = []
    for at in range(count):
        direct = [before for before in range(at) if touched[before] & touched[at]]
        needed.append(frozenset(direct).union(*(needed[before] for before in direct)))
    seen: dict[tuple[int, ...], None] = {}
    for length in range(count, -1, -1):
        seen[tuple(range(length))] = None
    for at in range(count):
        seen[tuple(sorted({*needed[at], at}))] = None
        seen[tuple(one for one in range(count) if one != at and at not in needed[one])] = None
    yield from seen
    if len(seen) >= limit:
        return
    others = islice(_closed(needed, 0, ()), 20 * limit)
    yield from islice((one for one in others if one not in seen), limit - len(seen))


def _closed(
    needed: Sequence[frozenset[int]], at: int, taken: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    if at == len(needed):
        yield taken
        return
    if needed[at].issubset(taken):
        yield from _closed(needed, at + 1, (*taken, at))
    yield from _closed(needed, at + 1, taken)


class _Disk:
    """The files and names after some operations, and which part of them is synced."""

    def __init__(self, start: Mapping[str, bytes]) -> None:
        self.files = [_File(content) for content in start.values()]
        self.names = {name: number for number, name in enumerate(start)}
        self._safe_names = dict(self.names)
        self._unsafe: list[NameOperation] = []

    def do(self, operation: Operation) -> None:
        match operation:
            case Append(file, data):
                self.files[file].change(self.files[file].now + data)
            case Truncate(file, size):
                self.files[file].change(self.files[file].now[:size])
            case SyncFile(file):
                self.files[file].sync()
            case SyncNames():
                self._safe_names = dict(self.names)
                self._unsafe.clear()
            case Create() | Rename() | Link() | Remove():
                if isinstance(operation, Create):
                    while len(self.files) <= operation.file:
                        self.files.append(_File())
                _apply(self.names, operation)
                self._unsafe.append(operation)

    def as_killed(self, unread: Callable[[str], bool]) -> Contents:
        return self._contents(
            self.names, {number: file.now for number, file in enumerate(self.files)}, unread
        )

    def after_power_loss(
        self, bounds: StateBounds, unread: Callable[[str], bool]
    ) -> Iterator[Contents]:
        for written in _name_sets(self._unsafe, bounds.name_sets):
            names = dict(self._safe_names)
            for at in written:
                _apply(names, self._unsafe[at])
            numbers = sorted({number for name, number in names.items() if not unread(name)})
            possible = [self.files[number].possible(bounds.cuts) for number in numbers]
            for mixture in _mixtures(possible, bounds.mixtures):
                yield self._contents(names, dict(zip(numbers, mixture, strict=True)), unread)

    def _contents(
        self, names: Mapping[str, int], data: Mapping[int, bytes], unread: Callable[[str], bool]
    ) -> Contents:
        return tuple(
            (name, b"" if unread(name) else data[number]) for name, number in sorted(names.items())
        )


def _mixtures(possible: Sequence[list[bytes]], limit: int) -> Iterator[tuple[bytes, ...]]:
    """Yield combinations of one content for each file; if there are too many, an even selection."""
    total = 1
    for one in possible:
        total *= len(one)
    step = -(-total // limit) if limit else 1
    while step > 1 and any(gcd(step, len(one)) > 1 for one in possible):
        step += 1  # otherwise the content of one file would never vary
    return islice(product(*possible), 0, None, step)


def _nothing_is_unread(_name: str) -> bool:
    return False


def crash_states(
    operations: Sequence[Operation],
    start: Mapping[str, bytes],
    bounds: StateBounds,
    *,
    unread: Callable[[str], bool] = _nothing_is_unread,
) -> dict[Contents, dict[CrashCause, None]]:
    """Return each state that a crash may leave, with the crashes that leave it.

    Args:
        operations: what was done.
        start: the initial files, by name.
        bounds: how much to derive.
        unread: whether nobody will read a file of that name; its content is given as empty.
    """
    disk = _Disk(dict(sorted(start.items())))
    mark: object = None
    found: dict[Contents, dict[CrashCause, None]] = {}
    is_mark = False
    for done in range(len(operations) + 1):
        if done:
            operation = operations[done - 1]
            is_mark = isinstance(operation, ScenarioMark)
            if isinstance(operation, ScenarioMark):
                mark = operation.value
            disk.do(operation)
        # A mark takes no time: the states before it are the same, and are recorded after it.
        if done < len(operations) and isinstance(operations[done], ScenarioMark) and not is_mark:
            continue
        found.setdefault(disk.as_killed(unread), {})[CrashCause(True, mark)] = None
        for contents in disk.after_power_loss(bounds, unread):
            found.setdefault(contents, {})[CrashCause(False, mark)] = None
    return found
