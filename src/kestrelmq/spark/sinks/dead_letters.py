"""Rows that can never become items: they fail the query, or are kept in a table of their own.

With the option `deadLetterPath`, a task writes them to a Parquet file in that directory, which
may be in a store; the columns are `queue`, `data`, `expiry` (ms), `reason` and `time` (ms), so that
`restore` can read it. A file appears when it is whole and on disk. A task that is run again writes
them again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.disk.renaming import make_directory, rename_durably, sync_path
from kestrelmq.errors import KestrelError
from kestrelmq.spark.storage.locations import Location

_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("data", pa.binary()),
        ("expiry", pa.int64()),
        ("reason", pa.string()),
        ("time", pa.int64()),
    ]
)
_MOST_BYTES: Final = 16 << 20
"""Bytes of data that are kept in memory, besides one item."""


class CannotBeStored(KestrelError, ValueError):  # noqa: N818 # says what it is
    """A row that can never become an item."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that can never become an item; `expiry` is in ms, 0 for never."""

    queue: str | None
    data: bytes | None
    expiry: int
    reason: str


class DeadLetters:
    """The dead letters of one task."""

    def __init__(self, path: str | Location | None, clock: Clock | None = None) -> None:
        """Prepare to write to the directory `path`; with None, a dead letter is an error."""
        self._path = Path(path) if isinstance(path, str) else path
        self._clock = clock or SystemClock()
        self._letters: list[DeadLetter] = []
        self._size = 0

    def add(self, letter: DeadLetter) -> None:
        """Keep a row.

        Raises:
            CannotBeStored: there is no directory for it.
            OSError: the file cannot be written.
            StorageError: the store cannot be reached, or refuses.
        """
        if self._path is None:
            raise CannotBeStored(f"{letter.reason} (option 'deadLetterPath' keeps such rows)")
        self._letters.append(letter)
        self._size += len(letter.data or b"")
        if self._size > _MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was added to a file, durably; do nothing if that is nothing."""
        if self._path is None or not self._letters:
            return
        now = self._clock.now()
        columns = [
            [getattr(letter, name) for letter in self._letters] for name in _SCHEMA.names[:-1]
        ]
        table = pa.table([*columns, [now] * len(self._letters)], schema=_SCHEMA)
        name = f"part-{now}-{uuid4().hex}.parquet"
        if isinstance(self._path, Location):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            (self._path / name).write(sink.getvalue())
        else:
            _write_durably(table, self._path, name)
        self._letters, self._size = [], 0


def _write_durably(table: pa.Table, directory: Path, name: str) -> None:
    # Readers of a table ignore names that begin with an underscore.
    unfinished = directory / f"_{name}"
    make_directory(directory)
    with unfinished.open("xb") as file:
        pq.write_table(table, file)
    sync_path(unfinished)
    rename_durably(unfinished, directory / name)
