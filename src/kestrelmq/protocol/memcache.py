"""The memcache protocol, server side: parses request lines and encodes replies; no sockets.

A request line is parsed into an immutable value, so equal lines can share one. `Parser` caches its
results, and on the hot path a request costs one look-up.

Lines end in CR LF; a bare LF is accepted. Command words are case-insensitive.

To add a command, write its request class, a method of `Parser` and a line in `_VERBS`. Then serve
it in `server/sessions/memcache.py`, or in `memcache_admin.py` there if it is about whole queues.
`managing` and `reserving` have the requests that thrift, text or HTTP have, too:

    browse Q OFFSET COUNT | from=PLACE [COUNT] [text=TEXT | pattern=PATTERN]     percent-encoded
    move Q TARGET [COUNT]
    copy Q TARGET [COUNT]
    redrive Q [TARGET]
    declare Q [fanout_only] [journal=yes|no] [expires=MS] [max_age=MS] [max_items=N]
    pause Q reads|writes|all
    resume Q [reads|writes|all]
    clients
    client kill ID
    client name NAME
    reserve Q[,Q2...] COUNT lease=MS [t=MS] [tag=TAG] [owner=NAME [grace=MS]] [again] [nodata]
    finish Q READ... | tag=TAG
    release Q READ... | tag=TAG | owner=NAME [delay=MS] [uncounted] [dead]
    release owner=NAME [delay=MS] [uncounted] [dead]
    extend Q MS READ... | tag=TAG
    extend owner=NAME MS
    retire Q NAME EPOCH
    owners [PATTERN]
"""
# ruff: noqa: SLF001 # the table of parsers names methods of the class above it

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import quote, unquote_to_bytes

from kestrelmq.arguments import client_name_error
from kestrelmq.idempotent_producers import PutMark, check_mark
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import BINARY_REQUEST, MEMCACHED_COMMANDS, is_http
from kestrelmq.protocol.managing import (
    MAX_SEARCH,
    Browse,
    Confirm,
    Declare,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    GetStatus,
    KillClient,
    ListClients,
    ManagingRequest,
    Move,
    NameClient,
    Operations,
    Pause,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    Version,
)
from kestrelmq.protocol.reserving import (
    MAX_DIGITS,
    MAX_OWNER,
    EndsReads,
    Extend,
    ExtendOwner,
    Finish,
    ListOwners,
    Release,
    Reserve,
    Retire,
    nonce_text,
    parse_listed,
    parse_reads,
    parse_run,
)

Dialect = Literal["kestrel", "memcached"]

MAX_LINE: Final = 8192
"""The most bytes of a request line."""
MAX_ITEM_BYTES: Final = 2**31 - 1 - 16
"""The most bytes of an item: the journal's size field is an i32 and counts 16 bytes of header."""
MAX_CACHED_LINE: Final = 512
"""The longest line whose request is cached, in bytes."""
_CACHED_LINES: Final = 2048
_CACHED_HEADERS: Final = 4096
_MOST_DIGITS: Final = 18
"""Most digits of a number in an option of `set`."""
_PUT_NUMBERS: Final = {b"delay": "milliseconds", b"seq": "a number", b"after": "a number"}
SEQUENCE: Final = b"/seq="
"""Comes before the number of a producer's item."""
_AFTER: Final = b"/after="
_NUMBERED: Final = re.compile(rb"(.*?/seq=)\d+(/after=\d+)?([^\d].*)\n", re.DOTALL)

NameCheck = Callable[[bytes], str | None]
"""Returns why bytes cannot be a queue's name; None when they can."""


# --- requests ---


@dataclass(slots=True, init=False)
class Set:
    """Add an item; `size` bytes of data and a line end come after the request line.

    It is not changed, but not frozen; see `PutMark`. Each item of a producer has one.

    Attributes:
        plain: the queue, if there is no delay; otherwise empty.
        delay: milliseconds after which the item joins the queue; 0 for at once.
        mark: the item's mark, if a producer is named.
    """

    queue: str
    expiry: int
    size: int
    noreply: bool
    plain: str
    delay: int = 0
    mark: PutMark | None = None

    def __init__(
        self,
        queue: str,
        expiry: int,
        size: int,
        noreply: bool,  # noqa: FBT001 # by position, which is faster
        plain: str,
        delay: int = 0,
        mark: PutMark | None = None,
    ) -> None:
        self.queue = queue
        self.expiry = expiry
        self.size = size
        self.noreply = noreply
        self.plain = plain
        self.delay = delay
        self.mark = mark


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a `get`: a queue and what to do with it.

    Attributes:
        queue: its name.
        echo: the name for it in the VALUE line.
        timeout: milliseconds to wait for an item; None does not wait.
        open, close, abort, peek: whether the option was given.
    """

    queue: str
    echo: bytes
    timeout: int | None = None
    open: bool = False
    close: bool = False
    abort: bool = False
    peek: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read from queues.

    Attributes:
        keys: the queues, and what to do with each.
        cas: whether VALUE lines have a fourth field.
        plain: the queue, if this is a `get` of one key without options other than a time-out.
        prefix: the VALUE line of a plain `get` up to the length.
    """

    keys: tuple[Key, ...]
    cas: bool
    plain: str | None
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Monitor:
    """Open reads of items as they arrive, for a number of seconds and up to a number of items."""

    queue: str
    seconds: int
    max_items: int | None


