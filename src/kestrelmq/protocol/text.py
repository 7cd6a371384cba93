r"""The text protocol: parses commands and encodes replies; no sockets.

A command is one line of words separated by spaces; the command word is case-insensitive. Lines end
in "\n"; "\r\n" is accepted. Only `put` has several lines: `put QUEUE [EXPIRY_MS]:`, then one item
per line, then an empty line.

    put QUEUE [EXPIRY_MS]:                "+COUNT"
    get QUEUE [TIMEOUT_MS]                ":ITEM" or "*"
    peek QUEUE [TIMEOUT_MS]               ":ITEM" or "*"
    monitor QUEUE [TIMEOUT_MS [MAX]]      ":ITEM" lines, then "*"
    confirm QUEUE COUNT                   "+COUNT"
    flush QUEUE                           "+0"
    flush_all                             "+0"
    flush_expired QUEUE                   "+0"
    delete QUEUE                          "+0"
    reload                                "+0"
    status [NEW]                          ":UP" or "+0"
    auth USER PASSWORD                    "+0"
    version                               ":x.y.z"
    shutdown, quit                        the connection closes

An error is "-MESSAGE". A command that is malformed or too long is read to its end and dropped. The
end of a malformed `put` is the next empty line, so that its items are never read as commands. Only
HTTP, TLS and a first line that is no command close the connection. Empty lines between commands are
ignored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import MEMCACHED_COMMANDS, TLS_HELLO, is_http
from kestrelmq.protocol.managing import (
    Confirm,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    GetStatus,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    SignIn,
    Version,
)

MAX_LINE_BYTES: Final = 8192
"""The longest command line in bytes, without its line end."""

MAX_PUT_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of all items of one `put` together."""

MAX_PUT_ITEMS: Final = 100_000
"""The most items of one `put`."""

_LINES_AT_ONCE: Final = 200
"""Most lines that are parsed at once, which takes less than a millisecond."""
_LARGE_LINE: Final = 1 << 20
"""A line with so many bytes, or more, is a memoryview: a copy of one may take 50 ms."""
_RETURN: Final = ord("\r")

# Of times and counts: enough for any sensible number, and few enough to convert quickly.
_MOST_DIGITS: Final = 18
LargestItem = Callable[[str], int | None]
"""Returns the most bytes that an item of a queue may have; None is no limit."""
_PUT: Final = "put QUEUE [EXPIRY_MS]:"


# --- commands; `managing` has those that other protocols have, too ---


