"""Options of the format `kestrel`, and their validation. This module does not need Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kestrelmq.client.address import parse_addresses
from kestrelmq.client.cluster import FixedMembership, Membership
from kestrelmq.client.options import LONGEST_LEASE
from kestrelmq.errors import ConfigError, InvalidRequest
from kestrelmq.names import queue_name_error
from kestrelmq.spark.given_options import (
    GivenOptions,
    a_size,
    a_time,
    a_whole_number,
)
from kestrelmq.spark.live.batch_plan import MAX_PARTITION_ITEMS, MAX_PARTITIONS
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.storage.locations import Location, a_boolean, located

DEFAULT_ITEMS: Final = 100_000
DEFAULT_BYTES: Final = 128 << 20
DEFAULT_WAIT: Final = 1.0
_MOST_PER_SECOND: Final = 1_000_000_000
DEFAULT_PATIENCE: Final = 600.0
DEFAULT_LOADING_PATIENCE: Final = 60.0
DEFAULT_STREAM_LEASE: Final = 86_400.0
DEFAULT_TABLE_LEASE: Final = 600.0


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
            "path_prefix": self.path_prefix,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class KestrelReadOptions:
    """Options of reading `kestrel`.

    Attributes:
        cluster: the servers.
        queue: the queues to read.
        staging_location: a directory that the driver and every executor see, or one in a store.
        max_items_per_batch: maximum number of items in a batch.
        max_bytes_per_batch: approximate maximum of bytes of items in a batch.
        min_partitions: minimum number of tasks that read a batch; there is at least one for each
            server.
        wait: seconds that the driver waits for an item at a time.
        batch: name of an earlier batch to read again; only for `spark.read`.
        patience: seconds that a batch read, or a query that ends by itself, waits for a queue that
            is still loading.
        lease: seconds for which items are reserved, at most; None for the default.
        max_items_per_second: most items that a stream takes in a second; None for any number.
        create_children: whether queues get the fanout child that a pattern such as `orders_*+copy`
            means and that they do not have yet.
    """

    cluster: ClusterOptions
    queue: QueueChoice
    staging_location: str | Location
    max_items_per_batch: int = DEFAULT_ITEMS
    max_bytes_per_batch: int = DEFAULT_BYTES
    min_partitions: int = 1
    wait: float = DEFAULT_WAIT
    batch: str | None = None
    patience: float = DEFAULT_LOADING_PATIENCE
    lease: float | None = None
    max_items_per_second: int | None = None
    create_children: bool = False


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
    """

    cluster: ClusterOptions
    queue: str | None = None
    patience: float = DEFAULT_PATIENCE
    delay: float | None = None
    dead_letter_path: str | Location | None = None


def kestrel_read_options(given: Mapping[str, str]) -> KestrelReadOptions:
    """Validate the options of reading `kestrel`.

    Raises:
        ConfigError: an option is missing, unknown or has a value that is not allowed.
    """
    options = GivenOptions("reading kestrel", given)
    cluster = _cluster(options)
    queue = options.take("queue", None, QueueChoice.parse)
    storage = options.storage()
    staging = options.take("staging_location", None, partial(_staging_location, storage))
    if queue is None:
        raise ConfigError(
            "option 'queue' of reading kestrel is missing: it must be a queue's name, several "
            "separated by commas, or a pattern such as 'orders_*'"
        )
    if not staging:
        raise ConfigError(
            "option 'staging_location' of reading kestrel is missing: it must be a directory that "
            "the driver and every executor see, and that no other query uses, or a URI such as "
            "s3://BUCKET/DIRECTORY"
        )
    return options.checked(
        KestrelReadOptions(
            cluster,
            queue,
            staging,
            options.take("max_items_per_batch", DEFAULT_ITEMS, a_whole_number(MAX_PARTITION_ITEMS)),
            options.take("max_bytes_per_batch", DEFAULT_BYTES, a_size),
            options.take("min_partitions", 1, a_whole_number(MAX_PARTITIONS)),
            options.take("wait", DEFAULT_WAIT, a_time),
            options.take("batch", None, _batch),
            options.take("patience", DEFAULT_LOADING_PATIENCE, a_time),
            options.take("lease", None, _lease),
            options.take("max_items_per_second", None, a_whole_number(_MOST_PER_SECOND)),
            options.take("create_children", False, a_boolean),
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
            options.take("dead_letter_path", None, partial(_dead_letter_path, options.storage())),
        )
    )


def _cluster(options: GivenOptions) -> ClusterOptions:
    cluster = ClusterOptions(
        options.take("servers", None, _servers),
        options.take("zookeeper", None, str),
        options.take("path_prefix", None, str),
    )
    if (cluster.zookeeper is None) != (cluster.path_prefix is None):
        raise ConfigError(f"options 'zookeeper' and 'path_prefix' of {options.purpose} go together")
    if (cluster.servers is None) == (cluster.zookeeper is None):
        raise ConfigError(
            f"options of {options.purpose}: give either 'servers' (host:port,...), or 'zookeeper' "
            "and 'path_prefix'"
        )
    return cluster


def _servers(value: str) -> str:
    try:
        return ",".join(map(str, parse_addresses(value)))
    except InvalidRequest:
        raise ValueError("servers such as 'localhost:22133', separated by commas") from None


def _staging_location(storage: Mapping[str, str], value: str) -> str | Location:
    return _shared_directory(storage, value, "staging_location") if value else value


def _dead_letter_path(storage: Mapping[str, str], value: str) -> str | Location:
    if not value:
        raise ValueError("a directory that every executor sees, or a URI of one in a store")
    return _shared_directory(storage, value, "dead_letter_path")


def _shared_directory(storage: Mapping[str, str], value: str, option: str) -> str | Location:
    found = located(value, storage, option)
    # Executors may have another working directory than the driver.
    return found if isinstance(found, Location) else str(Path(found).absolute())


def _lease(value: str) -> float:
    lease = a_time(value)
    if not 1 <= lease <= LONGEST_LEASE:
        raise ValueError("a time from '1s' to '11d'")
    return lease


def _batch(value: str) -> str:
    if "/" in value or value in {"", ".", ".."}:
        raise ValueError("the name of a directory in the staging location that a read made")
    return value


def _queue(value: str) -> str:
    error = queue_name_error(value)
    if error is not None:
        raise ValueError(f"a queue's name: {error}")
    return value
