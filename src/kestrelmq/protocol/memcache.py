"""The memcache protocol, server side: request lines in, plain values out; replies out as bytes.

Sans-IO. A request line is parsed into an immutable value, so equal lines may share one: `parse` is
meant to be memoised (`Parser`), and on the hot path a request costs one look-up.

Lines end in CR LF; a bare LF is accepted. Command words are case-insensitive.
"""
# ruff: noqa: SLF001 # the table of parsers names methods of the class above it

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import BINARY_REQUEST, is_http
from kestrelmq.protocol.memcache_replies import (
    DELETED,
    END,
    ERROR,
    FLUSHED_ALL,
    NOT_FOUND,
    NOT_STORED,
    OK,
    RELOADED,
    STORED,
    TOUCHED,
    client_error,
    dump,
    line,
    server_error,
    stats,
    value,
    value_header,
)
from kestrelmq.protocol.memcache_requests import (
    Confirm,
    Delete,
    Dump,
    Flush,
    FlushAll,
    FlushExpired,
    Get,
    Key,
    Monitor,
    Refused,
    Request,
    Set,
    Simple,
    Stats,
    Status,
    TouchRead,
)

__all__ = [
    "DELETED",
    "END",
    "ERROR",
    "FLUSHED_ALL",
    "MAX_ITEM",
    "MAX_LINE",
    "NOT_FOUND",
    "NOT_STORED",
    "OK",
    "RELOADED",
    "REMEMBERED",
    "STORED",
    "TOUCHED",
    "Confirm",
    "Delete",
    "Dialect",
    "Dump",
    "Flush",
    "FlushAll",
    "FlushExpired",
    "Get",
    "Key",
    "Monitor",
    "NameCheck",
    "Parser",
    "Refused",
    "Request",
    "Set",
    "Simple",
    "Stats",
    "Status",
    "TouchRead",
    "client_error",
    "dump",
    "line",
    "number",
    "server_error",
    "stats",
    "value",
    "value_header",
]

Dialect = Literal["kestrel", "memcached"]

MAX_LINE: Final = 8192
"""Most bytes in a request line."""
MAX_ITEM: Final = 2**31 - 1 - 16
"""Most bytes in an item: the journal's size field is an i32 and counts 16 bytes of header."""
REMEMBERED: Final = 512
"""Longest line that is remembered, in bytes."""
_LINES: Final = 2048
_MAX_DIGITS: Final = 19

NameCheck = Callable[[bytes], str | None]
"""Says why bytes cannot be a queue's name; None when they can."""


