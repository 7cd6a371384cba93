"""Which journal files a tool is asked about: queue paths, queues in them, or single files."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kestrelmq.errors import JournalError
from kestrelmq.journal.files import file_names
from kestrelmq.journal.names import QueuePlan, parse_name, plan
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay

_MEMORY = 8 << 20


@dataclass(frozen=True, slots=True)
class Selected:
    """One queue's files, or some of them.

    Attributes:
        path: the queue path.
        plan: what its files mean.
        files: those to look at, in replay order, by the names that they have now.
        is_copy: whether it is one file under a name that no server gives or replaces.
    """

    path: Path
    plan: QueuePlan
    files: tuple[str, ...]
    is_copy: bool = False

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.plan.queue

    @property
    def size(self) -> int:
        """Bytes in the files."""
        return sum((self.path / name).lstat().st_size for name in self.files)

    def is_last(self, name: str) -> bool:
        """Whether the file `name` is the queue's last: of all its files, not only of `files`."""
        return name == self.plan.present[-1]

    def new_replay(self) -> Replay:
        """Return a replay that holds little in memory, however long the queue is."""
        return Replay(_MEMORY, lambda file, at: JournalReader(self.path, file, at))


@contextmanager
def steady(selected: Selected) -> Iterator[None]:
    """Make sure that the files that the `with` block reads belong together.

    A server may replace them meanwhile. What is added to the current file does not matter, nor does
    anything when only some files are looked at, or a copy.

    Raises:
        JournalError: they were replaced; what was read is worth nothing.
    """
    if selected.is_copy or selected.files != selected.plan.present:
        yield
        return
    replaced = JournalError(
        f"a server replaced the files of queue {selected.queue} while they were read: try again"
    )
    try:
        before = _inodes(selected)
        yield
        plans = {one.queue: one for one in _plans(selected.path)}
        now = plans.get(selected.queue)
        if now is None or now.present != selected.files or _inodes(selected) != before:
            raise replaced
    except FileNotFoundError as error:
        if error.filename is not None and Path(error.filename).parent == selected.path:
            raise replaced from None
        raise


def _inodes(selected: Selected) -> list[int]:
    return [(selected.path / name).lstat().st_ino for name in selected.files]


def select(paths: Sequence[Path], queues: Sequence[str] = ()) -> list[Selected]:
    """Return what `paths` name: each a queue path or a journal file.

    Args:
        paths: queue paths (all their queues, or those of `queues`) and journal files.
        queues: names of queues; none is all of them.

    Raises:
        JournalError: there is no such file, or no such queue.
    """
    chosen = [one for path in paths for one in _select(path)]
    if not queues:
        return chosen
    missing = set(queues) - {one.queue for one in chosen}
    if missing:
        raise JournalError(f"no journal of queue {', '.join(sorted(missing))} there")
    return [one for one in chosen if one.queue in queues]


def _select(path: Path) -> Iterator[Selected]:
    if path.is_dir():
        for one in _plans(path):
            yield Selected(path, one, one.present)
        return
    if not path.is_file():
        raise JournalError(f"{path}: there is no such file or directory")
    parsed = parse_name(path.name)
    if parsed is None:
        # A copy under any name can be looked at all the same.
        alone = QueuePlan(path.name, has_current=True)
        yield Selected(path.parent, alone, (path.name,), is_copy=True)
        return
    for one in _plans(path.parent):
        if one.queue == parsed.queue:
            yield Selected(path.parent, one, (path.name,))


def _plans(path: Path) -> Iterable[QueuePlan]:
    return plan(file_names(path)).queues.values()


def whole_queues(selected: Sequence[Selected]) -> list[Selected]:
    """Return the same queues, with all of their files."""
    found = {(one.path, one.queue): replace(one, files=one.plan.present) for one in selected}
    return list(found.values())