@dataclass(frozen=True, slots=True)
class TouchRead:
    """Extend every open read of this connection on a queue."""

    queue: str
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Return the statistics of the server, or of one queue."""

    queue: str | None


@dataclass(frozen=True, slots=True)
class Dump:
    """Return statistics or settings, grouped by queue; no names stand for all queues."""

    what: Literal["stats", "config"]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that is refused; its data, if any, is read and dropped first."""

    reply: bytes
    """The reply; empty if the client expects none."""
    size: int | None
    """Bytes of data before the line end that follows them; None when the request has no data."""


Request = (
    Set
    | Get
    | Monitor
    | Confirm
    | TouchRead
    | ManagingRequest
    | NameClient
    | Reserve
    | EndsReads
    | ListOwners
    | Stats
    | Dump
    | GetStatus
    | SetStatus
    | Version
    | Reload
    | Shutdown
    | Quit
    | RefusedRequest
)


class NumberedLine:
    """A line that adds an item of a producer: the next one often differs only in the numbers.

    No two such lines are equal, so the cache of requests cannot have them.

    Attributes:
        request: the request that `read` has found.
    """

    def __init__(
        self, begin: bytes, end: bytes, request: Set, mark: PutMark, *, has_after: bool
    ) -> None:
        """Begin with what comes before the numbers and behind them.

        Args:
            begin: the line up to and with `/seq=`.
            end: what comes behind the number, or behind that of `/after=`.
            request: the request of such a line, with any numbers; likewise:
            mark: its mark.
            has_after: whether `/after=` and a number come behind the first number.
        """
        self.request = request
        self._mark = mark
        self._begin = begin
        self._end = end
        self._has_after = has_after
        # The number that is likely to come next, and its digits.
        self._next = 0
        self._next_digits = b"0"
        # The bytes of the last numbers, and the most bytes of them and the end.
        self._width = 0
        self._most = 2 * _MOST_DIGITS + len(_AFTER) + len(end)

    def read(self, data: bytes, position: int) -> int:
        """Read the line at `position`, if it is such a one.

        Returns:
            Where it ends; 0 if it is another one, or not all there.
        """
        at = position + len(self._begin)
        if data[position:at] != self._begin:
            return 0
        stop = at + self._width
        if data[stop : stop + len(self._end)] != self._end:
            stop = data.find(self._end, at, at + self._most)
            if stop < 0:
                return 0
            self._width = stop - at
        digits, after = data[at:stop], self._mark.after
        if self._has_after:
            digits, _, more = digits.partition(_AFTER)
            if not more.isdigit() or len(more) > _MOST_DIGITS:
                return 0
            after = int(more)
        if len(digits) > _MOST_DIGITS:
            return 0
        if digits == self._next_digits:
            sequence = self._next  # to parse them takes longer
        elif digits.isdigit():
            sequence = int(digits)
        else:
            return 0
        self._next = sequence + 1
        self._next_digits = b"%d" % self._next
        request = self.request
        self.request = Set(
            request.queue,
            request.expiry,
            request.size,
            request.noreply,
            request.plain,
            request.delay,
            PutMark(self._mark.producer, sequence, after),
        )
        return stop + len(self._end)


# --- replies ---

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
END: Final = b"END\r\n"
ERROR: Final = b"ERROR\r\n"
DELETED: Final = b"DELETED\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
KILLED: Final = b"KILLED\r\n"
NAMED: Final = b"NAMED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
ITEM: Final = b"ITEM "
"""The beginning of a reply to `reserve` that has items."""
VALUE: Final = b"VALUE "
"""The beginning of a reply to `get` or `monitor` that has an item."""
DONE: Final = b"DONE\r\n"
"""The reply to a `reserve` whose tag is done."""
OK: Final = b"OK\r\n"
FLUSHED_ALL: Final = b"Flushed all queues.\r\n"


@lru_cache(_CACHED_HEADERS)
def value_header(prefix: bytes, size: int) -> bytes:
    """Return a VALUE line that begins with `prefix`, which ends before the length."""
    return b"%b%d\r\n" % (prefix, size)


