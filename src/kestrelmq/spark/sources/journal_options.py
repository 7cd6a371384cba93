"""Options of `kestrel.journal` and `kestrel.queue`, and their validation.

This module does not need Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from kestrelmq.spark.given_options import (
    GivenOptions,
    a_size,
    a_time,
    a_whole_number,
    names,
    one_of,
)
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import a_boolean
from kestrelmq.units import parse_time

Mode = Literal["failfast", "permissive", "dropmalformed"]

DEFAULT_PARTITION_BYTES: Final = 64 << 20
DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_DIRECT_BYTES: Final = 256 << 20
DEFAULT_BATCH_BYTES: Final = 128 << 20
DEFAULT_WAIT: Final = 1.0
_STREAMS_ONLY: Final = frozenset(
    {"startingoffsets", "failondataloss", "maxbytespertrigger", "wait"}
)
_MAX_BATCH_ROWS: Final = 1_000_000
_JOURNALS: Final = "a queue path, a journal file, or a glob of either"


@dataclass(frozen=True, slots=True)
class JournalReadOptions:
    """Options of reading `kestrel.journal`.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        mode: what to do at damage: `failfast` raises, `permissive` yields a row that describes it,
            `dropmalformed` ends the file there.
        partition_bytes: small files share a partition up to this size; a larger file gets its own.
        batch_rows: maximum number of records in an Arrow batch.
        pushdown: apply Spark's filters here; needs `spark.sql.python.filterPushdown.enabled`.
        columns: the columns of the table, if no schema is given; None means all.
    """

    path: JournalPath
    mode: Mode = "failfast"
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    pushdown: bool = False
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JournalStreamOptions:
    """Options of reading `kestrel.journal` as a stream.

    Attributes:
        path: a queue path, a journal file, or a glob of either; a file means its queue.
        mode: as for reading a table.
        partition_bytes: as for reading a table.
        batch_rows: as for reading a table.
        starting: where the stream begins: `earliest`, `latest`, or a time (ms since the epoch).
        fails_on_loss: whether the query fails if files are gone that it has not read.
        max_bytes_per_batch: approximate maximum of bytes of journal in a batch.
        wait: seconds that the driver waits for something new.
        columns: as for reading a table.
    """

    path: JournalPath
    mode: Mode = "failfast"
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    starting: Literal["earliest", "latest"] | int = "earliest"
    fails_on_loss: bool = True
    max_bytes_per_batch: int = DEFAULT_BATCH_BYTES
    wait: float = DEFAULT_WAIT
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class QueueReadOptions:
    """Options of reading `kestrel.queue`.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        partition_bytes: as for `kestrel.journal`.
        batch_rows: maximum number of items in an Arrow batch.
        direct_bytes: one task replays a queue whose journal is one file or at most this large; any
            other queue is planned first, its files in parallel.
        delayed: whether delayed items are rows, too.
        mode: what to do with a damaged queue: `failfast` raises, `permissive` yields a row that
            describes the damage, `dropmalformed` leaves the queue out.
        columns: as for `kestrel.journal`.
    """

    path: JournalPath
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    direct_bytes: int = DEFAULT_DIRECT_BYTES
    delayed: bool = False
    mode: Mode = "failfast"
    columns: tuple[str, ...] | None = None


def journal_read_options(given: Mapping[str, str]) -> JournalReadOptions:
    """Validate the options of reading `kestrel.journal`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel.journal", given)
    return options.checked(
        JournalReadOptions(
            path=options.journals(_JOURNALS),
            mode=_mode(options),
            partition_bytes=_partition_bytes(options),
            batch_rows=_batch_rows(options),
            pushdown=options.take("pushdown", False, a_boolean),
            columns=_columns(options),
        )
    )


def journal_stream_options(given: Mapping[str, str]) -> JournalStreamOptions:
    """Validate the options of reading `kestrel.journal` as a stream.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel.journal as a stream", given)
    earliest: Literal["earliest", "latest"] | int = "earliest"
    return options.checked(
        JournalStreamOptions(
            path=options.journals(_JOURNALS),
            mode=_mode(options),
            partition_bytes=_partition_bytes(options),
            batch_rows=_batch_rows(options),
            starting=options.take("startingOffsets", earliest, _starting),
            fails_on_loss=options.take("failOnDataLoss", True, a_boolean),
            max_bytes_per_batch=options.take("maxBytesPerTrigger", DEFAULT_BATCH_BYTES, a_size),
            wait=options.take("wait", DEFAULT_WAIT, a_time),
            columns=_columns(options),
        )
    )


def _mode(options: GivenOptions) -> Mode:
    return cast(Mode, options.take("mode", "failfast", one_of(get_args(Mode))))


def _columns(options: GivenOptions) -> tuple[str, ...] | None:
    every: tuple[str, ...] | None = None
    return options.take("columns", every, names)


def _partition_bytes(options: GivenOptions) -> int:
    return options.take("partitionBytes", DEFAULT_PARTITION_BYTES, a_size)


def _batch_rows(options: GivenOptions) -> int:
    return options.take("batchRows", DEFAULT_BATCH_ROWS, a_whole_number(_MAX_BATCH_ROWS))


def journal_options(given: Mapping[str, str]) -> JournalReadOptions | JournalStreamOptions:
    """Return the options of reading `kestrel.journal`, as a table or as a stream.

    Raises:
        ConfigError: the options are not allowed.
    """
    if any(name.lower() in _STREAMS_ONLY for name in given):
        return journal_stream_options(given)
    return journal_read_options(given)


def _starting(value: str) -> Literal["earliest", "latest"] | int:
    """Parse where a stream begins: `earliest`, `latest` or a time (ms since the epoch)."""
    match value.lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    try:
        return parse_time(value)
    except ValueError:
        raise ValueError(
            "earliest, latest, or a time such as 2026-01-31T10:00 (UTC) or 1769853600000 (ms)"
        ) from None


def queue_read_options(given: Mapping[str, str]) -> QueueReadOptions:
    """Validate the options of reading `kestrel.queue`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel.queue", given)
    return options.checked(
        QueueReadOptions(
            path=options.journals(_JOURNALS),
            partition_bytes=_partition_bytes(options),
            batch_rows=_batch_rows(options),
            direct_bytes=options.take("directBytes", DEFAULT_DIRECT_BYTES, a_size),
            delayed=options.take("delayed", False, a_boolean),
            mode=_mode(options),
            columns=_columns(options),
        )
    )


def journal_write_path(given: Mapping[str, str]) -> JournalPath:
    """Return the queue path to write, the only option of writing `kestrel.journal`; no glob.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("writing kestrel.journal", given)
    return options.checked(options.journals("a queue path (a directory)"))
