"""Write `kestrel`: add rows to queues as items, on any of the servers that accepts them.

Items are written at least once: a failed task is run again from its beginning, and an add whose
reply was lost is sent again. A full queue is not a failure: the task waits for room, and so does
everything after it. If no item was stored for the time that the option `patience` gives, the task
fails, and with it the query; when the query is started again, it sends the batch again.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kestrelmq.client import Client
from kestrelmq.client.options import Expiry
from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import (
    ClientError,
    ConfigError,
    InvalidQueueName,
    InvalidRequest,
    KestrelError,
    ServerRefused,
)
from kestrelmq.names import queue_name_error
from kestrelmq.spark import written_columns
from kestrelmq.spark.kestrel_options import KestrelWriteOptions

_COLUMNS: Final = ("queue", "data", "expiry")
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

_log: Final = logging.getLogger("kestrelmq.spark")


class QueueStaysFull(KestrelError):  # noqa: N818 # says what it is
    """No item could be stored for the time that the option `patience` gives."""


class PutClient(Protocol):
    """The part of a client that the sink uses."""

    def put_many(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry = None,
        *,
        delay: float | None = None,
        retry_unknown: bool | None = None,
    ) -> list[bool]:
        """Add items; return for each whether it was stored."""


@dataclass(frozen=True, slots=True)
class ItemsWritten(WriterCommitMessage):
    """A task's message to the driver: the number of items that it wrote."""

    items: int


class ItemSender:
    """Sends items to the servers, again and again until they are stored."""

    def __init__(
        self,
        client: PutClient,
        patience: float,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
        *,
        delay: float | None = None,
    ) -> None:
        """Send to `client`; each item is to wait for `delay` seconds."""
        self._client = client
        self._delay = delay
        self._patience = patience
        self._clock = clock or SystemClock()
        self._pause = pause

    def send(self, queue: str, items: Sequence[bytes], expiry: Expiry = None) -> None:
        """Add items to a queue; return when every one is stored.

        Raises:
            QueueStaysFull: no item was stored for `patience` seconds.
            InvalidRequest: an item cannot be sent.
            ServerRefused: no server would ever accept an item.
        """
        left = list(items)
        pause = _FIRST_PAUSE
        deadline = self._clock.monotonic() + self._patience
        while left:
            reason = "the servers refuse it: the queue is full, or the item is too large"
            try:
                stored: Sequence[bool | None] = self._client.put_many(
                    queue, left, expiry, delay=self._delay, retry_unknown=True
                )
            except ClientError as error:
                hopeless = isinstance(error, InvalidRequest) or (
                    isinstance(error, ServerRefused) and error.kind != "SERVER_ERROR"
                )
                if hopeless:
                    raise
                stored, reason = error.stored, str(error)
            done = sum(outcome is True for outcome in stored)
            if done:
                left = [
                    item
                    for place, item in enumerate(left)
                    if place >= len(stored) or stored[place] is not True
                ]
                pause, deadline = _FIRST_PAUSE, self._clock.monotonic() + self._patience
            if not left:
                return
            if self._clock.monotonic() >= deadline:
                raise QueueStaysFull(
                    f"{len(left)} items of queue {queue!r} could not be stored for "
                    f"{self._patience:g} seconds: {reason}"
                )
            _log.info("%d items of %r wait: %s", len(left), queue, reason)
            self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


class _RowWriter:
    """Writes rows: the common part of the writers of tables and streams."""

    def __init__(self, options: KestrelWriteOptions, schema: StructType) -> None:
        """Prepare a write.

        Raises:
            ConfigError: the columns cannot be written.
        """
        check_columns(schema, queue_given=options.queue is not None)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add the rows of one task."""
        items = 0
        with Client(self._options.cluster.membership()) as client:
            sender = ItemSender(client, self._options.patience, delay=self._options.delay)
            zone = written_columns.session_zone()
            for batch in iterator:
                for queue, expiry, data in grouped(batch, self._options.queue, zone):
                    sender.send(queue, data, expiry)
                items += batch.num_rows
        return ItemsWritten(items)


class KestrelWriter(_RowWriter, DataSourceArrowWriter):
    """Writes a table."""


class KestrelStreamWriter(_RowWriter, DataSourceStreamArrowWriter):
    """Writes a stream. There is nothing to commit: stored items are in their queues."""


def check_columns(schema: StructType, *, queue_given: bool) -> None:
    """Check that rows of `schema` can be written.

    Raises:
        ConfigError: a column is missing, unknown or of a type that is not allowed.
    """
    written_columns.check("writing kestrel", schema, _COLUMNS)
    if queue_given == ("queue" in (name.lower() for name in schema.names)):
        raise ConfigError(
            "writing kestrel: give the queue either as option 'queue' or as column 'queue'"
        )


def grouped(
    batch: pa.RecordBatch, queue: str | None, zone: str = "UTC"
) -> Iterator[tuple[str, datetime | None, list[bytes]]]:
    """Yield a batch's items by queue and expiry, in the batch's order within each queue.

    Args:
        batch: rows of a schema that passed `check_columns`.
        queue: the queue of all rows; None takes it from the column.
        zone: the time zone of dates, and of times without one.

    Raises:
        ValueError: a row has no queue or no data.
        InvalidQueueName: no queue can have that name.
    """
    batch = written_columns.cast(batch, zone)
    names = batch.schema.names
    data = batch.column("data").to_pylist()
    queues = [queue] * len(data) if queue else batch.column("queue").to_pylist()
    expiries = _expiries(batch.column("expiry")) if "expiry" in names else [None] * len(data)
    rows: dict[str, list[tuple[datetime | None, bytes]]] = {}
    for name, expiry, item in zip(queues, expiries, data, strict=True):
        if name is None or item is None:
            raise ValueError(f"column {'queue' if name is None else 'data'!r} must not be null")
        rows.setdefault(name, []).append((expiry, item))
    for name, found in rows.items():
        error = queue_name_error(name)
        if error is not None:
            raise InvalidQueueName(f"column 'queue': {name!r} is not allowed: {error}")
        for expiry, same in groupby(found, key=lambda row: row[0]):
            yield name, expiry, [item for _, item in same]


def _expiries(column: pa.Array) -> list[datetime | None]:
    """Return when items expire, from ms since the epoch; 0 and null mean never."""
    return [
        datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms else None
        for time_ms in column.to_pylist()
    ]