@dataclass(frozen=True, slots=True)
class Put:
    """Add `items`; large ones are memoryviews.

    `expiry` is in ms from now: 0 is never, a negative one has passed. `too_large` counts the
    items that were dropped while they came, because they are too large for the queue.
    """

    queue: str
    expiry: int
    items: tuple[bytes | memoryview, ...]
    too_large: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    """Open a read; `timeout` is in ms. This confirms the reads before, and so do the next two."""

    queue: str
    timeout: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Look at the head; `timeout` is in ms."""

    queue: str
    timeout: int


@dataclass(frozen=True, slots=True)
class Monitor:
    """Open up to `most` reads during `timeout` ms; None is as many as may be open."""

    queue: str
    timeout: int
    most: int | None


Command: TypeAlias = (
    Put
    | Get
    | Peek
    | Monitor
    | Confirm
    | Flush
    | FlushAll
    | FlushExpired
    | Delete
    | Reload
    | GetStatus
    | SetStatus
    | SignIn
    | Version
    | Shutdown
    | Quit
)


# --- parsing ---


class _IncompletePut:
    """A `put` whose items have not all arrived.

    Attributes:
        room: the most bytes that the next item may have; 0 when no more items are accepted.
    """

    __slots__ = (
        "_expiry",
        "_fault",
        "_items",
        "_limit",
        "_queue",
        "_room",
        "_too_large",
        "room",
    )

    def __init__(self, words: list[bytes], largest: LargestItem) -> None:
        """Parse `words`, the words of the line without the colon. Raises ClientFault."""
        _expect(words, _PUT, 1, 2)
        self._queue = _name(words[0])
        self._expiry = _integer(words[1]) if len(words) > 1 else 0
        self._items: list[bytes | memoryview] = []
        # A message, not an exception: its traceback would keep this put and the input alive.
        self._fault: str | None = None
        self._too_large = 0
        self._limit = largest(self._queue)
        self.room = self._room = MAX_PUT_BYTES
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        self._room -= size
        self.room = self._room if self._limit is None else min(self._room, self._limit)

    def add(self, item: bytes | memoryview) -> None:
        self._make_room(len(item))
        self._items.append(item)
        self._check_count()

    def drop(self) -> None:
        """Drop an item that is too large for the queue; refuse the put if that is too large."""
        if self._limit is not None and self._limit <= self._room:
            self._too_large += 1
            self._check_count()
        else:
            self.refuse()

    def _check_count(self) -> None:
        if len(self._items) + self._too_large > MAX_PUT_ITEMS:
            self.refuse()

    def refuse(self, fault: str = "") -> None:
        """Refuse a put, by default because it is too large, and drop its items."""
        limits = f"a put holds at most {MAX_PUT_ITEMS} items and {MAX_PUT_BYTES} bytes"
        self._fault = self._fault or fault or limits
        self._items.clear()
        self._room = MAX_PUT_BYTES
        self.room = 0

    @property
    def size(self) -> int:
        """Bytes of its items so far."""
        return MAX_PUT_BYTES - self._room

    def finish(self) -> Put:
        if self._fault is not None:
            raise _fault(self._fault)
        return Put(self._queue, self._expiry, tuple(self._items), self._too_large)


class TextParser:
    """Parses the bytes that a client sends into commands.

    It buffers at most one incomplete line or `put`, both of bounded size, and the commands that
    were received but not yet returned.

    Attributes:
        has_more: whether the last call of `next_command` ended early, because a `put` of many short
            items takes time: the next one goes on.
    """

    __slots__ = (
        "_buffer",
        "_dropping",
        "_is_first",
        "_largest",
        "_overlong",
        "_overlong_word",
        "_put",
        "_scanned",
        "has_more",
    )

    def __init__(self, largest: LargestItem = lambda _: None) -> None:
        """`largest` gives the size limit of items; larger ones are dropped while they come."""
        self._largest = largest
        self._buffer = bytearray()
        self._scanned = 0
        self._overlong = False
        self._overlong_word = b""
        self._is_first = True
        # Whether the lines up to the next empty one belong to a `put` that was refused.
        self._dropping = False
        self._put: _IncompletePut | None = None
        self.has_more = False

    def receive(self, data: bytes) -> None:
        """Add received bytes; `next_command` returns the commands in them."""
        self._buffer += data

    @property
    def buffered(self) -> int:
        """Bytes of the `put` that has begun to arrive."""
        return 0 if self._put is None else self._put.size + len(self._buffer)

    def refuse_put(self, fault: str) -> None:
        """Drop what has arrived of a `put`, and what is still to come of it; refuse it then."""
        if self._put is not None:
            self._put.refuse(fault)
            self._overlong |= bool(self._buffer)
            self._buffer.clear()
            self._scanned = 0

    def next_command(self) -> Command | None:
        """Return the next command, or None when more input is needed, or if there is more to do.

        Raises:
            ClientFault: the next command is invalid; it was dropped, and the next call goes on
                after it.
        """
        self.has_more = False
        if self._is_first and self._buffer.startswith(TLS_HELLO):
            self._is_first = False
            return Quit()
        for _ in range(_LINES_AT_ONCE):
            line = self._next_line()
            if line is None:
                return None
            overlong, self._overlong = self._overlong, False
            put = self._put
            if self._dropping:
                self._dropping = bool(line) or overlong
            elif put is None:
                if overlong:
                    self._dropping = _is_put([self._overlong_word])
                    message = f"a line has at most {MAX_LINE_BYTES} bytes"
                    raise _fault(message, closes=self._is_foreign(self._overlong_word))
                if command := self._parse(bytes(line)):
                    return command
            elif overlong:
                put.drop()
            elif line:
                put.add(line)
            else:
                self._put = None
                return put.finish()
        self.has_more = True
        return None

    def take_back(self) -> bytes:
        """Return the input that was not parsed, and clear the buffer; `receive` it again later."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._scanned = 0
        return rest

    def _next_line(self) -> bytes | memoryview | None:
        """Return the next line without its end, or None if it is incomplete; set `_overlong`.

        A large one, which only an item or one that is too long can be, is a memoryview.
        """
        buffer = self._buffer
        longest = MAX_LINE_BYTES if self._put is None else self._put.room
        end = buffer.find(b"\n", self._scanned)
        if end < 0:
            # The last byte may be the CR of the line's end.
            if len(buffer) > longest + 1:
                self._note_overlong(buffer)
            if self._overlong:
                buffer.clear()
            self._scanned = len(buffer)
            return None
        size = end - 1 if end and buffer[end - 1] == _RETURN else end
        if size > longest:
            self._note_overlong(buffer)
        self._scanned = 0
        if size >= _LARGE_LINE:
            self._buffer = buffer[end + 1 :]
            return memoryview(buffer)[:size].toreadonly()
        line = bytes(buffer[:size])
        del buffer[: end + 1]
        return line

    def _note_overlong(self, begin: bytes | bytearray) -> None:
        """Record that a line is too long. `begin` is its beginning, or a later part of it."""
        if not self._overlong:
            self._overlong = True
            if self._put is None:
                words = bytes(begin[:MAX_LINE_BYTES]).split(maxsplit=1)
                self._overlong_word = words[0] if words else b""

    def _parse(self, line: bytes) -> Command | None:
        """Return the command in `line`; None when it is empty or the first line of a `put`."""
        words = line.split()
        if not words:
            return None
        closes = self._is_foreign(words[0])
        try:
            if _is_put(words):
                self._begin_put(words)
                return None
            if (parse := _PARSERS.get(words[0].lower())) is None:
                # Only the line of a `put` ends in a colon: treat the lines after it as its items.
                self._dropping = words[-1].endswith(b":")
                raise _fault("unknown command", closes=closes)
            return parse(words[1:])
        except ClientFault:
            if is_http(line):
                raise ClientFault("this is no HTTP server", closes=True) from None
            raise

    def _is_foreign(self, word: bytes) -> bool:
        """Whether a line that begins with `word` is the client's first, and not a command."""
        is_first, self._is_first = self._is_first, False
        verb = word.lower()
        is_command = verb in _PARSERS or verb in MEMCACHED_COMMANDS or _is_put([verb])
        return is_first and not is_command

    def _begin_put(self, words: list[bytes]) -> None:
        try:
            if words[0].lower() != b"put" or not words[-1].endswith(b":"):
                raise _fault(f"usage: {_PUT}")
            last = words.pop()[:-1]
            self._put = _IncompletePut([*words[1:], last] if last else words[1:], self._largest)
        except ClientFault:
            self._dropping = True
            raise


