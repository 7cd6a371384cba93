"""One epoll loop that keeps every connection busy: the hot part of the load generator.

Each connection has one batch of `depth` requests under way; when its last reply is read the next
batch is sent, until the phase's operations are used up. Everything sent was built beforehand, an
expected reply costs one comparison, and there is one clock reading a batch.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Self

from bench import latency, workload
from bench.replies import BatchReplies, ReplyError
from bench.workload import Operation, Protocol

CONNECT_CHUNK = 64
"""How many connections are opened before their greetings are awaited: fewer than any backlog."""


MAX_EVENTS = 512
"""Connections served at a time: with thousands, the server gets work while others are read."""


class LoadError(Exception):
    """The run can't be measured: an error reply, a lost connection, or the time limit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one worker does in each phase. Sizes in bytes, times in seconds.

    Connection number `i` works on key `i % keys`, counted from `first_connection`.
    """

    host: str
    port: int
    protocol: Protocol
    connections: int
    depth: int
    size: int
    keys: int
    time_limit: float
    first_connection: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker measured in one phase: monotonic clock and CPU in seconds."""

    operations: int
    misses: int
    started: float
    ended: float
    cpu: float
    latencies: Counter[int]


class _Connection:
    """A socket, the batch it repeats, and the replies it waits for."""

    __slots__ = ("key", "read_size", "receive", "replies", "request", "send", "socket", "started")
    replies: BatchReplies

    def __init__(self, sock: socket.socket, key: str) -> None:
        self.socket = sock
        self.send = sock.send
        self.receive = sock.recv
        self.key = key
        self.request = b""
        self.read_size = 0
        self.started = 0.0

    def prepare(self, work: workload.Workload) -> None:
        self.request = work.request
        self.read_size = work.read_size
        self.replies = BatchReplies(work.whole, work.parser, work.depth)


class Worker:
    """Holds the connections of a plan over any number of phases; a context manager."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._connections: dict[int, _Connection] = {}
        self._unsent: dict[int, memoryview] = {}

    def __enter__(self) -> Self:
        self._epoll = select.epoll()
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._epoll.close()

    def _connect(self) -> None:
        """Opens all connections, and has the server answer on each: none is half accepted."""
        plan = self._plan
        for first in range(0, plan.connections, CONNECT_CHUNK):
            chunk = []
            for number in range(first, min(first + CONNECT_CHUNK, plan.connections)):
                sock = socket.create_connection((plan.host, plan.port), timeout=plan.time_limit)
                key = f"flood{(plan.first_connection + number) % plan.keys:05}"
                self._connections[sock.fileno()] = _Connection(sock, key)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(workload.greeting(plan.protocol))
                chunk.append(sock)
            for sock in chunk:
                if not sock.recv(4096).endswith(b"\r\n"):
                    raise LoadError("the server did not answer a greeting")
                sock.setblocking(False)
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def run(self, operation: Operation, operations: int) -> Report:
        """Does `operations` (rounded up to whole batches) and measures them; raises `LoadError`."""
        plan = self._plan
        batches = -(-operations // plan.depth)
        for connection in self._connections.values():
            connection.prepare(self._workload(operation, connection.key))
        samples: array[float] = array("d")
        gc.collect()
        gc.disable()  # The loop makes no cycles, and a collection would show as latency.
        try:
            cpu, started = time.process_time(), time.perf_counter()
            self._drive(batches, samples, started + plan.time_limit)
            ended, cpu = time.perf_counter(), time.process_time() - cpu
        except (OSError, ReplyError) as error:
            raise LoadError(f"{operation.value}: {error}") from error
        finally:
            gc.enable()
        misses = sum(connection.replies.misses for connection in self._connections.values())
        latencies = latency.histogram(samples)
        return Report(batches * plan.depth, misses, started, ended, cpu, latencies)

    def _workload(self, operation: Operation, key: str) -> workload.Workload:
        plan = self._plan
        return workload.build(plan.protocol, operation, key, plan.size, plan.depth)

    def _drive(self, batches: int, samples: array[float], deadline: float) -> None:
        clock, poll, connections = time.perf_counter, self._epoll.poll, self._connections
        record, readable = samples.append, select.EPOLLIN
        completed = 0
        issued = min(batches, len(connections))
        for fd, connection in islice(connections.items(), issued):
            connection.started = clock()
            self._send(fd, connection)
        while completed < batches:
            for fd, event in poll(1.0, MAX_EVENTS):
                connection = connections[fd]
                if event != readable and not self._send_rest(fd, event):
                    continue
                data = connection.receive(connection.read_size)
                replies = connection.replies
                if data != replies.fast and not replies.feed(data):
                    continue
                now = clock()
                record(now - connection.started)
                completed += 1
                if issued < batches:
                    issued += 1
                    connection.started = now
                    self._send(fd, connection)
            if clock() > deadline:
                raise ReplyError(f"time limit: {completed} of {batches} batches answered")

    def _send(self, fd: int, connection: _Connection) -> None:
        sent = connection.send(connection.request)
        if sent < len(connection.request):
            self._unsent[fd] = memoryview(connection.request)[sent:]
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, fd: int, event: int) -> bool:
        """Goes on with a batch that the socket did not take whole; True when there is input."""
        if event & select.EPOLLOUT:
            rest = self._unsent.pop(fd)
            sent = self._connections[fd].send(rest)
            if sent < len(rest):
                self._unsent[fd] = rest[sent:]
            else:
                self._epoll.modify(fd, select.EPOLLIN)
        return bool(event & ~select.EPOLLOUT)
