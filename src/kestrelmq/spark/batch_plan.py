"""The plan of a batch of `kestrel`, as an offset that Spark logs.

The offset has the batch's epoch and, for each partition, the server that it reads and how much it
may take. Spark logs an offset before the batch is read, and passes the same offset to any process
that reads the batch again: so the same partitions are read, even if the set of servers has changed.
This module does no I/O.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kestrelmq.spark.staging import PartitionShare

MAX_PARTITIONS: Final = 1024
MAX_PARTITION_ITEMS: Final = 1 << 22
_PARTITION_SHIFT: Final = 22
_EPOCH_SHIFT: Final = 32


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of one batch.

    Attributes:
        epoch: the batch's number, from 1; 0 stands for the start, before the first batch.
        staging: the identity of the staging location.
        queue: the queue that is read; None in an offset written by an earlier version.
        shares: what each partition may take.
    """

    epoch: int
    staging: str
    queue: str | None = None
    shares: tuple[PartitionShare, ...] = field(default=())

    def to_offset(self) -> dict[str, Any]:
        """Return the offset that Spark logs."""
        shares = {
            str(place): {
                "server": share.server,
                "items": share.items,
                "bytes": share.bytes,
                "reserves": share.reserves,
            }
            for place, share in enumerate(self.shares)
        }
        return {
            "epoch": self.epoch,
            "staging": self.staging,
            "queue": self.queue,
            "shares": shares,
        }


def from_offset(offset: Mapping[str, Any]) -> BatchPlan:
    """Return the plan that an offset describes."""
    shares = [offset["shares"][str(place)] for place in range(len(offset["shares"]))]
    return BatchPlan(
        offset["epoch"],
        offset["staging"],
        offset.get("queue"),
        tuple(
            # Offsets of earlier versions do not say whether a server reserves.
            PartitionShare(
                share["server"], share["items"], share["bytes"], share.get("reserves", False)
            )
            for share in shares
        ),
    )


def share_out(
    servers: Mapping[str, int | None],
    items: int | None,
    size: int,
    partitions: int,
    reserving: Collection[str] = (),
) -> tuple[PartitionShare, ...]:
    """Divide a batch into partitions, each of which reads one server.

    Args:
        servers: the servers with items, and how many items to take from each at most; None means
            any number.
        items: maximum number of items in the batch; None means any number.
        size: approximate maximum of bytes of items in the batch.
        partitions: minimum number of partitions; if there are fewer servers, several partitions
            read the same one.
        reserving: the servers that have reserved reads.

    Returns:
        The shares: each of at least one item, and of at most `items` together.
    """
    each = max(1, -(-partitions // max(len(servers), 1)))
    readers = [server for _ in range(each) for server in servers][:MAX_PARTITIONS]
    if items is not None:
        readers = readers[: max(items, 1)]
    shares: list[PartitionShare] = []
    for place, server in enumerate(readers):
        most = MAX_PARTITION_ITEMS if items is None else _part(items, len(readers), place)
        allowed = servers[server]
        if allowed is not None:
            mine = [other for other, name in enumerate(readers) if name == server]
            most = min(most, _part(allowed, len(mine), mine.index(place)))
        if most > 0:
            limited = min(most, MAX_PARTITION_ITEMS)
            most_bytes = max(1, size // len(readers))
            shares.append(PartitionShare(server, limited, most_bytes, server in reserving))
    return tuple(shares)


def first_position(epoch: int, partition: int) -> int:
    """Return the `position` of a partition's first row; `position` orders the rows of a query."""
    return epoch << _EPOCH_SHIFT | partition << _PARTITION_SHIFT


def batch_of(position: int) -> tuple[int, int]:
    """Return the epoch and the partition that a row's `position` encodes."""
    return position >> _EPOCH_SHIFT, (position >> _PARTITION_SHIFT) % MAX_PARTITIONS


def _part(total: int, parts: int, place: int) -> int:
    """Return the size of part `place` of `total` divided evenly; first parts get the remainder."""
    share, rest = divmod(total, parts)
    return share + (1 if place < rest else 0)


def taken_by_server(parts: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Add up (server, items) pairs by server."""
    taken: dict[str, int] = {}
    for server, items in parts:
        taken[server] = taken.get(server, 0) + items
    return taken
