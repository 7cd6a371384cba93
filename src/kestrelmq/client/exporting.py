"""Exports and imports of both clients: the parts that need no server."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kestrelmq.client.address import Address
from kestrelmq.clock import SystemClock
from kestrelmq.errors import JournalError
from kestrelmq.tools.export_rows import ExportRow, live_rows

EXPORTED_AT_ONCE: Final = 1000
"""The most items that one request of an export returns."""
_BATCH_BYTES: Final = 1 << 20
"""No further items are added together with so many bytes."""


@dataclass(frozen=True, slots=True)
class ExportPlace:
    """Where an export goes on: at a place of the queue of the first of these servers."""

    servers: tuple[Address, ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class ExportPage:
    """Some lines of an export, and where to go on; None at the end."""

    lines: list[str]
    following: ExportPlace | None


def import_batches(
    lines: Iterable[str | bytes], queue: str | None, most: int
) -> Iterator[list[ExportRow]]:
    """Yield rows that are added together: at most so many of one queue that follow each other.

    `queue` gets all of them if it is given. Raises as `live_rows`, behind what comes before.
    """
    batch: list[ExportRow] = []
    size = 0
    wrong: Exception | None = None
    try:
        for row in live_rows(lines, queue, SystemClock().now):
            if batch and (
                row.queue != batch[0].queue or len(batch) == most or size >= _BATCH_BYTES
            ):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += len(row.data)
    except (JournalError, OSError, UnicodeDecodeError) as error:
        wrong = error
    if batch:
        yield batch
    if wrong is not None:
        raise wrong
