"""Options of reading `kestrel`, and their validation. This module does not need Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kestrelmq.errors import ConfigError
from kestrelmq.spark.cluster_options import ClusterOptions, cluster_options
from kestrelmq.spark.given_options import (
    GivenOptions,
    a_size,
    a_time,
    a_whole_number,
    option,
)
from kestrelmq.spark.sources.live_offsets import MAX_ITEMS, MAX_PARTITIONS
from kestrelmq.spark.sources.queue_choice import QueueChoice
from kestrelmq.spark.storage.locations import a_boolean

DEFAULT_ITEMS: Final = 100_000
DEFAULT_BYTES: Final = 128 << 20
_MOST_PER_SECOND: Final = 1_000_000_000


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
    max_items: int = option("maxItemsPerTrigger", a_whole_number(MAX_ITEMS), DEFAULT_ITEMS)
    max_bytes: int = option("maxBytesPerTrigger", a_size, DEFAULT_BYTES)
    min_partitions: int = option("minPartitions", a_whole_number(MAX_PARTITIONS), 1)
    wait: float = option("wait", a_time, 1.0)
    patience: float = option("patience", a_time, 60.0)
    max_items_per_second: int | None = option("maxItemsPerSecond", a_whole_number(_MOST_PER_SECOND))
    create_children: bool = option("createChildren", a_boolean, False)
    fails_on_loss: bool = option("failOnDataLoss", a_boolean, True)
    query_name: str = option("queryName", str, "spark")


def kestrel_read_options(given: Mapping[str, str]) -> KestrelReadOptions:
    """Validate the options of reading `kestrel`. Raises ConfigError."""
    options = GivenOptions("reading kestrel", given)
    cluster = cluster_options(options)
    queue = options.take("queue", None, QueueChoice.parse)
    if queue is None:
        raise ConfigError(
            "option 'queue' of reading kestrel is missing: it must be a queue's name, several "
            "separated by commas, or a pattern such as 'orders_*'"
        )
    found = options.of(KestrelReadOptions)
    # Kafka's name of it.
    most = options.take("maxOffsetsPerTrigger", found["max_items"], a_whole_number(MAX_ITEMS))
    return options.checked(KestrelReadOptions(cluster, queue, **found | {"max_items": most}))
