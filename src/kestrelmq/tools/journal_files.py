"""Selecting the journal files that a tool works on: queue paths, queues in them, single files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kestrelmq.disk.opening import file_names
from kestrelmq.errors import JournalError
from kestrelmq.format.names import QueueFiles, group_files, parse_name
from kestrelmq.journal.loading import TOOL_MEMORY
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay


@dataclass(frozen=True, slots=True)
class SelectedQueue:
    """One queue's files, or some of them.

    Attributes:
        path: the queue path.
        all_files: all of the queue's files.
        files: those to read, in replay order, by their present names.
        is_copy: whether this is a single file with a name that no server gives or replaces.
    """

    path: Path
    all_files: QueueFiles
    files: tuple[str, ...]
    is_copy: bool = False

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.all_files.queue

    @property
    def size(self) -> int:
        """Bytes in the files."""
        return sum((self.path / name).lstat().st_size for name in self.files)

    def is_last(self, name: str) -> bool:
        """Whether `name` is the last of all the queue's files, not only of `files`."""
        return name == self.all_files.present[-1]

    def new_replay(self) -> Replay:
        """Return a replay that holds little in memory, however long the queue is."""
        return Replay(TOOL_MEMORY, lambda file, at: JournalReader(self.path, file, at))


@contextmanager
def steady(selected: SelectedQueue) -> Iterator[None]:
    """Check that the files that the `with` block reads belong together.

    A server may replace them meanwhile. Appends to the current file do not matter. Nothing is
    checked if only some of the queue's files are read, or a copy.

    Raises:
        JournalError: the files were replaced; do not use what was read.
    """
    if selected.is_copy or selected.files != selected.all_files.present:
        yield
        return
    replaced = JournalError(
        f"a server replaced the files of queue {selected.queue} while they were read: try again"
    )
    try:
        before = _inodes(selected)
        yield
        queues = {one.queue: one for one in _queues_in(selected.path)}
        now = queues.get(selected.queue)
        if now is None or now.present != selected.files or _inodes(selected) != before:
            raise replaced
    except FileNotFoundError as error:
        if error.filename is not None and Path(error.filename).parent == selected.path:
            raise replaced from None
        raise


def _inodes(selected: SelectedQueue) -> list[int]:
    return [(selected.path / name).lstat().st_ino for name in selected.files]


def select(paths: Sequence[Path], queues: Sequence[str] = ()) -> list[SelectedQueue]:
    """Return the files that `paths` and `queues` select.

    Args:
        paths: queue paths and journal files.
        queues: names of queues to select; empty for all.

    Raises:
        JournalError: there is no such file, or no such queue.
    """
    chosen = [one for path in paths for one in _select(path)]
    if not queues:
        return chosen
    missing = set(queues) - {one.queue for one in chosen}
    if missing:
        raise JournalError(f"there is no journal of queue {', '.join(sorted(missing))}")
    return [one for one in chosen if one.queue in queues]


def unknown_files(path: Path) -> tuple[str, ...]:
    """Return the names in a queue path that no server loads, although they are not marked so."""
    return group_files(file_names(path)).unknown if path.is_dir() else ()


def _select(path: Path) -> Iterator[SelectedQueue]:
    if path.is_dir():
        for one in _queues_in(path):
            yield SelectedQueue(path, one, one.present)
        return
    if not path.is_file():
        raise JournalError(f"{path}: there is no such file or directory")
    parsed = parse_name(path.name)
    if parsed is None:
        # A copy can be read whatever its name is.
        alone = QueueFiles(path.name, has_current=True)
        yield SelectedQueue(path.parent, alone, (path.name,), is_copy=True)
        return
    for one in _queues_in(path.parent):
        if one.queue == parsed.queue:
            yield SelectedQueue(path.parent, one, (path.name,))


def _queues_in(path: Path) -> Iterator[QueueFiles]:
    """Yield the files of each queue."""
    for files in group_files(file_names(path)).queues.values():
        if files.present:
            yield files


def whole_queues(selected: Sequence[SelectedQueue]) -> list[SelectedQueue]:
    """Return the same queues, with all of their files."""
    found = {(one.path, one.queue): replace(one, files=one.all_files.present) for one in selected}
    return list(found.values())
