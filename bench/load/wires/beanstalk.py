"""beanstalkd: a queue is a tube. A get is a reserve, then a delete of the reserved job's id."""

from __future__ import annotations

import re
from dataclasses import replace

from bench.load.replies import ReplyError, expect, line_end, shown
from bench.load.wires.wire import Wire
from bench.load.workload import Batch, Operation, Workload, repeated

DELETED = b"DELETED\r\n"


def greeting(key: bytes, _: bytes) -> bytes:
    """Return the commands that make the connection put to the tube and reserve only from it."""
    return b"use %b\r\nwatch %b\r\nignore default\r\n" % (key, key)


def batch(wanted: Batch) -> Workload:
    """Return puts, or reserves without waiting, with their deletes; a job's time to run is 60 s."""
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
    """Parse `INSERTED` and the id of the job."""
    end = line_end(buffer, start)
    if end < 0:
        return None
    if not buffer.startswith(b"INSERTED ", start):
        raise ReplyError(shown(buffer[start:end]))
    return end + 2, True


class Reserved:
    """Parses the replies to reserves and keeps the ids; `TIMED_OUT` is a miss."""

    def __init__(self, item: bytes) -> None:
        self._size = b"%d" % len(item)
        self._body = item + b"\r\n"
        self._ids: list[bytes] = []

    def parse(self, buffer: bytes, start: int) -> tuple[int, bool] | None:
        """Parse one reply; see `Parser`."""
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
        """Return the deletes of the reserved jobs, and the answer to them."""
        request = b"".join([b"delete %b\r\n" % number for number in self._ids])
        answer = DELETED * len(self._ids)
        self._ids.clear()
        return request, answer


WIRE = Wire(greeting, re.compile(rb"USING \S+\r\nWATCHING 2\r\nWATCHING 1\r\n"), batch)
