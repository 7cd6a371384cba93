"""A queue path that records every change, and every state that a crash may leave of it.

`RecordingDirectory` does everything on a real directory, forces nothing to disk, and notes each
operation. `crash_states` derives from these notes what may be found after a crash, by the promises
of POSIX and no others:

- A crash comes after any operation. If only the process ends, all that was done is there.
- If the machine ends, what is in a file as of its last sync is there. Of what was done to it
  since, in order, a prefix: with an append whole, cut at a few places, or absent; or the file has
  its full length, and zeros from its last sync or from the end of any append on.
- Names are as of the last sync of the directory. Of the operations on names since, those are there
  that the file system had written: a prefix, or any others as long as two that share a name keep
  their order. A rename is atomic.
- Each file, and the names, lose what they lose independently of each other.

Bounds (`Bounds`): where a record may be cut, how many sets of names, and how many mixtures of what
several files lost; what exceeds the last two is left out, evenly. Not derived: zeros in the middle
of an append, and pages that are written out of order, which a format without checksums cannot tell
from data.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import gcd
from pathlib import Path
from types import FrameType
from typing import Final, TypedDict

from kestrelmq.journal.files import DiskFile
from kestrelmq.testing.real import RealDirectory, RealFile, SimulatedCrash

_PACKAGE: Final = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Operation:
    """A change of files.

    Attributes:
        site: where in the package it was asked for, as `file.py:line`; "" when elsewhere.
        caller: where the function that asked for it was called from, in the same form.
    """

    site: str = field(default="", kw_only=True)
    caller: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Create(Operation):
    """A new empty file, told by its number, gets a name; another may lose it."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Append(Operation):
    """Bytes are added at the end of a file."""

    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut(Operation):
    """A file is cut to so many bytes."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class SyncFile(Operation):
    """What is in a file is forced to disk."""

    file: int


@dataclass(frozen=True, slots=True)
class Rename(Operation):
    """A file gets another name, which another file may lose."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Link(Operation):
    """A file, told by its number, gets a second name."""

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
class Mark(Operation):
    """No change: the scenario says something, for instance what was answered."""

    value: object


NameOperation = Create | Rename | Link | Remove
Contents = tuple[tuple[str, bytes], ...]
"""The files of a directory by name, in order of the names."""


@dataclass(frozen=True, slots=True)
class Crash:
    """How a state came about.

    Attributes:
        killed: only the process ended, and nothing was lost.
        mark: what the scenario had said last; None when it had said nothing.
    """

    killed: bool
    mark: object


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is derived.

    Attributes:
        cuts: where an append of so many bytes may be cut; whole and absent come besides.
        name_sets: so many sets of operations on names at most, at each moment.
        mixtures: so many mixtures of file contents at most, for each of these sets.
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
        """Note that what was appended is to be safe."""
        self._directory.check()
        self._directory.note(SyncFile(self._number, **_where()))


class RecordingDirectory(RealDirectory):
    """A `Directory` that notes what is done to it.

    Names with a slash are files of a directory below, whose names count as safe.

    Attributes:
        operations: what was done, in order. What was in `path` before is safe, and not among them.
        start: what was in `path` before.
        crash_at: how many operations there are, marks included, when the process ends: the next one
            is not done, and raises SimulatedCrash. None for never.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.operations: list[Operation] = []
        self.crash_at: int | None = None
        names = sorted(self.names())
        self.start = {name: (path / name).read_bytes() for name in names}
        self._numbers = {name: number for number, name in enumerate(self.start)}
        self._count = len(self.start)

    def note(self, operation: Operation) -> None:
        """Note an operation that was done."""
        self.operations.append(operation)

    def check(self) -> None:
        """Raise SimulatedCrash instead of an operation, when the process has ended."""
        if self.crash_at is not None and len(self.operations) >= self.crash_at:
            raise SimulatedCrash

    def mark(self, value: object) -> None:
        """Note what the scenario says."""
        self.note(Mark(value))

    def _new(self, name: str, where: _Where) -> int:
        number = self._numbers[name] = self._count
        self._count += 1
        self.note(Create(name, number, **where))
        return number

    def _number(self, name: str, where: _Where) -> int:
        """Return the number of a file; one that came from elsewhere is there and safe."""
        number = self._numbers.get(name)
        if number is None:
            number = self._new(name, where)
            self.note(Append(number, (self.path / name).read_bytes(), **where))
            self.note(SyncFile(number, **where))
        return number

    def append_to(self, name: str) -> RecordingFile:
        """Open `name` for appending; it is created if it is not there."""
        self.check()
        known = self._numbers.get(name)
        file = self.appended_to(name)
        number = self._new(name, _where()) if known is None else known
        return RecordingFile(self, file, number)

    def create(self, name: str) -> RecordingFile:
        """Open `name`, empty, for a file that is written once and closed."""
        self.check()
        return RecordingFile(self, self.created(name), self._new(name, _where()))

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing it."""
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
        """Delete `name`; no error when it is not there."""
        self.check()
        self.disk.remove(name)
        if self._numbers.pop(name, None) is not None:
            self.note(Remove(name, **_where()))

    def truncate(self, name: str, size: int) -> None:
        """Cut `name` to `size` bytes and note that that is to be safe."""
        self.check()
        number = self._number(name, _where())
        with (self.path / name).open("r+b") as file:
            file.truncate(size)
        self.note(Cut(number, size, **_where()))
        self.note(SyncFile(number, **_where()))

    def sync_file(self, name: str) -> None:
        """Note that what is in `name` is to be safe."""
        self.check()
        self.note(SyncFile(self._number(name, _where()), **_where()))

    def sync(self) -> None:
        """Note that created, renamed and removed names are to be safe."""
        self.check()
        self.note(SyncNames(**_where()))

    def reached(self, point: str) -> None:
        """Do nothing: every moment counts."""

    def abandon(self) -> None:
        """Release the files that a process which is gone had open; the next one may begin."""
        self.crash_at = None
        super().abandon()


