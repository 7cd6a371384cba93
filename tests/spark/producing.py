"""A producer in a process of its own, which a test may kill: it notes what was stored.

    python -m tests.spark.producing SERVERS QUEUE LOG FIRST

Items are numbers from FIRST on. Each that a server said it stored is a line of LOG. An add without
a reply is not repeated: whether that item is there is not known.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from kestrelmq.client import Client
from kestrelmq.errors import ClientError

BATCH: Final = 20
RANGE: Final = 1_000_000
"""No producer adds as many items in a test."""


class Producer:
    """The process; when it was killed, `start` starts another, with numbers of its own."""

    process: "subprocess.Popen[bytes]"

    def __init__(self, servers: str, queue: str, log: Path) -> None:
        self._words = [servers, queue, str(log)]
        self._log = log
        self._starts = 0

    def start(self) -> "Producer":
        """Start it."""
        words = [*self._words, str(self._starts * RANGE)]
        self._starts += 1
        self.process = subprocess.Popen([sys.executable, "-m", "tests.spark.producing", *words])
        return self

    def kill9(self) -> None:
        """Kill it at once."""
        self.process.kill()
        self.process.wait()

    def stored(self) -> set[bytes]:
        """Return the items that are stored for sure."""
        return set(self._log.read_bytes().split(b"\n")[:-1])


def main(servers: str, queue: str, log: Path, first: int) -> None:
    """Add items until killed."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    number = first
    with Client(servers) as client:
        while True:
            items = [b"%d" % n for n in range(number, number + BATCH)]
            number += BATCH
            try:
                stored: list[bool | None] = list(client.put_many(queue, items))
            except ClientError as error:
                stored = list(error.stored)
            done = [item for item, is_in in zip(items, stored, strict=False) if is_in]
            os.write(descriptor, b"".join(item + b"\n" for item in done))
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
