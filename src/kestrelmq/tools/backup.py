"""Backing up a queue path while it is in use, and restoring a queue path from such a backup.

A backup is a directory with journal files and `~~backup.json`, which lists them. Each queue is as
it was at one moment: as a server that was killed then would have left it. A file only grows at its
end, and only the last file of a queue grows. So the files that a queue had at a moment, and the
length of the last one, are all that it takes; what they hold can be copied later.

- Which files there are is looked up until a queue has the same ones three times in a row. A listing
  can miss a file that is renamed meanwhile, but no file is renamed in two listings after another.
- Items may move between queues: if the target was looked at before, and the source after, they are
  in neither. So a moment is preferred in which at most one queue changes.
- Files that were looked at are linked or opened at once, because the server may remove them.
- Only files that never change are linked: never the last of a queue.

A backup is written to a directory `.kestrelmq-backup-NAME` beside it, which is synced and renamed.
A crash leaves that directory, which is not locked any more, and the next backup beside it removes
it. `disk.restored` says what a restore leaves.
"""

import errno
import os
import shutil
import stat
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from kestrelmq.clock import Clock
from kestrelmq.disk import write_directories
from kestrelmq.disk.locks import QueuePathLock, lock_directory
from kestrelmq.disk.opening import file_names, file_size, open_regular, open_with_status
from kestrelmq.disk.renaming import (
    link_file,
    make_directory,
    make_queue_path,
    rename_durably,
    sync_path,
)
from kestrelmq.disk.restored import commit_restore, is_unfinished
from kestrelmq.errors import JournalError
from kestrelmq.format.names import LOCK_NAME, QUEUES_NAME, group_files, parse_name

MANIFEST_NAME: Final = "~~backup.json"
_PART: Final = ".kestrelmq-backup-"
_SIDE_FILES: Final = (QUEUES_NAME, "~~status")
_PATIENCE: Final = 1.0
"""Seconds to look for a moment in which at most one queue changes."""
_PIECE: Final = 1 << 20
_MOST_OPEN: Final = 512
"""Files that are held open to be copied later."""


class BackupFile(BaseModel):
    """A file of a backup.

    Attributes:
        name: its name, there and in a queue path.
        queue: the queue whose journal it is a part of; None for a side file.
        size: bytes in it.
        crc32: the checksum (zlib) of them; None of a file that was linked and so not read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    queue: str | None
    size: int
    crc32: int | None


class Manifest(BaseModel):
    """What a backup consists of.

    Attributes:
        kestrelmq: always "backup".
        version: of this format.
        queue_path: what was backed up.
        began: when the backup began (ms).
        is_one_moment: whether all queues are as of the same moment.
        files: the files of each queue in replay order, and the side files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kestrelmq: Literal["backup"] = "backup"
    version: Literal[1] = 1
    queue_path: str
    began: int
    is_one_moment: bool
    files: list[BackupFile]

    @property
    def queues(self) -> int:
        """How many queues are in it."""
        return len({file.queue for file in self.files} - {None})

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)


class SeenFile(NamedTuple):
    """A file as it was found: its name and the one that it gets in the backup, and its state."""

    name: str
    kept_as: str
    inode: int
    size: int
    written: int


Look = Mapping[str, tuple[SeenFile, ...]]
"""The files of each queue in replay order, by its name; and the side files, each by its own."""


class _Changed(Exception):  # noqa: N818 # says what it is
    """A file is not any more as it was when it was looked at."""


# --- backing up ---


