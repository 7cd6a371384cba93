"""Options of `kestrel.journal` and `kestrel.queue`, and their validation.

This module does not need Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

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
class SpoolOptions:
    """What all options of reading journals are.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        mode: what to do at damage: `failfast` raises, `permissive` yields a row that describes it,
            `dropmalformed` ends the file there, or leaves the queue out.
        partition_bytes: small files share a partition up to this size; a larger file gets its own.
        batch_rows: maximum number of rows in an Arrow batch.
        columns: the columns of the table, if no schema is given; None means all.
    """

    path: JournalPath
    mode: Mode = "failfast"
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class JournalReadOptions(SpoolOptions):
    """Options of reading `kestrel.journal`.

    Attributes:
        pushdown: apply Spark's filters here; needs `spark.sql.python.filterPushdown.enabled`.
    """

    pushdown: bool = False


@dataclass(frozen=True, slots=True)
class JournalStreamOptions(SpoolOptions):
    """Options of reading `kestrel.journal` as a stream; a path of a file means its queue.

    Attributes:
        starting: where the stream begins: `earliest`, `latest`, or a time (ms since the epoch).
        fails_on_loss: whether the query fails if files are gone that it has not read.
        max_bytes_per_batch: approximate maximum of bytes of journal in a batch.
        wait: seconds that the driver waits for something new.
    """

    starting: Literal["earliest", "latest"] | int = "earliest"
    fails_on_loss: bool = True
    max_bytes_per_batch: int = DEFAULT_BATCH_BYTES
    wait: float = DEFAULT_WAIT


@dataclass(frozen=True, slots=True)
class QueueReadOptions(SpoolOptions):
    """Options of reading `kestrel.queue`.

    Attributes:
        direct_bytes: one task replays a queue whose journal is one file or at most this large; any
            other queue is planned first, its files in parallel.
        delayed: whether delayed items are rows, too.
    """

    direct_bytes: int = DEFAULT_DIRECT_BYTES
    delayed: bool = False


def journal_read_options(given: Mapping[str, str]) -> JournalReadOptions:
    """Validate the options of reading `kestrel.journal`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel.journal", given)
    return options.checked(
        JournalReadOptions(**_of_all(options), pushdown=options.take("pushdown", False, a_boolean))
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
            **_of_all(options),
            starting=options.take("startingOffsets", earliest, _starting),
            fails_on_loss=options.take("failOnDataLoss", True, a_boolean),
            max_bytes_per_batch=options.take("maxBytesPerTrigger", DEFAULT_BATCH_BYTES, a_size),
            wait=options.take("wait", DEFAULT_WAIT, a_time),
        )
    )


def _of_all(options: GivenOptions) -> dict[str, Any]:
    """Return the fields of `SpoolOptions`."""
    every: tuple[str, ...] | None = None
    return {
        "path": options.journals(_JOURNALS),
        "mode": options.take("mode", "failfast", one_of(get_args(Mode))),
        "partition_bytes": options.take("partitionBytes", DEFAULT_PARTITION_BYTES, a_size),
        "batch_rows": options.take(
            "batchRows", DEFAULT_BATCH_ROWS, a_whole_number(_MAX_BATCH_ROWS)
        ),
        "columns": options.take("columns", every, names),
    }


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
            **_of_all(options),
            direct_bytes=options.take("directBytes", DEFAULT_DIRECT_BYTES, a_size),
            delayed=options.take("delayed", False, a_boolean),
        )
    )


def journal_write_path(given: Mapping[str, str]) -> JournalPath:
    """Return the queue path to write, the only option of writing `kestrel.journal`; no glob.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("writing kestrel.journal", given)
    return options.checked(options.journals("a queue path (a directory)"))
