"""Options of writing `kestrel`, and their validation. This module does not need Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kestrelmq.names import queue_name_error
from kestrelmq.spark.cluster_options import ClusterOptions, cluster_options
from kestrelmq.spark.given_options import GivenOptions, a_time, option
from kestrelmq.spark.storage.locations import Location, a_boolean, located

DEFAULT_PATIENCE: Final = 600.0


def _queue(value: str) -> str:
    error = queue_name_error(value)
    if error is not None:
        raise ValueError(f"a queue's name: {error}")
    return value


@dataclass(frozen=True, slots=True)
class KestrelWriteOptions:
    """Options of writing `kestrel`.

    Attributes:
        cluster: the servers.
        queue: the queue to add to; None takes it from the column `queue`.
        patience: seconds without any item stored after which a task fails.
        delay: seconds for which each item waits before it may be read; None for none.
        exactly_once: whether a task that is run again stores nothing twice.
        dead_letter_path: a directory for rows that can never become items, perhaps in a store;
            None fails the query.
    """

    cluster: ClusterOptions
    queue: str | None = option("queue", _queue)
    patience: float = option("patience", a_time, DEFAULT_PATIENCE)
    delay: float | None = option("delay", a_time)
    exactly_once: bool = option("exactlyOnce", a_boolean, True)
    dead_letter_path: str | Location | None = None


def kestrel_write_options(given: Mapping[str, str]) -> KestrelWriteOptions:
    """Validate the options of writing `kestrel`. Raises ConfigError."""
    options = GivenOptions("writing kestrel", given)
    cluster = cluster_options(options)
    found = options.of(KestrelWriteOptions)
    parse = partial(_dead_letter_path, options.storage())
    dead_letters = options.take("deadLetterPath", None, parse)
    return options.checked(KestrelWriteOptions(cluster, **found, dead_letter_path=dead_letters))


def _dead_letter_path(storage: Mapping[str, str], value: str) -> str | Location:
    if not value:
        raise ValueError("a directory that every executor sees, or a URI of one in a store")
    found = located(value, storage, "deadLetterPath")
    # Executors may have another working directory than the driver.
    return found if isinstance(found, Location) else str(Path(found).absolute())