def value_parts(
    echo: bytes, data: bytes | memoryview, cas: int | None = None
) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return a VALUE line, its data, and the end of that line, without END."""
    extra = b"" if cas is None else b" %d" % cas
    return b"VALUE %b 0 %d%b\r\n" % (echo, len(data), extra), data, b"\r\n"


def browsed_parts(
    place: int, times: tuple[int, int], data: bytes | memoryview, letter: bytes = b""
) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return an item of a `browse`, in parts: its place, its times (epoch ms) and its data.

    `letter` is what `letter_words` returns, if it is a dead letter.
    """
    return b"ITEM %d %d %d%b %d\r\n" % (place, *times, letter, len(data)), data, b"\r\n"


def letter_words(origin: str, died: int, why: str, deliveries: int) -> bytes:
    """Return the words about a dead letter, each after a space; `died` is in ms since the epoch."""
    words = f" from={origin} died={died} deliveries={deliveries} why={quote(why, safe='')}"
    return words.encode()


def reserved_rest(nonce: int, deliveries: int, times: tuple[int, int], size: int) -> bytes:
    """Return what follows `ITEM QUEUE XID` in the line of a reserved read.

    Args:
        nonce: that of its reservation.
        deliveries: how often the item was handed out, this time included.
        times: when it was added and when it expires (ms).
        size: its bytes.
    """
    return b"-%016x %d %d %d %d\r\n" % (nonce, deliveries, *times, size)


def held_line(queue: str, nonce: int, count: int, size: int) -> bytes:
    """Return what a `reserve` with `nodata` says of a queue; `size` is the bytes of the items."""
    return f"HELD {queue} {nonce_text(nonce)} {count} {size}\r\n".encode()


def owner_line(
    name: str, reads: int, queues: int, tags: int, age_ms: int, connections: int
) -> bytes:
    """Return a line of `owners`."""
    return f"OWNER {name} {reads} {queues} {tags} {age_ms} {connections}\r\n".encode()


def counted_line(verb: bytes, count: int) -> bytes:
    """Return a reply that says how many reads or tags were ended or extended."""
    return b"%b %d\r\n" % (verb, count)


def client_error(reason: str) -> bytes:
    """Return the reply for an error of the client."""
    return b"CLIENT_ERROR " + _one_line(reason) + b"\r\n"


def server_error(reason: str) -> bytes:
    """Return the reply for an error of the server, or a request it does not allow at present."""
    return b"SERVER_ERROR " + _one_line(reason) + b"\r\n"


def stats(pairs: list[tuple[str, object]], prefix: str = "") -> bytes:
    """Return STAT lines, without END; `prefix` comes before each name."""
    return "".join(f"STAT {prefix}{name} {content}\r\n" for name, content in pairs).encode()


def dump(queue: str, pairs: list[tuple[str, object]]) -> bytes:
    """Return the part of a dump for one queue, without END."""
    lines = "".join(f"  {name}={content}\r\n" for name, content in pairs)
    return f"queue '{queue}' {{\r\n{lines}}}\r\n".encode()


def client(fields: Iterable[tuple[str, object]]) -> bytes:
    """Return the line for a connected client in the reply to `clients`, without END."""
    words = "".join(f" {name}={content}" for name, content in fields)
    return f"CLIENT{words}\r\n".encode()


def reloaded(not_in_force: Sequence[str]) -> bytes:
    """Return the reply to a reload, which names what takes a restart."""
    left = f" Not in force before a restart: {'; '.join(not_in_force)}" if not_in_force else ""
    return line(f"Reloaded config.{left}")


def line(text: str) -> bytes:
    """Return a one-line reply with `text`."""
    return _one_line(text) + b"\r\n"


def _one_line(text: str) -> bytes:
    return " ".join(text.split()).encode(errors="replace")


# --- parsing ---


_BROWSE: Final = "browse takes a queue, an offset or from=, a count, and perhaps text= or pattern="
_BROWSED: Final = 100
"""How many items a `browse` from a place shows without a count."""


