"""List the journal files that a path means, in the order in which a server replays them.

A path is a queue path (a directory), one journal file, or a glob of either, in the file system or
in a store. A path that exists under exactly that name is not a glob, whatever characters it has.
Sizes are those at the time of the listing: what is appended later belongs to the next listing.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from kestrelmq.errors import ConfigError, JournalError
from kestrelmq.format.names import (
    TEMPORARY_MARK,
    group_files,
    newest_timestamp,
    parse_name,
)
from kestrelmq.spark.storage.filesystems import (
    FileTree,
    JournalPath,
    fixed_part,
    is_pattern,
    tree_of,
)
from kestrelmq.spark.storage.locations import (
    GivenPath,
    ListedFile,
    Location,
    local_path,
    scheme_of,
)

_LOOK: Final = 64 << 10
_LISTINGS: Final = 100


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A journal file.

    Attributes:
        queue: the queue it belongs to.
        path: its absolute path, or its URI.
        name: its path relative to the fixed part of the listed pattern: short and unique.
        size: its size in bytes when it was listed.
        last: whether it is the last file of its queue: a server may be writing to it, and it may
            end in a torn record.
        spool: the queue path it is in.
        inode: its inode number, which stays the same when a server rotates it; 0 in a store.
        timestamp: when it was rotated (ms); None for the current file.
        packed: whether it is a pack some of whose old files may be there; it gets its last name
            later, unless another pack replaces it.
        replaced: whether a pack replaces it, although it is still there.
        begin: the byte from which on it is wanted, where a record begins.
        changed: when it was last changed (ns).
        newest: the timestamp of the newest rotated file of its queue (ms; 0 without one).
        location: where it is in a store; None in the file system.
    """

    queue: str
    path: str
    name: str
    size: int
    last: bool
    spool: str
    inode: int
    timestamp: int | None
    packed: bool
    replaced: bool
    begin: int = 0
    changed: int = 0
    newest: int = 0
    location: Location | None = None

    @property
    def name_in_spool(self) -> str:
        """Its name in the queue path."""
        return self.location.name if self.location is not None else os.path.basename(self.path)  # noqa: PTH119 # as stored

    @property
    def is_current(self) -> bool:
        """Whether it was the current file of its queue, which a server may append to or cut."""
        return self.timestamp is None

    @property
    def cost(self) -> int:
        """The cost of reading it, in bytes; opening even an empty file costs something."""
        return max(self.size - self.begin, _LOOK)


class QueueKey(NamedTuple):
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

    queues: dict[QueueKey, tuple[SpoolFile, ...]]
    missing: frozenset[str]


def list_files(pattern: JournalPath) -> list[SpoolFile]:
    """Return the journal files that `pattern` means; within a queue, in replay order.

    Raises:
        FileNotFoundError: nothing matches.
        ConfigError: `pattern` is a URI of something else.
        StorageError: the store cannot be reached, or refuses.
    """
    tree, path = tree_of(pattern)
    root = fixed_part(tree, path)
    files: list[SpoolFile] = []
    for spool, names in _named(tree, _matches(tree, path)).items():
        if names and not any(map(parse_name, names)) and not is_pattern(tree, path):
            shown = tree.shown(path)
            raise FileNotFoundError(f"option 'path': {shown!r} does not have a journal's name")
        files += (
            file
            for queue in _queues_in(tree, spool, root)
            for file in queue
            if not file.replaced and (names is None or file.name_in_spool in names)
        )
    return files


def _named(tree: FileTree, matches: Iterable[str]) -> dict[str, set[str] | None]:
    """Return the queue paths that a pattern matches, each with its files; None means all."""
    found: dict[str, set[str] | None] = {}
    for path in matches:
        absolute = os.path.abspath(path)  # noqa: PTH100 # does not resolve links: names matter
        if tree.is_directory(absolute):
            found[absolute] = None
            continue
        spool, name = os.path.split(absolute)
        names = found.setdefault(spool, set())
        if names is not None:
            names.add(name)
    return found


def check_apart(pattern: JournalPath, output: GivenPath) -> None:
    """Check that what is written to `output` replaces no journal, and is not among them.

    Spark deletes what it overwrites before it reads. `output` may be any URI that Spark can write.

    Raises:
        ConfigError: `output` is a queue path that `pattern` means, or in one, or has one in it.
        FileNotFoundError: nothing matches `pattern`.
    """
    tree, path = tree_of(pattern)
    target = _resolved(output)
    for found in _matches(tree, path):
        spool = found if tree.is_directory(found) else os.path.dirname(found)  # noqa: PTH120
        journals = _resolved(tree.location(spool) or spool)
        if journals == target or journals in target.parents or target in journals.parents:
            raise ConfigError(
                f"option 'output': {str(output)!r} is not allowed: it must be apart from the "
                f"journals in {tree.shown(spool) or os.curdir}"
            )


def _resolved(place: GivenPath) -> Path:
    """Return what can be compared with other places."""
    scheme = scheme_of(str(place))
    if scheme is None or scheme == "file":
        return Path(local_path(str(place), "output")).resolve()
    parts = urlsplit(str(place))
    return Path("s3:" if scheme == "s3a" else f"{scheme}:", parts.netloc, unquote(parts.path)[1:])


def list_spool(spool: JournalPath) -> list[SpoolFile]:
    """Return all journal files of one queue path; `spool` is never taken as a glob."""
    tree, path = tree_of(spool)
    return [one for queue in _queues_in(tree, path, path) for one in queue if not one.replaced]