def back_up(path: Path, target: Path, clock: Clock) -> Manifest:
    """Copy all queues of the queue path `path` to the new directory `target`.

    Raises:
        JournalError: the arguments are wrong, or another backup is writing there.
        OSError: a file could not be read or written. There is no `target` then.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 # takes `..` out, too
    _check(path, target)
    began = clock.now()
    make_directory(target.parent)
    with _part_of(target) as part:
        copying = _Copying(path, part)
        look, is_one = _steady_look(path, clock)
        taken = dict(look)
        while changed := copying.take(look):
            is_one = False
            look, _ = _steady_look(path, clock, changed)
            taken = {queue: files for queue, files in taken.items() if queue not in changed}
            taken.update(look)
        files = [
            BackupFile(
                name=file.kept_as,
                queue=None if queue in _SIDE_FILES else queue,
                size=file.size,
                crc32=copying.checksums[file],
            )
            for queue in sorted(taken)
            for file in taken[queue]
        ]
        for name in {*file_names(part)} - {file.name for file in files}:
            (part / name).unlink()  # of a queue that has changed meanwhile
        manifest = Manifest(
            queue_path=str(path.absolute()),
            began=began,
            is_one_moment=is_one,
            files=files,
        )
        content = manifest.model_dump_json(indent=1).encode()
        with open(part / MANIFEST_NAME, "xb", opener=open_regular) as file:
            file.write(content)
        sync_path(part / MANIFEST_NAME)
        sync_path(part)
        _check_new(target)
        rename_durably(part, target)
    return manifest


def _check(path: Path, target: Path) -> None:
    """Raise JournalError: `path` cannot be backed up, or not to `target`."""
    if not path.is_dir():
        raise JournalError(f"{path} is not a queue path")
    if is_unfinished(path):
        raise JournalError(f"a restore of {path} was interrupted: start its server first")
    servers = sorted(one.name for one in path.glob("process-*") if one.is_dir())
    if servers and not group_files(file_names(path)).queues:
        raise JournalError(f"{path} has the queue paths {', '.join(servers)}: back up each of them")
    if target.parent.resolve().is_relative_to(path.resolve()):
        raise JournalError(f"{target} is in the queue path")
    _check_new(target)


def _check_new(target: Path) -> None:
    if os.path.lexists(target):
        raise JournalError(f"{target} exists: a backup needs a name of its own")


@contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """Yield a new directory beside `target`, which is locked, and removed if anything fails."""
    for left in target.parent.glob(f"{_PART}*"):
        with suppress(OSError):  # it is locked: another backup is running
            lock = lock_directory(left, 0)
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    part = target.with_name(_PART + target.name)
    try:
        part.mkdir(mode=0o750)
    except FileExistsError:
        raise JournalError(f"another backup to {target} is running") from None
    lock = lock_directory(part, 0)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)  # unless it was renamed
        os.close(lock)


def _look(path: Path, only: Collection[str] | None) -> Look:
    """Return the files that there are; those of a queue are none if they change right now."""
    names = file_names(path)
    groups: dict[str, Iterable[tuple[str, str]]] = {
        queue: zip(files.present, files.files, strict=True)
        for queue, files in group_files(names).queues.items()
    }
    groups.update((name, [(name, name)]) for name in _SIDE_FILES if name in names)
    found: dict[str, tuple[SeenFile, ...]] = {}
    for queue, files in groups.items():
        if only is None or queue in only:
            try:
                found[queue] = tuple(_seen(path, *names) for names in files)
            except FileNotFoundError:  # pragma: no cover: no test comes between listing and lstat
                found[queue] = ()
    return found


def _seen(path: Path, name: str, kept_as: str) -> SeenFile:
    status = os.lstat(f"{path}/{name}")  # there may be very many: no path object for each
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", f"{path}/{name}")
    return SeenFile(name, kept_as, status.st_ino, status.st_size, status.st_mtime_ns)


def _has_same_files(one: tuple[SeenFile, ...], other: tuple[SeenFile, ...]) -> bool:
    """Whether a queue has the same files in two looks; the last one may have grown."""
    return bool(one and other) and one[:-1] == other[:-1] and one[-1][:3] == other[-1][:3]


def _steady_look(
    path: Path, clock: Clock, only: Collection[str] | None = None
) -> tuple[Look, bool]:
    """Return the files that queues had at a moment, and whether it is the same one for all.

    Args:
        path: the queue path.
        clock: says when to be content with a moment for each queue.
        only: the queues to look at; None for all.
    """
    looks = deque((_look(path, only) for _ in range(2)), maxlen=3)
    give_up = clock.monotonic() + _PATIENCE
    found: dict[str, tuple[SeenFile, ...]] = {}
    missing: set[str] | None = None
    while True:
        looks.append(_look(path, only))
        first, middle, last = looks
        steady = {
            queue
            for queue in last
            if all(_has_same_files(a.get(queue, ()), b.get(queue, ())) for a, b in pairwise(looks))
        }
        changing = {queue for queue in steady if not first[queue] == middle[queue] == last[queue]}
        is_whole = missing is None and len(steady) == len({*first, *middle, *last})
        if is_whole and len(changing) <= 1:
            return middle, True
        if clock.monotonic() < give_up:
            continue
        missing = {*last} if missing is None else missing & last.keys()
        found.update((queue, middle[queue]) for queue in steady & missing)
        missing -= steady
        if not missing:
            return found, False
        # A queue may change faster than all are looked at: from now on only those that are missing.
        looks = deque((_look(path, missing) for _ in range(2)), maxlen=3)


class _Copying:
    """The files of a backup that is being written.

    Attributes:
        checksums: the files that are in it, with those of them that were copied.
    """

    def __init__(self, path: Path, part: Path) -> None:
        """Begin without files; `part` is the empty directory to write to."""
        self._path = path
        self._part = part
        self.checksums: dict[SeenFile, int | None] = {}

    def take(self, look: Look) -> set[str]:
        """Take the files of a look; return the queues that have changed too much for that."""
        changed: set[str] = set()
        opened: list[tuple[str, SeenFile, int]] = []
        try:
            for queue, files in look.items():
                try:
                    for file in files:
                        if file in self.checksums:
                            continue
                        if file is files[-1] or not self._link(file):
                            opened.append((queue, file, self._open(file)))
                except _Changed:
                    changed.add(queue)
                if len(opened) >= _MOST_OPEN:
                    self._copy_all(opened, changed)
            self._copy_all(opened, changed)
        finally:
            for _, _, descriptor in opened:
                os.close(descriptor)
        return changed

    def _link(self, file: SeenFile) -> bool:
        """Link a file; return False if it must be copied. Raises _Changed."""
        kept = self._part / file.kept_as
        kept.unlink(missing_ok=True)
        try:
            is_linked = link_file(self._path / file.name, kept)
        except FileNotFoundError:
            raise _Changed from None
        if is_linked:
            if kept.lstat().st_ino != file.inode:
                raise _Changed
            self.checksums[file] = None
        return is_linked

    def _open(self, file: SeenFile) -> int:
        """Open a file to copy it; return its descriptor. Raises _Changed."""
        try:
            descriptor, status = open_with_status(self._path / file.name, os.O_RDONLY)
        except FileNotFoundError:
            raise _Changed from None
        if status.st_ino != file.inode:
            os.close(descriptor)
            raise _Changed
        return descriptor

    def _copy_all(self, opened: list[tuple[str, SeenFile, int]], changed: set[str]) -> None:
        while opened:
            queue, file, descriptor = opened[-1]
            kept = self._part / file.kept_as
            kept.unlink(missing_ok=True)
            copied, checksum = _copy(descriptor, kept, file.size)
            if copied == file.size:
                self.checksums[file] = checksum
            else:  # the end of a failed write was cut off
                changed.add(queue)
            os.close(opened.pop()[2])


def _copy(descriptor: int, new: Path, most: int) -> tuple[int, int]:
    """Copy the first `most` bytes of an open file; return how many there were, and their checksum.

    The new file must not exist; it is synced. Raises OSError.
    """
    copied = checksum = 0
    try:
        with open(new, "xb", 0, opener=open_regular) as file:
            while piece := os.pread(descriptor, min(_PIECE, most - copied), copied):
                checksum = zlib.crc32(piece, checksum)
                copied += len(piece)
                while piece:
                    piece = piece[file.write(piece) :]
        sync_path(new)
    except OSError as error:
        error.filename = str(new)
        raise
    return copied, checksum


# --- restoring ---


def restore(source: Path, path: Path) -> Manifest:
    """Put the backup `source` into the queue path `path`, which must be empty, or not exist.

    Raises:
        JournalError: `source` is not a whole backup, or `path` is not empty or is in use.
        OSError: a file could not be read or written. Nothing was restored then.
    """
    manifest = _read_manifest(source)
    make_queue_path(path)
    was_unfinished = is_unfinished(path)
    with QueuePathLock(path):  # this finishes a restore that was interrupted
        if was_unfinished and all(
            file_size(f"{path}/{file.name}") == file.size for file in manifest.files
        ):
            return manifest
        there = sorted(name for name in file_names(path) if not name.endswith(LOCK_NAME))
        there += sorted(one.name for one in path.glob("process-*"))
        if there:
            raise JournalError(f"{path} is not empty, it has {there[0]}: nothing was restored")
        write_directories.remove_all(path)
        work = write_directories.create(path, write_directories.WriteOwner.of(os.getpid()))
        try:
            for file in manifest.files:
                _restore_file(source, work, file)
            commit_restore(path, work)
        except BaseException:
            write_directories.remove(work)
            raise
    return manifest


def _read_manifest(source: Path) -> Manifest:
    """Return what a backup says that it consists of. Raises JournalError: it is none."""
    try:
        with open(source / MANIFEST_NAME, "rb", opener=open_regular) as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise JournalError(f"{source} is not a backup: it has no {MANIFEST_NAME}") from None
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise JournalError(f"{source / MANIFEST_NAME}: {where}: {problem['msg']}") from None
    for one in manifest.files:
        if one.name not in _SIDE_FILES and parse_name(one.name) is None:
            raise JournalError(f"{source / MANIFEST_NAME}: {one.name!r} is not a journal's name")
    return manifest


def _restore_file(source: Path, work: Path, file: BackupFile) -> None:
    """Copy a file of a backup. Raises JournalError: it is not what it should be."""
    place = source / file.name
    try:
        descriptor, status = open_with_status(place, os.O_RDONLY)
    except FileNotFoundError:
        raise JournalError(f"{place} is missing: nothing was restored") from None
    try:
        copied, checksum = _copy(descriptor, work / file.name, file.size)
    finally:
        os.close(descriptor)
    if not copied == file.size == status.st_size:
        sizes = f"{status.st_size} bytes and not {file.size}"
        raise JournalError(f"{place} has {sizes}: nothing was restored")
    if file.crc32 not in {None, checksum}:
        raise JournalError(f"{place} has a wrong checksum: nothing was restored")
