"""The interface of the load generator's protocols."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from bench.load.replies import ReplyError, shown
from bench.load.workload import Batch, Workload

MOST_ANSWERED = 65536
"""The most bytes of an answer."""
REFUSAL = b"-"
"""The first byte of an error in protocols whose other answers may have several lines."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A protocol.

    Attributes:
        greeting: returns the first request on a connection, from the queue and the client's name.
        greeted: matches the whole answer to it; a server that is still loading answers differently.
        batch: returns the workload of a batch.
        prepare: creates a queue with a number of copies (fanout children) that also get every item;
            None if queues need not be created and there can be no copies.
    """

    greeting: Callable[[bytes, bytes], bytes]
    greeted: re.Pattern[bytes]
    batch: Callable[[Batch], Workload]
    prepare: Callable[[socket.socket, bytes, int], None] | None = None


def greet(wire: Wire, sock: socket.socket, key: bytes, name: bytes) -> None:
    """Send the greeting and read the answer. Raises `ReplyError` if it is not the expected one."""
    ask(sock, wire.greeting(key, name), wire.greeted)


def ask(sock: socket.socket, request: bytes, reply: re.Pattern[bytes]) -> None:
    """Send a request and read its answer. Raises `ReplyError` if it does not match `reply`."""
    sock.sendall(request)
    answer = b""
    while not reply.fullmatch(answer):
        data = sock.recv(65536)
        answer += data
        if not data or answer.startswith(REFUSAL) or len(answer) > MOST_ANSWERED:
            raise ReplyError(f"{shown(request)} was answered {answer[:400]!r}")
