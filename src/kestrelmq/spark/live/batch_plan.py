"""The plan of a batch of `kestrel`, as an offset that Spark logs.

The offset has the batch's epoch and, for each partition, the server and the queues that it reads,
and how much it may take. Spark logs an offset before the batch is read, and passes the same offset
to any process that reads the batch again: so the same partitions are read, even if there are other
servers or queues now.
This module does no I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Final

from kestrelmq.spark.live.shares import PartitionShare

MAX_PARTITIONS: Final = 1024
MAX_PARTITION_ITEMS: Final = 1 << 22
MAX_QUEUES: Final = 1000
"""Most queues in a batch, each counted once for each server that has it."""
_PARTITION_SHIFT: Final = 22
_EPOCH_SHIFT: Final = 32


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of one batch.

    Attributes:
        epoch: the batch's number, from 1; 0 stands for the start, before the first batch.
        staging: the identity of the staging location.
        queue: the option `queue`; None in an offset written by an earlier version.
        shares: what each partition may take.
        serial: the number of the batch in a store, which says all else; None if parts are files.
    """

    epoch: int
    staging: str
    queue: str | None = None
    shares: tuple[PartitionShare, ...] = field(default=())
    serial: int | None = None

    def to_offset(self) -> dict[str, Any]:
        """Return the offset that Spark logs."""
        shares = {
            str(place): {
                "server": share.server,
                "items": share.items,
                "bytes": share.bytes,
                "reserves": share.reserves,
                "queues": [list(one) for one in share.queues],
            }
            for place, share in enumerate(self.shares)
        }
        return {
            "epoch": self.epoch,
            "staging": self.staging,
            "queue": self.queue,
            "shares": shares,
            **({} if self.serial is None else {"serial": self.serial}),
        }


def from_offset(offset: Mapping[str, Any], only: str | None) -> BatchPlan:
    """Return the plan that an offset describes.

    `only` is the query's queue, if it is a single one: shares of earlier versions are of that one,
    and do not name it.
    """
    unnamed = ((only or "", None),)
    shares = [offset["shares"][str(place)] for place in range(len(offset["shares"]))]
    return BatchPlan(
        offset["epoch"],
        offset["staging"],
        offset.get("queue"),
        tuple(
            # Nor do they say whether a server reserves.
            PartitionShare(
                share["server"],
                share["items"],
                share["bytes"],
                share.get("reserves", False),
                tuple((name, most) for name, most in share.get("queues") or unnamed),
            )
            for share in shares
        ),
        offset.get("serial"),
    )


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """A queue with items on a server; `items` is the most to take from it, None for any number."""

    server: str
    queue: str
    items: int | None = None


def share_out(
    waiting: Sequence[WaitingQueue],
    items: int | None,
    size: int,
    partitions: int,
    reserving: Mapping[str, bool],
) -> tuple[PartitionShare, ...]:
    """Divide a batch into partitions, each of which reads one server.

    Args:
        waiting: the queues with items; if they are too many for a batch, the first are taken.
        items: maximum number of items in the batch; None means any number.
        size: approximate maximum of bytes of items in the batch.
        partitions: minimum number of partitions; if there are fewer servers, several partitions
            read the same one, and, if that has fewer queues, the same queue.
        reserving: for each server whether it has reserved reads.

    Returns:
        The shares: each of at least one item for each of its queues, and of at most `items`
        together.
    """
    most = MAX_QUEUES if items is None else min(max(items, 1), MAX_QUEUES)
    readers = _readers(waiting[:most], partitions, most)
    numbers = [0, *accumulate(map(len, readers))]
    readings: dict[WaitingQueue, list[int]] = {}
    for number, one in enumerate(chain.from_iterable(readers)):
        readings.setdefault(one, []).append(number)
    shares: list[PartitionShare] = []
    for place, reader in enumerate(readers):
        mine = list(enumerate(reader, numbers[place]))
        part = MAX_PARTITION_ITEMS
        if items is not None:
            part = min(part, sum(_part(items, numbers[-1], number) for number, _ in mine))
        queues = tuple((one.queue, _most_of(one, readings[one], number)) for number, one in mine)
        limits = [limit for _, limit in queues if limit is not None]
        if len(limits) == len(queues):
            part = min(part, sum(limits))
        if part > 0:
            server = reader[0].server
            part_size = max(1, size * len(reader) // numbers[-1])
            shares.append(
                PartitionShare(server, part, part_size, reserving.get(server, False), queues)
            )
    return tuple(shares)


def _readers(
    waiting: Sequence[WaitingQueue], partitions: int, most: int
) -> list[list[WaitingQueue]]:
    """Return the queues of each partition, at most `most` together."""
    by_server: dict[str, list[WaitingQueue]] = {}
    for one in waiting:
        by_server.setdefault(one.server, []).append(one)
    each = max(1, -(-partitions // max(len(by_server), 1)))
    found: list[list[WaitingQueue]] = []
    more: list[list[WaitingQueue]] = []
    for place in range(each):
        for mine in by_server.values():
            if place < len(mine):
                found.append(mine[place :: min(each, len(mine))])
            else:
                more.append([mine[place % len(mine)]])
    room = min(most - len(waiting), MAX_PARTITIONS - len(found))
    return [*found[:MAX_PARTITIONS], *more[: max(room, 0)]]


def _most_of(one: WaitingQueue, readings: Sequence[int], number: int) -> int | None:
    """Return the most items of a reading; several readings of one queue share its items."""
    if one.items is None:
        return None
    return _part(one.items, len(readings), readings.index(number))


def first_position(epoch: int, partition: int) -> int:
    """Return the `position` of a partition's first row; `position` orders the rows of a query."""
    return epoch << _EPOCH_SHIFT | partition << _PARTITION_SHIFT


def _part(total: int, parts: int, place: int) -> int:
    """Return the size of part `place` of `total` divided evenly; first parts get the remainder."""
    share, rest = divmod(total, parts)
    return share + (1 if place < rest else 0)
