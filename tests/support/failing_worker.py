"""A worker that fails on some items, as a process that tests kill.

    failing_worker ADDRESS QUEUE LOG

It reserves items one by one for as long as it lives. Each line of the log is ITEM=WORD: the number
of its delivery when work on it begins, and `done` when it was handled. A line is there before the
server is told, so it is there whatever is killed next.
"""

import os
import sys
from contextlib import suppress

from kestrelmq.client import Client, ClientOptions
from kestrelmq.errors import ClientError

LEASE = 5.0
"""Seconds after which an item comes back whose worker was killed while there was no server."""


class WorkError(Exception):
    """The work on an item failed."""


def is_bad(item: bytes) -> bool:
    """Whether workers fail on an item: on one in a hundred."""
    return item.endswith(b"00")


def work(client: Client, queue: str, log: int) -> None:
    """Wait for an item and handle it, or fail to."""
    with client.reserve(queue, timeout=1, lease=LEASE) as item:
        if item is None:
            return
        assert item.deliveries is not None
        os.write(log, b"%b=%d\n" % (item, item.deliveries))
        if is_bad(item):
            raise WorkError
        os.write(log, b"%b=done\n" % item)


def main() -> None:
    """Work until the process is killed."""
    address, queue, file = sys.argv[1:]
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Client(address, options=ClientOptions(restart_patience=LEASE)) as client:
        while True:
            with suppress(WorkError, ClientError):
                work(client, queue, log)
