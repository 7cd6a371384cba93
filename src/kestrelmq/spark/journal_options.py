"""Options of `kestrel.journal` and `kestrel.queue`, and their validation.

This module does not need Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from kestrelmq.spark.given_options import GivenOptions, a_boolean, a_size, a_whole_number, one_of

Mode = Literal["failfast", "permissive", "dropmalformed"]
MODES: Final = ("failfast", "permissive", "dropmalformed")

DEFAULT_PARTITION_BYTES: Final = 64 << 20
DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_DIRECT_BYTES: Final = 256 << 20
_MAX_BATCH_ROWS: Final = 1_000_000


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
    """

    path: str
    mode: Mode = "failfast"
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    pushdown: bool = False


@dataclass(frozen=True, slots=True)
class QueueReadOptions:
    """Options of reading `kestrel.queue`.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        partition_bytes: as for `kestrel.journal`.
        batch_rows: maximum number of items in an Arrow batch.
        direct_bytes: one task replays a queue whose journal is one file or at most this large; any
            other queue is planned first, its files in parallel.
        planned: a plan that a Spark job made, as text (`planning.to_text`); None makes the plan
            where Spark plans the source.
        delayed: whether delayed items are rows, too.
        planned_delayed: the journals of delayed items that belong to the plan, as text
            (`delayed_items.delayed_to_text`).
    """

    path: str
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    direct_bytes: int = DEFAULT_DIRECT_BYTES
    planned: str | None = None
    delayed: bool = False
    planned_delayed: str | None = None


@dataclass(frozen=True, slots=True)
class JournalWriteOptions:
    """Options of writing `kestrel.journal`.

    Attributes:
        path: the queue path; it is created if it does not exist.
    """

    path: str


def journal_read_options(given: Mapping[str, str]) -> JournalReadOptions:
    """Validate the options of reading `kestrel.journal`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel.journal", given)
    return options.checked(
        JournalReadOptions(
            path=options.path("a queue path, a journal file, or a glob of either"),
            mode=cast(Mode, options.take("mode", "failfast", one_of(MODES))),
            partition_bytes=options.take("partitionBytes", DEFAULT_PARTITION_BYTES, a_size),
            batch_rows=options.take(
                "batchRows", DEFAULT_BATCH_ROWS, a_whole_number(_MAX_BATCH_ROWS)
            ),
            pushdown=options.take("pushdown", False, a_boolean),
        )
    )


def queue_read_options(given: Mapping[str, str]) -> QueueReadOptions:
    """Validate the options of reading `kestrel.queue`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel.queue", given)
    return options.checked(
        QueueReadOptions(
            path=options.path("a queue path, a journal file, or a glob of either"),
            partition_bytes=options.take("partitionBytes", DEFAULT_PARTITION_BYTES, a_size),
            batch_rows=options.take(
                "batchRows", DEFAULT_BATCH_ROWS, a_whole_number(_MAX_BATCH_ROWS)
            ),
            direct_bytes=options.take("directBytes", DEFAULT_DIRECT_BYTES, a_size),
            planned=options.take("planned", None, str),
            delayed=options.take("delayed", False, a_boolean),
            planned_delayed=options.take("plannedDelayed", None, str),
        )
    )


def journal_write_options(given: Mapping[str, str]) -> JournalWriteOptions:
    """Validate the options of writing `kestrel.journal`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("writing kestrel.journal", given)
    return options.checked(JournalWriteOptions(path=options.path("a queue path (a directory)")))