class Parser:
    """Parses request lines of one dialect, and remembers the last of them.

    Attributes:
        parse: returns the request in a line, which is without its LF; raises ClientFault when it
            is malformed, or unknown in the kestrel dialect. For lines of REMEMBERED bytes at most.
        parse_long: the same for lines of any length, which it does not remember.
    """

    def __init__(self, dialect: Dialect, name_error: NameCheck) -> None:
        self._dialect = dialect
        self._name_error = name_error
        self.parse: Callable[[bytes], Request] = lru_cache(_LINES)(self._parse)
        self.parse_long: Callable[[bytes], Request] = self._parse

    def _parse(self, line: bytes) -> Request:
        if len(line) > MAX_LINE and len(line.removesuffix(b"\r")) > MAX_LINE:
            raise ClientFault(f"a line has at most {MAX_LINE} bytes", closes=True)
        words = line.split()
        if not words:
            raise ClientFault("empty line", closes=self._dialect == "kestrel")
        verb = words[0].lower()
        parse = _VERBS.get(verb)
        if parse is None:
            return self._unknown(line, verb, words[1:])
        try:
            return parse(self, words[1:])
        except ClientFault as fault:
            _check_protocol(line)
            if fault.closes or words[-1] != b"noreply" or not self._may_be_quiet(verb):
                raise
            return Refused(b"", None)

    def _may_be_quiet(self, verb: bytes) -> bool:
        """Whether `noreply` at the end of a line is no argument: its client reads no reply."""
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
            # Without the length the data cannot be told from the next request.
            raise ClientFault("set takes a queue, flags, expiry and a length", closes=True)
        size = number(words[3])
        if size is None or not 0 <= size <= MAX_ITEM:
            raise ClientFault("bad length", closes=True)
        flags, expiry = number(words[1]), number(words[2])
        if flags is None or expiry is None:
            reply = client_error("flags and expiry must be numbers")
            return Refused(b"" if noreply else reply, size)
        problem = self._name_error(words[0])
        if problem is not None:
            return Refused(b"" if noreply else client_error(problem), size)
        return Set(words[0].decode(), expiry, size, noreply)

    def _get(self, words: list[bytes]) -> Request:
        return self._read(words, cas=False)

    def _gets(self, words: list[bytes]) -> Request:
        return self._read(words, cas=True)

    def _read(self, words: list[bytes], *, cas: bool) -> Request:
        if not words:
            if self._dialect == "memcached":
                return Refused(ERROR, None)
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
                timeout = number(option[2:])
                if timeout is None or timeout < 0:
                    raise ClientFault("t= takes milliseconds", closes=False)
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
        words, noreply = _without_noreply(words)
        # Old clients send a time after the key; 0 is all there is.
        if len(words) not in {1, 2} or words[1:] not in ([], [b"0"]):
            raise ClientFault("delete takes a queue", closes=False)
        return Delete(self._queue(words[0]), noreply)

    def _flush(self, words: list[bytes]) -> Flush:
        words, noreply = _without_noreply(words)
        if len(words) != 1:
            raise ClientFault("flush takes a queue", closes=False)
        return Flush(self._queue(words[0]), noreply)

    def _flush_all(self, words: list[bytes]) -> FlushAll:
        words, noreply = _without_noreply(words)
        if words not in ([], [b"0"]):
            raise ClientFault("flush_all takes no delay", closes=False)
        return FlushAll(noreply)

    def _flush_expired(self, words: list[bytes]) -> FlushExpired:
        if len(words) != 1:
            raise ClientFault("flush_expired takes a queue", closes=False)
        return FlushExpired(self._queue(words[0]))

    def _flush_all_expired(self, words: list[bytes]) -> FlushExpired:
        _nothing(words, "flush_all_expired")
        return FlushExpired(None)

    def _stats(self, words: list[bytes]) -> Stats:
        if len(words) > 1:
            raise ClientFault("stats takes at most one queue", closes=False)
        return Stats(self._queue(words[0]) if words else None)

    def _dump_stats(self, words: list[bytes]) -> Dump:
        return Dump("stats", tuple(map(self._queue, words)))

    def _dump_config(self, words: list[bytes]) -> Dump:
        return Dump("config", tuple(map(self._queue, words)))

    def _status(self, words: list[bytes]) -> Status:
        if len(words) > 1:
            raise ClientFault("status takes at most one new status", closes=False)
        return Status(words[0].decode(errors="replace") if words else None)

    def _version(self, words: list[bytes]) -> Simple:
        _nothing(words, "version")
        return Simple("version")

    def _reload(self, words: list[bytes]) -> Simple:
        _nothing(words, "reload")
        return Simple("reload")

    def _shutdown(self, words: list[bytes]) -> Simple:
        _nothing(words, "shutdown")
        return Simple("shutdown")

    def _quit(self, words: list[bytes]) -> Simple:
        _nothing(words, "quit")
        return Simple("quit")

    def _unknown(self, line: bytes, verb: bytes, words: list[bytes]) -> Refused:
        _check_protocol(line)
        if self._dialect == "kestrel":
            raise ClientFault(f"unknown command {_printable(verb)}", closes=True)
        reply = b"" if words[-1:] == [b"noreply"] else ERROR
        # These are followed by data, whose length is the word at this place.
        place = {b"ms": 1}.get(verb, 3 if verb in _STORAGE_VERBS else None)
        if place is None:
            return Refused(reply, None)
        size = number(words[place]) if len(words) > place else None
        if size is None or not 0 <= size <= MAX_ITEM:
            raise ClientFault("bad length", closes=True)
        return Refused(reply, size)


_QUIET_VERBS: Final = frozenset({b"delete", b"flush", b"flush_all"})
"""These may end in `noreply`, like `set`: their client reads no reply."""
_STORAGE_VERBS: Final = frozenset({b"add", b"replace", b"append", b"prepend", b"cas"})

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
    b"flush_all_expired": Parser._flush_all_expired,
    b"stats": Parser._stats,
    b"dump_stats": Parser._dump_stats,
    b"dump_config": Parser._dump_config,
    b"status": Parser._status,
    b"version": Parser._version,
    b"reload": Parser._reload,
    b"shutdown": Parser._shutdown,
    b"quit": Parser._quit,
}


def _check_protocol(line: bytes) -> None:
    """Refuse a line that is no command, if it shows that its client speaks another protocol."""
    if line.startswith(BINARY_REQUEST):
        raise ClientFault("the binary protocol is not served", closes=True)
    if is_http(line):
        raise ClientFault("this is no HTTP server", closes=True)


def number(word: bytes) -> int | None:
    """Return the decimal number in `word`, or None when it is none (or has over 19 digits)."""
    digits = word[1:] if word[:1] in {b"-", b"+"} else word
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    return int(word)


def _count(word: bytes, verb: str) -> int:
    value = number(word)
    if value is None or value < 0:
        raise ClientFault(f"{verb} takes whole numbers", closes=False)
    return value


def _nothing(words: list[bytes], verb: str) -> None:
    if words:
        raise ClientFault(f"{verb} takes nothing", closes=False)


def _without_noreply(words: list[bytes]) -> tuple[list[bytes], bool]:
    return (words[:-1], True) if words[-1:] == [b"noreply"] else (words, False)


def _printable(word: bytes) -> str:
    return ascii(word[:40].decode(errors="replace"))[1:-1]
