"""The tree of files that a path is in: the file system's, or that of a store.

Everything that lists journals works on absolute paths in a tree; this is the one place that knows
where the tree is.
"""

import glob
import os
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISDIR
from typing import Final

from kestrelmq.spark.storage.locations import ListedFile, Location, located

JournalPath = str | Location
"""A path of the file system, a `file:` URL, or a location in a store; any may be a glob."""


class LocalTree:
    """The file system."""

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return Path(path).exists()

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory at `path`."""
        return Path(path).is_dir()

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory now. Raises FileNotFoundError."""
        return os.listdir(directory)  # noqa: PTH208

    def entries(self, directory: str) -> list[ListedFile]:
        """Return the same with what is told about it, without what has gone meanwhile.

        Links are not followed.
        """
        found = []
        for name in self.names(directory):
            try:
                status = os.lstat(f"{directory}/{name}")
            except FileNotFoundError:
                continue
            is_directory = S_ISDIR(status.st_mode)
            found.append(
                ListedFile(name, status.st_size, is_directory, status.st_ctime_ns, status.st_ino)
            )
        return found

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern, sorted."""
        # Path.glob takes no absolute patterns.
        return sorted(glob.glob(pattern))  # noqa: PTH207

    def shown(self, path: str) -> str:
        """Return the path as errors and rows have it."""
        return path

    def location(self, path: str) -> Location | None:  # noqa: ARG002 # as in a store
        """Return None: it is not in a store."""
        return None


LOCAL: Final = LocalTree()


class StoreTree:
    """A bucket or container of a store, or an HDFS.

    It is made for one listing: whether something exists is asked once.
    """

    def __init__(self, location: Location) -> None:
        self._root = replace(location, path="")
        self._found: dict[str, ListedFile | None] = {}

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory at `path`."""
        found = self._find(path)
        return found is not None and found.is_directory

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory now. Raises FileNotFoundError."""
        return [one.name for one in self.entries(directory)]

    def entries(self, directory: str) -> list[ListedFile]:
        """Return the same with what is told about it."""
        return self.location(directory).entries()

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern, sorted; directories are listed level by level."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            if glob.has_magic(part):
                found = [f"{one}/{name}" for one in found for name in self._matching(one, part)]
            else:
                found = [f"{one}/{part}" for one in found]
        return sorted(found)

    def shown(self, path: str) -> str:
        """Return the URI, as errors and rows have it."""
        return self.location(path).uri

    def location(self, path: str) -> Location:
        """Return where it is in the store."""
        return self._root / path

    def _matching(self, directory: str, pattern: str) -> list[str]:
        try:
            names = self.names(directory or "/")
        except FileNotFoundError:
            return []
        # As in a shell, a name that begins with a dot must be asked for.
        return [
            name
            for name in names
            if fnmatchcase(name, pattern) and (pattern[0] == "." or name[0] != ".")
        ]

    def _find(self, path: str) -> ListedFile | None:
        if path not in self._found:
            self._found[path] = self.location(path).find()
        return self._found[path]


FileTree = LocalTree | StoreTree
"""Files by their absolute paths."""


def tree_of(path: JournalPath) -> tuple[FileTree, str]:
    """Return the tree that a path is in, and the path in it.

    Raises:
        ConfigError: it is a URI of something else.
    """
    found = located(path)
    if isinstance(found, Location):
        return StoreTree(found), f"/{found.path}"
    return LOCAL, found


def is_pattern(tree: FileTree, path: str) -> bool:
    """Whether a path is a glob; one that exists under exactly that name is not."""
    return glob.has_magic(path) and not tree.exists(path)


def fixed_part(tree: FileTree, pattern: str) -> str:
    """Return the directory that holds all that `pattern` can match; `pattern` if that is one."""
    absolute = os.path.abspath(pattern)  # noqa: PTH100 # does not resolve links: names matter
    if is_pattern(tree, pattern):
        parts = absolute.split("/")
        first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
        return "/".join(parts[:first]) or "/"
    return absolute if tree.is_directory(absolute) else os.path.dirname(absolute)  # noqa: PTH120
