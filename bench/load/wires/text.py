"""Kestrel's text protocol: a get opens a read and confirms the one before it."""

from __future__ import annotations

import re

from bench.load.replies import MAX_LINE, Parser, ReplyError, shown
from bench.load.wires.wire import Wire
from bench.load.workload import Batch, Operation, Workload, repeated


def batch(wanted: Batch) -> Workload:
    """Return puts of one item each, or gets."""
    match wanted.operation:
        case Operation.SET:
            request = b"put %b:\n%b\n\n" % (wanted.key, wanted.item)
            return repeated(wanted, request, b"+1\n", line(b"+1", None))
        case Operation.GET:
            reply = b":%b" % wanted.item
            return repeated(wanted, b"get %b\n" % wanted.key, reply + b"\n", line(reply, b"*"))


def line(hit: bytes, miss: bytes | None) -> Parser:
    """Return a parser for a line that is either `hit` or `miss`; None if there are no misses."""

    def parse(buffer: bytes, start: int) -> tuple[int, bool] | None:
        end = buffer.find(b"\n", start)
        if end < 0:
            if len(buffer) - start > len(hit) + MAX_LINE:
                raise ReplyError(f"no line end: {shown(buffer[start:])}")
            return None
        found = buffer[start:end]
        if found not in (hit, miss):
            raise ReplyError(shown(found))
        return end + 1, found == hit

    return parse


WIRE = Wire(lambda *_: b"version\n", re.compile(rb":[^\n]*\n"), batch)