class Parser:
    """Parses request lines of one dialect, and caches the requests of recent lines.

    Attributes:
        parse: returns the request in a line of at most MAX_CACHED_LINE bytes, given without its LF.
            Raises ClientFault when the line is malformed, or unknown in the kestrel dialect.
        parse_long: the same for lines of any length, without the cache.
        forget: empties the cache.
    """

    def __init__(self, dialect: Dialect, name_error: NameCheck) -> None:
        self._dialect = dialect
        self._name_error = name_error
        cached = lru_cache(_CACHED_LINES)(self._parse)
        self.parse: Callable[[bytes], Request] = cached
        self.forget: Callable[[], None] = cached.cache_clear
        self.parse_long: Callable[[bytes], Request] = self._parse

    def parse_numbered(self, line: bytes) -> "NumberedLine | None":
        """Return what a line has in common with others that have other numbers of items.

        Args:
            line: the line, with its LF.

        Returns:
            None if it has no such number, or is not valid; then `parse_long` returns its request.
        """
        found = _NUMBERED.fullmatch(line)
        if found is None:
            return None
        begin, after, end = found.group(1, 2, 3)
        numbers = b"0" if after is None else b"0/after=0"
        try:
            request = self.parse(b"%b%b%b" % (begin, numbers, end))
        except ClientFault:
            return None
        if not isinstance(request, Set) or request.mark is None:
            return None
        return NumberedLine(begin, end + b"\n", request, request.mark, has_after=after is not None)

    def _parse(self, line: bytes) -> Request:
        if len(line) > MAX_LINE and len(line.removesuffix(b"\r")) > MAX_LINE:
            raise ClientFault(f"a line has at most {MAX_LINE} bytes", closes=True)
        words = _split_line(line)
        if not words:
            raise ClientFault("empty line", closes=self._dialect == "kestrel")
        verb = words[0].lower()
        parse = _VERBS.get(verb)
        if parse is None:
            return self._unknown(line, verb, words[1:])
        try:
            return parse(self, words[1:])
        except ValueError as error:
            _check_protocol(line)
            if not self._is_quiet(verb, line):
                raise ClientFault(str(error), closes=False) from None
        except ClientFault as fault:
            _check_protocol(line)
            if fault.closes or not self._is_quiet(verb, line):
                raise
        return RefusedRequest(b"", None)

    def _is_quiet(self, verb: bytes, line: bytes) -> bool:
        """Whether the client expects no reply, because the line ends in `noreply`."""
        if line.split()[-1] != b"noreply":
            return False
        if self._dialect == "kestrel":
            return verb in _QUIET_VERBS
        return verb not in {b"get", b"gets"}

    # --- the pieces of a line ---

    def _queue(self, word: bytes) -> str:
        problem = self._name_error(word)
        if problem is not None:
            raise ClientFault(problem, closes=False)
        return word.decode()

    def _set(self, words: list[bytes]) -> Request:
        noreply = len(words) == 5 and words[4] == b"noreply"
        if len(words) != 4 and not noreply:
            # Without the length, the end of the data is unknown.
            raise ClientFault("set takes a queue, flags, expiry and a length", closes=True)
        size = _number(words[3])
        if size is None or not 0 <= size <= MAX_ITEM_BYTES:
            raise ClientFault("bad length", closes=True)
        flags, expiry = _number(words[1]), _number(words[2])
        if flags is None or expiry is None:
            reply = client_error("flags and expiry must be numbers")
            return RefusedRequest(b"" if noreply else reply, size)
        name = words[0]
        problem = self._name_error(name)
        if problem is None:
            queue = name.decode()
            return Set(queue, expiry, size, noreply, queue)
        try:
            name, *options = name.split(b"/")
            delay, mark = _put_options(options)
            queue = self._queue(name)
        except ClientFault as fault:
            return RefusedRequest(b"" if noreply else client_error(fault.message), size)
        return Set(queue, expiry, size, noreply, "" if delay else queue, delay, mark)

    def _get(self, words: list[bytes]) -> Request:
        return self._read(words, cas=False)

    def _gets(self, words: list[bytes]) -> Request:
        return self._read(words, cas=True)

    def _read(self, words: list[bytes], *, cas: bool) -> Request:
        if not words:
            if self._dialect == "memcached":
                return RefusedRequest(ERROR, None)
            raise ClientFault("get takes at least one queue", closes=True)
        keys = tuple(self._key(word) for word in words)
        first = keys[0]
        has_option = first.open or first.close or first.abort or first.peek
        is_plain = len(keys) == 1 and not has_option and not cas
        return Get(
            keys,
            cas,
            first.queue if is_plain else None,
            b"VALUE " + first.echo + b" 0 " if is_plain else b"",
        )

    def _key(self, word: bytes) -> Key:
        name, *options = word.split(b"/")
        if not name:
            raise ClientFault("a get needs a queue name", closes=True)
        timeout: int | None = None
        flags = dict.fromkeys(("open", "close", "abort", "peek"), False)
        for option in options:
            text = option.decode(errors="replace")
            if option.startswith(b"t="):
                timeout = _number(option[2:])
                if timeout is None:
                    raise ClientFault("t= takes milliseconds", closes=False)
                timeout = max(timeout, 0)
            elif text in flags:
                flags[text] = True
            elif text:
                raise ClientFault(f"unknown option /{_printable(option)}", closes=False)
        if (flags["peek"] or flags["abort"]) and (flags["open"] or flags["close"]):
            raise ClientFault("peek and abort do not go with open and close", closes=True)
        if flags["peek"] and flags["abort"]:
            raise ClientFault("peek does not go with abort", closes=True)
        echo = word if self._dialect == "memcached" else name
        return Key(self._queue(name), echo, timeout, **flags)

    def _monitor(self, words: list[bytes]) -> Monitor:
        if len(words) not in {2, 3}:
            raise ClientFault("monitor takes a queue, seconds and perhaps a maximum", closes=False)
        numbers = [_count(word, "monitor") for word in words[1:]]
        return Monitor(self._queue(words[0]), numbers[0], numbers[1] if len(numbers) > 1 else None)

    def _confirm(self, words: list[bytes]) -> Confirm:
        if len(words) != 2:
            raise ClientFault("confirm takes a queue and a count", closes=False)
        return Confirm(self._queue(words[0]), _count(words[1], "confirm"))

    def _touch_read(self, words: list[bytes]) -> TouchRead:
        if len(words) != 2:
            raise ClientFault("touch_read takes a queue and milliseconds", closes=False)
        return TouchRead(self._queue(words[0]), _count(words[1], "touch_read"))

    def _delete(self, words: list[bytes]) -> Delete:
        words, noreply = _without_noreply(words, least=1)
        # Old clients send a delay after the key; only 0 is supported.
        if len(words) not in {1, 2} or words[1:] not in ([], [b"0"]):
            raise ClientFault("delete takes a queue", closes=False)
        return Delete(self._queue(words[0]), noreply)

    def _flush(self, words: list[bytes]) -> Flush:
        words, noreply = _without_noreply(words, least=1)
        if len(words) != 1:
            raise ClientFault("flush takes a queue", closes=False)
        return Flush(self._queue(words[0]), noreply)

    def _flush_all(self, words: list[bytes]) -> FlushAll:
        words, noreply = _without_noreply(words, least=0)
        if words not in ([], [b"0"]):
            raise ClientFault("flush_all takes no delay", closes=False)
        return FlushAll(noreply)

    def _flush_expired(self, words: list[bytes]) -> FlushExpired:
        if len(words) != 1:
            raise ClientFault("flush_expired takes a queue", closes=False)
        return FlushExpired(self._queue(words[0]))

    def _stats(self, words: list[bytes]) -> Stats:
        if len(words) > 1:
            raise ClientFault("stats takes at most one queue", closes=False)
        return Stats(self._queue(words[0]) if words else None)

    def _dump_stats(self, words: list[bytes]) -> Dump:
        return Dump("stats", tuple(map(self._queue, words)))

    def _dump_config(self, words: list[bytes]) -> Dump:
        return Dump("config", tuple(map(self._queue, words)))

    def _status(self, words: list[bytes]) -> GetStatus | SetStatus:
        if len(words) > 1:
            raise ClientFault("status takes at most one new status", closes=False)
        return SetStatus(words[0].decode(errors="replace")) if words else GetStatus()

    def _browse(self, words: list[bytes]) -> Browse:
        if not words:
            raise ClientFault(_BROWSE, closes=False)
        name, rest, place, search, kind = self._queue(words[0]), words[1:], "", b"", b""
        if rest and rest[-1].startswith((b"text=", b"pattern=")):
            kind, _, encoded = rest.pop().partition(b"=")
            search = unquote_to_bytes(encoded)
            if not 0 < len(search) <= MAX_SEARCH:
                reason = (
                    f"browse takes text= or pattern=, of 1 to {MAX_SEARCH} bytes, percent-encoded"
                )
                raise ClientFault(reason, closes=False)
        if rest and rest[0].startswith(b"from="):
            place, rest[0] = _text({b"from": rest[0].removeprefix(b"from=")}, b"from"), b"0"
        if len(rest) != 2 and not (place and len(rest) == 1):  # a place may have no count
            raise ClientFault(_BROWSE, closes=False)
        offset = _count(rest[0], "browse")
        most = _count(rest[1], "browse") if len(rest) == 2 else _BROWSED
        return Browse(name, offset, most, search, kind == b"pattern", place)

    def _move(self, words: list[bytes]) -> Move:
        return self._transfer(words, "move", copies=False)

    def _copy(self, words: list[bytes]) -> Move:
        return self._transfer(words, "copy", copies=True)

    def _transfer(self, words: list[bytes], verb: str, *, copies: bool) -> Move:
        if len(words) not in {2, 3}:
            raise ClientFault(f"{verb} takes two queues, and perhaps a count", closes=False)
        most = _count(words[2], verb) if len(words) == 3 else None
        return Move(self._queue(words[0]), self._queue(words[1]), most, copies)

    def _redrive(self, words: list[bytes]) -> Move:
        if len(words) not in {1, 2}:
            raise ClientFault("redrive takes a queue, and perhaps a target", closes=False)
        target = self._queue(words[1]) if len(words) == 2 else None
        return Move(self._queue(words[0]), target, None, redrives=True)

    def _declare(self, words: list[bytes]) -> Declare:
        if not words:
            raise ClientFault("declare takes a queue, and its settings", closes=False)
        declared = self._queue(words[0])
        fanout_only, journal = False, None
        numbers: dict[bytes, int] = {}
        for word in words[1:]:
            name, _, text = word.partition(b"=")
            if word == b"fanout_only" and not fanout_only:
                fanout_only = True
            elif name == b"journal" and text in {b"yes", b"no"} and journal is None:
                journal = text == b"yes"
            elif name in {b"expires", b"max_age", b"max_items"} and name not in numbers:
                numbers[name] = _count(text, name.decode())
            else:
                raise ClientFault(
                    f"{_printable(word)}: declare takes, each once: fanout_only, journal=no,"
                    " expires=MS, max_age=MS, max_items=N",
                    closes=False,
                )
        return Declare(
            declared,
            fanout_only,
            journal,
            numbers.get(b"expires"),
            numbers.get(b"max_age"),
            numbers.get(b"max_items"),
        )

    def _pause(self, words: list[bytes]) -> Pause:
        if len(words) != 2:
            raise ClientFault("pause takes a queue, and reads, writes or all", closes=False)
        return Pause(self._queue(words[0]), _operations(words[1]), resume=False)

    def _resume(self, words: list[bytes]) -> Pause:
        if len(words) not in {1, 2}:
            reason = "resume takes a queue, and perhaps reads, writes or all"
            raise ClientFault(reason, closes=False)
        operations = _operations(words[1]) if len(words) > 1 else "all"
        return Pause(self._queue(words[0]), operations, resume=True)

    def _client(self, words: list[bytes]) -> KillClient | NameClient:
        what = words[0].lower() if len(words) == 2 else b""
        if what == b"kill":
            return KillClient(_count(words[1], "client kill"))
        if what != b"name":
            raise ClientFault("client takes kill and an id, or name and a name", closes=False)
        # Bytes that are not UTF-8 become a character that no name may have.
        name = words[1].decode(errors="surrogateescape")
        if (problem := client_name_error(name)) is not None:
            raise ClientFault(problem, closes=False)
        return NameClient(name)

    def _reserve(self, words: list[bytes]) -> Reserve:
        if len(words) < 2:
            raise ClientFault("reserve takes queues, a count and a lease", closes=False)
        names = map(parse_listed, words[0].split(b","))
        options, others = _split_options(words[2:], {b"lease", b"t", b"tag", b"owner", b"grace"})
        flags = {b"again", b"nodata"}.intersection(others)
        if len(flags) < len(others) or b"lease" not in options:
            raise ClientFault("reserve takes a lease= after the count", closes=False)
        if b"grace" in options and b"owner" not in options:
            raise ClientFault("a grace needs an owner", closes=False)
        return Reserve(
            tuple(map(self._queue, names)),
            _number(words[1]) or 0,
            _milliseconds(options[b"lease"], "lease"),
            max(0, _milliseconds(options.get(b"t", b"0"), "t")),
            _text(options, b"tag"),
            _text(options, b"owner"),
            _milliseconds(options.get(b"grace", b"5000"), "grace"),
            b"again" in flags,
            b"nodata" in flags,
        )

    def _finish(self, words: list[bytes]) -> Finish:
        if not words:
            raise ClientFault("finish takes a queue and reads, or a tag", closes=False)
        text = b" ".join(words[1:]).rstrip()
        run = parse_run(text)
        if run is not None:
            return Finish(self._queue(words[0]), run)
        options, others = _split_options(text.split(), {b"tag"})
        return Finish(self._queue(words[0]), parse_reads(others), _text(options, b"tag"))

    def _release(self, words: list[bytes]) -> Release:
        if not words:
            raise ClientFault("release takes a queue and reads, a tag or an owner", closes=False)
        options, others = _split_options(words[1:], {b"tag", b"owner", b"delay"})
        flags = {b"uncounted", b"dead"}.intersection(others)
        queue = ""
        is_everywhere = flags.issuperset(others) and options.keys() <= {b"delay"}
        if is_everywhere and words[0].startswith(b"owner="):
            options |= _split_options(words[:1], {b"owner"})[0]
        else:
            queue = self._queue(words[0])
        delay = _milliseconds(options[b"delay"], "delay") if b"delay" in options else None
        return Release(
            queue,
            parse_reads([word for word in others if word not in flags]),
            _text(options, b"tag"),
            _text(options, b"owner"),
            delay,
            b"uncounted" in flags,
            b"dead" in flags,
        )

    def _extend(self, words: list[bytes]) -> Extend | ExtendOwner:
        if len(words) == 2 and words[0].startswith(b"owner="):
            options, _ = _split_options(words[:1], {b"owner"})
            return ExtendOwner(_text(options, b"owner"), _milliseconds(words[1], "extend"))
        if len(words) < 2:
            raise ClientFault("extend takes a queue, milliseconds and reads", closes=False)
        options, others = _split_options(words[2:], {b"tag"})
        lease, tag = _milliseconds(words[1], "extend"), _text(options, b"tag")
        return Extend(self._queue(words[0]), lease, parse_reads(others), tag)

    def _retire(self, words: list[bytes]) -> Retire:
        if len(words) != 3:
            raise ClientFault("retire takes a queue, a name and an epoch", closes=False)
        epoch = _number(words[2])
        return Retire(
            self._queue(words[0]),
            _text({b"name": words[1]}, b"name"),
            -1 if epoch is None else epoch,
        )

    def _owners(self, words: list[bytes]) -> ListOwners:
        if len(words) > 1:
            raise ClientFault("owners takes perhaps a pattern", closes=False)
        return ListOwners(_text({b"pattern": words[0]}, b"pattern")) if words else ListOwners()

    def _unknown(self, line: bytes, verb: bytes, words: list[bytes]) -> RefusedRequest:
        _check_protocol(line)
        if self._dialect == "kestrel":
            raise ClientFault(f"unknown command {_printable(verb)}", closes=True)
        reply = b"" if words[-1:] == [b"noreply"] else ERROR
        # Data follows these commands; the word at this place is its length.
        place = {b"ms": 1}.get(verb, 3 if verb in _STORAGE_VERBS else None)
        if place is None:
            return RefusedRequest(reply, None)
        size = _number(words[place]) if len(words) > place else None
        if size is None or not 0 <= size <= MAX_ITEM_BYTES:
            raise ClientFault("bad length", closes=True)
        return RefusedRequest(reply, size)