def _is_put(words: Sequence[bytes | bytearray]) -> bool:
    """Whether a line of these words is a `put`, even a malformed one."""
    return bool(words) and words[0].lower().partition(b":")[0] == b"put"


def _get(words: list[bytes]) -> Get:
    _expect(words, "get QUEUE [TIMEOUT_MS]", 1, 2)
    return Get(_name(words[0]), _count(words[1]) if len(words) > 1 else 0)


def _peek(words: list[bytes]) -> Peek:
    _expect(words, "peek QUEUE [TIMEOUT_MS]", 1, 2)
    return Peek(_name(words[0]), _count(words[1]) if len(words) > 1 else 0)


def _monitor(words: list[bytes]) -> Monitor:
    _expect(words, "monitor QUEUE [TIMEOUT_MS [MAX]]", 1, 3)
    timeout = _count(words[1]) if len(words) > 1 else 0
    return Monitor(_name(words[0]), timeout, _count(words[2]) if len(words) > 2 else None)


def _confirm(words: list[bytes]) -> Confirm:
    _expect(words, "confirm QUEUE COUNT", 2, 2)
    return Confirm(_name(words[0]), _count(words[1]))


def _flush(words: list[bytes]) -> Flush:
    _expect(words, "flush QUEUE", 1, 1)
    return Flush(_name(words[0]))


