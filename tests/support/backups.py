"""Queue paths to back up, and what is in them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Final

from kestrelmq.format.records import Remove
from kestrelmq.tools.backup import MANIFEST_NAME
from kestrelmq.tools.import_export import rows
from kestrelmq.tools.journal_files import select
from tests.support.journal_bytes import encode, numbered

Files = dict[str, bytes]

FILES: Files = {
    "jobs.1": numbered(1, 2),
    "jobs.2": encode(Remove()) + numbered(3),
    "jobs": numbered(4),
    "work+copy": numbered(5),
    "~~queues": b'{"kestrelmq": "queues", "version": 1}\n',
    "~~status": b"READONLY\n",
}


def spool(path: Path, files: Files = FILES) -> Path:
    """Write the files of a queue path."""
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def files_in(path: Path) -> Files:
    """Return the files that count in a queue path or a backup."""
    others = {MANIFEST_NAME, "~~lock"}
    files = [one for one in path.iterdir() if one.is_file() and one.name not in others]
    return {one.name: one.read_bytes() for one in files}


def items(path: Path) -> dict[str, list[bytes]]:
    """Return the items of each queue."""
    return {one.queue: [row.data for row in rows(one)] for one in select([path])}


def append(path: Path, name: str, content: bytes) -> None:
    """Append to a journal."""
    with (path / name).open("ab") as file:
        file.write(content)


def rotate(path: Path, timestamp: int, content: bytes = b"") -> None:
    """Begin a new current file of `jobs`."""
    (path / "jobs").rename(path / f"jobs.{timestamp}")
    (path / "jobs").write_bytes(content)


def pack(path: Path, *old: str, content: bytes) -> None:
    """Replace files by one."""
    (path / f"{old[-1]}.pack").write_bytes(content)
    for name in old:
        (path / name).unlink()


# --- disturbing a process at each step ---

CALLS: Final = {
    "open",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "shutil.rmtree",
}
"""Audit events: the steps of a process."""

Action = Callable[[], object]


class Disturbance:
    """Does an action at each step of this thread, from the `first` one on.

    Attributes:
        done: how many were done.
    """

    def __init__(self, first: int, actions: Sequence[Action]) -> None:
        self.done = 0
        self._steps_before = first - 1
        self._actions = actions
        self._thread = get_ident()
        self._is_busy = False

    def step(self) -> None:
        """Take note of a step, before it is done."""
        if self._is_busy or self._thread != get_ident():
            return
        if self._steps_before:
            self._steps_before -= 1
        elif self.done < len(self._actions):
            self._is_busy = True
            self._actions[self.done]()
            self.done += 1
            self._is_busy = False


@cache
def _disturbances() -> list[Disturbance]:
    """Return those that are in force; a hook of Python stays for ever."""
    found: list[Disturbance] = []

    def hook(event: str, _: object) -> None:
        if found and event in CALLS:
            found[-1].step()

    sys.addaudithook(hook)
    return found


@contextmanager
def disturbed_at(first: int, actions: Sequence[Action]) -> Iterator[Disturbance]:
    """Do the next of these actions at each step of a `with` block, from its `first` one on."""
    disturbance = Disturbance(first, actions)
    _disturbances().append(disturbance)
    try:
        yield disturbance
    finally:
        _disturbances().remove(disturbance)
