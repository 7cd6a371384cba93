"""beanstalkd: a queue is a tube. A get is a reserve, and then a delete of the id it answered."""

from __future__ import annotations

import re
from dataclasses import replace

from bench.load.replies import ReplyError, expect, line_end, shown
from bench.load.wires.wire import Wire
from bench.load.workload import Batch, Operation, Workload, repeated

DELETED = b"DELETED\r\n"


def greeting(key: bytes, _: bytes) -> bytes:
    """Puts go to the tube, and reserves come from it alone."""
    return b"use %b\r\nwatch %b\r\nignore default\r\n" % (key, key)


def batch(wanted: Batch) -> Workload:
    """`put`, or `reserve` without waiting and `delete`: the job may be held for a minute."""
    size = len(wanted.item)
    match wanted.operation:
        case Operation.SET:
            request = b"put 0 0 60 %d\r\n%b\r\n" % (size, wanted.item)
            return repeated(wanted, request, b"", inserted)
        case Operation.GET:
            reserved = Reserved(wanted.item)
            work = repeated(wanted, b"reserve-with-timeout 0\r\n", b"", reserved.parse)
            return replace(work, follow=reserved.deletes)


def inserted(buffer: bytes, start: int) -> tuple[int, bool] | None:
    """`INSERTED` and the job's id."""
    end = line_end(buffer, start)
    if end < 0:
        return None
    if not buffer.startswith(b"INSERTED ", start):
        raise ReplyError(shown(buffer[start:end]))
    return end + 2, True


class Reserved:
    """Parses replies to reserves and keeps the ids; `TIMED_OUT` is a miss."""

    def __init__(self, item: bytes) -> None:
        self._size = b"%d" % len(item)
        self._body = item + b"\r\n"
        self._ids: list[bytes] = []

    def parse(self, buffer: bytes, start: int) -> tuple[int, bool] | None:
        """A `Parser`."""
        end = line_end(buffer, start)
        if end < 0:
            return None
        line = buffer[start:end]
        if line == b"TIMED_OUT":
            return end + 2, False
        word, _, rest = line.partition(b" ")
        number, _, size = rest.partition(b" ")
        if word != b"RESERVED" or size != self._size:
            raise ReplyError(shown(line))
        reply = expect(buffer, end + 2, self._body)
        if reply is not None:
            self._ids.append(number)
        return reply

    def deletes(self) -> tuple[bytes, bytes]:
        """The deletes of what was reserved."""
        request = b"".join([b"delete %b\r\n" % number for number in self._ids])
        answer = DELETED * len(self._ids)
        self._ids.clear()
        return request, answer


WIRE = Wire(greeting, re.compile(rb"USING \S+\r\nWATCHING 2\r\nWATCHING 1\r\n"), batch)
