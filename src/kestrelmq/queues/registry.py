"""What clients have set for single queues, kept over a restart in the side file `~~queues`.

It is in force as soon as it is set; `save` tells when it is on disk. There is no file until
something is set. What is set is appended to it, and a worker syncs that: one sync covers all that
was set before it began, so many clients that set something at the same time wait for few syncs. A
worker writes the file anew, with what is in force only, for the first change after a start, when it
has doubled, and after a failure.

A crash may leave a last line that is cut short, which nobody was told of, or a temporary that the
next write overwrites. A file with wrong content is renamed and kept; what it said is then not in
force, and no item is lost. One that cannot be read is left alone, and `load` fails. The bytes are
described in `docs/journal.md`.
"""

import contextlib
import errno
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from kestrelmq.clock import Clock, Pause
from kestrelmq.config import QueueConfig
from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk.directories import AppendFile, Directory, replace_file
from kestrelmq.errors import InvalidDeclaration, JournalError
from kestrelmq.format.names import DAMAGED, QUEUES_NAME, temporary_name
from kestrelmq.names import queue_name_error
from kestrelmq.queue.paused import Paused
from kestrelmq.scheduling.worker import InlineWorker, Worker

_HEAD: Final = b'{"kestrelmq": "queues", "version": 1}'
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EINVAL})
"""Errors of a link, a pipe or a directory in the file's place: as wrong as wrong content."""
_SHORT: Final = 64 << 10
"""Bytes that may be appended to the shortest of files before it is written anew."""
DECLARABLE: Final = frozenset(
    {"fanout_only", "keep_journal", "max_queue_age", "max_age", "max_items"}
)
"""The settings that clients may declare for a queue."""

log = get_logger(__name__)

SaveDone = Callable[[JournalError | None], None]
"""Called with the reason why the file could not be written; with None if it was."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """What clients have set for one queue.

    Attributes:
        paused: what is paused.
        declared: the settings that clients declared; None if they did not declare the queue.
    """

    paused: Paused = Paused.NOTHING
    declared: QueueConfig | None = None


NO_ENTRY: Final = QueueEntry()
"""The entry of a queue for which nothing is set."""


class QueueRegistry:
    """The entries of all queues of a queue path. Only the owner's thread changes it.

    Attributes:
        declared: the settings that clients declared, by the queue's name.
        worker: writes the file.
    """

    def __init__(self, directory: Directory, clock: Clock) -> None:
        """Start with no entries; `load` reads the file."""
        self.declared: dict[str, QueueConfig] = {}
        self.worker: Worker = InlineWorker()
        self._directory = directory
        self._clock = clock
        self._entries: dict[str, QueueEntry] = {}
        self._lines: dict[str, bytes] = {}
        # The lines that are not written yet, and those who wait for that.
        self._unsaved: dict[str, bytes] = {}
        self._waiting: list[SaveDone] = []
        self._is_writing = False
        # The file if it may be appended to, and up to which size.
        self._file: AppendFile | None = None
        self._full_at = 0

    def load(self) -> None:
        """Read the file, if there is one; one with wrong content is set aside.

        Raises OSError: it cannot be read now.
        """
        try:
            with open(self._directory.open(QUEUES_NAME), "rb") as file:  # noqa: PTH123 # is open
                content = file.read()
            entries = decode(content)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_FILE:
                reason = f"what clients have set for queues cannot be read: {error.strerror}"
                path = str(self._directory.path / QUEUES_NAME)
                raise OSError(error.errno, reason, path) from error
            self._set_aside(str(error))
            return
        for name, entry in entries.items():
            self.put(name, entry)
        self._unsaved.clear()

    def _set_aside(self, reason: str) -> None:
        aside = temporary_name(QUEUES_NAME, DAMAGED, self._clock.now())
        log.warning(
            "%s cannot be used: %s; it is kept as %s. What clients had paused or declared is not "
            "in force any more; no item is lost",
            self._directory.path / QUEUES_NAME,
            reason,
            aside,
        )
        try:
            # Without a sync: if a crash undoes it, the next start does it again.
            self._directory.rename(QUEUES_NAME, aside)
        except OSError as error:
            log.error("%s cannot be renamed: %s", QUEUES_NAME, error)  # noqa: TRY400

    def entry(self, name: str) -> QueueEntry:
        """Return what is set for a queue; from any thread."""
        return self._entries.get(name, NO_ENTRY)

    def put(self, name: str, entry: QueueEntry) -> None:
        """Set the entry of a queue; `NO_ENTRY` removes it. `save` writes it."""
        if entry == self.entry(name):
            return
        self.declared.pop(name, None)
        if entry.declared is not None:
            self.declared[name] = entry.declared
        line = self._unsaved[name] = encode_entry(name, entry)
        if entry == NO_ENTRY:
            del self._entries[name], self._lines[name]
        else:
            self._entries[name] = entry
            self._lines[name] = line

    # --- writing ---

    def save(self, done: SaveDone) -> None:
        """Call `done` when all that is set now is on disk, or could not be written.

        A later `save` tries again what could not be written.
        """
        self._waiting.append(done)
        if not self._is_writing:
            self._write()

    def _write(self) -> None:
        """Write what is not written yet, for those who wait."""
        waiting, self._waiting = self._waiting, []
        unsaved, self._unsaved = self._unsaved, {}
        if not unsaved:
            _tell(waiting, None)
            return
        self._is_writing = True
        file = self._file
        if file is not None and file.size < self._full_at:
            try:
                file.append(b"".join(unsaved.values()))
            except OSError as error:
                log.warning("%s is written anew: %s", self._directory.path / QUEUES_NAME, error)
            else:
                synced = partial(self._written, unsaved, waiting)
                self.worker.run(lambda _pause: file.sync(), synced)
                return
        self.close()
        replaced = partial(self._replaced, unsaved, waiting)
        self.worker.run(partial(self._replace, list(self._lines.values())), replaced)

    def _replace(self, lines: Iterable[bytes], _pause: Pause) -> None:
        replace_file(self._directory, QUEUES_NAME, encode(lines))

    def _replaced(
        self, unsaved: dict[str, bytes], waiting: list[SaveDone], error: BaseException | None
    ) -> None:
        if error is None:
            with contextlib.suppress(OSError):  # the next change is written anew, too
                self._file = self._directory.append_to(QUEUES_NAME)
                self._full_at = 2 * self._file.size + _SHORT
        self._written(unsaved, waiting, error)

    def _written(
        self, unsaved: dict[str, bytes], waiting: list[SaveDone], error: BaseException | None
    ) -> None:
        self._is_writing = False
        if error is not None:
            self.close()
            self._unsaved = {**unsaved, **self._unsaved}
            log.error("%s cannot be written: %s", self._directory.path / QUEUES_NAME, error)
        _tell(waiting, error)
        if self._waiting and not self._is_writing:
            self._write()

    def close(self) -> None:
        """Release the file; if something is saved after that, it is written anew."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _tell(waiting: list[SaveDone], error: BaseException | None) -> None:
    for done in waiting:
        # A new error for each: one that is raised repeatedly keeps every traceback.
        done(
            None
            if error is None
            else JournalError(
                f"it is done, but could not be saved in {QUEUES_NAME}, so that a restart undoes "
                f"it: {error}"
            )
        )


