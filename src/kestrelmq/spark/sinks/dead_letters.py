"""Rows that can never become items: they fail the query, or are kept in a table of their own.

With the option `deadLetterPath`, a task writes them to a Parquet file in that directory, which
may be in a store; the columns are `queue`, `data`, `expiry`, `reason` and `time`, so that `restore`
can read it. A sink has no session, so Spark cannot write the table. A file appears when it is whole
and on disk, and is named for the task: a task that is run again replaces its files.
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
from kestrelmq.spark.storage.columns import timestamps
from kestrelmq.spark.storage.locations import Location

_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("data", pa.binary()),
        ("expiry", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
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

    def __init__(
        self, path: str | Location | None, task: str = "", clock: Clock | None = None
    ) -> None:
        """Prepare to write to the directory `path`; with None, a dead letter is an error.

        `task` names the task, whichever attempt it is.
        """
        self._path = Path(path) if isinstance(path, str) else path
        self._task = task
        self._files = 0
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
        letters = self._letters
        expiries = pa.array([letter.expiry for letter in letters], pa.int64())
        columns = [
            [letter.queue for letter in letters],
            [letter.data for letter in letters],
            timestamps(expiries, 0),
            [letter.reason for letter in letters],
            timestamps(pa.array([self._clock.now()] * len(letters))),
        ]
        table = pa.table(columns, schema=_SCHEMA)
        name = f"part-{self._task}-{self._files}.parquet"
        self._files += 1
        if isinstance(self._path, Location):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            (self._path / name).write_bytes(sink.getvalue())
        else:
            _write_durably(table, self._path, name)
        self._letters, self._size = [], 0


def _write_durably(table: pa.Table, directory: Path, name: str) -> None:
    # Readers of a table ignore names that begin with an underscore.
    unfinished = directory / f"_{name}.{uuid4().hex}"
    make_directory(directory)
    with unfinished.open("xb") as file:
        pq.write_table(table, file)
    sync_path(unfinished)
    rename_durably(unfinished, directory / name)
