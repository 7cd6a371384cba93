"""The commands that a client sends to one server: how to write the request and read the reply.

A reading is a generator. It is sent each reply as it arrives, and returns the result after the last
one. So blocking and asyncio connections can share it. If the connection ends first, the error is
thrown into it.
"""

from __future__ import annotations  # nested functions would evaluate theirs in each call

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final, Generic, Literal, NoReturn, TypeAlias, TypeVar
from urllib.parse import unquote

from kestrelmq.arguments import given_bytes
from kestrelmq.client.options import ItemTimes
from kestrelmq.client.statistics import number, stats_of_queue
from kestrelmq.errors import (
    AuthenticationFailed,
    ConnectionLost,
    InvalidRequest,
    ProtocolError,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.names import queue_name_error
from kestrelmq.passwords import SIGN_IN_FIRST, TOO_MANY, WRONG_PASSWORD
from kestrelmq.protocol import memcache_client as wire
from kestrelmq.protocol.foreign import NOT_MEMCACHE, guessed_server
from kestrelmq.protocol.reserving import MAX_RESERVED
from kestrelmq.tools.export_rows import ExportRow, to_json
from kestrelmq.units import parse_size

_MOVE_WAIT: Final = 600.0
"""Seconds that a move or a copy may take besides the usual time-out."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Reading: TypeAlias = Generator[None, wire.Reply, T]

MAX_STATS: Final = 4_000_000
"""Most statistics read from one server: enough for about 150,000 queues."""
MAX_STATS_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of statistics, or of a list of clients, read from one server."""
READS_AT_ONCE: Final = 150
"""Reserved reads in one request, whose line a server takes up to 8 KiB."""
_CLIENT: Final = "CLIENT "


@dataclass(frozen=True, slots=True)
class Command(Generic[T_co]):
    """A request and the reading of its reply.

    Attributes:
        request: the bytes to send.
        reading: makes the generator that reads the reply.
        wait: how long the server may wait before it replies, in seconds.
        parts: the number of requests in `request`. If it is sent only in part, a single request has
            no effect, but some of several requests may have been carried out.
        is_listing: whether the reply may be very long: its time counts anew from each part of it.
    """

    request: bytes = field(repr=False)
    reading: Callable[[], Generator[None, wire.Reply, T_co]]
    wait: float = 0.0
    parts: int = 1
    is_listing: bool = False


def together(several: Sequence[Command[T]]) -> Command[list[T]]:
    """Return a command that sends several, at least one, at once, and returns their results.

    If one of them fails, the connection cannot be used any more.
    """

    def read() -> Reading[list[T]]:
        found: list[T] = []
        for one in several:
            found.append((yield from one.reading()))  # noqa: PERF401 # no yield there
        return found

    request = b"".join(one.request for one in several)
    return Command(request, read, parts=sum(one.parts for one in several), is_listing=True)


def each(several: Sequence[Command[T]]) -> Command[list[T | ServerRefused]]:
    """Return a command that sends several at once; a refusal is its result."""

    def read() -> Reading[list[T | ServerRefused]]:
        found: list[T | ServerRefused] = []
        for one in several:
            try:
                found.append((yield from one.reading()))
            except ServerRefused as error:
                found.append(error)
        return found

    sent = together(several)
    return Command(sent.request, read, parts=sent.parts, is_listing=True)


def checked_queue(queue: str) -> bytes:
    """Check a queue name and return it as bytes.

    Raises:
        InvalidRequest: it is not a valid queue name.
    """
    if not isinstance(queue, str):
        raise InvalidRequest(f"a queue name is text, not {type(queue).__name__}")
    problem = queue_name_error(queue)
    if problem is not None:
        raise InvalidRequest(f"{queue!r}: {problem}")
    return queue.encode()


def checked_bytes(data: object, what: str) -> bytes:
    """Return what a caller gives as bytes; text is encoded as UTF-8. `what` it is, for the error.

    Raises:
        InvalidRequest: it is neither bytes nor text, or the text cannot be encoded.
    """
    try:
        return given_bytes(data, what)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(str(error)) from None


def get(queue: bytes, wait: float = 0.0) -> Command[bytes | None]:
    """Remove the head item of the queue; None if there is none."""
    return Command(wire.get_request(queue, wait_ms=_milliseconds(wait)), _read_item(queue), wait)


def peek(queue: bytes, wait: float = 0.0) -> Command[bytes | None]:
    """Peek at the head item; None if there is none."""
    request = wire.get_request(queue, wait_ms=_milliseconds(wait), peek=True)
    return Command(request, _read_item(queue), wait)


def open_read(queue: bytes, wait: float = 0.0, *, close: bool = False) -> Command[bytes | None]:
    """Open a read; with `close`, confirm the connection's open read in the same step."""
    request = wire.get_request(queue, wait_ms=_milliseconds(wait), open_read=True, close=close)
    return Command(request, _read_item(queue), wait)


def close_read(queue: bytes) -> Command[bytes | None]:
    """Confirm the oldest open read of the connection."""
    return Command(wire.get_request(queue, close=True), _read_item(queue))


def abort_read(queue: bytes) -> Command[bytes | None]:
    """Give back the item of the oldest open read of the connection."""
    return Command(wire.get_request(queue, abort=True), _read_item(queue))


def set_items(
    queue: bytes,
    items: Sequence[tuple[bytes, ItemTimes, PutMark | None]],
    acknowledged: list[bool | None],
) -> Command[None]:
    """Add `items`, given with their times and the marks of their producer, if any, pipelined.

    Each answer is appended to `acknowledged` as it arrives, so that they are known after an error:
    None for a SERVER_ERROR. After one, the answers for the other items are still awaited, because
    the server may store them. If it closes the connection instead, it stored none of them.
    """
    request = b"".join(
        wire.set_request(queue, item, times.expiry, times.delay, mark)
        for item, times, mark in items
    )

    def read() -> Reading[None]:
        refusal: wire.ErrorReply | None = None
        for _ in items:
            try:
                reply = yield
            except ConnectionLost:
                if refusal is None or acknowledged[-1] is not None:
                    raise
                break
            if reply == wire.Line("STORED"):
                acknowledged.append(True)
            elif reply == wire.Line("NOT_STORED"):
                acknowledged.append(False)
            elif isinstance(reply, wire.ErrorReply) and reply.kind == "SERVER_ERROR":
                acknowledged.append(None)
                refusal = refusal or reply
            else:
                _unexpected(reply)
        if refusal is not None:
            _unexpected(refusal)

    return Command(request, read, parts=len(items))


def monitor(queue: bytes, seconds: int, max_items: int | None) -> Command[list[bytes]]:
    """Open every item that arrives within `seconds`, up to `max_items`.

    Some servers send END after each item and once more at the end, others only at the end. So a
    `version` request follows: its reply shows in both cases that no more items will come.
    """

    def read() -> Reading[list[bytes]]:
        arrived: list[bytes] = []
        before: wire.Reply | None = None
        while True:
            reply = yield
            if isinstance(reply, wire.Value) and len(arrived) != max_items:
                arrived.append(_data(reply, queue))
            elif isinstance(before, wire.EndOfList) and _is_version(reply):
                return arrived
            elif not isinstance(reply, wire.EndOfList):
                _unexpected(reply)
            before = reply

    request = wire.monitor_request(queue, seconds, max_items) + wire.plain_request("version")
    return Command(request, read, seconds, parts=2)


def confirm(queue: bytes, count: int) -> Command[str]:
    """Confirm the `count` oldest open reads of the connection."""
    return Command(wire.confirm_request(queue, count), _read_done("END"))


@dataclass(frozen=True, slots=True)
class HeldItem:
    """An item that was handed out and is not confirmed.

    Attributes:
        data: its data.
        read: names it to the server; None for an open read, which belongs to its connection.
        deliveries: how often it was handed out, this time included; None if the server does not
            say, and likewise the next two.
        add_time: when it was added (ms since the epoch).
        expiry: when it expires (ms since the epoch); 0 for never.
    """

    data: bytes
    read: str | None = None
    deliveries: int | None = None
    add_time: int | None = None
    expiry: int | None = None


@dataclass(frozen=True, slots=True)
class ReservedRead:
    """An item that a server has reserved.

    Attributes:
        queue: the queue that it is of.
        read: names it to the server.
        data: its data.
        deliveries: how often it was handed out, this time included.
        add_time: when it was added (ms since the epoch).
        expiry: when it expires (ms since the epoch); 0 for never.
        server: the server that it is of; empty in the reply of the server.
    """

    queue: str
    read: str
    data: bytes
    deliveries: int
    add_time: int
    expiry: int
    server: str = ""


@dataclass(frozen=True, slots=True)
class ReservedCount:
    """How much of a queue a server has reserved.

    Attributes:
        queue: the queue.
        nonce: what the names of the reads end with: other reads have another.
        count: how many reads.
        bytes: bytes of data in their items.
        server: the server; empty in the reply of the server.
    """

    queue: str
    nonce: str
    count: int
    bytes: int
    server: str = ""


@dataclass(frozen=True, slots=True)
class ReadsOwner:
    """An owner of reserved reads.

    Attributes:
        owner: its name.
        reads: how many reads it has.
        queues: in how many queues those are.
        tags: how many of its tags are open.
        age: for how many seconds it has had reads without a break; since the start of the server
            at most.
        connections: how many connections have named it.
        server: the server; empty in the reply of the server.
    """

    owner: str
    reads: int
    queues: int
    tags: int
    age: float
    connections: int
    server: str = ""


def reserve(
    queues: Sequence[bytes], count: int, terms: wire.ReserveTerms, wait: float
) -> Command[list[ReservedRead] | None]:
    """Reserve at most `count` items of the queues; None if the tag is done."""
    # An open tag gives its items again, however many this request is for.
    most = MAX_RESERVED if terms.tag else count

    def read() -> Reading[list[ReservedRead] | None]:
        found: list[ReservedRead] = []
        while not isinstance(reply := (yield), wire.EndOfList):
            if terms.tag and not found and reply == wire.Line("DONE"):
                return None
            if not isinstance(reply, wire.ItemReply) or len(found) == most:
                _unexpected(reply)
            found.append(_reserved(reply, queues))
        return found

    request = wire.reserve_request(queues, count, terms, _milliseconds(wait))
    return Command(request, read, wait)


def reserve_held(
    queues: Sequence[bytes], count: int, terms: wire.ReserveTerms, wait: float
) -> Command[list[ReservedCount] | None]:
    """Reserve as `reserve` does, and read how much it is; `terms` have `nodata`."""

    def read() -> Reading[list[ReservedCount] | None]:
        found: list[ReservedCount] = []
        while not isinstance(reply := (yield), wire.EndOfList):
            if terms.tag and not found and reply == wire.Line("DONE"):
                return None
            queue, nonce, *rest = _words(reply, "HELD", 4)
            if queue.encode() not in queues or len(found) == len(queues):
                _unexpected(reply)
            count, size = map(number, rest)
            found.append(ReservedCount(queue, nonce, count, size))
        return found

    return Command(wire.reserve_request(queues, count, terms, _milliseconds(wait)), read, wait)


def owners(pattern: str) -> Command[list[ReadsOwner]]:
    """Ask for the owners of reserved reads whose names are of a pattern."""

    def read() -> Reading[list[ReadsOwner]]:
        found: list[ReadsOwner] = []
        size = 0
        while not isinstance(reply := (yield), wire.EndOfList):
            owner, *rest = _words(reply, "OWNER", 6)
            size += len(owner)
            if size > MAX_STATS_BYTES:
                raise ProtocolError(f"a list of owners of more than {MAX_STATS_BYTES} bytes")
            reads, queues, tags, age, connections = map(number, rest)
            found.append(ReadsOwner(owner, reads, queues, tags, age / 1000, connections))
        return found

    return Command(wire.owners_request(pattern), read, is_listing=True)


def _words(reply: wire.Reply, verb: str, count: int) -> list[str]:
    """Return the words of a line after its first; there must be so many."""
    words = reply.text.split(" ") if isinstance(reply, wire.Line) else []
    if len(words) != count + 1 or words[0] != verb:
        _unexpected(reply)
    return words[1:]


def _reserved(reply: wire.ItemReply, queues: Sequence[bytes]) -> ReservedRead:
    if len(reply.fields) != 5 or reply.fields[0] not in queues:
        _unexpected(reply)
    queue, read, *rest = reply.fields
    deliveries, added, expiry = _numbers(reply, rest)
    return ReservedRead(
        queue.decode(), read.decode(errors="replace"), reply.data, deliveries, added, expiry
    )


def reserve_one(queue: bytes, terms: wire.ReserveTerms, wait: float) -> Command[HeldItem | None]:
    """Reserve the head item; None if there is none."""
    command = reserve((queue,), 1, terms, wait)

    def read() -> Reading[HeldItem | None]:
        for one in (yield from command.reading()) or ():
            return HeldItem(one.data, one.read, one.deliveries, one.add_time, one.expiry)
        return None

    return Command(command.request, read, wait)


def reserve_terms(
    lease: float,
    tag: str = "",
    owner: str = "",
    grace: float = 0,
    *,
    again: bool = False,
    nodata: bool = False,
) -> wire.ReserveTerms:
    """Return terms whose times are given in seconds."""
    return wire.ReserveTerms(_milliseconds(lease), tag, owner, _milliseconds(grace), again, nodata)


def hold(queue: bytes, wait: float) -> Command[HeldItem | None]:
    """Open a read, at a server that has no reserved reads."""
    command = open_read(queue, wait)

    def read() -> Reading[HeldItem | None]:
        data = yield from command.reading()
        return None if data is None else HeldItem(data)

    return Command(command.request, read, wait)


@dataclass(frozen=True, slots=True)
class Reads:
    """Which reserved reads a command is about: some, or all of a tag or of an owner."""

    reads: Sequence[str] = ()
    tag: str = ""
    owner: str = ""


def finish(queue: bytes, which: Reads) -> Command[int]:
    """Confirm reserved reads; return how many were reserved."""
    return _ending("finish", "FINISHED", queue, which)


def release(
    queue: bytes,
    which: Reads,
    delay: float | None = None,
    *,
    counted: bool = True,
    dead: bool = False,
) -> Command[int]:
    """Give reserved reads back; return how many were reserved."""
    words = _release_words(delay, counted=counted, dead=dead)
    return _ending("release", "RELEASED", queue, which, *words)


def release_owner(
    owner: str, delay: float | None = None, *, counted: bool = True, dead: bool = False
) -> Command[int]:
    """Give all reserved reads of an owner back; return how many there were."""
    words = _release_words(delay, counted=counted, dead=dead)
    return Command(wire.release_owner_request(owner, *words), _read_counts("RELEASED", 1))


def _release_words(delay: float | None, *, counted: bool, dead: bool) -> list[str]:
    words = [] if delay is None else [f"delay={_milliseconds(delay)}"]
    return words + [word for word, given in (("uncounted", not counted), ("dead", dead)) if given]


def extend(queue: bytes, which: Reads, seconds: float) -> Command[int]:
    """Let the leases of reserved reads end in `seconds`; return how many were reserved."""
    return _ending("extend", "EXTENDED", queue, which, str(_milliseconds(seconds)))


def extend_owner(owner: str, seconds: float) -> Command[int]:
    """Let the leases of all reads of an owner end in `seconds`; return how many there are."""
    request = wire.extend_owner_request(owner, _milliseconds(seconds))
    return Command(request, _read_counts("EXTENDED", 1))


def retire(queue: bytes, name: str, epoch: int) -> Command[int]:
    """Refuse the tags of `name` up to `epoch`; return how many were open or done."""
    return Command(
        wire.queue_request("retire", queue, name, str(epoch)), _read_counts("RETIRED", 1)
    )


def _ending(verb: str, answer: str, queue: bytes, which: Reads, *words: str) -> Command[int]:
    """Return a command about reads; for many, it consists of several requests."""
    if bool(which.reads) + bool(which.tag) + bool(which.owner) != 1:
        others = "a tag or an owner" if verb == "release" else "a tag"
        raise InvalidRequest(f"{verb} takes either reads, or {others}")
    named = list(which.reads) or [f"tag={which.tag}" if which.tag else f"owner={which.owner}"]
    batches = [named[at : at + READS_AT_ONCE] for at in range(0, len(named), READS_AT_ONCE)]
    request = b"".join(wire.queue_request(verb, queue, *words, *batch) for batch in batches)
    return Command(request, _read_counts(answer, len(batches)), parts=len(batches))


def _read_counts(answer: str, replies: int) -> Callable[[], Reading[int]]:
    def read() -> Reading[int]:
        count = 0
        for _ in range(replies):
            reply = yield
            if not isinstance(reply, wire.Line) or not reply.text.startswith(f"{answer} "):
                _unexpected(reply)
            count += _number(reply, reply.text.removeprefix(f"{answer} "))
        return count

    return read


def delete(queue: bytes) -> Command[str]:
    """Delete the queue and its journal."""
    accepted = _read_done("DELETED", "NOT_FOUND", "END")
    return Command(wire.queue_request("delete", queue), accepted)


def flush(queue: bytes) -> Command[str]:
    """Drop all items of the queue."""
    return Command(wire.queue_request("flush", queue), _read_done("END", "OK"))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where a dead letter came from.

    Attributes:
        origin: the queue that it was in.
        died: when it was moved (ms since the epoch).
        why: why it was given back the last time.
        deliveries: how often it was handed out.
    """

    origin: str
    died: int
    why: str
    deliveries: int


@dataclass(frozen=True, slots=True)
class BrowsedItem:
    """An item that was looked at and stays in its queue.

    Attributes:
        place: its place in the queue; 0 is the head.
        data: its data.
        add_time: when it was added (ms since the epoch).
        expiry: when it expires (ms since the epoch); 0 for never.
        dead_letter: where it came from, if it is a dead letter.
    """

    place: int
    data: bytes
    add_time: int
    expiry: int
    dead_letter: DeadLetter | None = None


@dataclass(frozen=True, slots=True)
class BrowsedPage:
    """Items of a queue on one server.

    Attributes:
        items: the items, in order.
        next_offset: the offset to go on from; None at the end of the queue.
        place: the place behind the items, to go on from; whatever was read or added meanwhile, each
            item is seen once. It is of use only while the queue stays loaded.
    """

    items: list[BrowsedItem]
    next_offset: int | None
    place: str = ""


def browse(
    queue: bytes, offset: int | str, count: int, search: bytes = b"", *, is_pattern: bool = False
) -> Command[BrowsedPage | None]:
    """Look at items from an offset or a place on, perhaps those that match; None: no such queue."""

    def read() -> Reading[BrowsedPage | None]:
        items: list[BrowsedItem] = []
        next_offset: int | None = None
        place = ""
        while not isinstance(reply := (yield), wire.EndOfList):
            if reply == wire.Line("NOT_FOUND"):
                return None
            if isinstance(reply, wire.ItemReply):
                items.append(_browsed(reply))
            elif isinstance(reply, wire.Line) and reply.text.startswith("NEXT "):
                next_offset = _number(reply, reply.text.removeprefix("NEXT "))
            elif isinstance(reply, wire.Line) and reply.text.startswith("PLACE "):
                place = reply.text.removeprefix("PLACE ")
            else:
                _unexpected(reply)
        return BrowsedPage(items, next_offset, place)

    request = wire.browse_request(queue, offset, count, search, is_pattern=is_pattern)
    return Command(request, read)


def _browsed(reply: wire.ItemReply) -> BrowsedItem:
    if len(reply.fields) < 3:
        _unexpected(reply)
    place, added, expiry = _numbers(reply, reply.fields[:3])
    return BrowsedItem(place, reply.data, added, expiry, _dead_letter(reply))


def export_line(queue: str, item: BrowsedItem) -> str:
    """Return an item as a line of an export."""
    dead = None if item.dead_letter is None else asdict(item.dead_letter)
    row = ExportRow(queue, item.place, item.data, item.add_time, item.expiry, dead_letter=dead)
    return to_json(row)


def _dead_letter(reply: wire.ItemReply) -> DeadLetter | None:
    """Return what the words of a `browse` say of a dead letter; None if there are none."""
    words = dict(word.partition(b"=")[::2] for word in reply.fields[3:])
    if not words:
        return None
    if words.keys() != {b"from", b"died", b"deliveries", b"why"}:
        _unexpected(reply)
    died, deliveries = _numbers(reply, (words[b"died"], words[b"deliveries"]))
    why = unquote(words[b"why"].decode(errors="replace"))
    return DeadLetter(words[b"from"].decode(errors="replace"), died, why, deliveries)


def _number(reply: wire.Reply, text: str) -> int:
    return _numbers(reply, (text.encode(),))[0]


def _numbers(reply: wire.Reply, words: Sequence[bytes]) -> list[int]:
    lengths = [len(word) for word in words]
    if not (b"".join(words).isdigit() and min(lengths) > 0 and max(lengths) <= wire.MAX_DIGITS):
        _unexpected(reply)
    return [int(word) for word in words]


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a move or a copy on one server.

    Attributes:
        count: how many items were moved or copied.
        stopped: why it ended early; None if it did not.
    """

    count: int
    stopped: str | None = None


def move(
    verb: Literal["move", "copy", "redrive"], queue: bytes, target: bytes | None, count: int | None
) -> Command[Moved | None]:
    """Move or copy the first `count` items, or all, to another queue; None: no such queue."""
    words = [] if target is None else [target.decode()]
    if count is not None:
        words.append(str(count))
    request = wire.queue_request(verb, queue, *words)
    return Command(request, _read_moved("COPIED " if verb == "copy" else "MOVED "), _MOVE_WAIT)


def _read_moved(word: str) -> Callable[[], Reading[Moved | None]]:
    def read() -> Reading[Moved | None]:
        reply = yield
        if reply == wire.Line("NOT_FOUND"):
            return None
        if not isinstance(reply, wire.Line) or not reply.text.startswith(word):
            _unexpected(reply)
        count, _, stopped = reply.text.removeprefix(word).partition(" ")
        return Moved(_number(reply, count), stopped or None)

    return read


def declare(queue: bytes, settings: Sequence[str]) -> Command[str]:
    """Create the queue with settings of its own, such as `max_items=5`, or give it others."""
    return Command(wire.queue_request("declare", queue, *settings), _read_done("END"))


def pause(queue: bytes, operations: str) -> Command[bool]:
    """Pause operations of the queue; False if the server does not have it."""
    return Command(wire.queue_request("pause", queue, operations), _read_found("END"))


def resume(queue: bytes, operations: str) -> Command[bool]:
    """Resume operations of the queue; False if the server does not have it."""
    return Command(wire.queue_request("resume", queue, operations), _read_found("END"))


def flush_all() -> Command[str]:
    """Drop all items of every queue."""
    return Command(wire.plain_request("flush_all"), _read_done("Flushed all queues.", "OK"))


def reload() -> Command[str]:
    """Have the server reload its configuration; return what takes a restart, or ""."""

    def read() -> Reading[str]:
        reply = yield
        done, found, left = getattr(reply, "text", "").partition("Reloaded config.")
        if done or not found:
            _unexpected(reply)
        return left.strip()

    return Command(wire.plain_request("reload"), read)


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


def stats(queue: bytes | None = None) -> Command[list[tuple[str, str]]]:
    """Ask for the statistics of the server, or of a queue, in the order in which it sends them."""
    request = wire.plain_request("stats") if queue is None else wire.queue_request("stats", queue)
    return Command(request, _read_stats, is_listing=True)


def item_limit(queue: bytes) -> Command[int | None]:
    """Ask for the most bytes of an item of a queue; None if there is no limit, or no such queue."""

    def read() -> Reading[int | None]:
        limit = None
        while not isinstance(reply := (yield), wire.EndOfList):
            if not isinstance(reply, wire.Line):
                _unexpected(reply)
            name, _, value = reply.text.strip().partition("=")
            if name == "max_item_size":
                with suppress(ValueError):
                    limit = parse_size(int(value) if value.isdecimal() else value)
        return limit

    return Command(wire.queue_request("dump_config", queue), read)


def exists(queue: bytes) -> Command[bool]:
    """Ask whether the queue exists; this does not create it."""

    def read() -> Reading[bool]:
        pairs = yield from _read_stats()
        return stats_of_queue("", queue.decode(), pairs) is not None

    return Command(wire.queue_request("stats", queue), read, is_listing=True)


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client that is connected to a server.

    Attributes:
        server: the server's address; empty in the reply of the server.
        id: its number on that server; a later client has a higher one.
        name: what it calls itself; None if it has not said, or if the server is older.
        user: as whom it has signed in; None if it has not.
        address: where it connected from, as `HOST:PORT`, or `unix:PID` on a Unix socket.
        protocol: `memcache`, `text` or `thrift`.
        since: when it connected, in milliseconds since the epoch.
        commands: how many commands were answered; a monitor counts for each item.
        state: `idle`; `waiting` for an item; `working`: a request takes several turns; or
            `stalled`: it does not read its replies.
        queue: the queue that its present request reads or adds to, if it takes time; written as
            the list of a `reserve`, which may wait on several.
        open_reads: how many reads it holds open, by queue; of more than a thousand only the first.
    """

    server: str
    id: int
    name: str | None
    user: str | None
    address: str
    protocol: str
    since: int
    commands: int
    state: str
    queue: str | None
    open_reads: Mapping[str, int]


def clients() -> Command[list[ConnectedClient]]:
    """Ask for the connected clients."""

    def read() -> Reading[list[ConnectedClient]]:
        found: list[ConnectedClient] = []
        size = 0
        while not isinstance(reply := (yield), wire.EndOfList):
            if not isinstance(reply, wire.Line) or not reply.text.startswith(_CLIENT):
                _unexpected(reply)
            size += len(reply.text)
            if size > MAX_STATS_BYTES:
                raise ProtocolError(f"a list of clients of more than {MAX_STATS_BYTES} bytes")
            found.append(_connected(reply.text.removeprefix(_CLIENT)))
        return found

    return Command(wire.plain_request("clients"), read, is_listing=True)


def _connected(line: str) -> ConnectedClient:
    """Return the client that these fields describe; unknown fields are ignored."""
    fields: dict[str, str] = {}
    open_reads: dict[str, int] = {}
    for word in line.split(" "):
        name, _, content = word.partition("=")
        if name == "open":
            queue, _, count = content.rpartition("/")
            open_reads[queue] = number(count)
        else:
            fields[name] = content
    return ConnectedClient(
        server="",
        id=number(fields.get("id", "")),
        name=fields.get("name"),
        user=fields.get("user"),
        address=fields.get("address", ""),
        protocol=fields.get("protocol", ""),
        since=number(fields.get("since", "")),
        commands=number(fields.get("commands", "")),
        state=fields.get("state", ""),
        queue=fields.get("queue"),
        open_reads=open_reads,
    )


def sign_in(user: str, password: str) -> Command[None]:
    """Sign in. The reading raises AuthenticationFailed, or ServerUnavailable to try again later."""

    def read() -> Reading[None]:
        reply = yield
        if isinstance(reply, wire.ErrorReply):
            if reply.reason.startswith(TOO_MANY):
                raise ServerUnavailable(reply.reason)
            raise AuthenticationFailed(f"user {user}: {reply.reason or reply.kind}")
        if reply != wire.Line("STORED"):
            _unexpected(reply)

    return Command(wire.sign_in_request(user, password), read)


def name_client(name: str) -> Command[None]:
    """Give the connection's client a name; a server that does not know that goes without."""

    def read() -> Reading[None]:
        yield

    return Command(wire.name_client_request(name), read)


def kill_client(number: int) -> Command[bool]:
    """Disconnect a client; False if there is none of that number."""
    return Command(wire.kill_client_request(number), _read_found("KILLED"))


def shutdown() -> Command[None]:
    """Stop the server; the connection ends without a reply."""

    def read() -> Reading[None]:
        try:
            reply = yield
        except ConnectionLost:
            return
        if isinstance(reply, wire.ErrorReply):
            _unexpected(reply)

    return Command(wire.plain_request("shutdown"), read)


def _read_item(queue: bytes) -> Callable[[], Reading[bytes | None]]:
    def read() -> Reading[bytes | None]:
        data: bytes | None = None
        while not isinstance(reply := (yield), wire.EndOfList):
            if not isinstance(reply, wire.Value) or data is not None:
                _unexpected(reply)
            data = _data(reply, queue)
        return data

    return read


def _data(value: wire.Value, queue: bytes) -> bytes:
    """Return the data of an item of `queue`.

    Some servers repeat the options of the request behind the queue name.
    """
    if value.key.partition(b"/")[0] != queue:
        _unexpected(value)
    return value.data


def _read_stats() -> Reading[list[tuple[str, str]]]:
    pairs: list[tuple[str, str]] = []
    size = 0
    while not isinstance(reply := (yield), wire.EndOfList):
        if not isinstance(reply, wire.Stat):
            _unexpected(reply)
        size += len(reply.name) + len(reply.value)
        if len(pairs) == MAX_STATS or size > MAX_STATS_BYTES:
            raise ProtocolError(f"more than {MAX_STATS} statistics, or {MAX_STATS_BYTES} bytes")
        pairs.append((reply.name, reply.value))
    return pairs


def _read_line() -> Reading[str]:
    reply = yield
    # Any line will do, but one that shows that this is another server.
    if not isinstance(reply, wire.Line) or guessed_server(reply.text.encode()) != NOT_MEMCACHE:
        _unexpected(reply)
    return reply.text


def _is_version(reply: wire.Reply) -> bool:
    return isinstance(reply, wire.Line) and reply.text.startswith("VERSION ")


def _read_done(*accepted: str) -> Callable[[], Reading[str]]:
    def read() -> Reading[str]:
        reply = yield
        text = "END" if isinstance(reply, wire.EndOfList) else getattr(reply, "text", "")
        if text not in accepted:
            _unexpected(reply)
        return text

    return read


def _read_found(done: str) -> Callable[[], Reading[bool]]:
    """Return the reading of a reply that is `done`, or NOT_FOUND."""

    def read() -> Reading[bool]:
        return (yield from _read_done(done, "NOT_FOUND")()) == done

    return read


def _unexpected(reply: wire.Reply) -> NoReturn:
    if isinstance(reply, wire.ErrorReply):
        if reply.reason in {SIGN_IN_FIRST, WRONG_PASSWORD}:
            raise AuthenticationFailed("the server needs a user and a password")
        raise ServerRefused(reply.reason or reply.kind, reply.kind)
    shown = reply.text if isinstance(reply, wire.Line) else reply
    raise ProtocolError(f"this does not answer the request: {repr(shown)[:200]}")


def _milliseconds(seconds: float) -> int:
    # A short wait must not be rounded down to 0, which means "answer at once".
    return math.ceil(seconds * 1000) if seconds > 0 else 0