# --- the bytes of the file ---


def encode(lines: Iterable[bytes]) -> bytes:
    """Return the content of a file with the lines of some entries."""
    return b"".join((_HEAD, b"\n", *lines))


def checked_line(text: bytes) -> bytes:
    """Return a line with its checksum."""
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode(content: bytes) -> dict[str, QueueEntry]:
    """Return the entries in the content of a file. Raises ValueError: it is damaged."""
    head, *lines = content.split(b"\n")
    if head != _HEAD or not lines:
        raise ValueError("its first line is not that of a file of version 1")
    end = lines.pop()
    entries: dict[str, QueueEntry] = {}
    for number, line in enumerate(lines, 2):
        try:
            _apply(line, entries)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    # Without a line feed, a crash has cut the line short; if only that is wrong, the line counts.
    for line in (end, end[:-1]):
        with contextlib.suppress(ValueError):
            _apply(line, entries)
    return entries


def _apply(line: bytes, entries: dict[str, QueueEntry]) -> None:
    """Let an entry be what a line says. Raises ValueError."""
    text = line[9:]
    if line + b"\n" != checked_line(text):
        raise ValueError("its checksum is wrong")
    fields = _object(text)
    name = fields.pop("name", None)
    if not isinstance(name, str) or queue_name_error(name) is not None:
        raise ValueError("it has no name of a queue")
    entry = _entry(fields)
    entries.pop(name, None)
    if entry != NO_ENTRY:
        entries[name] = entry


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 # its content is wrong
    return found


def encode_entry(name: str, entry: QueueEntry) -> bytes:
    """Return the line of an entry; that of `NO_ENTRY` ends what earlier lines say."""
    fields: dict[str, Any] = {"name": name}
    if entry.paused:
        fields["paused"] = str(entry.paused)
    if entry.declared is not None:
        fields["declared"] = entry.declared.model_dump(exclude_unset=True)
    return checked_line(json.dumps(fields, ensure_ascii=False).encode())


def _entry(fields: dict[str, Any]) -> QueueEntry:
    paused, settings = fields.pop("paused", None), fields.pop("declared", None)
    if fields:
        raise ValueError(f"unknown fields: {', '.join(fields)}")
    return QueueEntry(
        Paused.NOTHING if paused is None else Paused.parse(paused),
        None if settings is None else declaration(settings),
    )


def declaration(settings: Mapping[str, Any]) -> QueueConfig:
    """Return the settings that a client declares. Raises InvalidDeclaration."""
    try:
        declared = QueueConfig.model_validate(settings)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidDeclaration(
            "; ".join(
                f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
                for one in problems
            )
        ) from None
    check_declarable(declared)
    return declared


def check_declarable(settings: QueueConfig) -> None:
    """Raise InvalidDeclaration if settings are given that clients may not declare."""
    others = settings.model_fields_set - DECLARABLE
    if others:
        raise InvalidDeclaration(f"clients may not declare {', '.join(sorted(others))}")