_QUIET_VERBS: Final = frozenset({b"delete", b"flush", b"flush_all"})
"""Besides `set`, the commands that take `noreply`: their client then expects no reply."""
_STORAGE_VERBS: Final = frozenset({b"add", b"replace", b"append", b"prepend", b"cas"})


def _without_arguments(verb: str, request: Request) -> Callable[[Parser, list[bytes]], Request]:
    def parse_line(_parser: Parser, words: list[bytes]) -> Request:
        if words:
            raise ClientFault(f"{verb} takes nothing", closes=False)
        return request

    return parse_line


_VERBS: Final[dict[bytes, Callable[[Parser, list[bytes]], Request]]] = {
    b"set": Parser._set,
    b"get": Parser._get,
    b"gets": Parser._gets,
    b"monitor": Parser._monitor,
    b"confirm": Parser._confirm,
    b"touch_read": Parser._touch_read,
    b"delete": Parser._delete,
    b"flush": Parser._flush,
    b"flush_all": Parser._flush_all,
    b"flush_expired": Parser._flush_expired,
    b"flush_all_expired": _without_arguments("flush_all_expired", FlushExpired(None)),
    b"stats": Parser._stats,
    b"dump_stats": Parser._dump_stats,
    b"dump_config": Parser._dump_config,
    b"status": Parser._status,
    b"version": _without_arguments("version", Version()),
    b"reload": _without_arguments("reload", Reload()),
    b"shutdown": _without_arguments("shutdown", Shutdown()),
    b"quit": _without_arguments("quit", Quit()),
    b"browse": Parser._browse,
    b"move": Parser._move,
    b"copy": Parser._copy,
    b"redrive": Parser._redrive,
    b"declare": Parser._declare,
    b"pause": Parser._pause,
    b"resume": Parser._resume,
    b"clients": _without_arguments("clients", ListClients()),
    b"client": Parser._client,
    b"reserve": Parser._reserve,
    b"finish": Parser._finish,
    b"release": Parser._release,
    b"extend": Parser._extend,
    b"retire": Parser._retire,
    b"owners": Parser._owners,
}


