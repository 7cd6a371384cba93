"""Options of writing `kestrel`, and their validation. This module does not need Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kestrelmq.names import queue_name_error
from kestrelmq.spark.cluster_options import ClusterOptions, cluster_options
from kestrelmq.spark.given_options import GivenOptions, a_time
from kestrelmq.spark.storage.locations import Location, a_boolean, located

DEFAULT_PATIENCE: Final = 600.0


@dataclass(frozen=True, slots=True)
class KestrelWriteOptions:
    """Options of writing `kestrel`.

    Attributes:
        cluster: the servers.
        queue: the queue to add to; None takes it from the column `queue`.
        patience: seconds without any item stored after which a task fails.
        delay: seconds for which each item waits before it may be read; None for none.
        dead_letter_path: a directory for rows that can never become items, perhaps in a store;
            None fails the query.
        exactly_once: whether a task that is run again stores nothing twice.
    """

    cluster: ClusterOptions
    queue: str | None = None
    patience: float = DEFAULT_PATIENCE
    delay: float | None = None
    dead_letter_path: str | Location | None = None
    exactly_once: bool = True


def kestrel_write_options(given: Mapping[str, str]) -> KestrelWriteOptions:
    """Validate the options of writing `kestrel`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("writing kestrel", given)
    cluster = cluster_options(options)
    return options.checked(
        KestrelWriteOptions(
            cluster,
            options.take("queue", None, _queue),
            options.take("patience", DEFAULT_PATIENCE, a_time),
            options.take("delay", None, a_time),
            options.take("deadLetterPath", None, partial(_dead_letter_path, options.storage())),
            options.take("exactlyOnce", True, a_boolean),
        )
    )


def _dead_letter_path(storage: Mapping[str, str], value: str) -> str | Location:
    if not value:
        raise ValueError("a directory that every executor sees, or a URI of one in a store")
    found = located(value, storage, "deadLetterPath")
    # Executors may have another working directory than the driver.
    return found if isinstance(found, Location) else str(Path(found).absolute())


def _queue(value: str) -> str:
    error = queue_name_error(value)
    if error is not None:
        raise ValueError(f"a queue's name: {error}")
    return value
