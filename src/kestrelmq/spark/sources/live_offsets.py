"""What a streaming query of `kestrel` holds at the servers: the offset that Spark logs. No I/O.

The servers are the staging. The driver reserves the items of a batch under tags, without their
data, and the offset has the tags; tasks ask for the items by them, as often as need be, and they
are finished when Spark has committed the batch. The offset is all the state of a query.

A tag is `NAME:EPOCH:PART`. NAME is the query's, chosen at random and logged before anything is
reserved. EPOCH is that of the batch before plus 1, for every attempt to make the batch: so an
attempt that was not logged, and another driver, get the same items. PART counts the tags of a queue
on a server. The lease has no end; the owner is NAME, by which people find what is held.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

MAX_ITEMS: Final = 1 << 22
"""Most items of a batch."""
MAX_PARTITIONS: Final = 1024
_EPOCH_SHIFT: Final = 32

Parts = Mapping[str, Sequence[tuple[str, int]]]
"""The nonce and the number of the reads of each part, by queue."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a query holds at one server: under which name and epoch, and in which queues.

    It holds nothing if the server only has to be told that an epoch is over.
    """

    name: str
    epoch: int
    queues: Parts = field(default_factory=dict)

    def tags(self) -> Iterator[tuple[str, str, int]]:
        """Yield each tag, with its queue before it and the number of its reads behind it."""
        for queue, parts in self.queues.items():
            for part, (_, count) in enumerate(parts):
                yield queue, tag_of(self.name, self.epoch, part), count


@dataclass(frozen=True, slots=True)
class HeldOffset:
    """The offset of a batch.

    Attributes:
        name: the query's name; empty before the first batch, which has no rows and only logs it.
        epoch: the number of the batch.
        queue: the option `queue`.
        read_time: when the items were reserved (ms).
        held: what is held at each server; of an earlier epoch where a server could not be told yet.
        servers: all servers that were known.
    """

    name: str
    epoch: int
    queue: str
    read_time: int = 0
    held: Mapping[str, Held] = field(default_factory=dict)
    servers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what Spark logs."""
        logged: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return logged

    @property
    def new(self) -> dict[str, Held]:
        """What the rows of the batch are, by server."""
        of_batch = (self.name, self.epoch)
        return {
            server: one
            for server, one in sorted(self.held.items())
            if (one.name, one.epoch) == of_batch
        }


def parse_offset(logged: Mapping[str, Any]) -> HeldOffset:
    """Return the offset that was logged. Raises KeyError, TypeError, ValueError: not an offset."""
    held = {}
    for server, one in logged["held"].items():
        queues = {name: [(*part,) for part in parts] for name, parts in one["queues"].items()}
        held[server] = Held(**{**one, "queues": queues})
    return HeldOffset(**{**logged, "held": held, "servers": tuple(logged["servers"])})


def tag_of(name: str, epoch: int, part: int) -> str:
    """Return a tag."""
    return f"{name}:{epoch}:{part}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """The reads of one tag.

    Attributes:
        server: the server.
        queue: the queue.
        tag: the tag.
        nonce: what the names of the reads end with.
        count: how many reads.
        position: the `position` of the first row.
    """

    server: str
    queue: str
    tag: str
    nonce: str
    count: int
    position: int


def chunks_of(offset: HeldOffset) -> list[Chunk]:
    """Return the chunks of a batch, in the order of their rows, which does not depend on tasks."""
    found: list[Chunk] = []
    position = offset.epoch << _EPOCH_SHIFT
    for server, held in offset.new.items():
        for queue, parts in sorted(held.queues.items()):
            for part, (nonce, count) in enumerate(parts):
                tag = tag_of(held.name, held.epoch, part)
                found.append(Chunk(server, queue, tag, nonce, count, position))
                position += count
    return found


def grouped(chunks: Sequence[Chunk], partitions: int) -> list[list[Chunk]]:
    """Divide a batch into `partitions`, or one for each server; fewer if it has fewer chunks.

    Each has neighbouring chunks of one server, so it keeps the order of its queues.
    """
    by_server: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        by_server.setdefault(chunk.server, []).append(chunk)
    each = -(-partitions // max(1, len(by_server)))
    groups: list[list[Chunk]] = []
    for mine in by_server.values():
        size = max(1, -(-len(mine) // each))
        groups += [mine[at : at + size] for at in range(0, len(mine), size)]
    return groups