def _where() -> _Where:
    """Return where the package asked for an operation; "" where it was a test."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 # there is no other way to a line
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return _Where(site=_place(frame), caller=_place(frame.f_back if frame is not None else None))


def _place(frame: FrameType | None) -> str:
    if frame is None or not frame.f_code.co_filename.startswith(_PACKAGE):
        return ""
    return f"{frame.f_code.co_filename.removeprefix(_PACKAGE).lstrip('/')}:{frame.f_lineno}"


# --- what a crash leaves ---


class _File:
    """What a file may hold after a crash: what was synced, and what was done to it since."""

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
        """Return what may be found, all that was done to it first, then what is safe."""
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
    """Yield which of the operations may have been written; first all, then prefixes, then others.

    An operation needs those before it that share a name with it, and what these need.
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
    """The files and names after some operations, and what of them is safe."""

    def __init__(self, start: Mapping[str, bytes]) -> None:
        self.files = [_File(content) for content in start.values()]
        self.names = {name: number for number, name in enumerate(start)}
        self._safe_names = dict(self.names)
        self._unsafe: list[NameOperation] = []

    def do(self, operation: Operation) -> None:
        match operation:
            case Append(file, data):
                self.files[file].change(self.files[file].now + data)
            case Cut(file, size):
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

    def after_power_loss(self, bounds: Bounds, unread: Callable[[str], bool]) -> Iterator[Contents]:
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
    """Yield combinations of one of each; when there are too many, an even choice of them."""
    total = 1
    for one in possible:
        total *= len(one)
    step = -(-total // limit) if limit else 1
    while step > 1 and any(gcd(step, len(one)) > 1 for one in possible):
        step += 1  # or else one file would never vary
    return islice(product(*possible), 0, None, step)


def _nothing_is_unread(_name: str) -> bool:
    return False


def crash_states(
    operations: Sequence[Operation],
    start: Mapping[str, bytes],
    bounds: Bounds,
    *,
    unread: Callable[[str], bool] = _nothing_is_unread,
) -> dict[Contents, dict[Crash, None]]:
    """Return each state that a crash may leave, and how it comes about.

    Args:
        operations: what was done.
        start: what was there before, by name.
        bounds: how much to derive.
        unread: names of files whose contents nobody will read; they are given as empty.
    """
    disk = _Disk(dict(sorted(start.items())))
    mark: object = None
    found: dict[Contents, dict[Crash, None]] = {}
    is_mark = False
    for done in range(len(operations) + 1):
        if done:
            operation = operations[done - 1]
            is_mark = isinstance(operation, Mark)
            if isinstance(operation, Mark):
                mark = operation.value
            disk.do(operation)
        # A mark takes no time: what may be found before it may be found after it.
        if done < len(operations) and isinstance(operations[done], Mark) and not is_mark:
            continue
        found.setdefault(disk.as_killed(unread), {})[Crash(True, mark)] = None
        for contents in disk.after_power_loss(bounds, unread):
            found.setdefault(contents, {})[Crash(False, mark)] = None
    return found
