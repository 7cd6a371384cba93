"""A batch of requests: the bytes to send, and how to check the replies.

Everything is built before the clock starts, and all items of a run are the same bytes, so that most
replies can be checked by one comparison. Only replies with numbers chosen by the server (the length
of a list, the id of a job, the subject of an acknowledgement) must be parsed.
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
    """The operation: add an item, or remove one."""

    SET = "set"
    GET = "get"


@dataclass(frozen=True, slots=True)
class Batch:
    """The same operation `depth` times on the queue `key`, with `item`, by the client `name`.

    Each set must reach `copies` further queues (fanout children), if the protocol has that.
    """

    operation: Operation
    key: bytes
    item: bytes
    depth: int
    name: bytes = b"0"
    copies: int = 0


Follow = Callable[[], tuple[bytes, bytes]]
"""Returns the request that a client must send after the replies of a batch, such as the deletes of
the ids in them, and the expected answer (b"" if it is not to be waited for). A call also forgets
these replies."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One batch on the wire.

    `whole` is the expected answer to `request`. It is b"" if that is not known beforehand: then
    `parser` reads the `depth` replies one by one. `read_size` has room for the answer and one more
    byte, so that extra bytes are noticed.
    """

    request: bytes
    whole: bytes
    parser: Parser
    depth: int
    read_size: int
    follow: Follow | None = None


def item_of(size: int) -> bytes:
    """Return the item of `size` bytes that every request adds: printable, without line ends."""
    pattern = b"0123456789abcdefghijklmnopqrstuvwxyz"
    return (pattern * (size // len(pattern) + 1))[:size]


def repeated(batch: Batch, request: bytes, reply: bytes, parser: Parser) -> Workload:
    """Return the workload of `depth` equal requests with the same `reply`, b"" if it varies."""
    whole = reply * batch.depth
    size = max(len(whole), (len(batch.item) + 256) * batch.depth) + 1
    return Workload(request * batch.depth, whole, parser, batch.depth, size)
