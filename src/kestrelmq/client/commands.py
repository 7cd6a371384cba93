"""What a client can ask one server: the request, and how its reply is read.

A reading is a generator: it is sent each reply as it arrives and returns the result after the last
one, so that blocking and asyncio connections share it. When the connection ends first, the error is
thrown into it.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

from kestrelmq.client.statistics import queue_stats
from kestrelmq.errors import ConnectionLost, InvalidRequest, ProtocolError, ServerRefused
from kestrelmq.names import queue_name_error
from kestrelmq.protocol import memcache_client as wire

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Reading: TypeAlias = Generator[None, wire.Reply, T]

MAX_STATS: Final = 4_000_000
"""The most statistics of one server: those of some 150,000 queues."""
MAX_STATS_BYTES: Final = 256 * 1024 * 1024
"""The most bytes that they may have together."""


@dataclass(frozen=True, slots=True)
class Command(Generic[T_co]):
    """A request and its reading.

    The server may hold its reply back for `wait` seconds. `parts` is how many requests it is: when
    only the beginning of one was sent, a server did nothing; of several, it may have done some.
    """

    request: bytes
    reading: Callable[[], Generator[None, wire.Reply, T_co]]
    wait: float = 0.0
    parts: int = 1


def checked_queue(queue: str) -> bytes:
    """Return the bytes of a queue name.

    Raises:
        InvalidRequest: no queue can have that name.
    """
    problem = queue_name_error(queue)
    if problem is not None:
        raise InvalidRequest(f"{queue!r}: {problem}")
    return queue.encode()


def get(queue: bytes, wait: float = 0.0) -> Command[bytes | None]:
    """Take the head item off the queue; None when there is none."""
    return Command(wire.get_request(queue, wait_ms=_milliseconds(wait)), _read_item(queue), wait)


def peek(queue: bytes, wait: float = 0.0) -> Command[bytes | None]:
    """Look at the head item; None when there is none."""
    request = wire.get_request(queue, wait_ms=_milliseconds(wait), peek=True)
    return Command(request, _read_item(queue), wait)


def open_read(queue: bytes, wait: float = 0.0, *, close: bool = False) -> Command[bytes | None]:
    """Open a read; with `close`, confirm the one that is open in the same step."""
    request = wire.get_request(queue, wait_ms=_milliseconds(wait), open_read=True, close=close)
    return Command(request, _read_item(queue), wait)


def close_read(queue: bytes) -> Command[bytes | None]:
    """Confirm the oldest open read of the connection."""
    return Command(wire.get_request(queue, close=True), _read_item(queue))


def abort_read(queue: bytes) -> Command[bytes | None]:
    """Give the item of the oldest open read of the connection back."""
    return Command(wire.get_request(queue, abort=True), _read_item(queue))


def set_items(
    queue: bytes, items: Sequence[bytes], expiry: int, acknowledged: list[bool]
) -> Command[None]:
    """Add `items`, pipelined; `acknowledged` grows by each answer, and keeps them on an error."""
    request = b"".join(wire.set_request(queue, item, expiry) for item in items)

    def read() -> Reading[None]:
        for _ in items:
            reply = yield
            if reply == wire.Line("STORED"):
                acknowledged.append(True)
            elif reply == wire.Line("NOT_STORED"):
                acknowledged.append(False)
            else:
                _unexpected(reply)

    return Command(request, read, parts=len(items))


def monitor(queue: bytes, seconds: int, max_items: int | None) -> Command[list[bytes]]:
    """Open every item that arrives within `seconds`, up to `max_items`.

    Some servers end each item with END and the whole with one more, some only the whole. So
    `version` is asked behind it: its reply shows that no item follows, whichever it is.
    """

    def read() -> Reading[list[bytes]]:
        arrived: list[bytes] = []
        before: wire.Reply | None = None
        while True:
            reply = yield
            if isinstance(reply, wire.Value) and len(arrived) != max_items:
                arrived.append(_data(reply, queue))
            elif isinstance(before, wire.End) and _is_version(reply):
                return arrived
            elif not isinstance(reply, wire.End):
                _unexpected(reply)
            before = reply

    request = wire.monitor_request(queue, seconds, max_items) + wire.plain_request("version")
    return Command(request, read, seconds, parts=2)


def confirm(queue: bytes, count: int) -> Command[str]:
    """Confirm the `count` oldest open reads of the connection."""
    return Command(wire.confirm_request(queue, count), _read_done("END"))


def delete(queue: bytes) -> Command[str]:
    """Drop the queue and its journal."""
    accepted = _read_done("DELETED", "NOT_FOUND", "END")
    return Command(wire.queue_request("delete", queue), accepted)


def flush(queue: bytes) -> Command[str]:
    """Discard the items of the queue."""
    return Command(wire.queue_request("flush", queue), _read_done("END", "OK"))


def flush_all() -> Command[str]:
    """Discard the items of every queue."""
    return Command(wire.plain_request("flush_all"), _read_done("Flushed all queues.", "OK"))


def reload() -> Command[str]:
    """Read the configuration file again."""
    return Command(wire.plain_request("reload"), _read_done("Reloaded config.", "OK"))


def set_status(status: str) -> Command[str]:
    """Change the server's status."""
    return Command(wire.plain_request("status", status), _read_done("END", "OK"))


