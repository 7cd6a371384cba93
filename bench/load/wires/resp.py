"""Redis: a queue is a list; LPUSH adds and RPOP removes an item. A copy is one more LPUSH."""

from __future__ import annotations

import re
import socket

from bench.load.replies import Parser, ReplyError, expect, line_end, shown
from bench.load.wires.wire import Wire
from bench.load.workload import Batch, Operation, Workload, repeated


def batch(wanted: Batch) -> Workload:
    """Return LPUSHes, also to the copies, or RPOPs."""
    name, item = wanted.key, wanted.item
    match wanted.operation:
        case Operation.SET:
            names = [name, *(b"%b+%d" % (name, number) for number in range(wanted.copies))]
            request = b"".join(command(b"LPUSH", one, item) for one in names)
            return repeated(wanted, request, b"", integers(len(names)))
        case Operation.GET:
            reply = b"$%d\r\n%b\r\n" % (len(item), item)
            return repeated(wanted, command(b"RPOP", name), reply, bulk(item))


def command(*arguments: bytes) -> bytes:
    """Encode a command."""
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


def integers(count: int) -> Parser:
    """Return a parser that takes the replies to LPUSHes on `count` lists as one reply."""

    def parse(buffer: bytes, start: int) -> tuple[int, bool] | None:
        for _ in range(count):
            end = line_end(buffer, start)
            if end < 0:
                return None
            line = buffer[start:end]
            if line[:1] != b":" or not line[1:].isdigit():
                raise ReplyError(shown(line))
            start = end + 2
        return start, True

    return parse


def bulk(item: bytes) -> Parser:
    """Return a parser for the item as a bulk string; the null bulk string is a miss."""

    def parse(buffer: bytes, start: int) -> tuple[int, bool] | None:
        end = line_end(buffer, start)
        if end < 0:
            return None
        line = buffer[start:end]
        if line == b"$-1":
            return end + 2, False
        if line != b"$%d" % len(item):
            raise ReplyError(shown(line))
        return expect(buffer, end + 2, item + b"\r\n")

    return parse


def prepare(_: socket.socket, __: bytes, ___: int) -> None:
    """Do nothing: the first push creates a list."""


WIRE = Wire(lambda *_: b"PING\r\n", re.compile(rb"\+PONG\r\n"), batch, prepare)
