"""Kestrel's thrift service with framed binary messages: a get removes its item at once.

Every call has sequence number 0, so that all frames of a run are the same bytes.
"""

from __future__ import annotations

import re
import struct

from bench.load.replies import Parser, ReplyError, shown
from bench.load.wires.wire import Wire
from bench.load.workload import Batch, Operation, Workload, repeated

CALL, REPLY = 1, 2
I32, I64, STRING, STRUCT, LIST = 8, 10, 11, 12, 15
STOP = b"\0"
LENGTH = struct.Struct(">i")


def batch(wanted: Batch) -> Workload:
    """Return puts of one item each, or gets of at most one item without waiting."""
    name, item = field(STRING, 1, string(wanted.key)), string(wanted.item)
    match wanted.operation:
        case Operation.SET:
            items = field(LIST, 2, sequence(STRING, item))
            request = frame(b"put", CALL, name + items + field(I32, 3, LENGTH.pack(0)))
            reply = frame(b"put", REPLY, field(I32, 0, LENGTH.pack(1)))
            return repeated(wanted, request, reply, framed(reply, None))
        case Operation.GET:
            numbers = (field(I32, at, LENGTH.pack(n)) for at, n in ((2, 1), (3, 0), (4, 0)))
            request = frame(b"get", CALL, name + b"".join(numbers))
            found = field(STRING, 1, item) + field(I64, 2, bytes(8)) + STOP
            reply = frame(b"get", REPLY, field(LIST, 0, sequence(STRUCT, found)))
            nothing = frame(b"get", REPLY, field(LIST, 0, sequence(STRUCT)))
            return repeated(wanted, request, reply, framed(reply, nothing))


def frame(name: bytes, kind: int, fields: bytes) -> bytes:
    """Encode a framed message: the arguments or the result of a call."""
    message = b"\x80\x01\0" + bytes([kind]) + string(name) + LENGTH.pack(0) + fields + STOP
    return string(message)


def string(data: bytes) -> bytes:
    """Encode bytes with their length before them."""
    return LENGTH.pack(len(data)) + data


def field(kind: int, number: int, value: bytes) -> bytes:
    """Encode one field of a struct."""
    return struct.pack(">bh", kind, number) + value


def sequence(kind: int, *values: bytes) -> bytes:
    """Encode a list."""
    return struct.pack(">bi", kind, len(values)) + b"".join(values)


def framed(hit: bytes, miss: bytes | None) -> Parser:
    """Return a parser for a frame that is either `hit` or `miss`; None if there are no misses."""

    def parse(buffer: bytes, start: int) -> tuple[int, bool] | None:
        if len(buffer) < start + LENGTH.size:
            return None
        end: int = start + LENGTH.size + LENGTH.unpack_from(buffer, start)[0]
        if not start + LENGTH.size < end <= start + max(len(hit), 8192):
            raise ReplyError(f"no frame: {shown(buffer[start:])}")
        if len(buffer) < end:
            return None
        found = buffer[start:end]
        if found not in (hit, miss):
            raise ReplyError(shown(found))
        return end, found == hit

    return parse


WIRE = Wire(
    lambda *_: frame(b"get_version", CALL, b""),
    re.compile(rb".{4}\x80\x01\0\x02\0\0\0\x0bget_version.+\0", re.DOTALL),
    batch,
)
