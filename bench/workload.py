"""What the load generator sends and what it expects back, as bytes built before the clock starts.

All items of a run are the same bytes, so a reply can be checked whole by one comparison. Only
Redis' LPUSH has no fixed reply: it answers the length of the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bench import replies


class Protocol(Enum):
    """The wire protocol of the server under load."""

    MEMCACHE = "memcache"
    RESP = "resp"


class Operation(Enum):
    """Add one item, or take one item."""

    SET = "set"
    GET = "get"


@dataclass(frozen=True, slots=True)
class Workload:
    """One batch of `depth` requests and how to recognise its replies.

    `whole` is the expected answer to the batch, empty when it isn't known beforehand.
    `read_size` holds that answer and a byte more, so that a server that says too much is noticed.
    """

    request: bytes
    whole: bytes
    parser: replies.Parser
    depth: int
    read_size: int


def item_of(size: int) -> bytes:
    """The item of `size` bytes that every request carries: printable, and without line ends."""
    pattern = b"0123456789abcdefghijklmnopqrstuvwxyz"
    return (pattern * (size // len(pattern) + 1))[:size]


def build(protocol: Protocol, operation: Operation, key: str, size: int, depth: int) -> Workload:
    """The batch for one connection: `depth` times `operation` on `key`, items of `size` bytes."""
    request, reply, parser = _single(protocol, operation, key.encode(), item_of(size))
    whole = reply * depth
    return Workload(request * depth, whole, parser, depth, max(len(whole), 24 * depth) + 1)


def _single(
    protocol: Protocol, operation: Operation, name: bytes, item: bytes
) -> tuple[bytes, bytes, replies.Parser]:
    """One request, the reply to it (empty when it varies), and the reply's parser."""
    size = len(item)
    match protocol, operation:
        case Protocol.MEMCACHE, Operation.SET:
            request = b"set %b 0 0 %d\r\n%b\r\n" % (name, size, item)
            return request, b"STORED\r\n", replies.memcache_set
        case Protocol.MEMCACHE, _:
            reply = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (name, size, item)
            return b"get %b\r\n" % name, reply, replies.memcache_get(item)
        case _, Operation.SET:
            return _resp_command(b"LPUSH", name, item), b"", replies.resp_integer
        case _:
            reply = b"$%d\r\n%b\r\n" % (size, item)
            return _resp_command(b"RPOP", name), reply, replies.resp_item(item)


def greeting(protocol: Protocol) -> bytes:
    """A request that every server answers with one line; it changes nothing."""
    match protocol:
        case Protocol.MEMCACHE:
            return b"version\r\n"
        case Protocol.RESP:
            return b"PING\r\n"


def _resp_command(*arguments: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)