def _flush_expired(words: list[bytes]) -> FlushExpired:
    _expect(words, "flush_expired QUEUE", 1, 1)
    return FlushExpired(_name(words[0]))


def _delete(words: list[bytes]) -> Delete:
    _expect(words, "delete QUEUE", 1, 1)
    return Delete(_name(words[0]))


def _status(words: list[bytes]) -> GetStatus | SetStatus:
    _expect(words, "status [NEW]", 0, 1)
    return SetStatus(words[0].decode(errors="replace")) if words else GetStatus()


def _auth(words: list[bytes]) -> SignIn:
    _expect(words, "auth USER PASSWORD", 2, 2)
    user, password = (word.decode(errors="surrogateescape") for word in words)
    return SignIn(user, password)


def _without_arguments(verb: str, command: Command) -> Callable[[list[bytes]], Command]:
    def parse(words: list[bytes]) -> Command:
        _expect(words, verb, 0, 0)
        return command

    return parse


_PARSERS: Final[dict[bytes, Callable[[list[bytes]], Command]]] = {
    b"get": _get,
    b"peek": _peek,
    b"monitor": _monitor,
    b"confirm": _confirm,
    b"flush": _flush,
    b"flush_all": _without_arguments("flush_all", FlushAll()),
    b"flush_expired": _flush_expired,
    b"delete": _delete,
    b"auth": _auth,
    b"reload": _without_arguments("reload", Reload()),
    b"status": _status,
    b"version": _without_arguments("version", Version()),
    b"shutdown": _without_arguments("shutdown", Shutdown()),
    b"quit": _without_arguments("quit", Quit()),
}


def _expect(words: list[bytes], usage: str, least: int, most: int) -> None:
    if not least <= len(words) <= most:
        raise _fault(f"usage: {usage}")


def _name(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise _fault("a queue name is UTF-8") from None


def _integer(word: bytes) -> int:
    digits = word.removeprefix(b"-")
    if digits.isdigit() and len(digits) <= _MOST_DIGITS:
        return int(word)
    raise _fault("not a number")


def _count(word: bytes) -> int:
    number = _integer(word)
    if number < 0:
        raise _fault("a number below 0")
    return number


def _fault(message: str, *, closes: bool = False) -> ClientFault:
    return ClientFault(message, closes=closes)


# --- replies ---


def count_reply(count: int) -> bytes:
    """Return the reply that a command succeeded for `count` items."""
    return b"+%d\n" % count


def can_carry(record: bytes, begin: int = 0) -> bool:
    """Return whether the item that begins there can be sent: a line feed would end its line."""
    return record.find(b"\n", begin) < 0


def value_reply(item: bytes) -> bytes:
    """Return the reply with an item (see `can_carry`), a status or a version."""
    return b"".join(value_parts(item))


def value_parts(item: bytes | memoryview) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return the parts of `value_reply`."""
    return b":", item, b"\n"


NO_ITEM: Final = b"*\n"
"""The reply when there is no item, or no further one."""


def error_reply(message: str) -> bytes:
    """Return the reply to a command that failed."""
    return b"-%b\n" % " ".join(message.split()).encode()
