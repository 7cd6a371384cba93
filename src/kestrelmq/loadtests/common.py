"""The common parts of the load tests: the target, preparing queues, jobs, the outcome."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelmq.client.address import Address
from kestrelmq.loadtests.connections import (
    Connect,
    Credentials,
    LoadConnection,
    LoadTestError,
    WireProtocol,
)
from kestrelmq.loadtests.items import ItemSet, Receipts, Verdict
from kestrelmq.loadtests.workers import (
    WAIT_SECONDS,
    Job,
    ShowProgress,
    WorkerPool,
    WorkerTally,
    open_connections,
)

READ_BACK_ITEMS: Final = 100
"""Items read back in one round trip."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server and queue that a load test runs against.

    Attributes:
        connect: makes a connection to the server.
        queue: the queue, which must be empty.
        run: a unique word for this run, which is part of its items.
        show_progress: shows the progress of a phase.
        flush: whether to flush the queue if it is not empty, instead of refusing to run.
        patience: seconds without progress after which the missing items count as lost.
    """

    connect: Connect
    queue: str
    run: str
    show_progress: ShowProgress
    flush: bool = False
    patience: float = 10.0

    def pool(self, pause: float = 0.0) -> WorkerPool:
        """Return the worker pool for one phase, in which producers pause for `pause` seconds."""
        return WorkerPool(self.connect, self.patience + pause)


@dataclass(frozen=True, slots=True)
class Rate:
    """How many items a phase has moved, how fast, and by whom, if that needs to be said."""

    action: str
    items: int
    seconds: float
    by: str = ""

    def __str__(self) -> str:
        per_second = f", {self.items / self.seconds:,.0f} a second" if self.seconds > 0 else ""
        line = f"{self.action} {several(self.items, 'item')} in {self.seconds:.2f} s{per_second}"
        return f"{line}, by {self.by}" if self.by else line


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a load test: the rates of its phases, and whether every item arrived.

    `notes` are lines about what no rate says.
    """

    rates: Sequence[Rate]
    verdict: Verdict
    notes: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """The lines to print before the verdict."""
        return [*map(str, self.rates), *self.notes]


def prepare(target: Target, queues: Sequence[str]) -> None:
    """Make sure that the queues exist and are empty.

    Raises:
        LoadTestError: a queue is not empty, and it may not be flushed.
    """
    with open_connections(target.connect, 1) as (connection,):
        for queue in queues:
            if target.flush:
                connection.flush(queue)
            if connection.open_read(queue, 0) is not None:
                connection.abort(queue)
                raise LoadTestError(f"queue {queue} is not empty; flush it, or name another queue")


def producer(
    queue: str,
    item_set: ItemSet,
    number: int,
    pool: WorkerPool,
    rollup: int = 1,
    pause: float = 0.0,
) -> Job:
    """Return a job that puts the items of one producer, `rollup` per round trip."""

    def put(connection: LoadConnection, tally: WorkerTally) -> None:
        for items in item_set.batches(number, rollup):
            if pool.failed.wait(pause) if pause else pool.failed.is_set():
                raise LoadTestError(f"gave up: nothing moved for {pool.patience:g} seconds")
            connection.put(queue, items)
            tally.note_put(items)

    return put


def consumer(queue: str, receipts: Receipts, pool: WorkerPool, wait: float = WAIT_SECONDS) -> Job:
    """Return a job that removes items one by one until the pool tells readers to end."""

    def take(connection: LoadConnection, tally: WorkerTally) -> None:
        while not pool.readers_done.is_set():
            items = connection.take(queue, 1, wait)
            tally.note_read(items)
            receipts.take(items)

    return take


def read_back(
    connection: LoadConnection, queue: str, receipts: Receipts, count: int, show: Callable[[], None]
) -> None:
    """Remove `count` items, or fewer if the queue is empty; call `show` after each round trip."""
    begun = len(receipts.received)
    while (left := count - len(receipts.received) + begun) > 0:
        items = connection.take(queue, min(left, READ_BACK_ITEMS), WAIT_SECONDS)
        if not items:
            return
        receipts.take(items)
        show()


def remainder(target: Target, queue: str, item_set: ItemSet) -> Receipts:
    """Remove the items that are still in the queue, where there should be none."""
    receipts = Receipts(item_set)
    with open_connections(target.connect, 1) as (connection,):
        while items := connection.take(queue, READ_BACK_ITEMS):
            receipts.take(items)
    return receipts


def several(count: int, what: str) -> str:
    """Return a count with its noun, in the plural if needed."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def connector(
    protocol: WireProtocol,
    address: Address,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> Connect:
    """Return a function that makes connections to a server; it may raise LoadTestError.

    With `credentials`, a user and a password, they sign in; with `tls`, they speak that.
    """
    # Imported here, so that a test in one protocol does not import the others.
    match protocol:
        case WireProtocol.MEMCACHE:
            from kestrelmq.loadtests.memcache_connection import MemcacheConnection  # noqa: PLC0415 # as above

            return lambda: MemcacheConnection(address, credentials, tls)
        case WireProtocol.TEXT:
            from kestrelmq.loadtests.text_connection import TextConnection  # noqa: PLC0415 # as above

            return lambda: TextConnection(address, credentials, tls)
        case WireProtocol.THRIFT:
            from kestrelmq.loadtests.thrift_connection import ThriftConnection  # noqa: PLC0415 # as above

            return lambda: ThriftConnection(address, credentials, tls)
