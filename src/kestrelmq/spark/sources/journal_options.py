"""Options of `kestrel.journal` and `kestrel.queue`, and their validation.

This module does not need Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from kestrelmq.spark.given_options import (
    GivenOptions,
    a_size,
    a_time,
    a_whole_number,
    names,
    one_of,
    option,
)
from kestrelmq.spark.sources.queue_choice import QueueChoice
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import a_boolean
from kestrelmq.units import parse_time

Mode = Literal["failfast", "permissive", "dropmalformed"]
Starting = Literal["earliest", "latest"] | int
"""Where a stream begins; an int is a time (ms since the epoch)."""

DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_DIRECT_BYTES: Final = 256 << 20
DEFAULT_BATCH_BYTES: Final = 128 << 20
_STREAMS_ONLY: Final = frozenset(
    {"startingoffsets", "failondataloss", "maxbytespertrigger", "wait"}
)
_READ: Final = "a queue path, a journal file, or a glob of either"
_MAX_BATCH_ROWS: Final = 1_000_000

Options = TypeVar("Options", bound="SpoolOptions")


def _starting(value: str) -> Starting:
    match value.lower():
        case "earliest" | "latest" as word:
            return word
    try:
        return parse_time(value)
    except ValueError:
        raise ValueError(
            "earliest, latest, or a time such as 2026-01-31T10:00 (UTC) or 1769853600000 (ms)"
        ) from None


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """What all options of reading journals are.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        mode: what to do at damage: `failfast` raises, `permissive` yields a row that describes it,
            `dropmalformed` ends the file there, or leaves the queue out.
        partition_bytes: small files share a partition up to this size; a larger file gets its own.
        batch_rows: maximum number of rows in an Arrow batch.
        columns: the columns of the table, if no schema is given; None means all.
        queues: the queues to read; None means all.
    """

    path: JournalPath
    mode: Mode = option("mode", one_of(get_args(Mode)), "failfast")
    partition_bytes: int = option("partitionBytes", a_size, 64 << 20)
    batch_rows: int = option("batchRows", a_whole_number(_MAX_BATCH_ROWS), DEFAULT_BATCH_ROWS)
    columns: tuple[str, ...] | None = option("columns", names)
    queues: QueueChoice | None = option("queue", QueueChoice.parse)

    def chooses(self, queue: str) -> bool:
        """Whether a queue is to be read."""
        return self.queues is None or self.queues.matches(queue)


@dataclass(frozen=True, slots=True)
class JournalReadOptions(SpoolOptions):
    """Options of reading `kestrel.journal`.

    Attributes:
        pushdown: apply Spark's filters here; needs `spark.sql.python.filterPushdown.enabled`.
    """

    pushdown: bool = option("pushdown", a_boolean, False)


@dataclass(frozen=True, slots=True)
class JournalStreamOptions(SpoolOptions):
    """Options of reading `kestrel.journal` as a stream; a path of a file means its queue.

    Attributes:
        starting: where a new query begins.
        fails_on_loss: whether the query fails if files are gone that it has not read; otherwise
            that is logged.
        max_bytes_per_batch: approximate maximum of bytes of journal in a batch.
        wait: seconds that the driver waits for something new; a look at very many files may need
            longer pauses.
    """

    starting: Starting = option("startingOffsets", _starting, "earliest")
    fails_on_loss: bool = option("failOnDataLoss", a_boolean, True)
    max_bytes_per_batch: int = option("maxBytesPerTrigger", a_size, DEFAULT_BATCH_BYTES)
    wait: float = option("wait", a_time, 1.0)


@dataclass(frozen=True, slots=True)
class QueueReadOptions(SpoolOptions):
    """Options of reading `kestrel.queue`.

    Attributes:
        direct_bytes: one task replays a queue whose journal is one file or at most this large; any
            other queue is planned first, its files in parallel.
        delayed: whether delayed items are rows, too.
    """

    direct_bytes: int = option("directBytes", a_size, DEFAULT_DIRECT_BYTES)
    delayed: bool = option("delayed", a_boolean, True)


def journal_read_options(given: Mapping[str, str]) -> JournalReadOptions:
    """Validate the options of reading `kestrel.journal`. Raises ConfigError."""
    return _validated(JournalReadOptions, "reading kestrel.journal", given)


def journal_stream_options(given: Mapping[str, str]) -> JournalStreamOptions:
    """Validate the options of reading `kestrel.journal` as a stream. Raises ConfigError."""
    return _validated(JournalStreamOptions, "reading kestrel.journal as a stream", given)


def journal_options(given: Mapping[str, str]) -> JournalReadOptions | JournalStreamOptions:
    """Return the options of reading `kestrel.journal`, as a table or as a stream.

    Raises ConfigError: it tells the options of both, because Spark does not tell which it is.
    """
    either = GivenOptions("reading kestrel.journal", given)
    either.journals(_READ)
    either.checked([either.of(kind) for kind in (JournalReadOptions, JournalStreamOptions)])
    if any(name.lower() in _STREAMS_ONLY for name in given):
        return journal_stream_options(given)
    return journal_read_options(given)


def queue_read_options(given: Mapping[str, str]) -> QueueReadOptions:
    """Validate the options of reading `kestrel.queue`. Raises ConfigError."""
    return _validated(QueueReadOptions, "reading kestrel.queue", given)


def _validated(kind: type[Options], purpose: str, given: Mapping[str, str]) -> Options:
    options = GivenOptions(purpose, given)
    path = options.journals(_READ)
    return options.checked(kind(path, **options.of(kind)))


def journal_write_path(given: Mapping[str, str]) -> JournalPath:
    """Return the queue path to write, the only option of writing `kestrel.journal`; no glob.

    Raises ConfigError.
    """
    options = GivenOptions("writing kestrel.journal", given)
    return options.checked(options.journals("a queue path (a directory)"))
