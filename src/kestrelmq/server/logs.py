"""The log: one event per line, as text for people or as JSON for machines.

A line of JSON has the fields `time` (RFC 3339, in UTC), `level`, `logger` and `message`, and the
fields that the event was logged with (`extra`): above all `queue`, `peer` and `protocol`.
"""

import json
import logging
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from multiprocessing import current_process
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final

from kestrelmq.config import ServerConfig
from kestrelmq.units import format_time

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TEXT_WITH_PROCESS = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"
_UNNAMED_PROCESS = "MainProcess"
"""Python's name for a process that was given none."""
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES: Final = {code: repr(chr(code))[1:-1] for code in _CONTROLS if chr(code) != "\t"}
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What a record has besides the fields that the event was logged with."""
_MODE: Final = 0o640
MOST_LINES: Final = 10_000
"""Lines of the log that wait to be written; further ones are dropped."""
_END_SECONDS: Final = 1.0
"""Seconds that the process waits at its end for lines that are not written yet."""
_LOG_PERIOD: Final = 10.0
_MOST_KEYS: Final = 1024


class JsonFormatter(logging.Formatter):
    """Formats an event as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        event: dict[str, object] = {
            "time": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.processName != _UNNAMED_PROCESS:
            event["process"] = record.processName
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _OF_EVERY_RECORD:
                event.setdefault(name, value)
        return json.dumps(event, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats an event as one line of text; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        return super().format(record).translate(_ESCAPES)


class LogThrottle:
    """Limits how often events of one kind are logged: once in `_LOG_PERIOD` seconds for each key.

    When there are very many keys, the least recently used are forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def count(self, key: Hashable) -> int:
        """Count an event; return how many there were since the last log line, 0 to log none now."""
        now = self._clock()
        logged, count = self._seen.pop(key, (now - _LOG_PERIOD, 0))
        is_due = now - logged >= _LOG_PERIOD
        self._seen[key] = (now, 0) if is_due else (logged, count + 1)
        if len(self._seen) > _MOST_KEYS:
            self._seen.popitem(last=False)
        return count + 1 if is_due else 0


class LogHandler(logging.Handler):
    """Hands each event, formatted, to a thread that writes it to a file or to standard error.

    The loop must not wait for a pipe that nobody reads, or for a disk that hangs. Meanwhile
    `MOST_LINES` wait; further ones are dropped, and their number is logged once the others are
    written. What cannot be written, because the disk is full for instance, is lost; standard error
    says so.

    The thread takes no lock while it writes, not even one of a buffer: the interpreter would wait
    for it when it ends.

    Attributes:
        descriptor: what is written to; the thread closes it.
    """

    def __init__(self, path: Path | None) -> None:
        """Begin to log to the file `path`; with None, to standard error.

        A new file may be read by its owner and group only. Raises OSError.
        """
        self._path = path
        self._throttle = LogThrottle()
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._dropped = 0
        self.descriptor = _opened(path)
        self._thread = Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()
        super().__init__()  # last, because `logging` closes at the end whatever it has heard of

    def emit(self, record: logging.LogRecord) -> None:
        """Format an event for the thread, or drop it if too many wait."""
        if self._lines.qsize() >= MOST_LINES:
            self._dropped += 1
            return
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 # a bug where it was logged
            line = f"an event was not logged: {traceback.format_exc()!r}"
        self._lines.put(line)

    def end(self) -> None:
        """Write what waits, and close the file; this does not wait for it."""
        self._lines.put(None)

    def close(self) -> None:
        """End the thread, as `end`, and wait for it, but not long."""
        self.end()
        self._thread.join(_END_SECONDS)
        super().close()

    # --- in the thread ---

    def _write_all(self) -> None:
        reported = 0
        while (line := self._lines.get()) is not None:
            self._write(line)
            lost = self._dropped - reported
            if lost and self._lines.empty():
                reported += lost
                text = "%d events were not logged: the log was not written fast enough"
                fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
                self._write(
                    self.format(logging.makeLogRecord(fields | {"msg": text, "args": (lost,)}))
                )
        os.close(self.descriptor)

    def _write(self, line: str) -> None:
        try:
            _write_to(self.descriptor, f"{line}\n")
        except OSError as error:
            lost = self._throttle.count(None)
            if lost and self._path is not None and sys.stderr is not None:
                reason = error.strerror or error
                with suppress(OSError):
                    _write_to(2, f"{self._path}: {reason}; events are not logged: {lost}\n")


def _opened(path: Path | None) -> int:
    """Return a descriptor of the file `path`, or of standard error, even if that is closed."""
    if path is None:
        return os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else os.dup(2)
    # A pipe that nobody reads is an error; the server would wait for a reader for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    descriptor = os.open(path, flags, _MODE)
    os.set_blocking(descriptor, True)
    return descriptor


def _write_to(descriptor: int, text: str) -> None:
    rest = memoryview(text.encode(errors="backslashreplace"))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def set_up_logging(config: ServerConfig) -> None:
    """Log as `config` says from now on.

    Raises OSError if that fails; everything is logged as before then.
    """
    handler = LogHandler(config.log_file)
    text = _TEXT if current_process().name == _UNNAMED_PROCESS else _TEXT_WITH_PROCESS
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter(text))
    root = logging.getLogger()
    before = root.handlers[:]
    root.addHandler(handler)
    for old in before:
        root.removeHandler(old)
        if isinstance(old, LogHandler):
            old.end()
    root.setLevel(config.log_level.upper())


def reopen_log(config: ServerConfig) -> None:
    """Open the log file again, if there is one.

    Raises OSError if that fails; everything is logged as before then.
    """
    if config.log_file is not None:
        set_up_logging(config)
