"""nats-server with JetStream: a queue is a stream of one subject with one durable pull consumer.

A set is published with a reply subject, and is done when the stream has acknowledged it. A batch of
gets is one pull request to the consumer for `depth` items. The items are acknowledged together with
the client's next request, without waiting for an answer, as NATS' own clients do.
"""

from __future__ import annotations

import json
import re
import socket

from bench.load.replies import ReplyError, expect, line_end, shown
from bench.load.wires.wire import Wire, ask, greet
from bench.load.workload import Batch, Operation, Workload, repeated

INBOX = b"_INBOX.bench."
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
PING = b"PING\r\n"
MINUTE = 60 * 10**9
NOTHING_THERE = (b"404", b"408")


def greeting(_: bytes, name: bytes) -> bytes:
    """Return the subscription to the client's own inbox, which receives all replies."""
    return CONNECT + b"SUB %b%b 1\r\nPING\r\n" % (INBOX, name)


def batch(wanted: Batch) -> Workload:
    """Return messages to publish, or a pull request with its acknowledgements."""
    inbox = INBOX + wanted.name
    match wanted.operation:
        case Operation.SET:
            return repeated(wanted, publish(wanted.key, inbox, wanted.item), b"", published)
        case Operation.GET:
            ask_for = b'{"batch":%d,"no_wait":true}' % wanted.depth
            request = publish(b"$JS.API.CONSUMER.MSG.NEXT.%b.pull" % wanted.key, inbox, ask_for)
            pulled = Pulled(wanted.item, wanted.depth)
            size = (len(wanted.item) + 256) * wanted.depth
            return Workload(request, b"", pulled.parse, wanted.depth, size, pulled.acknowledgements)


def publish(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """Encode a message to publish."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def published(buffer: bytes, start: int) -> tuple[int, bool] | None:
    """Parse the stream's acknowledgement: a message with the sequence number of the item."""
    start = _past_pings(buffer, start)
    end = line_end(buffer, start)
    if end < 0:
        return None
    if not buffer.startswith(b"MSG ", start):
        raise ReplyError(shown(buffer[start:end]))
    after = end + 2 + int(buffer[buffer.rindex(b" ", start, end) : end]) + 2
    if len(buffer) < after:
        return None
    if buffer.find(b'"seq":', end, after) < 0 or buffer.find(b'"error":', end, after) >= 0:
        raise ReplyError(shown(buffer[start:after]))
    return _past_pings(buffer, after), True


def _past_pings(buffer: bytes, start: int) -> int:
    """Skip keep-alive PINGs of the server; they are too rare to need an answer during a run."""
    while buffer.startswith(PING, start):
        start += len(PING)
    return start


class Pulled:
    """Parses the messages of a pull and keeps the subjects to acknowledge them.

    A status message ends the pull, and the rest of the batch are misses. They are reported one by
    one, and the status is consumed with the last.
    """

    def __init__(self, item: bytes, depth: int) -> None:
        self._size = b"%d" % len(item)
        self._body = item + b"\r\n"
        self._depth = depth
        self._told = 0
        self._subjects: list[bytes] = []

    def parse(self, buffer: bytes, start: int) -> tuple[int, bool] | None:
        """Parse one reply; see `Parser`."""
        start = _past_pings(buffer, start)
        end = line_end(buffer, start)
        if end < 0:
            return None
        fields = buffer[start:end].split()
        if fields[0] == b"HMSG":
            return self._status(buffer, start, end + 2, int(fields[-1]))
        if fields[0] != b"MSG" or len(fields) != 5 or fields[4] != self._size:
            raise ReplyError(shown(buffer[start:end]))
        reply = expect(buffer, end + 2, self._body)
        if reply is None:
            return None
        self._subjects.append(fields[3])
        self._told += 1
        return _past_pings(buffer, reply[0]), True

    def _status(self, buffer: bytes, start: int, body: int, size: int) -> tuple[int, bool] | None:
        if len(buffer) < body + size + 2:
            return None
        if buffer[body:].split(maxsplit=2)[1] not in NOTHING_THERE:
            raise ReplyError(shown(buffer[body : body + size]))
        self._told += 1
        last = self._told == self._depth
        return (_past_pings(buffer, body + size + 2) if last else start), False

    def acknowledgements(self) -> tuple[bytes, bytes]:
        """Return an empty message to the subject of each item; there is no answer to it."""
        request = b"".join([b"PUB %b 0\r\n\r\n" % subject for subject in self._subjects])
        self._subjects.clear()
        self._told = 0
        return request, b""


def prepare(sock: socket.socket, key: bytes, copies: int) -> None:
    """Create the stream and its consumer; with copies, one more consumer for each."""
    greet(WIRE, sock, key, b"prepare")
    name = key.decode()
    retention = "interest" if copies else "workqueue"
    stream = {"name": name, "subjects": [name], "retention": retention, "storage": "file"}
    _api(sock, f"STREAM.CREATE.{name}", stream)
    for consumer in ("pull", *(f"copy{number}" for number in range(copies))):
        settings = {
            "durable_name": consumer,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": MINUTE,
            "max_ack_pending": -1,
            "max_waiting": 20000,
        }
        request = {"stream_name": name, "config": settings}
        _api(sock, f"CONSUMER.DURABLE.CREATE.{name}.{consumer}", request)


def _api(sock: socket.socket, function: str, request: object) -> None:
    payload = json.dumps(request).encode()
    good = re.compile(rb'MSG \S+ 1 \s*\d+\r\n\{(?!.*"error":).*\}\r\n', re.DOTALL)
    ask(sock, publish(f"$JS.API.{function}".encode(), INBOX + b"prepare", payload), good)


WIRE = Wire(greeting, re.compile(rb"INFO \{.*\} ?\r\nPONG\r\n"), batch, prepare)
