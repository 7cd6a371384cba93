"""The memcache protocol, for kestrelmq, the original Kestrel and memcached."""

from __future__ import annotations

import re
import socket

from bench.load.replies import Parser, ReplyError, expect, line_end, shown
from bench.load.wires.wire import Wire, ask
from bench.load.workload import Batch, Operation, Workload, repeated


def batch(wanted: Batch) -> Workload:
    """Return sets or gets."""
    name, item = wanted.key, wanted.item
    match wanted.operation:
        case Operation.SET:
            request = b"set %b 0 0 %d\r\n%b\r\n" % (name, len(item), item)
            return repeated(wanted, request, b"STORED\r\n", stored)
        case Operation.GET:
            reply = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (name, len(item), item)
            return repeated(wanted, b"get %b\r\n" % name, reply, value(item))


def stored(buffer: bytes, start: int) -> tuple[int, bool] | None:
    """Parse `STORED`; anything else is an error, because a refused item would spoil the run."""
    end = line_end(buffer, start)
    if end < 0:
        return None
    if buffer[start:end] != b"STORED":
        raise ReplyError(shown(buffer[start:end]))
    return end + 2, True


def value(item: bytes) -> Parser:
    """Return a parser for `VALUE name flags length`, the item, `END`; a lone `END` is a miss."""

    def parse(buffer: bytes, start: int) -> tuple[int, bool] | None:
        end = line_end(buffer, start)
        if end < 0:
            return None
        line = buffer[start:end]
        if line == b"END":
            return end + 2, False
        fields = line.split(b" ")
        if fields[0] != b"VALUE" or len(fields) != 4 or fields[3] != b"%d" % len(item):
            raise ReplyError(shown(line))
        return expect(buffer, end + 2, item + b"\r\nEND\r\n")

    return parse


def prepare(sock: socket.socket, key: bytes, copies: int) -> None:
    """Create fanout children by a peek at each; the queue itself is created by the first set."""
    answer = re.compile(rb"(VALUE .*\r\n)?END\r\n", re.DOTALL)
    for number in range(copies):
        ask(sock, b"get %b+%d/peek\r\n" % (key, number), answer)


WIRE = Wire(lambda *_: b"version\r\n", re.compile(rb"VERSION [^\r\n]*\r\n"), batch, prepare)
