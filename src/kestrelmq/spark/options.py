"""Options of the data sources, validated in one place.

Spark hands options over as text, their names in any case. Every error names the option, the value
and what is allowed. Nothing here needs Spark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, cast

from kestrelmq.errors import ConfigError
from kestrelmq.spark.spool import local_path
from kestrelmq.units import parse_size

Mode = Literal["failfast", "permissive", "dropmalformed"]
MODES: Final = ("failfast", "permissive", "dropmalformed")

DEFAULT_PARTITION_BYTES: Final = 64 << 20
DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_DIRECT_BYTES: Final = 256 << 20
# Spark adds options of its own to some calls; they are none of ours.
_SPARKS_OWN: Final = frozenset({"paths", "provider", "__partition_columns"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JournalReadOptions:
    """Options of reading `kestrel.journal`.

    Attributes:
        path: a queue path, a journal file, or a glob of either.
        mode: what damage does: `failfast` raises, `permissive` gives a row that names it,
            `dropmalformed` ends the file there.
        partition_bytes: small files share a partition up to this size; a larger file is its own.
        batch_rows: records in an Arrow batch.
        pushdown: take filters from Spark; needs `spark.sql.python.filterPushdown.enabled`.
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
        batch_rows: items in an Arrow batch.
        direct_bytes: a queue whose journal is no larger is replayed by one task; a larger one is
            planned first, its files in parallel.
        planned: file with a plan that was made by a Spark job; None plans where Spark plans.
    """

    path: str
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    direct_bytes: int = DEFAULT_DIRECT_BYTES
    planned: str | None = None


@dataclass(frozen=True, slots=True)
class JournalWriteOptions:
    """Options of writing `kestrel.journal`.

    Attributes:
        path: the queue path; it is created if it is not there.
    """

    path: str


def journal_read_options(given: Mapping[str, str]) -> JournalReadOptions:
    """Validate the options of reading `kestrel.journal`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = _Options("reading kestrel.journal", given)
    return options.done(
        JournalReadOptions(
            path=options.path("a queue path, a journal file, or a glob of either"),
            mode=cast(Mode, options.take("mode", "failfast", _one_of(MODES))),
            partition_bytes=options.take("partitionBytes", DEFAULT_PARTITION_BYTES, _size),
            batch_rows=options.take("batchRows", DEFAULT_BATCH_ROWS, _count),
            pushdown=options.take("pushdown", False, _boolean),
        )
    )


def queue_read_options(given: Mapping[str, str]) -> QueueReadOptions:
    """Validate the options of reading `kestrel.queue`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = _Options("reading kestrel.queue", given)
    return options.done(
        QueueReadOptions(
            path=options.path("a queue path, a journal file, or a glob of either"),
            partition_bytes=options.take("partitionBytes", DEFAULT_PARTITION_BYTES, _size),
            batch_rows=options.take("batchRows", DEFAULT_BATCH_ROWS, _count),
            direct_bytes=options.take("directBytes", DEFAULT_DIRECT_BYTES, _size),
            planned=options.take("planned", None, str),
        )
    )


def journal_write_options(given: Mapping[str, str]) -> JournalWriteOptions:
    """Validate the options of writing `kestrel.journal`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = _Options("writing kestrel.journal", given)
    return options.done(JournalWriteOptions(path=options.path("a queue path (a directory)")))


class _Options:
    """Options by name, in any case; what is not taken is unknown."""

    def __init__(self, purpose: str, given: Mapping[str, str]) -> None:
        self._purpose = purpose
        self._given = {name.lower(): (name, value) for name, value in given.items()}
        self._known: list[str] = []

    def path(self, allowed: str) -> str:
        """Return the path, which must be given."""
        self._known.append("path")
        _, value = self._given.get("path", ("path", ""))
        if not value:
            raise ConfigError(f"option 'path' of {self._purpose} is missing: it must be {allowed}")
        return local_path(value)

    def take(self, name: str, default: T, parse: "Callable[[str], T]") -> T:
        """Return an option, or the default when it is not given."""
        self._known.append(name)
        if name.lower() not in self._given:
            return default
        _, value = self._given[name.lower()]
        try:
            return parse(value)
        except ValueError as error:
            raise ConfigError(
                f"option '{name}' of {self._purpose}: {value!r} is not allowed: it must be {error}"
            ) from None

    def done(self, options: T) -> T:
        """Return `options`, once every option that was given is known."""
        known = {name.lower() for name in self._known} | _SPARKS_OWN
        for name, (written, value) in self._given.items():
            if name not in known:
                raise ConfigError(
                    f"option '{written}' = {value!r} of {self._purpose} is unknown: "
                    f"allowed are {', '.join(sorted(self._known))}"
                )
        return options


def _one_of(allowed: tuple[str, ...]) -> "Callable[[str], str]":
    def parse(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return value.lower()

    return parse


def _boolean(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return value.lower() == "true"


def _size(value: str) -> int:
    try:
        size = parse_size(int(value) if value.isdecimal() else value)
    except (ValueError, TypeError):
        size = 0
    if size < 1:
        raise ValueError("a size above 0, such as 67108864 or '64 MiB'")
    return size


def _count(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 1_000_000:
        raise ValueError("a whole number from 1 to 1000000")
    return int(value)