def follow(
    pattern: JournalPath, known: Collection[QueueKey] = (), *, may_be_gone: bool = False
) -> Following:
    """Return the files of the queues that `pattern` means, to be followed.

    A file means its queue, whatever the names of that queue's files are now. Queues that are
    `known` are looked for even if the pattern does not match one of their files at the moment.

    Raises:
        FileNotFoundError: nothing matches, nothing is known, and it may not be gone.
        ConfigError: `pattern` is a URI of something else.
        StorageError: the store cannot be reached, or refuses.
    """
    tree, path = tree_of(pattern)
    is_required = not known and not may_be_gone
    if not is_required and _is_gone(tree, path):
        return Following({}, frozenset(key.place for key in known))
    root = fixed_part(tree, path)
    wanted = _wanted(tree, path, is_required=is_required)
    spools = {place: os.path.normpath(f"{root}/{place}") for place in {key.place for key in known}}
    # An empty directory is what a file system that is not mounted leaves: a queue path has a lock.
    missing = {
        place
        for place, spool in spools.items()
        if not tree.is_directory(spool) or not tree.names(spool)
    }
    for key in known:
        if key.place not in missing:
            queues = wanted.setdefault(spools[key.place], set())
            if queues is not None:
                queues.add(key.queue)
    found: dict[QueueKey, tuple[SpoolFile, ...]] = {}
    for spool, only in wanted.items():
        place = os.path.relpath(spool, root)
        for files in _queues_in(tree, spool, root):
            if only is None or files[0].queue in only:
                found[QueueKey(place, files[0].queue)] = tuple(sorted(files, key=_place_in_journal))
    return Following(found, frozenset(missing))


def _is_gone(tree: FileTree, pattern: str) -> bool:
    """Whether a path, not a glob, is missing, and no file there was renamed meanwhile."""
    if is_pattern(tree, pattern) or tree.exists(pattern):
        return False
    parent, name = os.path.split(os.path.abspath(pattern))  # noqa: PTH100 # as above
    names = tree.names(parent) if tree.is_directory(parent) else []
    return not any(parsed is not None and parsed.queue == name for parsed in map(parse_name, names))


def _wanted(tree: FileTree, pattern: str, *, is_required: bool) -> dict[str, set[str] | None]:
    """Return the queue paths that `pattern` means, each with its queues; None means all."""
    try:
        matches = _matches(tree, pattern)
    except FileNotFoundError:
        if is_required:
            raise
        # The only file that the pattern means is being renamed, or the queues are deleted.
        matches = []
    return {
        spool: None if names is None else {one.queue for one in map(parse_name, names) if one}
        for spool, names in _named(tree, matches).items()
    }


def _queues_in(tree: FileTree, spool: str, root: str) -> Iterator[list[SpoolFile]]:
    """Yield the files of each queue: those to replay, in order, then those that a pack replaces."""
    place = os.path.relpath(spool, root)
    before = "" if place == "." else f"{place}/"
    listed = _listed(tree, spool)
    for queue in group_files(listed).queues.values():
        live = queue.present
        newest = newest_timestamp(queue.rotated)
        found = []
        for name in (*live, *queue.dead):
            parsed = parse_name(name)
            if parsed is None:
                continue  # a temporary
            path, status = f"{spool}/{name}", listed[name]
            found.append(
                SpoolFile(
                    queue.queue,
                    tree.shown(path),
                    before + name,
                    status.size,
                    name == live[-1],
                    tree.shown(spool),
                    status.inode,
                    parsed.timestamp,
                    parsed.packed,
                    name not in live,
                    changed=status.changed,
                    newest=newest,
                    location=tree.location(path),
                )
            )
        yield found


def _place_in_journal(found: SpoolFile) -> tuple[float, bool]:
    return (float("inf") if found.timestamp is None else found.timestamp), found.packed


def by_queue(files: Iterable[SpoolFile]) -> Iterator[list[SpoolFile]]:
    """Group files, as `list_files` returns them, into queues."""
    for _, group in groupby(files, key=lambda file: (file.spool, file.queue)):
        yield list(group)


def _matches(tree: FileTree, pattern: str) -> list[str]:
    """Return the directories and files that `pattern`, a path in `tree`, means.

    Raises:
        FileNotFoundError: nothing matches.
    """
    is_glob = is_pattern(tree, pattern)
    matches = tree.glob(pattern) if is_glob else [pattern]
    paths = [path for path in matches if not (is_glob and TEMPORARY_MARK in Path(path).name)]
    found = [path for path in paths if tree.exists(path)]
    if not found:
        shown = tree.shown(pattern)
        raise FileNotFoundError(f"option 'path': no file or directory matches {shown!r}")
    return found


def _listed(tree: FileTree, spool: str) -> dict[str, ListedFile]:
    """Return the files in a queue path, with their status.

    While a server renames and deletes files, one listing may miss a file under both its old and
    its new name. So a listing is valid only if a second one finds the same names.
    """
    for _ in range(_LISTINGS):
        found = [one for one in tree.entries(spool) if TEMPORARY_MARK not in one.name]
        names = {name for name in tree.names(spool) if TEMPORARY_MARK not in name}
        if names == {one.name for one in found}:
            return {one.name: one for one in found if not one.is_directory}
    raise JournalError(f"{tree.shown(spool)}: its files change too fast to be listed")
