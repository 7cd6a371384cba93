"""The memcache protocol, client side: encodes requests and parses replies; no sockets.

A request is one `bytes` object. Arguments that could end its line early or start a second command
are refused with `InvalidRequest` before anything is sent. The reply parser accepts bytes in pieces
of any size and returns complete replies. It buffers at most one incomplete line or item. Bytes that
are not a reply raise `ProtocolError`; after that the parser accepts no more.

Other servers of this protocol understand all of these requests except those about clients.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import quote_from_bytes

from kestrelmq.errors import InvalidRequest, ProtocolError
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.protocol.managing import MAX_SEARCH
from kestrelmq.protocol.memcache import MAX_ITEM_BYTES
from kestrelmq.protocol.reserving import listed_name

MAX_LINE_BYTES: Final = 1024 * 1024
"""The longest reply line accepted; a `STAT` line that names many fanout children is long."""

MAX_WORD_BYTES: Final = 250
MAX_NUMBER: Final = 2**31 - 1
MAX_DIGITS: Final = 20
"""Digits of the longest number in a reply: any of 64 bits."""

_FAILURES: Final = {b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"}
_ITEM_END: Final = b"\r\n"
_NOT_IN_WORD: Final = re.compile(rb"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Value:
    """An item. `xid` is set only in the reply to `gets`."""

    key: bytes
    data: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class ItemReply:
    """An item of a `browse` or `reserve`; `fields` are the words of its line before the length."""

    fields: tuple[bytes, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Stat:
    """One `STAT` line."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class EndOfList:
    """The `END` of a list of values or statistics, which may be empty."""