def status() -> Command[str]:
    """Ask for the server's status."""
    return Command(wire.plain_request("status"), _read_line)


def version() -> Command[str]:
    """Ask for the server's version."""

    def read() -> Reading[str]:
        line = yield from _read_line()
        return line.removeprefix("VERSION ")

    return Command(wire.plain_request("version"), read)


def stats() -> Command[list[tuple[str, str]]]:
    """Ask for the server's statistics, in its order."""
    return Command(wire.plain_request("stats"), _read_stats)


def exists(queue: bytes) -> Command[bool]:
    """Ask whether there is such a queue; it does not come into being by this.

    Servers answer with its statistics, or with those of everything, named by queue.
    """
    name = queue.decode()
    signs = {"items", "failure", f"queue_{name}_failure"}

    def read() -> Reading[bool]:
        pairs = yield from _read_stats()
        listed = any(found.name == name for found in queue_stats("", pairs))
        return listed or any(stat in signs for stat, _ in pairs)

    return Command(wire.queue_request("stats", queue), read)


def shutdown() -> Command[None]:
    """Stop the server; the connection ends without a reply."""

    def read() -> Reading[None]:
        try:
            reply = yield
        except ConnectionLost:
            return
        if isinstance(reply, wire.Failure):
            _unexpected(reply)

    return Command(wire.plain_request("shutdown"), read)


def _read_item(queue: bytes) -> Callable[[], Reading[bytes | None]]:
    def read() -> Reading[bytes | None]:
        data: bytes | None = None
        while not isinstance(reply := (yield), wire.End):
            if not isinstance(reply, wire.Value) or data is not None:
                _unexpected(reply)
            data = _data(reply, queue)
        return data

    return read


def _data(value: wire.Value, queue: bytes) -> bytes:
    """Return an item of `queue`; some servers name it with the options of the request."""
    if value.key.partition(b"/")[0] != queue:
        _unexpected(value)
    return value.data


def _read_stats() -> Reading[list[tuple[str, str]]]:
    pairs: list[tuple[str, str]] = []
    size = 0
    while not isinstance(reply := (yield), wire.End):
        if not isinstance(reply, wire.Stat):
            _unexpected(reply)
        size += len(reply.name) + len(reply.value)
        if len(pairs) == MAX_STATS or size > MAX_STATS_BYTES:
            raise ProtocolError(f"more than {MAX_STATS} statistics, or {MAX_STATS_BYTES} bytes")
        pairs.append((reply.name, reply.value))
    return pairs


def _read_line() -> Reading[str]:
    reply = yield
    if not isinstance(reply, wire.Line):
        _unexpected(reply)
    return reply.text


def _is_version(reply: wire.Reply) -> bool:
    return isinstance(reply, wire.Line) and reply.text.startswith("VERSION ")


def _read_done(*accepted: str) -> Callable[[], Reading[str]]:
    def read() -> Reading[str]:
        reply = yield
        text = "END" if isinstance(reply, wire.End) else getattr(reply, "text", "")
        if text not in accepted:
            _unexpected(reply)
        return text

    return read


def _unexpected(reply: wire.Reply) -> NoReturn:
    if isinstance(reply, wire.Failure):
        raise ServerRefused(reply.reason or reply.kind, reply.kind)
    raise ProtocolError(f"this is no reply to the request: {_short(reply)}")


def _short(reply: Any) -> str:
    return repr(reply)[:200]


def _milliseconds(seconds: float) -> int:
    # A wait that is asked for must not round down to "answer at once".
    return math.ceil(seconds * 1000) if seconds > 0 else 0
