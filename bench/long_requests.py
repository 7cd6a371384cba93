"""The longest turn of the server during requests that have much to do.

    PYTHONPATH=build/compiled python -m bench.long_requests --items 100000

While a turn lasts, all other clients wait. Each request is sent to a fresh server; the table shows
how long it took until its reply, and the CPU time of the server's longest turn meanwhile; `held`
is how long the longest one held others up, while it waited for the disk or for another thread, too.
The goal is that no turn takes more than 20 ms. With `many queues` each of the `--items` is in a
queue of its own.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load.wires.thrift import CALL, I32, LENGTH, LIST, STRING, field, frame, sequence, string
from bench.stalls import connect, server

ITEM: Final = b"x" * 64
GOAL: Final = 20.0
"""Milliseconds."""
_CHILDREN: Final = 1000
_LARGE: Final = 100 << 20
_LARGE_FRAME: Final = 60 << 20
_LARGE_BODY: Final = 6 << 20
"""The largest item that can be put over HTTP."""
_LARGE_LINE: Final = 11 << 20
"""The largest item that can be imported over HTTP, in base64."""
CONFIG: Final = """max_monitor_transactions = 1000000
[default]
max_item_size = "128 MiB"
[queues.expiring]
expire_to_queue = "expired"
[queues.memory]
keep_journal = false
[queues.failing]
max_deliveries = 1
dead_letter_queue = "dead"
[queues.retried]
retry_delay = "1s"
[queues.behind]
max_memory_size = "1 MiB"
[aliases.one]
destination_queues = ["a"]
[aliases.three]
destination_queues = ["a", "b", "c"]
"""


class Client:
    """A connection to one port of the server."""

    def __init__(self, port: int) -> None:
        self._socket: socket.socket = connect(port)
        self._replies = self._socket.makefile("rb", 1 << 20)

    def send(self, request: bytes) -> None:
        """Send a request."""
        self._socket.sendall(request)

    def line(self) -> bytes:
        """Receive a line."""
        line: bytes = self._replies.readline()
        return line

    def ask(self, request: bytes) -> bytes:
        """Send a request; return the line that answers it."""
        self.send(request)
        return self.line()

    def skip(self, size: int) -> None:
        """Receive `size` bytes."""
        while size:
            size -= len(self._replies.read(min(size, 1 << 20)))

    def skip_until(self, end: bytes) -> None:
        """Receive lines up to `end`; items must not contain it."""
        while (line := self.line()) != end:
            if not line or line.startswith((b"ERROR", b"SERVER_ERROR", b"CLIENT_ERROR")):
                raise RuntimeError(f"unexpected reply: {line!r}")

    def call(self, request: bytes) -> bytes:
        """Send a request over thrift; return the frame of the answer."""
        self.send(request)
        (size,) = LENGTH.unpack(self._replies.read(LENGTH.size))
        found: bytes = self._replies.read(size)
        return found

    def close(self) -> None:
        """Hang up."""
        self._replies.close()
        self._socket.close()


@dataclass
class Server:
    """The ports of a server, and how many items are asked for."""

    ports: dict[str, int]
    count: int

    def client(self, protocol: str = "memcache") -> Client:
        """Connect over a protocol."""
        return Client(self.ports[protocol])

    def fill(self, queue: str, count: int | None = None, expiry: int = 0) -> None:
        """Add items; `expiry` is in Unix seconds."""
        client, left = self.client(), self.count if count is None else count
        request = b"set %b 0 %d %d\r\n%b\r\n" % (queue.encode(), expiry, len(ITEM), ITEM)
        while left:
            batch = min(left, 1000)
            client.send(request * batch)
            for _ in range(batch):
                client.line()
            left -= batch
        client.close()


def _expired(queue: str, request: bytes) -> Callable[[Server], Callable[[], object]]:
    def prepare(server: Server) -> Callable[[], object]:
        at = int(time.time()) + 2 + server.count // 20_000
        server.fill(queue, expiry=at)
        time.sleep(max(0.0, at - time.time()) + 0.1)
        client = server.client()

        return lambda: client.ask(request)

    return prepare


def _swept(server: Server) -> Callable[[], object]:
    at = int(time.time()) + 2 + server.count // 20_000
    server.fill("expiring", expiry=at)
    client = server.client()

    def run() -> None:
        found = b""
        while found != b"STAT queue_expiring_items 0\r\n":
            time.sleep(0.2)
            client.send(b"stats\r\n")
            while (line := client.line()) != b"END\r\n":
                if line.startswith(b"STAT queue_expiring_items "):
                    found = line

    return run


def _text_put(server: Server) -> Callable[[], object]:
    client = server.client("text")
    client.send(b"put q:\n")
    items = (ITEM + b"\n") * server.count + b"\n"

    return lambda: client.ask(items)


def _thrift_put(server: Server) -> Callable[[], object]:
    return _put_over_thrift(server, b"q", [string(ITEM)] * min(server.count, 99_000))


def _put_over_thrift(server: Server, queue: bytes, items: list[bytes]) -> Callable[[], object]:
    client = server.client("thrift")
    fields = field(STRING, 1, string(queue)) + field(LIST, 2, sequence(STRING, *items))
    request = frame(b"put", CALL, fields + field(I32, 3, LENGTH.pack(0)))
    return lambda: client.call(request)


def _thrift_get(count: int, auto_abort: int) -> Callable[[Server], Callable[[], object]]:
    def prepare(server: Server) -> Callable[[], object]:
        server.fill("q")
        client = server.client("thrift")
        numbers = ((2, count), (3, 0), (4, auto_abort))
        fields = field(STRING, 1, string(b"q")) + b"".join(
            field(I32, at, LENGTH.pack(number)) for at, number in numbers
        )
        request = frame(b"get", CALL, fields)
        return lambda: client.call(request)

    return prepare


def _monitor(server: Server, client: Client) -> None:
    client.send(b"monitor q 1 %d\r\n" % server.count)
    client.skip(server.count * (len(b"VALUE q 0 64\r\n") + len(ITEM) + len(b"\r\nEND\r\n")))
    client.skip_until(b"END\r\n")


def _monitored(server: Server) -> Callable[[], object]:
    server.fill("q")
    client = server.client()
    return lambda: _monitor(server, client)


def _confirmed(server: Server) -> Callable[[], object]:
    server.fill("q")
    client = server.client()
    _monitor(server, client)

    return lambda: client.ask(b"confirm q %d\r\n" % server.count)


def _hung_up(server: Server) -> Callable[[], object]:
    server.fill("q")
    client, other = server.client(), server.client()
    _monitor(server, client)

    def run() -> None:
        client.close()
        other.send(b"get q/t=60000\r\n")
        other.skip_until(b"END\r\n")

    return run


def _timed(server: Server) -> Callable[[], object]:
    """All reads are opened by one client over thrift and end at about the same time."""
    server.fill("q", 10_000)
    run = _thrift_get(10_000, 3000)
    opened = run(server)
    opened()

    def wait() -> None:
        time.sleep(5)

    return wait


def _reserved(server: Server) -> Callable[[], object]:
    server.fill("q")
    client = server.client()
    return lambda: _reserve(server, client)


def _reserve(server: Server, client: Client) -> None:
    client.send(b"reserve q %d lease=600000 tag=a:1:x\r\n" % min(server.count, 1000))
    client.skip_until(b"END\r\n")


def _finished(server: Server) -> Callable[[], object]:
    server.fill("q")
    client = server.client()
    _reserve(server, client)

    return lambda: client.ask(b"finish q tag=a:1:x\r\n")


def _filled(request: bytes) -> Callable[[Server], Callable[[], object]]:
    def prepare(server: Server) -> Callable[[], object]:
        server.fill("q")
        client = server.client()

        return lambda: client.ask(request)

    return prepare


def _large_set(server: Server, key: bytes = b"q") -> Callable[[], object]:
    return _one_large(server.client(), b"set %b 0 0 %d\r\n" % (key, _LARGE), _LARGE, b"\r\n")


def _text_large_put(key: bytes = b"q") -> Callable[[Server], Callable[[], object]]:
    begin = b"put %b:\n" % key
    return lambda server: _one_large(server.client("text"), begin, _LARGE_FRAME, b"\n\n")


def _one_large(client: Client, begin: bytes, size: int, end: bytes) -> Callable[[], object]:
    """Add an item of `size` bytes, which is sent in pieces."""

    def run() -> None:
        client.send(begin)
        for _ in range(size >> 20):
            client.send(b"x" * (1 << 20))
        client.ask(end)

    return run


def _thrift_large_put(queue: bytes = b"q") -> Callable[[Server], Callable[[], object]]:
    return lambda server: _put_over_thrift(server, queue, [string(b"x" * _LARGE_FRAME)])


def _large_set_to_children(server: Server) -> Callable[[], object]:
    for number in range(3):
        server.fill(f"q+{number}", 1)
    return _large_set(server)


def _large_set_by_producer(server: Server) -> Callable[[], object]:
    return _large_set(server, b"q/producer=p/seq=1")


def _large_set_delayed(server: Server) -> Callable[[], object]:
    return _large_set(server, b"q/delay=600000")


def _delayed_for_children(server: Server) -> Callable[[], object]:
    client = server.client()
    for number in range(_CHILDREN):
        client.ask(b"set many+%d 0 0 1\r\nx\r\n" % number)

    return lambda: client.ask(b"set many/delay=600000 0 0 1\r\nx\r\n")


def _large_set_in_memory(server: Server) -> Callable[[], object]:
    return _large_set(server, b"memory")


def _second_large_set(server: Server) -> Callable[[], object]:
    server.fill("q", 1)
    return _large_set(server)


def _large_read(protocol: str, request: bytes) -> Callable[[Server], Callable[[], object]]:
    """A request that a large item answers; what comes behind the item is not read."""

    def prepare(server: Server) -> Callable[[], object]:
        _large_set(server)()
        client = server.client(protocol)

        def run() -> None:
            client.send(request)
            client.skip(_LARGE)

        return run

    return prepare


# --- what becomes of a large item later ---


def _add_large(server: Server, key: bytes) -> Client:
    """Add an item of 100 MiB; return the client."""
    client = server.client()
    _one_large(client, b"set %b 0 0 %d\r\n" % (key, _LARGE), _LARGE, b"\r\n")()
    return client


def _read_large(client: Client, key: bytes) -> None:
    """Read a large item, and wait for it if need be."""
    client.ask(b"get %b\r\n" % key)
    client.skip(_LARGE)
    client.skip_until(b"END\r\n")


def _joined(server: Server) -> Callable[[], object]:
    client = _add_large(server, b"q/delay=1000")
    return lambda: _read_large(client, b"q/t=60000")


def _moved_when_expired(server: Server) -> Callable[[], object]:
    client = server.client()
    _one_large(client, b"set expiring 0 2 %d\r\n" % _LARGE, _LARGE, b"\r\n")()
    return lambda: _read_large(client, b"expired/t=60000")


def _given_back(queue: bytes, then: bytes) -> Callable[[Server], Callable[[], object]]:
    """Give a large item back; it comes to the queue `then`."""

    def prepare(server: Server) -> Callable[[], object]:
        client = _add_large(server, queue)
        _read_large(client, queue + b"/open")

        def run() -> None:
            client.send(b"get %b/abort\r\n" % queue)
            client.skip_until(b"END\r\n")
            _read_large(client, then + b"/t=60000")

        return run

    return prepare


def _released_dead(server: Server) -> Callable[[], object]:
    client = _add_large(server, b"failing")
    client.ask(b"reserve failing 1 lease=600000 tag=a:1:x\r\n")
    client.skip(_LARGE)
    client.skip_until(b"END\r\n")

    def run() -> None:
        client.ask(b"release failing tag=a:1:x dead\r\n")
        _read_large(client, b"dead/t=60000")

    return run


def _managed_large(request: bytes, key: bytes = b"q") -> Callable[[Server], Callable[[], object]]:
    def prepare(server: Server) -> Callable[[], object]:
        client = _add_large(server, key)

        def run() -> None:
            if (answer := client.ask(request)).startswith((b"SERVER_ERROR", b"CLIENT_ERROR")):
                raise RuntimeError(f"unexpected reply: {answer!r}")

        return run

    return prepare


def _large_behind(protocol: str, request: bytes) -> Callable[[Server], Callable[[], object]]:
    """Read a large item behind another one, which memory has no room for."""

    def prepare(server: Server) -> Callable[[], object]:
        _add_large(server, b"behind")
        client = _add_large(server, b"behind")
        other = server.client(protocol)

        def run() -> None:
            _read_large(client, b"behind")
            other.send(request)
            other.skip(_LARGE)

        return run

    return prepare


def _over_http(
    method: str, path: str, body: Callable[[], bytes] | None = None, *, is_filled: bool = False
) -> Callable[[Server], Callable[[], object]]:
    def prepare(server: Server) -> Callable[[], object]:
        if is_filled:
            _add_large(server, b"q")
        sent = None if body is None else body()
        client = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=60)
        kind = "application/x-ndjson" if path == "import" else "application/json"

        def run() -> None:
            client.request(method, f"/api/v1/queues/q/{path}", sent, {"Content-Type": kind})
            answer = client.getresponse()
            if answer.status >= http.client.BAD_REQUEST:
                raise RuntimeError(f"unexpected reply: {answer.read()!r}")
            while answer.read(1 << 20):
                pass

        return run

    return prepare


def _as_json() -> bytes:
    data = base64.b64encode(bytes(_LARGE_BODY)).decode()
    return json.dumps({"data": data}).encode()


def _as_line() -> bytes:
    data = base64.b64encode(bytes(_LARGE_LINE)).decode()
    return json.dumps({"queue": "q", "data_base64": data}).encode() + b"\n"


def _fill_queues(server: Server) -> None:
    """Add an item to each of as many queues, and let their upkeep look at them."""
    client = server.client()
    for begin in range(0, server.count, 100):
        numbers = range(begin, min(begin + 100, server.count))
        client.send(b"".join(b"set q%d 0 0 1\r\nx\r\n" % number for number in numbers))
        for _ in numbers:
            client.line()
    client.close()
    time.sleep(5)


def _of_all_queues(request: bytes, end: bytes = b"") -> Callable[[Server], Callable[[], object]]:
    """A request about every queue, and the end of its reply, if that has several lines."""

    def prepare(server: Server) -> Callable[[], object]:
        _fill_queues(server)
        client = server.client()

        def run() -> None:
            client.send(request)
            if end:
                client.skip_until(end)
            else:
                client.line()

        return run

    return prepare


def _all_over_http(path: str) -> Callable[[Server], Callable[[], object]]:
    def prepare(server: Server) -> Callable[[], object]:
        _fill_queues(server)
        client = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=60)

        def run() -> None:
            client.request("GET", path)
            answer = client.getresponse()
            if path == "/api/v1/events":
                left = server.count
                while left > 0:
                    left -= answer.readline().count(b'["q')
            else:
                while answer.read(1 << 20):
                    pass

        return run

    return prepare


# --- many clients at once ---


def _unread_peeks(server: Server) -> Callable[[], object]:
    """200 clients each ask for an item of 900 KB 50 times, and read nothing."""
    filler = server.client()
    filler.send(b"set q 0 0 %d\r\n%b\r\n" % (900 << 10, b"x" * (900 << 10)))
    filler.line()
    clients = [server.client() for _ in range(200)]

    def run() -> None:
        for client in clients:
            client.send(b"get q/peek\r\n" * 50)
        time.sleep(1)
        for client in clients:
            client.close()
        time.sleep(1)

    return run


def _monitors_hang_up(server: Server) -> Callable[[], object]:
    clients = [server.client() for _ in range(1500)]
    for client in clients:
        client.send(b"monitor q 600 10\r\n")
    time.sleep(1)

    def run() -> None:
        for client in clients:
            client.close()
        time.sleep(1)

    return run


def _declares(server: Server) -> Callable[[], object]:
    clients = [server.client() for _ in range(250)]

    def run() -> None:
        for number, client in enumerate(clients):
            client.send(b"declare q%d max_items=5\r\n" % number)
        for client in clients:
            client.line()

    return run


def _leases_end(server: Server) -> Callable[[], object]:
    server.fill("q")
    client = server.client()
    for _ in range(server.count // 1000):
        client.send(b"reserve q 1000 lease=20000\r\n")
        client.skip_until(b"END\r\n")

    def wait() -> None:
        time.sleep(22)

    return wait


REQUESTS: Final[dict[str, Callable[[Server], Callable[[], object]]]] = {
    "sweep, expire to a queue": _swept,
    "flush_expired": _expired("q", b"flush_expired q\r\n"),
    "get behind expired items": _expired("q", b"get q\r\n"),
    "get behind items that move": _expired("expiring", b"get expiring\r\n"),
    "text put": _text_put,
    "thrift put": _thrift_put,
    "thrift get 1,000": _thrift_get(1000, 0),
    "thrift get 10,000": _thrift_get(10_000, 0),
    "thrift get 10,000, open": _thrift_get(10_000, 600_000),
    "thrift reads all overdue": _timed,
    "monitor": _monitored,
    "confirm": _confirmed,
    "hang up with open reads": _hung_up,
    "reserve 1,000": _reserved,
    "finish 1,000": _finished,
    "flush": _filled(b"flush q\r\n"),
    "delete": _filled(b"delete q\r\n"),
    "delayed set, 1,000 children": _delayed_for_children,
    "set of 100 MiB": _large_set,
    "set of 100 MiB, old queue": _second_large_set,
    "set of 100 MiB, 3 children": _large_set_to_children,
    "set of 100 MiB, producer": _large_set_by_producer,
    "text put of 60 MiB": _text_large_put(),
    "text put of 60 MiB, no journal": _text_large_put(b"memory"),
    "thrift put of 60 MiB": _thrift_large_put(),
    "thrift 60 MiB, no journal": _thrift_large_put(b"memory"),
    "set of 100 MiB, delayed": _large_set_delayed,
    "set of 100 MiB, no journal": _large_set_in_memory,
    "get of 100 MiB": _large_read("memcache", b"get q\r\n"),
    "browse of 100 MiB": _large_read("memcache", b"browse q 0 1\r\n"),
    "thrift peek of 100 MiB": _large_read(
        "thrift", frame(b"peek", CALL, field(STRING, 1, string(b"q")))
    ),
    "set of 100 MiB, alias": lambda server: _large_set(server, b"one"),
    "set of 100 MiB, alias of 3": lambda server: _large_set(server, b"three"),
    "the same, delayed": lambda server: _large_set(server, b"three/delay=600000"),
    "text put of 60 MiB, alias": _text_large_put(b"three"),
    "thrift put of 60 MiB, alias": _thrift_large_put(b"three"),
    "100 MiB become due": _joined,
    "100 MiB expire to a queue": _moved_when_expired,
    "abort of 100 MiB": _given_back(b"q", b"q"),
    "100 MiB wait for a retry": _given_back(b"retried", b"retried"),
    "100 MiB become a dead letter": _given_back(b"failing", b"dead"),
    "release of 100 MiB, dead": _released_dead,
    "move of 100 MiB": _managed_large(b"move q other\r\n"),
    "copy of 100 MiB": _managed_large(b"copy q other\r\n"),
    "redrive of 100 MiB": _managed_large(b"redrive dead failing\r\n", b"dead"),
    "move of 100 MiB, alias of 3": _managed_large(b"move q three\r\n"),
    "get of 100 MiB behind": _large_behind("memcache", b"get behind\r\n"),
    "peek of 100 MiB behind": _large_behind("memcache", b"get behind/peek\r\n"),
    "reserve of 100 MiB behind": _large_behind("memcache", b"reserve behind 1 lease=60000\r\n"),
    "thrift peek of 100 MiB behind": _large_behind(
        "thrift", frame(b"peek", CALL, field(STRING, 1, string(b"behind")))
    ),
    "flush_all, many queues": _of_all_queues(b"flush_all\r\n"),
    "flush_all_expired, the same": _of_all_queues(b"flush_all_expired\r\n"),
    "reload, many queues": _of_all_queues(b"reload\r\n"),
    "stats, many queues": _of_all_queues(b"stats\r\n", b"END\r\n"),
    "metrics, many queues": _all_over_http("/metrics"),
    "Ostrich, many queues": _all_over_http("/stats.json"),
    "first events, many queues": _all_over_http("/api/v1/events"),
    "200 clients that peek, unread": _unread_peeks,
    "1,500 monitors that hang up": _monitors_hang_up,
    "250 declare at once": _declares,
    "leases that end at once": _leases_end,
    "HTTP put of 6 MiB": _over_http("POST", "items", _as_json),
    "HTTP import of 11 MiB": _over_http("POST", "import", _as_line),
    "HTTP export of 100 MiB": _over_http("GET", "export", is_filled=True),
    "HTTP search of 100 MiB": _over_http("GET", "items?text=abc", is_filled=True),
}


def measure(name: str, count: int, folder: Path | None) -> str:
    """Measure one request; return its row."""
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        with server(Path(directory), CONFIG, ("memcache", "text", "thrift", "admin")) as observed:
            run = REQUESTS[name](Server(observed.ports, count))
            begun = time.perf_counter()
            run()
            ended = time.perf_counter()
            time.sleep(0.5)
        turns = json.loads(observed.report.read_text())
    during = [turn for turn in turns if begun < turn[0] and turn[0] - turn[1] < ended + 0.5]
    longest = max((turn[2] for turn in during), default=0.0) * 1000
    wall = max((turn[1] - turn[3] for turn in during), default=0.0) * 1000
    total = sum(turn[2] for turn in during) * 1000
    late = "  *" if longest > GOAL else ""
    return f"{name:29} {(ended - begun) * 1000:9,.0f} {longest:9.1f} {wall:9.1f} {total:9.0f}{late}"


def main() -> None:
    """Run the benchmark and print a table with times in milliseconds."""
    parser = argparse.ArgumentParser(
        prog="bench.long_requests", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--items", type=int, default=100_000, help="of 64 bytes")
    parser.add_argument("--dir", type=Path, help="where the journals go")
    parser.add_argument("--only", nargs="+", help="words in the names of requests")
    options = parser.parse_args()
    print(
        f"{'request':29} {'took':>9} {'longest':>9} {'held':>9} {'in turns':>9}"
        f"  in ms; * over {GOAL:.0f}"
    )
    for name in REQUESTS:
        if options.only is None or any(word in name for word in options.only):
            print(measure(name, options.items, options.dir), flush=True)


if __name__ == "__main__":
    main()
