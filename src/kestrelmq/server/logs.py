"""The log: one event per line, as text for people or as JSON for machines.

A line of JSON has the fields `time` (RFC 3339, in UTC), `level`, `logger` and `message`, and the
fields that the event was logged with (`extra`): above all `queue`, `peer` and `protocol`.
"""

import json
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from io import TextIOWrapper
from multiprocessing import current_process
from pathlib import Path
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


class LogFile(logging.FileHandler):
    """A log file; a new one may be read by its owner and group only.

    What cannot be written, because the disk is full for instance, is lost; standard error says so.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self._throttle = LogThrottle()
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # A pipe that nobody reads is an error; the server would wait for a reader for ever.
        descriptor = os.open(self.baseFilename, flags | os.O_NONBLOCK, _MODE)
        os.set_blocking(descriptor, True)
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)  # noqa: PTH123 # it is open already

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 # logging's name
        """Say now and then that the file cannot be written; any other error is a bug."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        lost = self._throttle.count(self.baseFilename)
        if lost:
            with suppress(OSError, ValueError, AttributeError):
                reason = error.strerror or error
                sys.stderr.write(f"{self.baseFilename}: {reason}; events are not logged: {lost}\n")


def set_up_logging(config: ServerConfig) -> None:
    """Log as `config` says from now on; a log file is opened again.

    Raises OSError if that fails; everything is logged as before then.
    """
    if config.log_file is None:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        handler = LogFile(config.log_file)
    text = _TEXT if current_process().name == _UNNAMED_PROCESS else _TEXT_WITH_PROCESS
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter(text))
    root = logging.getLogger()
    before = root.handlers[:]
    root.addHandler(handler)
    for old in before:
        root.removeHandler(old)
        # A file that could not be written still cannot; that must not end the log.
        with suppress(OSError):
            old.close()
    root.setLevel(config.log_level.upper())
