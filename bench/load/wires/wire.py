"""What the load generator must know of a protocol."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from bench.load.replies import ReplyError, shown
from bench.load.workload import Batch, Workload

MOST_GREETED = 65536
REFUSAL = b"-"
"""What an error begins with where more than one line may come."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A protocol. `greeting` and `prepare` take the queue; `greeting` also the client's own name.

    `greeted` matches the whole answer to the greeting of a server that serves: one that is still
    loading answers something else. `prepare` makes a queue with so many copies that get what is
    set on it (fanout children); None when queues need no making and there can be no copies.
    """

    greeting: Callable[[bytes, bytes], bytes]
    greeted: re.Pattern[bytes]
    batch: Callable[[Batch], Workload]
    prepare: Callable[[socket.socket, bytes, int], None] | None = None


def greet(wire: Wire, sock: socket.socket, key: bytes, name: bytes) -> None:
    """Sends the greeting and reads the answer; raises `ReplyError` when it is another one."""
    sock.sendall(wire.greeting(key, name))
    answer = b""
    while not wire.greeted.fullmatch(answer):
        data = sock.recv(4096)
        answer += data
        if not data or answer.startswith(REFUSAL) or len(answer) > MOST_GREETED:
            raise ReplyError(f"the server did not answer a greeting: {shown(answer)}")


def ask(sock: socket.socket, request: bytes, reply: re.Pattern[bytes]) -> None:
    """Sends a request and reads until the answer is whole; raises `ReplyError` for another one."""
    sock.sendall(request)
    answer = b""
    while not reply.fullmatch(answer):
        data = sock.recv(65536)
        answer += data
        if not data or len(answer) > MOST_GREETED:
            raise ReplyError(f"{shown(request)} was answered {answer[:400]!r}")