def check_first(line: bytes) -> None:
    """Raise ClientFault if the first line of a connection has no command, of memcached either."""
    words = line.split(None, 1)
    if not words:
        raise ClientFault("empty line", closes=True)
    verb = words[0].lower()
    if verb not in _VERBS and verb not in MEMCACHED_COMMANDS:
        _check_protocol(line)
        raise ClientFault(f"unknown command {_printable(verb)}", closes=True)


def _check_protocol(line: bytes) -> None:
    """Refuse a line that is not a valid command, if its client speaks another protocol."""
    if line.startswith(BINARY_REQUEST):
        raise ClientFault("the binary protocol is not served", closes=True)
    if is_http(line):
        raise ClientFault("this is no HTTP server", closes=True)


def _without_noreply(words: list[bytes], *, least: int) -> tuple[list[bytes], bool]:
    """Take `noreply` off the end; the first `least` words may be a queue of that name."""
    if len(words) > least and words[-1] == b"noreply":
        return words[:-1], True
    return words, False


# --- the words of a line ---


def _split_line(line: bytes) -> list[bytes]:
    """Return the words of a line; what follows `finish Q` is one word, as there may be hundreds."""
    return line.split(None, 2) if line[:7].lower() == b"finish " else line.split()


def _put_options(words: list[bytes]) -> tuple[int, PutMark | None]:
    """Return the delay (ms) and the mark that the options of a `set` give its item.

        delay=MS        the item joins the queue after so many milliseconds
        producer=NAME   whose item it is; with it comes
        seq=N           the item's number; it is stored only if N is above the producer's last, so
                        the `set` may be repeated
        after=N         refuse the item if the producer's item number N is not stored

    Raises:
        ClientFault: an option is unknown, comes twice or has a bad value.
    """
    numbers: dict[bytes, int] = {}
    producer: bytes | None = None
    for option in words:
        key, _, value = option.partition(b"=")
        if key in numbers or (key == b"producer" and producer is not None):
            raise ClientFault(f"/{key.decode()} is given twice", closes=False)
        if key == b"producer":
            producer = value
        elif key not in _PUT_NUMBERS:
            raise ClientFault(f"unknown option /{_printable(option)}", closes=False)
        elif value.isdigit() and len(value) <= _MOST_DIGITS:
            numbers[key] = int(value)
        else:
            raise ClientFault(f"{key.decode()}= takes {_PUT_NUMBERS[key]}", closes=False)
    delay = numbers.pop(b"delay", 0)
    if producer is None and not numbers:
        return delay, None
    if producer is None or b"seq" not in numbers:
        raise ClientFault("producer= and seq= go together", closes=False)
    mark = PutMark(producer, numbers[b"seq"], numbers.get(b"after", -1))
    try:
        check_mark(mark)
    except ValueError as error:
        raise ClientFault(str(error), closes=False) from None
    return delay, mark


