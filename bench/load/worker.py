"""The hot part of the load generator: one epoll loop that keeps every connection busy.

In bursts, each connection has one batch of `depth` requests in flight. When its last reply has been
read, the next batch is sent, until all operations of the phase are done. In a sliding window, each
connection has `depth` requests in flight, and sends a new one for each reply.

All requests are built beforehand, an expected reply costs one comparison, and the clock is read
once per batch, or once for all replies that were read together. If a protocol requires a second
request (such as a delete with the id in the reply), that is part of the batch.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import ssl
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from typing import Self

from bench.load import latency
from bench.load.replies import BatchReplies, ReplyError, WindowReplies, exactly
from bench.load.wires import WIRES
from bench.load.wires.wire import greet
from bench.load.workload import Batch, Follow, Operation, Protocol, Workload, item_of
from kestrelmq.client.address import Address, open_socket

MAX_EVENTS = 512
"""Connections served at a time, so that with thousands the server gets new work meanwhile."""

MAX_SEND = 256 * 1024
"""Bytes sent at a time, so that copying a large item does not hold up other processes for long."""


class LoadError(Exception):
    """The load failed: an error reply, a lost connection, or the time limit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The connections of one worker and what they send. `size` is in bytes, times in seconds.

    `path` is a Unix socket to use instead of `host` and `port`; `tls` is what it takes to speak TLS
    on those. With `window` requests are sent in
    a sliding window, otherwise in bursts.

    Connection number `i`, counted from `first_connection`, uses key `i % keys`. The name of a key
    is `prefix` and its number. Each set must reach `copies` further queues.
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
    prefix: str = "flood"
    copies: int = 0
    path: str = ""
    window: bool = False
    tls: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return open_socket(Address(self.host, self.port, self.path), self.time_limit, self.tls)

    def key(self, number: int) -> bytes:
        """Return the key that connection `number` uses."""
        return f"{self.prefix}{number % self.keys:05}".encode()


@dataclass(frozen=True, slots=True)
class Report:
    """The measurements of one worker in one phase; times and `cpu` are in seconds."""

    operations: int
    misses: int
    started: float
    ended: float
    cpu: float
    latencies: Counter[int]


class _Connection:
    """A socket, the batch it repeats, and the replies it waits for.

    `first` checks the replies to the batch. `replies` is the same, or checks the reply to the
    request that follows the batch. `prefix` is sent before the next request. In a sliding window,
    `window` checks the replies, `times` has when each request in flight was sent, and `requests`
    has as many requests as its index says. `checks` is `first` or `window`.
    """

    __slots__ = (
        "checks", "first", "follow", "key", "name", "prefix", "read_size", "receive", "replies",
        "request", "requests", "send", "socket", "started", "times", "window",
    )  # fmt: skip
    window: WindowReplies
    checks: BatchReplies | WindowReplies
    first: BatchReplies
    replies: BatchReplies

    def __init__(self, sock: socket.socket, key: bytes, name: bytes) -> None:
        self.socket = sock
        self.send = sock.send
        self.receive = sock.recv
        self.key = key
        self.name = name
        self.request = b""
        self.prefix = b""
        self.follow: Follow | None = None
        self.read_size = 0
        self.started = 0.0
        self.times: deque[float] = deque()
        self.requests: list[bytes] = []

    def prepare(self, work: Workload) -> None:
        self.request = work.request
        self.read_size = work.read_size
        self.follow = work.follow
        self.checks = self.replies = self.first = BatchReplies(work.whole, work.parser, work.depth)

    def prepare_window(self, work: Workload, depth: int) -> None:
        """Send the request of `work`, `depth` times at once and then once for each reply."""
        self.requests = [work.request * count for count in range(depth + 1)]
        self.read_size = work.read_size * depth
        self.checks = self.window = WindowReplies(work.whole, work.parser, depth)


