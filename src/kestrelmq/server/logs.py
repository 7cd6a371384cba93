"""Logs: one event a line, for people or for machines."""

import json
import logging
import sys
from multiprocessing import current_process

from kestrelmq.config import ServerConfig

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TEXT_OF_ONE = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"
_ONLY = "MainProcess"
"""What Python calls a process that nobody gave a name."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        event: dict[str, str | None] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.processName != _ONLY:
            event["process"] = record.processName
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line of text; what would begin a new line is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up_logging(config: ServerConfig) -> None:
    """Log as `config` says, from now on; a log file is opened anew."""
    if config.log_file is None:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.FileHandler(config.log_file, encoding="utf-8")
    text = _TEXT if current_process().name == _ONLY else _TEXT_OF_ONE
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter(text))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(config.log_level.upper())
