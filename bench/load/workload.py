"""What one batch of requests is: the bytes to send, and how its replies are recognised.

Everything is built before the clock starts, and all items of a run are the same bytes, so that a
reply can mostly be checked whole by one comparison. Only what names the server's own numbers (the
length of a list, a job's id, an acknowledgement's subject) must be parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bench.load.replies import Parser


class Protocol(Enum):
    """The wire protocol of the server under load."""

    MEMCACHE = "memcache"
    TEXT = "text"
    THRIFT = "thrift"
    RESP = "resp"
    BEANSTALK = "beanstalk"
    NATS = "nats"


class Operation(Enum):
    """Add one item, or take one item for good."""

    SET = "set"
    GET = "get"


@dataclass(frozen=True, slots=True)
class Batch:
    """`depth` times one operation on the queue `key`, each with `item`, by the client `name`.

    A set is one that must reach `copies` further queues (fanout children), where the server can.
    """

    operation: Operation
    key: bytes
    item: bytes
    depth: int
    name: bytes = b"0"
    copies: int = 0


Follow = Callable[[], tuple[bytes, bytes]]
"""What a client must still send when the replies have come, such as the ids it removes, and the
whole answer to that (b"" when none is awaited). Each call forgets the replies it was made from."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One batch on the wire.

    `whole` is the expected answer to `request`, b"" when it isn't known beforehand: then `parser`
    reads the `depth` replies one by one. `read_size` holds that answer and a byte more, so that a
    server that says too much is noticed.
    """

    request: bytes
    whole: bytes
    parser: Parser
    depth: int
    read_size: int
    follow: Follow | None = None


def item_of(size: int) -> bytes:
    """The item of `size` bytes that every request carries: printable, and without line ends."""
    pattern = b"0123456789abcdefghijklmnopqrstuvwxyz"
    return (pattern * (size // len(pattern) + 1))[:size]


def repeated(batch: Batch, request: bytes, reply: bytes, parser: Parser) -> Workload:
    """The workload of `depth` equal requests, each with its own `reply` (b"": it varies)."""
    whole = reply * batch.depth
    size = max(len(whole), (len(batch.item) + 256) * batch.depth) + 1
    return Workload(request * batch.depth, whole, parser, batch.depth, size)