class Worker:
    """Keeps the connections of a plan open for any number of phases; a context manager."""

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
        """Close every connection."""
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._epoll.close()

    def _connect(self) -> None:
        """Open all connections, and wait for an answer on each, so that every one is accepted."""
        plan = self._plan
        wire = WIRES[plan.protocol]
        for number in range(plan.first_connection, plan.first_connection + plan.connections):
            sock = plan.connect()
            connection = _Connection(sock, plan.key(number), b"%d-%d" % (os.getpid(), number))
            self._connections[sock.fileno()] = connection
            try:
                greet(wire, sock, connection.key, connection.name)
            except (OSError, ReplyError) as error:
                raise LoadError(str(error)) from error
            sock.setblocking(False)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def run(self, operation: Operation, operations: int, seconds: float | None = None) -> Report:
        """Run and measure `operations`, rounded up to whole batches. Raises `LoadError`.

        After `seconds` no more batches are sent.
        """
        plan = self._plan
        depth = 1 if plan.window else plan.depth  # requests of a sample
        batches = -(-operations // depth)
        for connection in self._connections.values():
            work = self._workload(operation, connection, depth)
            if plan.window:
                connection.prepare_window(work, plan.depth)
            else:
                connection.prepare(work)
        drive = self._drive_windows if plan.window else self._drive
        samples: array[float] = array("d")
        gc.collect()
        gc.disable()  # The loop makes no cycles, and a collection would add to the latencies.
        try:
            cpu, started = time.process_time(), time.perf_counter()
            stop = started + plan.time_limit if seconds is None else started + seconds
            drive(batches, samples, started + plan.time_limit, stop)
            ended, cpu = time.perf_counter(), time.process_time() - cpu
        except (OSError, ReplyError) as error:
            raise LoadError(f"{operation.value}: {error}") from error
        finally:
            gc.enable()
        done = len(samples) * depth
        misses = sum(connection.checks.misses for connection in self._connections.values())
        return Report(done, misses, started, ended, cpu, latency.histogram(samples))

    def _workload(self, operation: Operation, connection: _Connection, depth: int) -> Workload:
        plan = self._plan
        item, name = item_of(plan.size), connection.name
        batch = Batch(operation, connection.key, item, depth, name, plan.copies)
        work = WIRES[plan.protocol].batch(batch)
        if plan.window and work.follow is not None:
            raise LoadError(f"{plan.protocol.value} has no sliding window: its requests have parts")
        return work

    def _drive(self, batches: int, samples: array[float], deadline: float, stop: float) -> None:
        clock, poll, connections = time.perf_counter, self._epoll.poll, self._connections
        record, readable = samples.append, select.EPOLLIN
        completed = 0
        issued = min(batches, len(connections))
        for fd, connection in islice(connections.items(), issued):
            connection.started = clock()
            self._send(fd, connection, connection.request)
        while completed < batches:
            for fd, event in poll(1.0, MAX_EVENTS):
                connection = connections[fd]
                if event != readable and not self._send_rest(fd, event):
                    continue
                data = connection.receive(connection.read_size)
                replies = connection.replies
                if data != replies.fast and not replies.feed(data):
                    continue
                if connection.follow is not None and self._follows(fd, connection):
                    continue
                now = clock()
                record(now - connection.started)
                completed += 1
                if issued < batches:
                    issued += 1
                    connection.started = now
                    self._send(fd, connection, connection.request)
                elif connection.prefix:
                    self._send(fd, connection, b"")
            now = clock()
            if now > deadline:
                raise ReplyError(f"time limit: {completed} of {batches} batches answered")
            if now > stop:
                batches = issued

    def _drive_windows(
        self, operations: int, samples: array[float], deadline: float, stop: float
    ) -> None:
        clock, poll, connections = time.perf_counter, self._epoll.poll, self._connections
        record, readable, depth = samples.append, select.EPOLLIN, self._plan.depth
        completed = issued = 0
        for fd, connection in connections.items():
            first = min(depth, operations - issued)
            issued += first
            connection.times = deque([clock()] * first)
            self._send(fd, connection, connection.requests[first])
        while completed < operations:
            for fd, event in poll(1.0, MAX_EVENTS):
                connection = connections[fd]
                if event != readable and not self._send_rest(fd, event):
                    continue
                count = connection.window.feed(connection.receive(connection.read_size))
                if not count:
                    continue
                now, times = clock(), connection.times
                if count > len(times):
                    raise ReplyError("more replies than requests")
                for _ in range(count):
                    record(now - times.popleft())
                completed += count
                new = min(count, operations - issued)
                if new:
                    issued += new
                    times.extend([now] * new)
                    self._send(fd, connection, connection.requests[new])
            now = clock()
            if now > deadline:
                raise ReplyError(f"time limit: {completed} of {operations} requests answered")
            if now > stop:
                operations = issued

    def _follows(self, fd: int, connection: _Connection) -> bool:
        """Send the request that follows a batch; return whether the batch waits for its answer."""
        if connection.follow is None or connection.replies is not connection.first:
            connection.replies = connection.first
            return False
        request, answer = connection.follow()
        if not answer:
            connection.prefix = request
            return False
        connection.replies = BatchReplies(answer, exactly(answer), 1)
        self._send(fd, connection, request)
        return True

    def _send(self, fd: int, connection: _Connection, request: bytes) -> None:
        if connection.prefix:
            request, connection.prefix = connection.prefix + request, b""
        if fd in self._unsent:  # in a sliding window
            self._unsent[fd] = memoryview(bytes(self._unsent[fd]) + request)
            return
        sent = connection.send(request) if len(request) <= MAX_SEND else 0
        if sent < len(request):
            self._unsent[fd] = memoryview(request)[sent:]
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, fd: int, event: int) -> bool:
        """Continue to send a batch that was sent in part; return whether there is input to read."""
        if event & select.EPOLLOUT:
            rest = self._unsent.pop(fd)
            sent = self._connections[fd].send(rest[:MAX_SEND])
            if sent < len(rest):
                self._unsent[fd] = rest[sent:]
            else:
                self._epoll.modify(fd, select.EPOLLIN)
        return bool(event & ~select.EPOLLOUT)