@dataclass(frozen=True, slots=True)
class Line:
    """Any other reply line, such as `STORED`, `UP` or `VERSION 1.0`, without its line end."""

    text: str


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error reply: `ERROR`, `CLIENT_ERROR` or `SERVER_ERROR`, and the reason, if any."""

    kind: str
    reason: str


Reply: TypeAlias = Value | ItemReply | Stat | EndOfList | Line | ErrorReply


class ReplyParser:
    """Parses the bytes that a server sends into replies.

    Attributes:
        has_replied: whether any reply was complete.
    """

    __slots__ = ("_broken", "_buffer", "_max_item_bytes", "_pending", "_scanned", "has_replied")

    def __init__(self, max_item_bytes: int = MAX_ITEM_BYTES) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        # The size of the item whose data is to come, and what makes the reply of the data.
        self._pending: tuple[int, Callable[[bytes], Reply]] | None = None
        self._max_item_bytes = max_item_bytes
        self._broken = False
        self.has_replied = False

    @property
    def rest(self) -> bytes:
        """The bytes received so far of a reply whose first line is not complete."""
        return bytes(self._buffer)

    @property
    def is_idle(self) -> bool:
        """Whether every byte received so far belongs to a complete reply."""
        return not self._buffer and self._pending is None

    def feed(self, data: bytes) -> list[Reply]:
        """Take the next bytes and return the replies that are now complete, in order.

        Raises:
            ProtocolError: the bytes are not a reply, or are longer than the limits.
        """
        if self._broken:
            raise ProtocolError("the replies of this connection can no longer be followed")
        self._buffer += data
        replies: list[Reply] = []
        try:
            while (reply := self._next()) is not None:
                replies.append(reply)
        except ProtocolError:
            self._broken = True
            raise
        self.has_replied = self.has_replied or bool(replies)
        return replies

    def _next(self) -> Reply | None:
        while self._pending is None:
            line = self._line()
            if line is None:
                return None
            if line.startswith(b"VALUE "):
                self._pending = self._value_header(line)
            elif line.startswith(b"ITEM "):
                self._pending = self._item_header(line)
            else:
                return _parse_line(line)
        return self._with_data(*self._pending)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if (end if end >= 0 else len(self._buffer)) > MAX_LINE_BYTES:
            raise ProtocolError(f"a reply line is longer than {MAX_LINE_BYTES} bytes")
        if end < 0:
            self._scanned = len(self._buffer)
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        self._scanned = 0
        return line

    def _value_header(self, line: bytes) -> tuple[int, Callable[[bytes], Reply]]:
        words = line.split(b" ")
        if len(words) not in {4, 5} or not all(map(_is_number, words[2:])):
            raise ProtocolError(f"malformed reply {_shown(line)}")
        xid = int(words[4]) if len(words) == 5 else None
        return self._checked_size(words[3]), partial(Value, words[1], xid=xid)

    def _item_header(self, line: bytes) -> tuple[int, Callable[[bytes], Reply]]:
        fields = line.split(b" ")[1:]
        if not _is_number(fields[-1]):
            raise ProtocolError(f"malformed reply {_shown(line)}")
        return self._checked_size(fields[-1]), partial(ItemReply, tuple(fields[:-1]))

    def _checked_size(self, word: bytes) -> int:
        size = int(word)
        if size > self._max_item_bytes:
            raise ProtocolError(f"an item of {size} bytes is over the limit {self._max_item_bytes}")
        return size

    def _with_data(self, size: int, reply: Callable[[bytes], Reply]) -> Reply | None:
        if len(self._buffer) < size + len(_ITEM_END):
            return None
        if self._buffer[size : size + len(_ITEM_END)] != _ITEM_END:
            raise ProtocolError(f"an item of {size} bytes does not end where its header says")
        data = bytes(memoryview(self._buffer)[:size])
        del self._buffer[: size + len(_ITEM_END)]
        self._pending = None
        return reply(data)


def _parse_line(line: bytes) -> Reply:
    if line == b"END":
        return EndOfList()
    word, _, rest = line.partition(b" ")
    if word in _FAILURES:
        return ErrorReply(word.decode(), _text(rest))
    if word == b"STAT":
        name, _, value = rest.partition(b" ")
        if not name:
            raise ProtocolError(f"malformed reply {_shown(line)}")
        return Stat(_text(name), _text(value))
    if not line:
        raise ProtocolError("an empty line is not a reply")
    return Line(_text(line))


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= MAX_DIGITS  # isdigit of bytes is ASCII only


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _shown(line: bytes) -> str:
    return repr(_text(line[:100]))


def set_request(
    queue: bytes, data: bytes, expiry: int = 0, delay: int = 0, mark: PutMark | None = None
) -> bytes:
    """Return the request to add an item, which waits in the queue `delay` milliseconds from now.

    An `expiry` of 0 is never, one below 1,000,000 is seconds from then, others are epoch seconds.
    With the `mark` of a producer, the request may be repeated.
    """
    if len(data) > MAX_ITEM_BYTES:
        raise InvalidRequest(f"an item has at most {MAX_ITEM_BYTES} bytes, this one {len(data)}")
    option = b"/delay=%d" % delay if delay else b""
    if mark is not None:
        after = b"/after=%d" % mark.after if mark.after >= 0 else b""
        option += b"/producer=%b/seq=%d%b" % (mark.producer, mark.sequence, after)
    return b"set %b%b 0 %d %d\r\n%b\r\n" % (_queue(queue), option, expiry, len(data), data)


def sign_in_request(user: str, password: str) -> bytes:
    """Return the request to sign in.

    Its key cannot be the name of a queue: a server without users refuses it, and does not store
    the password.
    """
    data = f"{user} {password}".encode(errors="surrogateescape")
    return b"set ~ 0 0 %d\r\n%b\r\n" % (len(data), data)


def get_request(
    queue: bytes,
    *,
    wait_ms: int = 0,
    open_read: bool = False,
    close: bool = False,
    abort: bool = False,
    peek: bool = False,
) -> bytes:
    """Return a `get` with its options; with a `wait_ms` of 0 the server answers at once."""
    if (peek or abort) and (open_read or close or (peek and abort)):
        raise InvalidRequest("peek and abort go with no other option than a wait")
    options = b"".join(
        word
        for word, wanted in (
            (b"/t=%d" % _number(wait_ms, "a wait"), wait_ms),
            (b"/close", close),
            (b"/open", open_read),
            (b"/abort", abort),
            (b"/peek", peek),
        )
        if wanted
    )
    return b"get %b%b\r\n" % (_queue(queue), options)


def monitor_request(queue: bytes, seconds: int, max_items: int | None = None) -> bytes:
    """Return the request to open reads of the items that arrive within `seconds`."""
    limit = b"" if max_items is None else b" %d" % _number(max_items, "a number of items")
    return b"monitor %b %d%b\r\n" % (_queue(queue), _number(seconds, "a time"), limit)


def confirm_request(queue: bytes, count: int) -> bytes:
    """Return the request to confirm the `count` oldest open reads of this connection."""
    return b"confirm %b %d\r\n" % (_queue(queue), _number(count, "a count"))


def browse_request(
    queue: bytes, offset: int | str, count: int, search: bytes = b"", *, is_pattern: bool = False
) -> bytes:
    """Return the request for `count` items from an offset or a place on, perhaps some of them."""
    if isinstance(offset, str):
        begin = b"from=%b" % _encoded(offset, "a place")
    else:
        begin = b"%d" % _number(offset, "an offset")
    request = b"browse %b %b %d" % (
        _queue(queue),
        begin,
        _number(count, "a number of items"),
    )
    if len(search) > MAX_SEARCH:
        raise InvalidRequest(f"what to search for has at most {MAX_SEARCH} bytes")
    if search:
        kind = b"pattern" if is_pattern else b"text"
        request += b" %b=%b" % (kind, quote_from_bytes(search, safe="").encode())
    return request + b"\r\n"


@dataclass(frozen=True, slots=True)
class ReserveTerms:
    """On what terms to reserve items; times are in milliseconds.

    Attributes:
        lease: how long they are reserved; 0 is without end.
        tag: the step that they belong to; may be empty.
        owner: whose they are; may be empty.
        grace: how long they stay reserved after the owner's last connection has ended.
        again: whether only what the tag has already is wanted.
        nodata: whether the reply only says how much is reserved.
    """

    lease: int
    tag: str = ""
    owner: str = ""
    grace: int = 0
    again: bool = False
    nodata: bool = False


def reserve_request(
    queues: Sequence[bytes], count: int, terms: ReserveTerms, wait_ms: int = 0
) -> bytes:
    """Return the request to reserve at most `count` items of the queues."""
    names = b",".join(listed_name(_queue(queue)) for queue in queues)
    words = [b"%d" % _number(count, "a count"), b"lease=%d" % _number(terms.lease, "a lease")]
    if wait_ms:
        words.append(b"t=%d" % _number(wait_ms, "a time"))
    if terms.tag:
        words.append(b"tag=%b" % _encoded(terms.tag, "a tag"))
    if terms.owner:
        words.append(b"owner=%b" % _encoded(terms.owner, "an owner"))
        words.append(b"grace=%d" % _number(terms.grace, "a grace"))
    words += [word for word, given in ((b"again", terms.again), (b"nodata", terms.nodata)) if given]
    return b"reserve %b %b\r\n" % (names, b" ".join(words))


def release_owner_request(owner: str, *arguments: str) -> bytes:
    """Return the request to release all reads of an owner."""
    words = [_encoded(argument, "an argument") for argument in arguments]
    return b" ".join([b"release owner=%b" % _encoded(owner, "an owner"), *words]) + b"\r\n"


def owners_request(pattern: str) -> bytes:
    """Return the request for the owners whose names are of a pattern."""
    return b"owners %b\r\n" % _encoded(pattern, "a pattern")


def extend_owner_request(owner: str, lease_ms: int) -> bytes:
    """Return the request to extend the leases of all reads of an owner."""
    word = _encoded(owner, "an owner")
    return b"extend owner=%b %d\r\n" % (word, _number(lease_ms, "a lease"))


def queue_request(verb: str, queue: bytes, *arguments: str) -> bytes:
    """Return a request about a queue, such as `delete work` or `pause work reads`."""
    words = [_encoded(argument, "an argument") for argument in arguments]
    return b" ".join([_word(verb.encode(), "a command"), _queue(queue), *words]) + b"\r\n"


def name_client_request(name: str) -> bytes:
    """Return the request to give the client of this connection a name."""
    return b"client name %b\r\n" % _encoded(name, "a name")


def kill_client_request(number: int) -> bytes:
    """Return the request to disconnect the client that `clients` lists by that number."""
    return b"client kill %d\r\n" % _number(number, "a client's number")


def plain_request(verb: str, argument: str | None = None) -> bytes:
    """Return a request without a queue, such as `version`, `stats` or `status READONLY`."""
    words = [_word(verb.encode(), "a command")]
    if argument is not None:
        words.append(_encoded(argument, "an argument"))
    return b" ".join(words) + b"\r\n"


def _queue(name: bytes) -> bytes:
    if b"/" in name:
        raise InvalidRequest(f"a queue name must not contain '/': {_shown(name)}")
    return _word(name, "a queue name")


def _encoded(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} is text, not {type(text).__name__}")
    try:
        return _word(text.encode(), what)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} cannot be encoded as UTF-8: {error.reason}") from None


def _word(word: bytes, what: str) -> bytes:
    if not 0 < len(word) <= MAX_WORD_BYTES:
        raise InvalidRequest(f"{what} has 1 to {MAX_WORD_BYTES} bytes, this one has {len(word)}")
    if _NOT_IN_WORD.search(word):
        raise InvalidRequest(f"{what} has no spaces and no control characters: {_shown(word)}")
    return word


def _number(number: int, what: str) -> int:
    if not isinstance(number, int):
        raise InvalidRequest(f"{what} is a whole number, not {number!r}")
    if not 0 <= number <= MAX_NUMBER:
        raise InvalidRequest(f"{what} must be between 0 and {MAX_NUMBER}, not {number}")
    return number
