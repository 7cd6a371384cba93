"""What clients have set for single queues, kept over a restart in the side file `~~queues`.

It is in force as soon as it is set; `save` tells when it is on disk. The file is replaced as a
whole, by a worker. One write covers all that was set before it began, so many clients that set
something at the same time wait for few writes. There is no file until something is set.

A crash leaves the old file or the new one, and perhaps a temporary that the next write overwrites.
A file that cannot be used is renamed and kept; what it said is then not in force, and no item is
lost. `docs/journal.md` describes its bytes.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from kestrelmq.clock import Clock, Pause
from kestrelmq.config import QueueConfig
from kestrelmq.engine.paused import Paused
from kestrelmq.engine.worker import InlineWorker, Worker
from kestrelmq.errors import InvalidDeclaration, JournalError
from kestrelmq.held_logs import get_logger
from kestrelmq.journal.files import Directory, mapped, replace_file
from kestrelmq.journal.names import DAMAGED, QUEUES_NAME, temporary_name
from kestrelmq.names import queue_name_error

_VERSION: Final = 1
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
        # How often an entry was set; the value of that in the file; and those who wait for more.
        self._changes = self._saved = 0
        self._waiting: list[SaveDone] = []
        self._is_writing = False

    def load(self) -> None:
        """Read the file, if there is one; one that cannot be used is set aside."""
        try:
            with mapped(self._directory.path / QUEUES_NAME, self._directory.open) as content:
                entries = decode(bytes(content))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._set_aside(str(error))
            return
        for name, entry in entries.items():
            self.put(name, entry)
        self._saved = self._changes

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
        self._changes += 1
        self.declared.pop(name, None)
        if entry.declared is not None:
            self.declared[name] = entry.declared
        if entry == NO_ENTRY:
            del self._entries[name], self._lines[name]
        else:
            self._entries[name] = entry
            self._lines[name] = encode_entry(name, entry)

    # --- writing ---

    def save(self, done: SaveDone) -> None:
        """Call `done` when all that is set now is on disk, or could not be written.

        A later `save` tries again what could not be written.
        """
        self._waiting.append(done)
        if not self._is_writing:
            self._write()

    def _write(self) -> None:
        """Write the file for those who wait, if it differs from what is set."""
        waiting, self._waiting = self._waiting, []
        if self._saved == self._changes:
            _tell(waiting, None)
            return
        self._is_writing = True
        self.worker.run(
            partial(self._replace, list(self._lines.values())),
            partial(self._written, self._changes, waiting),
        )

    def _replace(self, lines: Iterable[bytes], _pause: Pause) -> None:
        replace_file(self._directory, QUEUES_NAME, encode(lines))

    def _written(self, changes: int, waiting: list[SaveDone], error: BaseException | None) -> None:
        self._is_writing = False
        if error is None:
            self._saved = changes
        else:
            log.error("%s cannot be written: %s", self._directory.path / QUEUES_NAME, error)
        _tell(waiting, error)
        if self._waiting and not self._is_writing:
            self._write()


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
    body = b"".join(lines)
    head = {"kestrelmq": "queues", "version": _VERSION, "crc32": zlib.crc32(body)}
    return json.dumps(head).encode() + b"\n" + body


def decode(content: bytes) -> dict[str, QueueEntry]:
    """Return the entries in the content of a file. Raises ValueError: it is damaged."""
    first, _, body = content.partition(b"\n")
    head = _object(first, "the first line")
    if head.get("kestrelmq") != "queues" or head.get("version") != _VERSION:
        raise ValueError(f"its first line is not that of a file of version {_VERSION}")
    if head.get("crc32") != zlib.crc32(body):
        raise ValueError("its checksum is wrong")
    entries = {}
    for number, line in enumerate(body.splitlines(), 2):
        fields = _object(line, f"line {number}")
        name = fields.pop("name", None)
        if not isinstance(name, str) or queue_name_error(name) is not None:
            raise ValueError(f"line {number} has no name of a queue")
        try:
            entries[name] = _entry(fields)
        except (ValueError, InvalidDeclaration) as error:
            raise ValueError(f"line {number}: {error}") from None
    return entries


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} is not a JSON object")  # noqa: TRY004 # its content is wrong
    return found


def encode_entry(name: str, entry: QueueEntry) -> bytes:
    """Return the line of an entry."""
    fields: dict[str, Any] = {"name": name}
    if entry.paused:
        fields["paused"] = str(entry.paused)
    if entry.declared is not None:
        fields["declared"] = entry.declared.model_dump(exclude_unset=True)
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


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
