"""Log records that wait until a lock is free.

A handler of the program's may need the same lock: it may store records in a queue, or wait for a
thread that does. So nothing is logged while a lock is held. What a thread logs during
`log_afterwards` is kept, and goes to the handlers at the end.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")


class _Held(threading.local):
    records: list[logging.LogRecord] | None = None
    """What the thread has logged meanwhile; None if it need not wait."""


_held: Final = _Held()


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module whose records can wait."""
    log = logging.getLogger(name)
    log.addFilter(_may_pass)
    return log


def _may_pass(record: logging.LogRecord) -> bool:
    if _held.records is None:
        return True
    _held.records.append(record)
    return False


def log_afterwards(work: Callable[[], T]) -> T:
    """Do some work, and let this thread log only when it is done, or has failed."""
    if _held.records is not None:
        return work()
    try:
        _held.records = []
        return work()
    finally:
        records, _held.records = _held.records, None
        for record in records or ():
            logging.getLogger(record.name).handle(record)