def _number(word: bytes) -> int | None:
    """Return the decimal number in `word`; None if it is not one or has more than 19 digits."""
    digits = word[1:] if word[:1] in {b"-", b"+"} else word
    if not digits.isdigit() or len(digits) > MAX_DIGITS:
        return None
    return int(word)


def _count(word: bytes, verb: str) -> int:
    """Return the whole number in `word`, from 0 on; `verb` is the command, for the error."""
    value = _number(word)
    if value is None or value < 0:
        raise ClientFault(f"{verb} takes whole numbers", closes=False)
    return value


def _printable(word: bytes) -> str:
    """Return the beginning of `word`, for an error."""
    return ascii(word[:40].decode(errors="replace"))[1:-1]


def _split_options(
    words: list[bytes], names: Collection[bytes]
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the words NAME=VALUE, by name, and the other words."""
    found: dict[bytes, bytes] = {}
    others = []
    for word in words:
        name, equals, value = word.partition(b"=")
        if not equals:
            others.append(word)
        elif name not in names or name in found:
            raise ClientFault(f"unknown or repeated option {_printable(word)}", closes=False)
        else:
            found[name] = value
    return found, others


def _milliseconds(word: bytes, what: str) -> int:
    """Return the number in `word`, of `what`, for the error."""
    value = _number(word)
    if value is None:
        raise ClientFault(f"{what} takes milliseconds", closes=False)
    return value


def _text(options: dict[bytes, bytes], option: bytes) -> str:
    """Return the text of an option that names something; empty if it is not given."""
    if option not in options:
        return ""
    try:
        text = options[option].decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ClientFault(
            f"{option.decode()} takes at most {MAX_OWNER} bytes of text", closes=False
        )
    return text


def _operations(word: bytes) -> Operations:
    if word == b"reads":
        return "reads"
    if word == b"writes":
        return "writes"
    if word == b"all":
        return "all"
    reason = f"only reads, writes or all can be paused, not {_printable(word)}"
    raise ClientFault(reason, closes=False)
