"""Options of the format `kestrel`, and their validation. This module does not need Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kestrelmq.client.address import parse_addresses
from kestrelmq.client.cluster import FixedMembership, Membership
from kestrelmq.errors import ConfigError, InvalidRequest
from kestrelmq.names import queue_name_error
from kestrelmq.spark.given_options import (
    GivenOptions,
    a_size,
    a_time,
    a_whole_number,
)
from kestrelmq.spark.live.held import MAX_ITEMS, MAX_PARTITIONS
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.storage.locations import Location, a_boolean, located

DEFAULT_ITEMS: Final = 100_000
DEFAULT_BYTES: Final = 128 << 20
DEFAULT_WAIT: Final = 1.0
_MOST_PER_SECOND: Final = 1_000_000_000
DEFAULT_PATIENCE: Final = 600.0
DEFAULT_LOADING_PATIENCE: Final = 60.0
_GONE: Final = {
    "stagingLocation": "items are reserved at the servers until Spark has committed them",
    "staging_location": "items are reserved at the servers until Spark has committed them",
    "lease": "items are reserved until Spark has committed them",
}
"""Options of earlier versions, and why they are gone."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Where the servers are: a list of addresses, or a path in ZooKeeper.

    Attributes:
        servers: `host:port,...`; None if ZooKeeper has the list.
        zookeeper: ZooKeeper's hosts.
        path_prefix: the path in ZooKeeper under which the servers are registered.
    """

    servers: str | None = None
    zookeeper: str | None = None
    path_prefix: str | None = None

    def membership(self) -> Membership:
        """Return the membership of the cluster: fixed, or followed in ZooKeeper."""
        if self.zookeeper is None or self.path_prefix is None:
            return FixedMembership(parse_addresses(self.servers or ""))
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return ZooKeeperMembership(self.zookeeper, self.path_prefix)

    def as_options(self) -> dict[str, str]:
        """Return the options of a data source that mean the same servers."""
        given = {
            "servers": self.servers,
            "zookeeper": self.zookeeper,
            "pathPrefix": self.path_prefix,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class KestrelReadOptions:
    """Options of reading `kestrel`.

    Attributes:
        cluster: the servers.
        queue: the queues to read.
        max_items: maximum number of items in a batch.
        max_bytes: approximate maximum of bytes of items in a batch.
        min_partitions: minimum number of tasks that read a batch; there is at least one for each
            server.
        wait: seconds that the driver waits for an item at a time.
        patience: seconds that a task waits for a server that is away, and a query that ends by
            itself for a queue that is still loading.
        max_items_per_second: most items that a stream takes in a second; None for any number.
        create_children: whether queues get the fanout child that a pattern such as `orders_*+copy`
            means and that they do not have yet.
        fails_on_loss: whether the query fails if items of a batch are not held any more.
        query_name: what the query is called at the servers.
    """

    cluster: ClusterOptions
    queue: QueueChoice
    max_items: int = DEFAULT_ITEMS
    max_bytes: int = DEFAULT_BYTES
    min_partitions: int = 1
    wait: float = DEFAULT_WAIT
    patience: float = DEFAULT_LOADING_PATIENCE
    max_items_per_second: int | None = None
    create_children: bool = False
    fails_on_loss: bool = True
    query_name: str = "spark"


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


def kestrel_read_options(given: Mapping[str, str]) -> KestrelReadOptions:
    """Validate the options of reading `kestrel`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel", given)
    for name, why in _GONE.items():
        if name.lower() in map(str.lower, given):
            raise ConfigError(f"option '{name}' of reading kestrel is gone: {why}")
    cluster = _cluster(options)
    queue = options.take("queue", None, QueueChoice.parse)
    if queue is None:
        raise ConfigError(
            "option 'queue' of reading kestrel is missing: it must be a queue's name, several "
            "separated by commas, or a pattern such as 'orders_*'"
        )
    return options.checked(
        KestrelReadOptions(
            cluster,
            queue,
            options.take("maxItemsPerTrigger", DEFAULT_ITEMS, a_whole_number(MAX_ITEMS)),
            options.take("maxBytesPerTrigger", DEFAULT_BYTES, a_size),
            options.take("minPartitions", 1, a_whole_number(MAX_PARTITIONS)),
            options.take("wait", DEFAULT_WAIT, a_time),
            options.take("patience", DEFAULT_LOADING_PATIENCE, a_time),
            options.take("maxItemsPerSecond", None, a_whole_number(_MOST_PER_SECOND)),
            options.take("createChildren", False, a_boolean),
            options.take("failOnDataLoss", True, a_boolean),
            options.take("queryName", "spark", str),
        )
    )


def kestrel_write_options(given: Mapping[str, str]) -> KestrelWriteOptions:
    """Validate the options of writing `kestrel`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("writing kestrel", given)
    cluster = _cluster(options)
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


def _cluster(options: GivenOptions) -> ClusterOptions:
    cluster = ClusterOptions(
        options.take("servers", None, _servers),
        options.take("zookeeper", None, str),
        options.take("pathPrefix", None, str),
    )
    if (cluster.zookeeper is None) != (cluster.path_prefix is None):
        raise ConfigError(f"options 'zookeeper' and 'pathPrefix' of {options.purpose} go together")
    if (cluster.servers is None) == (cluster.zookeeper is None):
        raise ConfigError(
            f"options of {options.purpose}: give either 'servers' (host:port,...), or 'zookeeper' "
            "and 'pathPrefix'"
        )
    return cluster


def _servers(value: str) -> str:
    try:
        return ",".join(map(str, parse_addresses(value)))
    except InvalidRequest:
        raise ValueError("servers such as 'localhost:22133', separated by commas") from None


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
