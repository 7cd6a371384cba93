"""List the journal files that a path means, in the order in which a server replays them.

A path is a queue path (a directory), one journal file, or a glob of either. A path that exists
under exactly that name is not a glob, whatever characters it has. Sizes are those at the time of
the listing: what is appended later belongs to the next listing.
"""

import contextlib
import glob
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from stat import S_ISDIR
from typing import Final

from kestrelmq.errors import ConfigError, JournalError
from kestrelmq.journal.names import TEMPORARY_MARK, QueueFiles, group_files, parse_name
from kestrelmq.spark.storage import local_path

_LOOK: Final = 64 << 10
_LISTINGS: Final = 100


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A journal file.

    Attributes:
        queue: the queue it belongs to.
        path: its absolute path.
        name: its path relative to the fixed part of the listed pattern: short and unique.
        size: its size in bytes when it was listed.
        last: whether it is the last file of its queue: a server may be writing to it, and it may
            end in a torn record.
        spool: the queue path it is in.
        inode: its inode number, which stays the same when a server rotates it.
        begin: the byte from which on it is wanted, where a record begins.
    """

    queue: str
    path: str
    name: str
    size: int
    last: bool
    spool: str
    inode: int
    begin: int = 0

    @property
    def is_current(self) -> bool:
        """Whether it was the current file of its queue, which a server may append to or cut."""
        name = parse_name(Path(self.path).name)
        return name is None or name.timestamp is None

    @property
    def cost(self) -> int:
        """The cost of reading it, in bytes; opening even an empty file costs something."""
        return max(self.size - self.begin, _LOOK)


@dataclass(frozen=True, slots=True)
class FollowedFile:
    """A journal file of a queue that is followed while it changes.

    Attributes:
        file: the file.
        timestamp: when it was rotated (ms); None for the current file.
        packed: whether it is a pack some of whose old files may be there; it gets its last name
            later, unless another pack replaces it.
        replaced: whether a pack replaces it, although it is still there.
        changed: when it was last changed, renamed included (ns).
    """

    file: SpoolFile
    timestamp: int | None
    packed: bool
    replaced: bool
    changed: int


@dataclass(frozen=True, slots=True)
class QueueKey:
    """A queue: its name, and its queue path relative to the fixed part of the pattern."""

    place: str
    queue: str

    def __str__(self) -> str:
        """Return it as errors name it."""
        return self.queue if self.place == "." else f"{self.place}/{self.queue}"


@dataclass(frozen=True, slots=True)
class Following:
    """All queues that a pattern means.

    Attributes:
        queues: the files of each queue, those that a pack replaces included; the oldest first, and
            a pack behind the last file that it replaces.
        missing: queue paths, relative as in `QueueKey`, of known queues that are not there.
    """

    queues: dict[QueueKey, tuple[FollowedFile, ...]]
    missing: frozenset[str]


def is_pattern(path: str) -> bool:
    """Whether a path is a glob; a path that exists under exactly that name is not."""
    return glob.has_magic(path) and not Path(path).exists()


def list_files(pattern: str, *, delayed: bool = False) -> list[SpoolFile]:
    """Return the journal files that `pattern` means; within a queue, in replay order.

    With `delayed`, the journals of delayed items are among them, as those of other queues.

    Raises:
        FileNotFoundError: nothing matches.
        ConfigError: `pattern` is a URL with another scheme than `file:`.
    """
    pattern = local_path(pattern)
    is_glob = is_pattern(pattern)
    found = _matches(pattern, delayed=delayed)
    files: list[SpoolFile] = []
    root = _fixed_part(pattern)
    single: dict[str, list[str]] = {}
    for path in found:
        absolute = os.path.abspath(path)  # noqa: PTH100 # does not resolve links: names matter
        if Path(absolute).is_dir():
            files.extend(_files_in(absolute, None, root, delayed))
        else:
            spool, name = os.path.split(absolute)
            single.setdefault(spool, []).append(name)
    for spool, names in single.items():
        if not is_glob and (parse_name(names[0]) is None or _is_side_file(names[0], delayed)):
            raise FileNotFoundError(f"option 'path': {pattern!r} does not have a journal's name")
        files.extend(_files_in(spool, frozenset(names), root, delayed))
    return files


def has_several_spools(pattern: str) -> bool:
    """Whether `pattern` matches journals of more than one queue path.

    Raises:
        FileNotFoundError: nothing matches.
    """
    return len({file.spool for file in list_files(pattern)}) > 1


def check_apart(pattern: str, output: str) -> None:
    """Check that what is written to `output` replaces no journal, and is not among them.

    Spark deletes what it overwrites before it reads.

    Raises:
        ConfigError: `output` is a queue path that `pattern` means, or in one, or has one in it.
        FileNotFoundError: nothing matches `pattern`.
    """
    target = Path(local_path(output, "output")).resolve()
    for spool in {Path(one).resolve() for one in _spools(pattern)}:
        if spool == target or spool in target.parents or target in spool.parents:
            raise ConfigError(
                f"option 'output': {output!r} is not allowed: it must be apart from the journals "
                f"in {spool}"
            )


def list_spool(spool: str) -> list[SpoolFile]:
    """Return all journal files of one queue path; `spool` is never taken as a glob."""
    return list(_files_in(spool, None, spool, delayed=False))


def follow(pattern: str, known: Collection[QueueKey] = ()) -> Following:
    """Return the files of the queues that `pattern` means, to be followed.

    A file means its queue, whatever the names of that queue's files are now. Queues that are
    `known` are looked for even if the pattern does not match one of their files at the moment.

    Raises:
        FileNotFoundError: nothing matches, and nothing is known.
        ConfigError: `pattern` is a URL with another scheme than `file:`.
    """
    pattern = local_path(pattern)
    if known and _is_gone(pattern):
        return Following({}, frozenset(key.place for key in known))
    root = _fixed_part(pattern)
    wanted = _wanted(pattern, is_required=not known)
    spools = {key.place: os.path.normpath(f"{root}/{key.place}") for key in known}
    # An empty directory is what a file system that is not mounted leaves: a queue path has a lock.
    missing = {
        place
        for place, spool in spools.items()
        if not Path(spool).is_dir() or not os.listdir(spool)  # noqa: PTH208
    }
    for key in known:
        if key.place not in missing:
            queues = wanted.setdefault(spools[key.place], set())
            if queues is not None:
                queues.add(key.queue)
    found: dict[QueueKey, tuple[FollowedFile, ...]] = {}
    for spool, only in wanted.items():
        place = os.path.relpath(spool, root)
        for queue, files in _followed_in(spool, only, place):
            found[QueueKey(place, queue)] = files
    return Following(found, frozenset(missing))


def _is_gone(pattern: str) -> bool:
    """Whether a path that is no glob is not there, and is no file that has a new name by now."""
    path = Path(pattern)
    if is_pattern(pattern) or path.exists():
        return False
    names = os.listdir(path.parent) if path.parent.is_dir() else []  # noqa: PTH208
    return not any(
        parsed is not None and parsed.queue == path.name for parsed in map(parse_name, names)
    )


def _wanted(pattern: str, *, is_required: bool) -> dict[str, set[str] | None]:
    """Return the queue paths that `pattern` means, each with its queues; None means all."""
    try:
        matches = _matches(pattern)
    except FileNotFoundError:
        if is_required:
            raise
        # The only file that the pattern means is being renamed, or the queues are deleted.
        matches = []
    wanted: dict[str, set[str] | None] = {}
    for path in matches:
        absolute = os.path.abspath(path)  # noqa: PTH100 # as above
        if Path(absolute).is_dir():
            wanted[absolute] = None
            continue
        spool, name = os.path.split(absolute)
        parsed = None if _is_side_file(name, delayed=False) else parse_name(name)
        queues = wanted.setdefault(spool, set())
        if parsed is not None and queues is not None:
            queues.add(parsed.queue)
    return wanted


def _followed_in(
    spool: str, only: Collection[str] | None, place: str
) -> Iterator[tuple[str, tuple[FollowedFile, ...]]]:
    before = "" if place == "." else f"{place}/"
    listed = _listed(spool, delayed=False)
    for queue in group_files(listed).queues.values():
        if only is not None and queue.queue not in only:
            continue
        live = _names_on_disk(queue)
        files = []
        for name in (*live, *queue.dead):
            parsed = parse_name(name)
            if parsed is None:
                continue  # a temporary
            status = listed[name]
            file = SpoolFile(
                queue.queue,
                f"{spool}/{name}",
                before + name,
                status.st_size,
                name == live[-1],
                spool,
                status.st_ino,
            )
            replaced = name not in live
            files.append(
                FollowedFile(file, parsed.timestamp, parsed.packed, replaced, status.st_ctime_ns)
            )
        yield queue.queue, tuple(sorted(files, key=_place_in_journal))


def _place_in_journal(found: FollowedFile) -> tuple[float, bool]:
    return (float("inf") if found.timestamp is None else found.timestamp), found.packed


def by_queue(files: Iterable[SpoolFile]) -> Iterator[list[SpoolFile]]:
    """Group files, as `list_files` returns them, into queues."""
    for _, group in groupby(files, key=lambda file: (file.spool, file.queue)):
        yield list(group)


def _fixed_part(pattern: str) -> str:
    """Return the directory that holds all that `pattern` can match; `pattern` if that is one."""
    absolute = os.path.abspath(pattern)  # noqa: PTH100 # as above
    if is_pattern(pattern):
        parts = absolute.split("/")
        first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
        return "/".join(parts[:first]) or "/"
    return absolute if Path(absolute).is_dir() else os.path.dirname(absolute)  # noqa: PTH120


def _matches(pattern: str, *, delayed: bool = False) -> list[str]:
    """Return the directories and files that `pattern`, a local path, means.

    Raises:
        FileNotFoundError: nothing matches.
    """
    is_glob = is_pattern(pattern)
    # Path.glob takes no absolute patterns.
    matches = sorted(glob.glob(pattern)) if is_glob else [pattern]  # noqa: PTH207
    paths = [path for path in matches if not (is_glob and _is_side_file(Path(path).name, delayed))]
    found = [path for path in paths if Path(path).exists()]
    if not found:
        raise FileNotFoundError(f"option 'path': no file or directory matches {pattern!r}")
    return found


def _spools(pattern: str) -> Iterator[str]:
    """Yield the queue paths that `pattern` means, or that have files that it means."""
    for path in _matches(local_path(pattern)):
        yield path if Path(path).is_dir() else str(Path(path).parent)


def _is_side_file(name: str, delayed: bool) -> bool:  # noqa: FBT001 # as `list_files` has it
    """Whether a file is of none of the queues asked for."""
    return TEMPORARY_MARK in name and not (delayed and parse_name(name) is not None)


def _files_in(
    spool: str,
    only: frozenset[str] | None,
    root: str,
    delayed: bool,  # noqa: FBT001 # as `list_files` has it
) -> Iterator[SpoolFile]:
    listed = _listed(spool, delayed)
    grouped = group_files(listed).queues.values()
    for queue in (one for files in grouped for one in (files, files.delayed) if one is not None):
        names = _names_on_disk(queue)
        for name in names:
            if only is None or name in only:
                last = name == names[-1]
                path = f"{spool}/{name}"
                short = os.path.relpath(path, root)
                size, inode = listed[name].st_size, listed[name].st_ino
                yield SpoolFile(queue.queue, path, short, size, last, spool, inode)


def _listed(spool: str, delayed: bool) -> dict[str, os.stat_result]:  # noqa: FBT001 # as above
    """Return the files in a queue path, with their status.

    While a server renames and deletes files, one listing may miss a file under both its old and
    its new name. So a listing is valid only if a second one finds the same names.
    """
    for _ in range(_LISTINGS):
        before = _names_in(spool, delayed)
        found = {}
        for name in before:
            with contextlib.suppress(FileNotFoundError):
                found[name] = os.lstat(f"{spool}/{name}")
        if _names_in(spool, delayed) == before:
            return {name: status for name, status in found.items() if not S_ISDIR(status.st_mode)}
    raise JournalError(f"{spool}: its files change too fast to be listed")


def _names_in(spool: str, delayed: bool) -> set[str]:  # noqa: FBT001 # as above
    names = os.listdir(spool)  # noqa: PTH208
    return {name for name in names if not _is_side_file(name, delayed)}


def _names_on_disk(queue: QueueFiles) -> list[str]:
    """Return the files to replay, by the names they have before the plan's renames."""
    before = {new: old for old, new in queue.rename}
    return [before.get(name, name) for name in queue.files]
